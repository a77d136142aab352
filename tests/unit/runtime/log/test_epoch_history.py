"""Epochs that a node took up: what changed, each once, kept in a ring over restarts."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from sparktxlog.model.epoch import EpochRecord, QueueEnd, RosterSeat
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import MergeBase
from sparktxlog.protocol.messages.view import Phase, Seat, View
from sparktxlog.runtime.log import epoch_history
from sparktxlog.runtime.log.epoch_history import HISTORY, EpochHistory, record_of
from sparktxlog.storage.interfaces import PutValue, Write

A, B, C, D = (Seat(node_id=NodeId(name), url=f"http://{name}") for name in "ABCD")


def view_of(
    epoch: int, seats: Sequence[Seat] = (A, B, C), members: str = "ABC", log_id: str = "l"
) -> View:
    return View(
        log_id=log_id,
        epoch=epoch,
        roster=tuple(seats),
        members=tuple(NodeId(name) for name in members),
        end=MergeBase(position=10 * epoch, chain_hash=bytes([epoch % 256])),
    )


class Place:
    """A node's journal values; `start` stands for a start of its process."""

    def __init__(self) -> None:
        self.saved: dict[str, bytes] = {}
        self.clock = 0
        #: True: writes wait.
        self.slow = False
        self.waiting: deque[tuple[Sequence[Write], Callable[[], None]]] = deque()

    def start(self) -> EpochHistory:
        return EpochHistory(self.saved, put=self._put, now=self._now)

    def _now(self) -> int:
        self.clock += 1
        return self.clock

    def _put(self, writes: Sequence[Write], then: Callable[[], None]) -> None:
        self.waiting.append((writes, then))
        if not self.slow:
            self.write()

    def write(self) -> None:
        """Write what waits, in its turn."""
        while self.waiting:
            writes, then = self.waiting.popleft()
            for write in writes:
                assert isinstance(write, PutValue)
                self.saved[write.name] = write.value
            then()


def changes(before: View, after: View) -> list[str]:
    found = record_of(after, Phase.NORMAL, record_of(before, Phase.NORMAL, None, 1), 2)
    return [
        "?" if names is None else "".join(names)
        for names in (found.joined, found.left, found.changed)
    ]


def test_a_record_says_all_of_the_view() -> None:
    witness = replace(C, witness=True, weight=2, incarnation=3)
    found = record_of(view_of(7, (A, B, witness), "AB"), Phase.JOINING, None, 123)
    assert found == EpochRecord(
        log_id="l",
        epoch=7,
        members=("A", "B"),
        quorum=2,
        quorum_rule="default",
        roster=(
            RosterSeat(id="A", url="http://A", weight=1, witness=False, incarnation=1),
            RosterSeat(id="B", url="http://B", weight=1, witness=False, incarnation=1),
            RosterSeat(id="C", url="http://C", weight=2, witness=True, incarnation=3),
        ),
        begins_after=QueueEnd(position=70, chain_hash="07"),
        joined=None,
        left=None,
        changed=None,
        phase="JOINING",
        taken_up_at=123,
    )


@pytest.mark.parametrize(
    ("seats", "members", "wanted"),
    [
        ((A, B, C), "ABC", ("", "", "")),
        ((A, B, C), "AB", ("", "C", "")),
        ((A, B, C, D), "ABC", ("", "", "D")),
        ((A, B, C, D), "ABCD", ("D", "", "")),
        ((A, B), "AB", ("", "C", "")),
        ((A, replace(B, weight=2), C), "ABC", ("", "", "B")),
        ((A, B, replace(C, incarnation=2)), "ABC", ("", "", "C")),
        ((B, A, C), "ABC", ("", "", "AB")),
        ((D, B, C), "BCD", ("D", "A", "")),
        ((D, A, B, C), "ABC", ("", "", "D")),
    ],
)
def test_changes_are_told_once_for_each_node(
    seats: tuple[Seat, ...], members: str, wanted: tuple[str, str, str]
) -> None:
    assert changes(view_of(1), view_of(2, seats, members)) == list(wanted)


def test_each_epoch_is_kept_once_over_restarts() -> None:
    place = Place()
    history = place.start()
    history.take_up(view_of(0), Phase.JOINING)
    assert (history.latest(9), history.after(0)) == ([], ())
    history.begin(view_of(1), Phase.NORMAL)
    history.begin(view_of(2, members="AB"), Phase.NORMAL)
    for phase in (Phase.NORMAL, Phase.SUSPECT, Phase.WEDGED):
        history.take_up(view_of(1), phase)
    history.take_up(view_of(2, members="AB"), Phase.NORMAL)
    history.take_up(view_of(2, members="A", log_id="fork"), Phase.NORMAL)
    history = place.start()
    history.take_up(view_of(2, members="A", log_id="fork"), Phase.WEDGED)
    history.take_up(view_of(2, members="AB"), Phase.NORMAL)
    assert [(e.log_id, e.epoch, e.phase, e.left) for e in history.latest(9)] == [
        ("fork", 2, "NORMAL", ("B",)),
        ("l", 2, "NORMAL", ("C",)),
        ("l", 1, "NORMAL", None),
    ]
    assert [number for number, _ in history.after(1)] == [2, 3]
    assert history.after(3) == history.after(8) == ()


def test_an_epoch_that_a_kill_kept_out_of_the_journal_is_taken_up_at_the_start() -> None:
    place = Place()
    place.start().take_up(view_of(1), Phase.NORMAL)
    history = place.start()
    place.slow = True
    history.take_up(view_of(2, members="AB"), Phase.NORMAL)
    assert [e.epoch for e in history.latest(9)] == [1], "a kill may still change when it was"
    assert history.after(1) == ()
    place.waiting.clear()
    place.slow = False
    history = place.start()
    # The journal has the view: it was durable before.
    history.take_up(view_of(2, members="AB"), Phase.NORMAL)
    ((number, found),) = history.after(1)
    assert (number, found.epoch, found.left) == (2, 2, ("C",))


def test_a_question_waits_for_what_is_on_its_way_to_the_disk() -> None:
    async def main() -> None:
        place = Place()
        history = place.start()
        await history.settle()
        place.slow = True
        for epoch in (1, 2, 2):
            history.take_up(view_of(epoch), Phase.NORMAL)
        question = asyncio.create_task(history.settle())
        await asyncio.sleep(0)
        assert (history.latest(9), question.done()) == ([], False)
        place.write()
        await question
        assert [e.epoch for e in history.latest(9)] == [2, 1]

    asyncio.run(main())


def test_a_question_is_answered_though_the_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        place = Place()
        history = place.start()
        history.take_up(view_of(1), Phase.NORMAL)
        place.slow = True
        history.take_up(view_of(2), Phase.NORMAL)
        await history.settle()
        assert [e.epoch for e in history.latest(9)] == [1]

    monkeypatch.setattr(epoch_history, "_PATIENCE_S", 0.01)
    asyncio.run(main())


def test_the_latest_are_kept_in_a_ring() -> None:
    place = Place()
    history = place.start()
    for epoch in range(1, HISTORY + 11):
        history.take_up(view_of(epoch), Phase.NORMAL)
        if epoch == HISTORY // 2:
            history = place.start()
    assert len(place.saved) == HISTORY
    for one in (history, place.start()):
        assert [e.epoch for e in one.latest(5_000)] == list(range(HISTORY + 10, 10, -1))
        assert [e.epoch for e in one.latest(2)] == [HISTORY + 10, HISTORY + 9]
        assert [number for number, _ in one.after(HISTORY + 8)] == [HISTORY + 9, HISTORY + 10]
        assert len(one.after(0)) == HISTORY
