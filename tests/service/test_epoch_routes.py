"""Epoch messages between nodes, second addresses, places at run time, and their refusals."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.service.local_nodes import cluster, config_of, until
from tests.service.test_peer_routes import Stranger, create, delete

from sparktxlog import Client
from sparktxlog.codec import wire
from sparktxlog.config import load_config
from sparktxlog.errors import (
    CommitStateUnknownError,
    InvalidRequestError,
    LocalProtocolError,
    PausedError,
)
from sparktxlog.health.verdicts import findings
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.receipt import Level
from sparktxlog.protocol.messages.balloting import Accepted, JoinRequest, Probe
from sparktxlog.protocol.messages.posts import MergeBase
from sparktxlog.protocol.messages.view import Ballot, Seat
from sparktxlog.runtime.membership.founding import core_config
from sparktxlog.runtime.membership.join_orders import JoinOrder
from sparktxlog.runtime.node import Node
from sparktxlog.runtime.settings import RunTimeSettings


def probe(node: Node, sender: str) -> Probe:
    view = node.base.master.view
    return Probe(
        log_id=view.log_id, epoch=view.epoch, sender=NodeId(sender), incarnation=1, number=1
    )


def test_who_votes_is_who_signed(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a, b = nodes["A"], nodes["B"]
            async with Stranger(a, "B") as other:
                assert (await other.greet(b.membership.greeter.own))[0] == 200
                path = "/peer/v1/epochs"
                assert (await other.send(path, wire.encode_epoch(probe(a, "B"))))[0] == 204
                status, document = await other.send(path, wire.encode_epoch(probe(a, "A")))
                assert (status, document["title"]) == (400, "protocol-remote")
                assert (await other.send(path, b"\xc1"))[0] == 400
            async with Stranger(a, "X") as stranger:
                status, document = await stranger.send(path, wire.encode_epoch(probe(a, "X")))
                assert (status, document["title"]) == (403, "forbidden-peer")

    asyncio.run(main())


def test_a_joiner_asks_and_does_not_vote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a = nodes["A"]
            view = a.base.master.view
            told: list[Any] = []
            monkeypatch.setattr(a.core.cycle, "tell", lambda event: told.append(event) or True)
            monkeypatch.setattr(a.membership.greeter, "is_joiner", lambda node: node == "B")
            same = {"log_id": view.log_id, "epoch": view.epoch, "sender": NodeId("B")}
            vote = Accepted(**same, incarnation=2, ballot=Ballot())  # type: ignore[arg-type]
            await a.peering.on_epoch("B", vote)
            await a.peering.on_envelope("B", wire.Envelope(hears=("A",)), {})
            assert told == []
            wish = JoinRequest(
                **same,
                incarnation=2,
                base=MergeBase(position=7),
                ts=1,  # type: ignore[arg-type]
            )
            await a.peering.on_epoch("B", wish)
            assert [event.message for event in told] == [wish]
            assert a.membership.positions == {"B": 7}

    asyncio.run(main())


def test_a_peer_is_reached_at_its_second_address(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a = nodes["A"]
            link = a.base.links["B"]
            url = link.url
            # The first address leads nowhere, as when a switch fails.
            link.move(("http://127.0.0.1:1", url))
            link.url = "http://127.0.0.1:1"
            link.greet_again()
            await until(lambda: link.up)
            assert link.url == url

    asyncio.run(main())


def test_a_probe_makes_a_broken_link_try_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a = nodes["A"]
            link = a.base.links["B"]
            assert not link._hurry.is_set()
            link.up = False
            link.epoch(probe(a, "A"))
            assert link._hurry.is_set()
            link.up = True

    asyncio.run(main())


def test_status_shows_the_epoch_and_who_reaches_whom(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a = nodes["A"]
            await a.submit(create(), level=Level.ORDERED, timeout=60)
            await until(lambda: "B" in a.status()["reachability"]["linked"])
            status = a.status()
            assert (status["phase"], status["epoch"], status["duty"]) == ("NORMAL", 1, "A")
            assert [seat["id"] for seat in status["roster"]] == ["A", "B"]
            linked = {"A": {"B": True}, "B": {"A": True}}
            assert status["reachability"] == {
                "linked": linked,
                "differing": [],
                "addresses": {},
                "differing_addresses": {},
            }
            assert a.info()["phase"] == "NORMAL"
            metrics = a.base.metrics.text().decode()
            assert 'sparktxlog_phase{phase="NORMAL"} 1.0' in metrics
            assert "sparktxlog_epoch 1.0" in metrics
            assert {name: good for name, good, _ in a.ready()}["membership"]

    asyncio.run(main())


def test_wishes_that_cannot_be(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a = nodes["A"]
            url = a.config.master_url
            async with aiohttp.ClientSession() as session:
                for method, path, body, status in (
                    ("DELETE", "/v1/peers/X", {}, 409),
                    ("POST", "/v1/peers", {"id": "B", "url": "http://b"}, 409),
                    ("POST", "/v1/peers", {"id": "X", "url": url}, 409),
                    ("POST", "/v1/peers", {"id": "X", "url": "nonsense"}, 400),
                    ("POST", "/v1/peers", {"id": "no id", "url": "http://b"}, 400),
                    ("POST", "/v1/peers", {"id": "X"}, 400),
                    ("PATCH", "/v1/peers/B", {"weight": -1}, 400),
                    ("PATCH", "/v1/peers/B", {}, 409),
                    ("POST", "/v1/peers/A/promote", {}, 409),
                    ("POST", "/v1/force", {"confirm": "yes"}, 400),
                    ("POST", "/v1/quorum", {"rule": "most"}, 400),
                    ("POST", "/v1/quorum", {"rule": 3}, 409),
                    ("POST", "/v1/quorum", {"rule": "default"}, 409),
                ):
                    async with session.request(method, url + path, json=body) as response:
                        document = await response.json(content_type=None)
                        assert (response.status, path) == (status, path), document
                        assert document["definite"] is True
                async with session.get(url + "/v1/epochs") as response:
                    found = await response.json()
                assert found["force"]["confirm"] == "A 1"
            with pytest.raises(InvalidRequestError, match="confirmation"):
                await a.membership.epochs.force("B 1", 1)
            with pytest.raises(LocalProtocolError, match="is so already"):
                await a.membership.epochs.change(lambda roster: roster, 5)
            # Nobody answers who could decide: the wish stays open.
            a.core.cycle.tell_always = lambda event: None  # type: ignore[method-assign]
            with pytest.raises(CommitStateUnknownError, match="not decided"):
                await a.membership.epochs.change(lambda roster: roster[:1], 0.05)

    asyncio.run(main())


def test_the_quorum_is_changed_by_a_decision(tmp_path: Path) -> None:
    """And what the configuration says otherwise is shown by every node."""

    async def main() -> None:
        async with cluster(tmp_path, "ABC") as nodes:
            a = nodes["A"]
            assert (a.membership.epochs.view()["quorum"], a.status()["warnings"]) == (2, [])
            url = f"{a.config.master_url}/v1/quorum"
            wanted = {"rule": "all"}
            async with aiohttp.ClientSession() as http, http.post(url, json=wanted) as response:
                found = await response.json(content_type=None)
                assert response.status == 200, found
            assert (found["epoch"], found["quorum"], found["quorum_rule"]) == (2, 3, "all")
            await until(lambda: all(n.status()["quorum"] == 3 for n in nodes.values()))
            for node in nodes.values():
                (warning,) = node.status()["warnings"]
                assert warning["code"] == "not-in-force"
                assert warning["text"].startswith("acquisition-quorum is default in the config")
                assert "peer set-quorum default" in warning["text"]
            await a.submit(create(), level=Level.ORDERED, timeout=60)

    asyncio.run(main())


def test_force_is_refused_while_another_voter_is_linked(tmp_path: Path) -> None:
    """A healthy cluster is not taken apart by a command typed at the wrong node."""

    async def main() -> None:
        async with cluster(tmp_path, "ABC") as nodes:
            a, b = nodes["A"], nodes["B"]
            assert a.status()["warnings"] == []
            url = f"{a.config.master_url}/v1/force"
            async with aiohttp.ClientSession() as session:
                async with session.post(url, json={"confirm": "A 1"}) as response:
                    document = await response.json(content_type=None)
                assert (response.status, document["definite"]) == (409, True), document
                assert document["detail"].startswith("nothing was changed: B, C is linked")
                assert "--though-linked" in document["hint"]
                assert (a.status()["epoch"], b.status()["epoch"]) == (1, 1)
                wanted = {"confirm": "A 1", "though_linked": True}
                async with session.post(url, json=wanted) as response:
                    assert response.status == 200
                    assert (await response.json())["members"] == ["A"]
            warning, *others = a.status()["warnings"]
            assert warning["code"] == "sole-voter"
            assert warning["text"].startswith("A alone has all votes")
            assert [one["code"] for one in others] == ["not-in-force", "not-in-force"]
            assert others[0]["text"].startswith("the weight of B is 1 in the configuration, 0 is")

    asyncio.run(main())


def test_a_paused_node_takes_no_transactions_and_does_all_the_rest(tmp_path: Path) -> None:
    """Over a restart, too; a client that knows several nodes submits elsewhere."""

    async def pause(node: Node, paused: bool) -> None:
        where = node.config.master_url + "/v1/settings"
        async with (
            aiohttp.ClientSession() as session,
            session.patch(where, json={"paused": paused}) as response,
        ):
            assert (await response.json())["paused"]["value"] is paused

    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a, b = nodes["A"], nodes["B"]
            await pause(a, True)
            with pytest.raises(PausedError, match="peer continue") as caught:
                await a.submit(create(), level=Level.ORDERED, timeout=60)
            assert (caught.value.definite, caught.value.http_status) == (True, 503)
            assert not {name: good for name, good, _ in a.ready()}["submits"]
            # It goes on promising: else nothing could be ordered at B.
            receipt = await b.submit(create(), level=Level.ORDERED, timeout=60)
            await until(lambda: a.status()["position"] == receipt.position)
            urls = [a.config.master_url, b.config.master_url]

            def commit() -> str | None:
                with Client(urls) as client:
                    return client.append("t", [{"id": 1}]).outcome

            assert await asyncio.to_thread(commit) == "committed"
            assert RunTimeSettings(a.config, a.base.journal.load(1_000).values).in_force.paused
            await pause(a, False)
            again = await a.submit(delete(), level=Level.ORDERED, timeout=60)
            assert again.run is not None and again.run.origin == "A"

    asyncio.run(main())


def test_a_node_that_joins_is_member_of_nothing(tmp_path: Path) -> None:
    config = config_of(tmp_path, "C", {"A": 1, "B": 2, "C": 3}, eviction="auto", weight=3)
    order = JoinOrder(log_id="l", incarnation=4)
    core = core_config(config, order=order)
    assert (core.members, core.epoch, core.incarnation) == (("A", "B"), 0, 4)
    assert core.roster[2] == Seat(node_id=NodeId("C"), url="http://127.0.0.1:3", weight=3)
    assert (core.suspect_timeout_us, core.start_timeout_us) == (10_000_000, 30_000_000)
    assert core.auto_evict and not core.keeps_heard
    unheard = config_of(tmp_path, "C", {"A": 1, "C": 3}, eviction="unheard")
    assert core_config(unheard).auto_evict and core_config(unheard).keeps_heard
    assert not core_config(config_of(tmp_path, "C", {"C": 3})).auto_evict
    witness = load_config(
        None,
        {
            "node-id": "W",
            "master-url": "http://127.0.0.1:9",
            "data-dir": str(tmp_path),
            "roles": "witness",
            "cluster-secret": "x" * 16,
            "peer.1.id": "A",
            "peer.1.url": "http://127.0.0.1:1",
        },
        {},
    )
    core = core_config(witness)
    assert (core.members, core.id_window, core.quorum_rule) == (("A",), 1, "default")
    assert [seat.witness for seat in core.roster] == [False, True]


def test_a_removed_node_says_how_it_comes_back_and_denies_no_table(tmp_path: Path) -> None:
    """It hears of nothing new, so nobody may take its word for it that there is no such table."""

    async def main() -> None:
        async with cluster(tmp_path, "ABC") as nodes, aiohttp.ClientSession() as session:
            a, c = nodes["A"], nodes["C"]
            async with session.delete(f"{a.config.master_url}/v1/peers/C", json={}) as answer:
                assert answer.status == 200
            await until(lambda: "C" not in {seat["id"] for seat in c.status()["roster"]})
            await until(lambda: c.status()["phase"] in ("IDLE", "JOINING"))
            told = next(one for one in findings(c.status()) if one.code == "no-member")
            where = a.config.master_url
            assert f"`sparktxlog peer add C ITS-URL --url {where}` gives it one" in told.way_out
            catalog = "/api/2.1/unity-catalog"
            for path in (
                "/v1/tables/nope",
                f"{catalog}/tables/tx.default.nope",
                f"{catalog}/schemas/tx.nope",
                f"{catalog}/tables?catalog_name=tx&schema_name=nope",
                f"{catalog}/delta/v1/catalogs/tx/schemas/default/tables/nope",
            ):
                async with session.get(c.config.master_url + path) as answer:
                    assert (answer.status, "hears of nothing new" in await answer.text()) == (
                        503,
                        True,
                    )
                async with session.get(where + path) as answer:
                    assert answer.status == 404

    asyncio.run(main())


def test_a_node_without_a_secret_takes_no_peer(tmp_path: Path) -> None:
    """The other one could never prove who it is, and a place with votes would wait for it."""

    async def main() -> None:
        async with cluster(tmp_path, "A", cluster_secret=None) as nodes:
            a = nodes["A"]
            peer = {"id": "B", "url": "http://127.0.0.1:1", "weight": 0}
            async with (
                aiohttp.ClientSession(a.config.master_url) as session,
                session.post("/v1/peers", json=peer) as answer,
            ):
                found = await answer.json()
            assert (found["title"], found["definite"]) == ("protocol-local", True)
            assert "has no cluster-secret" in found["detail"]
            assert "cluster-secret-file" in found["hint"]
            assert [place.node_id for place in a.base.master.view.roster] == ["A"]

    asyncio.run(main())
