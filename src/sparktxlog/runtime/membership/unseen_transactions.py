"""What may be lost if this node goes on alone: what the others showed and this one lacks (P23).

A member's transactions are numbered, and each of its posts says how many there are.  What the node
holds of them counts only if the queue that it would go on with has it: if this voter accepted a
value, that is the one, and what else was acquired from others is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparktxlog.model.answers import UnseenTransactions
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.words.balloting import MemberState
from sparktxlog.protocol.words.messages import Post, RunHeader
from sparktxlog.protocol.words.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What another member has shown of its own transactions."""

    node_id: NodeId
    #: Last sequence number; None = neither the member nor another one has said.
    last: int | None
    #: When it was heard last, log clock, microseconds; None = not since this node started.
    heard_at: int | None


class ShownTransactions:
    """Compares what other members showed with what would be left of it."""

    def __init__(self, master: Master) -> None:
        self._master = master
        #: Node → (when it posted last, last sequence number that it ever posted).
        self._posted: dict[str, tuple[int, int]] = {}

    def on_post(self, post: Post, now: int) -> None:
        """Note how many transactions a member has, also such that nothing else is known of."""
        last = self._posted.get(post.sender, (0, 0))[1]
        self._posted[post.sender] = (now, max(last, post.last_seq))

    def shown(self) -> list[Shown]:
        """Return what each other member showed, as far as known here."""
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
        """Return per member what it showed, and what of it the queue has, or would have.

        What a member accepted after it was heard last is not known here: it is lost too if the
        member never comes back, and returns as new transactions if it does.
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
    """Return up to where a queue has each origin's transactions that this node forces.

    Args:
        accepted: The value that it accepted: the queue ends with that one's tail.
    """
    held = dict(state.watermarks)
    for header in state.acquired if accepted is None else _named(state, accepted):
        held[header.origin] = max(held.get(header.origin, 0), header.last)
    return held


def _named(state: MemberState, accepted: View) -> Sequence[RunHeader]:
    """Return the acquired runs that stand in the accepted final queue."""
    position, tail, found = state.base.position, set(accepted.tail), []
    for header in sorted(state.acquired, key=lambda header: header.key):
        # In the agreed order what is acquired leads to the base first.
        if position < accepted.base.position or header in tail:
            position += header.n
            found.append(header)
    return found
