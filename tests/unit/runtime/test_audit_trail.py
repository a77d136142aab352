"""The audit of a node: durable in order, bounded, and without tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from structlog.testing import capture_logs

from sparktxlog.model.ids import NodeId
from sparktxlog.runtime.audit_trail import (
    BEGUN,
    HISTORY,
    MOST_A_SECOND,
    NOBODY,
    OTHERS,
    SPAN_S,
    AuditTrail,
    tell_about,
)
from sparktxlog.storage.interfaces import PutValue, Write


class Kept:
    """The journal's named values."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.now, self.writes = 7, 0
        self.later: list[Callable[[], None]] = []
        #: What waits for a disk that is full.
        self.full: list[Callable[[], None]] | None = None

    def write_then(self, writes: Sequence[Write], then: Callable[[], None]) -> None:
        self.writes += len(writes)
        if self.full is not None:
            self.full.append(then)
            return
        for write in writes:
            assert isinstance(write, PutValue)
            self.values[write.name] = write.value
        then()

    def trail(self) -> AuditTrail:
        view: Any = None
        return AuditTrail(
            NodeId("A"),
            self.values,
            view,
            self.write_then,
            lambda: self.now,
            lambda _, run: self.later.append(run),
        )

    def a_second_passes(self) -> None:
        self.now += 1_000_000
        due, self.later = self.later, []
        for run in due:
            run()


def test_an_act_is_durable_before_it_ends_and_entries_are_bounded() -> None:
    kept = Kept()
    trail = kept.trail()
    number = trail.begin("maintain", "")
    (entry,) = kept.trail().latest(10)  # a crash here
    assert (entry["outcome"], entry["who"], entry["node"], entry["at"]) == (BEGUN, "node", "A", 7)
    ended: list[bool] = []
    trail.end(number, "done", lambda: ended.append(True))
    assert ended == [True]
    assert kept.trail().latest(10)[0]["outcome"] == "done"
    for turn in range(HISTORY + 5):
        trail.end(trail.begin("act", f"{turn}"), "done")
    again = kept.trail()
    assert [e["detail"] for e in again.latest(2)] == [f"{HISTORY + 4}", f"{HISTORY + 3}"]
    assert len(again.latest(10_000)) == HISTORY == len(kept.values)
    assert again.latest(10, "clients") == []
    trail.end(number, "late")  # its entry is gone: nothing happens
    assert again.begin("act", "next") == number + HISTORY + 6


def test_a_changed_secret_is_noted_and_none_is_kept() -> None:
    kept, salt = Kept(), b"journal"

    def start(**secrets: str | None) -> list[str]:
        trail = kept.trail()
        before = len(trail.latest(100))
        trail.note_secrets(secrets, salt)
        return [e["detail"] for e in trail.latest(len(trail.latest(100)) - before)]

    assert start(token="a first token", other=None) == []
    assert start(token="a first token", other=None) == []
    assert start(token="another token", other="x") == ["other added", "token replaced"]
    assert start(token=None, other="x") == ["token removed"]
    assert not any(b"token" in value and b"another" in value for value in kept.values.values())


def test_a_storm_is_few_entries_and_pushes_nobody_out() -> None:
    kept = Kept()
    trail = kept.trail()
    trail.end(trail.begin("maintain", ""), "done")
    trail.count("client etl", "10.0.0.1", "submit_transaction", "done", "done")
    kept.a_second_passes()
    kept.writes = 0
    with capture_logs() as logged:
        for _ in range(5):
            for turn in range(10_000):
                kind, error = "unauthorized", f"[unauthorized] wrong, {turn}"
                trail.count(NOBODY, "10.0.0.9", "force", kind, error)
                trail.count(NOBODY, f"10.1.{turn // 250}.{turn % 250}", "force", kind, error)
            assert len(kept.later) == 1, "one write a second, whatever comes"
            kept.a_second_passes()
        assert kept.writes <= 5 * MOST_A_SECOND
        while kept.later:
            kept.a_second_passes()
    said = [one for one in logged if one["event"] == "audit"]
    assert len(said) <= 5 * (MOST_A_SECOND + 2)
    found = kept.trail().latest(HISTORY, "strangers")
    counts = {one["address"]: one["count"] for one in found}
    assert counts["10.0.0.9"] == 50_000
    assert counts[OTHERS] == 5 * 10_000 - sum(
        count for address, count in counts.items() if address not in (OTHERS, "10.0.0.9")
    )
    assert len(found) <= 5 * MOST_A_SECOND + 1
    one = next(entry for entry in found if entry["address"] == "10.0.0.9")
    assert (one["outcome"], one["at"]) == ("[unauthorized] wrong, 0", 1_000_007)
    assert one["until"] == 5_000_007
    assert [e["action"] for e in kept.trail().latest(9, "operators")] == ["maintain"]
    assert [e["who"] for e in kept.trail().latest(9, "clients")] == ["client etl"]


def test_a_full_disk_gets_one_write_however_many_acts_there_are() -> None:
    kept = Kept()
    trail = kept.trail()
    kept.full = []
    for turn in range(10):
        for number in range(100):
            trail.count("client etl", f"10.0.{turn}.{number}", "force", "forbidden", "[forbidden]")
        kept.a_second_passes()
    assert len(kept.full) == 1 and kept.writes <= MOST_A_SECOND
    waiting, kept.full = kept.full, None
    waiting[0]()  # there is room
    while kept.later:
        kept.a_second_passes()
    assert sum(one["count"] for one in trail.latest(whose="clients")) == 1_000
    entries = kept.trail().latest(whose="clients")
    assert sum(one["count"] for one in entries if one["address"] == OTHERS) >= 800


def test_what_is_equal_is_counted_for_an_hour_and_says_what_it_was_about() -> None:
    kept = Kept()
    trail = kept.trail()
    tell_about(["append t", "append u", "append t", *(f"append t{n}" for n in range(30))])
    for seconds in (0, 60, SPAN_S, SPAN_S + 61):
        kept.now = seconds * 1_000_000
        trail.count("client etl", "10.0.0.1", "submit_transaction", "done", "done")
        trail.close()
    tell_about(["drop_table u"])
    trail.count("client etl", "10.0.0.1", "submit_transaction", "conflict", "[conflict] u")
    trail.close()
    tell_about([])
    drop, *commits = kept.trail().latest(9)
    assert (drop["detail"], drop["outcome"]) == ("drop_table u", "[conflict] u")
    assert [(one["count"], one["until"] // 1_000_000) for one in commits] == [
        (1, SPAN_S + 61),
        (3, SPAN_S),
    ]
    detail = commits[0]["detail"]
    assert detail.startswith("append t, append u, append t0") and detail.endswith("and 12 more")
