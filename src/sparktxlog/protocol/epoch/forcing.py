"""`force`: one node goes on alone, because an operator says that the others are dead (P23)."""

from __future__ import annotations

from dataclasses import replace

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.epoch.union import final_queue
from sparktxlog.protocol.messages.balloting import MemberState, Vote
from sparktxlog.protocol.messages.view import View


def forced_view(
    view: View, node: NodeId, log_id: str, state: MemberState, accepted: Vote | None
) -> View:
    """Return the view that a survivor forces: sole member, sole voter, a new log id.

    Its final queue is that of the value that the survivor accepted, if any: the others may have
    decided it and be in the next epoch, where they can add nothing without the survivor.  Otherwise
    it is everything that the survivor acquired.  The other places stay, without a vote.
    """
    roster = tuple(replace(seat, weight=1 if seat.node_id == node else 0) for seat in view.roster)
    ancestors = (*view.ancestors, (view.log_id, view.epoch))
    if accepted is not None:
        chosen = accepted.view
        base, tail, end, voided = chosen.base, chosen.tail, chosen.end, chosen.voided
        ancestors = (*ancestors, (chosen.log_id, chosen.epoch))
    else:
        queue = final_queue({node: state})
        base, tail, end, voided = queue.base, queue.tail, queue.end, ()
    return replace(
        view,
        log_id=log_id,
        epoch=ancestors[-1][1] + 1,
        roster=roster,
        members=(node,),
        base=base,
        tail=tail,
        end=end,
        ancestors=ancestors,
        voided=voided,
    )
