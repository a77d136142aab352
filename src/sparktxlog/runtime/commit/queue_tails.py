"""Tails of the queue for peers that lag, read from the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from sparktxlog.errors import QUARANTINE_HINT, ExpiredError, TxLogError
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.actions import Alarm, SendTail
from sparktxlog.protocol.messages.posts import Ahead, Tail
from sparktxlog.runtime.commit.cycle import Cycle
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.storage.interfaces import StoredEntry

_log = structlog.get_logger("sparktxlog.delivery")

#: Runs of one tail message; the next ones follow once the peer's base has moved.
_TAIL_RUNS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _OtherHistory:
    """The finding that a peer's queue is not the beginning of this one."""

    alarm: Alarm
    #: This node's run with the position after the peer's end, if there is one.
    proof: Tail


class QueueTails:
    """Sends each peer what follows its queue, one tail at a time."""

    def __init__(self, base: Foundation, cycle: Cycle) -> None:
        self._base = base
        self._cycle = cycle
        #: Peer → the task that sends it tails, and the next request.
        self._tails: dict[NodeId, asyncio.Task[None]] = {}
        self._next_tails: dict[NodeId, SendTail] = {}

    def send(self, action: SendTail) -> None:
        """Send a tail after the one under way; of waiting requests only the newest counts."""
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
            tail = await self._base.run_blocking(self._read_tail, action)
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
        link = self._base.links.get(action.peer)
        if tail.entries and link is not None:
            await link.tail(tail)

    async def _tell_diverged(self, action: SendTail, found: _OtherHistory) -> None:
        """Stop if a member has another history; tell a node that only wants to join."""
        if action.peer in self._base.master.view.members:
            self._cycle.raise_alarm(found.alarm)
            return
        text = found.alarm.text
        _log.error("no tail for a node of another history", peer=action.peer, text=text)
        # The run that does not continue its queue is the proof: it stops and tells its operator.
        await self._send_entries(action, found.proof)

    def _read_tail(self, action: SendTail) -> Tail | _OtherHistory:
        """Read a bounded piece of the queue; in a thread.

        For an expired part, one run is enough if its row still exists: it shows whether the peer's
        queue is the beginning of this one, and that its data is gone.
        """
        ahead = action.ahead
        if ahead is not None:
            # If its tail ends with the same hash as this queue, everything before is equal.
            stored = self._read_behind(ahead)
            if stored and stored[0].entry.previous_hash == ahead.chain_hash:
                return tail_of(self._base, stored)
        try:
            stored = self._base.journal.read_queue(action.position, _TAIL_RUNS, payloads=False)
        except ExpiredError:
            expired = self._base.journal.read_entry_at(action.position + 1)
            if expired is None:
                raise
            stored = [expired]
        if stored and stored[0].entry.position == action.position + 1:
            here = stored[0].entry.previous_hash
        else:
            here = self._base.journal.read_hash_at(action.position) or b""
        if here != action.chain_hash:
            behind = self._base.journal.read_entry_at(action.position + 1)
            alarm = Alarm(
                code="diverged",
                text=f"peer {action.peer!r} has another history at position {action.position}: "
                f"hash {action.chain_hash.hex()[:12]}, here {here.hex()[:12] or 'no run end'}.  "
                f"{QUARANTINE_HINT}",
                fatal=True,
            )
            proof = tail_of(self._base, () if behind is None else (behind,))
            return _OtherHistory(alarm=alarm, proof=proof)
        return tail_of(self._base, stored)

    def _read_behind(self, ahead: Ahead) -> Sequence[StoredEntry]:
        """Return what follows a tail, as much as fits; nothing if it is expired."""
        room = min(max(ahead.room, 1), _TAIL_RUNS)
        try:
            return self._base.journal.read_queue(ahead.position, room, payloads=False)
        except ExpiredError:
            return ()

    async def close(self) -> None:
        """Stop reading tails."""
        tasks = tuple(self._tails.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def tail_of(base: Foundation, stored: Sequence[StoredEntry]) -> Tail:
    """Return a part of the queue as a message of this node."""
    view = base.master.view
    return Tail(
        log_id=view.log_id,
        epoch=view.epoch,
        sender=base.config.node_id,
        previous_hash=stored[0].entry.previous_hash if stored else b"",
        entries=tuple(item.entry for item in stored),
        end=base.ordered.value,
    )
