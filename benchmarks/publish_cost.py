"""CPU of publishing, compared with the same bytes and fsyncs by hand.

One thread publishes runs of 1,000 transactions of 200 B, each an appended row; in turn with each
publish the bytes of its files are written again below another directory, and forced to the disk as
often.  CPU time of the thread, so a busy machine changes it little.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from tests.support.storage_samples import inline_block, run_of, stored_of

from benchmarks.results import Figure, beside, informing
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.storage.interfaces import PutRun, StoredEntry
from sparktxlog.storage.log_tables.queue_table import QUEUE_NAME, QueueTable
from sparktxlog.storage.payloads.local_store import LocalPayloadStore
from sparktxlog.storage.segments.publishing import publish

_TABLE = TableDefinition(
    name="bench",
    columns=(Column(name="id", type="bigint"), Column(name="note", type="string")),
    keys=(),
)
_RUN = 1_000
#: Publishes that are not counted: the first ones also make directories and load code.
_WARM = 3


def costs(short: bool) -> list[Figure]:
    """Measure publishes of one run, and of thirty."""
    count = 40 if short else 220
    with tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory:
        ours, floor, merging = _publishes(Path(directory, "one"), count, runs=1)
        large, large_floor, _ = _publishes(Path(directory, "thirty"), count // 10, runs=30)
    by_hand = "the same bytes and fsyncs by hand"
    return [
        beside(
            "publishing: CPU of a publish of 1,000, median",
            1e3 * statistics.median(ours),
            "ms",
            by_hand,
            1e3 * statistics.median(floor),
            4,
        ),
        informing(
            "publishing: the same, average with checkpoints", 1e3 * statistics.mean(ours), "ms"
        ),
        informing(
            "publishing: the last 20, divided by the first 20",
            statistics.median(ours[-20:]) / statistics.median(ours[:20]),
            "",
        ),
        informing("publishing: CPU of merging for each", 1e3 * merging / len(ours), "ms"),
        informing(
            "publishing: CPU of a publish of 30,000, median", 1e3 * statistics.median(large), "ms"
        ),
        informing(f"publishing: {by_hand}", 1e3 * statistics.median(large_floor), "ms"),
    ]


def _publishes(root: Path, count: int, runs: int) -> tuple[list[float], list[float], float]:
    """Return the seconds of CPU of each publish, of each by hand, and of all merging."""
    log, other = root / "log", root / "by-hand"
    log.mkdir(parents=True)
    other.mkdir()
    queue, payloads = QueueTable(log, "l"), LocalPayloadStore(root / "payloads")
    ours, floor, merging = list[float](), list[float](), 0.0
    for number, entries in enumerate(_entries(count + _WARM, runs)):
        begin = time.thread_time()
        marks = publish(
            entries,
            signature_interval=1_000_000_000,
            tables={_TABLE.name: _TABLE},
            payloads=payloads,
            queue=queue,
        )
        ours.append(time.thread_time() - begin)
        inline = [file.path for effect in marks[-1].segment.effects for file in effect.files]
        table, version = log / QUEUE_NAME, marks[-1].version
        written = [
            *(payloads.root / path for path in inline),
            table / f"part-{version:020}.parquet",
            table / "_delta_log" / f"{version:020}.json",
        ]
        contents = [path.read_bytes() for path in written]
        begin = time.thread_time()
        _by_hand(other / f"{number}", contents)
        floor.append(time.thread_time() - begin)
        begin = time.thread_time()
        while queue.tidy():
            pass
        merging += time.thread_time() - begin
    return ours[_WARM:], floor[_WARM:], merging


def _by_hand(directory: Path, contents: Sequence[bytes]) -> None:
    """Write files below a new directory, each with its bytes and its name on the disk."""
    directory.mkdir()
    for number, content in enumerate(contents):
        with open(directory / f"{number}", "wb", buffering=0) as file:
            file.write(content)
            os.fsync(file.fileno())
        for place in (directory, directory.parent):
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(descriptor)
            os.close(descriptor)


def _entries(publishes: int, runs: int) -> Iterator[list[StoredEntry]]:
    """Yield what each publish gets, in the order of the queue; made while nothing is measured."""
    previous, after = bytes(32), 0
    for number in range(publishes):
        made = [_run(number * runs + run) for run in range(runs)]
        entries = stored_of(made, after=after, previous=previous)
        previous, after = entries[-1].entry.chain_hash, entries[-1].entry.end
        yield entries


def _run(number: int) -> PutRun:
    rows = pa.table(
        {
            "id": pa.array(range(number * _RUN, (number + 1) * _RUN), pa.int64()),
            "note": [os.urandom(100).hex() for _ in range(_RUN)],
        }
    )
    block, section = inline_block(
        _TABLE.name, OperationKind.APPEND, rows, 0, tx=range(_RUN), schema_version=1
    )
    return run_of(seq=1 + number * _RUN, n=_RUN, blocks=[block], sections=[section])
