"""Clients that wait at a node which is evicted or wedged: UNKNOWN with the id, then the outcome.

They are told that the outcome is open (not definite), with the transaction's id, and any node tells
it later; the client library goes on elsewhere with the same id.  Protocol P14, P20, P25b.
"""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.epoch_views import QUICK, all_show
from tests.support.node_processes import (
    Cluster,
    NodeProcess,
    append,
    call,
    committed,
    running,
    wait_until,
)
from tests.support.site_links import LinkedCluster, ways_between

from sparktxlog import Client
from sparktxlog.errors import CommitStateUnknownError
from sparktxlog.model.transactions.receipt import Level, Receipt

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

#: Far more than it takes to learn of an epoch that goes on without the node.
PATIENT_S = 60.0
#: After so long B decides without A; in two thirds of it C is stopped, on a busy machine too.
SUSPECT_S = 9.0
#: As long as clients wait that get nothing but their own timeout.
SHORT_S = 3.0


class Waits:
    """Clients that wait for the order of a transaction each."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    def submit(self, timeout_s: float, *nodes: NodeProcess) -> tuple[str, Future[Receipt]]:
        """Submit at the first node; return id and wait once the node keeps the transaction."""
        identity = str(uuid.uuid4())

        def work() -> Receipt:
            with Client([node.url for node in nodes], timeout=timeout_s) as client:
                return client.append("t", [{"id": 1, "v": "x"}], transaction_id=identity)

        waiting = self._pool.submit(work)
        where = f"{nodes[0].url}/v1/transactions/{identity}"
        wait_until(lambda: call(where)["level"] == "accepted", what=f"{nodes[0].name} keeps it")
        return identity, waiting


def is_unknown(waiting: Future[Receipt], identity: str, why: str) -> None:
    """Check that a wait ends with UNKNOWN for this reason, with the id."""
    with pytest.raises(CommitStateUnknownError, match=why) as caught:
        waiting.result(2 * PATIENT_S)
    assert not caught.value.definite
    fields = caught.value.fields
    assert (fields["transaction_id"], fields["reached"]) == (identity, "accepted")


def all_tell(cluster: Cluster, identities: Iterable[str]) -> None:
    """Check that every node tells the same outcome of each, and that each took effect once."""
    cluster.agree(cluster.settle())
    wanted = sorted(identities)
    for identity in wanted:
        told = [call(f"{n.url}/v1/transactions/{identity}") for n in cluster.nodes.values()]
        assert {receipt["outcome"] for receipt in told} == {"committed"}
        assert len({receipt["position"] for receipt in told}) == 1
    for node in cluster.nodes.values():
        assert committed(node, set(wanted)) == wanted


def test_who_waits_at_an_evicted_node_learns_it_and_is_ordered_once(tmp_path: Path) -> None:
    made = LinkedCluster(tmp_path, "ABC", settings=QUICK)
    # Cut off it would take no more than `accepted` after that time, and clients may be late.
    made.nodes["C"].settings = (f"suspect-timeout = {PATIENT_S:g}", "start-timeout = 4")
    with running(made) as cluster, ThreadPoolExecutor(2) as pool:
        a, b, c = cluster.nodes.values()
        waits = Waits(pool)
        cluster.links.lose(ways_between("C", "AB"))
        alone, there = waits.submit(PATIENT_S, c)
        several, elsewhere = waits.submit(2 * PATIENT_S, c, a, b)
        # A has something to say, so it misses C.
        a.commit(append(1), timeout=PATIENT_S)
        all_show(cluster, "AB")
        assert not (there.done() or elsewhere.done())
        cluster.links.heal()
        is_unknown(there, alone, "epoch 2 goes on without this node")
        receipt = elsewhere.result(2 * PATIENT_S)
        assert (receipt.level, receipt.outcome) == (Level.ORDERED, "committed")
        all_show(cluster, "ABC")
        all_tell(cluster, [alone, several])
        assert call(f"{b.url}/v1/transactions/{several}")["position"] == receipt.position


def wedge(cluster: Cluster) -> None:
    """Kill A, and stop C when B counts upon its vote, but has not asked: B is wedged, for good."""
    a, b, c = cluster.nodes.values()
    a.kill()
    b.commit(append(1), "acquired")
    wait_until(lambda: b.status()["suspects"] == ["A"], what="B misses A")
    missed = time.monotonic()
    # Nothing tells that C has answered a probe; it does in milliseconds.
    wait_until(lambda: time.monotonic() - missed > SUSPECT_S / 3)
    c.send(signal.SIGSTOP)
    wait_until(lambda: b.status()["phase"] == "WEDGED", what="B asks for promises")


def times_out(waits: Waits, node: NodeProcess) -> str:
    """Check that a client of a wedged node gets UNKNOWN by its own timeout; return the id."""
    began = time.monotonic()
    identity, waiting = waits.submit(SHORT_S, node)
    is_unknown(waiting, identity, "not reached 'ordered' in time")
    assert SHORT_S / 2 < time.monotonic() - began < PATIENT_S / 2
    status = node.status()
    assert (status["phase"], status["epoch"]) == ("WEDGED", 1)
    return identity


def test_who_waits_at_a_wedged_node_is_told_in_time_and_at_once_if_it_is_evicted(
    tmp_path: Path,
) -> None:
    settings = (f"suspect-timeout = {SUSPECT_S:g}", "start-timeout = 4")
    with (
        running(Cluster(tmp_path, "ABC", settings=settings)) as cluster,
        ThreadPoolExecutor(2) as pool,
    ):
        a, b, c = cluster.nodes.values()
        waits = Waits(pool)
        wedge(cluster)
        try:
            at_proposer = times_out(waits, b)
            longer, there = waits.submit(2 * PATIENT_S, b)
            # C finds what B asked, promises, and has nobody else either.
            b.send(signal.SIGSTOP)
            c.send(signal.SIGCONT)
            wait_until(lambda: c.status()["phase"] == "WEDGED", what="C promises")
            at_voter = times_out(waits, c)
            a.start()
            all_show(cluster, "AC")
            assert not there.done()
        finally:
            for node in (b, c):
                node.send(signal.SIGCONT)
        is_unknown(there, longer, "goes on without this node")
        all_show(cluster, "ABC")
        all_tell(cluster, [at_proposer, at_voter, longer])
