"""Epochs between real processes: eviction, return, witness, `force`, places at run time.

Protocol P11–P23.
"""

from __future__ import annotations

import json
import signal
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.epoch_views import QUICK, shows
from tests.support.node_processes import (
    Cluster,
    HttpProblem,
    NodeProcess,
    append,
    call,
    free_ports,
    restart_unheard,
    running,
    wait_until,
)

pytestmark = pytest.mark.e2e


def send(method: str, url: str, body: dict[str, Any]) -> Any:
    """Send JSON with a method and return the JSON answer."""
    request = urllib.request.Request(
        url,
        data=json.dumps(body).encode(),
        method=method,
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


def history(node: NodeProcess) -> list[tuple[str, ...]]:
    """Return the members of each epoch that a node took up, and who joined and left; in order."""
    found = reversed(call(f"{node.url}/v1/epochs/history"))
    return [
        tuple("".join(epoch[name] or ()) for name in ("members", "joined", "left"))
        for epoch in found
    ]


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    """Three masters that go on without one of them."""
    with running(Cluster(tmp_path, "ABC", settings=QUICK)) as cluster:
        yield cluster


@pytest.mark.faults
def test_the_others_go_on_without_a_dead_member_and_it_comes_back(three: Cluster) -> None:
    a, b, c = three.nodes.values()
    # Only accepted: nobody links to a node with another secret, so nobody else has these.
    restart_unheard(three, c)
    lost = [str(uuid.uuid4()) for _ in range(3)]
    for number, identity in enumerate(lost):
        assert c.commit(append(number, identity), "accepted")["level"] == "accepted"
    c.kill()

    base = a.status()["position"]
    first = a.commit(append(10), timeout=60)
    assert first["position"] == base + 1
    assert b.commit(append(11))["level"] == "ordered"
    assert shows(a, "AB")
    assert shows(b, "AB")
    assert a.status()["quorum"] == 2

    c.write_config(three.ports["C"], c.peers)
    c.start()
    wait_until(lambda: all(shows(node, "ABC") for node in (a, b, c)), what="C is back")
    position = three.settle()
    three.agree(position)
    assert position == base + 2 + len(lost)
    for identity in lost:
        receipts = [call(f"{node.url}/v1/transactions/{identity}") for node in (a, b, c)]
        assert {receipt["outcome"] for receipt in receipts} == {"committed"}
        assert len({receipt["position"] for receipt in receipts}) == 1
    assert c.commit(append(20))["level"] == "ordered"
    three.agree(position + 1)


@pytest.mark.faults
def test_a_stopped_member_is_evicted_and_returns_without_a_loss(three: Cluster) -> None:
    a, b, c = three.nodes.values()
    acknowledged: list[str] = []
    stop = threading.Event()

    def work(node: NodeProcess, number: int) -> None:
        while not stop.is_set():
            number += 1
            identity = str(uuid.uuid4())
            try:
                node.commit(append(number, identity), "acquired", 10)
                acknowledged.append(identity)
            except (OSError, HttpProblem):
                stop.wait(0.05)

    workers = [threading.Thread(target=work, args=(n, i * 10**6)) for i, n in enumerate((a, b, c))]
    for worker in workers:
        worker.start()
    try:
        wait_until(lambda: len(acknowledged) > 30)
        c.send(signal.SIGSTOP)
        wait_until(lambda: shows(a, "AB"), what="C is evicted")
        seen = len(acknowledged)
        wait_until(lambda: len(acknowledged) > seen + 20, what="the others go on")
        c.send(signal.SIGCONT)
        wait_until(lambda: all(shows(n, "ABC") for n in (a, b, c)), what="C is back")
        seen = len(acknowledged)
        wait_until(lambda: len(acknowledged) > seen + 20)
    finally:
        c.send(signal.SIGCONT)
        stop.set()
        for worker in workers:
            worker.join()
    three.agree(three.settle())
    for identity in acknowledged[:: max(1, len(acknowledged) // 60)]:
        receipts = [call(f"{node.url}/v1/transactions/{identity}") for node in (a, b, c)]
        assert {receipt["outcome"] for receipt in receipts} == {"committed"}


@pytest.mark.faults
@pytest.mark.parametrize("victim", ["A", "B"])
def test_two_masters_and_a_witness(tmp_path: Path, victim: str) -> None:
    with running(Cluster(tmp_path, "ABW", settings=QUICK, witnesses="W")) as cluster:
        witness = cluster.nodes["W"]
        assert witness.status()["phase"] == "WITNESS"
        assert witness.status()["position"] == 0
        other = cluster.nodes["B" if victim == "A" else "A"]
        cluster.nodes[victim].kill()
        assert other.commit(append(1), timeout=60)["level"] == "ordered"
        assert shows(other, other.name)
        cluster.nodes[victim].start()
        wait_until(lambda: shows(cluster.nodes[victim], "AB"), what="the victim is back")
        wait_until(lambda: shows(other, "AB"))
        position = other.commit(append(2))["position"]
        wait_until(lambda: cluster.nodes[victim].status()["position"] == position)


@pytest.mark.faults
def test_of_two_masters_one_waits_until_it_is_forced(tmp_path: Path) -> None:
    # As long as A takes what it cannot order: a client on a busy machine is late.
    settings = ("suspect-timeout = 6", "start-timeout = 8")
    with running(Cluster(tmp_path, "AB", settings=settings)) as cluster:
        a, b = cluster.nodes.values()
        before = a.status()
        b.kill()
        # Taken while nobody knows yet for how long B is away; later it would be refused.
        with pytest.raises(HttpProblem) as problem:
            a.commit(append(2), timeout=4)
        assert (problem.value.status, problem.value.document["definite"]) == (504, False)
        assert a.commit(append(1), "accepted")["level"] == "accepted"
        wait_until(lambda: a.status()["phase"] == "SUSPECT")
        assert a.status()["epoch"] == 1
        assert a.status()["suspects"] == ["B"]

        with pytest.raises(HttpProblem) as problem:
            call(f"{a.url}/v1/force", {"confirm": "A 7"})
        assert "'A 1'" in problem.value.document["hint"]
        found = call(f"{a.url}/v1/force", {"confirm": "A 1"})
        assert found["members"] == ["A"]
        assert found["epoch"] == 2
        assert found["log_id"] != before["log_id"]
        assert [loss["node_id"] for loss in found["may_be_lost"]] == ["B"]
        assert a.commit(append(3))["level"] == "ordered"
        position = cluster.nodes["A"].status()["position"]
        assert position == before["position"] + 3
        # What a client was told before: A took over the log up to here, and nothing after it.
        fork = call(f"{a.url}/v1/epochs/history")[0]["begins_after"]["position"]
        told = f"{a.url}/v1/published?log_id={before['log_id']}&timeout=30&at_least="
        assert call(f"{told}{fork}")["position"] >= fork
        with pytest.raises(HttpProblem) as problem:
            call(f"{told}{fork + 1}")
        assert problem.value.document["title"] == "foreign"

        b.start()
        wait_until(lambda: shows(b, "AB"), what="B follows the fork and is admitted")
        cluster.agree(a.commit(append(4))["position"])


def test_a_fourth_node_joins_and_leaves_at_run_time(three: Cluster) -> None:
    a = three.nodes["A"]
    for number in range(20):
        a.commit(append(number))
    port = free_ports(1)[0]
    d = NodeProcess(three.directory, "D", port, three.ports, settings=QUICK)
    d.start()
    wait_until(lambda: "peer refused" in a.log_text(), what="strangers are refused")
    found = wait_until(
        lambda: call(f"{a.url}/v1/peers?timeout=20", {"id": "D", "url": f"http://127.0.0.1:{port}"})
    )
    assert [seat["id"] for seat in found["roster"]] == ["A", "B", "C", "D"]
    three.nodes["D"], three.ports["D"] = d, port
    wait_until(
        lambda: all(shows(node, "ABCD") for node in three.nodes.values()), what="D is a member"
    )
    position = d.commit(append(100))["position"]
    three.agree(position)

    a.kill()
    a.start()
    wait_until(lambda: all(shows(node, "ABCD") for node in three.nodes.values()), what="A is back")
    position = d.commit(append(101))["position"]
    three.agree(position)

    with pytest.raises(HttpProblem) as problem:
        call(f"{a.url}/v1/peers", {"id": "D", "url": "http://127.0.0.1:1"})
    assert problem.value.status == 409
    found = wait_until(lambda: send("DELETE", f"{a.url}/v1/peers/D?timeout=20", {}))
    assert found["members"] == ["A", "B", "C"]
    wait_until(lambda: d.status()["phase"] == "JOINING", what="D knows that it has no place")
    with pytest.raises(HttpProblem) as problem:
        d.commit(append(102))
    assert (problem.value.status, problem.value.document["title"]) == (503, "not-a-member")
    assert problem.value.document["definite"] is True
    del three.nodes["D"]
    a.kill()
    a.start()
    wait_until(lambda: all(shows(node, "ABC") for node in three.nodes.values()))
    three.agree(a.commit(append(103))["position"])
    for node in three.nodes.values():
        epochs = history(node)
        assert epochs[0] == ("ABC", "", "")
        assert epochs.index(("ABCD", "D", "")) < epochs.index(("ABC", "", "D"))
    # D knows the epochs in which it was a member, and those that went on without it.
    assert ("ABCD", "D", "") in history(d)
    assert history(d)[-1][2] == "D"
    d.stop()


@pytest.mark.faults
def test_a_node_that_lost_its_disk_comes_back_under_a_new_incarnation(three: Cluster) -> None:
    a, b, c = three.nodes.values()
    for number in range(20):
        c.commit(append(number))
    c.kill()
    position = a.commit(append(100), timeout=60)["position"]
    c.write_config(three.ports["C"], c.peers, data="another-disk")
    c.start()
    wait_until(lambda: all(shows(node, "ABC") for node in (a, b, c)), what="C is back")
    seats = {seat["id"]: seat["incarnation"] for seat in a.status()["roster"]}
    assert seats == {"A": 1, "B": 1, "C": 2}
    assert c.commit(append(101))["position"] == position + 1
    three.agree(position + 1)
    # The old disk never speaks under its old name again: it comes back as one that lost its memory.
    c.stop()
    c.write_config(three.ports["C"], c.peers)
    c.start()

    def is_third() -> bool:
        seats = {seat["id"]: seat["incarnation"] for seat in a.status()["roster"]}
        return seats == {"A": 1, "B": 1, "C": 3}

    wait_until(is_third, what="C comes back once more")
    wait_until(lambda: all(shows(node, "ABC") for node in (a, b, c)), what="C is back")
    three.agree(c.commit(append(102))["position"])


@pytest.mark.faults
def test_a_node_that_was_away_too_long_takes_over_a_summary(tmp_path: Path) -> None:
    with running(Cluster(tmp_path, "ABC", settings=(*QUICK, "rejoin-keep-bytes = 0"))) as cluster:
        a, b, c = cluster.nodes.values()
        c.stop()
        for number in range(10):
            position = a.commit(append(number), timeout=60)["position"]
        wait_until(lambda: all(n.status()["published"] == position for n in (a, b)))
        # What is forgotten goes with the next publication.
        position = a.commit(append(10))["position"]
        wait_until(lambda: all(n.status()["published"] == position for n in (a, b)))
        c.start()
        wait_until(lambda: all(shows(node, "ABC") for node in (a, b, c)), what="C is back")
        assert "summary taken over" in c.log_text()
        cluster.agree(c.commit(append(11))["position"])
