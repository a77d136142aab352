"""Directed traces of normal operation (protocol P1–P10, P22)."""

from __future__ import annotations

from dataclasses import replace

from tests.verification.mutation.lone import (
    LOG_ID,
    SECOND_US,
    Lone,
    entry_of,
    next_view,
    queued,
    tail_of,
)

from sparktxlog.errors import DuplicateTransactionError
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import (
    PERSISTS,
    Action,
    CheckUnstamped,
    FetchPayload,
    PersistForeignRun,
    PersistOwnRun,
    PersistReservation,
    PersistWithdrawal,
    SendPost,
    SendTail,
    TellAccepted,
    TellRejected,
)
from sparktxlog.protocol.messages.balloting import (
    Decide,
)
from sparktxlog.protocol.messages.events import (
    FetchFailed,
    FilesHeld,
    FilesLost,
    LinkChanged,
    PostReceived,
    RunSubmitted,
    Tick,
)
from sparktxlog.protocol.messages.posts import Ahead
from sparktxlog.protocol.messages.view import Phase


def everything_is_durable_first(core: type[Master]) -> None:
    """P1, P2, P4: runs and counters are durable before anything that shows them leaves."""
    node = Lone(core)
    node.now += 10 * SECOND_US
    for actions in (node.submit(), node.push(node.run_of("b", 1, node.now + 5 * SECOND_US))):
        kinds = [isinstance(action, PERSISTS) for action in actions]
        assert kinds == sorted(kinds, reverse=True)
        assert [a for a in actions if isinstance(a, PersistReservation)]
        assert [a for a in actions if isinstance(a, PersistOwnRun | PersistForeignRun)]
        assert [a for a in actions if isinstance(a, SendPost)]


def old_epochs_do_not_count(core: type[Master]) -> None:
    """P5, P18: promises, claims and payloads of an epoch that is over count for nothing."""
    node = Lone(core, votes={"a": 1, "b": 1})
    node.submit()
    stale = replace(node.post_of("b", node.now + SECOND_US), known={"a": 1}, acquired={"a": 1})
    node.hear(Decide(sender=NodeId("b"), view=next_view(node.view, "a", "b")))
    assert {header.epoch for header in node.disk.incoming.values()} == {2}
    actions = node.feed(PostReceived(post=stale)) + node.push(node.run_of("b", 1, 7))
    actions += node.wait(2 * SECOND_US)
    assert not queued(actions)
    assert not [a for a in actions if isinstance(a, PersistForeignRun)]


def an_overtaken_post_says_nothing_of_the_present(core: type[Master]) -> None:
    """P5: posts overtake each other; what a node has at the moment is in its newest one."""
    node = Lone(core)
    node.submit()
    newer = replace(node.post_of("b", node.now + SECOND_US), known={"a": 1}, acquired={"a": 1})
    older = replace(newer, round=newer.round - 1, counter=node.now, known={}, acquired={})
    node.feed(PostReceived(post=newer))
    node.feed(PostReceived(post=newer), PostReceived(post=older))
    posts = [
        action.post
        for action in node.wait(2 * SECOND_US)
        if isinstance(action, SendPost) and action.peer == "b"
    ]
    assert posts
    assert not [post for post in posts if post.headers], "it reported that it has them"


def lost_files_are_withdrawn(core: type[Master]) -> None:
    """P1a: an announced run whose files are lost is rejected, durably first, and never stamped."""
    node = Lone(core)
    (stamped,) = [a.header for a in node.submit() if isinstance(a, PersistOwnRun)]
    node.config = replace(node.config, quorum=2, quorum_rule="majority")
    node.start()
    assert not node.feed(FilesLost(digest=stamped.digest, text="damaged"))
    submit = RunSubmitted(
        ticket=99,
        digest=b"d" * 32,
        size_bytes=100,
        staged_bytes=1 << 40,
        facts=RunFacts(n=1, ids=b"i" * 16),
    )
    node.submits[99], node.facts[submit.digest] = submit, submit.facts
    assert [a.header for a in node.feed(submit) if isinstance(a, TellAccepted)] == [None]
    assert node.master.unstamped(b"i" * 16) == submit.digest
    actions = node.feed(FilesLost(digest=submit.digest, text="damaged"))
    found = [type(a) for a in actions if isinstance(a, PersistWithdrawal | TellRejected)]
    assert found == [PersistWithdrawal, TellRejected]
    late = node.wait(2 * node.config.stage_timeout_us)
    late += node.feed(FilesHeld(digest=submit.digest))
    node.start()
    late += node.wait(2 * node.config.stage_timeout_us)
    assert not [a for a in late if isinstance(a, PersistOwnRun)]
    assert not node.disk.announcements


