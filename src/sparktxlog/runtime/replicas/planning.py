"""Runs the planner: collects the inputs of `catchup.planner`, and logs its decisions.

    report ──► comparison (verdict) ─┬─► enough by itself: up to date, stop, nothing to weigh
                                     └─► question in the background ──► plan of the next report

The answer to a report never waits for a peer.  Donors are asked for sizes only if the decision may
need them, all at once, and the answers are used for some seconds; files that the target already has
cost nothing.  Each change of a decision is logged once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Any

import msgspec
import structlog

from sparktxlog.catchup.comparison import Cause, Comparison
from sparktxlog.catchup.donors import Candidate, choose_donors
from sparktxlog.catchup.estimates import ReplayPace, TransferPace, Workload
from sparktxlog.catchup.planner import (
    ALL_EMPTY,
    CATCH_UP,
    NO_SIZE,
    OUT_OF_SYNC,
    OUT_OF_SYNC_FORCED,
    Plan,
    PlanInput,
    decide,
    first_plan,
    log_lines,
    no_donor,
    wants_sizes,
)
from sparktxlog.errors import NotFoundError, TxLogError
from sparktxlog.model.answers import ReportAnswer
from sparktxlog.model.copying import CatchUpKind, Decision, Transfer
from sparktxlog.model.ids import LARGEST
from sparktxlog.model.report import ReplayCost, ReplicaVerdict, WorkerReport
from sparktxlog.runtime.commit.executor import AsideWrite, Executor
from sparktxlog.runtime.donors.donor_sizes import DonorSizes
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.replicas.backlog import Backlog
from sparktxlog.runtime.replicas.judged_replicas import JudgedReplica, Replicas
from sparktxlog.storage.interfaces import PutValue
from sparktxlog.supervision import KeyedTasks

_log = structlog.get_logger("sparktxlog.planning")

#: Seconds after which a decision for an unchanged verdict is taken again.
DECISION_S = 30.0
#: Least pause between two background questions: seconds, and times the last one's duration.
_PAUSE_S = 1.0
_PAUSE_FACTOR = 20.0
_REPLAY_PACE = "pace:replay"
_TRANSFER_PACE = "pace:transfer"
#: Donors whose sizes are asked for, and that are asked for a lease.
_MOST_DONORS = 3
#: Messages that are logged as warnings.
_WARNINGS = (OUT_OF_SYNC, OUT_OF_SYNC_FORCED, NO_SIZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A decision, and what it was made for."""

    kind: tuple[str, ...]
    #: Possible donors.
    donors: frozenset[str]
    decision: Decision
    #: Steady clock when it was ready, and how long it took, both in seconds.
    at: float
    took_s: float


