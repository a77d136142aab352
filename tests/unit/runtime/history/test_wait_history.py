"""Waits that are kept: long ones only, each once, with its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.order.status import Awaited, AwaitReason
from sparktxlog.runtime.history import wait_history
from sparktxlog.runtime.history.wait_history import WaitHistory

SECOND = 1_000_000


def test_long_waits_are_kept_once_and_get_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waiting, waits = 0, 3, list[Awaited]()

    def status() -> Any:
        return SimpleNamespace(waiting_for=tuple(waits), position=41, incoming_transactions=waiting)

    base: Any = SimpleNamespace(
        clock=SimpleNamespace(now=lambda: now), master=SimpleNamespace(status=status)
    )
    monkeypatch.setattr(wait_history, "wall_us", lambda: 1_000 * SECOND + now)
    noted: list[Any] = []
    history = WaitHistory(base, lambda table, rows: noted.extend((table, row) for row in rows))

    def awaited(peer: str, since: int) -> Awaited:
        return Awaited(peer=NodeId(peer), why=AwaitReason.PROMISE, since=since, key=None)

    waits.append(awaited("B", 0))
    now = SECOND - 1
    history.look()
    assert history.rounds(9) == []
    now = SECOND
    history.look()
    now = 3 * SECOND
    history.look()
    ((kept,),) = (one["waits"] for one in history.rounds(9))
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
    ((oldest, newest),) = (one["waits"] for one in history.rounds(9))
    assert (oldest["ended_at"], newest["ended_at"]) == (1_005 * SECOND, None)
    assert newest["began_at"] == 1_003 * SECOND
    # Both waits are of one round, which lasts as long as the order waits for somebody.
    waiting = 7
    history.look()
    waiting = 2
    (lasting,) = history.rounds(9)
    assert (lasting["round"], lasting["ended_at"]) == (1_000 * SECOND, None)
    assert (lasting["transactions"], lasting["held_up_by"]) == (7, ["B"])
    assert "Position 42 has waited 5.0 s for B: its timestamp counter" in lasting["sentence"]
    assert noted == []
    waits.clear()
    now = 6 * SECOND
    history.look()
    (ended,) = history.rounds(9)
    assert noted == [("rounds", ended)]
    assert ended["ended_at"] == 1_006 * SECOND and "waited 6.0 s for B" in ended["sentence"]
    assert [one["ended_at"] for one in ended["waits"]] == [1_005 * SECOND, 1_006 * SECOND]
    # A clock that was set back does not make an id that there was.
    other = WaitHistory(base, lambda table, rows: None)
    other.remember([{**ended, "round": 2_000 * SECOND}])
    waits.append(awaited("C", 6 * SECOND))
    now = 8 * SECOND
    other.look()
    assert [one["round"] for one in other.rounds(9)] == [2_000 * SECOND + 1, 2_000 * SECOND]
    assert len(other.rounds(1)) == 1
