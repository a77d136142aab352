"""Staging over HTTP on loopback, beside the same on a disk that executors and node share."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.cluster import Cluster
from benchmarks.results import Figure, at_least, beside, informing
from benchmarks.sparks import COLUMNS, frame, session
from sparktxlog import connect
from sparktxlog.http.upload_link import UploadLink
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.payloads.local_store import LocalPayloadStore

#: Bytes of a file, of numbers that no codec makes shorter; a task sends two at once.
_FILE_BYTES = 128 << 20
_AT_ONCE = 2


def run(short: bool) -> list[Figure]:
    """Measure uploads of files as tasks make them, then commits of a large DataFrame."""
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory), "A") as cluster,
    ):
        figures = _files(Path(directory), cluster, 2 if short else 4, 1 if short else 3)
        return [*figures, *_frames(cluster, 100_000 if short else 1_000_000, 1 if short else 3)]


def _files(directory: Path, cluster: Cluster, count: int, repeat: int) -> list[Figure]:
    """Measure the way of finished files into the store, until they are verified and fsynced."""
    source = directory / "source"
    source.mkdir()
    random = np.random.default_rng(7)
    paths = []
    for number in range(count):
        paths.append(source / f"part-{number}.parquet")
        values = random.integers(0, 1 << 62, _FILE_BYTES // 8)
        pq.write_table(pa.table({"n": values}), paths[-1], use_dictionary=False)
    described = [_described(path) for path in paths]
    size = sum(file.size_bytes for file in described)
    shared = LocalPayloadStore(directory / "shared")

    def upload(link: UploadLink, path: Path, file: StagedFile) -> None:
        link.upload(path, file, "t")

    def write(path: Path, file: StagedFile) -> None:
        target = Path(shared.path(file.path))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        shared.verify(file)

    times: dict[str, list[float]] = {"http": [], "shared": []}
    with closing(UploadLink(cluster.urls["A"])) as link:
        for _ in range(repeat):
            times["shared"].append(_seconds(write, paths, described))
            times["http"].append(
                _seconds(lambda path, file: upload(link, path, file), paths, described)
            )
    best = {name: size / 1e6 / min(values) for name, values in times.items()}
    return [
        at_least("staging over HTTP, digests and fsync", best["http"], "MB/s", 150),
        informing("the same files written to a shared disk", best["shared"], "MB/s"),
    ]


def _described(path: Path) -> StagedFile:
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    rows = pq.read_metadata(path).num_rows
    return StagedFile(path=path.name, size_bytes=path.stat().st_size, rows=rows, digest=digest)


def _seconds(
    act: Callable[[Path, StagedFile], None], paths: Sequence[Path], described: Sequence[StagedFile]
) -> float:
    """Return the time for all files, each under a new name."""
    folder = f"{uuid.uuid4()}/0-t"
    named = [
        StagedFile(
            path=f"{folder}/{one.path}",
            size_bytes=one.size_bytes,
            rows=one.rows,
            digest=one.digest,
        )
        for one in described
    ]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        begin = time.perf_counter()
        list(threads.map(act, paths, named))
        return time.perf_counter() - begin


def _frames(cluster: Cluster, rows: int, repeat: int) -> list[Figure]:
    """Measure whole commits in turns: Spark's rows become files at executors, and are accepted."""
    spark = session()
    data = frame(spark, rows)
    times: dict[str, list[float]] = {"shared": [], "http": []}
    logs = {name: connect(spark, cluster.urls["A"], staging=name) for name in times}  # type: ignore[arg-type]
    logs["shared"].create_table("bulk", COLUMNS)
    for turn in range(repeat + 1):
        for name, log in logs.items():
            begin = time.perf_counter()
            log.append("bulk", data, level="accepted")
            if turn:  # the first turn warms up
                times[name].append(time.perf_counter() - begin)
    medians = {name: sorted(values)[len(values) // 2] for name, values in times.items()}
    return [
        beside(
            f"commit of {rows:,} rows staged over HTTP",
            medians["http"],
            "s",
            "the same on a shared disk",
            medians["shared"],
            2.0,
        )
    ]
