"""Attacks on a node process, one after the other: how `/livez` answers meanwhile, and its memory.

Then all that one greedy client with a valid token can do, and strangers with it, at once
(`greedy`): another client must not notice.

python -m tests.verification.fuzz.attacks
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from tests.support.delta_writer import StagedTable, path_of
from tests.support.node_processes import MANUAL, NodeProcess, free_ports
from tests.verification.fuzz.greedy import ADDRESS, Honest, attacked, prepare, write_grants
from tests.verification.fuzz.samples import TABLE

#: Bounds of the figures: seconds to answer, and MiB above the memory before the first attack.
ANSWER_S = 0.25
MEMORY_MIB = 64
_PAUSE_S = 0.02
#: How often the other client does of everything a little.
_HONEST_ROUNDS = 10
_MIB = 1 << 20
_GET = b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\n"
_POST = b"POST /v1/transactions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"

Attack = Callable[[int], Coroutine[Any, Any, None]]


async def _send(port: int, *parts: bytes, wait_s: float = 20.0) -> bytes:
    """Send parts over one connection until the node closes it; return the begin of its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(ADDRESS, 0))
    answer = b""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(wait_s):
            for part in parts:
                writer.write(part)
                await writer.drain()
            answer = await reader.read(1000)
    writer.close()
    return answer


async def _url(port: int) -> None:
    await _send(port, b"GET /", *[b"x" * _MIB] * 93)


async def _header(port: int) -> None:
    await _send(port, _GET + b"x: ", *[b"y" * _MIB] * 40)


async def _headers(port: int) -> None:
    await _send(port, _GET, *[b"a: b\r\n" * 100_000] * 40)


async def _trailers(port: int) -> None:
    head = _POST + b"transfer-encoding: chunked\r\n\r\n0\r\n"
    await _send(port, head, *[b"a: b\r\n" * 100_000] * 40)


async def _ahead(port: int) -> None:
    await asyncio.gather(*(_send(port, (_GET + b"\r\n") * 20_000, wait_s=3) for _ in range(20)))


async def _many_bodies(port: int) -> None:
    head = _POST + b"content-length: 30000000\r\n\r\n"
    await asyncio.gather(*(_send(port, head, *[b" " * _MIB] * 28, wait_s=5) for _ in range(8)))


async def _body(port: int) -> None:
    await _send(port, _POST + b"content-length: 1000000000\r\n\r\n", *[b" " * _MIB] * 200)


async def _signed_by_nobody(port: int) -> None:
    head = b"POST /peer/v1/posts HTTP/1.1\r\nx-txlog-node: B\r\ncontent-length: 62914560\r\n\r\n"
    await asyncio.gather(*(_send(port, head, *[b"x" * _MIB] * 60, wait_s=5) for _ in range(8)))


async def _silent(port: int) -> None:
    async def hold() -> None:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(ADDRESS, 0))
            await asyncio.sleep(3)
            writer.close()

    await asyncio.gather(*(hold() for _ in range(600)))


def _noted(head: bytes) -> Attack:
    """Return an attack by requests of which each is noted in the audit; they end with a number."""

    async def ask(port: int) -> None:
        for number in range(500):
            asked = b"%s%d HTTP/1.1\r\nhost: 127.0.0.1\r\n" % (head, number)
            await _send(port, asked + b"x-txlog-node: B\r\nconnection: close\r\n\r\n")

    async def attack(port: int) -> None:
        await asyncio.gather(*(ask(port) for _ in range(20)))

    return attack


async def _others_ids(port: int) -> None:
    """Commit under ids of somebody else's commits, some of which are under way: all are told."""

    async def commit(name: str, row: int) -> bytes:
        operation = {"kind": "append", "table": "t", "rows": [{"id": row, "v": "x"}]}
        body = json.dumps({"transaction_id": name, "operations": [operation]}).encode()
        return await _send(port, _POST + b"content-length: %d\r\n\r\n" % len(body), body)

    for name in (str(uuid.uuid4()) for _ in range(20)):
        answers = await asyncio.gather(*(commit(name, row) for row in range(20)))
        answers += await asyncio.gather(*(commit(name, row) for row in range(20)))
        statuses = [int(answer.split(b" ", 2)[1]) for answer in answers]
        # One of them has the id, and is told so twice.
        if sorted(statuses) != [200] * 2 + [409] * 38:
            sys.exit(f"{statuses} to 20 contents under one id, each twice")


