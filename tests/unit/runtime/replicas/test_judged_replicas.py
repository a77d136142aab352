"""Replicas: verdicts, who is alive, snapshots, and what survives a restart."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.support.known_replicas import base_of, hash_at, report

from sparktxlog.model.report import ReplicaVerdict, WorkerReport
from sparktxlog.model.restore_point import RESTORE_POINTS, RestorePoint, point_key
from sparktxlog.model.transactions.receipt import Appliers
from sparktxlog.runtime.replicas.judged_replicas import Replicas
from sparktxlog.runtime.replicas.own_replica import HISTORY
from sparktxlog.storage.interfaces import PutValue


def replicas(saved: dict[str, bytes] | None = None, position: int = 100_000) -> Replicas:
    return Replicas(base_of("A", hash_at, position=position, saved=saved))


def test_a_site_with_another_content_than_most_is_diverged() -> None:
    known = replicas()
    assert known.accept(report(10, "B"), 1)[0].verdict is ReplicaVerdict.IN_SYNC
    assert known.accept(report(10, "C"), 1)[0].verdict is ReplicaVerdict.IN_SYNC
    comparison, _, writes = known.accept(report(10, "A", rows=2), 1)
    assert comparison.verdict is ReplicaVerdict.DIVERGED
    assert "most sites (B, C) have" in comparison.reason
    assert writes == []
    assert known.applied(Appliers()) == 0
    assert known.snapshot(None) is None


def test_applied_counts_equal_sites() -> None:
    known = replicas()
    for node, position in (("A", 20), ("B", 30), ("C", 10)):
        known.accept(report(position, node), 1)
    assert [known.applied(Appliers(sites)) for sites in (1, 2, 3, 4)] == [20, 20, 10, 0]
    known.accept(report(40, "B", diverged="foreign commit"), 1)
    assert known.applied(Appliers(2)) == 10
    # It has passed its position, with a table that stands still.
    assert [known.passed(Appliers(sites)) for sites in (1, 2, 3, 4)] == [20, 20, 10, 0]
    assert known.passed_by(15, Appliers(2)) == {"A": {}, "B": {"t": "foreign commit"}}
    assert known.passed_by(15, Appliers()) == {"A": {}} and known.passed_by(41, Appliers(2)) == {}


@pytest.mark.parametrize("sites", [0, -1])
def test_nobody_is_asked_for_no_site(sites: int) -> None:
    with pytest.raises(ValueError, match=f"{sites} sites: a position is applied by one"):
        Appliers(sites)


def test_of_a_group_only_its_sites_count() -> None:
    """P41: so many of each; a site that has not reported has applied nothing."""
    known = replicas()
    for node, position in (("A", 50), ("B", 30), ("C", 10)):
        known.accept(report(position, node), 1)
    of_two = (("B", "C", "D"), ("A", "C"))
    reached = [known.applied(Appliers(sites, of_two)) for sites in (1, 2, 3)]
    assert reached == [30, 10, 0]
    known.accept(report(40, "C", diverged="foreign commit"), 1)
    two = Appliers(2, of_two)
    assert (known.applied(two), known.passed(two)) == (0, 30)
    there = known.passed_by(30, two)
    assert sorted(there) == ["A", "B", "C"] and two.suffice(there)
    assert not two.suffice(["A", "B"]) and not two.suffice(["A", "C"])


def test_a_follower_counts_for_no_promise() -> None:
    """P38: its replica is shown; only at itself its position is one."""
    known = Replicas(base_of("A", hash_at, position=100_000, followers="F"))
    for node, position in (("A", 20), ("B", 30), ("F", 40)):
        known.accept(report(position, node), 1)
    assert [known.applied(Appliers(sites)) for sites in (1, 2, 3)] == [20, 20, 0]
    assert [line["node_id"] for line in known.status(2)] == ["A", "B", "F"]
    own = Replicas(base_of("F", hash_at, position=100_000, followers="F"))
    own.accept(report(40, "F"), 1)
    assert own.applied(Appliers()) == 40


def test_sites_with_one_worker_id_are_two_replicas() -> None:
    """Whoever copies a lake with its state to another site gives both workers one id."""
    known = replicas()
    for node, position in (("A", 20), ("B", 30)):
        known.accept(replace(report(position, node), worker_id="copied"), 1)
    assert [(line["node_id"], line["position"]) for line in known.status(2)] == [
        ("A", 20),
        ("B", 30),
    ]
    assert [known.applied(Appliers(sites)) for sites in (1, 2)] == [20, 20]
    own = known.own("copied")
    assert own is not None and own.report.node_id == "A"


def test_silence_means_dead_and_any_report_alive() -> None:
    known = replicas()
    known.accept(report(10), 1_000_000)
    assert known.status(11_000_000)[0]["alive"]
    late = known.status(11_000_001)[0]
    assert (late["alive"], late["age_s"]) == (False, 10.0)
    _, changed, _ = known.accept(replace(report(10), reported_at=9), 12_000_000)
    assert not changed
    assert known.status(12_000_000)[0]["alive"]


def test_a_worker_that_follows_owes_reports_until_it_ends() -> None:
    known, saved = replicas(), dict[str, bytes]()

    def take(found: WorkerReport, now: int) -> None:
        for write in known.accept(found, now)[2]:
            assert isinstance(write, PutValue)
            saved[write.name] = write.value

    take(report(10), 1_000_000)
    assert known.newly_silent(90_000_000) == [] and not known.status(90_000_000)[0]["silent"]
    follows = replace(report(10), follows=True, error="the disk is full")
    take(follows, 100_000_000)
    assert known.newly_silent(110_000_000) == []
    assert [w["code"] for w in known.warnings(110_000_000)] == ["worker-error"]
    # Told once, and again after it was heard meanwhile.
    assert known.newly_silent(110_000_001) == [follows]
    assert known.newly_silent(111_000_000) == []
    (line,) = known.status(111_000_000)
    assert (line["silent"], line["error"]) == (True, "the disk is full")
    (warning,) = known.warnings(111_000_000)
    assert warning["code"] == "worker-silent" and "disk is full" in warning["text"]
    take(follows, 112_000_000)
    assert known.newly_silent(113_000_000) == [] and len(known.newly_silent(130_000_000)) == 1
    # A node that starts anew waits as long before it says so.
    again = replicas(saved)
    assert again.newly_silent(200_000_000) == []
    assert [one.worker_id for one in again.newly_silent(210_000_001)] == ["wA"]
    # Who ends well owes nothing, over a restart either.
    take(report(10), 131_000_000)
    for one in (known, replicas(saved)):
        assert one.newly_silent(300_000_000) == one.newly_silent(400_000_000) == []
        assert one.warnings(400_000_000) == []


def test_nobody_says_of_a_site_that_is_not_heard_that_its_worker_is_silent() -> None:
    link = SimpleNamespace(up=True)
    known = Replicas(base_of("A", hash_at, position=10, dead_after_us=10, links={"B": link}))
    known.accept(replace(report(10, "B"), follows=True), 1_000)
    assert known.status(2_000)[0]["silent"]
    # The other site's node tells of its own worker; this one only shows it.
    assert known.newly_silent(2_000) == []
    link.up = False
    assert not known.status(2_000)[0]["silent"]


def test_batches_are_kept_bounded_and_survive_a_restart() -> None:
    known, saved = replicas(), {}
    for batch in range(1, HISTORY + 51):
        _, _, writes = known.accept(report(10 * batch), 1)
        for write in writes:
            assert isinstance(write, PutValue)
            saved[write.name] = write.value
    assert len(saved) == HISTORY + 1
    assert known.snapshot(500) is None
    again = replicas(saved)
    for one in (known, again):
        assert one.snapshot(510) == report(510)
        assert one.snapshot(None) == report(10 * HISTORY + 500)
        assert one.applied(Appliers()) == 10 * HISTORY + 500
    assert not again.status(1)[0]["alive"]
    # The ring goes on where it was: the next batch replaces the oldest one.
    _, _, writes = again.accept(report(10 * HISTORY + 510), 1)
    assert isinstance(writes[0], PutValue)
    assert saved[writes[0].name] != writes[0].value
    assert again.snapshot(510) is None


def test_a_batch_at_a_restore_point_is_kept_as_long_as_the_point() -> None:
    base, saved = base_of("A", hash_at, position=100_000), dict[str, bytes]()
    point = RestorePoint(name="p", made_at=1, position=20)
    table = SimpleNamespace(properties=((point_key("p"), point.to_value()),))

    def apply(known: Replicas, positions: range) -> None:
        for position in positions:
            for write in known.accept(report(position), 1)[2]:
                assert isinstance(write, PutValue)
                saved[write.name] = write.value

    known = Replicas(base)
    apply(known, range(10, 40, 10))
    base.master.tables[RESTORE_POINTS] = table  # its position is known a little later
    apply(known, range(40, 10 * HISTORY + 500, 10))
    again = replicas(saved)
    for one in (known, again):
        assert (one.snapshot(10), one.snapshot(20)) == (None, report(20))
        assert one.snapshot(None) == report(10 * HISTORY + 490)
    table.properties = ()
    apply(known, range(10 * HISTORY + 500, 10 * HISTORY + 510, 10))
    assert known.snapshot(20) is replicas(saved).snapshot(20) is None


def test_a_peer_ahead_of_this_node_becomes_known_when_the_queue_has_grown() -> None:
    base = base_of("A", hash_at, position=5)
    known = Replicas(base)
    assert known.accept(report(10, "B"), 7)[0].verdict is ReplicaVerdict.AHEAD
    assert known.overtaken() == []
    base.ordered.value = base.published.value = 10
    assert known.overtaken() == [(report(10, "B"), 7)]
    comparison, changed, _ = known.accept(report(10, "B"), 7)
    assert (comparison.verdict, changed) == (ReplicaVerdict.IN_SYNC, True)
    assert known.overtaken() == []
    # What it said while it was AHEAD counts from now on.
    known.accept(report(10, "D"), 8)
    assert known.accept(report(10, "C", rows=2), 8)[0].verdict is ReplicaVerdict.DIVERGED


def test_a_new_worker_of_a_site_takes_the_place_of_the_former() -> None:
    known = replicas()
    known.accept(report(20), 1)
    known.accept(report(10, "B"), 1)
    saved = {}
    for write in known.accept(replace(report(10), worker_id="new"), 2)[2]:
        assert isinstance(write, PutValue)
        saved[write.name] = write.value
    assert [s.report.worker_id for s in known.states()] == ["new", "wB"]
    # Versions of the former lake mean nothing any more.
    assert known.snapshot(20) is None
    newest = known.snapshot(None)
    assert newest is not None and (newest.worker_id, newest.position) == ("new", 10)
    assert replicas(saved).snapshot(None) == newest


def test_a_copy_ends_the_snapshots_of_the_tables_it_replaced() -> None:
    known = replicas()
    saved = {}
    for made in (report(10), report(20), replace(report(20), copied_from="B@20"), report(30)):
        copied = replace(made, copied_from="B@20" if made.position == 30 else made.copied_from)
        for write in known.accept(copied, 1)[2]:
            assert isinstance(write, PutValue)
            saved[write.name] = write.value
    for after in (known, replicas(saved)):
        assert [r.position for r in after.history(0, 9)] == [20, 30]


def test_a_peer_that_comes_back_is_told_the_latest_report_with_its_age() -> None:
    known = replicas()
    assert known.latest_own(1) == []
    known.accept(report(10), 1_000_000)
    known.accept(report(10, "B"), 1_000_000)
    assert known.latest_own(11_000_000) == [replace(report(10), age_us=10_000_000)]
    known.accept(report(10), 0)
    assert known.latest_own(11_000_000) == [replace(report(10), age_us=-1)]