def what_was_ordered_before_is_not_refused(core: type[Master]) -> None:
    """P1a, P25c: the files of a repeat are lost: its client gets what became of the first."""
    node = Lone(core)
    node.config = replace(node.config, quorum=2, quorum_rule="majority")
    node.start()
    node.submit(staged_bytes=1 << 40)
    (submit,) = node.disk.announcements.values()
    first = node.run_of("b", 1, node.now + 1, ids=submit.facts.ids)
    node.push(first)
    posts = [replace(node.post_of(peer, node.now + 100), acquired={"b": 1}) for peer in "bc"]
    node.feed(PostReceived(post=replace(posts[0], headers=(first,), last_seq=1)))
    node.now += 1_000
    assert queued(node.feed(PostReceived(post=posts[1])))
    actions = node.feed(FilesLost(digest=submit.digest, text="damaged"))
    told = [a.code for a in actions if isinstance(a, TellRejected)]
    assert told == [DuplicateTransactionError.code] and not node.disk.announcements


def overdue_files_are_looked_at(core: type[Master]) -> None:
    """P1a: after the stage timeout a run is stamped when its origin found its files whole."""
    node = Lone(core)
    node.config = replace(node.config, quorum=2, quorum_rule="majority")
    node.start()
    node.submit(staged_bytes=1 << 40)
    actions = node.wait(2 * node.config.stage_timeout_us)
    asked = {a.digest for a in actions if isinstance(a, CheckUnstamped)}
    assert len(asked) == 1 and not [a for a in actions if isinstance(a, PersistOwnRun)]
    actions = node.feed(FilesHeld(digest=asked.pop()))
    assert [a for a in actions if isinstance(a, PersistOwnRun)]


def late_payload_ends_no_fetch(core: type[Master]) -> None:
    """P3a: a payload that is refused, of an older stamp, does not stand for the one asked for."""
    node = Lone(core)
    header = node.run_of("b", 1, node.now)
    actions = node.feed(PostReceived(post=node.post_of("b", node.now, header)))
    assert [a for a in actions + node.wait(SECOND_US) if isinstance(a, FetchPayload)]
    node.push(replace(header, epoch=0, ts=1))
    node.feed(FetchFailed(digest=header.digest, reason="the link broke"))
    again = [a for a in node.wait(5 * SECOND_US) if isinstance(a, FetchPayload)]
    assert [a.header for a in again] == [header]


def a_cut_post_promises_what_it_carries(core: type[Master]) -> None:
    """P3, P3b: a post without room for all headers makes a promise that those it has fulfil."""
    node = Lone(core)
    node.config = replace(node.config, max_post_headers=2)
    node.start()
    actions = [action for _ in range(4) for action in node.submit()]
    post = [a.post for a in actions + node.wait(2 * SECOND_US) if isinstance(a, SendPost)][-1]
    assert [header.seq for header in post.headers] == [1, 2]
    assert post.cut is not None
    assert (post.cut[0] >= post.headers[-1].ts, post.cut[1]) == (True, 2)


def who_is_back_is_asked_at_once(core: type[Master]) -> None:
    """P3a: pauses of a fetch grow while nobody answers, and end when its origin speaks again."""
    for link in (False, True):
        node = Lone(core)
        header = node.run_of("b", 1, node.now)
        actions = node.feed(PostReceived(post=node.post_of("b", node.now, header)))
        for _ in range(60):
            if any(isinstance(action, FetchPayload) for action in actions):
                node.feed(FetchFailed(digest=header.digest, reason="no answer"))
            node.now += SECOND_US
            actions = node.feed(Tick())
        back = LinkChanged(peer=header.origin, up=True)
        again = PostReceived(post=node.post_of("b", node.now, last_seq=1))
        assert [a for a in node.feed(back if link else again) if isinstance(a, FetchPayload)]


