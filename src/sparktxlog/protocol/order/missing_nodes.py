"""Which nodes are missing in an empty round, and why; only for display."""

from __future__ import annotations

from collections.abc import Sequence

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.order.addition import holders
from sparktxlog.protocol.order.origin_queues import Run
from sparktxlog.protocol.order.peers import Peer
from sparktxlog.protocol.order.status import Awaited, AwaitReason
from sparktxlog.protocol.order.unstamped import Staging


def awaited(
    *,
    head: Run | None,
    staging: Staging,
    peers: Sequence[Peer],
    self_id: NodeId,
    quorum: int,
    last_added_at: int,
) -> tuple[Awaited, ...]:
    """Return the members that delay the next run, and announced runs after it.

    Args:
        head: First incoming run in the agreed order.
        last_added_at: Shell's time of the last ADD, microseconds: nobody held up `head` before.
    """
    found: list[Awaited] = []
    if head is not None:
        since = max(head.seen_at, last_added_at)
        for peer in peers:
            if peer.counter < head.header.ts:
                found.append(_awaited(peer.node_id, AwaitReason.PROMISE, since, head))
        if head.facts is None:
            found.append(_awaited(self_id, AwaitReason.SELF_PAYLOAD, since, head))
        if holders(head, peers) < quorum:
            origin = head.header.origin
            for peer in peers:
                if peer.node_id != origin and peer.acquired.get(origin, 0) < head.last:
                    found.append(_awaited(peer.node_id, AwaitReason.ACQUIRED, since, head))
    for run in staging.awaited():
        for peer in peers:
            if run.submit.digest not in peer.held:
                found.append(
                    Awaited(
                        peer=peer.node_id,
                        why=AwaitReason.PAYLOAD,
                        since=run.submitted_at,
                        key=None,
                    )
                )
    return tuple(found)


def _awaited(peer: NodeId, why: AwaitReason, since: int, head: Run) -> Awaited:
    return Awaited(peer=peer, why=why, since=since, key=head.key)
