"""Which payload containers the journal may forget: decisions only (protocol P9, P21).

Members need what they have not in their queues yet.  A node with a place that is no member at the
moment comes back by fetching the queue, run by run, from where it last stood: for it
containers are spared, up to a bound of bytes.  If it needs older ones it takes over a snapshot.
What the log has expired is not spared: no node can ask for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparktxlog.protocol.words.view import View
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
        posted: Positions of the queues that members show in this epoch; 0 = nothing yet.
        shown: Positions that nodes showed in posts and requests of any epoch; a node that is
            missing, as all are after a start, counts as one that holds nothing.
        published: Published position of this node.
        kept_after: Positions up to here are expired.
        keep_bytes: Bound of all that is held, `rejoin-keep-bytes`.
    """
    member = own in view.members and view.is_current(own, incarnation)
    others = [seat.node_id for seat in view.roster if not seat.witness and seat.node_id != own]
    # One that is no member itself is nobody's only source: the members have it all.
    needing = [node for node in others if member and node in view.members]
    behind = [shown.get(node, 0) for node in others if node not in needing]
    return ForgetPayloads(
        position=min([published, *(posted.get(node, 0) for node in needing)]),
        spare_after=max(min(behind), kept_after) if behind else None,
        spare_bytes=keep_bytes,
    )
