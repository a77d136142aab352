"""Records of a node's log: one JSON object per line, with node, epoch, peer and transaction."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest
import structlog
from tests.service.local_nodes import cluster, until
from tests.support.node_processes import TABLE, NodeProcess, free_ports, wait_until

from sparktxlog.runtime.node import Node
from sparktxlog.service.handlers.peer import PeerDoor

ADMIN = "a token of the operators"
_LOG = """
import logging, structlog
from sparktxlog.runtime.process import set_up_logs
epochs = iter((None, 7, 7))
set_up_logs("A", "info", "json", lambda: next(epochs))
structlog.get_logger("x").info("before")
structlog.contextvars.bind_contextvars(transaction="t1", peer="B")
structlog.get_logger("x").info("after", reason="r")
logging.getLogger("y").error("a request failed: %s", "POST")
"""


def test_records_have_the_same_fields_whoever_logs() -> None:
    done = subprocess.run([sys.executable, "-c", _LOG], capture_output=True, text=True, check=True)
    records = [json.loads(line) for line in done.stderr.splitlines()]
    times = [record.pop("timestamp") for record in records]
    assert all(time.endswith("Z") for time in times)
    of_all = {"node": "A", "epoch": 7, "transaction": "t1", "peer": "B"}
    assert records == [
        {"event": "before", "level": "info", "node": "A"},
        {"event": "after", "level": "info", "reason": "r", **of_all},
        {"event": "a request failed: POST", "level": "error", **of_all},
    ]


def test_a_node_logs_its_epoch_and_the_peer(tmp_path: Path) -> None:
    ports = free_ports(2)
    node = NodeProcess(tmp_path, "A", ports[0], {"B": ports[1]})
    node.start("log-format=json")
    try:
        found: list[dict[str, Any]] = wait_until(
            lambda: [one for one in _records(node) if one["event"] == "link down"]
        )
    finally:
        node.stop()
    assert {(one["node"], one["epoch"], one["peer"]) for one in found} == {("A", 1, "B")}
    assert {one["node"] for one in _records(node)} == {"A"}


def test_a_node_warns_of_secrets_that_others_see(tmp_path: Path) -> None:
    """At its start, and in its status; without the secret."""
    node = NodeProcess(tmp_path, "A", free_ports(1)[0], {})
    node.config.chmod(0o644)
    node.start("log-format=json", f"admin-token={ADMIN}")
    try:
        node.wait_ready()
        warnings = node.status()["warnings"]
    finally:
        node.stop()
    warned, said = {one["code"] for one in warnings}, [one["text"] for one in warnings]
    assert warned == {"open-secret", "secret-on-command-line"}
    logged = {one.get("code") for one in _records(node) if one["level"] == "warning"}
    assert warned <= logged
    assert sum("read with ps" in text or "can read or change" in text for text in said) == 2
    assert ADMIN not in node.log.read_text() and ADMIN not in str(said)


def _records(node: NodeProcess) -> list[dict[str, Any]]:
    whole = node.log.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def test_what_is_logged_for_a_request_names_its_transaction_or_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def noting(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        async def noted(*arguments: Any, **named: Any) -> Any:
            seen.append(structlog.contextvars.get_contextvars())
            return await original(*arguments, **named)

        monkeypatch.setattr(owner, name, noted)

    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes, aiohttp.ClientSession() as session:
            a: Node = nodes["A"]
            noting(a, "submit")
            noting(PeerDoor, "read_body")
            id_ = str(uuid4())
            url = f"{a.config.master_url}/v1/transactions"
            async with session.post(url, json=TABLE | {"transaction_id": id_}) as answer:
                assert answer.status == 200
            assert [one["transaction"] for one in seen if "transaction" in one] == [id_]
            await until(lambda: {one.get("peer") for one in seen} >= {"A", "B"})

    asyncio.run(main())
