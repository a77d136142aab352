"""Several replicas of one site: judged, counted, kept over a restart, and forgotten (R28, B44)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.support.known_replicas import base_of, hash_at, report

from sparktxlog.catchup.comparison import Cause
from sparktxlog.model.report import Recount, RecountedTable, ReplicaVerdict, WorkerReport
from sparktxlog.model.tables.table import Tables
from sparktxlog.runtime.replicas.judged_replicas import RECOUNT_AFTER_US, Replicas
from sparktxlog.storage.interfaces import PutValue

BRONZE, GOLD = ("bronze.*",), ("gold.*",)


def table(name: str) -> Any:
    return SimpleNamespace(name=name, is_dropped=False, properties=())


def tables(*names: str) -> Any:
    return Tables({name.lower(): table(name) for name in names})


class Known:
    """The replicas that node A knows, with what its journal keeps of them."""

    def __init__(self, *names: str, saved: dict[str, bytes] | None = None) -> None:
        self.saved = dict(saved or {})
        self.base = base_of("A", hash_at, position=100_000, saved=self.saved)
        self.base.master.tables = tables(*names)
        self.replicas = Replicas(self.base)

    def take(self, found: WorkerReport, now: int = 1) -> ReplicaVerdict:
        comparison, _, writes = self.replicas.accept(found, now)
        self.keep(writes)
        return comparison.verdict

    def keep(self, writes: Iterable[Any]) -> None:
        for write in writes:
            assert isinstance(write, PutValue)
            self.saved[write.name] = write.value


def named(
    position: int, name: str, only: tuple[str, ...] = (), node: str = "A", **more: Any
) -> WorkerReport:
    return replace(
        report(position, node, **more), name=name, only=only, worker_id=f"{name} of {node}"
    )


def test_replicas_of_a_site_are_listed_and_judged_singly() -> None:
    known = Known()
    assert known.take(report(30)) is ReplicaVerdict.IN_SYNC
    assert known.take(named(20, "reports")) is ReplicaVerdict.IN_SYNC
    assert known.take(named(20, "broken", diverged="foreign commit")) is ReplicaVerdict.DIVERGED
    lines = [(one["node_id"], one["name"], one["verdict"]) for one in known.replicas.status(1)]
    assert lines == [
        ("A", "main", "IN_SYNC"),
        ("A", "broken", "DIVERGED"),
        ("A", "reports", "IN_SYNC"),
    ]
    # One site, however many replicas it has: its furthest whole one counts.
    assert [known.replicas.applied(sites) for sites in (0, 1, 2)] == [30, 30, 0]
    known.take(named(40, "reports"))
    assert known.replicas.applied(1) == 40
    own = known.replicas.own("reports of A")
    assert own is not None and own.report.replica == "A/reports"
    main = known.replicas.own()
    assert main is not None and main.report.name == "main"


def test_replicas_of_a_site_that_differ_are_contested_and_a_recount_finds_the_wrong_one() -> None:
    known = Known()
    known.keep(known.replicas.register("reports", "/lakes/reports"))
    known.take(report(10))
    assert known.take(named(10, "reports", rows=2)) is ReplicaVerdict.IN_SYNC
    states = {one.report.name: one for one in known.replicas.states()}
    assert all(one.contested for one in states.values())
    assert [one["site"] for one in known.replicas.differences()] == ["A", "A/reports"]
    later = 1 + RECOUNT_AFTER_US
    known.take(named(10, "reports", rows=2), later)
    assert known.replicas.recount_due("reports") == known.replicas.recount_due() == ["t"]
    wrong = RecountedTable(version=10, recorded="2", counted="1")
    recount = Recount(
        worker_id="reports of A", node_id="A", copied_from="", position=10, tables={"t": wrong}
    )
    known.keep(known.replicas.take_recount(recount))
    assert known.take(named(10, "reports", rows=2), later) is ReplicaVerdict.DIVERGED
    assert known.take(report(10), later) is ReplicaVerdict.IN_SYNC, "only one of them was counted"
    own = known.replicas.named("reports")
    assert own is not None and own.comparison.cause is Cause.RECOUNT
    again = Known(saved=known.saved)
    assert again.take(named(10, "reports", rows=2)) is ReplicaVerdict.DIVERGED


def test_a_site_with_sets_has_applied_what_all_of_them_have_if_they_leave_out_nothing() -> None:
    known = Known("bronze.a", "gold.b")
    known.take(named(30, "one", BRONZE))
    assert known.replicas.applied(1) == 0, "gold.b is applied nowhere here"
    known.take(named(20, "two", GOLD))
    assert known.replicas.applied(1) == known.replicas.applied(0) == 20
    assert known.replicas.passed_by(20, 1) == {"A": {}}
    known.take(named(20, "two", GOLD, diverged="foreign commit"))
    assert (known.replicas.applied(1), known.replicas.passed(1)) == (0, 20)
    assert known.replicas.passed_by(20, 1) == {"A": {"t": "foreign commit"}}
    known.take(report(30))
    assert known.replicas.applied(1) == 30, "a replica with all tables is enough"
    known.take(report(20, "B"))
    assert known.replicas.applied(2) == 20


def test_tables_that_no_replica_holds_and_patterns_that_match_none_are_said() -> None:
    known = Known("bronze.a", "gold.b", "gold.c", "sparktxlog_restore_points")
    known.take(named(10, "one", (*BRONZE, "silver.*")))

    def warned() -> dict[str, str]:
        return {one["code"]: one["text"] for one in known.replicas.warnings(2)}

    assert set(warned()) == {"pattern-matches-nothing", "tables-not-held"}
    assert "A/one holds silver.*" in warned()["pattern-matches-nothing"]
    assert "no replica of site A holds gold.b, gold.c:" in warned()["tables-not-held"]
    known.base.master.tables = tables("bronze.a", "silver.x")  # another history
    assert warned() == {}
    known.base.master.tables._by_lower["gold.z"] = table("gold.z")
    assert set(warned()) == {"tables-not-held"}
    known.base.master.tables._by_lower["gold.z"].is_dropped = True
    assert warned() == {}
    known.take(report(10))
    known.base.master.tables._by_lower["gold.z"].is_dropped = False
    assert warned() == {}, "the main replica holds all tables"


def test_snapshots_of_each_replica_survive_a_restart_and_a_forgotten_one_does_not() -> None:
    known = Known("bronze.a")
    known.keep(known.replicas.register("reports", "/lakes/reports"))
    for position in (10, 20):
        known.take(report(position))
        known.take(replace(named(position, "reports", BRONZE), follows=True))
    again = Known("bronze.a", saved=known.saved)
    for one in (known, again):
        assert one.replicas.lakes == {"reports": "/lakes/reports"}
        kept = one.replicas.snapshot(10, "reports")
        assert kept is not None and kept.only == BRONZE and kept.worker_id == "reports of A"
        newest = one.replicas.snapshot(None)
        assert newest is not None and newest.name == "main"
        assert [r.position for r in one.replicas.history(0, 9, "reports")] == [10, 20]
        assert one.replicas.names() == ("main", "reports")
    assert [one.name for one in again.replicas.newly_silent(10**9)] == []
    assert [one.name for one in again.replicas.newly_silent(2 * 10**9)] == ["reports"]
    assert again.replicas.applied_by("reports") == 20 and again.replicas.applied_by("x") == 0
    again.keep(again.replicas.unregister("reports"))
    for one in (again, Known("bronze.a", saved=again.saved)):
        assert one.replicas.lakes == {} and one.replicas.names() == ("main",)
        assert one.replicas.snapshot(10, "reports") is None
        assert one.replicas.snapshot(10) is not None, "the main one's are others"
    assert not any(value for name, value in again.saved.items() if "reports" in name)


def test_a_peer_names_its_replicas_and_others_of_it_are_forgotten() -> None:
    known = Known()
    for one in (report(10, "B"), named(10, "x", node="B"), named(10, "y", node="B"), report(10)):
        known.take(one)
    assert not known.replicas.keep_only("B", ("main", "x", "y"))
    assert known.replicas.keep_only("B", ("main", "x"))
    assert [one.report.replica for one in known.replicas.states()] == ["A", "B", "B/x"]
    assert known.replicas.has_room(named(10, "z", node="B"))
    for number in range(6):
        known.take(named(10, f"r{number}", node="B"))
    assert not known.replicas.has_room(named(10, "z", node="B"))
    assert known.replicas.has_room(named(20, "r1", node="B")), "that one is known"


def test_reads_choose_the_most_current_replica_that_holds_the_table() -> None:
    known = Known("bronze.a", "gold.b")
    assert known.replicas.readable("gold.b") == ["main"]
    known.take(report(10))
    known.take(named(30, "one", BRONZE))
    known.take(named(20, "two"))
    assert known.replicas.readable("bronze.a") == ["one", "two", "main"]
    assert known.replicas.readable("gold.b") == ["two", "main"]
    assert known.replicas.readable() == ["two", "main", "one"], "all tables, if one has them"
    known.take(named(40, "new", (), rows=1, diverged=""), 1)
    known.take(named(0, "empty"))
    assert known.replicas.readable()[-1] == "empty", "nothing of it can be shown"


def test_donors_that_lack_tables() -> None:
    known = Known("bronze.a", "gold.b")
    lacks = known.replicas.sets.lacks
    assert not lacks((), ()) and not lacks((), BRONZE) and not lacks(BRONZE, BRONZE)
    assert lacks(BRONZE, ()) and lacks(BRONZE, GOLD) and lacks(BRONZE, ("*.*",))
    assert not lacks(BRONZE, ("bronze.a",)) and not lacks((*BRONZE, *GOLD), ())
