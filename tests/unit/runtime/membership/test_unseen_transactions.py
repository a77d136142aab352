"""What `force` says may be lost: what others showed, and what of it would be left (P23)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.verification.mutation.lone import SECOND_US, Lone, next_view

from sparktxlog.codec.wire import Envelope
from sparktxlog.config import load_config
from sparktxlog.errors import LocalProtocolError, RemoteProtocolError
from sparktxlog.model.answers import UnseenTransactions
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.epoch.union import end_of
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import TellChange
from sparktxlog.protocol.messages.balloting import Decide
from sparktxlog.protocol.messages.events import Event, PostReceived
from sparktxlog.protocol.messages.posts import MergeBase, Post, RunHeader
from sparktxlog.protocol.messages.view import View
from sparktxlog.runtime.commit.receipts import Receipts
from sparktxlog.runtime.membership.epochs import Epochs
from sparktxlog.runtime.membership.strangers import Strangers
from sparktxlog.runtime.membership.unseen_transactions import held_when_forced
from sparktxlog.runtime.peering import Peering

CONFIG = load_config(
    None, {"node-id": "a", "master-url": "http://127.0.0.1:7001", "data-dir": "unused"}, {}
)


class Survivor:
    """Node `a` with its epochs; the test plays the others."""

    def __init__(self, votes: dict[str, int] | None = None) -> None:
        self.node = Lone(Master, votes=votes)
        self.start()

    def start(self) -> None:
        """Start the node (again) from its disk."""
        self.node.start()
        base: Any = SimpleNamespace(
            config=CONFIG,
            master=self.node.master,
            links={},
            state=SimpleNamespace(values={}),
            clock=SimpleNamespace(now=lambda: self.node.now),
        )
        core: Any = SimpleNamespace(
            cycle=SimpleNamespace(halted=None, tell_always=self.feed),
            receipts=Receipts(lambda sites: 0),
            executor=SimpleNamespace(write_then=lambda writes, then: None),
        )
        greeter: Any = SimpleNamespace(ahead=lambda: None)
        self.epochs = Epochs(base, core, greeter)

    def feed(self, *events: Event) -> None:
        """Let the core handle events, and tell the epochs how a change ended."""
        for action in self.node.feed(*events):
            if isinstance(action, TellChange):
                self.epochs.on_change(action)

    def post(self, post: Post) -> None:
        self.epochs.on_post(post)
        self.feed(PostReceived(post=post))

    def posts(self, sender: str, *headers: RunHeader, last_seq: int = 0) -> None:
        self.post(self.node.post_of(sender, self.node.now, *headers, last_seq=last_seq))

    def accept(self, view: View) -> None:
        self.node.hear(self.node.accept("b", 1, view))

    def losses(self) -> dict[str, UnseenTransactions]:
        return {loss["node_id"]: loss for loss in self.epochs.losses()}

    def force(self) -> dict[str, UnseenTransactions]:
        """Go on alone; return what the answer names."""
        found = asyncio.run(self.epochs.force(self.epochs.force_text(), 1.0))
        assert found["members"] == ["a"]
        return {loss["node_id"]: loss for loss in found["may_be_lost"]}

    def queue(self) -> list[tuple[str, int]]:
        return [(entry.header.origin, entry.header.seq) for entry in self.node.disk.queue]


def numbers(loss: UnseenTransactions) -> tuple[int | None, int, int | None]:
    return loss["last_shown"], loss["held_here"], loss["missing"]


def runs_of(node: Lone, origin: str, count: int) -> list[RunHeader]:
    return [node.run_of(origin, seq, node.now + seq) for seq in range(1, count + 1)]


def with_tail(view: View, tail: Sequence[RunHeader], base: Sequence[RunHeader] = ()) -> View:
    """Return a view whose final queue is `base`, in some node's queue already, and a tail."""
    start = end_of(MergeBase(), tuple(base))
    return replace(view, base=start, tail=tuple(tail), end=end_of(start, tuple(tail)))


# -- what was shown --------------------------------------------------------------------------------


def test_what_a_member_posted_and_is_not_held_is_missing() -> None:
    survivor = Survivor()
    runs = runs_of(survivor.node, "b", 9)
    survivor.posts("b", *runs)
    for run in runs[:7]:
        survivor.node.push(run)
    survivor.node.now += 2 * SECOND_US
    assert survivor.losses()["b"] == {
        "node_id": "b",
        "last_shown": 9,
        "held_here": 7,
        "missing": 2,
        "unheard_s": 2.0,
    }
    assert numbers(survivor.force()["b"]) == (9, 7, 2)
    assert survivor.queue() == [("b", run.seq) for run in runs[:7]]


