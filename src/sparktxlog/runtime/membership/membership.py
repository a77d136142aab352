"""The other nodes: their places, the links to them, and the epochs.

Until an epoch is decided the places are those of the configuration; afterwards those of the newest
view.  A node that gets a place gets a link.  A node that loses its place is a stranger: its
requests are refused, and this node does not contact it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import structlog

from sparktxlog import __version__
from sparktxlog.codec.wire import Hello, PostAnswer
from sparktxlog.config import NodeConfig
from sparktxlog.model.answers import PeerState
from sparktxlog.model.ids import NodeId
from sparktxlog.model.site_data import SiteData, SitePace
from sparktxlog.model.values import split_urls
from sparktxlog.protocol.messages.balloting import Standing
from sparktxlog.protocol.messages.events import Event, LinkChanged, PayloadArrived
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.protocol.messages.versions import OLDEST, deciders
from sparktxlog.protocol.messages.view import Phase, Seat, View
from sparktxlog.protocol.order.status import MasterStatus, PeerStatus, compared
from sparktxlog.runtime.commit.cycle import CoreLoop
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.membership.epochs import Epochs, elsewhere, has_moved
from sparktxlog.runtime.membership.founding import newest_version
from sparktxlog.runtime.membership.join_orders import StartAgainError
from sparktxlog.runtime.membership.join_steps import Joining
from sparktxlog.runtime.membership.standing_aside import StandingAside
from sparktxlog.runtime.membership.standings import INSTANCE, PEER_INSTANCE
from sparktxlog.runtime.membership.strangers import Strangers
from sparktxlog.runtime.replicas.judged_replicas import Replicas
from sparktxlog.storage.interfaces import PutValue
from sparktxlog.transport.addresses import AddressCheck, check_interval_s
from sparktxlog.transport.greeting import Greeter, GreetingNode, Place
from sparktxlog.transport.kept_connections import KeptConnections
from sparktxlog.transport.node_certificate import speaks_only_tls
from sparktxlog.transport.peer_link import PeerLink
from sparktxlog.transport.signing import Signer, Verifier

_log = structlog.get_logger("sparktxlog.membership")


def places_of(config: NodeConfig, seats: Iterable[Seat]) -> dict[str, Place]:
    """Return the places of all other nodes.

    Addresses of a node that only this node's configuration has are another way to it, and come
    last.  If this node itself has moved (`has_moved`), it and its peers may be a copy of a cluster
    that still runs at the decided addresses: then those of the configuration count alone.
    Addresses without TLS are left out if this node speaks only TLS, unless there are no others.
    """
    seats = tuple(seats)
    moved, found = has_moved(config, seats), {}
    for seat in seats:
        if seat.node_id == config.node_id:
            continue
        urls, peer = split_urls(seat.url), config.peer(seat.node_id)
        if peer is not None and (not urls or set(urls) & set(peer.urls)):
            urls = tuple(dict.fromkeys((*urls, *peer.urls)))
        elif peer is not None and (others := elsewhere(peer.urls, urls)):
            urls = others if moved else (*urls, *others)
        if speaks_only_tls(config):
            urls = tuple(url for url in urls if url.startswith("https:")) or urls
        if urls:
            found[str(seat.node_id)] = Place(urls=urls, incarnation=seat.incarnation)
    return found


def elected_without(view: View, own: str, nodes: Iterable[str]) -> bool:
    """Return whether nodes have more than half of the votes of all nodes but `own`."""
    others = tuple(seat for seat in view.roster if seat.node_id != own)
    return replace(view, roster=others).elects(nodes)


class Membership(GreetingNode):
    """Owns the links, greetings, epochs and joining of a node; used on the event loop.

    **After calling** the constructor: `start`, and `close` at the end.
    """

    def __init__(self, base: Foundation, core: CoreLoop, replicas: Replicas) -> None:
        self._base = base
        self._cycle = core.cycle
        self._executor = core.executor
        self._replicas = replicas
        config, master = base.config, base.master
        #: Node → last position that it showed.
        self.positions: dict[str, int] = {}
        self.greeter = self._greeter()
        self.epochs = Epochs(base, core, self.greeter)
        secret, also = config.cluster_secret or "", config.cluster_secret_also or ""
        checks, boot = secret or speaks_only_tls(config), base.core.boot
        self.verifier = Verifier(secret, boot, also) if checks else None
        self.signer = Signer(secret, config.node_id, boot, base.certificate, also)
        self.joining = Joining(base, core)
        self.epochs.ignorance = self.joining.ignorance
        #: Nodes that know the secret and are refused.
        self.strangers = Strangers()
        self.addresses = AddressCheck(
            links=base.links,
            greeter=self.greeter,
            signer=self.signer,
            which=config.check_addresses,
            interval_s=check_interval_s(config.suspect_timeout),
            supervisor=base.supervisor,
        )
        #: Returns what this site holds of the data, for its posts.
        self.own_data: Callable[[], SiteData | None] = lambda: None
        #: Peer → what it said that its site holds, since its link came up.
        self.data_of: dict[str, SiteData] = {}
        #: Which nodes have slow disks.
        self.aside = StandingAside(base, core, self.tell_data)
        #: Called with a peer and its answer to a post.
        self.on_answer: Callable[[str, PostAnswer], None] = lambda node_id, answer: None
        self._connections: KeptConnections | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        places = places_of(config, master.view.roster)
        self._incarnations = {node_id: place.incarnation for node_id, place in places.items()}
        for node_id, place in places.items():
            base.links[node_id] = self._link(node_id, place.urls)
        if not base.links or not base.is_fresh():
            self.epochs.history.take_up(master.view, master.phase)

    def _greeter(self) -> Greeter:
        base, config, view = self._base, self._base.config, self._base.master.view
        values = base.state.values
        configured = base.state.core.view is None and base.order is None
        own = Hello(
            node_id=config.node_id,
            url=config.master_url,
            instance=values[INSTANCE].decode(),
            boot=base.core.boot,
            log_id=view.log_id,
            config_hash=config.shared_hash(),
            software=__version__,
            founding_hash=config.founding_hash() if configured else "",
            ancestors=tuple(log_id for log_id, _ in view.ancestors),
            epoch=view.epoch,
            ancestor_epochs=tuple(epoch for _, epoch in view.ancestors),
            incarnation=base.core.incarnation,
            oldest=view.version,
            newest=base.core.newest,
            follow=tuple(map(str, config.follow)),
        )
        known = {
            name.removeprefix(PEER_INSTANCE): value.decode()
            for name, value in values.items()
            if name.startswith(PEER_INSTANCE)
        }
        return Greeter(
            own,
            places_of(config, view.roster),
            known,
            self,
        )

    # -- what the greeter calls --------------------------------------------------------------------

    def remember(self, node_id: str, shown: str) -> None:
        """Keep a peer's instance durably."""
        self._executor.write([PutValue(name=PEER_INSTANCE + node_id, value=shown.encode())])

    def is_fresh(self) -> bool:
        """Return whether this node has nothing of the log yet."""
        return self._base.is_fresh()

    def is_joining(self, node_id: str) -> bool:
        """Return whether this node cannot know a node's disk: it has the log, and is no member."""
        phase, view = self._base.master.phase, self._base.master.view
        return phase is Phase.JOINING or (phase is Phase.FOLLOWING and not view.follows(node_id))

    def is_linked(self, node_id: str) -> bool:
        """Return whether a node's known instance is linked; test a link that is up again."""
        link = self._base.links.get(node_id)
        if link is None or not link.up:
            return False
        link.verify()
        return True

    def shortfall(self, node_id: str, standing: Standing) -> str:
        """Return what a node shows less of than before, as the core judges it (P30)."""
        return self._base.master.judge(node_id, standing)

    def is_blank(self, node_id: str) -> bool:
        """Return whether a node showed nothing yet on which anything depends."""
        return self._base.master.is_blank(node_id)

    def shown(self, log_id: str, epoch: int) -> tuple[str, int, str]:
        """Return the decision on an epoch, and this node's position and chain hash."""
        return self.epochs.shown(log_id, epoch)  # `epochs` exists before the first greeting

    def standing(self) -> Standing | None:
        """Return this node's standing."""
        return self._base.master.standing

    # -- start and end -----------------------------------------------------------------------------

    def start(self, connections: KeptConnections) -> None:
        """Start all links, and the check of their other addresses."""
        self._connections = connections
        for link in self._base.links.values():
            link.start(connections)
        self.addresses.start()

    async def settled(self, most_s: float) -> None:
        """Wait until the core may begin: no summary is needed, and each link tried a greeting.

        So a node that has to join again learns of it before it speaks.  It waits for links that do
        not answer for `most_s` seconds at most.
        """
        await self.joining.settled.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                for link in tuple(self._base.links.values()):
                    await link.tried.wait()

    async def close(self) -> None:
        """Close all links."""
        await self.joining.close()
        await self.addresses.close()
        for task in tuple(self._retiring):
            task.cancel()
        links = (link.close() for link in self._base.links.values())
        await asyncio.gather(*self._retiring, *links, return_exceptions=True)

    # -- places ------------------------------------------------------------------------------------

    def enter(self, view: View) -> None:
        """Set the places of a decided and durable view."""
        links, places = self._base.links, places_of(self._base.config, view.roster)
        for node_id in self._incarnations.keys() & places.keys():
            if places[node_id].incarnation > self._incarnations[node_id]:
                self.data_of.pop(node_id, None)
                self._replicas.forget(node_id)
        self._incarnations = {node_id: place.incarnation for node_id, place in places.items()}
        self.greeter.enter(
            places,
            view.log_id,
            [log_id for log_id, _ in view.ancestors],
            epoch=view.epoch,
            ancestor_epochs=[epoch for _, epoch in view.ancestors],
            version=view.version,
        )
        for node_id in [node_id for node_id in links if node_id not in places]:
            _log.warning("peer removed", peer=node_id)
            task = asyncio.create_task(links.pop(node_id).retire())
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)
        for node_id, place in places.items():
            link = links.get(node_id)
            if link is None:
                self._add(node_id, place.urls)
            elif link.urls != place.urls:
                _log.info("peer moved", peer=node_id, urls=list(place.urls))
                link.move(place.urls)
                self.addresses.look_again()
        for link in links.values():
            if link.up and link.newest < view.version:  # its greeting may be outdated
                self.expire_greeting(link.node_id)
                link.greet_again()

    def _add(self, node_id: str, urls: tuple[str, ...]) -> None:
        _log.info("peer added", peer=node_id, urls=list(urls))
        link = self._base.links[node_id] = self._link(node_id, urls)
        if self._connections is not None:
            link.start(self._connections)

    def _link(self, node_id: str, urls: tuple[str, ...]) -> PeerLink:
        return PeerLink(
            node_id,
            ",".join(urls),
            greeter=self.greeter,
            signer=self.signer,
            on_link=self._on_link,
            on_join=self.joining.accept_order,
            on_replaced=self._on_replaced,
            on_answer=lambda answer: self.on_answer(node_id, answer),
            hears=self.epochs.linked_nodes,
            data=self._own_data,
            pace=self.aside.own,
            replicas=self._replicas.names,
            supervisor=self._base.supervisor,
        )

    def _on_link(self, node_id: str, up: bool) -> None:
        base, link = self._base, self._base.links.get(node_id)
        if not up:
            self.data_of.pop(node_id, None)  # it may return with another disk
            self.aside.paces.pop(node_id, None)
        if link is None:
            return  # it lost its place
        self._cycle.tell_always(LinkChanged(peer=NodeId(node_id), up=up, newest=link.newest))
        self.addresses.look_again()
        if up:
            self.joining.note_link(link)
            # A peer that accepts this node as it is has the same first view: no join is needed.
            self.epochs.history.begin(base.master.view, base.master.phase)
            # A peer that was away, or restarted, gets this site's report at once.
            link.posts.report(self._replicas.latest_own(base.clock.now()))

    def tell_data(self) -> None:
        """Send all peers soon what this site holds of the data, and its pace."""
        for link in self._base.links.values():
            link.posts.tell()

    def _own_data(self) -> SiteData | None:
        return self.own_data()

    def note_data(self, node_id: str, data: SiteData | None, pace: SitePace) -> None:
        """Note what a peer says that its site holds, None = it does not know, and its pace."""
        self.aside.paces[node_id] = pace
        if data is None:
            self.data_of.pop(node_id, None)
        else:
            self.data_of[node_id] = data

    def _on_replaced(self) -> None:
        """Start again if most votes of the others accepted another process as this node (P30).

        The next start greets them, and gets an order to join again if the other process was a copy.
        A few peers may be wrong.  More than half of the others' votes are also needed to admit this
        node again: with fewer it would only be missing.
        """
        base = self._base
        replaced_by = sorted(node_id for node_id, link in base.links.items() if link.replaced)
        if elected_without(base.master.view, base.config.node_id, replaced_by):
            text = f"{', '.join(replaced_by)} accepted another process as this node"
            if not base.failed.done():
                _log.error("this start was replaced: the node starts again", told_by=replaced_by)
            base.fail(StartAgainError(text))

    def expire_greeting(self, node_id: str) -> None:
        """Require a new greeting of a node, which is then judged again."""
        if self.verifier is not None:
            self.verifier.expel(node_id)

    # -- results of fetching -----------------------------------------------------------------------

    def tell_fetched(self, event: Event) -> None:
        """Tell the core how a fetch ended."""
        if isinstance(event, PayloadArrived):
            self.joining.note_arrived(event.header.digest)
        self._cycle.tell_always(event)

    def missed(self, run: RunHeader | None = None) -> None:
        """Note that nobody has a run any more; None = a part of the queue."""
        if self._base.master.phase in (Phase.JOINING, Phase.FOLLOWING):
            digest = b"" if run is None else run.digest
            self.joining.note_missed(self._base.config.log_id, self._base.core.incarnation, digest)

    # -- status ------------------------------------------------------------------------------------

    def versions(self) -> dict[str, Any]:
        """Return the wire version in force, what this node speaks, and which nodes hold it back."""
        links, view = self._base.links, self._base.master.view
        newest = newest_version(self._base.config)
        older = {
            str(node): {"newest": links[node].newest, "linked": links[node].up}
            for node in sorted(deciders(view))
            if node in links and not (links[node].up and links[node].newest >= newest)
        }
        return {
            "wire_version": view.version,
            "wire_versions": [OLDEST, newest],
            "wire_version_waits_for": older if view.version < newest else {},
        }

    def peers(self, status: MasterStatus, now: int) -> list[PeerState]:
        """Return a line for each other node with a place; little is known about non-members."""
        known = {peer.peer: peer for peer in status.peers}
        found = []
        for seat in self._base.master.view.roster:
            link = self._base.links.get(seat.node_id)
            if link is None:
                continue
            peer = known.get(seat.node_id) or PeerStatus(
                peer=seat.node_id,
                linked=link.up,
                last_post_at=None,
                silent=False,
                round=0,
                counter=-1,
                last_seq=0,
                position=self.positions.get(seat.node_id, 0),
                busy=False,
                known_of_me=None,
            )
            found.append(self._peer(seat, peer, link, status.acquired, now))
        return found

    def _peer(
        self, seat: Seat, peer: PeerStatus, link: PeerLink, acquired: dict[str, int], now: int
    ) -> PeerState:
        heard_at, traffic = peer.last_post_at, link.traffic
        trip_s = link.posts.round_trip_s
        pace = self.aside.paces.get(peer.peer, SitePace())
        return {
            "id": peer.peer,
            "url": link.url,
            "linked": link.up,
            "wire_version": link.version if link.up else None,
            "addresses": link.addresses(),
            "round_trip_s": None if trip_s is None else round(trip_s, 6),
            "reason": link.reason,
            "write_s": pace.write_s,
            "aside": pace.aside,
            "silent": peer.silent,
            "last_post_at": heard_at,
            "age_s": None if heard_at is None else round((now - heard_at) / 1e6, 3),
            "counter": peer.counter,
            "last_seq": peer.last_seq,
            "position": peer.position,
            "round": peer.round,
            "busy": peer.busy,
            "acquired": dict(peer.acquired),
            "stands": None if heard_at is None else compared(acquired, peer.acquired),
            "clock_offset_us": peer.clock_offset_us,
            "sent_bytes": traffic.sent_bytes,
            "received_bytes": traffic.received_bytes,
            "fetched_bytes": traffic.fetched_bytes,
            "posts": traffic.posts,
            "post_bytes_max": traffic.post_bytes_max,
            "pushes_dropped": traffic.pushes_dropped,
            "member": seat.node_id in self._base.master.view.members,
            "witness": seat.witness,
            "follower": seat.follower,
        }
