"""Two real nodes, workers played by the test: every message of the planner, settings that last."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.service.test_catch_up_routes import ask, tell
from tests.support.node_processes import TABLE, Cluster, NodeProcess, append, call, wait_until

from sparktxlog.model.copying import CatchUpKind, Transfer
from sparktxlog.model.report import Recount, RecountedTable, TableState, WorkerReport
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.tables.table import TableDefinition

pytestmark = pytest.mark.e2e

#: Everything but an empty copy is slower than any copy.
EAGER = {
    "NetSpeedBitsPerSec": 1 << 40,
    "FullReplicationTimeFactor": 1.5,
    "MinTimeToConsiderFullReplicationS": 0,
}


def state_at(node: NodeProcess, position: int, rows: int = 0, **changes: Any) -> WorkerReport:
    """Return a report of the node's worker as if it stood at a run end."""
    runs = call(f"{node.url}/v1/queue?limit=1000")
    hashes = {run["position"] + run["n"] - 1: run["chain_hash"] for run in runs}
    (found,) = call(f"{node.url}/v1/tables")
    found.pop("position")
    found["properties"] = tuple(found["properties"].items())
    schema = msgspec.convert(found, TableDefinition).fingerprint()
    table = TableState(version=0, signature=TableSignature(rows=rows), schema=schema)
    values: dict[str, Any] = {
        "worker_id": f"w{node.name}",
        "node_id": node.name,
        "log_id": node.status()["log_id"],
        "epoch": 1,
        "position": position,
        "chain_hash": hashes.get(position, ""),
        "tables": {"t": table} if position else {},
    }
    return WorkerReport(**values | changes)


def _recounted(node: NodeProcess, told: WorkerReport) -> Any:
    """Tell a node that a full scan found no rows where its worker reported some."""
    recorded, counted = told.tables["t"].signature.to_text(), TableSignature().to_text()
    recount = Recount(
        worker_id=told.worker_id,
        node_id=told.node_id,
        copied_from="",
        position=told.position,
        tables={"t": RecountedTable(version=0, recorded=recorded, counted=counted)},
    )
    status, answer = ask(node, "POST", "/v1/worker/recounts", msgspec.json.encode(recount))
    assert status == 200, answer
    return answer


def _copy_is_ordered_and_told(a: NodeProcess, end: int) -> None:
    """Order the planned copy, see it run, tell its end, see it kept."""
    order = {"worker_id": "wA", "forced": False}
    status, ticket = ask(a, "POST", "/v1/worker/copies", order)
    assert status == 200, ticket
    assert ticket["lease"]["node_id"] == "B"

    def own() -> Any:
        return next(r for r in a.status()["replicas"] if r["worker_id"] == "wA")

    (running,) = own()["running_transfers"]
    assert (running["transfer_id"], running["donors"]) == (ticket["copy_id"], ["B"])
    transfer = Transfer(
        transfer_id=ticket["copy_id"],
        worker_id="wA",
        node_id="A",
        kind=CatchUpKind.COPY,
        donors=("B",),
        from_position=end,
        to_position=end,
        started_at=1,
        finished_at=2,
        estimated_s=ticket["decision"]["copy"]["seconds"],
        actual_s=0.5,
        outcome="broken off",
    )
    assert ask(a, "POST", "/v1/worker/transfers", msgspec.json.encode(transfer))[0] == 204
    assert own()["running_transfers"] == []
    assert own()["last_transfer"]["outcome"] == "broken off"


def _messages_are_verbatim(log: str) -> None:
    lines = [
        line
        for line in log.splitlines()
        if "Replicating" in line or "storage size" in line or "copy is preferred" in line
    ]
    found = re.findall(
        r"copy is preferred|Replicating \([a-z ]+\)(?:, forced)?|Couldn't find storage size",
        "\n".join(re.sub(r"reason=.*", "", line) for line in lines),
    )
    assert found == [
        "Replicating (empty)",
        "copy is preferred",
        "Replicating (catch up)",
        "Replicating (out of sync)",
        "Replicating (out of sync), forced",
        "Couldn't find storage size",
    ]
    (why,) = [line for line in lines if "copy is preferred" in line and "reason=" not in line]
    assert re.search(r"[0-9.]+ s", why)


def test_all_messages_verbatim_and_in_order_and_settings_that_last(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "AB")
    a, b = cluster.nodes.values()
    try:
        cluster.start()
        a.commit(TABLE)
        for number in range(5):
            a.commit(append(number))
        end = cluster.settle()
        wait_until(lambda: a.status()["published"] == end)
        lake = tmp_path / "B" / "lake" / "t"
        write_deltalake(lake, pa.table({"id": pa.array([1], pa.int64()), "v": ["x"]}))
        assert ask(a, "PATCH", "/v1/settings", EAGER)[0] == 200
        sound = state_at(b, end)

        def planned(report: WorkerReport, plan: str, message: str) -> None:
            """Report until the plan is there and its message was logged."""

            def there() -> bool:
                tell(b, sound)
                answer = tell(a, report)
                return answer["plan"] == plan and f"{message} " in a.log_text()

            wait_until(there, what=f"{message}: {plan}")

        tell(b, sound)
        wait_until(lambda: len(a.status()["replicas"]) == 1)
        planned(state_at(a, 0), "copy", "Replicating (empty)")
        planned(state_at(a, 1), "copy", "Replicating (catch up)")
        planned(state_at(a, end, chain_hash="ff"), "copy", "Replicating (out of sync)")
        wrong = state_at(a, end, rows=7)
        # Of two sites that differ nobody can say which is right, until one is recounted.
        assert (tell(a, wrong)["plan"], tell(a, wrong)["contested"]) == ("up-to-date", True)
        assert _recounted(a, wrong)["verdict"] == "DIVERGED"
        planned(wrong, "copy", "Replicating (out of sync), forced")
        wait_until(lambda: "DIVERGED" in [r["verdict"] for r in b.status()["replicas"]])
        assert a.status()["applied"] == 0
        decision = ask(a, "GET", "/v1/worker/plan")[1]
        assert (decision["plan"], decision["donor"]) == ("copy", "B")

        _copy_is_ordered_and_told(a, end)

        b.stop()
        wait_until(lambda: not a.status()["peers"][0]["linked"])
        wait_until(
            lambda: (
                tell(a, state_at(a, 1, copied_from="B@1/x"))["plan"] == "replay"
                and "Couldn't find storage size " in a.log_text()
            )
        )
        _messages_are_verbatim(a.log_text())

        a.kill()
        a.start()
        a.wait_ready()
        shown = ask(a, "GET", "/v1/settings")[1]
        assert {key: shown[key]["value"] for key in EAGER} == EAGER
        assert {shown[key]["origin"] for key in EAGER} == {"set at run time"}
    finally:
        cluster.stop()
