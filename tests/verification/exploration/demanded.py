"""A master that starts ballots when the exploration wants it to, instead of by patience (P13).

Who starts an epoch change and when is the only thing replaced: suspicion, probes and deadlines
decide nothing here, so every moment is a possible one.  What follows is the core's.
"""

from __future__ import annotations

from sparktxlog.protocol.epoch.outcomes import Outcomes
from sparktxlog.protocol.epoch.proposer import Intent
from sparktxlog.protocol.epoch.succession import Succession
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.recovery import MasterConfig, RecoveredState
from sparktxlog.protocol.messages.view import Phase

#: Phases in which a node may start a ballot.
PROPOSES = frozenset({Phase.NORMAL, Phase.SUSPECT, Phase.WEDGED})


class DemandedSuccession(Succession):
    """Starts a ballot on demand, and none by itself."""

    #: Start a ballot in the next step: True = it waits for quorums only, False = for all
    #: members; together they cover every set of members that may answer.
    wish: bool | None = None

    def work(self, now: int) -> Outcomes:
        """Drive the own ballot, or start the one that is demanded."""
        wish, self.wish = self.wish, None
        if wish is not None:
            yield from self._propose(self._demanded(wish, now), now)
        elif self.proposer is not None:
            yield from self._drive(self.proposer, now)

    def _demanded(self, hurry: bool, now: int) -> Intent:
        view = self._current.view
        ready = self.admission.ready(view, now)
        others = set(view.members) - {self._config.node_id}
        return Intent(
            absent=frozenset(others if hurry else ready.keys()),
            excluded=self._excluded,
            joiners=ready,
        )


class DemandedMaster(Master):
    """The core with ballots on demand."""

    def __init__(
        self, config: MasterConfig, state: RecoveredState, now: int, wall: int | None = None
    ) -> None:
        super().__init__(config, state, now, wall)
        self._succession.__class__ = DemandedSuccession
        self.demand(None)

    def demand(self, hurry: bool | None) -> None:
        """Start a ballot with the next event; None = start none."""
        succession = self._succession
        assert isinstance(succession, DemandedSuccession)
        succession.wish = hurry
