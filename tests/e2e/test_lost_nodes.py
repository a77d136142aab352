"""Clients whose node is killed, evicted or cut off: one call, one outcome, one effect.

A submit is followed to another node (protocol P13, P25b).
"""

from __future__ import annotations

import signal
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.epoch_views import QUICK
from tests.support.node_processes import (
    Cluster,
    NodeProcess,
    call,
    committed,
    restart_unheard,
    running,
    wait_until,
)

from sparktxlog import Client
from sparktxlog.errors import CommitStateUnknownError, TxLogError
from sparktxlog.model.transactions.receipt import Level, Receipt

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

ROW = [{"id": 1, "v": "x"}]


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    """Three masters that go on without one of them."""
    with running(Cluster(tmp_path, "ABC", settings=QUICK)) as cluster:
        yield cluster


def urls(*nodes: NodeProcess) -> list[str]:
    """Return the URLs of nodes, in order."""
    return [node.url for node in nodes]


def is_back(cluster: Cluster) -> bool:
    """Return whether all three take part."""
    states = [node.status() for node in cluster.nodes.values()]
    return all(s["phase"] == "NORMAL" and len(s["members"]) == 3 for s in states)


def come_back(three: Cluster, receipt: Receipt) -> None:
    """Start C again: every node must tell the same of a transaction, which takes effect once."""
    identity = receipt.transaction_id
    assert identity is not None
    three.nodes["C"].start()
    wait_until(lambda: is_back(three), what="C is back")
    three.agree(three.settle())
    for node in three.nodes.values():
        known = call(f"{node.url}/v1/transactions/{identity}")
        assert (known["position"], known["outcome"]) == (receipt.position, "committed")
        assert committed(node, {identity}) == [identity]
        with Client(node.url) as client:
            again = client.append("t", ROW, transaction_id=identity)
        assert (again.position, again.outcome) == (receipt.position, "committed")


def test_a_submit_survives_the_kill_of_its_node(three: Cluster) -> None:
    a, b, c = three.nodes.values()
    identity = str(uuid.uuid4())
    with Client(urls(c, a, b), timeout=60) as client, ThreadPoolExecutor(1) as pool:
        client.info()  # the connection is kept, as it is in real life
        for node in (a, b):
            node.send(signal.SIGSTOP)
        waiting = pool.submit(client.append, "t", ROW, transaction_id=identity)
        wait_until(lambda: c.status()["incoming_transactions"] == 1, what="C has accepted it")
        assert not waiting.done()
        c.kill()
        for node in (a, b):
            node.send(signal.SIGCONT)
        receipt: Receipt = waiting.result(60)
        assert (receipt.level, receipt.outcome) == (Level.ORDERED, "committed")
        assert client.receipt(identity).position == receipt.position
        come_back(three, receipt)


def test_what_only_the_dead_node_had_is_the_second_one_when_it_returns(three: Cluster) -> None:
    a, b, c = three.nodes.values()
    # Nobody links to a node with another secret, so nobody else gets what it accepts.
    restart_unheard(three, c)
    identity = str(uuid.uuid4())
    with Client(urls(c, a, b), timeout=60) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.append, "t", ROW, transaction_id=identity)
        # Told as accepted it is durable there; the status counts it a moment before.
        where = f"{c.url}/v1/transactions/{identity}"
        wait_until(lambda: call(where)["level"] == "accepted", what="C has accepted it")
        c.kill()
        receipt: Receipt = waiting.result(60)
        assert receipt.run is not None and receipt.run.origin in ("A", "B")
        c.write_config(three.ports["C"], c.peers)
        come_back(three, receipt)

    def repeated() -> list[dict[str, Any]]:
        found = call(f"{a.url}/v1/queue?limit=1000")
        return [entry for entry in found if entry["first_id"] == identity]

    # C is a member before its own copy, stamped anew, is ordered.
    wait_until(lambda: len(repeated()) == 2, what="both copies are in the queue")
    repeats = repeated()
    assert [(e["origin"] == "C", len(e["rejected"])) for e in repeats] == [(False, 0), (True, 1)]


def test_writers_go_on_over_the_kill_of_their_node(three: Cluster) -> None:
    a, b, c = three.nodes.values()
    receipts: dict[str, Receipt] = {}
    errors: list[TxLogError] = []
    stop = threading.Event()

    def work() -> None:
        with Client(urls(c, a, b), timeout=60) as client:
            while not stop.is_set():
                identity = str(uuid.uuid4())
                try:
                    receipts[identity] = client.append("t", ROW, transaction_id=identity)
                except TxLogError as error:
                    errors.append(error)
                    return

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    try:
        wait_until(lambda: len(receipts) > 40 or errors)
        c.kill()
        seen = len(receipts)
        wait_until(lambda: len(receipts) > seen + 40 or errors, what="they write elsewhere")
        c.start()
        wait_until(lambda: is_back(three), what="C is back")
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert errors == []
    three.agree(three.settle())
    for node in (a, b, c):
        found = {i: call(f"{node.url}/v1/transactions/{i}") for i in list(receipts)[::10]}
        assert {i: known["position"] for i, known in found.items()} == {
            i: receipts[i].position for i in found
        }
    origins = {receipt.run.origin for receipt in receipts.values() if receipt.run}
    assert "C" in origins and origins & {"A", "B"}
    positions = [receipt.position for receipt in receipts.values()]
    assert len(set(positions)) == len(positions)


def test_a_client_of_a_cut_off_node_gets_its_receipt_elsewhere(three: Cluster) -> None:
    a, b, c = three.nodes.values()
    with Client(urls(c, a, b), timeout=6) as client:
        for node in (a, b):
            node.send(signal.SIGSTOP)
        try:
            with pytest.raises(CommitStateUnknownError) as caught:
                client.append("t", ROW)
        finally:
            for node in (a, b):
                node.send(signal.SIGCONT)
        identity = caught.value.fields["transaction_id"]
        assert caught.value.fields["reached"] == "accepted"
        receipt = client.append("t", ROW, transaction_id=identity, timeout=60)
        assert receipt.outcome == "committed"
        wait_until(lambda: is_back(three))
        three.agree(three.settle())
        assert client.wait(identity).position == receipt.position

    # One that lost its place says that it takes nothing: the next one is asked.
    removal = urllib.request.Request(f"{a.url}/v1/peers/C?timeout=20", method="DELETE")
    with urllib.request.urlopen(removal, timeout=60):
        wait_until(lambda: c.status()["phase"] == "JOINING", what="C knows that it has no place")
    with Client(",".join(urls(c, a, b)), timeout=20) as client:
        assert client.append("t", ROW).outcome == "committed"
