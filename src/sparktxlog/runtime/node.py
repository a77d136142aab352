"""A node: it builds its owners, starts and stops them, and combines their answers.

The node itself decides nothing: the core orders, the journal keeps state, the publisher writes the
queue table, workers apply.  All methods belong to the event loop; blocking work runs in threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import structlog

from sparktxlog import __version__
from sparktxlog.config import SECRETS, NodeConfig, exposures
from sparktxlog.config.maintenance_times import is_open
from sparktxlog.errors import BusyError, CommitStateUnknownError, StorageError, TxLogError
from sparktxlog.health.readiness import Check, readiness, whole
from sparktxlog.model.administration_answers import SettingValue
from sparktxlog.model.answers import InfoAnswer
from sparktxlog.model.tables.commit_table import CommitTable
from sparktxlog.model.tables.table import Tables
from sparktxlog.model.transactions.conditions import TableWrites
from sparktxlog.protocol.messages.events import SynchroTimeoutSet
from sparktxlog.runtime.clock import wall_us
from sparktxlog.runtime.commit.acceptance import Submits
from sparktxlog.runtime.commit.cycle import CoreLoop
from sparktxlog.runtime.commit.damage import Damage
from sparktxlog.runtime.commit.delivery import Delivery
from sparktxlog.runtime.commit.file_repair import FileRepair
from sparktxlog.runtime.commit.log_time import LogTime
from sparktxlog.runtime.commit.open_transactions import OpenTransactions
from sparktxlog.runtime.commit.run_fetching import RunFetcher
from sparktxlog.runtime.commit.void_request import Voiding
from sparktxlog.runtime.commit_tables.commit_catalog import CommitCatalog
from sparktxlog.runtime.commit_tables.row_tables import RowTables
from sparktxlog.runtime.commit_tables.several_commits import SeveralCommits
from sparktxlog.runtime.commit_tables.site_places import bucket_of_lake, lake_of
from sparktxlog.runtime.commit_tables.table_descriptions import TableDescriptions
from sparktxlog.runtime.donors.copy_throttle import CopyThrottle
from sparktxlog.runtime.donors.donor import Donor
from sparktxlog.runtime.foundation import Foundation, lay_foundation
from sparktxlog.runtime.history.node_history import NodeHistory
from sparktxlog.runtime.history.wait_history import MOST, WaitHistory
from sparktxlog.runtime.leaving_fork.branch_hook import BranchHook
from sparktxlog.runtime.log.published_log import PublishedLog
from sparktxlog.runtime.membership.epochs import duty_master
from sparktxlog.runtime.membership.membership import Membership
from sparktxlog.runtime.membership.sites_data import SitesData
from sparktxlog.runtime.membership.standings import INSTANCE
from sparktxlog.runtime.metrics import StatusMetrics
from sparktxlog.runtime.node_status import NodeStatus
from sparktxlog.runtime.peering import Peering
from sparktxlog.runtime.replicas.all_replicas import AllReplicas
from sparktxlog.runtime.replicas.judged_replicas import Replicas
from sparktxlog.runtime.replicas.transfers import Transfers
from sparktxlog.runtime.state_files import StateFiles
from sparktxlog.runtime.store_taking import StoreTaking
from sparktxlog.runtime.tokens.worker_token import worker_token_file
from sparktxlog.runtime.view_rows import ViewRows
from sparktxlog.storage.log_tables.history_tables import last_rounds
from sparktxlog.transport.kept_connections import KeptConnections

_log = structlog.get_logger("sparktxlog.node")

#: Seconds after which the core begins at the latest; earlier if all peers were greeted once.
_TRIED_S = 1.0
#: Latest epochs and catch-ups in the views of the state.
_MOST_RECORDS = 1_000


def build_node(
    config: NodeConfig, connections: Callable[[], KeptConnections] = KeptConnections
) -> Node:
    """Open the data directory and build a node; call it on the event loop, then `start`.

    Raises:
        LockedError: Another process owns the data directory (definite).
        CorruptLogError: The journal is damaged.
        JournalLostError: The journal is new, but there is the rest of a log (definite).
    """
    base = lay_foundation(config)
    try:
        return Node(base, connections())
    except BaseException:
        base.journal.close()
        raise


class Node:
    """One member of the cluster.

    **After calling** `start`: await `failed`, and `stop` in any case.
    """

    def __init__(self, base: Foundation, connections: KeptConnections) -> None:
        self.base = base
        self._connections = connections
        self._tasks: list[asyncio.Task[None]] = []
        self.config, self.payloads, self.failed = base.config, base.payloads, base.failed
        throttle = CopyThrottle(base.config.replication_donor_share)
        transfers = Transfers(base.state.values)
        self.damage = Damage()
        self.replicas = Replicas(base)
        self.core = CoreLoop(base, self.replicas, throttle)
        self.membership = Membership(base, self.core, self.replicas)
        #: Epochs, for operators.
        self.epochs = self.membership.epochs
        self.log = PublishedLog(base, self.core, self.membership, transfers)
        core, log, lake = self.core, self.log, lake_of(base.config, base.metrics)
        opened = partial(bucket_of_lake, base.config)
        self.donor = donor = Donor(base, self.replicas, throttle, lake, opened)
        self.all_replicas = AllReplicas(base, core, log, self.replicas, transfers, donor, lake)
        self.fetcher = RunFetcher(base, self.core.holdings, self.membership, self.damage)
        self.files = FileRepair(base, self.core, self.fetcher, self.damage)
        self.membership.joining.fetch_files = self.files.fetch_prepared
        self.voiding = Voiding(base, self.membership.epochs, self.files)
        self._submits = Submits(base, core, self.membership, self.replicas, log.lag, log.space)
        self._log_time = LogTime(base, self.core.cycle, self._submits)
        self._taking = StoreTaking(
            base, "asking the payload store", base.payloads.place, base.payloads.take
        )
        #: Commit tables, for Spark's catalogs.
        self.catalog = CommitCatalog(
            base, self.core, self._submits, self.files, self.fetcher, throttle
        )
        #: Transactions over several of them.
        self.several_commits = SeveralCommits(base, self._submits, self.catalog)
        #: Row tables, as the same catalogs show them.
        self.row_tables = RowTables(base, lake, self.replicas, opened)
        #: What both kinds of tables are.
        self.descriptions = TableDescriptions(base, self.row_tables, self.catalog)
        self.open_transactions = OpenTransactions(base.budgets)
        self.peering = Peering(base, self.core, self.membership, self.all_replicas)
        self._delivery = Delivery(
            base, self.core, self.membership, self.log, self.fetcher, self.files
        )
        #: What this site and the others hold of the data.
        reports = self.all_replicas
        self.sites_data = SitesData(base, self.membership, reports, self.catalog.overview)
        shown = NodeStatus(
            base, core, self.membership, log, reports, self.fetcher, self.damage, self.sites_data
        )
        self.status, self.prepared, self.incoming = shown.show, shown.prepared, shown.incoming
        #: What the order waited for, and how the node was in the last day.
        self.waits = WaitHistory(base, self.log.publisher.note_rows)
        self.history = NodeHistory(base, self.status, lambda: reports.lag.seconds)
        self._show_metrics()

        # Routes call the owners directly.
        self.reach, self.reach_for_submit = self._submits.reach, self._submits.reach_for_submit
        self.submit, self.submit_run = self._submits.submit, self._submits.submit_run
        self.find, self.find_decided = self._submits.find, self._submits.find_decided
        self.judged = self._submits.judged
        self.repeated, self.survivals = self._submits.repeated, self.sites_data.survivals
        self.published, self.segments, self.commits = log.published, log.segments, log.commits
        self.queue, self.maintain, self.groups = log.queue, log.maintain, shown.groups
        self.accept_report, self.take_recount = reports.accept_report, reports.take_recount
        self.order_copy, self.take_transfer = reports.order_copy, reports.take_transfer
        self.signatures, self.snapshot = reports.signatures, reports.snapshot
        self.plan, self.transfers = reports.planning.look, transfers.latest
        self.settings, self.audit = base.settings.show, self.core.audit
        #: All this as tables, and for readers by SQL as files.
        self.views = ViewRows(base, self._answers())
        self.state_files = StateFiles(base, self.views)

    def _show_metrics(self) -> None:
        metrics, certificate = self.base.metrics, self.base.certificate
        metrics.registry.register(StatusMetrics(self.status))
        if certificate is not None:
            metrics.show_end_of_certificate(lambda: certificate.contexts.expires_at)

    def _answers(self) -> dict[str, Callable[[], Any]]:
        """Return what answers the questions of which views of the state are made."""
        return {
            "status": self.status,
            "status_with_tables": lambda: self.status(tables=True),
            "info": self.info,
            "descriptions": self.descriptions.all,
            "commit_tables": self.catalog.overview.listed,
            "prepared": self.prepared,
            "incoming": lambda: self.incoming(_MOST_RECORDS),
            "survival": self.survivals,
            "differences": self.all_replicas.differences.named,
            "settings": self.settings,
            "audit": self.audit.latest,
            "transfers": lambda: self.transfers(_MOST_RECORDS),
            "epochs": lambda: self.epochs.history.latest(_MOST_RECORDS),
        }

    # -- start and end -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the core, the links and the publisher.

        Raises:
            JournalLostError: The journal lacks what the queue table holds.
            NewerReleaseError: A later release wrote the queue table (definite).
            ConfigError: A bucket of the site cannot be used (definite).
        """
        base, config, view = self.base, self.config, self.base.master.view
        publishes = not config.is_witness and not self.membership.joining.only_joins
        if publishes:
            await self.log.open()
        if not config.is_witness:
            await self.donor.start()
            if config.payload_url is None:
                await self.catalog.taking.start()
            else:
                await asyncio.gather(self.catalog.taking.start(), self._taking.start())
        self._run("executor", self.core.executor.run(self._delivery))
        secrets = {one.key: getattr(config, one.attribute) for one in SECRETS}
        self.audit.note_secrets(secrets, base.state.values[INSTANCE])
        self._run("core", self._run_core())
        self._run("watching workers", self.all_replicas.watch_workers())
        self._run("watching waits", self.waits.watch())
        self._run("watching the disk", self.membership.aside.watch())
        if base.certificate is not None:
            self._run("watching certificates", base.certificate.watch(base.supervisor))
        if config.fork_hook is not None:
            self._run("reconciling branches", BranchHook(base, config.fork_hook).watch())
        if not config.is_witness:
            rounds = await base.run_blocking(last_rounds, config.data_dir, MOST)
            self.waits.remember(rounds)
            self._run("measuring lag", self.all_replicas.lag.watch(self.catalog.overview.listed))
            self._run("measuring the node", self.history.watch())
            self._run("log time", self._log_time.watch())
            self._run("writing views of the state", self.state_files.watch())
            self._run("taking the store of commit tables", self.catalog.taking.watch())
            if config.payload_url is not None:
                self._run("taking the payload store", self._taking.watch())
            self._run("placing commits", self.catalog.placer.watch())
            self._run("telling what is held", self.sites_data.watch())
            self._run("noting placed commits", self.catalog.placer.settle())
            self._run("following commit tables", self.catalog.reader_tables.watch())
            self._run("recounting commit tables", self.catalog.schedule.watch())
        self.membership.start(self._connections)
        if publishes:
            self.log.start(self.all_replicas)
        _log.info(
            "started",
            node=config.node_id,
            url=config.master_url,
            log_id=view.log_id,
            position=base.ordered.value,
            published=base.published.value,
            phase=base.master.phase.value,
            epoch=view.epoch,
            members=list(view.members),
            quorum=view.quorum,
        )
        for warning in (*self.membership.epochs.warnings(), *exposures(config)):
            _log.warning(warning["text"], code=warning["code"])

    async def _run_core(self) -> None:
        await self.membership.settled(_TRIED_S)
        await self.core.cycle.run(self._delivery)

    def _run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self.failed.done():
            return
        error = task.exception()
        if not isinstance(error, TxLogError):
            _log.critical("unexpected end of a task", task=task.get_name(), exc_info=error)
            error = StorageError(f"{task.get_name()} ended: {error!r}")
        else:
            _log.critical("the node must stop", error=str(error))
        self.base.fail(error)

    def begin_stop(self) -> None:
        """Take no more submits; waiting clients get an unknown outcome."""
        self.base.ending.set()
        self.audit.close()
        self.core.cycle.fail_waiting(BusyError("the node is stopping"))
        self.core.receipts.close(
            CommitStateUnknownError(
                "the node is stopping", hint="Ask for the transaction's id when it is back."
            )
        )
        self.all_replicas.end_waits()
        self.base.published.release()
        self.base.ordered.release()

    async def stop(self) -> None:
        """Stop cleanly; nothing accepted is lost."""
        self.begin_stop()
        self.open_transactions.close()
        self.base.budgets.close()
        owners = (
            *(self.membership, self._delivery, self.catalog.fetcher, self.fetcher, self.files),
            *(self.all_replicas, self.donor, self.catalog.placer),
        )
        for owner in owners:
            await owner.close()
        if not self.config.is_witness:
            await self.log.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._connections.close()
        self.core.close()
        self.base.readers.close()
        for threads in (self.base.filers, self.base.stagers, self.base.fetchers):
            threads.close()
        self.base.journal.close()
        if self.base.traces is not None:
            await asyncio.to_thread(self.base.traces.close)
        _log.info("stopped", node=self.config.node_id)

    # -- questions ---------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Where `tables`, `writes` and `commit_tables` hold: the end of the core's queue.

        The position of `info` follows a moment later, when the disk has it.
        """
        return self.base.master.base.position

    def tables(self) -> Mapping[str, Any]:
        """Return the tables at `end`."""
        return self.base.master.tables

    def tables_before(self, position: int) -> Mapping[str, Any]:
        """Return the tables as they were before a position; in a thread."""
        return Tables.of(self.base.journal.read_definitions(position - 1))

    def writes(self, table: str) -> TableWrites:
        """Return what was written to a table up to `end`."""
        return self.base.master.writes(table)

    def commit_tables(self) -> list[CommitTable]:
        """Return the commit tables at this node's position, by name (P36)."""
        return list(self.base.master.commit_tables.values())

    def commit_table(self, uuid: str) -> CommitTable | None:
        """Return the commit table with a UUID, None = there is none at this node's position."""
        return self.base.master.commit_tables.get(uuid)

    async def change_settings(self, changes: Mapping[str, Any]) -> dict[str, SettingValue]:
        """Change settings durably, all or none; return as `settings`.

        Raises:
            InvalidRequestError: Unknown key or wrong value (definite).
            DiskFullError: Nothing at all can be written (definite).
        """
        self.log.space.check_writes()
        shown = await self.base.settings.change(changes, self.core.executor.write)
        timeout_us = int(self.base.settings.in_force.synchro_timeout * 1_000_000)
        self.core.cycle.tell_always(SynchroTimeoutSet(timeout_us=timeout_us))
        self.log.lag.release()
        return shown

    @property
    def log_id(self) -> str:
        """The log whose positions this node reports; `force` begins a new one."""
        return self.base.master.view.log_id

    def info(self) -> InfoAnswer:
        """Return names, limits and directories for clients and workers."""
        config, base, view = self.config, self.base, self.base.master.view
        return {
            "node_id": config.node_id,
            "master_url": config.master_url,
            "cluster": config.cluster,
            "log_id": config.log_id,
            "epoch": view.epoch,
            "phase": self.epochs.phase.value,
            "members": list(view.members),
            "quorum": view.quorum,
            "duty": duty_master(view, base.master.status().suspects),
            "restricted": self.membership.epochs.restriction.shown(),
            "position": base.ordered.value,
            "published": base.published.value,
            "kept_after": base.kept_after.value,
            "payload_root": str(config.payload_dir),
            "payload_url": config.payload_url,
            "lake_root": str(config.lake_dir),
            "lake_url": config.lake_url,
            "replica_lakes": dict(sorted(self.replicas.lakes.items())),
            "commit_table_root": str(config.commit_table_dir),
            "reader_table_root": None
            if config.reader_table_dir is None
            else str(config.reader_table_dir),
            "log_root": str(config.data_dir / "log"),
            "commit_table_dir": str(config.commit_table_dir),
            "commit_table_url": config.commit_table_url,
            "backup_dir": None if config.backup_dir is None else str(config.backup_dir),
            "version": __version__,
            "inline_limit": config.inline_limit,
            "run_limit_bytes": config.run_limit_bytes,
            "run_limit_transactions": config.run_limit_transactions,
            "signature_interval": config.signature_interval,
            "worker_heartbeat": config.worker_heartbeat,
            "verify_interval": config.verify_interval,
            "worker_token_file": str(worker_token_file(config.data_dir)),
            "maintenance_open": is_open(base.settings.in_force.maintenance_windows, wall_us()),
        }

    def ready(self, *, data: bool = False) -> list[Check]:
        """Return the checks of this node; it is ready if all are good.

        Args:
            data: Ask, too, whether its site has all data that the others count on it to have.
        """
        status = self.status()
        return [*readiness(status), *([whole(status)] if data else [])]
