"""History of the epochs that this node took up.

A node takes an epoch up when its view is durable.  The journal keeps the latest `HISTORY` epochs in
a ring of named values, numbered from 1.  The publisher appends the new ones to the Delta table
`log/epochs`, in a commit that names the number of its last row: so a crash neither loses nor
repeats a row.  If a crash kept the last epoch out of the history, the start adds it from the view
in the journal.

The table alone would not do: another thread shortens it, its rows expire, and a witness has none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from sparktxlog.model.epoch import EpochRecord, QueueEnd, RosterSeat
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import MergeBase
from sparktxlog.protocol.messages.view import Phase, Seat, View
from sparktxlog.runtime.clock import wall_us
from sparktxlog.storage.interfaces import Write
from sparktxlog.storage.journal.value_ring import ring_value, ring_values

#: Epochs that the journal keeps; older ones are in `log/epochs` only.
HISTORY = 1_000
_PREFIX = "epoch:"
#: Longest wait of a question for an epoch that is being written, seconds.
_PATIENCE_S = 1.0

#: Number of an epoch in this node's history, from 1, and the epoch.
NumberedEpoch = tuple[int, EpochRecord]
_decode = msgspec.msgpack.Decoder(NumberedEpoch).decode


class EpochHistory:
    """Epochs that this node took up.  Call `after` from any thread, all else on the event loop.

    An epoch is shown when it is durable: a crash before could still change its time.

    Args:
        put: Makes writes durable in order, then calls a function.
    """

    def __init__(
        self,
        saved: Mapping[str, bytes],
        *,
        put: Callable[[Sequence[Write], Callable[[], None]], None],
        now: Callable[[], int] = wall_us,
    ) -> None:
        self._put = put
        self._now = now
        found = [_decode(value) for _, value in ring_values(_PREFIX, saved)]
        #: Durable, ascending, without gaps.  Only replaced, never changed: another thread reads it.
        self._kept: tuple[NumberedEpoch, ...] = tuple(sorted(found, key=lambda item: item[0]))
        #: The same, and those that are being written.
        self._noted = self._kept
        self._settled = asyncio.Event()
        self._settled.set()

    def begin(self, view: View, phase: Phase) -> None:
        """Take up the present epoch, unless this node has taken one up before."""
        if not self._noted:
            self.take_up(view, phase)

    def take_up(self, view: View, phase: Phase) -> None:
        """Add the epoch of a durable view; one that is in the history changes nothing.

        Args:
            phase: Of this node in the epoch.
        """
        if view.epoch < 1 or any(
            (record.log_id, record.epoch) == (view.log_id, view.epoch) for _, record in self._noted
        ):
            return
        number, before = self._noted[-1] if self._noted else (0, None)
        item = (number + 1, record_of(view, phase, before, self._now()))
        noted = self._noted = (*self._noted, item)[-HISTORY:]
        self._settled.clear()
        write = ring_value(_PREFIX, HISTORY, item[0], msgspec.msgpack.encode(item))
        self._put([write], lambda: self._keep(noted))

    def _keep(self, noted: tuple[NumberedEpoch, ...]) -> None:
        self._kept = noted
        if noted is self._noted:
            self._settled.set()

    async def settle(self) -> None:
        """Wait until all epochs are durable, but only a moment: the disk may be full."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await self._settled.wait()

    def latest(self, limit: int) -> list[EpochRecord]:
        """Return the latest epochs that are durable, newest first."""
        return [record for _, record in self._kept[: -limit - 1 : -1]]

    def find(self, log_id: str, epoch: int) -> EpochRecord | None:
        """Return an epoch that this node took up, None if its history lacks it."""
        for _, record in reversed(self._noted):
            if (record.log_id, record.epoch) == (log_id, epoch):
                return record
        return None

    def after(self, number: int) -> Sequence[NumberedEpoch]:
        """Return the kept durable epochs with higher numbers, ascending."""
        kept = self._kept
        newer = kept[-1][0] - number if kept else 0
        return kept[-newer:] if newer > 0 else ()


def view_of(record: EpochRecord) -> View:
    """Return the view of an epoch, without its tail."""
    end = record.begins_after
    return View(
        log_id=record.log_id,
        epoch=record.epoch,
        roster=tuple(
            Seat(
                node_id=NodeId(seat.id),
                url=seat.url,
                weight=seat.weight,
                witness=seat.witness,
                follower=seat.follower,
                incarnation=seat.incarnation,
            )
            for seat in record.roster
        ),
        members=tuple(NodeId(member) for member in record.members),
        quorum_rule=record.quorum_rule,
        end=MergeBase(position=end.position, chain_hash=bytes.fromhex(end.chain_hash)),
    )


def record_of(view: View, phase: Phase, before: EpochRecord | None, now: int) -> EpochRecord:
    """Return the record of an epoch.

    Args:
        phase: Of this node in the epoch.
        before: The epoch that this node took up before, None = unknown.
    """
    roster = tuple(
        RosterSeat(
            id=seat.node_id,
            url=seat.url,
            weight=seat.weight,
            witness=seat.witness,
            follower=seat.follower,
            incarnation=seat.incarnation,
        )
        for seat in view.roster
    )
    joined = left = changed = None
    if before is not None:
        members, former = set(view.members), set(before.members)
        joined, left = tuple(sorted(members - former)), tuple(sorted(former - members))
        changed = tuple(sorted(_reseated(before.roster, roster) - (members ^ former)))
    return EpochRecord(
        log_id=view.log_id,
        epoch=view.epoch,
        members=tuple(view.members),
        quorum=view.quorum,
        quorum_rule=view.quorum_rule,
        roster=roster,
        begins_after=QueueEnd(position=view.end.position, chain_hash=view.end.chain_hash.hex()),
        joined=joined,
        left=left,
        changed=changed,
        phase=phase.value,
        taken_up_at=now,
    )


def _reseated(before: Sequence[RosterSeat], after: Sequence[RosterSeat]) -> set[str]:
    """Return the nodes whose seat is new, gone or changed, or has another precedence."""
    old, new = {seat.id: seat for seat in before}, {seat.id: seat for seat in after}
    stayed = [name for name in old if name in new]
    order = [name for name in new if name in old]
    moved = {name for name, other in zip(stayed, order, strict=True) if name != other}
    return (old.keys() ^ new.keys()) | moved | {n for n in stayed if old[n] != new[n]}
