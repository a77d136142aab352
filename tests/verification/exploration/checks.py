"""Invariants over all nodes of one state; those of one step are in `nodes`."""

from __future__ import annotations

from collections.abc import Sequence

from tests.verification.exploration.nodes import Facts
from tests.verification.model.disk import key_of

from sparktxlog.errors import InvariantViolation
from sparktxlog.protocol.words.messages import QueueEntry, chain_hash
from sparktxlog.protocol.words.view import View, same_decision


def check(nodes: Sequence[Facts], quorum: int) -> None:
    """Check a state; queues and views are compared pairwise, as none ever shrinks or changes.

    Raises:
        InvariantViolation: With the invariant's number.
    """
    for node in nodes:
        _check_queue(node)
    for index, one in enumerate(nodes):
        for other in nodes[index + 1 :]:
            _check_pair(one, other)
    views = _views(nodes)
    for view in views.values():
        for node in nodes:
            _check_final(node, view, nodes)
    if not views:
        _check_holders(nodes, quorum)


def _check_queue(node: Facts) -> None:
    """I2, I3: sorted, gapless, linked; payloads are here."""
    end, previous, key = 0, bytes(32), (0, 0, "", 0)
    last: dict[str, int] = {}
    for entry in node.queue:
        header = entry.header
        follows = header.key > key and header.seq == last.get(header.origin, 0) + 1
        if entry.position != end + 1 or not follows:
            raise InvariantViolation(f"I2: {node.name}: {header.key} follows {key}")
        if entry.previous_hash != previous or entry.chain_hash != chain_hash(previous, header):
            raise InvariantViolation(f"I2: {node.name}: broken link at {entry.position}")
        if (key_of(header), header.digest) not in node.holds:
            raise InvariantViolation(f"I3: {node.name} does not hold {header.key}")
        end, previous, key = entry.end, entry.chain_hash, header.key
        last[header.origin] = header.last


def _check_pair(one: Facts, other: Facts) -> None:
    """I1, I7: one of the two queues is a prefix of the other, outcomes included."""
    shared = min(len(one.queue), len(other.queue))
    if one.queue[:shared] != other.queue[:shared]:
        raise InvariantViolation(
            f"I1: {one.name} has {_show(one.queue)}, {other.name} has {_show(other.queue)}"
        )


def _views(nodes: Sequence[Facts]) -> dict[int, View]:
    """Return the decided views by epoch; I5: there is one each."""
    views: dict[int, View] = {}
    for node in nodes:
        for view in (node.view, node.decided):
            if view is None:
                continue
            known = views.setdefault(view.epoch, view)
            if len(view.tail) > len(known.tail):
                views[view.epoch] = view  # the others were told without it
            if not same_decision(known, view):
                raise InvariantViolation(
                    f"I5: two decisions on epoch {view.epoch}: {views[view.epoch]} and {view}"
                )
    return views


def _check_final(node: Facts, view: View, nodes: Sequence[Facts]) -> None:
    """I4, I6: each queue is a prefix of the final queue, which has what was told as acquired."""
    epoch = 1 if node.view is None else node.view.epoch
    hashes = {view.base.position: view.base.chain_hash}
    position, hashed = view.base.position, view.base.chain_hash
    for header in view.tail:
        position, hashed = position + header.n, chain_hash(hashed, header)
        hashes[position] = hashed
    for entry in node.queue:
        if hashes.get(entry.end, entry.chain_hash) != entry.chain_hash:
            raise InvariantViolation(f"I4: {node.name} has another run at {entry.end}")
        if entry.end > view.end.position and entry.header.epoch < view.epoch:
            raise InvariantViolation(
                f"I4: {node.name} has {_show(node.queue)}, the final queue of epoch "
                f"{view.epoch - 1} ends at {view.end.position}"
            )
    end = node.queue[-1].end if node.queue else 0
    if epoch >= view.epoch and node.is_member and end < view.end.position:
        raise InvariantViolation(f"I4: {node.name} is in {epoch} with {end} positions")
    final = {key_of(h) for h in view.tail}
    for header in node.told:
        if header.epoch < view.epoch and key_of(header) not in final:
            base = view.base.position
            if not any(
                e.end <= base and key_of(e.header) == key_of(header) for n in nodes for e in n.queue
            ):
                raise InvariantViolation(f"I6: {header.key} was told as acquired, and is lost")


def _check_holders(nodes: Sequence[Facts], quorum: int) -> None:
    """I3: in the first epoch, what is in a queue or was told as acquired is held by q nodes."""
    for node in nodes:
        for header in (*(entry.header for entry in node.queue), *node.told):
            run = (key_of(header), header.digest)
            if sum(run in other.holds for other in nodes) < quorum:
                raise InvariantViolation(f"I3: too few hold {header.key} of {node.name}")


def _show(queue: Sequence[QueueEntry]) -> str:
    return "[" + ", ".join(f"{e.header.origin}:{e.header.seq}@{e.header.ts}" for e in queue) + "]"
