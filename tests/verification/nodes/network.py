"""The wire: requests of one node reach another one's application in this process, as over TCP.

What TCP does is kept: a lost packet comes later; a request that was sent may be taken though its
sender gave up or died; an answer may be lost though the request was taken; a process that ended
resets its connections, a machine without power says nothing; the kernel of a paused process still
takes connections.  Now and then a middlebox repeats a request.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Any, Protocol
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message
from tests.verification.nodes.virtual import LIFE, Life, VirtualLoop, in_life

from sparktxlog.transport.kept_connections import KeptConnections, Patience, Received

#: A lost packet is sent again after so long, twice as long each time, up to a bound; seconds.
_RESEND_S, _RESEND_MAX_S = 0.2, 3.0


@dataclass(slots=True)
class Weather:
    """How bad the network is; times in seconds, the rest chances a request."""

    delay_min_s: float = 0.008
    delay_max_s: float = 0.02
    late: float = 0.01
    late_s: float = 0.3
    #: A packet is lost and sent again.
    lost: float = 0.0
    #: The connection breaks, before or behind the taking of a request.
    reset: float = 0.0
    #: The request is repeated behind its sender's back.
    repeated: float = 0.0


class Server(Protocol):
    """What listens at an address."""

    #: Its host.
    name: str
    #: None: no process; else its present life.
    life: Life | None
    #: None: it has not begun to serve yet.
    app: ASGIApp | None
    #: True: the machine is without power: not even a reset comes back.
    dark: bool


class Watch(Protocol):
    """Sees what travels."""

    def request(self, sender: str, receiver: str, method: str, target: str, body: bytes) -> None:
        """See a request leave."""

    def arrived(self, sender: str, receiver: str, target: str, body: bytes) -> None:
        """See a request arrive for the first time."""

    def answered(self, receiver: str, target: str, status: int) -> None:
        """See an application answer."""

    def failed(self, receiver: str, target: str, error: BaseException) -> None:
        """See an application fail."""

    def happened(self, mark: str) -> None:
        """See something rare."""


class _BrokenError(Exception):
    """The connection broke; the text says how."""


@dataclass(slots=True)
class _Exchange:
    """One request on its way, and back."""

    sender: Life
    method: str
    url: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    answer: asyncio.Future[Received]
    #: Life that took it.
    taker: Life | None = None
    #: False: nobody waits for the answer any more.
    wanted: bool = True


@dataclass(slots=True)
class Network:
    """All wires of a simulated cluster.

    Args:
        loop: The one loop.
        random: Source of everything by chance.
        watch: Sees what travels.
    """

    loop: VirtualLoop
    random: Random
    watch: Watch
    weather: Weather = field(default_factory=Weather)
    #: Directed pairs (sender, receiver) over which nothing passes.
    cut: set[tuple[str, str]] = field(default_factory=set)
    #: Host name of an address → who listens there.
    servers: dict[str, Server] = field(default_factory=dict)
    #: Host → other one, whose wires it has as well.
    beside: dict[str, str] = field(default_factory=dict)
    #: Lives between which a connection stands.
    _connected: set[tuple[int, int]] = field(default_factory=set)
    _under_way: dict[int, _Exchange] = field(default_factory=dict)
    _count: int = 0
    #: Life that handles → answers that wait for it.
    _resets: dict[int, list[asyncio.Future[Received]]] = field(default_factory=dict)
    #: Who waits for a server to begin, or to end.
    _looking: list[asyncio.Future[None]] = field(default_factory=list)

    # -- for nodes ---------------------------------------------------------------------------------

    def connections(self) -> SimulatedConnections:
        """Return what a node sends its requests with."""
        life = LIFE.get()
        assert life is not None, "connections belong to a node"
        return SimulatedConnections(self, life)

    async def exchange(self, exchange: _Exchange, patience: Patience) -> Received:
        """Carry a request and its answer.

        Raises:
            TimeoutError: No answer in time.
            OSError: The connection failed or broke.
        """
        server = urlsplit(exchange.url).hostname or ""
        try:
            async with asyncio.timeout(patience.total_s or patience.silence_s):
                await self._connect(exchange.sender, server, patience.connect_s)
                self.watch.request(
                    exchange.sender.name, server, exchange.method, exchange.target, exchange.body
                )
                carrying = self._carry(exchange, server)
                self.loop.create_task(carrying, context=in_life(None))
                return await exchange.answer
        except TimeoutError:
            self._connected.discard(self._pair(exchange.sender, server))
            raise
        except _BrokenError as error:
            self._connected.discard(self._pair(exchange.sender, server))
            raise ConnectionResetError(str(error)) from None
        finally:
            exchange.wanted = False

    def _pair(self, sender: Life, server: str) -> tuple[int, int]:
        life = self.servers[server].life
        return sender.number, 0 if life is None else life.number

    async def _connect(self, sender: Life, server: str, patience: float | None) -> None:
        """Open a connection if there is none: both directions must pass."""
        if self._pair(sender, server) in self._connected and not self._moved(sender.name):
            return
        try:
            async with asyncio.timeout(patience):
                await self._travel(sender.name, server)
                while self.servers[server].dark or self._moved(sender.name):
                    await self._next_change()
                await self._travel(server, sender.name)
        except TimeoutError:
            raise TimeoutError(f"no connection to {server}") from None
        if self.servers[server].life is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{server} refused the connection")
        self._connected.add(self._pair(sender, server))

    def _moved(self, host: str) -> bool:
        """Return whether another host has this one's address, and so gets its answers."""
        server = self.servers.get(host)
        return server is not None and server.name != host

    # -- on the way --------------------------------------------------------------------------------

    async def _travel(self, sender: str, receiver: str) -> None:
        """Let a packet arrive, however often it has to be sent."""
        weather, random = self.weather, self.random
        delay = random.uniform(weather.delay_min_s, weather.delay_max_s)
        if weather.late and random.random() < weather.late:
            delay += random.random() * weather.late_s
        await asyncio.sleep(delay)
        again = _RESEND_S
        wire = (self.beside.get(sender, sender), self.beside.get(receiver, receiver))
        while wire in self.cut or (
            weather.lost and random.random() < weather.lost
        ):  # fmt: skip
            await asyncio.sleep(again)
            again = min(2 * again, _RESEND_MAX_S)

    async def _carry(self, exchange: _Exchange, server: str) -> None:
        self._count += 1
        number = self._count
        self._under_way[number] = exchange
        try:
            response = await self._there_and_back(exchange, server)
        except _BrokenError as error:
            if not exchange.answer.done():
                exchange.answer.set_exception(error)
        else:
            if not exchange.answer.done():
                exchange.answer.set_result(response)
        finally:
            del self._under_way[number]

    async def _there_and_back(self, exchange: _Exchange, server: str) -> Received:
        random, name = self.random, exchange.sender.name
        breaks = random.random() < self.weather.reset
        before = breaks and random.random() < 0.5
        await self._travel(name, server)
        if before or self._moved(name):
            raise _BrokenError("the connection was reset")
        if not exchange.wanted:
            self.watch.happened("request taken though its sender gave up")
        self.watch.arrived(name, server, exchange.target, exchange.body)
        if self.weather.repeated and random.random() < self.weather.repeated:
            self.watch.happened("request repeated")
            self.loop.call_later(
                random.random() * 2.0, self._repeat, exchange, server, context=in_life(None)
            )
        response = await self._take(exchange, server)
        if breaks:
            self.watch.happened("request lost after it was taken")
            raise _BrokenError("the connection was reset behind the request")
        await self._travel(server, name)
        return response

    def _repeat(self, exchange: _Exchange, server: str) -> None:
        """Let a request arrive once more; nobody waits for what comes back."""
        answer: asyncio.Future[Received] = self.loop.create_future()
        answer.add_done_callback(lambda done: done.exception())
        again = _Exchange(
            exchange.sender, exchange.method, exchange.url, exchange.target, exchange.headers,
            exchange.body, answer, wanted=False,
        )  # fmt: skip
        self.loop.create_task(self._carry_again(again, server))

    async def _carry_again(self, exchange: _Exchange, server: str) -> None:
        try:
            await self._take(exchange, server)
        except _BrokenError as error:
            exchange.answer.set_exception(error)

    async def _take(self, exchange: _Exchange, server: str) -> Received:
        """Let the application at an address handle a request, in its own life."""
        listener = self.servers[server]
        while listener.dark:
            await self._next_change()
        life = listener.life
        while life is not None and listener.app is None and listener.life is life:
            await self._next_change()  # in the backlog of its socket
        app = listener.app
        if life is None or listener.life is not life or app is None:
            raise _BrokenError("nobody listens there any more")
        exchange.taker = life
        told: asyncio.Future[Received] = self.loop.create_future()
        handling = _handle(app, exchange, told)
        task = self.loop.own_task(life, handling, f"{exchange.method} {exchange.target}")
        task.add_done_callback(
            lambda done: self._handled(done, exchange, server, told), context=in_life(None)
        )
        # A kill ends the life: the task is never done, and `reset` tells the sender.
        response = await self._or_reset(exchange, told)
        self.watch.answered(server, exchange.target, response.status)
        return response

    def _handled(
        self, done: asyncio.Task[None], exchange: _Exchange, server: str,
        told: asyncio.Future[Received],
    ) -> None:  # fmt: skip
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self.watch.failed(server, exchange.target, error)
        if not told.done():
            told.set_exception(_BrokenError("the application gave no answer"))

    async def _or_reset(self, exchange: _Exchange, told: asyncio.Future[Received]) -> Received:
        reset = self._resets.setdefault(id(exchange.taker), [])
        reset.append(told)
        try:
            return await told
        finally:
            reset.remove(told)

    async def _next_change(self) -> None:
        looks: asyncio.Future[None] = self.loop.create_future()
        self._looking.append(looks)
        await looks

    def changed(self) -> None:
        """See a server begin, or its machine come back: who waits for that looks again."""
        looking, self._looking = self._looking, []
        for looks in looking:
            if not looks.done():
                looks.set_result(None)

    def ended(self, life: Life, *, silent: bool) -> None:
        """See a process end.

        Args:
            silent: Its machine lost power: nobody is told that its connections are gone.
        """
        for told in tuple(self._resets.pop(id(life), ())):
            if not silent and not told.done():
                told.set_exception(_BrokenError("the process at the other end was killed"))
        self._connected = {pair for pair in self._connected if life.number not in pair}
        for exchange in self._under_way.values():
            if exchange.sender is life and exchange.wanted:
                exchange.wanted = False
        self.changed()


