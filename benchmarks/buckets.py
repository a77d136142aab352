"""Commit tables in buckets, without Spark: what a commit waits for, and how fast files travel.

The store is SeaweedFS on the same machine, whose processes take of the same cores.  The peer is
rclone, which copies the same object with two streams from one prefix to the other, through itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.support.delta_writer import BEGIN, DELTA, StagedTable, path_of
from tests.support.store_servers import BUCKET, KEY, SECRET, StoreServer, packages, seaweedfs

from benchmarks.cluster import Cluster
from benchmarks.epochs import wait_members
from benchmarks.results import Figure, at_most, beside, informing
from sparktxlog.files.stores.store import Store
from sparktxlog.model.tables.commit_table import commit_file_name

#: Seconds between two looks.
_LOOK_S = 0.005
_SMALL = 4_000
_PIECE = 8 << 20
#: Seconds that a large file may take.
_PATIENCE_S = 1_800.0


class _Site:
    """A site's node, and where a writer of the site puts files.

    Args:
        store: The prefix of the node; None = the tables are in a directory.
        drafts: Where the writer makes files before it puts them into the bucket.
    """

    def __init__(self, url: str, store: Store | None, drafts: Path) -> None:
        self._url, self.store, self._drafts = url, store, drafts
        self._table: StagedTable | None = None

    @property
    def table(self) -> StagedTable:
        assert self._table is not None
        return self._table

    def ask(self, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._url + path, data, {"Content-Type": "application/json"})
        try:
            with urlopen(request, timeout=_PATIENCE_S) as answer:
                return json.load(answer)
        except HTTPError as error:
            raise RuntimeError(f"{error.code}: {error.read().decode()}") from error

    def create_table(self) -> None:
        """Create a table of this site."""
        name = f"staged_{uuid.uuid4().hex[:8]}"
        path = f"{DELTA}/catalogs/tx/schemas/default/staging-tables"
        table = StagedTable.of(self.ask(path, {"name": name}))
        if self.store is not None:
            table = replace(table, directory=self._drafts / table.table_id)
            table.directory.mkdir(parents=True)
        self._table = table
        table.write_first()
        self.upload()
        self.ask(path_of(), table.creation(name))
        self._name = name

    def staged(self, version: int, add: dict[str, Any]) -> Any:
        """Return the body of a request for a version."""
        return self.table.update(self.table.stage(version, add, timestamp=BEGIN + version))

    def upload(self) -> None:
        """Put what the writer made into the bucket, as Spark does."""
        if self.store is not None:
            for path in self.table.directory.rglob("*"):
                if path.is_file():
                    relative = path.relative_to(self.table.directory)
                    self.store.create(f"{self.table.table_id}/{relative}", path)
                    path.unlink()

    def commit(self, body: Any) -> None:
        self.ask(path_of(self._name), body)


def _lone_commits(site: _Site, number: int) -> float:
    """Return the median of commits that one writer makes, seconds; staged before."""
    site.create_table()
    adds = [site.table.add(bytes(_SMALL)) for _ in range(number)]
    bodies = [site.staged(version, add) for version, add in enumerate(adds, start=1)]
    site.upload()
    took = []
    for body in bodies:
        begin = time.perf_counter()
        site.commit(body)
        took.append(time.perf_counter() - begin)
    return median(took)


def _requests(store: Store, number: int) -> float:
    """Return the median of requests that create a small object, seconds."""
    took = []
    for name in range(number):
        begin = time.perf_counter()
        store.create(f"requests/{name}", bytes(_SMALL))
        took.append(time.perf_counter() - begin)
    return median(took)


@contextmanager
def _bucket_nodes(root: Path, names: str, server: StoreServer) -> Iterator[Cluster]:
    settings = {
        "store-endpoint": server.endpoint,
        "store-region": "us-east-1",
        "store-allow-http": True,
        "store-credentials-file": str(server.credentials_file),
    }
    urls = {name: {"commit-table-url": f"s3://{BUCKET}/{root.name}/{name}"} for name in names}
    with Cluster(root, names, of_each=urls, **settings) as cluster:
        wait_members(cluster, names, names)
        yield cluster


def _latencies(root: Path, server: StoreServer, number: int) -> list[Figure]:
    """Commit to a table on a disk and to one in a bucket."""
    (root / "disk").mkdir()
    with Cluster(root / "disk", "A") as cluster:
        wait_members(cluster, "A", "A")
        on_disk = _lone_commits(_Site(cluster.urls["A"], None, root), number)
    (root / "bucket").mkdir()
    with _bucket_nodes(root / "bucket", "A", server) as cluster:
        store = server.store("bucket/A")
        in_bucket = _lone_commits(_Site(cluster.urls["A"], store, root / "drafts"), number)
        request = _requests(server.store("bucket/requests"), number)
    goal = 1e3 * (on_disk + 3 * request)
    return [
        informing("buckets: a commit on a disk, one site, p50", 1e3 * on_disk, "ms"),
        informing("buckets: a request that creates 4 kB, p50", 1e3 * request, "ms"),
        at_most("buckets: a commit in a bucket, one site, p50", 1e3 * in_bucket, "ms", goal),
    ]


def _large(path: Path, size: int) -> None:
    """Write bytes that nobody can compress."""
    with path.open("wb") as file:
        for at in range(0, size, _PIECE):
            file.write(os.urandom(min(_PIECE, size - at)))


class _Memory(threading.Thread):
    """Looks at the memory of nodes; `most` is the most that one had above its first value."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(name="memory", daemon=True)
        self._cluster, self._ended = cluster, threading.Event()
        self._idle = {name: cluster.resident_bytes(name) for name in cluster.names}
        self.most = 0

    def run(self) -> None:
        while not self._ended.wait(0.05):
            for name, idle in self._idle.items():
                self.most = max(self.most, self._cluster.resident_bytes(name) - idle)

    def end(self) -> int:
        self._ended.set()
        self.join()
        return self.most


