"""Addresses that no link uses, between nodes behind real servers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from examples.demo.relay import RelayNetwork
from tests.service.local_nodes import cluster, until

from sparktxlog.codec import wire
from sparktxlog.runtime.node import Node
from sparktxlog.transport import addresses as addresses_module
from sparktxlog.transport.peer_link import PeerLink


@asynccontextmanager
async def second_way(nodes: dict[str, Node], name: str) -> AsyncIterator[RelayNetwork]:
    """Give all other nodes a second address of a node, behind a relay."""
    network = RelayNetwork({name: nodes[name].config.listen[1]})
    await network.start()
    for other, node in nodes.items():
        if other != name:
            link = node.base.links[name]
            link.move((link.url, second_of(network, name)))
            node.membership.addresses.look_again()
    try:
        yield network
    finally:
        network.close()


def second_of(network: RelayNetwork, name: str) -> str:
    return f"http://127.0.0.1:{network.ports[name]}"


def shown(node: Node, key: str = "addresses") -> Any:
    return node.status()["reachability"][key]


def state_of(link: PeerLink) -> tuple[int, str, bool]:
    return (link.ups, link.url, link.up)


def test_all_nodes_see_which_address_answers_whom(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            cluster(tmp_path, "ABC", suspect_timeout=1) as nodes,
            second_way(nodes, "B") as network,
        ):
            a, first, second = nodes["A"], nodes["B"].config.master_url, ""
            links = [nodes[name].base.links["B"] for name in "AC"]
            before, second = [state_of(link) for link in links], second_of(network, "B")
            whole = {name: {"B": {first: True, second: True}} for name in "AC"}
            await until(lambda: all(shown(node) == whole for node in nodes.values()))

            network.refuse({("A", "B")})
            cut = {**whole, "A": {"B": {first: True, second: False}}}
            await until(lambda: all(shown(node) == cut for node in nodes.values()))
            for node in nodes.values():
                assert shown(node, "differing_addresses") == {"B": [second]}
                assert shown(node, "differing") == []
            metrics = a.base.metrics.text().decode()
            line = 'sparktxlog_peer_address_answers{address="%s",peer="B"} %d.0'
            assert line % (first, 1) in metrics
            assert line % (second, 0) in metrics
            (peer,) = (p for p in a.status()["peers"] if p["id"] == "B")
            assert peer["addresses"] == {first: True, second: False}

            network.heal()
            await until(lambda: all(shown(node) == whole for node in nodes.values()))
            assert shown(a, "differing_addresses") == {}
            assert [state_of(link) for link in links] == before

    asyncio.run(main())


def test_the_first_address_is_checked_while_the_link_stands_at_the_second(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            cluster(tmp_path, "AB", suspect_timeout=3_600) as nodes,
            second_way(nodes, "B") as network,
        ):
            link, second = nodes["A"].base.links["B"], second_of(network, "B")
            first = link.url
            nowhere = "http://127.0.0.1:1"
            link.move((nowhere, second))
            await until(lambda: link.up and link.url == second)
            # Without waiting an hour: the break of the link makes the check look at once.
            for node in nodes.values():
                await until(
                    lambda node=node: shown(node).get("A") == {"B": {nowhere: False, second: True}}
                )
            link.move((first, second))
            assert link.url == second and link.up
            nodes["A"].membership.addresses.look_again()
            await until(lambda: link.addresses() == {first: True, second: True})

    asyncio.run(main())


def test_another_node_is_no_answer_and_a_restarted_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        logged: list[dict[str, Any]] = []
        monkeypatch.setattr(
            addresses_module._log, "warning", lambda event, **fields: logged.append(fields)
        )
        async with cluster(tmp_path, "ABC", suspect_timeout=1) as nodes:
            a, link = nodes["A"], nodes["A"].base.links["B"]
            before, boot = state_of(link), link.boot
            other = nodes["C"].config.master_url
            link.move((link.url, other))
            a.membership.addresses.look_again()
            await until(lambda: link.addresses().get(other) is False)
            assert "node 'C' answers" in logged[0]["reason"]
            async with second_way({"A": a, "B": nodes["B"]}, "B") as network:
                # As if the peer had another start than the link knows.
                link._to = "an older start"
                await until(lambda: link.addresses().get(second_of(network, "B")))
                # The link greets again meanwhile.
                await until(lambda: state_of(link)[1:] == before[1:])
            assert boot

    asyncio.run(main())


def test_nothing_is_asked_of_peers_with_one_address_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async def never(*_: Any, **__: Any) -> None:
            raise AssertionError

        envelopes: list[wire.Envelope] = []
        monkeypatch.setattr(addresses_module, "ask", never)
        async with cluster(tmp_path, "AB", suspect_timeout=1) as nodes:
            b = nodes["B"]
            take = b.peering.on_envelope

            async def note(
                sender: str, envelope: wire.Envelope, headers: Mapping[str, str]
            ) -> wire.PostAnswer:
                envelopes.append(envelope)
                return await take(sender, envelope, headers)

            monkeypatch.setattr(b.peering, "on_envelope", note)
            check = nodes["A"].membership.addresses
            check.look_again()
            await until(lambda: not check._hurry.is_set() and len(envelopes) > 2)
            assert all(envelope.addresses is None for envelope in envelopes)
            assert shown(b) == {} and shown(b, "differing_addresses") == {}
            assert "address_answers{" not in b.base.metrics.text().decode()
        assert not [task for task in asyncio.all_tasks() if "address" in task.get_name()]

    asyncio.run(main())


def test_a_silent_address_is_given_up_when_the_node_stops(tmp_path: Path) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            async with cluster(tmp_path, "AB", suspect_timeout=1) as nodes:
                link = nodes["A"].base.links["B"]
                link.move((link.url, f"http://127.0.0.1:{silent.getsockname()[1]}"))
                nodes["A"].membership.addresses.look_again()
                await asyncio.get_running_loop().run_in_executor(None, silent.accept)
                assert link.up
        assert not [task for task in asyncio.all_tasks() if "address" in task.get_name()]

    asyncio.run(main())
