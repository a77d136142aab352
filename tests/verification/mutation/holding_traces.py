"""Directed traces of what nodes hold and say that they hold (protocol P14–P16, P18, P21)."""

from __future__ import annotations

from dataclasses import replace

from tests.verification.mutation.lone import (
    LOG_ID,
    SECOND_US,
    Lone,
    changing,
    entry_of,
    next_ballot,
    next_view,
    proposing,
    queued,
    sent,
    tail_of,
    views,
)

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.epoch.union import end_of
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import PersistForeignRun, SendEpochMessage
from sparktxlog.protocol.messages.balloting import (
    Accept,
    Decide,
    Flush,
    JoinRequest,
    MemberState,
    Prepare,
    Probe,
    Promise,
)
from sparktxlog.protocol.messages.events import ForceRequested
from sparktxlog.protocol.messages.posts import MergeBase, RunHeader
from sparktxlog.protocol.messages.view import Phase, View


def _behind(node: Lone, *runs: RunHeader) -> View:
    """Return the view behind an epoch whose queue, as some member had it, are these runs."""
    end = end_of(MergeBase(), runs)
    return replace(next_view(node.view, "a", "b", "c"), base=end, end=end)


def who_holds_all_is_not_asked(core: type[Master]) -> None:
    """P16: whose promises show the whole final queue need no flush; all others get one."""
    node = Lone(core)
    ballot = proposing(node)
    actions = node.hear(node.promise("b", ballot), node.promise("c", ballot))
    assert sent(actions, Accept)
    assert not sent(actions, Flush)

    node = Lone(core)
    ballot, run = proposing(node), node.run_of("b", 1, 7)
    node.push(run)  # it comes while this node is wedged: at hand, once the final queue names it
    actions = node.hear(node.promise("b", ballot, run), node.promise("c", ballot))
    asked = [a for a in actions if isinstance(a, SendEpochMessage)]
    assert [a.peer for a in asked if isinstance(a.message, Flush)] == ["c"]
    assert not sent(actions, Accept)
    assert sent(node.hear(node.flushed("c", ballot, 0)), Accept)


def who_holds_another_stamp_is_asked(core: type[Master]) -> None:
    """P16: a joiner that holds a run as it was stamped before gets a flush for it."""
    node = Lone(core, suspect_us=10 * SECOND_US)
    node.hear(node.prepare("b", 1), node.letter_of_decision("b", next_view(node.view, "a", "b")))
    asks = JoinRequest(
        log_id=LOG_ID, epoch=2, sender=NodeId("c"), incarnation=1, base=MergeBase(), ts=0
    )
    number = sent(node.hear(asks) + node.wait(SECOND_US), Probe)[-1].number
    answers = [replace(node.answer(peer, number, ("a", "b", "c")), epoch=2) for peer in "bc"]
    ballot = sent(node.hear(*answers, asks) + node.wait(SECOND_US), Prepare)[-1].ballot
    before = node.run_of("b", 1, 5)
    run = replace(before, epoch=2, ts=node.now)
    node.push(run)
    held = MemberState(base=MergeBase(), key=(0, 0, "", 0), watermarks={}, acquired=(before,))
    actions = node.hear(
        replace(node.promise("b", ballot, run), epoch=2),
        replace(node.promise("c", ballot), epoch=2, state=held),
    )
    asked = [a for a in actions if isinstance(a, SendEpochMessage)]
    assert [a.peer for a in asked if isinstance(a.message, Flush)] == ["c"]
    assert not sent(actions, Accept)


def votes_wait_for_the_own_payload(core: type[Master]) -> None:
    """P16: the question for votes is not sent before the proposer's own payload is durable."""
    node = Lone(core)
    ballot, run = proposing(node), node.run_of("b", 1, 7)
    actions = node.hear(node.promise("b", ballot, run), node.promise("c", ballot, run))
    assert not sent(actions, Accept)
    actions = node.push(run)
    assert sent(actions, Accept)
    assert isinstance(actions[0], PersistForeignRun)


