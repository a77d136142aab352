"""Decides which payload containers the journal may forget (protocol P9, P21).

Members need the runs that their queues lack.  A node with a place that is no member now comes back
by fetching the queue, run by run, from its last position: containers are spared for it, up to a
number of bytes.  If it needs older ones, it takes over a summary.  Expired runs are not spared: no
node can ask for them.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparktxlog.protocol.messages.view import View
from sparktxlog.storage.interfaces import ForgetPayloads


def forgettable(
    view: View,
    own: str,
    incarnation: int,
    *,
    posted: Mapping[str, int],
    shown: Mapping[str, int],
    published: int,
    kept_after: int,
    keep_bytes: int,
) -> ForgetPayloads:
    """Return what the journal may forget.

    Args:
        own: This node, and its incarnation.
        posted: Member → position of its queue, from its posts in this epoch; 0 = no post yet.
        shown: Node → position, from its posts and requests of any epoch.  A node that is not in it,
            as after a start, may need everything.
        published: Published position of this node.
        kept_after: Positions up to here are expired.
        keep_bytes: Most bytes of all spared containers, `rejoin-keep-bytes`.
    """
    member = own in view.members and view.is_current(own, incarnation)
    others = [seat.node_id for seat in view.roster if not seat.witness and seat.node_id != own]
    # If this node is no member, nobody needs its containers: the members have all of them.
    needing = [node for node in others if member and node in view.members]
    behind = [shown.get(node, 0) for node in others if node not in needing]
    return ForgetPayloads(
        position=min([published, *(posted.get(node, 0) for node in needing)]),
        spare_after=max(min(behind), kept_after) if behind else None,
        spare_bytes=keep_bytes,
    )
