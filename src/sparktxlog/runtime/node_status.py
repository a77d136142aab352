"""The state of a node as `/v1/status` and `sparktxlog status` show it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from sparktxlog.config import exposures
from sparktxlog.config.maintenance_times import lasts
from sparktxlog.model.administration_answers import GroupLine
from sparktxlog.model.answers import (
    FailingTask,
    IncomingRunAnswer,
    OperatorWarning,
    StatusAnswer,
    SynchronousWaits,
    UndecidedAnswer,
    Wait,
)
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.transactions.marks import Undecided
from sparktxlog.model.transactions.receipt import Appliers
from sparktxlog.protocol.messages.view import Phase
from sparktxlog.protocol.order.status import Awaited, AwaitReason, MasterStatus
from sparktxlog.runtime.clock import wall_us
from sparktxlog.runtime.commit.cycle import CoreLoop
from sparktxlog.runtime.commit.damage import Damage
from sparktxlog.runtime.commit.run_fetching import RunFetcher
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.groups.group_states import group_lines, group_warnings
from sparktxlog.runtime.log.published_log import PublishedLog
from sparktxlog.runtime.loop_threads import stuck_warnings
from sparktxlog.runtime.membership.membership import Membership
from sparktxlog.runtime.membership.sites_data import SitesData
from sparktxlog.runtime.replicas.all_replicas import AllReplicas

#: Most undecided transactions that a status lists, which is asked for often.
_MOST_LISTED = 20


class NodeStatus:
    """Combines what the owners of a node say of themselves; used on the event loop."""

    def __init__(
        self,
        base: Foundation,
        core: CoreLoop,
        membership: Membership,
        log: PublishedLog,
        all_replicas: AllReplicas,
        fetcher: RunFetcher,
        damage: Damage,
        sites_data: SitesData,
    ) -> None:
        self._base = base
        self._core = core
        self._membership = membership
        self._log = log
        self._all_replicas = all_replicas
        self._fetcher = fetcher
        self._damage = damage
        self._commit_tables = sites_data.commit_tables
        self._sites_data = sites_data

    def incoming(self, limit: int) -> list[IncomingRunAnswer]:
        """Return the first runs in negotiation, in the agreed order, and what each waits for."""
        now = self._base.clock.now()
        return [
            {
                "origin": run.header.origin,
                "incarnation": run.header.incarnation,
                "seq": run.header.seq,
                "n": run.header.n,
                "ts": run.header.ts,
                "digest": run.header.digest.hex(),
                "size_bytes": run.header.size_bytes,
                "staged_bytes": run.header.staged_bytes,
                "acquired": run.acquired,
                "since_us": max(0, now - run.since),
                "waits": [_wait(item, now) for item in run.waits],
            }
            for run in self._base.master.incoming(limit)
        ]

    def show(self, *, tables: bool = False) -> StatusAnswer:
        """Return the node's status: queues, peers, missing nodes, replicas.

        Args:
            tables: List the tables of each replica, possibly 10,000, and all commit tables; else
                only their number, and commit tables that are not in sync.
        """
        base, membership, log = self._base, self._membership, self._log
        replicas, damage = self._all_replicas.replicas, self._damage
        status, now = base.master.status(), base.clock.now()
        epochs, failure, alarm = membership.epochs, log.publisher.failure, self._core.cycle.halted
        halted, undecided = status.halted, base.master.undecided
        if alarm is not None and not halted:
            halted = alarm.text
        until = base.settings.in_force.maintenance_until
        shown = {
            "node_id": status.node_id,
            "paused": base.settings.in_force.paused,
            "maintenance_until": until if lasts(until, wall_us()) else "",
            "warnings": self._warnings(now),
            **self._sites_data.shown(),
            "undelivered": damage.runs(),
            "damaged_files": damage.files(),
            "stuck_files": base.stuck_files(),
            **epochs.view(),
            **self._own_part(),
            **membership.versions(),
            # The core does not know failures outside of it.
            **({"phase": Phase.FAULT.value, "phase_reason": halted} if halted else {}),
            "reachability": epochs.reachability(),
            "position": base.ordered.value,
            "chain_hash": status.chain_hash.hex(),
            "chain_position": status.position,
            "published": base.published.value,
            "kept_after": base.kept_after.value,
            "rows_until": status.rows_until,
            "applied": replicas.applied(Appliers()),
            "incoming_runs": status.incoming_runs,
            "incoming_transactions": status.incoming_transactions,
            "incoming_bytes": status.incoming_bytes,
            "unstamped_runs": status.unstamped_runs + self._core.cycle.gathered_runs,
            "counter": status.counter,
            "acquired": status.acquired,
            "busy": status.busy,
            "round": status.round,
            "empty_rounds": status.empty_rounds,
            "halted": halted or None,
            "following": epochs.following(),
            **membership.joining.shown(),
            **log.space.shown(),
            **membership.aside.shown(),
            "synchronous": _synchronous(status, now),
            "waiting_for": [_wait(item, now) for item in status.waiting_for],
            "peers": membership.peers(status, now),
            "replicas": self._all_replicas.status(now, tables=tables),
            "log_bytes": log.pruning.log_bytes(),
            "clock_distance_us": status.clock_distance_us,
            "fetching": len(self._fetcher),
            "publish_lag_us": log.lag.age_us,
            "publish_waiting": log.lag.waiting,
            "publish_failure": None if failure is None else str(failure),
            "failing": self._failing(),
            "task_failures": base.supervisor.total,
            "wall": wall_us(),
            "undecided": len(undecided),
            "prepared": _undecided(undecided[:_MOST_LISTED]),
            "commit_tables": self._commit_tables.show(tables=tables),
            "stores": base.metrics.store_uses(),
        }
        return cast(StatusAnswer, shown)  # tests/service/test_answers.py holds both together

    def _failing(self) -> list[FailingTask]:
        return [
            {"task": one.name, "text": str(one.error), "times": one.times}
            for one in self._base.supervisor.failing()
        ]

    def _own_part(self) -> dict[str, bool]:
        """Return what only this node knows of its part in the cluster, for readiness."""
        return {
            "takes_part": self._membership.epochs.takes_part,
            "only_joins": self._membership.joining.only_joins,
            "stopping": self._base.ending.is_set(),
        }

    def _warnings(self, now: int) -> list[OperatorWarning]:
        certificate = self._base.certificate
        return [
            *self._membership.epochs.warnings(),
            *self._membership.strangers.warnings(self._base.links.values(), now),
            *self._all_replicas.replicas.warnings(now),
            *self._damage.warnings(),
            *stuck_warnings(self._base.stuck_files()),
            *self._log.lag.warnings(),
            *self._commit_tables.warnings(),
            *self._sites_data.warnings(),
            *group_warnings(self.groups()),
            *(certificate.warnings() if certificate is not None else ()),
            *exposures(self._base.config),
        ]

    def groups(self) -> list[GroupLine]:
        """Return the groups of sites, and which of these are away (P41)."""
        master = self._base.master
        away = {*master.status().suspects}
        return group_lines(master.tables, [m for m in master.view.members if m not in away])

    def prepared(self) -> list[UndecidedAnswer]:
        """Return all prepared transactions that are undecided, in the order of the queue."""
        return _undecided(self._base.master.undecided)


def _undecided(found: Iterable[Undecided]) -> list[UndecidedAnswer]:
    return [
        {
            "transaction_id": transaction_id_to_text(one.transaction_id),
            "position": one.position,
            "origin": one.origin,
            "participants": list(one.participants),
            "missing": list(one.missing),
            "valid_until": one.valid_until,
        }
        for one in found
    ]


def _synchronous(status: MasterStatus, now: int) -> SynchronousWaits:
    def age_us(since: int | None) -> int | None:
        return None if since is None else max(0, now - since)

    found = status.synchronous
    return {
        "waiting_runs": found.waiting_runs,
        "waiting": found.waiting,
        "size_bytes": found.size_bytes,
        "oldest_us": age_us(found.oldest_since),
        "needs": found.needs,
        "missing": [one.peer for one in status.waiting_for if one.why is AwaitReason.COPY],
        "unconfirmed_runs": found.unconfirmed_runs,
        "unconfirmed": found.unconfirmed,
        "lag_us": age_us(found.unconfirmed_since),
        "unconfirmed_by": list(found.unconfirmed_by),
    }


def _wait(item: Awaited, now: int) -> Wait:
    behind = (
        None
        if item.key is None
        else dict(zip(("epoch", "ts", "origin", "seq"), item.key, strict=True))
    )
    found = {
        "peer": item.peer,
        "why": item.why.value,
        "since_us": max(0, now - item.since),
        "behind": behind,
    }
    return cast(Wait, found)
