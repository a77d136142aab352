"""All nodes failed, one after the other: who comes back alone, and whom it waits for.

Protocol P12, P13, P17, P21.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.epoch_views import QUICK, all_show, told, waits_for
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
from sparktxlog.model.transactions.receipt import Level

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

#: A node that must not go on has so many times `suspect-timeout` in which it does not.
STILL_S = 6.0


def stands_still(node: NodeProcess, position: int) -> None:
    """Check that a node orders nothing: the answer to a commit is that nobody knows, or a no."""
    with pytest.raises(HttpProblem) as problem:
        node.commit(append(99), timeout=STILL_S)
    assert problem.value.status in (503, 504), problem.value
    assert node.status()["position"] == position


def test_the_last_one_to_fail_comes_first(tmp_path: Path) -> None:
    with running(Cluster(tmp_path, "ABW", settings=QUICK, witnesses="W")) as cluster:
        a, b, witness = cluster.nodes.values()
        before = a.status()["position"]
        a.kill()
        ids = [str(uuid.uuid4()) for _ in range(3)]
        for identity in ids:
            position = b.commit(append(1, identity), timeout=60)["position"]
        assert position == before + len(ids)
        all_show(cluster, "B")
        b.kill()
        witness.kill()

        # Alone, A is a member as far as it knows: it misses B, and has one vote of three.
        a.start()
        a.wait_ready()
        assert a.status()["restricted"]["waits_for"] == ["B", "W"]
        own = a.commit(append(2), "accepted")["transaction_id"]
        wait_until(lambda: waits_for(a) == ["B"])
        stands_still(a, before)

        # The witness knows that B went on: A has no part until B is there.
        witness.start()
        wait_until(lambda: a.status()["phase"] == "JOINING", what="A knows that B went on")
        assert waits_for(a) == ["B"]
        with pytest.raises(HttpProblem) as problem:
            a.commit(append(3), "accepted")
        assert problem.value.document["title"] == "not-a-member"
        assert problem.value.document["retryable"] is True
        a.kill()
        a.start()
        wait_until(lambda: a.status()["phase"] == "JOINING")
        assert "waits for B to admit it" in a.status()["phase_reason"]
        code, text = told(a, "status")
        assert code == 3 and "waits for B to admit it" in text and "waits for B:" in text
        stands_still(a, before)

        # Who knows A only tries on until it is a member again.
        with Client(a.url, timeout=120) as client, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.append, "t", [{"id": 4, "v": "x"}])
            b.start()
            assert waiting.result(120).level is Level.ORDERED
        all_show(cluster, "AB")
        cluster.agree(cluster.settle())
        for node in (a, b):
            found = [call(f"{node.url}/v1/transactions/{i}")["position"] for i in ids]
            assert found == [before + 1, before + 2, before + 3]
            assert call(f"{node.url}/v1/transactions/{own}")["position"] > position


@pytest.mark.parametrize("at_once", [True, False], ids=["at-once", "in-turn"])
def test_one_of_three_waits_for_another(tmp_path: Path, at_once: bool) -> None:
    with running(Cluster(tmp_path, "ABC", settings=QUICK)) as cluster:
        a, b, c = cluster.nodes.values()
        kept = b.commit(append(1), "acquired")["transaction_id"]
        before = wait_until(lambda: call(f"{a.url}/v1/transactions/{kept}")["position"])
        cluster.agree(before)
        c.kill()
        if not at_once:
            all_show(cluster, "AB")
            before = b.commit(append(2))["position"]
            cluster.nodes["A"].commit(append(3), "ordered")
            before += 1
        b.kill()
        missed = ["B", "C"] if at_once else ["B"]
        wait_until(lambda: a.status()["suspects"] == missed, what=f"A misses {missed}")
        own = a.commit(append(4), "accepted")["transaction_id"]
        wait_until(lambda: waits_for(a) == missed)
        stands_still(a, before)
        assert a.status()["restricted"]["waits_for"] == ["B", "C"]  # C has a vote, too
        code, text = told(a, "status")
        assert code == 3 and all(f"waits for {name}:" in text for name in missed)

        # Either one is enough: C need not have been there when B failed.
        c.start()
        all_show(cluster, "AC")
        wait_until(lambda: call(f"{a.url}/v1/transactions/{own}")["position"])
        position = c.commit(append(5))["position"]
        b.start()
        all_show(cluster, "ABC")
        cluster.agree(cluster.settle())
        for node in (a, b, c):
            found = [call(f"{node.url}/v1/transactions/{i}")["position"] for i in (kept, own)]
            assert found[0] < found[1] < position


def test_who_went_on_alone_may_start_alone(tmp_path: Path) -> None:
    """B excluded A with the witness's vote, and that is durable: it waits for nobody."""
    with running(Cluster(tmp_path, "ABW", settings=QUICK, witnesses="W")) as cluster:
        a, b, witness = cluster.nodes.values()
        a.kill()
        position = b.commit(append(1), timeout=60)["position"]
        b.kill()
        witness.kill()
        b.start()
        b.wait_ready()
        assert b.commit(append(2))["position"] == position + 1
        assert b.status()["members"] == ["B"]
        # A has nobody who could let it in: it needs B, and B needs a vote for that.
        a.start()
        all_show(cluster, "AB")
        # That takes half a second, so its log is asked: who looks meanwhile may see neither.
        assert "goes on without this node" in a.log_text()
        cluster.agree(b.commit(append(3))["position"])
        witness.start()
