"""Real nodes that speak TLS: who is let in, and what happens when files or addresses change."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import os
import shutil
import socket
import ssl
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvloop
from structlog.testing import capture_logs
from tests.service.local_nodes import config_of, serving, until
from tests.service.test_staged_files import stage
from tests.support.certificates import Authority, Pair
from tests.support.command_line import invoke

from sparktxlog import Client
from sparktxlog.cli.common_options import NodeApi
from sparktxlog.errors import CertificateError, InvalidRequestError
from sparktxlog.http.link import Http
from sparktxlog.runtime.node import Node
from sparktxlog.transport import node_certificate
from sparktxlog.transport.signing import BOOT, COUNTER, NODE, TO


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a test on the event loop that nodes have."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


class Sites:
    """Nodes of one cluster, each of which can be stopped, and started with other settings."""

    def __init__(self, directory: Path, names: str, authority: Authority) -> None:
        self.directory = directory
        self._authority = authority
        self.listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in names}
        self.ports = {name: one.getsockname()[1] for name, one in self.listeners.items()}
        self.files: dict[str, Pair] = {}
        self.nodes: dict[str, Node] = {}
        self._running: dict[str, AsyncExitStack] = {}

    def url(self, name: str, scheme: str = "https") -> str:
        return f"{scheme}://127.0.0.1:{self.ports[name]}"

    def put(self, name: str, pair: Pair) -> None:
        """Write a node's certificate and key to where its configuration has them."""
        kept = self.files.setdefault(
            name,
            Pair(cert=self.directory / f"{name}.crt", key=self.directory / f"{name}.key"),
        )
        shutil.copy(pair.cert, kept.cert)
        shutil.copy(pair.key, kept.key)

    def settings(self, name: str, **changes: Any) -> dict[str, Any]:
        """Return the settings of a node with TLS, and peers by https."""
        if name not in self.files:
            self.put(name, self._authority.issue(name))
        others = [other for other in self.ports if other != name]
        found = {
            "tls-cert-file": str(self.files[name].cert),
            "tls-key-file": str(self.files[name].key),
            "tls-ca-file": str(self._authority.ca_file),
            "master-url": self.url(name),
        }
        found |= {f"peer.{n}.url": self.url(other) for n, other in enumerate(others, start=1)}
        return found | {key.replace("_", "-"): value for key, value in changes.items()}

    async def start(self, name: str, settings: dict[str, Any]) -> Node:
        stack = self._running[name] = AsyncExitStack()
        config = config_of(self.directory, name, self.ports, **settings)
        own = serving(config, self.listeners[name].dup())
        self.nodes[name] = await stack.enter_async_context(own)
        return self.nodes[name]

    async def stop(self, name: str) -> None:
        await self._running.pop(name).aclose()

    def linked(self) -> bool:
        return all(link.up for node in self.nodes.values() for link in node.base.links.values())

    async def close(self) -> None:
        for name in tuple(self._running):
            await self.stop(name)
        for listener in self.listeners.values():
            listener.close()


@asynccontextmanager
async def sites_of(directory: Path, names: str, authority: Authority) -> AsyncIterator[Sites]:
    found = Sites(directory, names, authority)
    try:
        yield found
    finally:
        await found.close()


async def commit(url: str, authority: Authority, number: int) -> None:
    """Commit a row by a client of a node, and wait until it is ordered."""

    def work() -> None:
        with Client(url, ca_file=authority.ca_file) as client:
            if number == 0:
                client.create_table("t", {"id": "bigint"})
            client.append("t", [{"id": number}], level="ordered")

    await asyncio.to_thread(work)


