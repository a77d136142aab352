"""The replicas of all sites as this node sees them: reports, verdicts, plans, copies, catch-ups."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sparktxlog.attic.attic import CONTENT, OF_LAKE, Attic, Kind, entry_id
from sparktxlog.catchup.comparison import Cause, Comparison
from sparktxlog.catchup.planner import first_plan
from sparktxlog.codec.report_changes import ReportReceiver
from sparktxlog.delta.log_files import TablePlace
from sparktxlog.errors import (
    BusyError,
    InvalidRequestError,
    NotAppliedError,
    NotFoundError,
)
from sparktxlog.model.answers import ReportAnswer, SiteSignatures, SnapshotAnswer
from sparktxlog.model.copying import CopyTicket, Decision, Transfer
from sparktxlog.model.replicas import MAIN, replica_id
from sparktxlog.model.report import OwnReport, Recount, WorkerReport
from sparktxlog.runtime.commit.cycle import CoreLoop
from sparktxlog.runtime.commit.executor import AsideWrite
from sparktxlog.runtime.donors.copy_orders import CopyOrders
from sparktxlog.runtime.donors.donor import Donor
from sparktxlog.runtime.donors.donor_sizes import DonorSizes
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.log.published_log import PublishedLog
from sparktxlog.runtime.replicas.differences import Differences
from sparktxlog.runtime.replicas.judged_replicas import Replicas
from sparktxlog.runtime.replicas.lag_history import LagHistory
from sparktxlog.runtime.replicas.planning import Planning
from sparktxlog.runtime.replicas.registration import Registration
from sparktxlog.runtime.replicas.transfers import RunningCopy, Transfers, check_transfer

_MAX_WAIT_S = 300.0


class AllReplicas:
    """Judges the reports of workers and decides how replicas catch up; belongs to the event loop.

    **After calling** the constructor: run `watch_workers`, and `close` in the end.
    """

    def __init__(
        self,
        base: Foundation,
        core: CoreLoop,
        log: PublishedLog,
        replicas: Replicas,
        transfers: Transfers,
        donor: Donor,
        lake: TablePlace,
    ) -> None:
        self._base = base
        self._node_id = base.config.node_id
        self._core = core
        self._log = log
        self.replicas = replicas
        self._transfers = transfers
        self._donor = donor
        self._registration = Registration(base, replicas)
        #: Set for a moment when a replica moved.
        self._moved = asyncio.Event()
        #: Completes reports that contain only changes.
        self.reports = ReportReceiver()
        sizes = DonorSizes(base, lake, lakes=replicas.lakes, own_size=donor.size)
        self.planning = Planning(base, replicas, core.executor, sizes)
        self.copy_orders = CopyOrders(base, self.planning, donor)
        self.differences = Differences(base, replicas)
        self.lag = LagHistory(base, replicas, log.publisher.note_rows)

    async def watch_workers(self) -> None:
        """Notice silent workers soon, until cancelled."""
        pause_s = min(max(self._base.config.worker_dead_after / 4, 0.05), 5.0)

        async def watch() -> None:
            while True:
                await asyncio.sleep(pause_s)
                self.note_silent_workers()

        await self._base.supervisor.keep("watching workers", watch)

    async def close(self) -> None:
        """Cancel the requests under way."""
        await self.planning.close()

    # -- reports -----------------------------------------------------------------------------------

    async def take_report(self, report: OwnReport) -> ReportAnswer:
        """Take a report that a worker sent to this node; answer as `accept_report`.

        Raises:
            InvalidRequestError, StuckFilesError: As `Registration.take` (definite).
        """
        if report.node_id == self._node_id and (writes := await self._registration.take(report)):
            self._core.executor.write_then(writes, partial(self._registered, report.name))
        return self.accept_report(report.for_peers())

    def _registered(self, name: str) -> None:
        """Name a new replica to the peers: it is kept durably."""
        self.replicas.registered(name)
        self._donor.look(name)
        if self.replicas.named(name) is not None:
            self._pass_on(replica_id(self._node_id, name))

    def accept_report(self, report: WorkerReport) -> ReportAnswer:
        """Judge the report of a worker of this site: verdict, plan and reason; pass it on."""
        if report.node_id != self._node_id:
            return {
                "verdict": "FOREIGN",
                "plan": "stop",
                "reason": f"the report is of site {report.node_id!r}, this is {self._node_id!r}",
            }
        whole = self.reports.complete(report)
        if whole is None:
            reason = "this node does not have the report that this one is based on: send it whole"
            return {"verdict": "", "plan": "", "reason": reason}
        self.planning.learn_replay(whole.pace)
        answer = self._judge(whole, self._base.clock.now())
        # Unchanged reports are passed on too, so that all sites see which workers are alive.
        self._pass_on(whole.replica)
        return {**answer, "kept": report.label} if report.label else answer

    def accept_foreign_report(self, report: WorkerReport) -> bool:
        """Take a report of a peer's worker; False: its base is not kept here, send it whole.

        One of a replica for which there is no place is left out.
        """
        whole = self.reports.complete(report)
        if whole is None:
            return False
        if not self.replicas.has_room(whole):
            return True
        heard_at = 0 if whole.age_us < 0 else self._base.clock.now() - whole.age_us
        self._judge(replace(whole, age_us=0), heard_at)
        return True

    def keep_only(self, site: str, names: Collection[str]) -> None:
        """Forget the replicas of a peer's site that it does not name any more."""
        writes = self._log.holders.keep_only(site, names)
        if self.replicas.keep_only(site, names) or writes:
            self._core.executor.put([AsideWrite(writes=writes)])

    async def forget(self, name: str) -> None:
        """Forget a replica of this site, durably, also at the peers: it holds nothing back.

        Raises:
            NotFoundError: There is none of that name (definite).
            InvalidRequestError: Its worker runs (definite).
        """
        self._registration.check_forgettable(name)
        writes = self.replicas.unregister(name)
        writes += self._log.holders.keep_only(self._node_id, {MAIN, *self.replicas.lakes} - {name})
        await self._core.executor.write(writes)
        self.replicas.unregistered(name)
        for link in self._base.links.values():
            link.posts.tell()

    def judge_again(self) -> None:
        """Judge again the reports whose positions this node's queue has reached."""
        for report, heard_at in self.replicas.overtaken():
            self._judge(report, heard_at)

    def note_silent_workers(self) -> None:
        """Report workers of this site that went silent: log and metric."""
        found = self.replicas.newly_silent(self._base.clock.now())
        self._base.metrics.worker_silences.inc(len(found))

    async def take_recount(self, recount: Recount) -> ReportAnswer:
        """Keep the result of a full scan of this site's replica durably; answer as to a report.

        Raises:
            InvalidRequestError: It is of another site (definite).
        """
        if recount.node_id != self._node_id:
            raise InvalidRequestError(
                f"the recount is of site {recount.node_id[:80]!r}, this is {self._node_id!r}",
                hint="Send it to the node whose replica was counted.",
                field="node_id",
                value=recount.node_id[:80],
            )
        writes = self.replicas.take_recount(recount)
        state = self.replicas.own(recount.worker_id)
        if state is None:
            reason = f"no worker {recount.worker_id[:80]!r} of this site has reported yet"
            answer: ReportAnswer = {"verdict": "", "plan": "", "reason": reason}
        else:
            answer = self._judge(state.newest, state.heard_at)
            self._pass_on(state.report.replica)
        await self._core.executor.write(writes)
        return answer

    def _pass_on(self, replica: str) -> None:
        """Send the report of a worker of this site to the peers, with the results of recounts."""
        report = self.replicas.state(replica).report
        if report.name not in self.replicas.names():
            return  # it is not registered durably yet
        for link in self._base.links.values():
            link.posts.report([report])

    def _judge(self, report: WorkerReport, heard_at: int) -> ReportAnswer:
        holders = self._log.holders
        comparison, changed, writes = self.replicas.accept(report, heard_at)
        report = self.replicas.state(report.replica).report
        whole = self.replicas.sets.holds_all
        writes = [
            *writes,
            *holders.note(report, comparison.verdict, whole=whole(report.node_id)),
        ]
        answer = self._answer(report, comparison)
        turned = self.replicas.turned()
        writes += turned.writes
        for state in turned.states:
            writes += holders.note(
                state.report, state.comparison.verdict, whole=whole(state.report.node_id)
            )
            # So that its worker's next report finds a plan.
            self._answer(state.report, state.comparison)
        if writes:
            self._core.executor.put([AsideWrite(writes=writes)])
        if changed:
            self._log.publisher.note(report)
        if changed or turned.states:
            self._core.receipts.replicas_moved()
            self._moved.set()  # wakes those that wait now
            self._moved.clear()
        return answer

    def _answer(self, report: WorkerReport, comparison: Comparison) -> ReportAnswer:
        """Return the answer to a report; for a worker of this site with its plan."""
        if report.node_id != self._node_id:
            return {
                "verdict": comparison.verdict.value,
                "plan": first_plan(comparison).value,
                "reason": comparison.reason,
            }
        answer = self.planning.answer(report, comparison)
        if comparison.cause is Cause.ADMITTED:
            answer["of_tables"] = True
        if comparison.contest is not None:
            answer["contested"] = True
        if due := self.replicas.recount_due(report.name):
            answer["recount"] = due
        return answer

    def ask_recount(self, name: str, tables: Sequence[str]) -> tuple[str, list[str]]:
        """Have a worker of this site recount tables, as `Replicas.ask_recount`."""
        return self.replicas.ask_recount(name, tables, self._base.clock.now())

    # -- catch-ups ---------------------------------------------------------------------------------

    async def order_copy(
        self, worker_id: str, *, forced: bool, donor: str = "", failed: Collection[str] = ()
    ) -> CopyTicket:
        """Return the ticket for a copy of another replica, as `CopyOrders.order`."""
        ticket = await self.copy_orders.order(worker_id, forced=forced, donor=donor, failed=failed)
        self._transfers.started(
            RunningCopy(
                copy_id=ticket.copy_id,
                worker_id=worker_id,
                decision=ticket.decision,
                donors=(ticket.lease.replica,),
                started_at=self._base.clock.now(),
                position=ticket.lease.position,
            )
        )
        return ticket

    async def take_transfer(self, transfer: Transfer) -> None:
        """Keep the end of a catch-up durably; a repeat changes nothing.

        Raises:
            InvalidRequestError: It is of another site, or a number is out of bounds (definite).
        """
        check_transfer(transfer, self._node_id)
        new, writes = self._transfers.finished(transfer)
        if new:
            self.planning.learn_transfer(transfer)
            await self._core.executor.write(writes)

    # -- questions ---------------------------------------------------------------------------------

    def signatures(self, after: int, limit: int, replica: str = MAIN) -> SiteSignatures:
        """Return an own replica's signatures at the ends of its batches, positions ascending."""
        return {
            "node_id": self._node_id,
            "replicas": [
                {
                    "worker_id": state.report.worker_id,
                    "name": state.report.name,
                    "position": state.report.position,
                    "verdict": state.comparison.verdict.value,
                    "only": list(state.report.only),
                }
                for state in self.replicas.of_own_site()
            ],
            "signatures": [
                {
                    "position": report.position,
                    "chain_hash": report.chain_hash,
                    "tables": {
                        name: table.signature.to_text()
                        for name, table in sorted(report.tables.items())
                    },
                }
                for report in self.replicas.history(after, limit, replica)
            ],
        }

    async def snapshot(
        self,
        position: int | None,
        at_least: int,
        timeout: float,
        replica: str = "",
        table: str = "",
    ) -> SnapshotAnswer:
        """Return the table versions of a local replica at one position.

        Args:
            replica: Its name; empty = the most current one that holds the table.
            table: Empty = all tables, as far as one replica holds them.

        Raises:
            NotAppliedError: The replica has not reached it; fields have both positions (definite).
            NotFoundError: No replica has the name, or no batch ended at that position (definite).
            DivergedError: The replica differs from the log, with the reason; an earlier position
                can still be requested (definite).
            BusyError: The node stops (definite).
        """
        replicas, wanted = self.replicas, max(at_least, position or 0)
        names = [self._named(replica)] if replica else replicas.readable(table)
        kept = position is not None and any(replicas.snapshot(position, one) for one in names)
        if not kept:
            replicas.refuse_diverged(names[0])
            await self._wait(replica, table, wanted, min(timeout, _MAX_WAIT_S))
            names = names if replica else replicas.readable(table)
            names.sort(key=lambda one: replicas.applied_by(one) < wanted)
            replicas.refuse_diverged(names[0])
        if position is not None:
            names.sort(key=lambda one: replicas.snapshot(position, one) is None)
        name = names[0]
        applied = replicas.applied_by(name)
        if not kept and (applied < wanted or applied == 0):
            which = "the local replica" if name == MAIN else f"the local replica {name!r}"
            raise NotAppliedError(
                f"{which} has applied position {applied}, requested was {wanted}",
                hint="Run a worker: sparktxlog apply, or spark-submit.sh jobs/apply.py.",
                applied=applied,
                position=wanted,
            )
        report = replicas.snapshot(position, name)
        if report is None:
            raise NotFoundError(
                f"no batch of the local replica ended at position {position}",
                hint="Leave out the position to get the newest snapshot.",
                position=position,
                applied=applied,
            )
        places = await self._base.run_blocking(self._places_of, report, applied)
        return {
            "replica": name,
            "others": names[1:],
            "position": report.position,
            "chain_hash": report.chain_hash,
            "tables": {
                name: {
                    "version": table.version,
                    "signature": table.signature.to_text(),
                    "schema": table.schema,
                    "uri": str(places[name]),
                    "diverged": table.diverged,
                }
                for name, table in sorted(report.tables.items())
            },
        }

    def _named(self, name: str) -> str:
        """Return a name if a replica of this site has it; else raise NotFoundError (definite)."""
        known = [state.report.name for state in self.replicas.of_own_site()]
        if name not in known:
            raise NotFoundError(
                f"site {self._node_id} has no replica {name[:80]!r}",
                hint=f"It has {', '.join(known)}." if known else "No worker has reported yet.",
                replica=name[:80],
            )
        return name

    async def _wait(self, replica: str, table: str, wanted: int, timeout_s: float) -> None:
        """Wait until a replica that may be read has applied a position, or the timeout.

        Args:
            replica: Only this one; empty = one that holds the table.

        Raises:
            BusyError: The node stops (definite).
        """
        replicas = self.replicas
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not any(
                    replicas.applied_by(one) >= wanted
                    for one in ([replica] if replica else replicas.readable(table))
                ):
                    if self._base.ending.is_set():
                        raise BusyError("the node is stopping", hint="Read again when it is back.")
                    await self._moved.wait()

    def end_waits(self) -> None:
        """End all waits for replicas, after `ending` is set."""
        self._moved.set()

    def _places_of(self, report: WorkerReport, applied: int) -> dict[str, Path | str]:
        """Return where the tables of a report are now: some may be dropped since (P33)."""
        lake: Path | None = self._base.config.lake_dir
        url = self._base.config.lake_url
        if (named := self.replicas.lakes.get(report.name)) is not None:
            lake, url = (Path(named), None) if named.startswith("/") else (None, named)
        places: dict[str, Path | str] = {
            name: f"{url}/{name}" if url is not None or lake is None else lake / name
            for name in report.tables
        }
        for name, position in self._base.journal.read_drops(report.position).items():
            if name not in places:
                continue
            if url is not None or lake is None:
                if position <= applied:
                    entry = entry_id(Kind.DROPPED, name, str(position))
                    places[name] = f"{url}/{OF_LAKE}/{entry}/{CONTENT}"
                continue
            dropped = Attic.of_lake(lake).place(Kind.DROPPED, name, str(position))
            # A worker moves it before it reports that.
            if position <= applied or dropped.exists():
                places[name] = dropped
        return places

    # -- status ------------------------------------------------------------------------------------

    def status(self, now: int, *, tables: bool) -> list[dict[str, Any]]:
        """Return a line for each replica; `tables`: with its tables."""
        kept_after, published = self._base.kept_after.value, self._base.published.value
        until = min(published, self._base.master.status().rows_until)
        return [
            line
            | {
                "behind": published - line["position"] if line["position"] < until else 0,
                "needs_copy": line["position"] < kept_after,
            }
            | self._work_of(line, now)
            for line in (*self.replicas.status(now, tables=tables), *self._overrun_and_absent())
        ]

    def _work_of(self, line: dict[str, Any], now: int) -> dict[str, Any]:
        """Return plan and transfers of a replica: those of other sites are not known here."""
        worker_id = line["worker_id"] if line["node_id"] == self._node_id else ""
        plan = _plan_of(self.planning.held_plan(worker_id))
        return plan | self._transfers.of_worker(worker_id, now)

    def _overrun_and_absent(self) -> list[dict[str, Any]]:
        """Return lines of replicas that need a copy and have not reported since the start."""
        heard = {state.report.replica for state in self.replicas.states()}
        return [
            {
                "worker_id": holder.worker_id,
                "node_id": holder.node_id,
                "name": holder.name,
                "only": [],
                "position": holder.position,
                "chain_hash": "",
                "verdict": "",
                "reason": "",
                "age_s": None,
                "alive": False,
                "silent": False,
                "error": "",
                "engine": "",
                "table_count": 0,
            }
            for holder in self._log.holders.all()
            if holder.replica not in heard and holder.position < self._base.kept_after.value
        ]


def _plan_of(decision: Decision | None) -> dict[str, Any]:
    """Return the columns of a replica's line that show its plan."""
    if decision is None:
        return {"plan": None, "plan_reason": ""}
    return {"plan": decision.plan, "plan_reason": decision.reason}
