"""The latest plans for this site's replica: what was chosen, why, and what it took.

The planner keeps a decision only as long as it holds.  People ask later why a copy was made, so the
journal keeps the latest `HISTORY` choices in a ring of named values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sparktxlog.model.copying import Decision, MadePlan, Transfer
from sparktxlog.storage.interfaces import Write
from sparktxlog.storage.journal.value_ring import ValueRing

#: Plans that are kept.
HISTORY = 200
_PREFIX = "plan:"


class PlanHistory:
    """Plans that were made at this site; belongs to the event loop."""

    def __init__(self, saved: Mapping[str, bytes], node_id: str) -> None:
        self._node_id = node_id
        self._ring = ValueRing[MadePlan](_PREFIX, HISTORY, MadePlan, saved)

    def made(self, decision: Decision, now_us: int) -> list[Write]:
        """Note a decision; return the writes that keep it.

        The same choice again, for a replica that goes on, only brings its figures up to date.
        """
        number, last = self._last(decision.worker_id)
        plan = MadePlan(
            worker_id=decision.worker_id,
            node_id=self._node_id,
            plan=decision.plan,
            reason=decision.reason,
            message=decision.message,
            behind=decision.behind,
            replay_s=None if decision.replay is None else decision.replay.seconds,
            replay_basis="" if decision.replay is None else decision.replay.basis,
            copy_s=None if decision.copy is None else decision.copy.seconds,
            copy_basis="" if decision.copy is None else decision.copy.basis,
            donor=decision.donor,
            decided_at=now_us,
        )
        if last is not None and not last.transfer_id and _choice(last) == _choice(plan):
            # Not worth a write: it is one choice.
            self._ring.entries[number] = replace(plan, decided_at=last.decided_at)
            return []
        return [self._ring.add(plan)[1]]

    def ended(self, transfer: Transfer) -> list[Write]:
        """Note what the plan of a catch-up took; return the writes that keep it."""
        for number, plan in reversed(self._ring.entries.items()):
            mine = (plan.worker_id, plan.plan) == (transfer.worker_id, transfer.kind.value)
            if mine and not plan.transfer_id:
                done = replace(
                    plan,
                    transfer_id=transfer.transfer_id,
                    actual_s=transfer.actual_s,
                    outcome=transfer.outcome,
                )
                return [self._ring.put(number, done)]
        return []

    def latest(self, limit: int) -> list[MadePlan]:
        """Return the latest plans, newest first."""
        return self._ring.newest_first()[:limit]

    def _last(self, worker_id: str) -> tuple[int, MadePlan | None]:
        for number, plan in reversed(self._ring.entries.items()):
            if plan.worker_id == worker_id:
                return number, plan
        return -1, None


def _choice(plan: MadePlan) -> tuple[str, str, str]:
    return plan.plan, plan.message, plan.donor
