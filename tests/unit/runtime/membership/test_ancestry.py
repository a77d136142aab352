"""Whether a queue is the beginning of a peer's: what proves it, refutes it, or cannot tell."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.support.storage_samples import TemporaryJournal, entries_of, ids_in, ids_of, run_of

from sparktxlog.errors import TransportError
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import MergeBase, QueueEntry, Tail
from sparktxlog.protocol.messages.recovery import RecoveredState
from sparktxlog.protocol.messages.view import View
from sparktxlog.runtime.membership.ancestry import Compared, compare_queues, first_difference
from sparktxlog.storage.interfaces import AppendQueue, PutRun, QueueSummary, StoredEntry

#: Six positions that both have.
COMMON = [run_of(seq=1, n=2), run_of(seq=3), run_of(origin="b", seq=1, n=3)]
#: What follows at the peer, and what only this node has.
LATER = [run_of(seq=4), run_of(origin="b", seq=4, n=2)]
OTHER = [run_of(seq=4, ids=ids_of(777, 1))]


def recovered(
    runs: Sequence[PutRun], *, pruned: bool = False
) -> tuple[TemporaryJournal, RecoveredState]:
    journal = TemporaryJournal()
    journal.write([*runs, AppendQueue(entries=entries_of(runs), ordered_at=1)])
    state = journal.load(1_000).core
    # A node keeps rows and ids of its id window only.
    return (TemporaryJournal(), replace(state, recent_ids=())) if pruned else (journal, state)


class Peer:
    """A peer with a queue; `kept` = False: it keeps no row of it any more."""

    def __init__(self, runs: Sequence[PutRun], *, kept: bool = True) -> None:
        self.runs = runs
        self.entries = entries_of(runs)
        self.kept = kept
        self.status = 410

    async def get_run_after(self, position: int) -> Tail:
        if not self.kept:
            raise TransportError("answered", status=self.status)
        found: list[QueueEntry] = [e for e in self.entries if e.end > position][:1]
        return Tail(
            log_id="l",
            epoch=1,
            sender=NodeId("A"),
            previous_hash=found[0].previous_hash if found else b"",
            entries=tuple(found),
        )

    def summary(self, *, ids: bool = True, view: View | None = None) -> QueueSummary:
        last = self.entries[-1]
        watermarks: dict[str, int] = {}
        for entry in self.entries:
            watermarks[entry.header.origin] = entry.header.last
        before = b"".join(ids_in(run) for run in self.runs[:-1])
        return QueueSummary(
            last=StoredEntry(entry=last, ids=ids_in(self.runs[-1]), ordered_at=1),
            watermarks=watermarks,
            recent_ids=((1, before),) if ids else (),
            view=view,
        )


def compare(
    runs: Sequence[PutRun], peer: Peer, *, pruned: bool = False, **options: Any
) -> Compared:
    journal, core = recovered(runs, pruned=pruned)
    link: Any = peer
    return asyncio.run(compare_queues(journal, core, link, peer.summary(**options)))


def view_behind(entry: QueueEntry, **changed: Any) -> View:
    """A view whose epoch begins behind an entry."""
    end = MergeBase(position=entry.end, chain_hash=entry.chain_hash, origin="b", seq=3)
    return View(log_id="l", epoch=2, roster=(), members=(), end=replace(end, **changed))


def test_a_node_without_a_queue_has_nothing_to_compare() -> None:
    assert compare([], Peer(COMMON, kept=False)) == Compared()


def test_a_beginning_is_proved_by_the_hash_at_its_end() -> None:
    assert compare(COMMON, Peer([*COMMON, *LATER])) == Compared()
    # Whatever else is pruned at either side.
    assert compare(COMMON, Peer([*COMMON, *LATER]), pruned=True, ids=False) == Compared()


def test_another_hash_or_no_run_end_is_another_history() -> None:
    peer = Peer([*COMMON, *LATER])
    for runs in ([*COMMON, *OTHER], [COMMON[0], run_of(seq=3, n=2)]):
        found = compare(runs, peer, pruned=True, ids=False)
        assert "at position 7" in found.differs or "at position 4" in found.differs
    assert (
        "its hash at position 7" in compare([*COMMON, *OTHER], peer, pruned=True, ids=False).differs
    )


@pytest.mark.parametrize("status", [404, 410])
def test_what_the_peer_keeps_no_more_is_uncertain(status: int) -> None:
    peer = Peer([*COMMON, *LATER], kept=False)
    peer.status = status
    assert compare(COMMON, peer, pruned=True, ids=False) == Compared(certain=False)
    # Equal ids prove nothing of what was before them.
    assert compare(COMMON[:2], peer) == Compared(certain=False)
    peer.status = 503
    with pytest.raises(TransportError):
        compare(COMMON, peer)


def test_ids_refute_without_any_row_of_the_peer() -> None:
    # Its last run lies far behind the own end: its hash there is none that is known here.
    peer = Peer([*COMMON, *LATER, run_of(seq=5)], kept=False)
    assert "another transaction at position 7" in compare([*COMMON, *OTHER], peer).differs


def test_numbers_that_the_longer_queue_lacks_refute() -> None:
    own = [*COMMON, run_of(origin="c", seq=1)]
    found = compare(own, Peer([*COMMON, *LATER], kept=False), pruned=True, ids=False)
    assert found.differs == "it has 0 transactions of c, the queue here 1"


def test_the_end_of_the_epoch_before_refutes() -> None:
    peer = Peer([*COMMON, *LATER], kept=False)
    ends, bare = peer.entries[2], {"ids": False}
    # Behind it stands a run of the former epoch here.
    assert (
        "went on from 6 as epoch 2"
        in compare([*COMMON, LATER[0]], peer, view=view_behind(ends), **bare).differs
    )
    for changed in ({"chain_hash": b"x" * 32}, {"position": 5}):
        found = compare(COMMON, peer, view=view_behind(ends, **changed), **bare)
        assert found.differs
    # At the own end it proves as well; what lies behind that says nothing.
    assert compare(COMMON, peer, view=view_behind(ends), **bare) == Compared()
    assert compare(COMMON, peer, view=view_behind(ends), pruned=True, **bare) == Compared()
    behind = view_behind(ends, position=7)
    assert compare(COMMON, peer, view=behind, **bare) == Compared(certain=False)


def test_ids_are_compared_where_pieces_overlap() -> None:
    ids = ids_of(1, 10)
    assert first_difference([(1, ids)], [(3, ids[32:96]), (7, ids[96:])]) is None
    assert first_difference([(1, ids[:64])], [(5, ids_of(50, 3))]) is None
    assert first_difference([(1, ids[:48]), (4, ids[48:])], [(3, ids[32:80] + ids_of(50, 1))]) == 6
