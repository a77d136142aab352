"""Waits that are kept: long ones only, each once, with its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.order.status import Awaited, AwaitReason
from sparktxlog.runtime.commit import wait_history
from sparktxlog.runtime.commit.wait_history import WaitHistory

SECOND = 1_000_000


def test_long_waits_are_kept_once_and_get_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = 0, list[Awaited]()

    def status() -> Any:
        return SimpleNamespace(waiting_for=tuple(waits), position=41)

    base: Any = SimpleNamespace(
        clock=SimpleNamespace(now=lambda: now), master=SimpleNamespace(status=status)
    )
    monkeypatch.setattr(wait_history, "wall_us", lambda: 1_000 * SECOND + now)
    history = WaitHistory(base)

    def awaited(peer: str, since: int) -> Awaited:
        return Awaited(peer=NodeId(peer), why=AwaitReason.PROMISE, since=since, key=None)

    waits.append(awaited("B", 0))
    now = SECOND - 1
    history.look()
    assert history.latest(9) == []
    now = SECOND
    history.look()
    now = 3 * SECOND
    history.look()
    (kept,) = history.latest(9)
    assert kept == {
        "peer": "B",
        "why": "promise",
        "began_at": 1_000 * SECOND,
        "ended_at": None,
        "position": 42,
    }
    # The next run waits for the same node: that is another wait.
    waits[:] = [awaited("B", 3 * SECOND)]
    now = 5 * SECOND
    history.look()
    newest, oldest = history.latest(9)
    assert (oldest["ended_at"], newest["ended_at"]) == (1_005 * SECOND, None)
    assert newest["began_at"] == 1_003 * SECOND and history.latest(1) == [newest]
