"""What is kept of each replica of the own site, over restarts."""

from __future__ import annotations

from dataclasses import replace

from tests.support.known_replicas import report
from tests.support.named_replicas import BRONZE, Known, named


def test_snapshots_of_each_replica_survive_a_restart_and_a_forgotten_one_does_not() -> None:
    known = Known("bronze.a")
    known.keep(known.replicas.register("reports", "/lakes/reports"))
    known.replicas.registered("reports")
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
    again.replicas.unregistered("reports")
    for one in (again, Known("bronze.a", saved=again.saved)):
        assert one.replicas.lakes == {} and one.replicas.names() == ("main",)
        assert one.replicas.snapshot(10, "reports") is None
        assert one.replicas.snapshot(10) is not None, "the main one's are others"
    assert not any(value for name, value in again.saved.items() if "reports" in name)