def test_what_a_post_had_no_room_for_is_missing_too() -> None:
    """Its promise counts for nothing before the headers are there; the number does."""
    survivor = Survivor()
    runs = runs_of(survivor.node, "b", 2)
    cut = (runs[1].ts, runs[1].last)
    post = survivor.node.post_of("b", survivor.node.now + 100, *runs)
    survivor.post(replace(post, last_seq=2_000, cut=cut))
    for run in runs:
        survivor.node.push(run)
    assert numbers(survivor.losses()["b"]) == (2_000, 2, 1_998)


def test_what_is_pushed_behind_a_gap_is_missing() -> None:
    survivor = Survivor()
    runs = runs_of(survivor.node, "b", 3)
    survivor.posts("b", *runs)
    for run in (runs[0], runs[2]):
        survivor.node.push(run)
    assert numbers(survivor.losses()["b"]) == (3, 1, 2)
    assert numbers(survivor.force()["b"]) == (3, 1, 2)
    assert survivor.queue() == [("b", 1)]


def test_a_member_that_was_never_heard_is_unknown() -> None:
    survivor = Survivor()
    assert survivor.losses()["b"] == {
        "node_id": "b",
        "last_shown": None,
        "held_here": 0,
        "missing": None,
        "unheard_s": None,
    }
    survivor.node.push(survivor.node.run_of("b", 1, survivor.node.now))
    assert numbers(survivor.losses()["b"]) == (None, 1, None), "what is held here says not all"


def test_a_restart_forgets_what_was_shown() -> None:
    survivor = Survivor()
    run = survivor.node.run_of("b", 1, survivor.node.now)
    survivor.posts("b", run, last_seq=1)
    survivor.node.push(run)
    assert numbers(survivor.losses()["b"]) == (1, 1, 0)
    survivor.start()
    assert numbers(survivor.losses()["b"]) == (None, 1, None)


def test_what_another_member_holds_of_it_was_shown_as_well() -> None:
    survivor = Survivor()
    post = survivor.node.post_of("c", survivor.node.now)
    survivor.post(replace(post, acquired={"b": 4}))
    losses = survivor.losses()
    assert numbers(losses["b"]) == (4, 0, 4)
    assert losses["b"]["unheard_s"] is None
    assert numbers(losses["c"]) == (0, 0, 0)


def test_a_new_epoch_does_not_forget_what_was_shown() -> None:
    survivor = Survivor()
    survivor.posts("b", last_seq=3)
    survivor.node.hear(Decide(sender=NodeId("b"), view=next_view(survivor.node.view, "a", "b")))
    survivor.node.now += SECOND_US
    assert survivor.losses() == {
        "b": {"node_id": "b", "last_shown": 3, "held_here": 0, "missing": 3, "unheard_s": 1.0}
    }


def test_an_older_post_takes_nothing_back() -> None:
    survivor = Survivor()
    for last_seq in (5, 3):
        survivor.posts("b", last_seq=last_seq)
    assert survivor.losses()["b"]["last_shown"] == 5


# -- what would be left ----------------------------------------------------------------------------


def test_what_stands_in_no_accepted_queue_is_lost_although_it_is_held() -> None:
    """The others may have decided that value, in which it is not: it is forced, nothing else."""
    survivor = Survivor()
    runs = runs_of(survivor.node, "c", 2)
    survivor.posts("c", *runs)
    for run in runs:
        survivor.node.push(run)
    assert numbers(survivor.losses()["c"]) == (2, 2, 0)
    survivor.accept(with_tail(next_view(survivor.node.view, "a", "b"), runs[:1]))
    assert numbers(survivor.losses()["c"]) == (2, 1, 1), "before an operator confirms"
    survivor.start()
    assert numbers(survivor.losses()["c"]) == (None, 1, None), "the vote is durable"
    survivor.posts("c", last_seq=2)
    assert numbers(survivor.losses()["c"]) == (2, 1, 1)
    assert numbers(survivor.force()["c"]) == (2, 1, 1)
    assert survivor.queue() == [("c", 1)]