async def _handle(app: ASGIApp, exchange: _Exchange, told: asyncio.Future[Received]) -> None:
    """Call an application as its server does, with the whole request at once."""
    path, _, query = exchange.target.partition("?")
    host = urlsplit(exchange.url)
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": (host.hostname, host.port),
        "client": (exchange.sender.name, 40_000),
        "scheme": "http",
        "method": exchange.method,
        "root_path": "",
        "path": path,
        "raw_path": path.encode("ascii"),
        "query_string": query.encode("ascii"),
        "headers": [
            (b"host", host.netloc.encode()),
            *((name.lower().encode(), value.encode()) for name, value in exchange.headers.items()),
            (b"content-length", str(len(exchange.body)).encode()),
        ],
        "state": {},
    }
    requests: list[Message] = [
        {"type": "http.request", "body": exchange.body, "more_body": False}
    ]  # fmt: skip
    status, headers, parts = 0, dict[str, str](), list[bytes]()

    async def receive() -> Message:
        if requests:
            return requests.pop()
        await asyncio.get_running_loop().create_future()  # the connection stands
        raise AssertionError("nobody ends it")

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            for name, value in message.get("headers", ()):
                headers[name.decode("latin-1").lower()] = value.decode("latin-1")
            return
        parts.append(message.get("body", b""))
        if not message.get("more_body", False) and not told.done():
            told.set_result(Received(status, headers, b"".join(parts)))

    await app(scope, receive, send)


class SimulatedConnections(KeptConnections):
    """What links send requests with, over the simulated wire."""

    def __init__(self, network: Network, life: Life) -> None:
        super().__init__()
        self._network = network
        self._life = life

    async def request(
        self, method: str, url: str, target: str, *, headers: Mapping[str, str],
        body: bytes = b"", patience: Patience, tls: Mapping[str, Any] = MappingProxyType({}),
    ) -> Received:  # fmt: skip
        """Carry a request and its answer; errors as those of real connections."""
        exchange = _Exchange(
            self._life, method, url, target, dict(headers), body,
            self._network.loop.create_future(),
        )  # fmt: skip
        return await self._network.exchange(exchange, patience)
