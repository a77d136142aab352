"""The stream of actions: nothing behind a persist is said before it was taken to be written."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.action_order import ActionStream
from sparktxlog.protocol.messages.actions import Action, PersistReservation, PersistView
from sparktxlog.protocol.messages.view import Seat, View


@dataclass(frozen=True)
class Say:
    number: int


@dataclass(frozen=True)
class Aside:
    number: int


Item = Say | Aside | PersistReservation


def keep(number: int) -> PersistReservation:
    return PersistReservation(counter=number)


def test_what_stands_before_the_first_persist_is_said_at_once() -> None:
    stream: ActionStream[Item] = ActionStream()
    stream.put([Say(1), Say(2), keep(3), Say(4)])
    assert list(stream.leading()) == [Say(1), Say(2)]
    assert list(stream.leading()) == []
    assert stream.take() == [keep(3), Say(4)]
    assert len(stream) == 0 and stream.take() == []


def test_what_comes_while_something_is_said_keeps_its_place() -> None:
    stream: ActionStream[Item] = ActionStream()
    stream.put([Say(1), Say(2)])
    said = []
    for item in stream.leading():
        said.append(item)
        if item == Say(1):
            stream.put([keep(3), Say(4)])
    assert said == [Say(1), Say(2)]
    assert list(stream) == [keep(3), Say(4)]


def test_all_that_has_gathered_is_one_write() -> None:
    stream: ActionStream[Item] = ActionStream()
    stream.put([keep(1), Say(2)])
    stream.put([keep(3), Say(4)])
    batch = stream.take()
    assert [item for item in batch if stream.must_be_durable(item)] == [keep(1), keep(3)]
    assert [item for item in batch if not stream.must_be_durable(item)] == [Say(2), Say(4)]


def test_a_batch_is_bounded_and_the_rest_keeps_its_order() -> None:
    stream: ActionStream[Item] = ActionStream(max_batch=2)
    stream.put([keep(1), Say(2), Say(3), keep(4), Say(5)])
    assert stream.take() == [keep(1), Say(2)]
    assert list(stream.leading()) == [Say(3)]
    assert stream.take() == [keep(4), Say(5)]


def test_other_types_may_have_to_be_durable_too() -> None:
    stream: ActionStream[Item] = ActionStream(durable=(Aside,))
    stream.put([Aside(1), Say(2)])
    assert list(stream.leading()) == []
    assert stream.must_be_durable(Aside(1)) and not stream.must_be_durable(Say(2))


def test_a_process_that_ends_forgets_what_waits() -> None:
    stream: ActionStream[Item] = ActionStream()
    stream.put([Say(1), keep(2)])
    stream.clear()
    assert list(stream.leading()) == [] and stream.take() == []


def test_no_batch_ends_in_front_of_a_forced_view() -> None:
    """P23: what is forced is final only with its view; a kill in between made two histories."""
    roster = (Seat(node_id=NodeId("a")),)
    view = View(log_id="forced", epoch=3, roster=roster, members=(NodeId("a"),))
    forced = PersistView(view=view, incarnation=1, forced=True)
    stream: ActionStream[Action | Say] = ActionStream(max_batch=2)
    stream.put([Say(0), keep(1), keep(2), keep(3)])
    stream.put([keep(4), forced, Say(5), keep(6)])
    assert list(stream.leading()) == [Say(0)]
    assert stream.take() == [keep(1), keep(2), keep(3), keep(4), forced]
    assert stream.take() == [Say(5), keep(6)]
    decided = replace(forced, forced=False)
    stream.put([keep(1), keep(2), decided])
    assert stream.take() == [keep(1), keep(2)], "what is decided is final without it"
