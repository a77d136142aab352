"""Faults in the middle of a copy between real nodes: each ends IN_SYNC or in a clear refusal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.support.node_processes import Cluster, NodeProcess, call, wait_until
from tests.support.site_links import LossyNetwork

from sparktxlog import connect
from sparktxlog.errors import ApplyError, DiskFullError, TransportError
from sparktxlog.worker.copy.copy_terms import CopyOptions
from sparktxlog.worker.copy.donor_fetcher import DonorFetcher
from sparktxlog.worker.replica.applier import Applier, ApplyOutcome
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory, read_state

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
CHUNK_BYTES = 65_536
#: Few and long: only the bytes matter.
ROWS = 30_000
#: Chunks after which a copy counts as in the middle; the table has over 200.
MIDDLE = 20
#: So many bytes come to the target's worker before all others wait: more than `MIDDLE` chunks, and
#: less than a table, compressed or not.
_HELD_BYTES = 4 << 20


class Sites:
    """Three nodes behind relays, two of them with a replica; C is to be copied."""

    #: All with the same rows.
    tables: tuple[str, ...] = ("big",)

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self.spark = spark
        self.cluster = Cluster(directory)
        self.relays = LossyNetwork(self.cluster.ports)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def start(self) -> None:
        self.on_loop(self.relays.start())
        public = self.relays.ports
        for name, node in self.cluster.nodes.items():
            node.write_config(public[name], {n: p for n, p in public.items() if n != name})
            node.config.write_text(
                f'listen = "127.0.0.1:{self.cluster.ports[name]}"\n'
                f'"replication.chunk-bytes" = {CHUNK_BYTES}\n"worker-dead-after" = 3600\n'
                + node.config.read_text()
            )
        self.cluster.start()
        log = connect(self.spark, self.cluster.nodes["A"].url)
        noise = [F.sha2(F.concat_ws("-", "id", F.lit(part)), 512) for part in range(4)]
        for table in self.tables:
            log.create_table(table, "id bigint, x string")
            receipt = log.append(table, self.spark.range(ROWS).withColumn("x", F.concat(*noise)))
        self.cluster.agree(receipt.position)
        for name in "AB":
            # What is ordered and not published yet is not asked for: the replica would be IN_SYNC.
            call(f"{self.node(name).url}/v1/published?at_least={receipt.position}&timeout=30")
            assert self.work(name).verdict == "IN_SYNC"
        wait_until(
            lambda: {r["node_id"] for r in self.node("C").status()["replicas"]} >= {"A", "B"},
            what="C's node to hear of the replicas",
        )

    def on_loop(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def node(self, name: str) -> NodeProcess:
        return self.cluster.nodes[name]

    def lake(self, name: str) -> Path:
        return self.node(name).lake

    def work(self, name: str, **options: Any) -> ApplyOutcome:
        source = HttpLogSource(self.node(name).url)
        with closing(source), closing(ReplicaDirectory(self.lake(name))) as directory:
            return Applier(self.spark, source, directory, **options).catch_up(timeout_s=60.0)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let no copy end: its worker, which names no node, gets a part of the bytes."""
        self.loop.call_soon_threadsafe(self.relays.hold, "", _HELD_BYTES)
        try:
            yield
        finally:
            self.loop.call_soon_threadsafe(self.relays.pass_on)

    def copy(self, in_the_middle: Callable[[list[str]], None] | None = None) -> Any:
        """Copy to C; once chunks are here, let something happen to the donors of the copy."""
        if in_the_middle is None:
            return self.work("C", copies=CopyOptions(forced=True))
        donors: list[str] = []

        class Watched(DonorFetcher):
            def hold(self, ticket: Any) -> None:
                donors[:] = [ticket.lease.node_id]
                super().hold(ticket)

        over = threading.Event()
        failures: list[BaseException] = []

        def watch() -> None:
            try:
                with self.held():
                    while not over.is_set() and self.chunks() < MIDDLE:
                        over.wait(0.002)
                    if not over.is_set():
                        in_the_middle(donors)
            except BaseException as failure:
                failures.append(failure)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            return self.work("C", copies=CopyOptions(forced=True), open_fetcher=Watched)
        finally:
            over.set()
            watcher.join()
            assert not failures, failures

    def chunks(self) -> int:
        """Chunks that C has on its disk; log files are too short for one."""
        blocks = 0
        for path in (self.lake("C") / "_sparktxlog" / "copies").rglob("*.parquet*"):
            with contextlib.suppress(FileNotFoundError):  # it got its name just now
                blocks += path.stat().st_blocks
        return blocks * 512 // CHUNK_BYTES

    def check(self) -> None:
        """C holds what A holds, and its node knows it."""
        frames = [self.spark.read.format("delta").load(str(self.lake(n) / "big")) for n in "AC"]
        totals = [f.agg(F.count("*"), F.sum(F.hash("id", "x"))).first() for f in frames]
        assert totals[0] == totals[1] and totals[0][0] == ROWS
        state = read_state(self.lake("C"))
        assert state is not None and state.copying is None
        own = self.node("C").replica()
        assert (own["verdict"], own["position"]) == ("IN_SYNC", state.position)

    def stop(self) -> None:
        self.cluster.stop()
        self.loop.call_soon_threadsafe(self.relays.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Sites]:
    sites = Sites(tmp_path_factory.mktemp("faults"), spark)
    try:
        sites.start()
        yield sites
    finally:
        sites.stop()


