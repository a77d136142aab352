"""Every state of a replica, every message and every answer of the planner: real nodes and Spark.

Two nodes share a log, and B's replica is brought into one state after the other.  Each test begins
with both replicas IN_SYNC at the end of the log, and leaves them so.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from tests.service.test_catch_up_routes import ask
from tests.support.node_processes import (
    TABLE,
    Cluster,
    NodeProcess,
    append,
    call,
    free_ports,
    wait_until,
)

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.catchup.planner import (
    CATCH_UP,
    EMPTY,
    NO_SIZE,
    OUT_OF_SYNC,
)
from sparktxlog.errors import ApplyError, DivergedError, InvalidRequestError
from sparktxlog.worker.apply import placing
from sparktxlog.worker.apply.steps import TableSteps
from sparktxlog.worker.copy import swap
from sparktxlog.worker.copy.copy_terms import CopyOptions
from sparktxlog.worker.repair.table_quarantine import TableQuarantine
from sparktxlog.worker.replica.applier import Applier, ApplyOutcome
from sparktxlog.worker.replica.reports import report_of
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory, read_state

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(600)]

#: Any copy is taken for faster than any replay.
EAGER = {"NetSpeedBitsPerSec": 1 << 40, "MinTimeToConsiderFullReplicationS": 0}


class Sites:
    """Two nodes whose replicas this process applies."""

    def __init__(
        self, directory: Path, spark: SparkSession, settings: tuple[str, ...] = ()
    ) -> None:
        self.spark = spark
        self.cluster = Cluster(directory, "AB", settings=settings)
        self.a, self.b = self.cluster.nodes.values()
        self.number = 0
        for node in (self.a, self.b):
            # The workers end after their batches here, and stay donors.
            node.config.write_text('"worker-dead-after" = 3600\n' + node.config.read_text())

    def start(self) -> None:
        self.cluster.start()
        self.a.commit(TABLE)

    def commit(self) -> int:
        """Have a row appended at A; return its position once both nodes have published it."""
        self.number += 1
        self.a.commit(append(self.number))
        return self.cluster.publish()

    def work(
        self, node: NodeProcess, lake: Path | None = None, at_least: int = 0, **options: Any
    ) -> ApplyOutcome:
        """Run a node's worker until it holds what is published, or has to stop."""
        source = HttpLogSource(node.url)
        with closing(source), closing(ReplicaDirectory(lake or node.lake)) as directory:
            applier = Applier(self.spark, source, directory, **options)
            if "copies" in options and options["copies"].forced:
                return applier.catch_up(30.0)
            return applier.run_once(at_least, 30.0 if at_least else 0.0)

    def apply_at_a(self) -> int:
        """Bring A's replica to the end of the log; return it once B's node has heard of that."""
        position = self.cluster.publish()
        assert self.work(self.a, at_least=position).verdict == "IN_SYNC"
        self.b.hear("A", position)
        return position

    def await_plan(self, node: NodeProcess, plan: str, message: str = "") -> None:
        """Report a node's replica as it is until the plan for it stands, and a message is told."""
        before = len(node.log_text())
        with (
            closing(HttpLogSource(node.url)) as source,
            closing(ReplicaDirectory(node.lake)) as directory,
        ):
            state = replace(directory.load(), log_id=source.info().log_id)
            report = report_of(state, node.name)
            wait_until(
                lambda: source.report(report).plan == plan and message in node.log_text()[before:],
                what=f"the plan is {plan} {message}",
            )

    def rows(self, lake: Path, path: str = "t") -> list[int]:
        # By delta-rs, which keeps no table open: copies replace whole directories.
        return sorted(DeltaTable(lake / path).to_pyarrow_table().column("id").to_pylist())

    def check(self, outcome: ApplyOutcome, way: str = "") -> None:
        """B's replica is what A's is, and its node knows it; the table was replaced that way."""
        assert (outcome.verdict, outcome.diverged, outcome.stopped) == ("IN_SYNC", {}, "")
        assert self.b.replica("B")["verdict"] == "IN_SYNC"
        states = [read_state(node.lake) for node in (self.a, self.b)]
        assert states[0] is not None and states[1] is not None
        assert states[0].position == states[1].position == outcome.position
        assert self.rows(self.b.lake) == self.rows(self.a.lake)
        assert states[0].tables["t"].signature == states[1].tables["t"].signature
        assert [(copy.donor, copy.tables) for copy in outcome.copies] == (
            [("A", {"t": way})] if way else []
        )

    def quarantined(self, copy_id: str) -> list[int]:
        """Return the ids that a copy saved from B's table, as the newest entry has them."""
        lake = self.b.lake
        kept = Attic.of_lake(lake).place(Kind.ROWS, "t", copy_id)
        return self.rows(lake, str(kept.relative_to(lake)))

    @contextmanager
    def eager(self, node: NodeProcess) -> Iterator[None]:
        """Have a node prefer copies."""
        assert ask(node, "PATCH", "/v1/settings", EAGER)[0] == 200
        try:
            yield
        finally:
            assert ask(node, "PATCH", "/v1/settings", dict.fromkeys(EAGER))[0] == 200