def test_what_leads_to_the_base_of_the_accepted_queue_is_left() -> None:
    """Others had it in their queues already."""
    survivor = Survivor()
    before, behind = runs_of(survivor.node, "b", 2), runs_of(survivor.node, "c", 5)[2:]
    behind = [replace(run, seq=run.seq - 2) for run in behind]
    for sender, runs in (("b", before), ("c", behind)):
        survivor.posts(sender, *runs)
        for run in runs:
            survivor.node.push(run)
    survivor.accept(with_tail(next_view(survivor.node.view, "a", "b"), behind[:1], before))
    losses = survivor.losses()
    assert numbers(losses["b"]) == (2, 2, 0)
    assert numbers(losses["c"]) == (3, 1, 2)


def test_the_answer_names_what_the_forced_queue_lacks() -> None:
    """What came behind the vote is kept aside, and is of use if the accepted queue has it."""
    survivor = Survivor()
    runs = runs_of(survivor.node, "c", 3)
    survivor.posts("c", *runs)
    survivor.node.push(runs[0])
    survivor.accept(with_tail(next_view(survivor.node.view, "a", "b"), runs[:2]))
    assert numbers(survivor.losses()["c"]) == (3, 1, 2)
    for run in runs[1:]:
        survivor.node.push(run)
    assert numbers(survivor.force()["c"]) == (3, 2, 1)
    assert survivor.queue() == [("c", 1), ("c", 2)]


def test_without_a_vote_everything_that_is_held_is_left() -> None:
    survivor = Survivor()
    runs = runs_of(survivor.node, "c", 2)
    for run in runs:
        survivor.node.push(run)
    survivor.posts("c", *runs)
    survivor.node.hear(survivor.node.prepare("b", 1))
    assert numbers(survivor.losses()["c"]) == (2, 2, 0)
    assert numbers(survivor.force()["c"]) == (2, 2, 0)


def test_a_vote_of_an_epoch_before_names_nothing() -> None:
    survivor = Survivor()
    view = next_view(survivor.node.view, "a", "b", "c")
    survivor.accept(view)
    survivor.node.hear(Decide(sender=NodeId("b"), view=view))
    run = replace(survivor.node.run_of("c", 1, survivor.node.now + 1), epoch=2)
    survivor.node.push(run)
    survivor.post(replace(survivor.node.post_of("c", survivor.node.now + 2, run), epoch=2))
    assert numbers(survivor.losses()["c"]) == (1, 1, 0)


def test_a_refused_force_names_nothing() -> None:
    survivor = Survivor()
    missing = survivor.node.run_of("c", 1, survivor.node.now)
    survivor.accept(with_tail(next_view(survivor.node.view, "b"), [missing]))
    with pytest.raises(LocalProtocolError, match="does not hold all of the accepted final queue"):
        survivor.force()
    assert survivor.queue() == []


def test_numbers_of_a_queue_that_was_forced_are_those_of_the_rule() -> None:
    """`held_when_forced` says in advance what the queue has afterwards."""
    survivor = Survivor()
    node = survivor.node
    ours, theirs = runs_of(node, "b", 3), runs_of(node, "c", 3)
    for run in (*ours, *theirs):
        node.push(run)
    agreed = sorted((*ours[:2], *theirs[:1]), key=lambda run: run.key)
    view = with_tail(next_view(node.view, "a", "b"), agreed)
    foretold = held_when_forced(node.master.member_state(), view)
    survivor.accept(view)
    survivor.force()
    assert foretold == dict(node.master.member_state().watermarks) == {"b": 2, "c": 1}


# -- who tells it ----------------------------------------------------------------------------------


def test_peers_posts_are_told() -> None:
    survivor = Survivor()
    greeter = SimpleNamespace(is_joiner=lambda node: False)
    membership: Any = SimpleNamespace(
        epochs=survivor.epochs,
        verifier=None,
        strangers=Strangers(),
        greeter=greeter,
        note_data=lambda node, data, pace: None,
    )
    core: Any = SimpleNamespace(cycle=SimpleNamespace(tell=lambda event: True))
    nothing: Any = None
    base: Any = SimpleNamespace(config=CONFIG, journal=None, published=None, run_blocking=None)
    peering = Peering(base, core, membership, nothing)
    post = survivor.node.post_of("b", survivor.node.now, last_seq=9)
    asyncio.run(peering.on_envelope("b", Envelope(post=post), {}))
    assert survivor.losses()["b"]["last_shown"] == 9
    with pytest.raises(RemoteProtocolError):
        asyncio.run(peering.on_envelope("c", Envelope(post=replace(post, last_seq=12)), {}))
    assert survivor.losses()["b"]["last_shown"] == 9, "another node's word"
