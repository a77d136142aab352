"""Bounds of messages; a message over a bound is refused, and its sender is wrong (C3, P3b).

No durable state and no report depends on a refused message: it counts as lost.
"""

from __future__ import annotations

from collections.abc import Iterable

from sparktxlog.model.ids import LARGEST
from sparktxlog.protocol.messages.balloting import (
    Accept,
    Decide,
    EpochMessage,
    Flush,
    JoinRequest,
    Prepare,
    Promise,
    Refusal,
    TailRequest,
)
from sparktxlog.protocol.messages.posts import Post, RunHeader
from sparktxlog.protocol.messages.view import Ballot, View

#: A ballot's number follows those that were seen, one an attempt.  A voter that was away learns of
#: many at once, but one number takes no more than this of those that are left.
_MOST_BALLOTS = 1 << 32


def fits(header: RunHeader, limit: int = LARGEST) -> bool:
    """Return whether a header is possible, and its timestamp not later than a limit."""
    numbers = (header.epoch, header.seq, header.incarnation, header.size_bytes, header.staged_bytes)
    return 0 <= header.ts <= limit and min(numbers) >= 0 and max(numbers) + header.n <= LARGEST


def all_fit(headers: Iterable[RunHeader], limit: int = LARGEST) -> bool:
    """Return whether all headers are possible, and no timestamp later than a limit."""
    return all(fits(header, limit) for header in headers)


def post_fits(post: Post) -> bool:
    """Return whether a post's numbers are possible."""
    positions = (post.counter, post.last_seq, post.base.position, post.epoch)
    return max(positions) <= LARGEST and all_fit(post.headers)


def misfit(message: EpochMessage, seen: int, limit: int | None) -> str:
    """Return what is impossible in a message, empty = nothing.

    Args:
        seen: Greatest ballot number that is known for this decision.
        limit: Latest timestamp of a run that may enter the queue; None = this node has no queue to
            compare with, and trusts the members.
    """
    latest = LARGEST if limit is None else limit
    headers: tuple[RunHeader, ...] = ()
    numbers: tuple[int, ...] = ()
    ballots: tuple[Ballot, ...] = ()
    decided: tuple[View, ...] = ()
    match message:
        case Prepare():
            ballots, decided = (message.ballot,), (message.view,)
        case Flush() | Accept():
            ballots, headers = (message.ballot,), message.candidate.tail
            decided = (message.view, message.candidate)
        case Refusal():
            ballots = (message.promised,)
        case Promise():
            # The promise and the vote count, whatever was held or accepted: see `Proposer`.
            latest = LARGEST
            headers = () if message.state is None else message.state.acquired
            if message.accepted is not None:
                ballots = (message.accepted.ballot,)
                headers = (*headers, *message.accepted.view.tail)
        case Decide():
            decided = (message.view,)
        case JoinRequest():
            numbers = (message.base.position, message.ts, message.counter)
        case TailRequest():
            numbers = (message.position,)
        case _:
            pass
    if any(not 0 <= ballot.number <= seen + _MOST_BALLOTS for ballot in ballots):
        return f"ballot {max(ballot.number for ballot in ballots)}"
    if not all_fit(headers, latest):
        return f"a run stamped at {max(header.ts for header in headers)}"
    if any(not _decided_fits(view) for view in decided):
        return "a view with numbers that cannot be"
    if any(not 0 <= number <= LARGEST for number in numbers):
        return f"number {max(numbers)}"
    return ""


def _decided_fits(view: View) -> bool:
    """Return whether a view's numbers are possible; others decided how late its runs are."""
    numbers = (view.epoch, view.base.position, view.end.position)
    return max(numbers) <= LARGEST and min(numbers) >= 0 and all_fit(view.tail)
