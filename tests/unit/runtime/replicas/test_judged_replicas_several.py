"""Several replicas of one site: judged, counted, and forgotten."""

from __future__ import annotations

from dataclasses import replace

from tests.support.known_replicas import report
from tests.support.named_replicas import BRONZE, GOLD, Known, named

from sparktxlog.catchup.comparison import Cause
from sparktxlog.model.report import Recount, RecountedTable, ReplicaVerdict
from sparktxlog.model.transactions.receipt import Appliers
from sparktxlog.runtime.replicas.judged_replicas import RECOUNT_AFTER_US


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
    assert [known.replicas.applied(Appliers(sites)) for sites in (1, 2)] == [30, 0]
    known.take(named(40, "reports"))
    assert known.replicas.applied(Appliers()) == 40
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
    assert known.replicas.applied(Appliers()) == 0, "gold.b is applied nowhere here"
    known.take(named(20, "two", GOLD))
    assert known.replicas.applied(Appliers()) == 20
    assert known.replicas.passed_by(20, Appliers()) == {"A": {}}
    known.take(named(20, "two", GOLD, diverged="foreign commit"))
    assert (known.replicas.applied(Appliers()), known.replicas.passed(Appliers())) == (0, 20)
    assert known.replicas.passed_by(20, Appliers()) == {"A": {"t": "foreign commit"}}
    known.take(report(30))
    assert known.replicas.applied(Appliers()) == 30, "a replica with all tables is enough"
    known.take(report(20, "B"))
    assert known.replicas.applied(Appliers(2)) == 20


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
    (warned,) = known.replicas.warnings(1)
    assert warned["code"] == "replicas-not-known" and "replicas: z are not known" in warned["text"]
    rest = ("main", "x", *(f"r{number}" for number in range(6)))
    assert not known.replicas.keep_only("B", (*rest, "z")) and known.replicas.warnings(1)
    assert not known.replicas.keep_only("B", rest) and not known.replicas.warnings(1)
    assert not known.replicas.has_room(named(10, "z", node="B"))
    assert known.replicas.keep_only("B", (*rest[1:], "z"))
    assert known.replicas.has_room(named(10, "z", node="B")) and not known.replicas.warnings(1)


def test_peers_hear_of_a_replica_while_it_is_kept() -> None:
    """One that a crash loses would have been named to others."""
    known, (main, one) = Known(), (report(10), named(10, "one"))
    assert known.take(main) is ReplicaVerdict.IN_SYNC
    writes = known.replicas.register("one", "/lakes/one")
    known.take(one)
    assert known.replicas.names() == ("main",)
    assert [said.name for said in known.replicas.latest_own(1)] == ["main"]
    known.keep(writes)
    known.replicas.registered("one")
    assert known.replicas.names() == ("main", "one")
    assert [said.name for said in known.replicas.latest_own(1)] == ["main", "one"]
    assert Known(saved=known.saved).replicas.names() == ("main", "one")
    for name, rest in (("one", ("main",)), ("main", ())):
        gone = known.replicas.unregister(name)
        assert known.replicas.names() == (*rest, name), "it would come back after a crash"
        known.keep(gone)
        known.replicas.unregistered(name)
        assert known.replicas.names() == rest
    # It is registered again before its end is durable.
    known.replicas.register("one", "/lakes/one")
    known.replicas.registered("one")
    known.replicas.unregister("one")
    known.replicas.register("one", "/lakes/one")
    known.replicas.unregistered("one")
    assert known.replicas.names() == ()
    known.replicas.registered("one")
    assert known.replicas.names() == ("one",)
    # It is forgotten before its registration is durable.
    known.replicas.register("two", "/lakes/two")
    known.replicas.unregister("two")
    known.replicas.registered("two")
    assert known.replicas.names() == ("one",)


def test_reads_choose_the_most_current_replica_that_holds_the_table() -> None:
    known = Known("bronze.a", "gold.b")
    assert known.replicas.readable("gold.b") == ["main"]
    known.take(report(10))
    known.take(named(30, "one", BRONZE))
    known.take(named(20, "two"))
    assert known.replicas.readable("bronze.a") == ["one", "two", "main"]
    assert known.replicas.readable("gold.b") == ["two", "main"]
    assert known.replicas.readable() == ["two", "main"], "all tables, if one has them"
    known.take(named(40, "new", (), rows=1, diverged=""), 1)
    known.take(named(0, "empty"))
    assert known.replicas.readable("gold.b")[-1] == "empty", "nothing of it can be shown"
    known = Known("bronze.a", "gold.b")
    known.take(named(30, "one", BRONZE))
    known.take(named(0, "begins"))
    assert known.replicas.readable()[0] == "one", "no other one has applied anything"
    # One that is further, and differs, or in which the table stands still, hides no other one.
    known = Known("t")
    known.take(report(10))
    known.take(named(30, "still", diverged="foreign commit"))
    known.take(replace(named(40, "other"), chain_hash="ab"))
    assert known.replicas.readable("T") == ["main", "still", "other"]
    assert known.replicas.readable() == ["main", "still", "other"]
