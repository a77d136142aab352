"""What a node keeps when it takes over a summary that cannot be compared with its history (P28).

It lags so far that its queue and the peer's have no known position in common (`ancestry`).  Most
likely its queue is the beginning of the peer's, so it goes on with the summary.  But no node can
prove that, so it first writes to `log/quarantine` what the summary would drop: runs acquired from
others, own transactions with numbers that the summary already has, and ordered but unpublished
runs.  Own runs with later numbers stay in the journal and are ordered later.  The published queue
goes to the attic (`queue_table.set_aside`).

The node says so in its log, and in its status as long as it has this journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec

from sparktxlog.attic.attic import Attic
from sparktxlog.files.durability import storing
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.leaving_fork.giving_up import (
    Export,
    act_id,
    given_up,
    ordered_runs,
    waiting_runs,
)
from sparktxlog.storage.interfaces import PutValue, QueueSummary, StoredEntry
from sparktxlog.storage.log_tables.quarantine_table import GivenUp

_NAME = "uncompared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncompared:
    """A history that could not be compared when a summary replaced it."""

    #: End of the replaced queue, and of the summary's.
    position: int
    summary_position: int
    #: Node that gave the summary.
    peer: str
    #: Wall clock, microseconds since 1970 UTC.
    at: int
    #: Id in `log/quarantine`, empty if there was nothing to keep.
    quarantine_id: str = ""
    #: Transactions kept there.
    kept: int = 0


def uncompared(values: Mapping[str, bytes]) -> Uncompared | None:
    """Return the record of the last such summary, None if there was none."""
    value = values.get(_NAME)
    return None if value is None else msgspec.msgpack.decode(value, type=Uncompared)


def keep_uncompared(found: Uncompared) -> PutValue:
    """Return the write that makes it durable."""
    return PutValue(name=_NAME, value=msgspec.msgpack.encode(found))


def keep_dropped_runs(
    base: Foundation, summary: QueueSummary, incarnation: int, peer: str, at: int
) -> Uncompared:
    """Write to `log/quarantine` what a summary would drop of the journal as it was at the start.

    Fsynced; blocks.  A repeat adds nothing.

    Args:
        incarnation: The incarnation with which this node goes on.
        peer: The node that gave the summary.
        at: Wall clock, microseconds since 1970 UTC.

    Raises:
        CorruptLogError: The journal lacks a run of its queue.
        StorageError: Try again: nothing was dropped.
    """
    state = base.state
    runs, quarantine_id = _dropped_runs(base, summary, incarnation), ""
    if runs:
        quarantine_id = act_id(state, [run.stored for run in runs])
        export = Export(base.journal, base.payloads, base.config.data_dir, state.core.tables)
        export.write(quarantine_id, runs)
        with storing(base.config.data_dir):
            Attic.of_node(base.config.data_dir).finish(export.entry)
    return Uncompared(
        position=state.core.base.position,
        summary_position=summary.position,
        peer=peer,
        at=at,
        quarantine_id=quarantine_id,
        kept=sum(run.stored.entry.header.n for run in runs),
    )


def _dropped_runs(base: Foundation, summary: QueueSummary, incarnation: int) -> list[GivenUp]:
    core, own, view = base.state.core, base.config.node_id, base.master.view
    watermark, end = summary.watermarks.get(own, 0), core.base.position
    runs = [
        # The end of the queue that is not certainly in a table.
        *ordered_runs(base.journal, base.state.published, end),
        *waiting_runs(
            core,
            own,
            base.state.incarnation,
            view.epoch,
            lambda header: not _stays(header, own, incarnation, watermark),
        ),
    ]
    known = _known_ids(summary, runs)
    return given_up(runs, end, own, view, lambda stored: stored.ids[:16] in known)


def _stays(header: RunHeader, own: str, incarnation: int, watermark: int) -> bool:
    """Return whether a waiting run survives the summary (`ResetJournal`)."""
    if not header.seq:
        return True
    return (header.origin, header.incarnation) == (own, incarnation) and header.seq > watermark


def _known_ids(summary: QueueSummary, runs: Sequence[StoredEntry]) -> set[bytes]:
    """Return which of the runs' first ids are among the last positions of the summary."""
    wanted = {stored.ids[:16] for stored in runs}
    end = () if summary.last is None else ((0, summary.last.ids),)
    pieces = chain(summary.recent_ids, end) if wanted else ()
    return {
        found
        for _, ids in pieces
        for at in range(0, len(ids), 16)
        if (found := ids[at : at + 16]) in wanted
    }
