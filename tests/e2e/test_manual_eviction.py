"""`eviction = manual`: who is out is decided outside, by a person or a monitor (T52, G23)."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.node_processes import MANUAL, TABLE, Cluster, append, call, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

SUSPECT_S = 1.0


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    settings = (MANUAL, f"suspect-timeout = {SUSPECT_S:g}", "start-timeout = 4")
    cluster = Cluster(tmp_path, "ABC", settings=settings)
    try:
        cluster.start()
        cluster.nodes["A"].commit(TABLE)
        cluster.settle()
        yield cluster
    finally:
        cluster.stop()


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
        lambda: all("no configured peer" in link["reason"] for link in c.status()["peers"]),
        what="C says that it has no place",
    )