@pytest.fixture
def sites(running: Sites) -> Iterator[Sites]:
    """C has nothing; whatever a test broke is whole again."""
    own = running.lake("C")
    if own.exists():
        subprocess.run(["rm", "-rf", str(own)], check=True)
    yield running
    running.loop.call_soon_threadsafe(running.relays.heal)
    for node in running.cluster.nodes.values():
        assert node.process is not None
        if node.process.poll() is not None:
            node.start()
            node.wait_ready()
    wait_until(running.cluster.all_linked, what="all links are back")


def test_a_killed_donor_is_replaced(sites: Sites) -> None:
    killed = []

    def kill(donors: list[str]) -> None:
        killed.extend(donors[:1])
        sites.node(donors[0]).kill()

    outcome = sites.copy(kill)
    assert outcome.verdict == "IN_SYNC" and killed
    sites.check()


def test_a_killed_node_of_the_target_costs_nothing(sites: Sites) -> None:
    node = sites.node("C")

    def kill(donors: list[str]) -> None:
        node.kill()
        node.start()

    try:
        assert sites.copy(kill).verdict == "IN_SYNC"
    except TransportError:
        # The node was not back in time for the report: a second run has nothing left to fetch.
        node.wait_ready()
        assert sites.work("C", copies=CopyOptions()).verdict == "IN_SYNC"
    sites.check()


def test_a_cut_link_is_a_clear_refusal_and_healed_goes_on(sites: Sites) -> None:
    def cut(donors: list[str]) -> None:
        sites.loop.call_soon_threadsafe(sites.relays.cut, "A")
        sites.loop.call_soon_threadsafe(sites.relays.cut, "B")

    # The donors' silence, or the node's word that there is no donor any more.
    with pytest.raises((TransportError, ApplyError)):
        sites.copy(cut)
    assert not (sites.lake("C") / "big").exists()
    here = sites.chunks()
    assert here >= MIDDLE
    sites.loop.call_soon_threadsafe(sites.relays.heal)
    wait_until(sites.cluster.all_linked, what="the links are back")
    outcome = sites.copy()
    assert outcome.verdict == "IN_SYNC"
    assert outcome.copies[0].reused_bytes >= (here - 8) * CHUNK_BYTES
    sites.check()


def test_a_killed_target_goes_on_where_it_stood(sites: Sites) -> None:
    command = [
        sys.executable,
        str(ROOT / "jobs" / "catch_up.py"),
        "--url",
        sites.node("C").url,
        "--force",
        "copy",
        "--master",
        "local[2]",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with sites.held():
        job = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
        wait_until(
            lambda: sites.chunks() >= MIDDLE or job.poll() is not None, 200, "chunks are here"
        )
        job.kill()
        stderr = job.communicate()[1].decode(errors="replace")
    assert job.returncode == -signal.SIGKILL, stderr[-3000:]
    here = sites.chunks()
    assert not (sites.lake("C") / "big").exists()
    outcome = sites.copy()
    assert outcome.verdict == "IN_SYNC"
    # At most one chunk of each stream is fetched again.
    assert outcome.copies[0].reused_bytes >= (here - 8) * CHUNK_BYTES
    sites.check()


def test_a_full_disk_is_refused_before_the_first_chunk(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = sites.lake("C")
    lake.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(lake)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, check=False).returncode == 0
    if not mounted:  # without the right to mount, the answer of a small disk
        small = os.statvfs_result((4096, 4096, 2048, 2048, 2048, 0, 0, 0, 0, 255))
        monkeypatch.setattr("sparktxlog.files.selection.os.statvfs", lambda path: small)
    try:
        with pytest.raises(DiskFullError) as caught:
            sites.copy()
        assert caught.value.definite
        assert "bytes are free" in str(caught.value)
        assert not (lake / "big").exists() and sites.chunks() == 0
    finally:
        if mounted:
            subprocess.run(["umount", str(lake)], check=True)
    monkeypatch.undo()
    assert sites.copy().verdict == "IN_SYNC"
    sites.check()
    assert call(f"{sites.node('C').url}/v1/transfers")
