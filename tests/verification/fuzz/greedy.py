"""All attacks on some nodes at once, by strangers and by one client with a valid token.

They hold what they can get: connections, bodies, uploads, open transactions, streams and long
polls; each pauses between two requests, as what they want is places and memory, not the processor.
They come from an address of their own, and from a process that gives way to the nodes: attackers
have machines of their own.

    python -m tests.verification.fuzz.greedy TOKEN PORT...

attacks until it is ended, after the line `all begun`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
from tests.support.delta_writer import API, path_of

#: Grants of the two clients: one is greedy, the other one goes on.
TOKENS = {name: f"a token of the {name} client" for name in ("greedy", "honest")}
_PAUSE_S = 1.0
_QUICK = 500
#: Of attackers: places belong to addresses, and who looks on has another one.
ADDRESS = "127.0.0.66"
_MIB = 1 << 20
_DIGEST = sha256(b"").hexdigest()

Attack = Callable[["Attacker"], Coroutine[Any, Any, None]]


def write_grants(directory: Path) -> Path:
    """Write the grants of both clients, and return the file for `grants-file`."""
    lines = []
    for name, token in TOKENS.items():
        file = directory / f"{name}.token"
        file.write_text(token)
        file.chmod(0o600)
        lines.append(f'[{name}]\ntoken-file = "{file}"\nwrite = ["default.*", "s.*"]\n')
    grants = directory / "grants.toml"
    grants.write_text("".join(lines))
    return grants


class Attacker:
    """Sends to one node.

    Args:
        port: Of the node, on loopback.
        token: Of the greedy client.
    """

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self.token = f"authorization: Bearer {token}\r\n"
        #: One for each connection that is kept: done when it sent something the first time.
        self.begun: list[asyncio.Future[None]] = []

    def head(self, line: str, size: int = 0, *, kind: str = "json") -> bytes:
        """Return the head of a request with the token."""
        about = f"{line} HTTP/1.1\r\nhost: 127.0.0.1\r\n{self.token}"
        if size:
            about += f"content-type: application/{kind}\r\ncontent-length: {size}\r\n"
        return f"{about}\r\n".encode()

    async def again(self, *parts: bytes, times: int, pause_s: float = 0.0) -> None:
        """Keep so many connections on which parts are sent, with pauses; a lost one comes again."""

        async def keep(begun: asyncio.Future[None]) -> None:
            while True:
                with contextlib.suppress(OSError):
                    reader, writer = await asyncio.open_connection(
                        "127.0.0.1", self._port, local_addr=(ADDRESS, 0)
                    )
                    try:
                        for part in parts:
                            writer.write(part)
                            await writer.drain()
                            _note(begun)
                            await asyncio.sleep(pause_s)
                        _note(begun)
                        while await reader.read(1 << 16):
                            pass
                    finally:
                        writer.close()
                await asyncio.sleep(_PAUSE_S)

        await asyncio.gather(*(keep(self._beginning()) for _ in range(times)))

    async def ask_again(self, path: str, body: bytes, *, times: int) -> None:
        """Send a request over some connections, with pauses after a refusal or `_QUICK` times."""
        address = f"http://127.0.0.1:{self._port}"
        headers = {"content-type": "application/json", "authorization": self.token[15:-2]}

        async def ask(begun: asyncio.Future[None]) -> None:
            connector = aiohttp.TCPConnector(local_addr=(ADDRESS, 0))
            async with aiohttp.ClientSession(address, headers=headers, connector=connector) as one:
                for number in itertools.count():
                    with contextlib.suppress(aiohttp.ClientError):
                        async with one.post(path, data=body) as answer:
                            await answer.read()
                            if answer.status == 200 and number < _QUICK:
                                continue
                    _note(begun)
                    await asyncio.sleep(_PAUSE_S)

        await asyncio.gather(*(ask(self._beginning()) for _ in range(times)))

    def _beginning(self) -> asyncio.Future[None]:
        self.begun.append(asyncio.get_running_loop().create_future())
        return self.begun[-1]


def _note(begun: asyncio.Future[None]) -> None:
    if not begun.done():
        begun.set_result(None)


async def idle(to: Attacker) -> None:
    """Keep connections that say nothing."""
    await to.again(times=128)


async def peers_bodies(to: Attacker) -> None:
    """Send slow bodies to routes of peers, without a proof."""
    head = "POST /peer/v1/posts HTTP/1.1\r\nx-txlog-node: B\r\ncontent-length: 62914560\r\n\r\n"
    heads = (head.encode(), head.replace("posts", "nothing").encode())
    await asyncio.gather(*(to.again(h, *[b"x"] * 60, times=16, pause_s=1.0) for h in heads))


async def junk(to: Attacker) -> None:
    """Send what is no request."""
    await to.again(os.urandom(1 << 16), times=4)


async def slow_bodies(to: Attacker) -> None:
    """Send bodies with the token that stop before their end."""
    size = 30 * _MIB
    await to.again(to.head("POST /v1/transactions", size), *[b" " * _MIB] * 25, times=3)


async def big_bodies(to: Attacker) -> None:
    """Send large bodies with the token that are read and refused."""
    body = b'{"operations":[{"kind":"append","table":"t","rows":[' + b'{"id":1},' * 60_000
    await to.ask_again("/v1/transactions", body, times=4)


async def uploads(to: Attacker) -> None:
    """Begin uploads with most of a part, and go on slowly."""

    async def one() -> None:
        path = f"/v1/staged/{uuid.uuid4()}/0-t/a?table=t&size={4 * _MIB}&rows=1&digest={_DIGEST}"
        head = to.head(f"PUT {path}", 4 * _MIB, kind="octet-stream")
        await to.again(head, b"x" * (3 * _MIB), *[b"x" * 4096] * 200, times=1, pause_s=0.05)

    await asyncio.gather(*(one() for _ in range(16)))


async def event_streams(to: Attacker) -> None:
    """Open streams of events."""
    await to.again(to.head("GET /dashboard/events"), times=40)


async def long_polls(to: Attacker) -> None:
    """Wait for what does not come."""
    await to.again(to.head("GET /v1/published?at_least=999999999&timeout=60"), times=800)


async def open_transactions(to: Attacker) -> None:
    """Open transactions, and leave them."""
    await to.ask_again("/v1/open-transactions", b'{"lease":3600}', times=4)


async def staging_tables(to: Attacker) -> None:
    """Ask for places of tables, and leave them."""
    path = path_of(schema="s").replace("/tables", "/staging-tables")
    await to.ask_again(path, b'{"name":"x"}', times=4)


ATTACKS: tuple[Attack, ...] = (
    idle,
    peers_bodies,
    junk,
    slow_bodies,
    big_bodies,
    uploads,
    event_streams,
    open_transactions,
    staging_tables,
)


async def _all_begun(attackers: list[Attacker]) -> None:
    await asyncio.sleep(1)  # until each has made its connections
    await asyncio.gather(*(begun for attacker in attackers for begun in attacker.begun))


async def attack(token: str, ports: list[int]) -> None:
    """Attack nodes in all ways at once, until it is cancelled."""
    attackers = [Attacker(port, token) for port in ports]
    async with asyncio.TaskGroup() as tasks:
        for attacker in attackers:
            for one in ATTACKS:
                tasks.create_task(one(attacker))
        await _all_begun(attackers)
        for attacker in attackers:  # last: they take all connections that are left
            tasks.create_task(long_polls(attacker))
        await _all_begun(attackers)
        print("all begun", flush=True)


@contextlib.asynccontextmanager
async def attacked(*ports: int) -> AsyncIterator[None]:
    """Attack nodes meanwhile, from a process of its own."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.verification.fuzz.greedy",
        TOKENS["greedy"],
        *map(str, ports),
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    try:
        await child.stdout.readline()
        assert child.returncode is None
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


