"""The final queue of an epoch: the runs that a node holds, lacks and appends (protocol P14–P18).

A decided view names the end of the former epoch's queue.  Every member-to-be holds that queue
before the decision, and appends it when it adopts the view.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sparktxlog.errors import QUARANTINE_HINT, InvariantViolation
from sparktxlog.protocol.messages.balloting import MemberState
from sparktxlog.protocol.messages.posts import RunHeader, chain_hash
from sparktxlog.protocol.messages.view import View, Voided
from sparktxlog.protocol.order.collecting import Collecting
from sparktxlog.protocol.order.origin_queues import Run, Stream, same_run
from sparktxlog.protocol.order.synchronized import SynchronizedQueue


def member_state(queue: SynchronizedQueue, streams: Sequence[Stream]) -> MemberState:
    """Return what a member holds, for its PROMISE (P14)."""
    return _state(queue, (run for stream in streams for run in stream.acquired_runs()))


def joiner_state(queue: SynchronizedQueue, streams: Sequence[Stream]) -> MemberState:
    """Return what the PROMISE of a node that asks to be admitted says (P21).

    Nothing of it goes into the final queue, so it names what it keeps outside its streams as well.
    """
    return _state(queue, (run for stream in streams for run in stream.held()))


def _state(queue: SynchronizedQueue, runs: Iterable[Run]) -> MemberState:
    return MemberState(
        base=queue.base,
        key=queue.key,
        watermarks=dict(queue.watermarks),
        acquired=tuple(run.header for run in runs),
    )


def want(queue: SynchronizedQueue, collecting: Collecting, view: View, now: int) -> int:
    """Append held runs up to the base, and request the final queue's runs after it (P16).

    Returns:
        Number of runs that are not durable here; below 0: the queue lacks so many transactions
        before the base.

    Raises:
        InvariantViolation: This node's queue differs (P28).
    """
    if queue.position < view.base.position and not _append_held(queue, collecting, view, now):
        return queue.position - view.base.position
    queue.check_base("the decided view", view.base)
    missing = 0
    for header in _beyond(queue, view):
        if view.void(header) is not None:
            collecting.learn_void(header, now)  # it needs no payload
        else:
            missing += collecting.learn_final(header, now).facts is None
    return missing


def claims(queue: SynchronizedQueue, collecting: Collecting, view: View) -> list[RunHeader]:
    """Return the runs that a view voids and that this node says it holds (P32)."""
    voided = [header for header in _beyond(queue, view) if view.void(header) is not None]
    runs = (collecting.streams[header.origin].get(header.seq) for header in voided)
    return [run.header for run in runs if run and run.facts and not run.facts.voided]


def _append_held(queue: SynchronizedQueue, collecting: Collecting, view: View, now: int) -> bool:
    """Append durable runs of this node's epoch up to a view's base; False = they do not fit.

    Every run whose key is not above the base's comes before it (P7): in the agreed order held runs
    lead to the base, or something is missing.  The chain hash shows which.
    """
    streams, base, epoch = collecting.streams, view.base, collecting.epoch
    most = sum(stream.held_to - stream.watermark for stream in streams.values())
    if queue.position + most < base.position:
        return False
    held = [run for stream in streams.values() for run in stream.held()]
    # Own runs of earlier epochs wait for another stamp (P20).
    held = sorted((run for run in held if run.key[0] == epoch), key=lambda run: run.key)
    position, hashed, found = queue.position, queue.hash, []
    for run in held:
        if position >= base.position:
            break
        position += run.header.n
        hashed = chain_hash(hashed, run.header)
        found.append(run)
    if (position, hashed) != (base.position, base.chain_hash):
        return False
    for run in found:
        collecting.learn_final(run.header, now)
        queue.append(run, streams[run.header.origin])
    return True


def append_final(
    queue: SynchronizedQueue, streams: Mapping[str, Stream], view: View, now: int
) -> list[Voided]:
    """Append the final queue's tail, whose runs are all durable here (P18), or void (P32).

    Returns:
        Void runs that are not durable yet.

    Raises:
        InvariantViolation: The runs differ from the view's.
    """
    queue.tail.clear()
    fresh: list[Voided] = []
    for header in _beyond(queue, view):
        stream = streams[header.origin]
        run, voided = stream.runs[0], view.void(header)
        if voided is not None and (run.header != header or run.facts is None):
            run = stream.replace(header, now)
            stream.acquire(run, voided.facts)
            fresh.append(voided)
        same_run(run.header, header)
        queue.append(run, stream)
    return fresh


def check_end(queue: SynchronizedQueue, view: View) -> None:
    """Compare the queue with the end that the view names.

    Raises:
        InvariantViolation: This node's queue is not a prefix of the final one (I4).
    """
    if (queue.position, queue.hash) != (view.end.position, view.end.chain_hash):
        raise InvariantViolation(
            f"the queue ends at {queue.position}, the final queue of epoch {view.epoch - 1} at "
            f"{view.end.position} (I4)",
            hint=QUARANTINE_HINT,
            position=queue.position,
        )


def _beyond(queue: SynchronizedQueue, view: View) -> list[RunHeader]:
    """Return the headers of the view's tail that the queue does not hold."""
    marks = queue.watermarks
    return [header for header in view.tail if header.last > marks.get(header.origin, 0)]
