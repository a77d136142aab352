"""Data that cannot be had, as operators hear of it."""

from __future__ import annotations

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import Announcement
from sparktxlog.runtime.commit.damage import Damage

RUN = Announcement(
    log_id="l", epoch=1, origin=NodeId("B"), digest=b"d" * 32, size_bytes=1, staged_bytes=1
)


def test_a_run_is_told_when_it_failed_several_times_and_until_it_arrives() -> None:
    now = [0.0]
    damage = Damage(lambda: now[0])
    for _ in range(3):
        damage.failed(RUN, "answered 422")
        now[0] += 10
    assert (damage.runs(), damage.warnings()) == ([], [])
    damage.failed(RUN, "answered 404")
    (run,) = damage.runs()
    assert (run["origin"], run["seq"], run["times"], run["since_s"]) == ("B", None, 4, 30.0)
    assert run["reason"] == "answered 404"
    damage.arrived(RUN.digest)
    assert damage.runs() == []


def test_what_nobody_wants_any_more_is_forgotten() -> None:
    now = [0.0]
    damage = Damage(lambda: now[0])
    for _ in range(4):
        damage.failed(RUN, "answered 422")
    damage.unreadable("x/y.parquet", "damaged")
    assert [warning["code"] for warning in damage.warnings()] == ["undelivered-run", "damaged-file"]
    now[0] += 601
    assert damage.warnings() == []


def test_files_are_told_until_they_are_whole_and_are_bounded() -> None:
    damage = Damage(lambda: 0.0)
    for number in range(1_001):
        damage.unreadable(f"x/{number}", "damaged")
    assert len(damage.files()) == 1_000
    damage.readable("x/1000")
    assert damage.files()[-1] == {"path": "x/999", "reason": "damaged"}