async def prepare(url: str, token: str) -> None:
    """Create the table and the schema that the clients write, once the node answers."""
    headers = {"authorization": f"Bearer {token}"}
    columns = [{"name": "id", "type": "bigint"}]
    made = {"operations": [{"kind": "create_table", "table": "t", "columns": columns}]}
    schema = {"name": "s", "catalog_name": "tx"}
    async with aiohttp.ClientSession(url, headers=headers) as session:
        async with asyncio.timeout(60):
            while not await _is_ready(session):
                await asyncio.sleep(_PAUSE_S)
        for path, body in (("/v1/transactions", made), (f"{API}/schemas", schema)):
            async with session.post(path, json=body) as answer:
                assert answer.status == 200, await answer.text()


async def _is_ready(session: aiohttp.ClientSession) -> bool:
    with contextlib.suppress(aiohttp.ClientError):
        async with session.get("/readyz") as answer:
            return answer.status == 200
    return False


class Honest:
    """A client with a token of its own, which does of everything a little.

    Args:
        url: Of a node.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._headers = {"authorization": f"Bearer {TOKENS['honest']}"}
        #: Act and status → how often.
        self.answers: Counter[tuple[str, int]] = Counter()

    async def ask(
        self, act: str, method: str, path: str, body: object = None, data: bytes | None = None
    ) -> int:
        """Send a request over a connection of its own, and count its status."""
        async with aiohttp.ClientSession(headers=self._headers) as session:
            kind = {} if data is None else {"content-type": "application/octet-stream"}
            async with session.request(
                method, self._url + path, json=body, data=data, headers=kind
            ) as answer:
                if answer.content_type == "text/event-stream":
                    await answer.content.readline()
                else:
                    await answer.read()
                self.answers[act, answer.status] += 1
                return answer.status

    async def all(self) -> None:
        """Do one of each."""
        content = os.urandom(1 << 16)
        file = f"{uuid.uuid4()}/0-t/a.bin"
        place = path_of(schema="s").replace("/tables", "/staging-tables")
        about = f"table=t&rows=0&size={len(content)}&digest={sha256(content).hexdigest()}"
        rows = [{"id": number} for number in range(1_000)]
        append = {"operations": [{"kind": "append", "table": "t", "rows": rows}]}
        await self.ask("upload", "PUT", f"/v1/staged/{file}?{about}", data=content)
        await self.ask("body", "POST", "/v1/transactions", append)
        await self.ask("open", "POST", "/v1/open-transactions", {"lease": 1})
        await self.ask("stream", "GET", "/dashboard/events")
        await self.ask("poll", "GET", "/v1/published?at_least=999999999&timeout=0.1")
        await self.ask("stage", "POST", place, {"name": f"t{uuid.uuid4().hex}"})

    def refused(self) -> dict[str, int]:
        """Return which acts were answered otherwise than with success, and how often."""
        found: Counter[str] = Counter()
        for (act, status), count in self.answers.items():
            if status not in (200, 204):
                found[f"{act} {status}"] += count
        return dict(found)


if __name__ == "__main__":
    os.nice(19)
    asyncio.run(attack(sys.argv[1], [int(port) for port in sys.argv[2:]]))