def test_two_nodes_commit_and_are_read(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with sites_of(tmp_path, "AB", authority) as sites:
            for name in "AB":  # they have no secret, and need none
                await sites.start(name, sites.settings(name, cluster_secret=None))
            await until(sites.linked)
            await commit(sites.url("A"), authority, 0)
            await commit(sites.url("B"), authority, 1)
            a, b = sites.nodes["A"].base, sites.nodes["B"].base
            await until(lambda: a.ordered.value == b.ordered.value == 3)
            assert a.links["B"].url == sites.url("B")
            ca_file = str(authority.ca_file)
            arguments = ("--ca-file", ca_file, "queue", "--url", sites.url("B"), "--json")
            assert await asyncio.to_thread(invoke, monkeypatch, *arguments) == 0

            # Without TLS nobody gets in, and the answer says how.
            plain = Http(sites.url("A", "http"))
            for path in ("/livez", "/v1/info", "/peer/v1/watch"):
                with closing(plain), pytest.raises(InvalidRequestError, match="only https"):
                    await asyncio.to_thread(plain.request, "GET", path)
            # A staged file travels by a thread's own connection.
            assert await asyncio.to_thread(staged_from, sites)

    monkeypatch.setenv("SPARKTXLOG_CA_FILE", "")
    run(main())


def staged_from(sites: Sites) -> bytes:
    """Return a file of A's payload store as B fetches it."""
    _, (file,) = stage(sites.nodes["A"], files=1)
    found = b"".join(sites.nodes["B"].base.links["A"].stream(file, 0))
    assert hashlib.sha256(found).hexdigest() == file.digest
    return found


def say(url: str, authority: Authority, pair: Pair | None, node: str) -> tuple[int, str]:
    """Return what a node answers to a request in the name of a peer, with a certificate."""
    context = ssl.create_default_context(cafile=authority.ca_file)
    if pair is not None:
        context.load_cert_chain(pair.cert, pair.key)
    address = urlsplit(url)
    connection = http.client.HTTPSConnection(
        str(address.hostname), address.port, timeout=10, context=context
    )
    with closing(connection):
        headers = {NODE: node, BOOT: "x", TO: "", COUNTER: "1"}
        connection.request("GET", "/peer/v1/watch", headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_only_the_certificate_of_a_peer_proves_that_it_is_one(
    tmp_path: Path, authority: Authority
) -> None:
    async def main() -> None:
        async with sites_of(tmp_path, "AB", authority) as sites:
            with capture_logs() as logged:
                a = await sites.start("A", sites.settings("A", cluster_secret=None))
                url, other = sites.url("A"), Authority(tmp_path, "other")

                def ask(pair: Pair | None, node: str = "B") -> Any:
                    return asyncio.to_thread(say, url, authority, pair, node)

                status, text = await ask(authority.issue("B"))
                assert (status, "stale-session" in text) == (409, True)  # let in: it has to greet
                for pair, shown in (
                    (None, "no certificate"),
                    (authority.issue("C"), "a certificate of C"),
                    (authority.issue("b", "C"), "a certificate of b, C"),
                ):
                    status, text = await ask(pair)
                    assert (status, f"came with {shown}" in text) == (401, True), text
                assert (await ask(authority.issue("X"), "X"))[0] == 403
                for pair in (other.issue("B"), authority.issue("B", days=-1)):
                    with pytest.raises(OSError, match=r"ALERT|reset|closed"):
                        await ask(pair)
                reasons = {
                    one["reason"] for one in logged if one["event"] == "TLS handshake failed"
                }
                assert len(reasons) == 2 and "certificate has expired" in reasons

                # Who takes the place of B has to show B's certificate, too.
                server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                pair = authority.issue("C")
                server.load_cert_chain(pair.cert, pair.key)
                async with await asyncio.start_server(
                    lambda reader, writer: writer.close(), sock=sites.listeners["B"], ssl=server
                ):
                    link = a.base.links["B"]
                    await until(lambda: "shows no certificate of node 'B'" in link.reason)
                assert link.traffic.received_bytes == 0

    run(main())


def test_changed_files_are_taken_up(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_certificate, "CHECK_S", 0.02)

    def shown(sites: Sites) -> str:
        return ssl.get_server_certificate(("127.0.0.1", sites.ports["A"]))

    async def main() -> None:
        async with sites_of(tmp_path, "AB", authority) as sites:
            bundle, fresh = tmp_path / "ca.crt", Authority(tmp_path, "fresh")
            shutil.copy(authority.ca_file, bundle)
            for name in "AB":
                settings = sites.settings(name, tls_ca_file=str(bundle), cluster_secret=None)
                await sites.start(name, settings)
            await until(sites.linked)
            a, b = sites.nodes["A"], sites.nodes["B"]
            first = await asyncio.to_thread(shown, sites)

            def end() -> float:
                lines = a.base.metrics.text().decode().splitlines()
                (line,) = [one for one in lines if one.startswith("sparktxlog_certificate_ends_at")]
                return float(line.split()[1])

            assert 29 < (end() - time.time()) / 86_400 < 30

            # Half of a change is not taken up; it is shown.
            sites.files["A"].cert.write_text("half")
            await until(lambda: a.status()["failing"])
            assert "tls-cert-file" in a.status()["failing"][0]["text"]
            assert await asyncio.to_thread(shown, sites) == first
            sites.put("A", authority.issue("A", days=3))
            await until(lambda: not a.status()["failing"])
            assert await asyncio.to_thread(shown, sites) != first
            assert 2 < (end() - time.time()) / 86_400 < 3
            (warning,) = [w for w in a.status()["warnings"] if w["code"] == "certificate-ends"]
            assert "no restart is needed" in warning["text"]

            def used() -> dict[str, object]:
                return {name: sites.nodes[name].base.certificate.contexts for name in "AB"}

            async def taken(before: dict[str, object], names: str = "AB") -> None:
                await until(lambda: all(used()[name] is not before[name] for name in names))

            # Another authority: first both believe it as well, then it signs, then it is alone.
            before = used()
            bundle.write_bytes(authority.ca_file.read_bytes() + fresh.ca_file.read_bytes())
            await taken(before)
            for name in "AB":
                before = used()
                sites.put(name, fresh.issue(name))
                await taken(before, name)
            before = used()
            shutil.copy(fresh.ca_file, bundle)
            await taken(before)
            a.base.links["B"].greet_again()
            b.base.links["A"].greet_again()
            await until(sites.linked)
            await commit(sites.url("B"), fresh, 0)
            with pytest.raises(CertificateError):
                await commit(sites.url("B"), authority, 1)

    run(main())


def test_a_cluster_changes_over_without_a_stop(tmp_path: Path, authority: Authority) -> None:
    """The steps of docs/access.md; each is followed by commits at both nodes."""

    async def main() -> None:
        async with sites_of(tmp_path, "AB", authority) as sites:
            number = 0

            async def works(*schemes: str) -> None:
                nonlocal number
                await until(sites.linked)
                for name, scheme in zip("AB", schemes, strict=True):
                    await commit(sites.url(name, scheme), authority, number)
                    number += 1

            def move(name: str, asked: str, *schemes: str) -> None:
                with closing(NodeApi(sites.url("A", asked))) as api:
                    urls = ",".join(sites.url(name, scheme) for scheme in schemes)
                    api.send("PATCH", f"/v1/peers/{name}?timeout=60", {"url": urls})

            for name in "AB":
                await sites.start(name, {})
            await works("http", "http")
            for name in "AB":  # 1. all learn the new addresses
                await asyncio.to_thread(move, name, "http", "http", "https")
            await works("http", "http")
            # 2. one node after the other gets its certificate
            for name, schemes in (("A", ("https", "http")), ("B", ("http", "https"))):
                await sites.stop(name)
                await sites.start(name, sites.settings(name, tls_mode="allow-http"))
                await works(*schemes)
            for name in "AB":  # 3. the old addresses go
                await asyncio.to_thread(move, name, "https", "https")
            links = (sites.nodes["A"].base.links["B"], sites.nodes["B"].base.links["A"])
            await until(lambda: all(link.up and link.url.startswith("https") for link in links))
            await works("https", "https")
            for name in "AB":  # 4. nothing goes without TLS
                await sites.stop(name)
                await sites.start(name, sites.settings(name))
                await works("https", "https")
            for name in "AB":
                link = Http(sites.url(name, "http"))
                with closing(link), pytest.raises(InvalidRequestError, match="only https"):
                    await asyncio.to_thread(link.get, "/v1/info")
            ends = [sites.nodes[name].base.ordered for name in "AB"]
            await until(lambda: [end.value for end in ends] == [number + 1] * 2)

    os.environ["SPARKTXLOG_CA_FILE"] = str(authority.ca_file)
    try:
        run(main())
    finally:
        del os.environ["SPARKTXLOG_CA_FILE"]


def test_a_node_with_tls_calls_no_plain_address(tmp_path: Path, authority: Authority) -> None:
    """B, without TLS, stays where it was; A says why it does not call it."""

    async def main() -> None:
        async with sites_of(tmp_path, "AB", authority) as sites:
            await sites.start("B", {})
            await sites.start("A", {})
            await until(sites.linked)
            for name in "AB":  # an epoch is decided: its addresses count from now on
                with closing(NodeApi(sites.url("A", "http"))) as api:
                    await asyncio.to_thread(
                        api.send, "PATCH", f"/v1/peers/{name}?timeout=60", {"weight": 2}
                    )
            await sites.stop("A")
            await sites.start("A", sites.settings("A"))
            link = sites.nodes["A"].base.links["B"]
            await until(lambda: "no https address" in link.reason)
            assert "tls-mode" in link.reason
            api, said = NodeApi(sites.url("A"), ca_file=authority.ca_file), sites.url("B", "http")
            with closing(api), pytest.raises(InvalidRequestError, match="no https address"):
                await asyncio.to_thread(api.send, "PATCH", "/v1/peers/B", {"url": said})
            back = sites.nodes["B"].base.links["A"]
            await until(lambda: "only https" in back.reason)

    run(main())
