"""The audit of a node: durable in order, bounded, and without tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sparktxlog.model.ids import NodeId
from sparktxlog.runtime.audit_trail import BEGUN, HISTORY, AuditTrail
from sparktxlog.storage.interfaces import PutValue, Write


class Kept:
    """The journal's named values."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def write_then(self, writes: Sequence[Write], then: Callable[[], None]) -> None:
        for write in writes:
            assert isinstance(write, PutValue)
            self.values[write.name] = write.value
        then()

    def trail(self) -> AuditTrail:
        view: Any = None
        return AuditTrail(NodeId("A"), self.values, view, self.write_then, lambda: 7)


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
