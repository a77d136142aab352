"""Node processes whose links can be cut in each direction, without any privilege."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from examples.demo.relay import RelayNetwork, Way
from tests.support.node_processes import Cluster


class LossyNetwork(RelayNetwork):
    """Relays that may also lose what is sent, as a dead cable; the other direction may go on."""

    def __init__(self, target_ports: dict[str, int]) -> None:
        super().__init__(target_ports)
        self._lost: set[Way] = set()
        #: Links of which something was lost, by direction: they cannot be continued.
        self._torn: set[tuple[asyncio.StreamWriter, Way]] = set()
        #: Node → how many bytes come to it before all others wait.
        self._most: dict[str, float] = {}
        self._passes = asyncio.Event()

    def lose(self, ways: Iterable[Way]) -> None:
        """Lose whatever is sent these ways from now on, and nothing else; nobody is told."""
        super().refuse(())
        self._change(set(ways))

    def refuse(self, ways: Iterable[Way]) -> None:
        super().refuse(ways)
        self._change(set())

    def hold(self, node: str, more_bytes: int) -> None:
        """Let about so many bytes more come to a node, or to clients (""); others wait."""
        self._most[node] = self.received_bytes[node] + more_bytes

    def pass_on(self) -> None:
        """End all that `hold` began."""
        self._most.clear()
        self._passes.set()
        self._passes = asyncio.Event()

    def _change(self, lost: set[Way]) -> None:
        self._lost = lost
        for writer, way in self._torn:
            if not {way, way[::-1]} & lost:
                writer.transport.abort()

    async def send(self, way: Way, chunk: bytes, writer: asyncio.StreamWriter) -> None:
        if way in self._lost or (writer, way) in self._torn:
            self._torn.add((writer, way))
            return
        while self.received_bytes[way[1]] >= self._most.get(way[1], math.inf):
            await self._passes.wait()
        await super().send(way, chunk, writer)


def ways_between(some: str, others: str) -> set[Way]:
    """Return both directions of all links between two groups of nodes."""
    return {way for a in some for b in others for way in ((a, b), (b, a))}


class SiteLinks:
    """The relays of all nodes, on an event loop in a thread of their own."""

    def __init__(self, target_ports: dict[str, int]) -> None:
        self._network = LossyNetwork(target_ports)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._network.start(), self._loop).result(30)
        #: Public port of each node.
        self.ports = self._network.ports

    def lose(self, ways: Iterable[Way]) -> None:
        """Lose whatever is sent these ways from now on; nobody is told."""
        self._loop.call_soon_threadsafe(partial(self._network.lose, ways))

    def refuse(self, ways: Iterable[Way]) -> None:
        """Break connections that use one of these ways, and refuse new ones."""
        self._loop.call_soon_threadsafe(partial(self._network.refuse, ways))

    @contextmanager
    def held(self, node: str, more_bytes: int) -> Iterator[None]:
        """Let about so many bytes more come to a node; all after them wait for the end of this."""
        self._loop.call_soon_threadsafe(self._network.hold, node, more_bytes)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._network.pass_on)

    def heal(self) -> None:
        """Let everybody reach everybody again."""
        self._loop.call_soon_threadsafe(self._network.heal)

    def close(self) -> None:
        """Stop listening and break all links."""
        self._loop.call_soon_threadsafe(self._network.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


class LinkedCluster(Cluster):
    """Node processes that reach each other through `links` only; clients reach them directly."""

    links: SiteLinks

    def start(self) -> None:
        """Start the relays, all nodes, and wait until all links are up."""
        self.links = SiteLinks(self.ports)
        for name, node in self.nodes.items():
            others = {other: port for other, port in self.links.ports.items() if other != name}
            node.write_config(self.links.ports[name], others)
            listen = f'listen = "127.0.0.1:{self.ports[name]}"\n'
            node.config.write_text(listen + node.config.read_text())
        self.configure()
        super().start()

    def configure(self) -> None:
        """Change the nodes' configurations before the first start."""

    def stop(self) -> None:
        """Stop all nodes and the relays."""
        if hasattr(self, "links"):
            self.links.heal()
        super().stop()
        if hasattr(self, "links"):
            self.links.close()


class TwoSwitchCluster(LinkedCluster):
    """Node processes with an address each at two switches: `links` and `second`."""

    second: SiteLinks

    def configure(self) -> None:
        """Give all peers their address at the second switch."""
        self.second = SiteLinks(self.ports)
        for name, node in self.nodes.items():
            text = node.config.read_text()
            for other in self.peers_of(name):
                first, second = self.addresses(other)
                text = text.replace(f'url = "{first}"', f'url = "{first},{second}"')
            node.config.write_text(text)

    def addresses(self, name: str) -> tuple[str, str]:
        """Return a node's addresses at the first and the second switch."""
        first, second = (
            f"http://127.0.0.1:{links.ports[name]}" for links in (self.links, self.second)
        )
        return first, second

    def stop(self) -> None:
        """Stop all nodes and both switches."""
        if hasattr(self, "second"):
            self.second.heal()
        super().stop()
        if hasattr(self, "second"):
            self.second.close()