class Planning:
    """Decides for the workers of this site; belongs to the event loop."""

    def __init__(
        self,
        base: Foundation,
        replicas: Replicas,
        executor: Executor,
        sizes: DonorSizes,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        config, saved = base.config, base.state.values
        self._base = base
        self._node_id = config.node_id
        self._dead_after_us = int(config.worker_dead_after * 1_000_000)
        self._replicas = replicas
        self._settings = base.settings
        self._backlog = Backlog(base.journal, config.signature_interval)
        self._links = base.links
        self._executor = executor
        self._sizes = sizes
        self._clock = clock
        self.replay_pace = _restored(ReplayPace, saved.get(_REPLAY_PACE))
        self.transfer_pace = _restored(TransferPace, saved.get(_TRANSFER_PACE))
        self._held: dict[str, _Held] = {}
        #: Worker → message, plan and verdict that were logged last.
        self._told: dict[str, tuple[str, ...]] = {}
        self._asking = KeyedTasks[str]()
        #: One decision at a time: they share caches and requests to donors.
        self._busy = asyncio.Lock()

    # -- reports -----------------------------------------------------------------------------------

    def answer(self, report: WorkerReport, comparison: Comparison) -> ReportAnswer:
        """Return the answer to a report of this site's worker, without waiting.

        If the plan needs estimates, it is made in the background; until then the verdict alone
        determines the answer: the worker replays, or stops and asks again.
        """
        plan, reason = first_plan(comparison), comparison.reason
        if plan in (Plan.UP_TO_DATE, Plan.STOP) and not report.irreparable:
            self._forget(report.worker_id)
        else:
            held = self._held.get(report.worker_id)
            donors = self._donors(report, comparison)
            if held is not None and not _still_holds(held, report, comparison, donors):
                held = None
            self._ask_again(report.worker_id, held)
            if held is not None:
                plan, reason = Plan(held.decision.plan), held.decision.reason
            elif plan is Plan.COPY and not donors:
                reason = f"{reason}; no copy: {self._nobody(report, comparison)}"
                plan = Plan.REPLAY if comparison.cause is Cause.ADMITTED else Plan.STOP
        return {"verdict": comparison.verdict.value, "plan": plan.value, "reason": reason}

    def _forget(self, worker_id: str) -> None:
        self._held.pop(worker_id, None)
        self._told.pop(worker_id, None)

    def _ask_again(self, worker_id: str, held: _Held | None) -> None:
        if worker_id in self._asking:
            return
        if held is not None:
            # Replays make progress, and an unreachable donor may have returned.
            weighed = held.decision.plan != Plan.REPLAY.value and held.decision.message != NO_SIZE
            pause_s = max(_PAUSE_S, _PAUSE_FACTOR * held.took_s, DECISION_S if weighed else 0.0)
            if self._clock() - held.at < pause_s:
                return
        self._asking.start(worker_id, partial(self._decide_aside, worker_id))

    async def _decide_aside(self, worker_id: str) -> None:
        try:
            await self.decide(worker_id)
        except TxLogError as error:
            _log.error("no plan", worker=worker_id, error=str(error))

    async def close(self) -> None:
        """End the questions under way."""
        await self._asking.close()
        await self._sizes.close()

    # -- decisions ---------------------------------------------------------------------------------

    async def decide(
        self, worker_id: str, forced: bool = False, donor: str = ""
    ) -> tuple[Decision, list[str]]:
        """Return the decision for a worker of this site and the donors, best first.

        Args:
            forced: An operator wants a copy, whatever the estimates are.
            donor: The only replica to copy from, even if others differ from it; empty = any.

        Raises:
            NotFoundError: No such worker of this site has reported (definite).
        """
        async with self._busy:
            began = self._clock()
            state = self.state(worker_id)
            decision, donors = await self._weigh(state, forced, donor)
            if not forced and not donor:
                self._held[worker_id] = _Held(
                    kind=_kind(state.report, state.comparison),
                    donors=frozenset(donors),
                    decision=decision,
                    at=self._clock(),
                    took_s=self._clock() - began,
                )
            self._tell(decision, state.comparison)
        return decision, donors

    async def look(self, worker: str | None) -> Decision:
        """Return the decision that would be made, for people; nothing is logged or started.

        Raises:
            NotFoundError: No such worker of this site has reported (definite).
        """
        async with self._busy:
            return (await self._weigh(self.state(worker), forced=False))[0]

    def held_plan(self, worker_id: str) -> Decision | None:
        """Return the latest decision for a worker, None if there is none."""
        held = self._held.get(worker_id)
        return None if held is None else held.decision

    def state(self, worker_id: str | None) -> JudgedReplica:
        """Return what is known of a worker of this site, None = of its main replica.

        Raises:
            NotFoundError: No such worker of this site has reported (definite).
        """
        state = self._replicas.own(worker_id)
        if state is None:
            who = "no worker" if worker_id is None else f"no worker {worker_id[:80]!r}"
            raise NotFoundError(
                f"{who} of this site has reported",
                hint="Run a worker: sparktxlog apply, or spark-submit.sh jobs/apply.py.",
                worker_id=worker_id,
            )
        return state

    async def _weigh(
        self, state: JudgedReplica, forced: bool, donor: str = ""
    ) -> tuple[Decision, list[str]]:
        report, comparison = state.report, state.comparison
        settings = self._settings.in_force
        donors = self._donors(report, comparison, forced=forced, named=donor)
        others = [s for s in self._replicas.states() if s.report.replica != report.replica]
        known = PlanInput(
            report=report,
            comparison=comparison,
            workload=await self._workload(report, comparison),
            donors=tuple(donors),
            contested=self._contested(report),
            replay_pace=self.replay_pace,
            transfer_pace=self.transfer_pace.configured(settings.net_speed_bits_per_sec),
            full_replication_time_factor=settings.full_replication_time_factor,
            min_time_to_consider_full_replication_s=settings.min_time_to_consider_full_replication_s,
            others_not_empty=self._others_not_empty(report),
            last_healthy=forced
            and comparison.verdict is ReplicaVerdict.IN_SYNC
            and not any(self._is_healthy(s) for s in others),
            asked_for=forced,
        )
        if wants_sizes(known):
            known = replace(
                known, missing_bytes=await self._sizes.missing(donors, report, again=forced)
            )
        decision = decide(known)
        silent = [donor for donor in donors if known.missing_bytes.get(donor) is None]
        return decision, [donor for donor in donors if donor not in silent] + silent

    def _nobody(self, report: WorkerReport, comparison: Comparison) -> str:
        """Return why there is no donor."""
        if comparison.verdict is ReplicaVerdict.EMPTY and not self._others_not_empty(report):
            return ALL_EMPTY
        return no_donor(self._contested(report))

    def _others_not_empty(self, report: WorkerReport) -> bool:
        """Return whether another replica that is in sync has applied anything."""
        return any(
            one.comparison.verdict is ReplicaVerdict.IN_SYNC and one.report.position > 0
            for one in self._replicas.states()
            if one.report.replica != report.replica
        )

    def _is_healthy(self, state: JudgedReplica) -> bool:
        return state.comparison.verdict is ReplicaVerdict.IN_SYNC

    def _donors(
        self,
        report: WorkerReport,
        comparison: Comparison,
        *,
        forced: bool = False,
        named: str = "",
    ) -> list[str]:
        candidates = []
        for state in self._replicas.states():
            link = self._links.get(state.report.node_id)
            own = state.report.node_id == self._node_id
            if state.report.replica == report.replica or (link is None and not own):
                continue
            theirs, sites = state.report.only, (state.report.node_id, report.node_id)
            if self._replicas.sets.lacks(theirs, report.only, at=sites[0], site=sites[1]):
                continue
            heard = (
                state.heard_at and self._base.clock.now() - state.heard_at <= self._dead_after_us
            )
            candidates.append(
                Candidate(
                    node_id=state.report.node_id,
                    worker_id=state.report.worker_id,
                    verdict=state.comparison.verdict,
                    position=state.report.position,
                    alive=bool(heard),
                    linked=own or (link is not None and link.up),
                    round_trip_s=(link and link.posts.round_trip_s) or 0.0,
                    contested=state.contested,
                    name=state.report.name,
                    here=own and state.report.position >= self._base.kept_after.value,
                )
            )
        # The position of a diverged, foreign or irreparable replica does not count.
        sound = comparison.verdict is ReplicaVerdict.IN_SYNC and not report.irreparable
        least = report.position if sound and not forced else 0
        return choose_donors(report.replica, least, candidates, _MOST_DONORS, named)

    def _contested(self, report: WorkerReport) -> tuple[str, ...]:
        """Return the other contested replicas, of which one may be right."""
        return tuple(
            state.report.replica
            for state in self._replicas.states()
            if state.contested and state.report.replica != report.replica
        )

    async def _workload(self, report: WorkerReport, comparison: Comparison) -> Workload | None:
        if comparison.verdict not in (ReplicaVerdict.IN_SYNC, ReplicaVerdict.EMPTY):
            return None
        published = self._base.published.value
        if report.position >= published:
            return Workload()
        found: Workload | None = await self._base.run_blocking(
            self._backlog.measure, report.worker_id, report.position, published, report.only
        )
        return found

    # -- messages ----------------------------------------------------------------------------------

    def _tell(self, decision: Decision, comparison: Comparison) -> None:
        """Log the messages of a decision, unless they are already logged."""
        lines = log_lines(decision)
        news = (decision.message, decision.plan, comparison.verdict.value)
        if not lines:
            self._told.pop(decision.worker_id, None)
            return
        if self._told.get(decision.worker_id) == news:
            return
        self._told[decision.worker_id] = news
        details: dict[str, Any] = {"worker": decision.worker_id, "plan": decision.plan}
        if decision.donor:
            details["donor"] = decision.donor
        for estimate in (decision.replay, decision.copy):
            if estimate is not None:
                details[f"estimated_{estimate.kind.value}_s"] = round(estimate.seconds, 3)
        warns = decision.message in _WARNINGS
        for line in lines:
            if line == decision.message and decision.message != CATCH_UP:
                details["reason"] = decision.reason
            (_log.warning if warns else _log.info)(line, **details)

    # -- learning ----------------------------------------------------------------------------------

    def learn_transfer(self, transfer: Transfer) -> None:
        """Learn from the end of a catch-up: its speed; old decisions are dropped."""
        self._forget(transfer.worker_id)
        self._sizes.forget()
        if transfer.kind is not CatchUpKind.COPY or transfer.outcome != "done":
            return
        fetched = transfer.size_bytes - transfer.reused_bytes
        donor = transfer.donors[0] if transfer.donors else ""
        pace = self.transfer_pace.learn(fetched, transfer.actual_s, donor, fetch_s=transfer.fetch_s)
        if pace != self.transfer_pace:
            self.transfer_pace = pace
            self._keep(_TRANSFER_PACE, pace)

    def learn_replay(self, cost: ReplayCost | None) -> None:
        """Learn from the cost of a worker's last batches; impossible values are ignored."""
        counts = (
            ()
            if cost is None
            else (
                cost.batches,
                cost.merges,
                cost.transactions,
                cost.appended_bytes,
                cost.merged_bytes,
            )
        )
        if cost is None or not all(0 <= count <= LARGEST for count in counts):
            return
        pace = self.replay_pace.learn(Workload.of(cost), cost.seconds)
        if pace != self.replay_pace:
            self.replay_pace = pace
            self._keep(_REPLAY_PACE, pace)

    def _keep(self, name: str, pace: ReplayPace | TransferPace) -> None:
        write = PutValue(name=name, value=msgspec.msgpack.encode(pace))
        self._executor.put([AsideWrite(writes=[write])])


def _kind(report: WorkerReport, comparison: Comparison) -> tuple[str, ...]:
    """Return what must stay equal for a decision to stay valid while the replica advances."""
    return (
        comparison.verdict.value,
        comparison.cause.value,
        report.irreparable,
        report.copied_from,
    )


def _still_holds(
    held: _Held, report: WorkerReport, comparison: Comparison, donors: Sequence[str]
) -> bool:
    if held.kind != _kind(report, comparison) or held.donors != frozenset(donors):
        return False
    # A replica with half of its former backlog was copied, or replays faster than expected.
    return 2 * comparison.behind >= held.decision.behind


def _restored(kind: Any, value: bytes | None) -> Any:
    if not value:
        return kind()
    try:
        return msgspec.msgpack.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        _log.warning("a saved pace cannot be read, learning it again", why=str(error))
        return kind()
