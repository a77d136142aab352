"""Three real processes on loopback: agreement, kills, cuts, strangers."""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Iterator

import pytest
from tests.support.forked_nodes import run_command
from tests.support.node_processes import (
    TABLE,
    Cluster,
    HttpProblem,
    NodeProcess,
    append,
    call,
    free_ports,
    run_payload,
    wait_until,
)

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes for all tests of this file: starting them takes most of the time."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        cluster.nodes["A"].commit(TABLE)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def cluster(shared: Cluster) -> Cluster:
    """The three nodes, linked and at one position."""
    wait_until(shared.all_linked)
    shared.settle()
    return shared


def test_singles_and_runs_of_all_sites_get_one_order(cluster: Cluster) -> None:
    nodes = list(cluster.nodes.values())
    base = cluster.settle()

    def work(number: int) -> None:
        node = nodes[number]
        for i in range(20):
            assert node.commit(append(i))["level"] == "ordered"
        for i in range(5):
            receipt = node.commit_run(run_payload(100, number * 10 + i))
            assert (receipt["n"], receipt["level"]) == (100, "ordered")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    position = base + 3 * (20 + 500)
    cluster.agree(position)
    for node in nodes:
        published = call(f"{node.url}/v1/published?at_least={position}&timeout=20")
        assert published["position"] == position
        segments = call(f"{node.url}/v1/worker/segments?after=0&wait=1")["segments"]
        assert segments[-1]["to_hash"] == node.status()["chain_hash"]
        # A post stays far below 1 kB per run, whatever the runs hold.
        assert all(peer["post_bytes_max"] < 16_384 for peer in node.status()["peers"])
    queues = [call(f"{node.url}/v1/queue?after=0&limit=1000") for node in nodes]
    assert [e["digest"] for e in queues[0]] == [e["digest"] for e in queues[1]]
    assert [e["chain_hash"] for e in queues[0]] == [e["chain_hash"] for e in queues[2]]


@pytest.mark.faults
def test_kill_9_in_the_middle_loses_nothing_that_was_accepted(cluster: Cluster) -> None:
    a, b, c = cluster.nodes.values()
    base = cluster.settle()
    accepted: list[str] = []
    unknown: list[str] = []
    stop = threading.Event()

    def work(node: object, base: int) -> None:
        number = base
        while not stop.is_set():
            number += 1
            identity = str(uuid.uuid4())
            try:
                node.commit(append(number, identity), "accepted", 5)  # type: ignore[attr-defined]
                accepted.append(identity)
            except (OSError, HttpProblem):
                unknown.append(identity)
                stop.wait(0.05)

    workers = [threading.Thread(target=work, args=(n, i * 10**6)) for i, n in enumerate((a, b, c))]
    for worker in workers:
        worker.start()
    for victim in (c, a, b):
        seen = len(accepted)
        wait_until(lambda seen=seen: len(accepted) > seen + 30)
        victim.kill()
        victim.start()
        victim.wait_ready()
    wait_until(cluster.all_linked)
    stop.set()
    for worker in workers:
        worker.join()

    position = cluster.settle(60)
    cluster.agree(position)
    assert base + len(accepted) <= position <= base + len(accepted) + len(unknown)
    for identity in accepted[:: max(1, len(accepted) // 50)]:
        receipts = [call(f"{node.url}/v1/transactions/{identity}") for node in (a, b, c)]
        assert {r["outcome"] for r in receipts} == {"committed"}
        assert len({r["position"] for r in receipts}) == 1


def test_a_repeated_id_is_one_transaction_even_after_a_restart(cluster: Cluster) -> None:
    a, b, _ = cluster.nodes.values()
    base = cluster.settle()
    identity = str(uuid.uuid4())
    first = a.commit(append(1, identity))
    again = a.commit(append(1, identity))
    assert (first["position"], first["run"]) == (again["position"], again["run"])
    a.kill()
    a.start()
    a.wait_ready()
    wait_until(cluster.all_linked)
    assert a.commit(append(1, identity))["position"] == first["position"]
    cluster.agree(base + 1)
    assert b.commit(append(1, identity))["position"] == first["position"]
    cluster.agree(base + 1)


def test_a_silent_member_is_named_and_the_rest_goes_on_when_it_is_back(cluster: Cluster) -> None:
    a, b, c = cluster.nodes.values()
    base = cluster.settle()
    c.send(signal.SIGSTOP)
    # Two of three hold it, so it survives any epoch change; ordering waits for C's promise.
    assert a.commit(append(1), "acquired", 20)["level"] == "acquired"
    with pytest.raises(HttpProblem) as problem:
        b.commit(append(2), "ordered", 1)
    assert problem.value.status == 504
    assert problem.value.document["definite"] is False
    identity = problem.value.document["fields"]["transaction_id"]

    def awaited() -> set[tuple[str, str]]:
        return {(item["peer"], item["why"]) for item in a.status()["waiting_for"]}

    # B may be late for a moment, too.
    wait_until(lambda: awaited() == {("C", "promise")}, what="A waits for C's promise only")
    wait_until(lambda: a.status()["empty_rounds"] > 0)
    c.send(signal.SIGCONT)
    cluster.agree(base + 2)
    assert call(f"{b.url}/v1/transactions/{identity}")["outcome"] == "committed"
    wait_until(lambda: a.status()["waiting_for"] == [])


def test_a_second_process_on_one_data_directory_is_refused(cluster: Cluster) -> None:
    a = cluster.nodes["A"]
    done = run_command("serve", "--config", str(a.config), "--set", "listen=127.0.0.1:0")
    assert done.returncode == 1, done.stderr
    assert "[locked]" in done.stderr
    assert a.status()["node_id"] == "A"


def test_wrong_secret_and_a_second_node_under_one_id_are_refused(cluster: Cluster) -> None:
    a, _, c = cluster.nodes.values()
    base = cluster.settle()
    c.stop()
    c.write_config(cluster.ports["C"], cluster.peers_of("C"), secret="another secret of 16+")
    c.start()
    c.wait_ready()
    wait_until(lambda: "wrong signature" in a.log_text(), what="A refuses C")

    def refused() -> bool:
        peer = next(p for p in a.status()["peers"] if p["id"] == "C")
        return not peer["linked"] and "401" in peer["reason"]

    wait_until(refused, what="A notices at its next post that its link to C is gone")
    c.stop()
    c.write_config(cluster.ports["C"], cluster.peers_of("C"))
    c.start()
    wait_until(cluster.all_linked, what="C is taken back")
    # Another process says that it is C, at C's address, while C is there.
    second = NodeProcess(cluster.directory / "second", "C", cluster.ports["C"], c.peers)
    second.start(f"listen=127.0.0.1:{free_ports(1)[0]}")
    try:
        wait_until(lambda: "two processes are node" in a.log_text(), what="A tells C apart")
        assert a.status()["halted"] is None
    finally:
        second.stop()
    wait_until(cluster.all_linked, what="the right C is taken back")
    a.commit(append(1))
    cluster.agree(base + 1)


def test_sigterm_ends_a_node_cleanly(cluster: Cluster) -> None:
    _, b, c = cluster.nodes.values()
    base = cluster.settle()
    assert b.stop() == 0
    assert "stopped" in b.log_text()
    assert "Traceback" not in b.log_text()
    b.start()
    wait_until(cluster.all_linked)
    c.commit(append(1))
    cluster.agree(base + 1)
