"""Building a node from its parts."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import structlog

from sparktxlog import __version__
from sparktxlog.codec.wire import Hello, speaking
from sparktxlog.config import NodeConfig
from sparktxlog.errors import FrontLostError, OutdatedError, TxLogError
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.words.actions import Action, Alarm, TellPhase
from sparktxlog.protocol.words.events import Event, LinkChanged, PayloadArrived
from sparktxlog.protocol.words.messages import RunHeader
from sparktxlog.protocol.words.view import Phase, View
from sparktxlog.runtime.clock import Clock
from sparktxlog.runtime.commit.cycle import Cycle
from sparktxlog.runtime.commit.damage import Damage
from sparktxlog.runtime.commit.delivery import Delivery
from sparktxlog.runtime.commit.executor import AsideWrite, Executor
from sparktxlog.runtime.commit.fetching import Fetcher
from sparktxlog.runtime.commit.holdings import Holdings, OwnRun
from sparktxlog.runtime.commit.receipts import Receipts
from sparktxlog.runtime.commit.voiding import Voiding
from sparktxlog.runtime.donors.copy_orders import Copies
from sparktxlog.runtime.donors.copy_throttle import Turns
from sparktxlog.runtime.donors.donor import Donor
from sparktxlog.runtime.donors.donor_sizes import DonorSizes
from sparktxlog.runtime.fleet.backlog import Backlog
from sparktxlog.runtime.fleet.planning import Planning
from sparktxlog.runtime.fleet.replicas import LogEnds, Replicas
from sparktxlog.runtime.fleet.transfers import Transfers
from sparktxlog.runtime.giving_way.leftover_log import find_remains, front_lost
from sparktxlog.runtime.giving_way.unverified_history import Keeper
from sparktxlog.runtime.log.epoch_history import EpochHistory
from sparktxlog.runtime.log.pruning import Pruning
from sparktxlog.runtime.log.publisher import Publisher
from sparktxlog.runtime.log.retention import Holders, RetentionView
from sparktxlog.runtime.membership.ancestry import Ancestry
from sparktxlog.runtime.membership.epochs import Epochs
from sparktxlog.runtime.membership.founding import check_version, core_config, found, with_lineage
from sparktxlog.runtime.membership.joining import Joining, join_order
from sparktxlog.runtime.membership.members import Membership, places_of
from sparktxlog.runtime.membership.queue_snapshots import SnapshotTaker
from sparktxlog.runtime.membership.quiet_moment import Calm
from sparktxlog.runtime.membership.standings import (
    INSTANCE,
    PEER_INSTANCE,
    begin_as_another,
    count_start,
    kept_standings,
)
from sparktxlog.runtime.metrics import Metrics
from sparktxlog.runtime.parts import Parts
from sparktxlog.runtime.progress import Progress
from sparktxlog.runtime.running import RunningNode
from sparktxlog.runtime.settings import RunTimeSettings
from sparktxlog.storage.interfaces import JournalState, PutValue, Write
from sparktxlog.storage.journal.journal import PRIVATE, Journal
from sparktxlog.storage.payloads.local_store import LocalPayloadStore
from sparktxlog.supervision import Supervisor
from sparktxlog.transport.addresses import AddressCheck, check_interval_s, found_addresses
from sparktxlog.transport.exchange import OpenSession, open_session
from sparktxlog.transport.greeting import Greeter
from sparktxlog.transport.peers import PeerLink
from sparktxlog.transport.signing import Signer, Verifier

_log = structlog.get_logger("sparktxlog.node")

#: Set where a new front was found beside what is left of a log.
_ONLY_JOINS = "only-joins"
#: Peers' payloads that wait for the core, and durable payloads kept in memory, bytes.
_FOREIGN_BYTES = 128 << 20
_CACHE_BYTES = 16 << 20
_US = 1_000_000


def build_node(config: NodeConfig, session: OpenSession = open_session) -> RunningNode:
    """Open the data directory and wire a node; call it on the event loop, then `start`.

    Raises:
        LockedError: Another process owns the data directory (definite).
        CorruptLogError: The front is damaged.
    """
    config.data_dir.mkdir(PRIVATE, parents=True, exist_ok=True)
    front = Journal(
        config.data_dir, id_window=config.id_window, id_window_us=int(config.id_window_time * _US)
    )
    try:
        return _Builder(config, front, session).build()
    except BaseException:
        front.close()
        raise


class _Builder:
    """Wires one node; attributes are the parts that others refer to."""

    def __init__(self, config: NodeConfig, front: Journal, session: OpenSession) -> None:
        self.front = front
        self.session = session
        self.loop = asyncio.get_running_loop()
        self.state: JournalState = front.load(1 if config.is_witness else config.id_window)
        self.order = join_order(self.state.values)
        if self.order is not None:
            front.write(begin_as_another(config.node_id, self.order.incarnation, self.state, front))
            self.state = front.load(1 if config.is_witness else config.id_window)
        self.boot = str(uuid.uuid4())
        start, counted = count_start(self.state.values)
        check_version(config, self.state.core, config.data_dir)
        founding = found(config, self.state.values)
        front.write([counted, *founding])
        self.state = replace(
            self.state,
            values=self.state.values | {write.name: write.value for write in founding},
            core=replace(self.state.core, standings=kept_standings(self.state.values)),
        )
        self.remains = self._find_remains(config)
        self.config = config = with_lineage(
            config, self.state.core.view, self.order, self.state.values
        )
        self.core = replace(
            core_config(
                config,
                order=self.order,
                incarnation=self.state.incarnation,
                values=self.state.values,
            ),
            start=start,
            boot=self.boot,
        )
        self.payloads = LocalPayloadStore(config.payload_dir)
        self.clock = Clock(self.state.core.reserved)
        self.master = Master(self.core, self.state.core, self.clock.now(), self.clock.wall())
        self.holdings = Holdings(foreign_limit_bytes=_FOREIGN_BYTES, cache_limit_bytes=_CACHE_BYTES)
        self.ordered = Progress(self.state.core.base.position)
        #: End of the queue up to which transactions are counted as ordered.
        self.counted = self.state.core.base.position
        self.published = Progress(self.state.published)
        self.kept_after = Progress(self.state.kept_after)
        self.metrics = Metrics()
        self.damage = Damage()
        self.supervisor = Supervisor()
        self.readers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="front-reader")
        self.links: dict[str, PeerLink] = {}
        self.parts: Parts | None = None
        self.running: RunningNode | None = None

    def build(self) -> RunningNode:
        """Return the wired node."""
        config = self.config
        turns = self._build_core()
        self.greeter, signer, verifier = self._greeting()
        greeter = self.greeter
        self._build_surroundings(greeter, signer)
        if not self.links or not self._is_fresh():
            self.epochs.history.take_up(self.master.view, self.master.phase)
        parts = Parts(
            config=config,
            instance=greeter.own.instance,
            front=self.front,
            payloads=self.payloads,
            clock=self.clock,
            master=self.master,
            holdings=self.holdings,
            receipts=self.receipts,
            executor=self.executor,
            cycle=self.cycle,
            links=self.links,
            fetcher=self.fetcher,
            replicas=self.replicas,
            settings=self.settings,
            planning=self.planning,
            transfers=Transfers(self.state.values),
            donor=Donor(
                config=config,
                replicas=self.replicas,
                catalog=lambda: self.master.catalog,
                metrics=self.metrics,
                turns=turns,
            ),
            copies=self._build_copies(),
            publisher=self.publisher,
            greeter=greeter,
            signer=signer,
            verifier=verifier,
            metrics=self.metrics,
            damage=self.damage,
            supervisor=self.supervisor,
            ordered=self.ordered,
            published=self.published,
            kept_after=self.kept_after,
            holders=self.holders,
            membership=self.membership,
            epochs=self.epochs,
            joining=self.joining,
            voiding=self.voiding,
            readers=self.readers,
        )
        self.parts = parts
        self.metrics.status = parts.status
        self.running = RunningNode(parts, self.session)
        return self.running

    def _hears(self, site: str) -> bool:
        return site == self.config.node_id or (site in self.links and self.links[site].up)

    def _is_joiner(self, site: str) -> bool:
        return self.greeter.is_joiner(site)

    def _build_core(self) -> Turns:
        """Wire what the core needs to work."""
        config = self.config
        self.replicas = Replicas(
            node_id=config.node_id,
            lineage=config.lineage,
            dead_after_us=int(config.worker_dead_after * _US),
            ends=self._log_ends,
            hash_at=self.front.read_hash_at,
            saved=self.state.values,
            takes_part=lambda site: site in self.links,
            hears=self._hears,
        )
        turns = Turns(config.replication_donor_share)
        self.receipts = Receipts(self.replicas.applied, turns.busy)
        self.executor = Executor(
            self.front,
            self.holdings,
            self._deliver,
            self._wrote,
            node_id=config.node_id,
            on_rest=self._on_rest,
        )
        self.cycle = Cycle(
            master=self.master,
            executor=self.executor,
            holdings=self.holdings,
            receipts=self.receipts,
            clock=self.clock,
            run_limit=(config.run_limit_transactions, config.run_limit_bytes),
            id_window=config.id_window,
            first_ticket=self._recover_announcements(),
            on_fatal=self._on_fatal,
            is_busy=lambda: self.publisher.working,
            on_view=self._on_view,
        )
        self.epochs = self._build_epochs()
        return turns

    def _build_surroundings(self, greeter: Greeter, signer: Signer) -> None:
        """Wire the links, and what follows the core."""
        config = self.config
        self.joining = Joining(
            node_id=config.node_id,
            order=self.order,
            position=self.state.core.base.position,
            executor=self.executor,
            is_fresh=self._is_fresh,
            start_again=self._start_again,
            values=self.state.values,
            ancestry=Ancestry(self.front, self.state.core),
            taker=SnapshotTaker(config.data_dir / "snapshots"),
            keeper=Keeper(config, self.front, self.payloads, self.state, self.master.view),
            on_diverged=self.cycle.raise_alarm,
            remains=self.remains,
            supervisor=self.supervisor,
            incarnation=self.core.incarnation,
            unheard=self._unheard,
            is_witness=config.is_witness,
        )
        self.membership = self._build_membership(greeter, signer)
        self.fetcher = Fetcher(
            self.links, self.payloads, self.holdings, self._tell_fetched, self._missed,
            self.damage,
        )  # fmt: skip
        self.publisher = self._build_publisher(greeter.own.instance)
        self.publisher.pruning = self._build_pruning(self.publisher)
        self.settings = RunTimeSettings(config, self.state.values)
        self.planning = self._build_planning()
        self.calm = Calm(lambda: self.publisher.working, self.loop.time)
        self.voiding = Voiding(
            master=self.master,
            epochs=self.epochs,
            front=self.front,
            payloads=self.payloads,
            damage=self.damage,
            run_blocking=self._run_blocking,
            tell=self.cycle.tell_always,
        )
        self.delivery = self._build_delivery()

    def _find_remains(self, config: NodeConfig) -> FrontLostError | None:
        """Return why a new front may not begin a log, if it may only join one.

        Raises:
            FrontLostError: There is nobody whose log it could join.
        """
        state = self.state
        new = INSTANCE not in state.values or _ONLY_JOINS in state.values
        if not new or self.order is not None or state.core.view or state.core.base.position:
            return None
        found = find_remains(config)
        if not found:
            return None
        lost = front_lost(config, found)
        if not config.peers:
            raise lost
        # The next start finds an instance, and could not tell.
        self.front.write([PutValue(name=_ONLY_JOINS, value=b"1")])
        _log.error("this node only joins a log that a peer has", reason=str(lost))
        return lost

    # -- pieces ------------------------------------------------------------------------------------

    def _recover_announcements(self) -> int:
        """Follow the unstamped runs of former starts again; return the highest ticket."""
        highest = 0
        for waiting in self.state.core.announcements:
            highest = max(highest, waiting.ticket)
            self.holdings.put_own(
                waiting.ticket,
                OwnRun(digest=waiting.digest, payload=None, session=waiting.session),
            )
            self.receipts.open(waiting.ticket, waiting.facts.ids, singles=waiting.facts.n == 1)
            self.receipts.accepted(waiting.ticket, None)
        return highest

    def _greeting(self) -> tuple[Greeter, Signer, Verifier | None]:
        config, values = self.config, self.state.values
        instance = values.get(INSTANCE, b"").decode()
        if not instance:
            instance = str(uuid.uuid4())
            self.front.write([PutValue(name=INSTANCE, value=instance.encode())])
        boot = self.boot
        view = self.master.view
        configured = self.state.core.view is None and self.order is None
        own = Hello(
            node_id=config.node_id,
            url=config.master_url,
            instance=instance,
            boot=boot,
            lineage=view.lineage,
            config_hash=config.shared_hash(),
            software=__version__,
            founding_hash=config.founding_hash() if configured else "",
            ancestors=tuple(lineage for lineage, _ in view.ancestors),
            epoch=view.epoch,
            ancestor_epochs=tuple(epoch for _, epoch in view.ancestors),
            incarnation=self.core.incarnation,
        )
        greeter = Greeter(
            speaking(own, self.core.newest, view.version),
            places_of(config, view.roster),
            {
                name.removeprefix(PEER_INSTANCE): value.decode()
                for name, value in values.items()
                if name.startswith(PEER_INSTANCE)
            },
            self._remember_instance,
            is_fresh=self._is_fresh,
            is_linked=self._is_linked,
            doubt=self.master.judge,
            is_blank=self.master.is_blank,
            shown=self.epochs.shown,
            standing=lambda: self.master.standing,
        )
        secret = config.cluster_secret or ""
        verifier = Verifier(secret, boot) if secret else None
        return greeter, Signer(secret, config.node_id, boot), verifier

    def _remember_instance(self, node_id: str, instance: str) -> None:
        self.executor.write([PutValue(name=PEER_INSTANCE + node_id, value=instance.encode())])

    def _build_membership(self, greeter: Greeter, signer: Signer) -> Membership:
        def make_link(node_id: str, urls: tuple[str, ...]) -> PeerLink:
            return PeerLink(
                node_id,
                ",".join(urls),
                greeter=greeter,
                signer=signer,
                on_link=self._on_link,
                on_join=self.joining.told,
                hears=self.epochs.linked_nodes,
                supervisor=self.supervisor,
            )

        view = self.master.view
        for node_id, place in places_of(self.config, view.roster).items():
            self.links[node_id] = make_link(node_id, place.urls)
        replicas = {str(seat.node_id) for seat in view.roster if not seat.witness}
        if "replica" not in self.config.roles:
            replicas.discard(self.config.node_id)
        self.holders = Holders(replicas, self.state.values)
        self.addresses = AddressCheck(
            links=self.links,
            greeter=greeter,
            signer=signer,
            which=self.config.check_addresses,
            interval_s=check_interval_s(self.config.suspect_timeout),
            supervisor=self.supervisor,
        )
        return Membership(
            config=self.config,
            links=self.links,
            greeter=greeter,
            holders=self.holders,
            make_link=make_link,
            addresses=self.addresses,
        )

    def _build_epochs(self) -> Epochs:
        return Epochs(
            master=self.master,
            cluster=self.config.cluster,
            node_id=self.config.node_id,
            receipts=self.receipts,
            tell=self.cycle.tell_always,
            links_up=lambda: [node_id for node_id, link in self.links.items() if link.up],
            is_joiner=self._is_joiner,
            addresses=lambda: found_addresses(self.links),
            now=self.clock.now,
            history=EpochHistory(self.state.values, put=self.executor.write_then),
            halted=lambda: "" if self.cycle.halted is None else self.cycle.halted.text,
            config=self.config,
        )

    def _build_delivery(self) -> Delivery:
        config = self.config
        return Delivery(
            node_id=config.node_id,
            view=lambda: self.master.view,
            front=self.front,
            holdings=self.holdings,
            receipts=self.receipts,
            links=self.links,
            fetcher=self.fetcher,
            ordered=self.ordered,
            on_ordered=self._was_ordered,
            on_diverged=self.cycle.raise_alarm,
            run_blocking=self._run_blocking,
            on_phase=self._on_phase,
            on_change=self.epochs.on_change,
            on_tail_request=lambda link, at: self.joining.asked(link, at, self._missed),
            on_doubt=self._on_doubt,
            may_ask=self.calm.may_ask,
            on_check=self.voiding.check,
        )

    def _on_phase(self, told: TellPhase) -> None:
        self.publisher.hold(told.phase is Phase.WEDGED)
        if told.phase is Phase.JOINING:
            self.calm.begin()
        self.epochs.on_phase(told)

    def _build_copies(self) -> Copies:
        async def hash_at(position: int) -> bytes | None:
            return await self.loop.run_in_executor(self.readers, self.front.read_hash_at, position)

        copies = Copies(config=self.config, links=self.links, ordered=self.ordered, hash_at=hash_at)
        copies.planner = self.planning
        return copies

    def _build_planning(self) -> Planning:
        config = self.config
        return Planning(
            node_id=config.node_id,
            max_donors=config.replication_max_donors,
            dead_after_us=int(config.worker_dead_after * _US),
            replicas=self.replicas,
            settings=self.settings,
            backlog=Backlog(self.front, config.signature_interval),
            links=self.links,
            sizes=DonorSizes(
                links=self.links, lake_dir=config.lake_dir, run_blocking=self._run_blocking
            ),
            ends=self._log_ends,
            now=self.clock.now,
            put=self._put_aside,
            run_blocking=self._run_blocking,
            saved=self.state.values,
        )

    def _build_publisher(self, instance: str) -> Publisher:
        config = self.config
        return Publisher(
            front=self.front,
            payloads=self.payloads,
            log_root=config.data_dir / "log",
            lineage=config.lineage,
            tables=lambda: self.master.catalog,
            write=self._write_from_thread,
            interval_s=config.publish_interval,
            signature_interval=config.signature_interval,
            published=(self.state.published, self.state.published_version),
            epochs=self.epochs.history,
            instance=instance,
            on_published=self._on_published,
            on_rest=lambda: self._on_loop(self.cycle.look_for_rest),
            joins=self.order is not None,
            supervisor=self.supervisor,
        )

    def _build_pruning(self, publisher: Publisher) -> Pruning:
        async def view() -> RetentionView:
            assert self.parts is not None
            return self.parts.retention_view()

        return Pruning(
            front=self.front,
            payloads=self.payloads,
            log_root=self.config.data_dir / "log",
            tables=publisher,
            view=lambda: asyncio.run_coroutine_threadsafe(view(), self.loop).result(),
            write=self._write_from_thread,
            on_kept=lambda position: self._on_loop(self.kept_after.advance, position),
            supervisor=self.supervisor,
        )

    def _log_ends(self) -> LogEnds:
        return LogEnds(
            position=self.ordered.value,
            published=self.published.value,
            kept_after=self.kept_after.value,
        )

    # -- callbacks ---------------------------------------------------------------------------------

    def _deliver(self, action: Action, at: int) -> None:
        self.delivery.deliver(action, at)

    def _wrote(self, seconds: float) -> None:
        self.metrics.write_seconds.observe(seconds)
        self.cycle.writer_is_free()

    def _on_rest(self) -> None:
        self.cycle.look_for_rest()

    def _was_ordered(self, position: int) -> None:
        self.metrics.ordered.inc(position - self.counted)
        self.counted = position
        self.publisher.ordered(position)

    def _on_view(self, view: View) -> None:
        self.membership.enter(view)
        for link in self.links.values():
            if link.up and link.newest < view.version:  # what it greeted with is over (P31)
                self._on_doubt(link.node_id)
                link.greet_again()
        self.receipts.forget(self._was_dropped)
        self.voiding.on_view(view)

    def _was_dropped(self, first_id: bytes) -> bool:
        """Whether a run is kept no more and did not get a position either."""
        kept = self.front.find_transaction(first_id)
        return kept is None and self.master.locate(first_id) is None

    def _tell_fetched(self, event: Event) -> None:
        if isinstance(event, PayloadArrived):
            self.joining.found(event.header.digest)
        self.cycle.tell_always(event)

    def _missed(self, run: RunHeader | None = None) -> None:
        if self.master.phase is Phase.JOINING:
            digest = b"" if run is None else run.digest
            self.joining.missed(self.config.lineage, self.core.incarnation, digest)

    def _is_fresh(self) -> bool:
        """Whether this node keeps nothing of the log: no queue, no runs, no decided view."""
        master = self.master
        return (
            self.state.core.view is None
            and master.view.epoch == self.core.epoch
            and master.base.position == 0
            and not master.incoming(1)
            and not master.status().unstamped_runs
        )

    def _unheard(self) -> list[str]:
        """Return the other places of a configured first epoch that were never heard (P29)."""
        if self.master.view.epoch != self.core.epoch:
            return []
        return [node_id for node_id in self.links if not self.master.heard(node_id)]

    def _is_linked(self, node_id: str) -> bool:
        """Whether a node's known instance is there; a link that seems up is tried once more."""
        link = self.links.get(node_id)
        if link is None or not link.up:
            return False
        link.verify()
        return True

    def _start_again(self, error: TxLogError) -> None:
        if self.running is not None:
            self.running.start_again(error)

    def _on_link(self, node_id: str, up: bool) -> None:
        link = self.links.get(node_id)
        if link is None:
            return  # it has lost its place
        self.cycle.tell_always(LinkChanged(peer=NodeId(node_id), up=up, newest=link.newest))
        self.addresses.look_again()
        if up:
            self.joining.linked(link)
            # A peer that takes this node as it is shares its first view: it need not join first.
            self.epochs.history.begin(self.master.view, self.master.phase)
            # A peer that was away, or restarted, learns of this site's replica at once.
            link.report(self.replicas.latest_own(self.clock.now()))

    def _on_doubt(self, node_id: str) -> None:
        """Let a node greet anew, and be judged anew."""
        if self.parts is not None and self.parts.verifier is not None:
            self.parts.verifier.expel(node_id)

    def _on_fatal(self, alarm: Alarm) -> None:
        if alarm.code == OutdatedError.code:
            self.joining.outdated(self.master.view)
        _log.critical(
            "this node has halted", code=alarm.code, reason=alarm.text,
            node=self.config.node_id,
        )  # fmt: skip

    def _put_aside(self, writes: Sequence[Write]) -> None:
        self.executor.put([AsideWrite(writes=writes)])

    def _write_from_thread(self, writes: Sequence[Write]) -> None:
        async def write() -> None:
            await self.executor.write(writes)

        asyncio.run_coroutine_threadsafe(write(), self.loop).result()

    def _on_published(self, position: int, seconds: float) -> None:
        self._on_loop(self._published_on_loop, position, seconds)

    def _published_on_loop(self, position: int, seconds: float) -> None:
        self.metrics.publish_seconds.observe(seconds)
        self.published.advance(position)
        if self.parts is not None:
            self.parts.forget_payloads()
            self.parts.judge_again()

    def _run_blocking(self, work: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return self.loop.run_in_executor(self.readers, work, *args)

    def _on_loop(self, work: Callable[..., None], *args: Any) -> None:
        self.loop.call_soon_threadsafe(work, *args)
