"""Who is talked to: links and places follow the configuration, then the view in force.

Until an epoch is decided the places are those of the configuration; afterwards those of the newest
view, whatever the configuration says.  A node that gets a place gets a link; one that loses its
place is a stranger from then on, its requests are refused and nobody contacts it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

import aiohttp
import structlog

from sparktxlog.config import NodeConfig
from sparktxlog.model.values import split_urls
from sparktxlog.protocol.words.view import Seat, View
from sparktxlog.runtime.log.retention import Holders
from sparktxlog.transport.addresses import AddressCheck
from sparktxlog.transport.greeting import Greeter, Place
from sparktxlog.transport.peers import PeerLink

_log = structlog.get_logger("sparktxlog.membership")


def places_of(config: NodeConfig, seats: Iterable[Seat]) -> dict[str, Place]:
    """Return the places of all other nodes.

    Addresses that only this node's configuration has are kept where it names the same node: they
    are its own second way to it.
    """
    found = {}
    for seat in seats:
        if seat.node_id == config.node_id:
            continue
        urls, peer = split_urls(seat.url), config.peer(seat.node_id)
        if peer is not None and (not urls or set(urls) & set(peer.urls)):
            urls = (*urls, *(url for url in peer.urls if url not in urls))
        if urls:
            found[str(seat.node_id)] = Place(urls=urls, incarnation=seat.incarnation)
    return found


class Membership:
    """Makes and ends links as views come into force.

    Args:
        config: This node's settings.
        links: All links by node id; shared with everybody who sends.
        greeter: Judges greetings by the places.
        holders: Who keeps the log.
        make_link: Returns an unstarted link to a node at addresses.
        addresses: Checks the addresses that no link uses.
    """

    def __init__(
        self,
        *,
        config: NodeConfig,
        links: dict[str, PeerLink],
        greeter: Greeter,
        holders: Holders,
        make_link: Callable[[str, tuple[str, ...]], PeerLink],
        addresses: AddressCheck,
    ) -> None:
        self._config = config
        self._links = links
        self._greeter = greeter
        self._holders = holders
        self._make_link = make_link
        self._addresses = addresses
        self._session: aiohttp.ClientSession | None = None
        self._retiring: set[asyncio.Task[None]] = set()

    def start(self, session: aiohttp.ClientSession) -> None:
        """Start all links, and checking their other addresses."""
        self._session = session
        for link in self._links.values():
            link.start(session)
        self._addresses.start()

    async def tried(self, most_s: float) -> None:
        """Wait until each link has greeted once, well or not, but not for long.

        A node that must come back as another learns of it before it says anything (P30).
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                for link in tuple(self._links.values()):
                    await link.tried.wait()

    async def close(self) -> None:
        """Close all links."""
        await self._addresses.close()
        for task in tuple(self._retiring):
            task.cancel()
        await asyncio.gather(
            *self._retiring, *(link.close() for link in self._links.values()),
            return_exceptions=True,
        )  # fmt: skip

    def enter(self, view: View) -> None:
        """Take a decided and durable view into force."""
        places = places_of(self._config, view.roster)
        self._greeter.enter(
            places, view.lineage, [lineage for lineage, _ in view.ancestors],
            epoch=view.epoch, ancestor_epochs=[epoch for _, epoch in view.ancestors],
            version=view.version,
        )  # fmt: skip
        self._holders.set_members(seat.node_id for seat in view.roster if not seat.witness)
        for node_id in [node_id for node_id in self._links if node_id not in places]:
            self._drop(node_id)
        for node_id, place in places.items():
            link = self._links.get(node_id)
            if link is None:
                self._add(node_id, place.urls)
            elif link.urls != place.urls:
                _log.info("peer moved", peer=node_id, urls=list(place.urls))
                link.move(place.urls)
                self._addresses.look_again()

    def _add(self, node_id: str, urls: tuple[str, ...]) -> None:
        _log.info("peer added", peer=node_id, urls=list(urls))
        link = self._links[node_id] = self._make_link(node_id, urls)
        if self._session is not None:
            link.start(self._session)

    def _drop(self, node_id: str) -> None:
        _log.warning("peer removed", peer=node_id)
        task = asyncio.create_task(self._links.pop(node_id).retire())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)
