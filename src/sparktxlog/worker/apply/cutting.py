"""Cuts the log at the end of a run, so that a replica stops there (image plus log to a position).

Published segments hold several runs.  A segment that crosses the wanted position is cut: effects up
to there remain, and effects that cross it keep only their rows before it (`plan_batch`).  The
worker does not know hash and epoch inside a segment; the node gives both with the cut, and compares
the hash when the replica reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparktxlog.errors import ExpiredError, InvalidRequestError
from sparktxlog.model.transactions.operation import LONGEST_RUN
from sparktxlog.storage.interfaces import Segment

#: Runs asked for at once.
_PAGE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A run end at which the log is cut for a replica."""

    position: int
    #: Chain hash there, hexadecimal.
    chain_hash: str
    #: Of the run that ends there.
    epoch: int


def cut_segments(segments: Sequence[Segment], cut: Cut) -> tuple[Segment, ...]:
    """Return the segments up to a cut; a segment that crosses it ends there."""
    kept = [segment for segment in segments if segment.first <= cut.position]
    if kept and kept[-1].last > cut.position:
        kept[-1] = _shortened(kept[-1], cut)
    return tuple(kept)


def _shortened(segment: Segment, cut: Cut) -> Segment:
    return replace(
        segment,
        last=cut.position,
        to_hash=cut.chain_hash,
        epoch=cut.epoch,
        transactions=segment.transactions - (segment.last - cut.position),
        # It is unknown which of them come after the cut; the number is only for people.
        rejected=min(segment.rejected, cut.position - segment.first + 1),
        effects=tuple(effect for effect in segment.effects if effect.first <= cut.position),
    )


def find_cut(document: Callable[..., Any], position: int) -> Cut:
    """Return the run end at a position of the node's queue.

    Args:
        document: Returns the answer to a `GET` of the node: path, query.

    Raises:
        InvalidRequestError: No run ends there, or nothing is ordered there yet (definite).
        ExpiredError: The node's log no longer holds it (definite).
        TxLogError: As `document`.
    """
    info = document("/v1/info")
    kept_after, ordered = int(info["kept_after"]), int(info["position"])
    if position > ordered:
        raise InvalidRequestError(
            f"position {position} is not ordered yet: the queue of {info['node_id']} ends at "
            f"{ordered}",
            hint="Name a position up to there.",
            position=position,
        )
    for run in runs_after(document, max(kept_after, position - LONGEST_RUN)):
        first, last = int(run["position"]), int(run["position"]) + int(run["n"]) - 1
        if first > position:
            break
        if last == position:
            return Cut(position=last, chain_hash=str(run["chain_hash"]), epoch=int(run["epoch"]))
        if last > position:
            raise InvalidRequestError(
                f"position {position} stands inside the run {first} to {last}, whose transactions "
                "have one place in the log for all sites",
                hint=f"Stop before it, at {first - 1}, or after it, at {last}.",
                position=position,
            )
    raise ExpiredError(
        f"the log begins after position {kept_after}, it no longer holds {position}",
        hint="Only an image of that very position can bring it back: sparktxlog backup list.",
        position=position,
        kept_after=kept_after,
    )


def runs_after(document: Callable[..., Any], after: int) -> Iterator[dict[str, Any]]:
    """Yield the runs of a node's queue that start after a position, ascending.

    Args:
        document: As in `find_cut`.
    """
    while page := document("/v1/queue", after=after, limit=_PAGE):
        yield from page
        after = int(page[-1]["position"])