class Said:
    """What a node logs from now on."""

    def __init__(self, node: NodeProcess) -> None:
        self._node = node
        self._before = len(node.log_text())

    def lines(self, *messages: str) -> list[str]:
        """Return the lines that hold one of some messages, once the last of them is there."""

        def found() -> list[str]:
            lines = self._node.log_text()[self._before :].splitlines()
            kept = [line for line in lines if any(f"{message} " in line for message in messages)]
            return kept if any(f"{messages[-1]} " in line for line in kept) else []

        lines: list[str] = wait_until(found, 20.0, f"{self._node.name} says {messages[-1]}")
        return lines


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Sites]:
    sites = Sites(tmp_path_factory.mktemp("states"), spark)
    try:
        sites.start()
        yield sites
    finally:
        sites.cluster.stop()


@pytest.fixture
def sites(running: Sites) -> Sites:
    """Both replicas are IN_SYNC at the end of the log."""
    position = running.apply_at_a()
    assert running.work(running.b, at_least=position).verdict == "IN_SYNC"
    running.a.hear("B", position)
    return running


def test_empty_is_copied_and_the_last_healthy_replica_is_not(sites: Sites) -> None:
    shutil.rmtree(sites.b.lake)
    said = Said(sites.b)
    with sites.eager(sites.b):
        sites.await_plan(sites.b, "copy")
        assert sites.b.replica("B")["verdict"] == "EMPTY"
        sites.a.hear("B", 0)
        # Now A has the only healthy replica: nothing may replace it.
        with pytest.raises(ApplyError, match="it is the last healthy replica"):
            sites.work(sites.a, copies=CopyOptions(forced=True))
        outcome = sites.work(sites.b, copies=CopyOptions())
    assert [copy.from_position for copy in outcome.copies] == [0]
    sites.check(outcome, "rename")
    said.lines(EMPTY)


def test_known_and_far_behind_is_copied_and_told_why_before(sites: Sites) -> None:
    sites.commit()
    sites.apply_at_a()
    said = Said(sites.b)
    with sites.eager(sites.b):
        sites.await_plan(sites.b, "copy")
        outcome = sites.work(sites.b, copies=CopyOptions())
    sites.check(outcome, "commit")
    why, message = said.lines("copy is preferred: 1 transactions to apply, estimated at", CATCH_UP)[
        :2
    ]
    assert CATCH_UP in message and CATCH_UP not in why
    assert "x 1.3 =" in why and "estimated_replay_s=" in message