def lagger_is_served(core: type[Master]) -> None:
    """P9, P22: a member that stays behind gets the tail of the queue."""
    node = Lone(core)
    entry = entry_of(node.run_of("b", 1, node.now), 1, bytes(32))
    assert queued(node.feed(tail_of(LOG_ID, entry)) + node.push(entry.header))
    node.feed(PostReceived(post=node.post_of("c", node.now)))
    node.wait(SECOND_US)
    actions = node.feed(PostReceived(post=node.post_of("c", node.now)))
    assert [(a.peer, a.position) for a in actions if isinstance(a, SendTail)] == [("c", 0)]


def what_came_of_a_tail_is_told(core: type[Master]) -> None:
    """P9: a node that waits for payloads says how far its tail reaches, if it has it."""
    node = Lone(core)
    entry = entry_of(node.run_of("b", 1, node.now), 1, bytes(32))

    def told(actions: list[Action]) -> list[Ahead | None]:
        return [a.post.ahead for a in actions if isinstance(a, SendPost) and a.peer == "b"][-1:]

    node.feed(tail_of(LOG_ID, entry))
    reached = [
        ahead and (ahead.position, ahead.chain_hash) for ahead in told(node.wait(5 * SECOND_US))
    ]
    assert reached == [(1, entry.chain_hash)]
    node.start()
    assert told(node.wait(5 * SECOND_US)) == [None]
    node.feed(tail_of(LOG_ID, entry))
    assert told(node.push(entry.header) + node.wait(5 * SECOND_US)) == [None]


def what_a_lagger_has_is_not_sent_again(core: type[Master]) -> None:
    """P9: a tail begins behind what its receiver says that it has, for as long as it says so."""
    node = Lone(core)
    first = entry_of(node.run_of("b", 1, node.now), 1, bytes(32))
    second = entry_of(node.run_of("b", 2, node.now + 1), 2, first.chain_hash)
    for entry in (first, second):
        assert queued(node.feed(tail_of(LOG_ID, entry)) + node.push(entry.header))
    ahead = Ahead(position=1, chain_hash=first.chain_hash, room=9)

    def sent(ahead: Ahead | None) -> list[Ahead | None]:
        node.wait(SECOND_US)
        post = replace(node.post_of("c", node.now), ahead=ahead)
        return [a.ahead for a in node.feed(PostReceived(post=post)) if isinstance(a, SendTail)]

    sent(ahead)
    assert sent(ahead) == [ahead]
    assert sent(replace(ahead, room=0)) == []
    assert sent(replace(ahead, position=2, chain_hash=second.chain_hash)) == []
    assert sent(None) == [None], "it has started again"


def tail_of_another_queue_halts(core: type[Master]) -> None:
    """P9: a tail that does not continue this queue's hash is not appended."""
    node = Lone(core)
    entry = entry_of(node.run_of("b", 1, node.now), 1, bytes(31) + b"x")
    actions = node.feed(tail_of(LOG_ID, entry)) + node.push(entry.header)
    assert node.master.phase is Phase.FAULT
    assert not queued(actions)


def stamps_behind_its_queue(core: type[Master]) -> None:
    """P2: a timestamp used in an own ADD is never stamped again."""
    node = Lone(core)
    entry = entry_of(node.run_of("b", 1, node.now + 100), 1, bytes(32))
    actions = node.feed(tail_of(LOG_ID, entry)) + node.push(entry.header)
    assert queued(actions)
    told = [a.header for a in node.submit() if isinstance(a, TellAccepted)]
    assert told[0] is not None
    assert told[0].key > entry.header.key


def log_clock_follows(core: type[Master]) -> None:
    """P6: a run from an hour ahead does not wait for an hour: the own promise reaches it soon."""
    node = Lone(core)
    ahead = node.run_of("b", 1, node.now + 3_600 * SECOND_US)
    actions = node.push(ahead) + node.wait(3 * SECOND_US)
    counters = [a.post.counter for a in actions if isinstance(a, SendPost)]
    assert max(counters, default=0) >= ahead.ts
