"""Invariants over all nodes of one state; those of one step are in `nodes`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.verification.exploration.nodes import Facts
from tests.verification.model.disk import key_of
from tests.verification.model.invariants import (
    OneQueue,
    check_entered,
    check_holders,
    note_decision,
    violated,
)

from sparktxlog.protocol.messages.posts import chain_hash
from sparktxlog.protocol.messages.view import View


def check(nodes: Sequence[Facts], quorum: int) -> None:
    """Check a state.

    Raises:
        InvariantViolation: With the invariant's number.
    """
    queue, views = OneQueue(), dict[int, View]()
    for node in nodes:
        queue.see(node.disk)
        for view in (node.disk.view, node.decided):
            if view is not None:
                note_decision(views, view)
    for view in views.values():
        for node in nodes:
            _check_final(node, view, queue)
    if views:
        return
    for node in nodes:  # of the first epoch everybody knows the quorum
        for header in (*(entry.header for entry in node.disk.queue), *node.told):
            check_holders(header, nodes, quorum)


def _check_final(node: Facts, view: View, queue: OneQueue) -> None:
    """I4, I6: each queue is a prefix of the final queue, which has what was told as acquired."""
    hashes = {view.base.position: view.base.chain_hash}
    position, hashed = view.base.position, view.base.chain_hash
    for header in view.tail:
        position, hashed = position + header.n, chain_hash(hashed, header)
        hashes[position] = hashed
    for entry in node.disk.queue:
        if hashes.get(entry.end, entry.chain_hash) != entry.chain_hash:
            violated(f"I4: {node.name} has another run at {entry.end}")
        if entry.end > view.end.position and entry.header.epoch < view.epoch:
            violated(
                f"I4: {node.name} has {entry.header}, the final queue of epoch "
                f"{view.epoch - 1} ends at {view.end.position}"
            )
    epoch = 1 if node.disk.view is None else node.disk.view.epoch
    if epoch >= view.epoch and node.is_member:
        check_entered(node.disk, view)
    final = {key_of(header) for header in view.tail}
    for header in node.told:
        key = key_of(header)
        is_kept = key in final or queue.positions.get(key, math.inf) <= view.base.position
        if header.epoch < view.epoch and not is_kept:
            violated(f"I6: {header.key} was told as acquired, and is lost")
