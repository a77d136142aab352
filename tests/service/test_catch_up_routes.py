"""Settings, plan, transfers and signatures over HTTP; the test plays the worker."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec
import pytest
from tests.support.node_processes import TABLE, NodeProcess, append, free_ports, wait_until

from sparktxlog.model.copying import CatchUpKind, Transfer
from sparktxlog.model.report import TableState, WorkerReport
from sparktxlog.model.signature import TableSignature

_JSON = {"content-type": "application/json"}


def ask(node: NodeProcess, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Return status and JSON, None for an empty answer."""
    data = (
        None if body is None else (body if isinstance(body, bytes) else json.dumps(body).encode())
    )
    request = Request(node.url + path, data=data, method=method, headers=_JSON)
    try:
        with urlopen(request, timeout=30) as answer:
            content = answer.read()
            return answer.status, json.loads(content) if content else None
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def report_of(node: NodeProcess, position: int | None = None, **changes: Any) -> WorkerReport:
    """Return what a sound worker of the node reports at its queue's end, or at a position."""
    status = node.status()
    at = status["chain_position"] if position is None else position
    values: dict[str, Any] = {
        "worker_id": "w",
        "node_id": node.name,
        "log_id": status["log_id"],
        "epoch": 1,
        "position": at,
        "chain_hash": status["chain_hash"],
        "tables": {"t": TableState(version=at, signature=TableSignature(rows=at), schema="s")},
    }
    return WorkerReport(**values | changes)


def tell(node: NodeProcess, report: WorkerReport) -> Any:
    """Post a report and return the answer."""
    status, answer = ask(node, "POST", "/v1/worker/reports", msgspec.json.encode(report))
    assert status == 200
    return answer


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A node of this file alone, with two transactions published."""
    process = NodeProcess(tmp_path_factory.mktemp("own"), "A", free_ports(1)[0], {})
    process.start("tx-log-max-size=77")
    try:
        process.wait_ready()
        process.commit(TABLE)
        process.commit(append(1))
        wait_until(lambda: process.status()["published"] == 2)
        yield process
    finally:
        process.stop()


def _of(setting: dict[str, Any]) -> tuple[Any, str]:
    return setting["value"], setting["origin"]


def test_settings_are_changed_all_or_none(own: NodeProcess) -> None:
    shown = ask(own, "GET", "/v1/settings")[1]
    assert _of(shown["tx-log-max-size"]) == (77, "command line")
    assert _of(shown["FullReplicationTimeFactor"]) == (1.3, "default")
    body = {"FullReplicationTimeFactor": 2, "NetSpeedBitsPerSec": 10**9}
    status, changed = ask(own, "PATCH", "/v1/settings", body)
    assert status == 200
    assert _of(changed["NetSpeedBitsPerSec"]) == (10**9, "set at run time")
    status, problem = ask(
        own, "PATCH", "/v1/settings", {"FullReplicationTimeFactor": 3, "NetSpeedBitsPerSec": "x"}
    )
    assert (status, problem["title"], problem["definite"]) == (400, "invalid-request", True)
    assert problem["fields"] == {"field": "NetSpeedBitsPerSec", "value": "x"}
    assert problem["hint"]
    assert ask(own, "GET", "/v1/settings")[1] == changed
    back = dict.fromkeys(body)
    assert ask(own, "PATCH", "/v1/settings", back)[1] == shown


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"x"', b"\xff", b'{"node-id": "B"}'])
def test_settings_that_are_none(own: NodeProcess, body: bytes) -> None:
    status, problem = ask(own, "PATCH", "/v1/settings", body)
    assert (status, problem["title"]) == (400, "invalid-request")


def test_the_plan_of_a_worker_that_never_reported(own: NodeProcess) -> None:
    status, problem = ask(own, "GET", "/v1/worker/plan?worker=nobody")
    assert (status, problem["title"]) == (404, "not-found")
    assert "sparktxlog apply" in problem["hint"]


def test_plan_and_signatures_follow_the_reports(own: NodeProcess) -> None:
    assert tell(own, report_of(own, 0, chain_hash="", tables={}))["plan"] == "replay"
    decision = ask(own, "GET", "/v1/worker/plan")[1]
    assert (decision["plan"], decision["behind"], decision["copy"]) == ("replay", 2, None)
    assert decision["replay"]["kind"] == "replay"
    answer = tell(own, report_of(own))
    assert (answer["plan"], answer["verdict"]) == ("up-to-date", "IN_SYNC")
    assert ask(own, "GET", "/v1/worker/plan?worker=w")[1]["plan"] == "up-to-date"
    found = ask(own, "GET", "/v1/signatures")[1]
    assert found["node_id"] == "A"
    (line,) = found["replicas"]
    expected = {"worker_id": "w", "name": "main", "only": [], "position": 2, "verdict": "IN_SYNC"}
    assert line == expected
    (entry,) = found["signatures"]
    assert (entry["position"], entry["chain_hash"]) == (2, own.status()["chain_hash"])
    assert entry["tables"]["t"] == TableSignature(rows=2).to_text()
    assert ask(own, "GET", "/v1/signatures?after=2")[1]["signatures"] == []
    assert ask(own, "GET", "/v1/signatures?limit=0")[0] == 400
    # A site of its own has nobody to copy from.
    answer = tell(own, report_of(own, irreparable="disk lost"))
    assert answer["verdict"] == "IN_SYNC"
    wait_until(lambda: tell(own, report_of(own, irreparable="disk lost"))["plan"] == "stop")


def test_transfers_are_kept_and_shown(own: NodeProcess) -> None:
    transfer = Transfer(
        transfer_id="c1",
        worker_id="w",
        node_id="A",
        kind=CatchUpKind.COPY,
        donors=("B", "C"),
        from_position=0,
        to_position=2,
        started_at=1_700_000_000_000_000,
        finished_at=1_700_000_002_000_000,
        estimated_s=1.5,
        actual_s=2.0,
        size_bytes=100,
        wire_bytes=40,
        reused_bytes=10,
        reason="Replicating (empty)",
    )
    body = msgspec.json.encode(transfer)
    for _ in range(2):
        assert ask(own, "POST", "/v1/worker/transfers", body) == (204, None)
    assert ask(own, "GET", "/v1/transfers")[1] == [json.loads(body)]
    tell(own, report_of(own))
    (replica,) = own.status()["replicas"]
    assert replica["last_transfer"]["actual_s"] == 2.0
    assert replica["running_transfers"] == []
    for bad in (b"{}", b"{", msgspec.json.encode(transfer).replace(b'"A"', b'"B"')):
        assert ask(own, "POST", "/v1/worker/transfers", bad)[0] == 400


def test_all_of_it_survives_a_restart(own: NodeProcess) -> None:
    ask(own, "PATCH", "/v1/settings", {"MinTimeToConsiderFullReplicationS": 5})
    before = ask(own, "GET", "/v1/settings")[1], ask(own, "GET", "/v1/transfers")[1]
    own.kill()
    own.start("tx-log-max-size=77")
    own.wait_ready()
    assert (ask(own, "GET", "/v1/settings")[1], ask(own, "GET", "/v1/transfers")[1]) == before
    assert len(ask(own, "GET", "/v1/signatures")[1]["signatures"]) == 1
    assert ask(own, "GET", "/v1/worker/plan")[1]["worker_id"] == "w"