def test_a_lost_update_of_two_sites_waits_for_whoever_knows_which_is_right(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites.commit()
    position = sites.apply_at_a()
    run_step, lost = TableSteps.run_step, []

    def lose(self: TableSteps, batch: Any, step: Any, progress: Any, *rest: Any) -> None:
        """Take a step for done that was not."""
        lost.append(step.kind)
        progress.done = step.number
        monkeypatch.setattr(TableSteps, "run_step", run_step)

    monkeypatch.setattr(TableSteps, "run_step", lose)
    # Found at the next signature; a third site would tell (test_replicas_majority), two cannot.
    outcome = sites.work(sites.b, copies=CopyOptions())
    assert (len(lost), outcome.verdict, outcome.copies) == (1, "IN_SYNC", ())
    for node in (sites.a, sites.b):
        node.hear("B", position)
        assert [node.replica(name)["contested"] for name in "AB"] == [True, True]
    assert f"at position {position} table 't'" in sites.b.replica("B")["reason"]
    for wrong in (CopyOptions(forced=True), CopyOptions(forced=True, donor="B")):
        with pytest.raises(ApplyError, match="no healthy donor; contested: A; name"):
            sites.work(sites.b, copies=wrong)
    outcome = sites.work(sites.b, copies=CopyOptions(forced=True, donor="A"))
    assert [copy.from_position for copy in outcome.copies] == [position]
    sites.check(outcome, "commit")
    sites.a.hear("B", position)
    assert not sites.b.replica("B")["contested"]


class Killed(BaseException):
    """The worker ended here."""


def write_foreign(lake: Path, number: int) -> None:
    """Append a row to a replica's table behind the log's back."""
    rows = pa.table({"id": pa.array([number], pa.int64()), "v": ["foreign"]})
    write_deltalake(lake / "t", rows, mode="append")


def test_lost_commit_races_are_noticed_and_nothing_foreign_is_lost(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites.commit()
    sites.apply_at_a()
    lake, commit, actions = sites.b.lake, placing.commit_by_hand, swap.swap_actions
    save_rows = TableQuarantine.save_rows

    def lose_the_batch(*arguments: Any) -> None:
        """Let somebody commit between the worker's look at the table and its own commit."""
        monkeypatch.setattr(placing, "commit_by_hand", commit)
        write_foreign(lake, 666)
        commit(*arguments)

    def lose_the_swap(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(swap, "swap_actions", actions)
        write_foreign(lake, 667)
        monkeypatch.setattr(TableQuarantine, "save_rows", killed)
        return actions(*arguments, **named)

    def killed(*arguments: Any) -> Any:
        """End between the conflict and the second export."""
        monkeypatch.setattr(TableQuarantine, "save_rows", save_rows)
        raise Killed

    monkeypatch.setattr(placing, "commit_by_hand", lose_the_batch)
    monkeypatch.setattr(swap, "swap_actions", lose_the_swap)
    said = Said(sites.b)
    assert sites.work(sites.b).diverged
    with pytest.raises(Killed):
        sites.work(sites.b, copies=CopyOptions(forced=True))
    begun = read_state(lake)
    assert begun is not None and begun.copying is not None
    assert sites.quarantined(begun.copying.copy_id) == [666]
    outcome = sites.work(sites.b, copies=CopyOptions(forced=True))
    (copy,) = outcome.copies
    sites.check(outcome, "commit")
    (message,) = said.lines(OUT_OF_SYNC)
    assert "was written by" in message
    assert copy.quarantined == {"t": 2}
    assert sites.quarantined(copy.copy_id) == [666, 667]


def test_a_table_replaced_or_removed_stands_still_until_it_is_copied_anew(sites: Sites) -> None:
    lake = sites.b.lake
    versions = DeltaTable(lake / "t").version() + 1
    shutil.rmtree(lake / "t")
    for _ in range(versions):
        write_foreign(lake, 9)
    sites.commit()
    position = sites.apply_at_a()
    said = Said(sites.b)
    # Its newest version is the one that the worker knows, and yet it is another table.
    stopped = sites.work(sites.b)
    assert "Somebody replaced the table" in stopped.diverged["t"]
    assert (stopped.verdict, stopped.position) == ("DIVERGED", position)
    # It stands still alone, so the worker goes on.
    assert "sparktxlog repair t" in stopped.diverged["t"] and not stopped.stopped
    assert sites.rows(lake) == [9] * versions
    shutil.rmtree(lake / "t")
    sites.check(sites.work(sites.b, copies=CopyOptions()), "rename")
    (message,) = said.lines(OUT_OF_SYNC)
    assert "Somebody replaced the table" in message


def _node_state(node: NodeProcess) -> list[Path]:
    """Return what belongs to a node, its lake left out."""
    return [path for path in (node.directory / node.name).iterdir() if path.name != "lake"]


def _move(paths: Sequence[Path], target: Path) -> None:
    target.mkdir(exist_ok=True)
    for path in paths:
        shutil.move(path, target / path.name)


def test_foreign_is_refused_and_only_replaced_when_asked_for(sites: Sites, tmp_path: Path) -> None:
    other = NodeProcess(tmp_path, "F", free_ports(1)[0], {})
    other.start()
    try:
        other.wait_ready()
        other.commit(TABLE)
        other.commit(append(4711))
        with sites.eager(other):
            # Nobody has anything: no copy and no message.
            outcome = sites.work(other, at_least=2)
        assert (outcome.verdict, outcome.position) == ("IN_SYNC", 2)
        assert "Replicating" not in other.log_text()
    finally:
        other.stop()
    lake = sites.b.lake
    lake.rename(tmp_path / "lake of B")
    other.lake.rename(lake)
    with pytest.raises(InvalidRequestError, match="one lake would count as two sites"):
        sites.work(sites.b)
    for copies in ({}, {"copies": CopyOptions()}):
        with pytest.raises(DivergedError, match="has the log"):
            sites.work(sites.b, takes_lake=True, **copies)
    assert sites.rows(lake) == [4711]
    said = Said(sites.b)
    outcome = sites.work(sites.b, takes_lake=True, copies=CopyOptions(forced=True))
    (copy,) = outcome.copies
    assert (outcome.verdict, copy.donor, copy.quarantined) == ("IN_SYNC", "A", {"t": 1})
    assert sites.rows(lake) == sites.rows(sites.a.lake)
    said.lines("verdict=FOREIGN")


def test_ahead_of_a_restored_node_stops_until_the_node_has_caught_up(
    sites: Sites, tmp_path: Path
) -> None:
    """The last one here: it gives the nodes another epoch, and B another incarnation."""
    a, b = sites.a, sites.b
    b.stop()
    for path in _node_state(b):
        copy = shutil.copytree if path.is_dir() else shutil.copy2
        copy(path, tmp_path / path.name)
    b.start()
    b.wait_ready()
    wait_until(sites.cluster.all_linked, what="the nodes are linked")
    position = sites.commit()
    b.hear("A", position - 1)
    a.stop()
    wait_until(lambda: not b.status()["peers"][0]["linked"], what="B misses A")
    with pytest.raises(ApplyError, match="a copy was asked for; no copy: no healthy donor"):
        sites.work(b, copies=CopyOptions(forced=True))
    # Nobody can say how much a copy would be: the log is replayed.
    with sites.eager(b):
        sites.await_plan(b, "replay", NO_SIZE)
        replayed = sites.work(b, copies=CopyOptions())
    assert (replayed.verdict, replayed.position, replayed.copies) == ("IN_SYNC", position, ())

    b.stop()
    _move(_node_state(b), tmp_path / "newer")
    _move([p for p in tmp_path.iterdir() if p.name != "newer"], b.directory / b.name)
    b.start()
    b.wait_ready()
    assert b.status()["position"] < position
    before = sites.rows(b.lake)
    for copies in (None, CopyOptions()):
        stopped = sites.work(b, copies=copies) if copies else sites.work(b)
        assert (stopped.verdict, stopped.position, stopped.batches) == ("AHEAD", position, 0)
        assert "is after the end of this node's queue" in stopped.stopped
    assert sites.rows(b.lake) == before
    a.start()
    a.wait_ready()
    # B joins anew, without the vote that it forgot, and A has half of them (P30): an operator lets
    # A go on, and has nothing else to do.
    confirm = call(f"{a.url}/v1/epochs")["force"]["confirm"]
    call(f"{a.url}/v1/force", {"confirm": confirm})
    wait_until(lambda: a.status()["members"] == b.status()["members"] == ["A", "B"], what="B is in")
    newest = sites.commit()
    sites.apply_at_a()
    sites.check(sites.work(b, at_least=newest, copies=CopyOptions()))