async def _idle(port: int) -> None:
    async def hold() -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(_GET + b"\r\n")
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(3)  # kept alive
            writer.close()

    await asyncio.gather(*(hold() for _ in range(128)))


async def _trickle(port: int, path: bytes) -> None:
    head = b"POST " + path + b" HTTP/1.1\r\nhost: x\r\ncontent-length: 999\r\n\r\n"

    async def hold() -> None:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head)
            for _ in range(6):
                await asyncio.sleep(0.5)
                writer.write(b"{")
                await writer.drain()
            writer.close()

    await asyncio.gather(*(hold() for _ in range(128)))


async def _staged_tricks(port: int) -> None:
    """Stage what a writer may put into its tables' directories, and ask for each: all is refused.

    Raises:
        AssertionError: Something else than a refusal came, or none in time.
    """
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

        async def ask(path: str, body: Any) -> tuple[int, Any]:
            async with asyncio.timeout(20), session.post(path, json=body) as answer:
                return answer.status, await answer.json()

        status, found = await ask(
            f"{path_of().removesuffix('tables')}staging-tables", {"name": "tricks"}
        )
        assert status == 200, found
        table = StagedTable.of(found)
        table.write_first()
        status, found = await ask(path_of(), table.creation("tricks"))
        assert status == 200, found
        deep = '{"clusteringColumns":' + "[" * 5_000 + "]" * 5_000 + "}"
        domain = {"domain": "delta.clustering", "configuration": deep, "removed": False}
        add: dict[str, Any] = {"path": "x", "size": -1, "partitionValues": {}}
        lines: list[dict[str, Any]] = [
            {"domainMetadata": domain},
            {"add": add},
            {"add": add | {"path": "//[x", "size": 1}},
            {"add": add | {"path": "../../A/journal.sqlite", "size": 1}},
            {"add": add | {"size": 2**70}},
        ]
        commits = [table.stage(1, line) for line in lines]
        commits.append(table.stage(1, timestamp=1 << 62))
        for plant in (os.mkfifo, lambda place: Path(place).symlink_to("/etc/passwd")):
            commit = table.stage(1)
            staged = table.staged(commit["file-name"])
            staged.unlink()
            plant(staged)
            commits.append(commit)
            file = table.directory / f"file-{len(commits)}"
            plant(file)
            commits.append(table.stage(1, {"add": add | {"path": file.name, "size": 9}}))
        for _ in range(20):
            bodies = map(table.update, commits)
            answers = await asyncio.gather(*(ask(path_of("tricks"), body) for body in bodies))
            assert {status for status, _ in answers} == {400}, answers


def _json(rows: str) -> Attack:
    async def attack(port: int) -> None:
        text = '{"operations":[{"kind":"append","table":"t","rows":[' + rows + "1]}]}"
        body = text.encode()
        head = _POST + f"content-length: {len(body)}\r\n\r\n".encode()
        await asyncio.gather(*(_send(port, head, body) for _ in range(4)))

    return attack


ATTACKS: dict[str, Attack] = {
    "a URL of 93 MiB": _url,
    "a header of 40 MiB": _header,
    "4,000,000 headers": _headers,
    "4,000,000 trailers": _trailers,
    "20 x 20,000 requests ahead": _ahead,
    "20 x 500 acts": _noted(b"DELETE /v1/open-transactions/%029x" % 0),
    "20 x 500 refused peers": _noted(b"GET /peer/v1/queue/"),
    "a body of 1 GB": _body,
    "8 bodies of 28 MiB at once": _many_bodies,
    "8 x 60 MiB for a peer's route": _signed_by_nobody,
    "600 silent connections": _silent,
    "800 contents under 20 ids": _others_ids,
    "128 idle connections": _idle,
    "128 slow bodies at a peer's path": partial(_trickle, path=b"/peer/nothing"),
    "128 slow bodies of transactions": partial(_trickle, path=b"/v1/transactions"),
    "200 commits with tricks in them": _staged_tricks,
    "30 MiB of []": _json("[]," * (10 * _MIB)),
    "200,000 objects, 4 times": _json('{"id":1},' * 200_000),
    "70,000 rows, 4 times": _json('{"id":1234567,"v":"some text"},' * 70_000),
    "10 MiB of one text, 4 times": _json('{"id":1,"v":"' + "x" * (10 * _MIB) + '"},'),
    "3 MiB of wide text, 4 times": _json('{"id":1,"v":"😀' + "x" * (3 * _MIB) + '"},'),
    "900,000 numbers, 4 times": _json("0.5," * 900_000),
}


