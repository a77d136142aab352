"""Transactions that may be lost if this node goes on alone: others have them, it lacks them (P23).

A member numbers its transactions, and each of its posts has the last number.  This node has a
transaction only if its queue after `force` would have it.  If this voter accepted a value, that is
the queue, and anything else acquired from others is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparktxlog.model.answers import UnseenTransactions
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.balloting import MemberState
from sparktxlog.protocol.messages.posts import Post, RunHeader
from sparktxlog.protocol.messages.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The transactions of another member, as far as known."""

    node_id: NodeId
    #: Last sequence number; None = unknown.
    last: int | None
    #: Time of its last post, log clock, microseconds; None = none since this node started.
    heard_at: int | None


class ShownTransactions:
    """Compares other members' transactions with those that `force` would keep."""

    def __init__(self, master: Master) -> None:
        self._master = master
        #: Node → (when it posted last, last sequence number that it ever posted).
        self._posted: dict[str, tuple[int, int]] = {}

    def on_post(self, post: Post, now: int) -> None:
        """Note the last sequence number of a member."""
        last = self._posted.get(post.sender, (0, 0))[1]
        self._posted[post.sender] = (now, max(last, post.last_seq))

    def shown(self) -> list[Shown]:
        """Return the known transactions of each other member."""
        status, found = self._master.status(), list[Shown]()
        peers = status.peers
        for member in status.members:
            if member == status.node_id:
                continue
            posted = self._posted.get(member)
            said = [peer.acquired[member] for peer in peers if member in peer.acquired]
            if posted is not None:
                said.append(posted[1])
            heard_at = None if posted is None else posted[0]
            last = max(said, default=None)
            found.append(Shown(node_id=member, last=last, heard_at=heard_at))
        return found

    def of(self, shown: Iterable[Shown], now: int) -> list[UnseenTransactions]:
        """Return for each member its last number, and the last that the queue has or would have.

        Transactions that a member accepted after its last post are unknown here.  They are lost too
        if the member never comes back; if it does, they return as new transactions.
        """
        held = held_when_forced(self._master.member_state(), self._master.accepted)
        found: list[UnseenTransactions] = []
        for one in shown:
            here, heard = held.get(one.node_id, 0), one.heard_at
            found.append(
                {
                    "node_id": one.node_id,
                    "last_shown": one.last,
                    "held_here": here,
                    "missing": None if one.last is None else max(0, one.last - here),
                    "unheard_s": None if heard is None else round((now - heard) / 1e6, 3),
                }
            )
        return found


def held_when_forced(state: MemberState, accepted: View | None) -> dict[str, int]:
    """Return the last sequence number of each origin in the queue after `force`.

    Args:
        accepted: The value that this node accepted: the queue ends with its tail.
    """
    held = dict(state.watermarks)
    for header in state.acquired if accepted is None else _named(state, accepted):
        held[header.origin] = max(held.get(header.origin, 0), header.last)
    return held


def _named(state: MemberState, accepted: View) -> Sequence[RunHeader]:
    """Return the acquired runs that are in the accepted final queue."""
    position, tail, found = state.base.position, set(accepted.tail), []
    for header in sorted(state.acquired, key=lambda header: header.key):
        # In the agreed order acquired runs come before the base first.
        if position < accepted.base.position or header in tail:
            position += header.n
            found.append(header)
    return found
