"""A replica comes back through what really happens: no room, frozen donors, no donor, lost files.

Three real nodes behind relays; C's replica is brought back, by a worker in this process.  Tests
that begin with an empty C come first; the others begin with all replicas at the end of the log.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import time
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from tests.spark.copying.test_faults import CHUNK_BYTES, MIDDLE, ROOT, ROWS
from tests.spark.copying.test_faults import Sites as FaultySites
from tests.spark.followers import follower
from tests.support.node_processes import call, wait_until

from sparktxlog.attic.attic import Attic
from sparktxlog.catchup.planner import OUT_OF_SYNC
from sparktxlog.errors import ApplyError, DiskFullError, TransportError
from sparktxlog.files.donor_link import SILENCE_S
from sparktxlog.files.fetch import fetch_files
from sparktxlog.files.part_writer import write_chunk
from sparktxlog.files.selection import MARGIN_BYTES
from sparktxlog.worker.copy.copy_terms import CopyOptions
from sparktxlog.worker.copy.donor_fetcher import DonorFetcher
from sparktxlog.worker.replica import replays, replica_driver
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.state import read_state

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(900)]


#: Silence after which a frozen donor is given up here, seconds.
FROZEN_S = 8.0


class Sites(FaultySites):
    """With two tables of equal size."""

    tables = ("big", "twin")

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        super().__init__(directory, spark)
        self.number = 0

    def commit(self, count: int = 1) -> int:
        """Append rows to `twin`, one transaction each; return the position published at C."""
        for _ in range(count):
            self.number += 1
            rows = [{"id": -self.number, "x": "late"}]
            operation = {"kind": "append", "table": "twin", "rows": rows}
            self.node("A").commit({"operations": [operation]})
        return self.cluster.publish()

    def bring(self, *names: str) -> None:
        """Bring replicas to the end of the log, and let C's node hear of it."""
        for name in names:
            assert self.work(name).verdict == "IN_SYNC"
        position = self.node("C").status()["published"]
        wait_until(
            lambda: all(self.node("C").replica(name).get("position") == position for name in names),
            what=f"C's node hears that {names} are at {position}",
        )

    def size(self) -> int:
        """Bytes of one table's data."""
        return sum(path.stat().st_size for path in (self.lake("A") / "big").glob("*.parquet"))

    def served(self, name: str, what: str = "file_bytes_total") -> float:
        with urlopen(f"{self.node(name).url}/metrics", timeout=15) as answer:
            text = answer.read().decode()
        found = re.search(rf"^sparktxlog_donor_{what} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def write_foreign(self) -> None:
        """Write to a table of C's replica behind the log's back."""
        rows = pa.table({"id": pa.array([4711], pa.int64()), "x": ["foreign"]})
        write_deltalake(self.lake("C") / "twin", rows, mode="append")

    def cut(self) -> None:
        """Leave C alone."""
        for name in "AB":
            self.loop.call_soon_threadsafe(self.relays.cut, name)
        wait_until(
            lambda: not any(peer["linked"] for peer in self.node("C").status()["peers"]),
            what="C misses both others",
        )

    def heal(self) -> None:
        self.loop.call_soon_threadsafe(self.relays.heal)
        wait_until(self.cluster.all_linked, what="all links are back")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Sites]:
    sites = Sites(tmp_path_factory.mktemp("hard"), spark)
    try:
        sites.start()
        yield sites
    finally:
        sites.stop()


@pytest.fixture
def sites(running: Sites) -> Iterator[Sites]:
    """Whatever a test broke is whole again."""
    yield running
    for node in running.cluster.nodes.values():
        node.send(signal.SIGCONT)
    running.heal()


@pytest.fixture
def empty(sites: Sites) -> Sites:
    """C has nothing."""
    subprocess.run(["rm", "-rf", str(sites.lake("C"))], check=True)
    return sites


@pytest.fixture
def whole(sites: Sites) -> Sites:
    """All replicas are at the end of the log."""
    sites.bring("A", "B", "C")
    return sites


