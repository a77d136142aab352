"""`sparktxlog site switch` against real nodes: writers go on, and each kill is survived."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.service.local_nodes import cluster, until
from tests.service.test_acts_by_phase import QUICK, create
from tests.support.command_line import invoke, run_job

from sparktxlog import Client
from sparktxlog.cli.common_options import NodeApi
from sparktxlog.cli.switch.site_switch import SiteSwitch
from sparktxlog.health.readiness import readiness
from sparktxlog.runtime.node import Node
from sparktxlog.service.connections import pages

STEPS = ["copy", "promote", "precedence", "pause", "drain", "remove", "confirm"]


class Writer:
    """Commits one row after the other until it is stopped, at the first of its nodes that takes it.

    Args:
        urls: The nodes, the preferred one first.
    """

    def __init__(self, *urls: str) -> None:
        self.committed: list[int] = []
        self._stop, self._urls = threading.Event(), list(urls)

    def run(self) -> None:
        """Commit; each one has a position."""
        with Client(self._urls) as client:
            while not self._stop.is_set():
                number = len(self.committed) + 1
                receipt = client.append("t", [{"id": number, "v": "x"}], timeout=60)
                assert receipt.position is not None
                self.committed.append(receipt.position)

    def stop(self) -> None:
        """End after the commit that is under way."""
        self._stop.set()


def answer(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the line of JSON of a command; nodes of this process log to the same place."""
    (line,) = (one for one in capsys.readouterr().out.splitlines() if one.startswith("{"))
    found: dict[str, Any] = json.loads(line)
    return found


def test_writers_go_on_while_a_site_is_switched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A writer that knows both sites loses nothing, and writes nothing twice; A holds nothing."""
    reports = tmp_path / "reports"

    def switched(a: str, f: str, writer: Writer) -> None:
        asked = ("A", "F", "--url", a, "--json")
        capsys.readouterr()
        assert run_job(monkeypatch, "switch_site", *asked, "--dry-run", "--wait", "60") in (0, 3)
        plan = answer(capsys)
        assert [one["name"] for one in plan["steps"]] == STEPS
        assert not plan["finished"] and plan["members"] == ["A", "B"]
        assert run_job(monkeypatch, "switch_site", *asked, "--report", str(reports)) == 0
        done = answer(capsys)
        assert (done["finished"], done["members"]) == (True, ["F", "B"]), done
        assert {one["state"] for one in done["steps"]} <= {"done", "done before"}
        assert {page.suffix for page in reports.iterdir()} == {".md", ".html"}
        before = len(writer.committed)
        # A second run finds all done.
        assert invoke(monkeypatch, "site", "switch", "A", "F", "--url", f, "--json") == 0
        again = {one["name"]: one["state"] for one in answer(capsys)["steps"]}
        assert {again[name] for name in STEPS[:-1]} == {"done before"}
        for _ in range(2_000):
            if len(writer.committed) > before + 3:
                return
            threading.Event().wait(0.01)
        raise AssertionError("the writer stands still")

    async def main() -> None:
        async with cluster(tmp_path, "ABF", followers="F", **QUICK) as nodes:
            a, b, f = (nodes[name] for name in "ABF")
            await create(a)
            writer = Writer(a.config.master_url, f.config.master_url)
            writing = asyncio.create_task(asyncio.to_thread(writer.run))
            try:
                await until(lambda: len(writer.committed) > 3 or writing.done())
                await asyncio.to_thread(switched, a.config.master_url, f.config.master_url, writer)
            finally:
                writer.stop()
                await writing
            await until(lambda: len(set(_ends(b, f))) == 1 and _ends(b)[0] >= max(writer.committed))
            assert f.status()["chain_hash"] == b.status()["chain_hash"]
            assert await _effective(b) == 1 + len(set(writer.committed)), "the table, and each once"
            assert a.status()["unstamped_runs"] == 0

    asyncio.run(main())


async def _effective(node: Node) -> int:
    """Return how many took effect: a commit that is repeated elsewhere is a duplicate."""
    api = NodeApi(node.config.master_url)
    runs = await asyncio.to_thread(api.get, "/v1/queue", limit=1_000)
    return sum(run["n"] - len(run["rejected"]) for run in runs)


def _ends(*nodes: Node) -> list[int]:
    return [node.status()["position"] for node in nodes]


class KilledError(BaseException):
    """Stands for SIGKILL."""


def test_a_switch_that_is_killed_after_any_step_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the only member, and back again: a step that is done is not done a second time."""
    monkeypatch.setattr(SiteSwitch, "_take_back", lambda self: None)

    def killed_at(step: str) -> Callable[[str], None]:
        def tell(text: str) -> None:
            if text.startswith(f"{step}: done"):
                raise KilledError

        return tell

    def switch(url: str, old: str, new: str, step: str) -> None:
        with pytest.raises(KilledError):
            SiteSwitch(url, old, new, keep=True, wait_s=60, tell=killed_at(step)).run()
        done = SiteSwitch(url, old, new, keep=True, wait_s=60).run()
        assert done.finished and done.members == [new]
        states = [one.state for one in done.steps]
        assert set(states[: STEPS.index(step) + 1]) <= {"done before", "done"}
        name = "remove" if step == "confirm" else step
        if name != "drain":  # whether all is drained is looked at again
            assert states[STEPS.index(name)] == "done before", (step, states)

    async def main() -> None:
        async with cluster(tmp_path, "AF", followers="F", **QUICK) as nodes:
            await create(nodes["A"])
            urls = {name: node.config.master_url for name, node in nodes.items()}
            old, new = "A", "F"
            for step in ("promote", "pause", "drain", "remove", "confirm"):
                await asyncio.to_thread(switch, urls[old], old, new, step)
                out = nodes[old]
                await until(lambda out=out: out.status()["phase"] == "FOLLOWING")  # type: ignore[misc]
                assert not out.status()["paused"], "promoted again it takes transactions"
                with Client(urls[new]) as client:
                    rows = [{"id": 1, "v": step}]
                    receipt = await asyncio.to_thread(client.append, "t", rows)
                assert receipt.position is not None
                old, new = new, old

    asyncio.run(main())


