"""`eviction = manual`: who is out is decided outside, by a person or a monitor."""

from __future__ import annotations

import itertools
import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.node_processes import MANUAL, Cluster, append, call, running, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

SUSPECT_S = 1.0
#: Within so long a node that has its place again is a member: to see that it needs a summary, to
#: start anew with it, and a decision take two to three seconds on a busy machine of two cores, and
#: several times as long on a slow one.
BACK_S = 30.0


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    settings = (MANUAL, f"suspect-timeout = {SUSPECT_S:g}", "start-timeout = 4")
    with running(Cluster(tmp_path, "ABC", settings=settings)) as cluster:
        yield cluster


def remove(url: str, name: str) -> Any:
    request = urllib.request.Request(f"{url}/v1/peers/{name}?timeout=20", method="DELETE")
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


def test_nobody_is_evicted_until_somebody_outside_says_so(three: Cluster) -> None:
    a, b, c = three.nodes.values()
    c.kill()
    began = time.monotonic()
    waiting = a.commit(append(1), "accepted")
    wait_until(lambda: a.status()["waiting_for"], what="A says whom it waits for")
    # Nothing tells that nothing will happen: three times the time after which C is missed.
    wait_until(lambda: time.monotonic() - began > 3 * SUSPECT_S)
    status = a.status()
    assert (status["epoch"], sorted(status["members"])) == (1, ["A", "B", "C"])
    assert call(f"{a.url}/v1/transactions/{waiting['transaction_id']}")["position"] is None

    found = wait_until(lambda: remove(a.url, "C"))
    assert found["members"] == ["A", "B"]
    position = b.commit(append(2))["position"]
    assert call(f"{a.url}/v1/transactions/{waiting['transaction_id']}")["position"] < position

    c.start()
    c.wait_ready()
    wait_until(
        lambda: all("not a configured peer" in link["reason"] for link in c.status()["peers"]),
        what="C says that it has no place",
    )


def test_a_removed_node_that_is_added_again_is_soon_a_member(three: Cluster) -> None:
    """Nobody kept for it what was ordered while it had no place; clients go on meanwhile."""
    a, b, c = three.nodes.values()
    c.kill()
    wait_until(lambda: a.status()["suspects"] == ["C"], what="A misses C")
    wait_until(lambda: remove(a.url, "C"))
    for number in range(3):
        position = a.commit(append(number))["position"]
    wait_until(lambda: all(n.status()["published"] == position for n in (a, b)))
    c.start()
    wait_until(lambda: "not a configured peer" in c.log_text(), what="C learns that it is out")
    call(f"{a.url}/v1/peers?timeout=20", {"id": "C", "url": c.url})
    numbers = itertools.count(3)

    def is_back() -> bool:
        """What is ordered now C does get: it must not take it for what it lacks."""
        b.commit(append(next(numbers)))
        return all(sorted(node.status()["members"]) == ["A", "B", "C"] for node in (a, b, c))

    wait_until(is_back, BACK_S, "C is a member again")
    three.agree(c.commit(append(next(numbers)))["position"])
    assert "summary taken over" in c.log_text()
