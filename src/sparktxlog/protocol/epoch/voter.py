"""A voter's durable state in the decision after the current epoch (protocol P14, P17, Paxos)."""

from __future__ import annotations

from sparktxlog.protocol.messages.balloting import BallotState, Vote
from sparktxlog.protocol.messages.view import Ballot, View


class Voter:
    """Promises and accepts; the caller makes `state` durable before it answers.

    Args:
        epoch: Epoch that the decision ends.
        state: What was durable; of another epoch it counts for nothing.
    """

    __slots__ = ("accepted", "epoch", "promised")

    def __init__(self, epoch: int, state: BallotState | None = None) -> None:
        self.epoch = epoch
        self.promised = Ballot()
        self.accepted: Vote | None = None
        if state is not None and state.epoch == epoch:
            self.promised, self.accepted = state.promised, state.accepted

    @property
    def state(self) -> BallotState:
        """The state that must be durable before an answer is sent."""
        return BallotState(epoch=self.epoch, promised=self.promised, accepted=self.accepted)

    def promise(self, ballot: Ballot) -> bool:
        """Promise to join no lower ballot; False if a higher one was promised."""
        if ballot < self.promised:
            return False
        self.promised = ballot
        return True

    def accept(self, ballot: Ballot, view: View) -> bool:
        """Accept a value; False if a higher ballot was promised."""
        if ballot < self.promised:
            return False
        self.promised = ballot
        self.accepted = Vote(ballot=ballot, view=view)
        return True