def test_what_cannot_be_switched_is_refused_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(url: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = invoke(monkeypatch, "site", "switch", *arguments, "--url", url, "--json")
        return code, answer(capsys)

    def work(a: Node) -> None:
        url = a.config.master_url
        for names, title, text in (
            (("A", "A"), "protocol-local", "A is one site"),
            (("A", "X"), "not-found", "node 'X' has no place"),
            (("X", "F"), "not-found", "node 'X' has no place"),
            (("F", "A"), "protocol-local", "F is a follower"),
        ):
            code, problem = refused(url, *names)
            assert (code, problem["title"], problem["definite"]) == (1, title, True)
            assert text in problem["detail"]

    async def main() -> None:
        async with cluster(tmp_path, "ABF", followers="F", **QUICK) as nodes:
            a, f = nodes["A"], nodes["F"]
            await create(a)
            epoch = a.status()["epoch"]
            await asyncio.to_thread(work, a)
            await f.change_settings({"paused": True})
            code, plan = await asyncio.to_thread(
                refused, a.config.master_url, "A", "F", "--dry-run"
            )
            assert code == 3 and "F is paused: no writer could go there" in plan["problems"]
            code, problem = await asyncio.to_thread(refused, a.config.master_url, "A", "F")
            assert (code, problem["title"], problem["definite"]) == (1, "protocol-local", True)
            assert a.status()["epoch"] == epoch and not a.status()["paused"]

    asyncio.run(main())


class Door:
    """Passes connections on to one node: a reverse proxy, or a machine, as clients see them.

    Args:
        host: Of loopback.
        port: 0 = a free one.
        to: Port of the node.
    """

    def __init__(self, host: str, port: int, to: int) -> None:
        self._host, self.port, self.to = host, port, to
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Take connections."""
        self._server = await asyncio.start_server(self._passed, self._host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _passed(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_node = await asyncio.open_connection("127.0.0.1", self.to)
        self._open |= {writer, to_node}
        await asyncio.gather(_pumped(reader, to_node), _pumped(there, writer))
        self._open -= {writer, to_node}

    def shut(self) -> None:
        """End the connections that there are."""
        for writer in self._open:
            writer.close()

    async def stop(self) -> None:
        """Take no more, and end those that there are: the machine is gone."""
        assert self._server is not None
        self._server.close()
        self.shut()
        await self._server.wait_closed()


async def _pumped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def _writing(node: Node, url: str) -> AsyncIterator[Writer]:
    """Let a writer commit at one URL; each of its commits takes effect once, in the end."""
    writer, before = Writer(url), await _effective(node)
    writing = asyncio.create_task(asyncio.to_thread(writer.run))
    try:
        await until(lambda: len(writer.committed) > 3 or writing.done())
        yield writer
        begun = len(writer.committed)
        await until(lambda: len(writer.committed) > begun + 3 or writing.done())
    finally:
        writer.stop()
        await writing
    await until(lambda: node.status()["position"] >= max(writer.committed))
    assert await _effective(node) == before + len(set(writer.committed))
    assert len(writer.committed) == len(set(writer.committed))


@pytest.mark.thorough
def test_writers_follow_a_proxy_that_asks_who_is_ready(tmp_path: Path) -> None:
    """A site that is paused is not ready, so the proxy turns before the switch is done."""

    async def main() -> None:
        async with cluster(tmp_path, "ABF", followers="F", **QUICK) as nodes:
            a, b, f = (nodes[name] for name in "ABF")
            await create(a)
            door = Door("127.0.0.1", 0, _port(a))
            await door.start()

            async def turned() -> None:
                while all(check.good for check in readiness(a.status())):
                    await asyncio.sleep(0.02)
                door.to = _port(f)
                door.shut()

            try:
                async with _writing(b, f"http://127.0.0.1:{door.port}"):
                    turning = asyncio.create_task(turned())
                    url = b.config.master_url
                    done = await asyncio.to_thread(
                        SiteSwitch(url, "A", "F", keep=False, wait_s=60).run
                    )
                    await turning
                    assert done.finished
            finally:
                await door.stop()

    asyncio.run(main())


@pytest.mark.thorough
def test_writers_follow_a_name_that_gets_another_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is looked up when the old site's machine ends the connections, and not before."""
    address = {"log.localhost": "127.0.0.2"}
    resolve = socket.getaddrinfo

    def resolved(host: Any, *rest: Any, **more: Any) -> Any:
        return resolve(address.get(host, host), *rest, **more)

    async def main() -> None:
        async with cluster(tmp_path, "ABF", followers="F", **QUICK) as nodes:
            a, b, f = (nodes[name] for name in "ABF")
            await create(a)
            old = Door("127.0.0.2", 0, _port(a))
            await old.start()
            new = Door("127.0.0.3", old.port, _port(f))
            await new.start()
            try:
                async with _writing(b, f"http://log.localhost:{old.port}"):
                    url = b.config.master_url
                    done = await asyncio.to_thread(
                        SiteSwitch(url, "A", "F", keep=False, wait_s=60).run
                    )
                    assert done.finished
                    address["log.localhost"] = "127.0.0.3"
                    await old.stop()
            finally:
                await new.stop()

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    # As nodes that other machines reach: those may be called by any name.
    monkeypatch.setattr(pages, "is_loopback", lambda host: False)
    asyncio.run(main())


def _port(node: Node) -> int:
    return urlsplit(node.config.master_url).port or 0
