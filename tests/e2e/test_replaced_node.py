"""A dead node replaced by a fresh one, by the command line, at real nodes.

The nodes wait for an operator (`eviction = "manual"`), so each epoch here is one that the
replacement needed: the change of places is the first, the new node's admission the second.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked_nodes import run_command
from tests.support.node_processes import (
    MANUAL,
    Cluster,
    NodeProcess,
    append,
    call,
    free_ports,
    running,
    wait_until,
)

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

SETTINGS = (MANUAL, "suspect-timeout = 2", "start-timeout = 4")


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    with running(Cluster(tmp_path, "ABC", settings=SETTINGS)) as cluster:
        yield cluster


def command(*arguments: str, token: str = "") -> tuple[int, dict[str, Any]]:
    """Run a command with --json, as an operator if there is a token; return exit code, output."""
    done = run_command(*arguments, "--json", SPARKTXLOG_ADMIN_TOKEN=token)
    return done.returncode, json.loads(done.stdout)


def stands(node: NodeProcess, epoch: int, members: str) -> bool:
    """Return whether a node takes part in that very epoch of those members."""
    status = node.status()
    return (status["phase"], status["epoch"], "".join(status["members"])) == (
        "NORMAL",
        epoch,
        members,
    )


def places(node: NodeProcess) -> list[str]:
    return [seat["id"] for seat in call(f"{node.url}/v1/epochs")["roster"]]


def refuses(node: NodeProcess, stranger: str) -> bool:
    """Return whether a node has said that it refuses another one, which has no place."""
    return any(
        "peer refused" in line and f"peer={stranger} " in line and "forbidden-peer" in line
        for line in node.log_text().splitlines()
    )


def test_a_dead_node_is_replaced_by_one_decision_and_the_new_one_joins_by_another(
    three: Cluster,
) -> None:
    a, b, c = three.nodes.values()
    for number in range(20):
        c.commit(append(number), "acquired")
    position = three.settle()
    c.kill()
    wait_until(lambda: a.status()["suspects"] == ["C"], what="C is missed")
    assert a.status()["epoch"] == 1

    port = free_ports(1)[0]
    url = f"http://127.0.0.1:{port}"
    code, found = command("peer", "replace", "C", "D", url, "--url", a.url)
    assert code == 0, found
    # One decision, and never one with fewer places: D sits where C sat, C is no member any more.
    assert (found["epoch"], found["members"]) == (2, ["A", "B"])
    assert [seat["id"] for seat in found["roster"]] == ["A", "B", "D"]
    assert found["roster"][2]["url"] == url
    # It goes on at once, without waiting for D.
    assert b.commit(append(100))["position"] == position + 1
    assert (a.status()["epoch"], b.status()["epoch"]) == (2, 2)

    del three.nodes["C"], three.ports["C"]
    d = NodeProcess(three.directory, "D", port, dict(three.ports), settings=SETTINGS)
    three.nodes["D"], three.ports["D"] = d, port
    d.start()
    nodes = (a, b, d)
    wait_until(lambda: all(stands(node, 3, "ABD") for node in nodes), what="D is a member")
    position = d.commit(append(101))["position"]
    three.agree(position)
    history = [
        (epoch["epoch"], "".join(epoch["members"]), epoch["joined"], epoch["left"])
        for epoch in reversed(call(f"{a.url}/v1/epochs/history"))
    ]
    assert [(number, members) for number, members, *_ in history] == [
        (1, "ABC"),
        (2, "AB"),
        (3, "ABD"),
    ]
    assert (history[1][3], history[2][2]) == (["C"], ["D"])

    # All at once, as after a power cut; the configurations of A and B still name C.
    for node in nodes:
        node.kill()
    for node in nodes:
        node.start()
    wait_until(lambda: all(stands(node, 3, "ABD") for node in nodes), what="all are back")
    assert [places(node) for node in nodes] == [["A", "B", "D"]] * 3
    wait_until(three.all_linked, what="all links are up")
    three.agree(d.commit(append(102))["position"])

    # The old one comes back: nobody knows it, and nothing changes.
    c.start()
    try:
        wait_until(lambda: any(refuses(node, "C") for node in (a, b)), what="C is a stranger")
        three.agree(a.commit(append(103))["position"])
        assert all(stands(node, 3, "ABD") for node in nodes)
    finally:
        c.stop()


def test_what_cannot_be_is_refused_with_its_reason(three: Cluster) -> None:
    a, b, c = three.nodes.values()
    for arguments, part in (
        (("X", "D", "http://127.0.0.1:1"), "'X' is not a node of the cluster"),
        (("C", "B", "http://127.0.0.1:1"), "node 'B' is already in the cluster"),
        (("C", "D", b.url), "is the address of 'B'"),
        (("C", "D", "http://127.0.0.1:1", "--weight", "9"), "would have no majority"),
    ):
        code, problem = command("peer", "replace", *arguments, "--url", a.url)
        assert (code, problem["title"], problem["definite"]) == (1, "protocol-local", True)
        assert part in problem["detail"]
    assert all(stands(node, 1, "ABC") for node in (a, b, c))


def test_of_two_nodes_the_one_left_is_forced_and_gives_the_dead_ones_place_away(
    tmp_path: Path,
) -> None:
    """As docs/losing-sites.md says, by an operator with a token; without it nothing is done."""
    settings = (*SETTINGS, 'admin-token = "of the operators"')
    with running(Cluster(tmp_path, "AB", settings=settings)) as cluster:
        a, b = cluster.nodes.values()
        b.kill()
        voters = f"{a.url}/v1/epochs"
        wait_until(lambda: not call(voters)["force"]["linked_voters"], what="A misses B")
        port = free_ports(1)[0]
        steps = (
            (("force", "--confirm", "A 1"), 2),
            (("replace", "B", "D", f"http://127.0.0.1:{port}"), 3),
        )
        for arguments, epoch in steps:
            code, problem = command("peer", *arguments, "--url", a.url)
            assert (code, problem["title"]) == (5, "unauthorized")
            assert "SPARKTXLOG_ADMIN_TOKEN" in problem["hint"]
            assert call(f"{a.url}/v1/epochs")["epoch"] == epoch - 1
            code, found = command("peer", *arguments, "--url", a.url, token="of the operators")
            assert (code, found["epoch"], found["members"]) == (0, epoch, ["A"])

        del cluster.nodes["B"], cluster.ports["B"]
        d = NodeProcess(cluster.directory, "D", port, dict(cluster.ports), settings=settings)
        cluster.nodes["D"], cluster.ports["D"] = d, port
        d.start()
        wait_until(lambda: all(stands(node, 4, "AD") for node in (a, d)), what="D is a member")
        act = ("peer", "set", "D", "--weight", "1", "--url", a.url)
        code, found = command(*act, token="of the operators")
        assert (code, found["epoch"]) == (0, 5)
        assert [(seat["id"], seat["weight"]) for seat in found["roster"]] == [("A", 1), ("D", 1)]
        cluster.agree(d.commit(append(1))["position"])
