"""What all owners of a node share: settings, durable state, core, clock and threads.

All of it is made before the first owner is built, and nothing is added later.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import structlog

from sparktxlog.codec.containers.runs import RunLimits
from sparktxlog.config import NodeConfig, make_data_dir
from sparktxlog.errors import DiskFullError, StorageError, TxLogError
from sparktxlog.model.answers import StuckFiles
from sparktxlog.model.tables.groups import is_held_at
from sparktxlog.model.tables.table import Tables
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.recovery import MasterConfig
from sparktxlog.runtime.clock import Clock
from sparktxlog.runtime.commit_tables.site_places import payloads_of
from sparktxlog.runtime.leaving_fork.leftover_log import (
    buckets_unseen,
    find_remains,
    find_remains_in_buckets,
    journal_lost,
)
from sparktxlog.runtime.loop_threads import FileThreads, LoopThreads
from sparktxlog.runtime.membership.data_owner import claim, refuse_older
from sparktxlog.runtime.membership.founding import check_version, core_config, found, with_log_id
from sparktxlog.runtime.membership.join_orders import JoinOrder, join_order
from sparktxlog.runtime.membership.standings import (
    INSTANCE,
    begin_as_another,
    count_start,
    kept_standings,
)
from sparktxlog.runtime.metrics import Metrics
from sparktxlog.runtime.reached_position import ReachedPosition
from sparktxlog.runtime.run_traces import RunTraces
from sparktxlog.runtime.settings import RunTimeSettings
from sparktxlog.runtime.tokens.budgets import Budgets
from sparktxlog.storage.interfaces import JournalState, PutValue
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.storage.payloads.payload_store import PayloadStore
from sparktxlog.storage.reserve import Reserve
from sparktxlog.supervision import Supervisor
from sparktxlog.transport.node_certificate import NodeCertificate
from sparktxlog.transport.peer_link import PeerLink

_log = structlog.get_logger("sparktxlog.node")

#: Set if a new journal was found next to the rest of a log.
_ONLY_JOINS = "only-joins"
_US = 1_000_000
#: Elements of a long list that are looked at before the event loop does other work.
SLICE = 64
_T = TypeVar("_T")


async def in_slices(found: Sequence[_T]) -> AsyncIterator[Sequence[_T]]:
    """Yield `SLICE` elements at a time: there may be 10,000, and others wait for the loop."""
    for first in range(0, len(found), SLICE):
        yield found[first : first + SLICE]
        await asyncio.sleep(0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Foundation:
    """Values that the owners of a node share; made by `lay_foundation` on the event loop."""

    config: NodeConfig
    journal: Journal
    #: What the journal held at the start.
    state: JournalState
    #: The order to join a log; None = this node has a log, or founds one.
    order: JoinOrder | None
    #: Why this node must not found a log although it has none; None = it may.
    remains: StorageError | None
    core: MasterConfig
    master: Master
    clock: Clock
    payloads: PayloadStore
    reserve: Reserve
    #: None = this node speaks no TLS.
    certificate: NodeCertificate | None
    settings: RunTimeSettings
    metrics: Metrics
    #: What tokens share.
    budgets: Budgets
    #: End of the queue that is durable here, of its published part, and of its expired part.
    ordered: ReachedPosition
    published: ReachedPosition
    kept_after: ReachedPosition
    loop: asyncio.AbstractEventLoop
    #: Set to the error after which the node must stop; `StartAgainError` = start again.
    failed: asyncio.Future[TxLogError]
    #: Spans of transactions; None = nobody asked for them.
    traces: RunTraces | None = None
    #: Set when the node begins to stop and takes nothing new.
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    supervisor: Supervisor = field(default_factory=Supervisor)
    #: Runs blocking reads of the journal.
    readers: LoopThreads = field(default_factory=lambda: LoopThreads(4, "journal-reader"))
    #: Run work on files that Spark sessions write.  The more threads there are, the more they
    #: contend for the interpreter; the fewer, the longer small work waits for that on large files.
    filers: FileThreads = field(default_factory=lambda: FileThreads(8, "shared-files", 4))
    #: The same for files that clients staged, each of which is read before it is accepted.
    stagers: FileThreads = field(default_factory=lambda: FileThreads(8, "staged-files"))
    #: The same for files that peers send, which wait for the network too.
    fetchers: FileThreads = field(default_factory=lambda: FileThreads(4, "fetching"))
    #: Links to the other nodes, by id; `Membership` fills it.
    links: dict[str, PeerLink] = field(default_factory=dict)

    def run_blocking(self, work: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run a blocking read in the readers' threads."""
        return self.readers.run(work, *args)

    def run_on_files(
        self, place: str | Path, work: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run blocking work on files in a directory of Spark sessions; see `FileThreads`."""
        return self.filers.run(place, work, *args)

    def stuck_files(self) -> list[StuckFiles]:
        """Return where work on files does not come back."""
        return [
            one for threads in (self.filers, self.stagers, self.fetchers) for one in threads.stuck()
        ]

    def sources(self) -> list[PeerLink]:
        """Return the links to ask for files, linked ones first; a follower asks only some (P38)."""
        pulling = self.master.pulling
        named = tuple(self.links) if pulling is None else pulling.sources()
        found = [self.links[node] for node in named if node in self.links]
        return sorted(found, key=lambda link: not link.up)

    @property
    def run_limits(self) -> RunLimits:
        """What one run may have at this node."""
        config = self.config
        return RunLimits(
            transactions=config.run_limit_transactions, size_bytes=config.run_limit_bytes
        )

    def holds(self, table: str) -> bool:
        """Return whether this site holds the rows of a table; of one that is not known it does."""
        known = Tables.of(self.master.tables).known(table)
        return is_held_at(known, self.config.node_id)

    def fail(self, error: TxLogError) -> None:
        """Make the node stop; the first error counts."""
        if not self.failed.done():
            self.failed.set_result(error)

    def is_fresh(self) -> bool:
        """Return whether this node has nothing of the log: no queue, runs or decided view."""
        master = self.master
        return (
            self.state.core.view is None
            and master.view.epoch == self.core.epoch
            and master.base.position == 0
            and not master.incoming(1)
            and not master.status().unstamped_runs
        )


def lay_foundation(config: NodeConfig) -> Foundation:
    """Open the data directory and recover the core; call it on the event loop.

    Raises:
        ConfigError: The data directory cannot be made or is another node's, the log has other
            members, or a certificate cannot be used (definite).
        LockedError: Another process owns the data directory (definite).
        CorruptLogError: The journal is damaged.
        JournalLostError: The journal is new, but there is the rest of a log (definite).
        StoreNotReadyError: The journal is new, and a bucket cannot be asked for such (definite).
        NewerReleaseError: A newer release wrote it (definite).
        MissingDependencyError: tracing-endpoint is set without the extra `otel` (definite).
    """
    certificate = NodeCertificate.of(config)
    make_data_dir(config)
    refuse_older(config)
    reserve = Reserve(config.data_dir)
    try:
        return _opened(config, reserve, certificate)
    except DiskFullError:
        if not reserve.take():
            raise
        return _opened(config, reserve, certificate)


def _opened(
    config: NodeConfig, reserve: Reserve, certificate: NodeCertificate | None
) -> Foundation:
    journal = Journal(
        config.data_dir, id_window=config.id_window, id_window_us=int(config.id_window_time * _US)
    )
    try:
        return _recovered(config, journal, reserve, certificate)
    except BaseException:
        journal.close()
        raise


def _recovered(
    config: NodeConfig, journal: Journal, reserve: Reserve, certificate: NodeCertificate | None
) -> Foundation:
    window = 1 if config.is_witness else config.id_window
    state = journal.load(window)
    order = join_order(state.values)
    if order is not None:
        journal.write(begin_as_another(config.node_id, order.incarnation, state, journal))
        state = journal.load(window)
    start, counted = count_start(state.values)
    check_version(config, state.core, config.data_dir)
    remains = _find_remains(config, journal, state, order)
    founding = [*claim(config, state, joins=order is not None), *found(config, state.values)]
    if INSTANCE not in state.values:
        founding.append(PutValue(name=INSTANCE, value=str(uuid.uuid4()).encode()))
    journal.write([counted, *founding])
    state = replace(
        state,
        values=state.values | {write.name: write.value for write in founding},
        core=replace(state.core, standings=kept_standings(state.values)),
    )
    config = with_log_id(config, state.core.view, order, state.values)
    settings = RunTimeSettings(config, state.values)
    core = replace(
        core_config(config, order=order, incarnation=state.incarnation, values=state.values),
        start=start,
        boot=str(uuid.uuid4()),
        synchro_timeout_us=int(settings.in_force.synchro_timeout * _US),
    )
    reserve.make()
    metrics, clock, loop = Metrics(), Clock(state.core.reserved), asyncio.get_running_loop()
    return Foundation(
        config=config,
        journal=journal,
        state=state,
        order=order,
        remains=remains,
        core=core,
        master=Master(core, state.core, clock.now(), clock.wall()),
        clock=clock,
        payloads=payloads_of(config, metrics),
        reserve=reserve,
        certificate=certificate,
        settings=settings,
        metrics=metrics,
        budgets=Budgets(config, metrics),
        ordered=ReachedPosition(state.core.base.position),
        published=ReachedPosition(state.published),
        kept_after=ReachedPosition(state.kept_after),
        loop=loop,
        failed=loop.create_future(),
        traces=RunTraces.of(config),
    )


def _find_remains(
    config: NodeConfig, journal: Journal, state: JournalState, order: JoinOrder | None
) -> StorageError | None:
    """Return why a node with a new journal must not found a log, if it may only join one.

    Raises:
        JournalLostError: It has no peers whose log it could join.
        StoreNotReadyError: The same, and nobody knows whether it had a log (definite).
    """
    new = INSTANCE not in state.values or _ONLY_JOINS in state.values
    if not new or order is not None or state.core.view or state.core.base.position:
        return None
    in_buckets, away = find_remains_in_buckets(config)
    found = [*find_remains(config), *in_buckets]
    if not found and away is None:
        return None
    lost = journal_lost(config, found) if found or away is None else buckets_unseen(config, away)
    if not config.peers:
        raise lost
    # The next start finds the instance, so it could not know that the journal was new.
    journal.write([PutValue(name=_ONLY_JOINS, value=b"1")])
    _log.error("this node only joins a log that a peer has", reason=str(lost))
    return lost
