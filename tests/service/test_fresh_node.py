"""A node that keeps nothing may have lost its disk: it takes nothing until a peer took it."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from tests.service.local_nodes import cluster, config_of, serving, until
from tests.service.test_staged_files import create

from sparktxlog import Client
from sparktxlog.codec.delta_catalog.catalog_requests import CATALOG_API
from sparktxlog.errors import NotFoundError, NotMemberError, TxLogError, UnknownTableError
from sparktxlog.http.link import Http
from sparktxlog.model.transactions.receipt import Level
from sparktxlog.runtime.node import build_node
from sparktxlog.service.routing.declared_route import Role
from sparktxlog.service.routing.routes import ROUTES


def test_a_fresh_node_without_a_peer_takes_no_transaction(tmp_path: Path) -> None:
    """Seeds 0, 4, 8, 9, 12 and 13 of `tests.verification.nodes`.

    A client committed at a node that came back with an empty disk, before its first greeting: with
    data of its own under another instance no peer ever let it in again.
    """

    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))  # a peer that never answers
        ports = {"A": 1, "B": listener.getsockname()[1]}
        running = build_node(config_of(tmp_path, "A", ports))
        await running.start()
        try:
            with pytest.raises(NotMemberError, match="B has not accepted it") as caught:
                await running.submit(create(), level=Level.ACCEPTED, timeout=5)
            assert caught.value.definite and caught.value.retryable
            assert not running.membership.joining.proven
        finally:
            await running.stop()
            listener.close()

    asyncio.run(main())


def test_a_node_that_keeps_something_takes_transactions_though_it_is_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a = nodes["A"]
            await a.submit(create(), level=Level.ORDERED, timeout=20)
            config = a.config
        alone = build_node(config)
        await alone.start()
        try:
            await until(lambda: alone.membership.joining.proven, 5)
            receipt = await alone.submit(create(), level=Level.ACCEPTED, timeout=20)
            assert receipt.level is Level.ACCEPTED
        finally:
            await alone.stop()

    asyncio.run(main())


#: What a node answers of itself, though it knows nothing of the log.
ALWAYS = {
    "info", "status", "settings", "audit", "probe", "epochs", "epoch_history", "view", "metrics",
}  # fmt: skip
NO_ID = "00000000-0000-4000-8000-000000000000"


def test_a_node_that_does_not_know_the_log_answers_nothing_of_it(tmp_path: Path) -> None:
    """It said `unknown-table`, definite, of tables that all others have, for some seconds."""

    def refused(link: Http, method: str, path: str) -> str:
        try:
            link.request(method, path, body=None if method == "GET" else b"{}", timeout_s=20)
        except TxLogError as error:
            if error.fields.get("status") == 503 and path.startswith(CATALOG_API):
                return "not-a-member"  # in the shape of the catalog's API
            return error.code if error.retryable and error.definite else f"definite {error.code}"
        return "answered"

    def ask(url: str) -> None:
        link = Http(url)
        said = {
            route.name: refused(
                link,
                route.method,
                route.template.replace("{view}", "masters").replace("{id}", NO_ID),
            )
            for route in ROUTES
            if route.role in (Role.CLIENT, Role.WORKER)
        }
        gated = {name for name, answer in said.items() if answer == "not-a-member"}
        assert gated == said.keys() - ALWAYS, said
        assert all(
            route.before_log == (route.name in ALWAYS) for route in ROUTES if route.name in said
        )
        views = {name: refused(link, "GET", f"/v1/views/{name}") for name in ("tables", "queue")}
        assert set(views.values()) == {"not-a-member"}
        status = link.get("/v1/status")
        assert (status["phase"], link.get("/v1/info")["phase"]) == ("JOINING", "JOINING")
        assert "B has not accepted it yet" in status["phase_reason"]
        assert status["lacks"] == [status["phase_reason"]]
        with pytest.raises(TxLogError) as caught:
            link.request("GET", "/readyz")
        assert "JOINING in epoch 1" in str(caught.value)
        link.close()

    async def main() -> None:
        listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in "AB"}
        ports = {name: listener.getsockname()[1] for name, listener in listeners.items()}
        async with serving(config_of(tmp_path, "A", ports), listeners["A"]) as node:
            await asyncio.to_thread(ask, node.config.master_url)
        listeners["B"].close()

    asyncio.run(main())


def test_a_client_of_several_nodes_asks_the_next_one(tmp_path: Path) -> None:
    def ask(fresh: str, other: str) -> None:
        with Client([fresh, other]) as client:
            assert client.table("t").name == "t"
            assert [one.name for one in client.tables()] == ["t"]
            with pytest.raises(UnknownTableError):
                client.table("u")
        with Client([fresh, other]) as client:
            with pytest.raises(NotFoundError) as caught:
                client.receipt(NO_ID)
            assert caught.value.fields["unheard"] == [fresh]
        with Client([fresh, other]) as client:
            assert client.append("t", [{"id": 1}]).position == 2
        with Client(fresh) as client, pytest.raises(NotMemberError, match="does not know the log"):
            client.table("t")

    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            a = nodes["A"]
            await a.submit(create(), level=Level.ORDERED, timeout=20)
            listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in "BC"}
            ports = {name: listener.getsockname()[1] for name, listener in listeners.items()}
            async with serving(config_of(tmp_path, "B", ports), listeners["B"]) as fresh:
                await asyncio.to_thread(ask, fresh.config.master_url, a.config.master_url)
            listeners["C"].close()

    asyncio.run(main())
