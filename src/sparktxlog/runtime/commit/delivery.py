"""Carrying out the core's actions that are no `Persist…`: links, fetches, receipts, publishing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import structlog

from sparktxlog.errors import QUARANTINE_HINT, ExpiredError, TxLogError
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.words.actions import (
    Action,
    Alarm,
    CheckFiles,
    FetchPayload,
    Persist,
    PrefetchFiles,
    SendAnnouncement,
    SendEpochMessage,
    SendPost,
    SendPush,
    SendTail,
    TellAccepted,
    TellAcquired,
    TellChange,
    TellDoubt,
    TellOrdered,
    TellPhase,
    TellRejected,
)
from sparktxlog.protocol.words.balloting import JoinRequest, TailRequest
from sparktxlog.protocol.words.messages import Ahead, RunHeader, Tail
from sparktxlog.protocol.words.view import View
from sparktxlog.runtime.commit.fetching import Fetcher
from sparktxlog.runtime.commit.holdings import Holdings
from sparktxlog.runtime.commit.receipts import Receipts
from sparktxlog.runtime.progress import Progress
from sparktxlog.storage.interfaces import StoredEntry
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.transport.peers import PeerLink

_log = structlog.get_logger("sparktxlog.delivery")

#: Runs of one tail message; the next ones follow once the peer's base has moved (P9).
_TAIL_RUNS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _OtherHistory:
    """What was found for a peer whose queue is not the beginning of this one."""

    alarm: Alarm
    #: The run here that holds the position behind the peer's end, if the queue reaches so far.
    proof: Tail


class Delivery:
    """Carries out actions; never blocks.

    A peer that lost its place while an action waited has no link any more: nothing is sent to it.

    Args:
        view: Returns the view in force.
        on_diverged: Called with an alarm if a peer's history is not this node's (P28).
        run_blocking: Runs blocking reads of the front.
        on_phase, on_change: Called with what the core tells of epochs.
        on_tail_request: Called with the peer asked for its queue, and the position behind which.
        on_doubt: Called with a peer that contradicts itself: it has to greet anew (P10).
        on_check: Called with a run whose files the core wants to be looked at (P32).
        may_ask: Returns whether a request to join may leave now; the core repeats it.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        view: Callable[[], View],
        front: Journal,
        holdings: Holdings,
        receipts: Receipts,
        links: Mapping[str, PeerLink],
        fetcher: Fetcher,
        ordered: Progress,
        on_ordered: Callable[[int], None],
        on_diverged: Callable[[Alarm], None],
        run_blocking: Callable[..., asyncio.Future[object]],
        on_phase: Callable[[TellPhase], None] = lambda told: None,
        on_change: Callable[[TellChange], None] = lambda told: None,
        on_tail_request: Callable[[PeerLink, int], None] = lambda link, position: None,
        on_doubt: Callable[[str], None] = lambda peer: None,
        may_ask: Callable[[], bool] = lambda: True,
        on_check: Callable[[RunHeader], None] = lambda header: None,
    ) -> None:
        self._on_check = on_check
        self._may_ask = may_ask
        self._on_tail_request = on_tail_request
        self._on_doubt = on_doubt
        self._node_id = node_id
        self._view = view
        self._on_phase = on_phase
        self._on_change = on_change
        self._front = front
        self._holdings = holdings
        self._receipts = receipts
        self._links = links
        self._fetcher = fetcher
        self._ordered = ordered
        self._on_ordered = on_ordered
        self._on_diverged = on_diverged
        self._run_blocking = run_blocking
        #: Peer → the task that sends it tails, one after the other, and what it is to send next.
        self._tails: dict[NodeId, asyncio.Task[None]] = {}
        self._next_tails: dict[NodeId, SendTail] = {}

    def deliver(self, action: Action, at: int) -> None:
        """Carry out one action; `at` is the wall clock of its batch, microseconds."""
        match action:
            case SendPost() | SendPush() | SendAnnouncement() | SendEpochMessage():
                if link := self._links.get(action.peer):
                    self._send(link, action)
            case TellAccepted():
                self._receipts.accepted(action.ticket, action.header)
            case TellAcquired():
                self._receipts.acquired(action.header)
            case TellOrdered():
                self._tell_ordered(action, at)
            case TellRejected():
                self._holdings.own_rejected(action.ticket)
                self._receipts.rejected(action.ticket, action.code, action.text)
            case FetchPayload() | PrefetchFiles() | CheckFiles():
                self._look_for(action)
            case SendTail():
                self._start_tail(action)
            case TellPhase():
                self._on_phase(action)
            case TellChange():
                self._on_change(action)
            case TellDoubt():
                self._on_doubt(action.peer)
            case Alarm():
                pass  # the cycle has told it
            case _:
                if not isinstance(action, Persist):
                    assert_never(action)
                raise AssertionError("persisting is the executor's")

    def _look_for(self, action: FetchPayload | PrefetchFiles | CheckFiles) -> None:
        match action:
            case FetchPayload():
                self._fetcher.fetch(action.header, action.sources)
            case PrefetchFiles():
                self._fetcher.prefetch(action.announcement)
            case CheckFiles():
                self._on_check(action.header)

    def _send(
        self, link: PeerLink, action: SendPost | SendPush | SendAnnouncement | SendEpochMessage
    ) -> None:
        match action:
            case SendPost():
                link.post(action.post)
            case SendPush():
                payload = self._holdings.find(action.header.digest)
                if payload is not None:  # else the peer fetches it (P3a)
                    link.push(action.header, payload)
            case SendAnnouncement():
                link.announce(action.announcement)
            case SendEpochMessage():
                if isinstance(action.message, JoinRequest) and not self._may_ask():
                    return
                link.epoch(action.message)
                if isinstance(action.message, TailRequest):
                    self._on_tail_request(link, action.message.position)

    def _tell_ordered(self, action: TellOrdered, at: int) -> None:
        for entry in action.entries:
            self._receipts.ordered(entry, at)
            self._holdings.ordered(entry.end, entry.header.digest)
        position = action.entries[-1].end
        self._ordered.advance(position)
        self._on_ordered(position)

    def _start_tail(self, action: SendTail) -> None:
        """Send a tail once the one under way is there; the newest of those that wait counts."""
        self._next_tails[action.peer] = action
        if action.peer not in self._tails:
            self._tails[action.peer] = asyncio.create_task(self._send_tails(action.peer))

    async def _send_tails(self, peer: NodeId) -> None:
        sent = None
        try:
            while (action := self._next_tails.pop(peer, None)) not in (None, sent):
                assert action is not None
                await self._send_tail(action)
                sent = action  # asked for again while it was under way
        finally:
            self._next_tails.pop(peer, None)
            del self._tails[peer]

    async def _send_tail(self, action: SendTail) -> None:
        try:
            tail = await self._run_blocking(self._read_tail, action)
        except TxLogError as error:
            _log.error(
                "no tail for peer", peer=action.peer, position=action.position, error=str(error)
            )
            return
        if isinstance(tail, _OtherHistory):
            await self._tell_diverged(action, tail)
        elif isinstance(tail, Tail):
            await self._send_entries(action, tail)

    async def _send_entries(self, action: SendTail, tail: Tail) -> None:
        link = self._links.get(action.peer)
        if tail.entries and link is not None:
            await link.tail(tail)

    async def _tell_diverged(self, action: SendTail, found: _OtherHistory) -> None:
        """Stop if a member has another history; one that only wants to join learns of it."""
        if action.peer in self._view().members:
            self._on_diverged(found.alarm)
            return
        text = found.alarm.text
        _log.error("no tail for a node of another history", peer=action.peer, text=text)
        # The run that does not follow its queue is the proof: it stops, and tells its operator.
        await self._send_entries(action, found.proof)

    def _read_tail(self, action: SendTail) -> Tail | _OtherHistory:
        """Read a bounded piece of the queue; in a thread.

        Of what has expired one run is enough, as long as its row is there: it shows whether the
        peer's queue is the beginning of this one, and that its data is gone.
        """
        ahead = action.ahead
        if ahead is not None:
            # Where its tail ends as the queue here did, so did all before it.
            stored = self._read_behind(ahead)
            if stored and stored[0].entry.previous_hash == ahead.chain_hash:
                return self._tail(stored)
        try:
            stored = self._front.read_queue(action.position, _TAIL_RUNS, payloads=False)
        except ExpiredError:
            expired = self._front.read_entry_at(action.position + 1)
            if expired is None:
                raise
            stored = [expired]
        if stored and stored[0].entry.position == action.position + 1:
            here = stored[0].entry.previous_hash
        else:
            here = self._front.read_hash_at(action.position) or b""
        if here != action.chain_hash:
            behind = self._front.read_entry_at(action.position + 1)
            alarm = Alarm(
                code="diverged",
                text=f"peer {action.peer!r} has another history at position {action.position}: "
                f"hash {action.chain_hash.hex()[:12]}, here {here.hex()[:12] or 'no run end'}.  "
                f"{QUARANTINE_HINT}",
                fatal=True,
            )
            return _OtherHistory(alarm=alarm, proof=self._tail(() if behind is None else (behind,)))
        return self._tail(stored)

    def _read_behind(self, ahead: Ahead) -> Sequence[StoredEntry]:
        """Return what follows a tail, as much as there is room for; nothing if it is expired."""
        room = min(max(ahead.room, 1), _TAIL_RUNS)
        try:
            return self._front.read_queue(ahead.position, room, payloads=False)
        except ExpiredError:
            return ()

    def _tail(self, stored: Sequence[StoredEntry]) -> Tail:
        view = self._view()
        return Tail(
            lineage=view.lineage,
            epoch=view.epoch,
            sender=self._node_id,
            previous_hash=stored[0].entry.previous_hash if stored else b"",
            entries=tuple(item.entry for item in stored),
        )

    async def close(self) -> None:
        """Stop reading tails."""
        tasks = tuple(self._tails.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
