"""A node without a quorum: what it takes and refuses, and what clients make of it."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.epoch_views import QUICK, all_show, told
from tests.support.node_processes import (
    Cluster,
    HttpProblem,
    NodeProcess,
    append,
    call,
    running,
    wait_until,
)

from sparktxlog import Client
from sparktxlog.errors import NoQuorumError
from sparktxlog.model.transactions.receipt import Level, Receipt

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

ROW = [{"id": 1, "v": "x"}]
#: So long a node that misses others takes what it cannot order: a client on a busy machine is late.
LATER_S = 6.0
LATER = (f"suspect-timeout = {LATER_S:g}", "start-timeout = 8")


def restricted_for(node: NodeProcess, seconds: float) -> None:
    """Wait until a node has had no quorum for so long."""
    wait_until(lambda: (node.status()["restricted"] or {}).get("since_us", 0) > seconds * 1e6)


def test_a_node_without_a_quorum_refuses_what_it_cannot_order(tmp_path: Path) -> None:
    with (
        running(Cluster(tmp_path, "AB", settings=LATER)) as cluster,
        ThreadPoolExecutor(1) as pool,
    ):
        a, b = cluster.nodes.values()
        assert call(f"{a.url}/v1/info")["restricted"] is None
        before = a.status()["position"]
        b.kill()
        # Taken at once, and kept: whoever waited for its order is told that it may come.
        taken = str(uuid.uuid4())
        with pytest.raises(HttpProblem) as problem:
            a.commit(append(1, taken), timeout=3)
        assert (problem.value.status, problem.value.document["definite"]) == (504, False)
        restricted_for(a, LATER_S)

        refused = str(uuid.uuid4())
        with pytest.raises(HttpProblem) as problem:
            a.commit(append(2, refused), timeout=30)
        document = problem.value.document
        assert (problem.value.status, document["title"]) == (503, "no-quorum")
        assert (document["definite"], document["retryable"]) == (True, True)
        assert document["fields"] == {"waits_for": ["B"], "levels": ["accepted"]}
        with pytest.raises(HttpProblem) as problem:
            call(f"{a.url}/v1/transactions/{refused}")
        assert problem.value.status == 404
        # The one that was taken is not called refused, whatever it is asked for.
        with pytest.raises(HttpProblem) as problem:
            a.commit(append(1, taken), timeout=1)
        assert problem.value.status == 504
        assert a.commit(append(3), "accepted")["level"] == "accepted"

        assert call(f"{a.url}/v1/info")["restricted"]["waits_for"] == ["B"]
        assert a.status()["restricted"]["levels"] == ["accepted"]
        code, text = told(a, "status")
        assert code == 3 and "restricted: too few nodes answer; it has waited for B" in text

        with Client(a.url, timeout=2) as client, pytest.raises(NoQuorumError):
            client.append("t", ROW)
        with Client(a.url, timeout=90) as client:
            waiting = pool.submit(client.append, "t", ROW)
            b.start()
            receipt: Receipt = waiting.result(90)
        assert (receipt.level, receipt.outcome) == (Level.ORDERED, "committed")
        all_show(cluster, "AB")
        wait_until(lambda: a.status()["restricted"] is None)
        # The two that were taken, and that of the client which tried on.
        cluster.agree(before + 3)


def test_a_client_goes_to_the_side_that_has_a_quorum(tmp_path: Path) -> None:
    with running(Cluster(tmp_path, "ABC", settings=QUICK)) as cluster:
        a, b, c = cluster.nodes.values()
        b.kill()
        all_show(cluster, "AC")
        c.kill()
        restricted_for(a, 2.0)
        c.start()
        with Client([a.url, c.url], timeout=60) as client:
            receipt = client.append("t", ROW)
        assert (receipt.level, receipt.outcome) == (Level.ORDERED, "committed")