def _travel(root: Path, server: StoreServer, size: int) -> list[Figure]:
    """Commit one large file at A, and wait until B's bucket has its version; then rclone's copy."""
    (root / "travel").mkdir()
    with _bucket_nodes(root / "travel", "AB", server) as cluster:
        stores = {name: server.store(f"travel/{name}") for name in "AB"}
        a = _Site(cluster.urls["A"], stores["A"], root / "drafts-of-travel")
        a.create_table()
        identity = a.table.table_id
        _until(lambda: stores["B"].find(f"{identity}/{commit_file_name(0)}") is not None)
        add = a.table.add()
        _large(a.table.directory / add["add"]["path"], size)
        add["add"]["size"] = size
        body = a.staged(1, add)
        a.upload()
        memory, begin = _Memory(cluster), time.perf_counter()
        memory.start()
        a.commit(body)
        ordered = time.perf_counter() - begin
        _until(lambda: stores["B"].find(f"{identity}/{commit_file_name(1)}") is not None)
        took, most = time.perf_counter() - begin, memory.end()
        peer = _rclone(server, f"travel/A/{identity}/{add['add']['path']}", "travel/copied")
    mib = size / (1 << 20)
    return [
        informing(f"buckets: a file of {mib:,.0f} MiB, until its commit is ordered", ordered, "s"),
        beside(
            "buckets: the same, until it is in the other site's bucket",
            took,
            "s",
            "rclone copy, two streams",
            peer,
            1 / 0.8,
        ),
        at_most("buckets: memory of a node above idle meanwhile", most / (1 << 20), "MiB", 128),
    ]


def _rclone(server: StoreServer, source: str, target: str) -> float:
    """Return the seconds that rclone takes to copy an object through itself."""
    environ = {**os.environ}
    for remote in ("HERE", "THERE"):  # between two remotes no copy stays in the server
        environ |= {
            f"RCLONE_CONFIG_{remote}_TYPE": "s3",
            f"RCLONE_CONFIG_{remote}_PROVIDER": "Other",
            f"RCLONE_CONFIG_{remote}_ACCESS_KEY_ID": KEY,
            f"RCLONE_CONFIG_{remote}_SECRET_ACCESS_KEY": SECRET,
            f"RCLONE_CONFIG_{remote}_ENDPOINT": server.endpoint,
        }
    command = [
        str(packages() / "bin" / "rclone"),
        *("copyto", f"here:{BUCKET}/{source}", f"there:{BUCKET}/{target}"),
        *("--config", os.devnull, "--disable", "copy", "--multi-thread-streams", "2"),
        *("--s3-upload-concurrency", "2", "--s3-no-check-bucket"),
    ]
    begin = time.perf_counter()
    subprocess.run(command, env=environ, check=True)
    return time.perf_counter() - begin


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError("a version did not arrive")
        time.sleep(_LOOK_S)


def run(short: bool) -> list[Figure]:
    """Measure commits, then a file of 5 GB."""
    with tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory:
        root = Path(directory)
        with seaweedfs(root / "store" / "state") as server:
            found = _latencies(root, server, 20 if short else 200)
            return found + _travel(root, server, 32 << 20 if short else 5_000_000_000)