@contextmanager
def room(lake: Path, size: int, patch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Give a lake a small disk of its own; without the right to mount, the answer of one."""
    lake.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(lake)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, check=False).returncode == 0
    if not mounted:
        blocks = size // 4096
        small = os.statvfs_result((4096, 4096, blocks, blocks, blocks, 0, 0, 0, 0, 255))
        patch.setattr("sparktxlog.files.selection.os.statvfs", lambda path: small)
    try:
        yield mounted
    finally:
        patch.undo()
        if mounted:
            subprocess.run(["umount", "-l", str(lake)], check=True)


def at_chunk(patch: pytest.MonkeyPatch, number: int, act: Callable[[], None]) -> None:
    """Let something happen before a chunk is written; the others wait for it."""
    lock, written = threading.Lock(), [0]

    def counting(part: Path, data: memoryview, offset: int) -> None:
        with lock:
            written[0] += 1
            if written[0] >= number:
                act()
        write_chunk(part, data, offset)

    patch.setattr("sparktxlog.files.fetch.write_chunk", counting)


def test_tables_that_fit_one_by_one_only_are_refused_before_their_data(
    empty: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, size = empty.lake("C"), empty.size()
    with room(lake, MARGIN_BYTES + size * 3 // 2, monkeypatch):
        with pytest.raises(DiskFullError) as caught:
            empty.copy()
        assert caught.value.definite and caught.value.fields["needed_bytes"] >= 2 * size
        copies = lake / "_sparktxlog" / "copies"
        assert list(copies.rglob("*.json")) and not list(copies.rglob("*.parquet*"))
        assert not (lake / "big").exists() and not (lake / "twin").exists()
    subprocess.run(["rm", "-rf", str(lake)], check=True)
    # With room for both they come.
    outcome = empty.copy()
    assert (outcome.verdict, outcome.copies[0].tables) == (
        "IN_SYNC",
        {"big": "rename", "twin": "rename"},
    )
    empty.check()


def test_a_disk_that_fills_up_in_the_middle_ends_in_a_refusal_and_goes_on(
    empty: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, size = empty.lake("C"), empty.size()
    ballast = lake / "ballast"
    with room(lake, MARGIN_BYTES + 2 * size + (16 << 20), monkeypatch) as mounted:

        def fill() -> None:
            if not mounted:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if not ballast.exists():
                status = os.statvfs(lake)
                with ballast.open("wb") as file:
                    free = status.f_bavail * status.f_frsize
                    os.posix_fallocate(file.fileno(), 0, free - CHUNK_BYTES)

        with monkeypatch.context() as patched:
            at_chunk(patched, MIDDLE, fill)
            with pytest.raises(DiskFullError) as caught:
                empty.copy()
        assert caught.value.definite and "no space left" in str(caught.value)
        assert not (lake / "big").exists() and not (lake / "twin").exists()
        here = empty.chunks()
        # Each of eight requests may have had a chunk for which there was no room.
        assert here >= MIDDLE - 8
        ballast.unlink(missing_ok=True)
        outcome = empty.copy()
        assert outcome.verdict == "IN_SYNC"
        assert outcome.copies[0].reused_bytes >= (here - 16) * CHUNK_BYTES
        empty.check()


def test_a_frozen_donor_is_given_up_for_another_one(
    empty: Sites, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    donors: list[str] = []
    frozen: list[tuple[str, float]] = []

    class Watched(DonorFetcher):
        def hold(self, ticket: Any) -> None:
            donors[:] = [ticket.lease.node_id]
            super().hold(ticket)

    def freeze() -> None:
        if not frozen:
            frozen.append((donors[0], time()))
            empty.node(donors[0]).send(signal.SIGSTOP)

    at_chunk(monkeypatch, MIDDLE, freeze)
    impatient = partial(fetch_files, silence_s=FROZEN_S)
    monkeypatch.setattr("sparktxlog.worker.copy.donor_fetcher.fetch_files", impatient)
    with caplog.at_level(logging.WARNING):
        try:
            outcome = empty.work("C", copies=CopyOptions(forced=True), open_fetcher=Watched)
        except (TransportError, ApplyError):
            outcome = None
    ((name, at),) = frozen
    if outcome is not None:
        assert outcome.verdict == "IN_SYNC"
    # Either way its silence was noticed soon: by another donor, or by an end of the attempts.
    silent = [r.created for r in caplog.records if "was silent for" in r.getMessage()]
    # Requests of several kinds may each wait for it once, and on a busy machine begin late.
    assert all(created - at < 4 * SILENCE_S for created in silent[:1])
    assert (outcome is not None and outcome.copies[0].donor == name) or silent
    if outcome is None:
        assert not (empty.lake("C") / "big").exists()
        empty.node(name).send(signal.SIGCONT)
        empty.heal()
        assert empty.copy().verdict == "IN_SYNC"
    empty.check()


def test_a_killed_target_leaves_no_lease_behind(empty: Sites) -> None:
    for name in ("A", "B"):
        empty.node(name).stop()
        empty.node(name).start("replication.lease=1")
        empty.node(name).wait_ready()
    wait_until(empty.cluster.all_linked, what="A and B are back")
    command = [
        sys.executable,
        str(Path(__file__).with_name("holding_copy.py")),
        empty.node("C").url,
        str(empty.lake("C")),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    target = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert target.stdout is not None
        lines = list(iter(lambda: target.stdout.readline().split(), ["held"]))
    finally:
        target.kill()
        target.communicate()
    ((donor, lease, lease_s),) = lines
    node, pins = empty.node(donor), empty.lake(donor) / "_sparktxlog" / "leases"
    assert target.returncode == -signal.SIGKILL and float(lease_s) == 1.0
    ended = re.compile(rf"lease ended.*{lease}.*|{lease}.*lease ended.*")
    found = wait_until(lambda: ended.search(node.log_text()), what="the lease has ended")
    assert "expired" in found[0]
    wait_until(lambda: empty.served(donor, "leases") == 0, what="the donor lends nothing")
    wait_until(lambda: not list(pins.glob("*")), what="its pins are removed")
    for name in ("A", "B"):
        empty.node(name).stop()
        empty.node(name).start()
        empty.node(name).wait_ready()


def lose_a_file(sites: Sites) -> None:
    """Make a batch fail for good at C, which A has applied."""
    payloads = Path(call(f"{sites.node('C').url}/v1/info")["payload_root"])
    before = set(payloads.rglob("*.parquet"))
    sites.commit()
    sites.bring("A", "B")
    lost = set(payloads.rglob("*.parquet")) - before
    assert lost
    for path in lost:
        path.unlink()


def spoil_a_table(sites: Sites) -> None:
    """Make C's replica diverge with its next batch."""
    sites.write_foreign()
    sites.commit()
    sites.bring("A", "B")


@pytest.mark.parametrize("spoil", [spoil_a_table, lose_a_file])
def test_a_follower_without_a_donor_stands_still_and_comes_back(
    whole: Sites,
    spoil: Callable[[Sites], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(replica_driver, "IDLE_S", 3.0)
    spoil(whole)
    told = len(whole.node("C").log_text())
    whole.cut()
    with caplog.at_level(logging.ERROR), follower(whole.spark, whole.node("C")) as outcomes:
        # Only that table stands still, and nothing of it is replaced without a donor.
        wait_until(lambda: "table 'twin'" in caplog.text, 120.0, "C's worker says why")
        assert not outcomes and not Attic.of_lake(whole.lake("C")).entries()
        whole.heal()
        position = whole.node("C").status()["published"]
        wait_until(
            lambda: (
                (whole.node("C").replica()["verdict"], whole.node("C").replica()["position"])
                == ("IN_SYNC", position)
            ),
            240.0,
            "C's replica is back",
        )
    (outcome,) = outcomes
    if spoil is spoil_a_table:
        # Its own files suffice, for this table; it waited until the node saw whose rows are right.
        assert [one.found.table for one in outcome.repairs] == ["twin"] and not outcome.copies
    else:
        assert [copy.position for copy in outcome.copies] == [position]
    assert (outcome.verdict, outcome.diverged, outcome.stopped) == ("IN_SYNC", {}, "")
    assert f"{OUT_OF_SYNC} " in whole.node("C").log_text()[told:]
    said = [r.getMessage() for r in caplog.records if "stands still" in r.getMessage()]
    assert len(said) == len(set(said))
    attic = Attic.of_lake(whole.lake("C"))
    for entry in attic.entries():
        attic.remove(entry)


def test_a_donor_behind_what_was_heard_of_is_followed_by_a_request(
    whole: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = whole.node("C").status()["published"]
    whole.write_foreign()
    position = whole.commit(2)
    requested: list[tuple[int, int]] = []
    request = Applier.request

    def noted(self: Applier, first: int, last: int) -> tuple[int, int]:
        requested.append((first, last))
        return request(self, first, last)

    monkeypatch.setattr(Applier, "request", noted)
    assert whole.work("C").diverged
    outcome = whole.work("C", copies=CopyOptions(forced=True))
    assert [(copy.from_position, copy.position) for copy in outcome.copies] == [(position, behind)]
    assert requested == [(behind + 1, position)]
    assert (outcome.verdict, outcome.position) == ("IN_SYNC", position)
    rows = whole.spark.read.format("delta").load(str(whole.lake("C") / "twin"))
    assert rows.count() == ROWS + whole.number


def test_a_replay_of_a_lag_is_recorded_and_live_batches_are_not(
    whole: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> list[dict[str, Any]]:
        found = call(f"{whole.node('C').url}/v1/transfers?limit=1000")
        return [transfer for transfer in found if transfer["kind"] == "replay"]

    first = whole.commit(3) - 2
    before = len(told())
    with monkeypatch.context() as patched:
        patched.setattr(replays, "BEHIND_S", 0.0)
        assert whole.work("C").verdict == "IN_SYNC"
    (transfer,) = told()[before:]
    assert (transfer["from_position"], transfer["to_position"]) == (first - 1, first + 2)
    assert (transfer["transactions"], transfer["donors"], transfer["outcome"]) == (3, [], "done")
    assert transfer["estimated_s"] > 0 and 0 < transfer["actual_s"] < 600
    assert "transactions to apply" in transfer["reason"]
    state = read_state(whole.lake("C"))
    assert state is not None and transfer["worker_id"] == state.worker_id
    monkeypatch.setattr(replays, "BEHIND_S", 3_600.0)
    whole.commit()
    assert whole.work("C").verdict == "IN_SYNC"
    assert len(told()) == before + 1
