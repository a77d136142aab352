"""A change that can wait begins at a moment of rest, and does not wait for ever (P13)."""

from __future__ import annotations

from tests.verification.mutation.lone import Lone, sent

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.epoch.quiet_moment import Rest
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import Action
from sparktxlog.protocol.messages.balloting import Prepare, Probe
from sparktxlog.protocol.messages.events import (
    ChangeRequested,
    EpochMessageReceived,
    Event,
    Rested,
    Tick,
)
from sparktxlog.protocol.messages.view import Seat

MOST_US = 250_000


def test_it_begins_when_the_shell_rests() -> None:
    rest = Rest(MOST_US)
    assert rest.until(busy=False, now=10) == 10 + MOST_US
    assert rest.wanted
    rest.here = True
    assert rest.until(busy=False, now=20) == 20
    rest.over()
    assert rest.until(busy=False, now=30) == 10 + MOST_US, "the moment is over"


def test_waiting_transactions_are_no_rest() -> None:
    rest = Rest(MOST_US)
    rest.here = True
    assert rest.until(busy=True, now=10) == 10 + MOST_US
    assert not rest.wanted, "whether the shell rests does not matter yet"


def test_it_waits_once_an_epoch() -> None:
    rest = Rest(MOST_US)
    rest.until(busy=True, now=0)
    assert rest.until(busy=True, now=MOST_US + 7) == MOST_US
    rest.entered()
    assert rest.until(busy=True, now=MOST_US + 8) == 2 * MOST_US + 8


class Asked:
    """A node whose operator wants another roster; its shell says nothing by itself."""

    def __init__(self, *, busy: bool) -> None:
        self.node = Lone(Master)
        self.now = self.node.now
        if busy:
            self.node.push(self.node.run_of("b", 1, 7))
        roster = tuple(Seat(node_id=NodeId(name), weight=2) for name in "abc")
        probes = sent(self.handle(ChangeRequested(ticket=1, roster=roster)), Probe)
        answers = [self.node.answer(peer, probes[-1].number, ("a", "b", "c")) for peer in "bc"]
        self.actions = self.handle(*(EpochMessageReceived(message=each) for each in answers))

    def handle(self, *events: Event) -> list[Action]:
        return self.node.master.handle_all(events, self.now)

    def starts(self, *events: Event) -> bool:
        return bool(sent(self.handle(*events), Prepare))


def test_the_core_starts_the_change_when_it_is_told_of_rest() -> None:
    asked = Asked(busy=False)
    assert not sent(asked.actions, Prepare)
    assert asked.node.master.wants_rest
    assert asked.starts(Rested())
    assert not asked.node.master.wants_rest


def test_the_core_waits_for_transactions_but_not_for_ever() -> None:
    asked = Asked(busy=True)
    assert not asked.node.master.wants_rest
    begun = asked.now
    assert not asked.starts(Rested())
    while not asked.starts(Tick()):
        deadline = asked.node.master.next_deadline()
        assert deadline is not None
        asked.now = deadline
    assert asked.now == begun + MOST_US
