"""The parts of a running node, and the sums over them: status, reports, forgetting."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, cast

from sparktxlog.catchup.comparison import Comparison
from sparktxlog.catchup.planner import first_plan
from sparktxlog.codec.report_changes import ReportReceiver
from sparktxlog.config import NodeConfig
from sparktxlog.model.answers import ReportAnswer, StatusAnswer
from sparktxlog.model.copying import Decision, Transfer
from sparktxlog.model.report import Recount, WorkerReport
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.order.status import MasterStatus, PeerStatus
from sparktxlog.protocol.words.versions import OLDEST, deciders
from sparktxlog.protocol.words.view import Phase
from sparktxlog.runtime.clock import Clock, wall_us
from sparktxlog.runtime.commit.cycle import Cycle
from sparktxlog.runtime.commit.damage import Damage
from sparktxlog.runtime.commit.executor import AsideWrite, Executor
from sparktxlog.runtime.commit.fetching import Fetcher
from sparktxlog.runtime.commit.holdings import Holdings
from sparktxlog.runtime.commit.receipts import Receipts
from sparktxlog.runtime.commit.voiding import Voiding
from sparktxlog.runtime.donors.copy_orders import Copies
from sparktxlog.runtime.donors.donor import Donor
from sparktxlog.runtime.fleet.planning import Planning
from sparktxlog.runtime.fleet.replicas import Replicas
from sparktxlog.runtime.fleet.transfers import Transfers
from sparktxlog.runtime.log.forgetting import forgettable
from sparktxlog.runtime.log.publisher import Publisher
from sparktxlog.runtime.log.retention import Holders, Limits, RetentionView
from sparktxlog.runtime.membership.epochs import Epochs
from sparktxlog.runtime.membership.founding import newest_version
from sparktxlog.runtime.membership.joining import Joining
from sparktxlog.runtime.membership.members import Membership
from sparktxlog.runtime.metrics import Metrics
from sparktxlog.runtime.progress import Progress
from sparktxlog.runtime.settings import RunTimeSettings
from sparktxlog.storage.interfaces import ForgetPayloads, Write
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.storage.payloads.payload_store import PayloadStore
from sparktxlog.supervision import Supervisor
from sparktxlog.transport.greeting import Greeter
from sparktxlog.transport.peers import PeerLink
from sparktxlog.transport.signing import Signer, Verifier

_HOUR_US = 3_600_000_000
#: A copy that has not ended by then keeps the log no more: its worker gave up silently.
_LONGEST_COPY_US = 24 * _HOUR_US


@dataclass(slots=True, kw_only=True, eq=False)
class Parts:
    """Everything a node is made of; wired once by `wiring`, owned by the event loop."""

    config: NodeConfig
    instance: str
    front: Journal
    payloads: PayloadStore
    clock: Clock
    master: Master
    holdings: Holdings
    receipts: Receipts
    executor: Executor
    cycle: Cycle
    links: dict[str, PeerLink]
    fetcher: Fetcher
    replicas: Replicas
    settings: RunTimeSettings
    planning: Planning
    transfers: Transfers
    donor: Donor
    copies: Copies
    publisher: Publisher
    greeter: Greeter
    signer: Signer
    verifier: Verifier | None
    metrics: Metrics
    #: Data that is damaged or gone.
    damage: Damage
    supervisor: Supervisor
    ordered: Progress
    published: Progress
    #: Positions up to here are expired.
    kept_after: Progress
    #: Who keeps the log: the last report of each member's replica.
    holders: Holders
    membership: Membership
    epochs: Epochs
    joining: Joining
    voiding: Voiding
    #: Runs blocking reads of the front.
    readers: ThreadPoolExecutor
    #: Completes reports of which only changes came.
    reports: ReportReceiver = field(default_factory=ReportReceiver)
    #: Which payloads the front was told to forget last.
    forgotten: ForgetPayloads | None = None
    #: Where other nodes stood when they last showed it.
    last_positions: dict[str, int] = field(default_factory=dict)
    #: Set when the node begins to stop.
    ending: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def stopping(self) -> bool:
        """Whether the node takes nothing new, since it stops."""
        return self.ending.is_set()

    # -- reports -----------------------------------------------------------------------------------

    def take_report(self, report: WorkerReport) -> ReportAnswer:
        """Judge a report of this site's worker and pass it on to the peers."""
        self.planning.learn_replay(report.pace)
        answer = self._judge(report, self.clock.now())
        # Unchanged ones travel as well, so that all sites see who is alive.
        self._pass_on(report.worker_id)
        return answer

    def _pass_on(self, worker_id: str) -> None:
        """Tell the peers of a worker of this site, with what recounts found."""
        report = self.replicas.state(worker_id).report
        for link in self.links.values():
            link.report([report])

    def watch_workers(self) -> None:
        """Tell of workers of this site that went silent: log, metric, a row in `log/workers`."""
        for report in self.replicas.newly_silent(self.clock.now()):
            self.metrics.worker_silences.inc()
            state = self.replicas.state(report.worker_id)
            verdict, reason = state.comparison.verdict.value, "the worker is silent"
            reason += f"; its last error: {report.error}" if report.error else ""
            # Of its tables nothing is new.
            self.publisher.note((replace(report, tables={}), verdict, "", reason))

    def take_foreign_report(self, report: WorkerReport) -> None:
        """Take in a peer's worker report, or its latest one when the link comes up."""
        heard_at = 0 if report.age_us < 0 else self.clock.now() - report.age_us
        self._judge(replace(report, age_us=0), heard_at)

    def judge_again(self) -> None:
        """Judge reports anew that this node's queue has caught up with."""
        for report, heard_at in self.replicas.overtaken():
            self._judge(report, heard_at)

    def take_recount(self, recount: Recount) -> tuple[ReportAnswer, list[Write]]:
        """Take in what a full scan found; return what becomes of the replica, and what to keep."""
        writes = self.replicas.take_recount(recount)
        state = self.replicas.own(recount.worker_id)
        if state is None:
            reason = f"no worker {recount.worker_id[:80]!r} of this site has reported yet"
            return {"verdict": "", "plan": "", "reason": reason}, writes
        answer = self._judge(state.told, state.heard_at)
        self._pass_on(recount.worker_id)
        return answer, writes

    def take_transfer(self, transfer: Transfer) -> AsideWrite | None:
        """Take in the end of a catch-up; return what is to be kept of it, None if it is known."""
        new, writes = self.transfers.finished(transfer)
        if not new:
            return None
        self.planning.learn_transfer(transfer)
        self.publisher.note_transfer(transfer)
        return AsideWrite(writes=writes)

    def _judge(self, report: WorkerReport, heard_at: int) -> ReportAnswer:
        comparison, changed, writes = self.replicas.accept(report, heard_at)
        report = self.replicas.state(report.worker_id).report
        writes = [*writes, *self.holders.note(report, comparison.verdict)]
        answer = self._answer(report, comparison)
        turned = self.replicas.turned()
        writes += turned.writes
        for state in turned.states:
            writes += self.holders.note(state.report, state.comparison.verdict)
            self._note(state.report, self._answer(state.report, state.comparison))
        if writes:
            self.executor.put([AsideWrite(writes=writes)])
        if changed:
            self._note(report, answer)
        if changed or turned.states:
            self.receipts.replicas_moved()
        return answer

    def _answer(self, report: WorkerReport, comparison: Comparison) -> ReportAnswer:
        """Return what is to become of a replica; for one of this site, what its worker is told."""
        if report.node_id != self.config.node_id:
            return _answer_of(comparison)
        answer = self.planning.answer(report, comparison)
        if comparison.contest is not None:
            answer["contested"] = True
            answer["recount"] = self.replicas.recount_due(report.worker_id)
        return answer

    def _note(self, report: WorkerReport, answer: ReportAnswer) -> None:
        self.publisher.note((report, answer["verdict"], answer["plan"], answer["reason"]))

    # -- forgetting --------------------------------------------------------------------------------

    def forget_payloads(self) -> None:
        """Tell the front what nobody needs any more."""
        posted = {str(peer.peer): peer.position for peer in self.master.status().peers}
        for node_id, position in posted.items():
            # After a start, and in a new epoch, nothing is known of a peer until it posts.
            self.last_positions[node_id] = max(position, self.last_positions.get(node_id, 0))
        write = forgettable(
            self.master.view,
            self.config.node_id,
            self.master.incarnation,
            posted=posted,
            shown=self.last_positions,
            published=self.published.value,
            kept_after=self.kept_after.value,
            keep_bytes=self.config.rejoin_keep_bytes,
        )
        if write.position and write != self.forgotten:
            self.forgotten = write
            self.holdings.release(write.position)
            self.executor.put([AsideWrite(writes=[write])])

    def note_position(self, node_id: str, position: int) -> None:
        """Note where a node says it stands that asks for the queue or for admission."""
        self.last_positions[node_id] = position

    def retention_view(self) -> RetentionView:
        """Return what decides how much of the log is kept."""
        settings = self.settings
        return RetentionView(
            published=self.published.value,
            kept_after=self.kept_after.value,
            peers={
                peer.peer: peer.position
                for peer in self.master.status().peers
                if peer.peer in self.master.view.members
            },
            holders=self.holders.all(),
            limits=Limits(
                transactions=settings.tx_log_max_size,
                age_us=int(settings.tx_log_max_depth_h * _HOUR_US),
                size_bytes=settings.tx_log_max_bytes,
            ),
            now_us=wall_us(),
            copies=self.transfers.positions(self.clock.now() - _LONGEST_COPY_US),
        )

    # -- status ------------------------------------------------------------------------------------

    def status(self, *, tables: bool = False) -> StatusAnswer:
        """Return the master's view for `/v1/status`; with all replicas' tables if asked for."""
        status, now = self.master.status(), self.clock.now()
        halted = status.halted
        if self.cycle.halted is not None and not halted:
            halted = self.cycle.halted.text
        shown = {
            "node_id": status.node_id,
            "paused": self.settings.paused,
            "warnings": [
                *self.epochs.warnings(), *self.replicas.warnings(now), *self.damage.warnings()
            ],
            "undelivered": self.damage.runs(),
            "damaged_files": self.damage.files(),
            **self.epochs.view(), **self._versions(),
            # The core does not know what the shell found, or does not run.
            **({"phase": Phase.FAULT.value, "phase_reason": halted} if halted else {}),
            "reachability": self.epochs.reachability(),
            "position": self.ordered.value,
            "chain_hash": status.chain_hash.hex(),
            "chain_position": status.position,
            "published": self.published.value,
            "kept_after": self.kept_after.value,
            "applied": self.replicas.applied(1),
            "incoming_runs": status.incoming_runs,
            "incoming_transactions": status.incoming_transactions,
            "incoming_bytes": status.incoming_bytes,
            "unstamped_runs": status.unstamped_runs,
            "counter": status.counter,
            "busy": status.busy,
            "round": status.round,
            "empty_rounds": status.empty_rounds,
            "halted": halted or None,
            **self.joining.shown(),
            "disk_full": self.executor.disk_full,
            "waiting_for": [
                {
                    "peer": item.peer,
                    "why": item.why.value,
                    "since_us": max(0, now - item.since),
                    "behind": None if item.key is None else {
                        "epoch": item.key[0], "ts": item.key[1],
                        "origin": item.key[2], "seq": item.key[3],
                    },
                }
                for item in status.waiting_for
            ],
            "peers": self._peers(status, now),
            "replicas": [
                line
                | {"needs_copy": line["position"] < self.kept_after.value}
                | _plan_of(self.planning.held_plan(line["worker_id"]))
                | self.transfers.of_worker(line["worker_id"], now)
                for line in (
                    *self.replicas.status(now, tables=tables), *self._overrun_and_absent()
                )
            ],
            "log_bytes": self.log_bytes(),
            "clock_distance_us": status.clock_distance_us,
            "fetching": len(self.fetcher),
            "publish_failure": None if self.publisher.failure is None
            else str(self.publisher.failure),
            "failing": [
                {"task": one.name, "text": str(one.error), "times": one.times}
                for one in self.supervisor.failing()
            ],
            "task_failures": self.supervisor.total,
            "wall": wall_us(),
        }  # fmt: skip
        return cast(StatusAnswer, shown)  # tests/service/test_answers.py holds both together

    def _versions(self) -> dict[str, Any]:
        """Return the wire version in force, what this node speaks, and who keeps it back (P31)."""
        view, newest = self.master.view, newest_version(self.config)
        links = {node: self.links[node] for node in deciders(view) if node in self.links}
        older = {
            str(node): {"newest": link.newest, "linked": link.up}
            for node, link in sorted(links.items())
            if not (link.up and link.newest >= newest)
        }
        return {
            "wire_version": view.version,
            "wire_versions": [OLDEST, newest],
            "wire_version_waits_for": older if view.version < newest else {},
        }

    def _overrun_and_absent(self) -> list[dict[str, Any]]:
        """Return lines of members' replicas that need a copy and were not heard since the start."""
        heard = {state.report.node_id for state in self.replicas.states()}
        return [
            {
                "worker_id": holder.worker_id, "node_id": holder.node_id,
                "position": holder.position, "chain_hash": "", "verdict": "", "reason": "",
                "age_s": None, "alive": False, "silent": False, "error": "", "engine": "",
                "table_count": 0,
            }
            for holder in self.holders.all()
            if holder.node_id not in heard and holder.position < self.kept_after.value
        ]  # fmt: skip

    def log_bytes(self) -> int:
        """Return the bytes of the log: front, its Delta tables and the payload store."""
        pruning = self.publisher.pruning
        return self.front.size_bytes() if pruning is None else pruning.log_bytes()

    def _peers(self, status: MasterStatus, now: int) -> list[dict[str, Any]]:
        """Return a line for each other node with a place; little is known of non-members."""
        known = {peer.peer: peer for peer in status.peers}
        found = []
        for seat in self.master.view.roster:
            link = self.links.get(seat.node_id)
            if link is None:
                continue
            peer = known.get(seat.node_id) or PeerStatus(
                peer=seat.node_id, linked=link.up, last_post_at=None, silent=False, round=0,
                counter=-1, last_seq=0, position=self.last_positions.get(seat.node_id, 0),
                busy=False, known_of_me=None,
            )  # fmt: skip
            member = seat.node_id in self.master.view.members
            found.append(self._peer(peer, link, now) | {"member": member, "witness": seat.witness})
        return found

    @staticmethod
    def _peer(peer: PeerStatus, link: PeerLink, now: int) -> dict[str, Any]:
        return {
            "id": peer.peer,
            "url": link.url,
            "linked": link.up,
            "wire_version": link.version if link.up else None,
            "addresses": link.addresses(),
            "round_trip_s": None if link.round_trip_s is None else round(link.round_trip_s, 6),
            "reason": link.reason,
            "silent": peer.silent,
            "last_post_at": peer.last_post_at,
            "age_s": None if peer.last_post_at is None
            else round((now - peer.last_post_at) / 1e6, 3),
            "counter": peer.counter,
            "last_seq": peer.last_seq,
            "position": peer.position,
            "round": peer.round,
            "busy": peer.busy,
            "acquired": peer.acquired,
            "clock_offset_us": peer.clock_offset_us,
            "sent_bytes": link.traffic.sent_bytes,
            "received_bytes": link.traffic.received_bytes,
            "fetched_bytes": link.traffic.fetched_bytes,
            "posts": link.traffic.posts,
            "post_bytes_max": link.traffic.post_bytes_max,
            "pushes_dropped": link.traffic.pushes_dropped,
        }  # fmt: skip

    def run_blocking(self, work: Any, *args: Any) -> asyncio.Future[Any]:
        """Run a blocking read in the readers' threads."""
        return asyncio.get_running_loop().run_in_executor(self.readers, work, *args)


def _answer_of(comparison: Comparison) -> ReportAnswer:
    return {
        "verdict": comparison.verdict.value,
        "plan": first_plan(comparison).value,
        "reason": comparison.reason,
    }


def _plan_of(decision: Decision | None) -> dict[str, Any]:
    """Return the columns of a replica's line that say what was planned for it."""
    if decision is None:
        return {"plan": None, "plan_reason": ""}
    return {"plan": decision.plan, "plan_reason": decision.reason}
