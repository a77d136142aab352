"""Which limits shorten the log, and who holds it back (C4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sparktxlog.model.report import ReplicaVerdict, WorkerReport
from sparktxlog.runtime.log.retention import (
    Holder,
    Holders,
    Limit,
    Limits,
    RetentionView,
    Shortening,
    decide,
)
from sparktxlog.storage.interfaces import PutValue, SegmentCut

HOUR_US = 3_600_000_000
NOW = 1_000 * HOUR_US
#: Ten segments of 100 positions, 1,000 bytes of files each, one ordered each hour until now.
CUTS = [
    SegmentCut(
        last=100 * i, chain_hash=bytes([i]), ordered_at=NOW - (10 - i) * HOUR_US, files_bytes=1_000
    )
    for i in range(1, 11)
]
MANY = Limits(transactions=1 << 40, age_us=10_000 * HOUR_US, size_bytes=1 << 50)


def holder(site: str, position: int, *, known: bool = True) -> Holder:
    return Holder(node_id=site, worker_id=f"w{site}", position=position, known=known)


ALL = (holder("a", 1_000), holder("b", 1_000), holder("c", 1_000))


def view(**fields: Any) -> RetentionView:
    given: dict[str, Any] = {
        "published": 1_000,
        "kept_after": 0,
        "peers": {"b": 1_000, "c": 1_000},
        "holders": ALL,
        "limits": MANY,
        "now_us": NOW,
    }
    return RetentionView(**(given | fields))


def limits(**fields: int) -> Limits:
    given = {
        "transactions": MANY.transactions,
        "age_us": MANY.age_us,
        "size_bytes": MANY.size_bytes,
    }
    return Limits(**(given | fields))


def shortened(found: RetentionView, log_bytes: int = 10_000) -> Shortening:
    cuts = [cut for cut in CUTS if cut.last > found.kept_after]
    return decide(found, cuts, log_bytes, 0)


def cut_of(found: RetentionView, log_bytes: int = 10_000) -> int:
    cut = shortened(found, log_bytes).cut
    return found.kept_after if cut is None else cut.last


@pytest.mark.parametrize("wrong", [NOW + 87_600 * HOUR_US, NOW + 1, 0])
@pytest.mark.parametrize("stamped", [{100}, {100, 200, 300}, {300, 500}])
def test_a_segment_stamped_by_a_wrong_clock_stops_no_expiry(wrong: int, stamped: set[int]) -> None:
    cuts = [replace(cut, ordered_at=wrong) if cut.last in stamped else cut for cut in CUTS]
    found = decide(view(limits=limits(age_us=int(5.5 * HOUR_US))), cuts, 10_000, 0)
    assert found.cut is not None
    # At 500 the next segment behind it is not old enough to tell.
    assert found.cut.last == 400
    assert found.limits == (Limit.AGE,)


@pytest.mark.parametrize("wrong", [NOW + 87_600 * HOUR_US, 0])
def test_behind_stamps_that_say_nothing_the_published_end_counts(wrong: int) -> None:
    """Nothing says how old they are: they may be of this moment."""
    cuts = [replace(cut, ordered_at=wrong) for cut in CUTS]
    found = decide(view(limits=limits(age_us=HOUR_US)), cuts, 10_000, 0)
    assert found == Shortening(cut=None)
    found = decide(view(published=400, limits=limits(age_us=HOUR_US)), [*cuts[:4], CUTS[4]], 9, 0)
    assert found.cut is None, "what is not published says nothing yet"


def test_within_all_limits_nothing_expires() -> None:
    assert shortened(view()) == Shortening(cut=None)


@pytest.mark.parametrize(
    ("most", "cut"), [(1_000, 0), (999, 0), (900, 100), (899, 100), (800, 200), (1, 900)]
)
def test_the_count_keeps_at_least_its_transactions_and_cuts_at_segments(
    most: int, cut: int
) -> None:
    assert cut_of(view(limits=limits(transactions=most))) == cut


@pytest.mark.parametrize(("hours", "cut"), [(10, 0), (8.5, 100), (5.5, 400), (0.5, 900)])
def test_the_age_is_that_of_a_segments_last_run(hours: float, cut: int) -> None:
    found = shortened(view(limits=limits(age_us=int(hours * HOUR_US))))
    assert (0 if found.cut is None else found.cut.last) == cut
    assert found.limits == ((Limit.AGE,) if cut else ())


def test_a_clock_169_hours_ahead_removes_what_is_168_hours_old_and_applied() -> None:
    late = {"now_us": NOW + 169 * HOUR_US, "limits": limits(age_us=168 * HOUR_US)}
    assert cut_of(view(**late)) == 1_000
    assert cut_of(view(**late, holders=(*ALL[:2], holder("c", 650)))) == 600
    assert cut_of(view(now_us=NOW + 158 * HOUR_US, limits=limits(age_us=168 * HOUR_US))) == 0


def test_an_age_that_is_not_known_removes_nothing() -> None:
    unknown = SegmentCut(last=100, chain_hash=b"", ordered_at=0, files_bytes=1)
    assert decide(view(limits=limits(age_us=1)), [unknown], 1, 0).cut is None


FULL = {"limits": limits(transactions=1)}


@pytest.mark.parametrize(
    ("fields", "cut", "held_by"),
    [
        ({"holders": (*ALL[:2], holder("c", 250))}, 200, ("worker of c",)),
        ({"holders": (*ALL[:2], holder("c", 300))}, 300, ("worker of c",)),
        # Never reported: held from the beginning.
        ({"holders": (*ALL[:2], Holder(node_id="c"))}, 0, ("worker of c",)),
        ({"holders": tuple(Holder(node_id=n) for n in "ab")}, 0, ("worker of a", "worker of b")),
        # A peer that lags, and one that was not heard of since the start.
        ({"peers": {"b": 450, "c": 1_000}}, 400, ("peer b",)),
        ({"peers": {"b": 0, "c": 1_000}}, 0, ("peer b",)),
        ({"copies": (333,)}, 300, ("a copy under way",)),
        # What is not published is never touched.
        ({"published": 550, "holders": ALL}, 500, ()),
        # A single node.
        ({"peers": {}, "holders": ALL[:1]}, 900, ()),
        # Overrun before: it needs a copy, and holds nothing back.
        ({"kept_after": 300, "holders": (*ALL[:2], holder("c", 200))}, 900, ()),
        ({"kept_after": 300, "holders": (*ALL[:2], holder("c", 300))}, 300, ("worker of c",)),
    ],
)
def test_who_holds_the_log_back(fields: dict[str, Any], cut: int, held_by: tuple[str, ...]) -> None:
    found = view(**FULL, **fields)
    assert cut_of(found) == cut
    assert shortened(found).held_by == held_by
    assert shortened(found).overrun == ()


@pytest.mark.parametrize(
    ("fields", "size_bytes", "cut", "overrun"),
    [
        # Applied everywhere: oldest first, until it fits.
        ({}, 10_000, 0, ""),
        ({}, 9_999, 100, ""),
        ({}, 7_000, 300, ""),
        # A laggard, and one that never reported, are overrun.
        ({"holders": (*ALL[:2], holder("c", 250))}, 7_000, 300, "c"),
        ({"holders": (*ALL[:2], holder("c", 250))}, 8_000, 200, ""),
        ({"holders": (*ALL[:2], Holder(node_id="c"))}, 9_000, 100, "c"),
        ({"holders": (ALL[0], holder("b", 150), holder("c", 50))}, 7_000, 300, "bc"),
        # Peers' positions and what is unpublished never.
        ({"peers": {"b": 250, "c": 1_000}}, 1, 200, ""),
        ({"published": 250}, 1, 200, ""),
        # Never what no replica could give a copy of.
        ({"holders": (holder("a", 420), holder("b", 0), holder("c", 0))}, 1, 400, "bc"),
        ({"holders": tuple(Holder(node_id=n) for n in "abc")}, 1, 0, ""),
        ({"holders": (holder("a", 1_000, known=False), holder("b", 200))}, 1, 200, ""),
    ],
)
def test_the_hard_cap_overruns_workers_but_no_peers(
    fields: dict[str, Any], size_bytes: int, cut: int, overrun: str
) -> None:
    found = view(**{"limits": limits(size_bytes=size_bytes)} | fields)
    assert cut_of(found) == cut
    assert "".join(h.node_id for h in shortened(found).overrun) == overrun


def test_rows_count_for_the_cap_too() -> None:
    found = decide(view(limits=limits(size_bytes=15_000)), CUTS, 20_000, 10_000)
    assert found.cut is not None
    assert found.cut.last == 300  # each segment frees 1,000 bytes of files and 1,000 of rows


def test_a_laggard_is_warned_of_from_80_percent_of_the_cap() -> None:
    lagging = {"holders": (*ALL[:2], holder("c", 250))}
    at = {"limits": limits(size_bytes=10_000), **lagging}
    assert [h.node_id for h in shortened(view(**at), 8_000).endangered] == ["c"]
    assert shortened(view(**at), 7_999).endangered == ()
    assert shortened(view(limits=limits(size_bytes=10_000)), 9_000).endangered == ()


def report(site: str, position: int) -> WorkerReport:
    return WorkerReport(
        worker_id=f"w{site}", node_id=site, log_id="l", epoch=1, position=position, chain_hash="00"
    )


def test_holders_survive_a_restart_and_strangers_are_none() -> None:
    both = {"a": 1, "b": 1}
    holders = Holders(both, {})
    writes = holders.note(report("b", 40), ReplicaVerdict.IN_SYNC)
    assert holders.note(report("b", 40), ReplicaVerdict.IN_SYNC) == []
    assert holders.note(report("z", 70), ReplicaVerdict.IN_SYNC) == []
    assert holders.note(report("a", 70), ReplicaVerdict.FOREIGN) == []
    (kept,) = writes
    assert isinstance(kept, PutValue)
    again = Holders(both, {kept.name: kept.value})
    assert again.all() == holders.all() == (Holder(node_id="a"), holder("b", 40))


def test_a_site_that_lost_its_disk_has_no_replica_that_could_lend_a_copy() -> None:
    """The others shortened their logs to what only the lost replica had applied."""
    holders = Holders({"a": 1, "b": 1}, {})
    (kept,) = holders.note(report("b", 40), ReplicaVerdict.IN_SYNC)
    holders.set_members({"a": 1, "b": 2})
    blank = (Holder(node_id="a"), Holder(node_id="b", incarnation=2))
    assert holders.all() == blank
    assert isinstance(kept, PutValue)
    assert Holders({"a": 1, "b": 2}, {kept.name: kept.value}).all() == blank, "after a restart too"
    holders.note(report("b", 50), ReplicaVerdict.IN_SYNC)
    holders.set_members({"a": 1, "b": 2})
    assert [one.position for one in holders.all()] == [0, 50]


def test_every_replica_of_a_site_holds_the_log_until_it_is_forgotten() -> None:
    """Replicas are counted singly."""
    holders, saved = Holders({"a": 1, "b": 1}, {}), dict[str, bytes]()

    def keep(writes: list[Any]) -> None:
        for write in writes:
            assert isinstance(write, PutValue)
            saved[write.name] = write.value

    keep(holders.note(report("a", 500), ReplicaVerdict.IN_SYNC))
    part = replace(report("a", 300), name="reports", only=("b.*",))
    keep(holders.note(part, ReplicaVerdict.IN_SYNC))
    keep(holders.note(report("b", 500), ReplicaVerdict.IN_SYNC))
    for one in (holders, Holders({"a": 1, "b": 1}, saved)):
        assert [(h.replica, h.position) for h in one.all()] == [
            ("a", 500),
            ("a/reports", 300),
            ("b", 500),
        ]
        found = view(
            holders=one.all(), published=500, peers={"b": 500}, limits=limits(transactions=1)
        )
        assert (found.applied, found.copyable) == (300, 500)
        assert shortened(found).held_by == ("worker of a/reports",)
    keep(holders.keep_only("a", ["main"]))
    for one in (holders, Holders({"a": 1, "b": 1}, saved)):
        assert [h.replica for h in one.all()] == ["a", "b"]
    # A site without its main replica does not hold all of the log for that one.
    holders.keep_only("a", [])
    assert [h.replica for h in holders.all()] == ["a", "b"] and holders.all()[0].position == 0
    holders.note(part, ReplicaVerdict.IN_SYNC)
    assert [h.replica for h in holders.all()] == ["a/reports", "b"]
    assert view(holders=holders.all()).copyable == 500, "a part of the tables lends no whole copy"