def ballot_number_is_used_once(core: type[Master]) -> None:
    """P14: a number under which a value was sent is never used again, also after a crash."""
    for is_first in (False, True):
        node = Lone(core)
        run = node.run_of("b", 1, 7)
        ballot = changing(node, node.view.roster[::-1]) if is_first else proposing(node)
        assert sent(node.hear(node.promise("b", ballot, run), node.promise("c", ballot)), Flush)
        node.start()
        assert next_ballot(node) > ballot


def held_runs_are_appended_in_order(core: type[Master]) -> None:
    """P18: a node with the runs up to a final queue's base needs no tail to append them."""
    node = Lone(core)
    first, second = node.run_of("c", 1, 5), node.run_of("b", 1, 7, n=2)
    node.hear(node.prepare("b", 1))
    for run in (second, first):
        node.push(run)
    actions = node.hear(Decide(sender=NodeId("b"), view=_behind(node, first, second)))
    assert [e.header for action in queued(actions) for e in action.entries] == [first, second]
    assert views(actions)


def held_runs_of_another_queue_stay(core: type[Master]) -> None:
    """P18, P28: held runs are appended if they are what the base names, else they wait."""
    node = Lone(core)
    mine, other = node.run_of("c", 1, 5), node.run_of("b", 1, 7)
    node.hear(node.prepare("b", 1))
    node.push(mine)
    actions = node.hear(Decide(sender=NodeId("b"), view=_behind(node, other)))
    assert not queued(actions)
    assert not views(actions)
    assert node.master.phase is Phase.WEDGED


def force_appends_what_it_holds(core: type[Master]) -> None:
    """P23: a forced value's base may lie behind the own queue: nobody is there to send the rest."""
    node = Lone(core, votes={"a": 1, "b": 1})
    run = node.run_of("b", 1, 7)
    node.push(run)
    end = end_of(MergeBase(), (run,))
    node.hear(node.accept("b", 1, replace(next_view(node.view, "a", "b"), base=end, end=end)))
    actions = node.feed(ForceRequested(ticket=1, log_id="forced"))
    assert [e.header for action in queued(actions) for e in action.entries] == [run]
    assert [(view.log_id, view.members) for view in views(actions)] == [("forced", ("a",))]


def own_runs_of_before_are_foreign(core: type[Master]) -> None:
    """P21: a node that lost its disk fetches what it stamped before as anybody's, in any order."""
    node = Lone(core, incarnation=2)
    entries = [entry_of(node.run_of("a", 1, 5), 1, bytes(32))]
    entries.append(entry_of(node.run_of("a", 2, 6), 2, entries[0].chain_hash))
    tails = [tail_of(LOG_ID, entry) for entry in entries]
    node.feed(*tails)
    assert not queued(node.push(entries[1].header))
    node.start()
    assert node.master.phase is Phase.JOINING
    actions = node.feed(*tails) + node.push(entries[0].header)
    actions += node.push(entries[1].header)
    assert [e.header for action in queued(actions) for e in action.entries] == [
        entry.header for entry in entries
    ]


def joiner_says_what_it_holds(core: type[Master]) -> None:
    """P21, P16: the promise of a node about to join names what it holds without gap, no more."""
    node = Lone(core)
    node.hear(Decide(sender=NodeId("b"), view=next_view(node.view, "b", "c")))
    assert node.master.phase is Phase.JOINING
    node.view = node.master.view
    runs = [replace(node.run_of("b", seq, seq), epoch=2) for seq in (1, 2, 4)]
    actions = [action for run in runs for action in node.push(run)]
    assert [a.header for a in actions if isinstance(a, PersistForeignRun)] == runs
    for _ in range(2):
        (promise,) = sent(node.hear(node.prepare("b", 1)), Promise)
        assert promise.state is not None
        assert list(promise.state.acquired) == runs[:2]
        node.start()  # what it said it holds is there behind a crash