def _memory_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / _MIB


class Watch:
    """Asks `/livez` again and again while an attack goes on."""

    def __init__(self, pid: int, port: int) -> None:
        self._pid, self._port = pid, port
        self.slowest_s = 0.0
        self.most_mib = 0.0

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Measure while the block runs."""
        self.slowest_s = self.most_mib = 0.0
        task = asyncio.create_task(self._ask_always())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if error := task.exception() if not task.cancelled() else None:
            raise error

    async def _ask_always(self) -> None:
        """Ask over one connection; as probes do, over another one if the node closes it."""
        while True:
            began = time.perf_counter()
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await self._ask(reader, writer, began)
                    await asyncio.sleep(_PAUSE_S)
                    began = time.perf_counter()
            writer.close()

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, began: float
    ) -> None:
        writer.write(_GET + b"\r\n")
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(3)
        self.slowest_s = max(self.slowest_s, time.perf_counter() - began)
        self.most_mib = max(self.most_mib, _memory_mib(self._pid))


async def attack_all(node: NodeProcess) -> list[tuple[str, float, float, bool]]:
    """Return for each attack: name, slowest answer in seconds, most MiB above before, failed."""
    port = int(node.url.rpartition(":")[2])
    assert node.process is not None
    watch = Watch(node.process.pid, port)
    async with watch.watching():
        await asyncio.sleep(1)
    print(f"before: slowest answer {watch.slowest_s * 1000:.0f} ms, {watch.most_mib:.0f} MiB")
    before, found = watch.most_mib, []
    for name in ATTACKS:
        async with watch.watching():
            # In a process of its own: its own pauses are not the node's.
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.verification.fuzz.attacks", name, str(port)
            )
            failed = await child.wait() != 0
        found.append((name, watch.slowest_s, watch.most_mib - before, failed))
        print(
            f"{name:32} {watch.slowest_s * 1000:6.0f} ms {watch.most_mib - before:+7.0f} MiB"
            + (" FAILED" if failed else ""),
            flush=True,
        )
    return found


async def attack_with_token(node: NodeProcess) -> list[str]:
    """Return what was over its bound while a greedy client and strangers attack."""
    assert node.process is not None
    port = int(node.url.rpartition(":")[2])
    watch, honest = Watch(node.process.pid, port), Honest(node.url)
    await honest.all()
    before = _memory_mib(node.process.pid)
    async with attacked(port), watch.watching():
        for _ in range(_HONEST_ROUNDS):
            await honest.all()
    added = watch.most_mib - before
    print(f"{'all that a token can do':32} {watch.slowest_s * 1000:6.0f} ms {added:+7.0f} MiB")
    refused = honest.refused()
    print(f"refused to another token: {refused or 'nothing'} of {honest.answers.total()} requests")
    found = [f"{act} of another token" for act in refused]
    return found + (["memory under a greedy token"] if added > MEMORY_MIB else [])


def _greedy(directory: Path) -> list[str]:
    """Attack a node of its own, which asks for tokens."""
    directory.mkdir()
    settings = ('client-token = "a token of all other clients"',)
    grants = f'grants-file = "{write_grants(directory)}"'
    node = NodeProcess(directory, "A", free_ports(1)[0], {}, (MANUAL, *settings, grants))
    node.start()
    try:
        asyncio.run(prepare(node.url, "a token of all other clients"))
        return asyncio.run(attack_with_token(node))
    finally:
        node.stop()


def main() -> int:
    """Run all attacks; 1 if a figure is over its bound.  With a name and a port: that one."""
    if len(sys.argv) == 3:
        asyncio.run(ATTACKS[sys.argv[1]](int(sys.argv[2])))
        return 0
    with tempfile.TemporaryDirectory(prefix="attacks-") as name:
        node = NodeProcess(Path(name), "A", free_ports(1)[0], {}, (MANUAL,))
        node.start()
        try:
            node.wait_ready()
            node.commit({"operations": [TABLE]})
            found = asyncio.run(attack_all(node))
            over = [row[0] for row in found if row[1] > ANSWER_S or row[2] > MEMORY_MIB or row[3]]
            assert node.process is not None
            if node.process.poll() is not None:
                over.append("the node ended")
        finally:
            node.stop()
        over += _greedy(Path(name) / "greedy")
    print(f"over the bound: {', '.join(over)}" if over else "all within the bounds")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
