"""The target's end of `copying`: run where the target is, prints one JSON line of measurements.

Plays the worker without Spark: both replicas are reported by this process, and a copy ends when
all files are staged, verified and on the disk.  Only the swap, a few Delta commits, is left out.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.ordering import BATCH, create_table, rows_of
from sparktxlog import Client
from sparktxlog.copying.fetch import fetch_files
from sparktxlog.copying.selection import require_space, select_files
from sparktxlog.copying.workspace import CopyWorkspace
from sparktxlog.model.copying import CatchUpKind, CopyTicket, Transfer
from sparktxlog.model.report import TableState, WorkerReport
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.table import Column, TableDefinition

TABLE = "big"
#: Client token of both nodes.
TOKEN = "token of this run"
DEFINITION = TableDefinition(
    name=TABLE, columns=(Column(name="a", type="bigint"), Column(name="b", type="bigint"))
)
_SIGNATURE = TableSignature(rows=1, lane0=1, lane1=1)


def main(donor: str, target: str, lake: str, version: str, write_s: str) -> None:
    """Copy the donor's table to the lake, three times; the last is measured with writes."""
    for url in (donor, target):
        _wait_ready(url)
    client = Client(donor, TOKEN)
    client.create_table(TABLE, {"a": "bigint", "b": "bigint"})
    create_table(client)
    status = _linked(donor)
    _report(donor, status, {TABLE: int(version)}, "donor")
    _report(target, status, None, "target")
    measured = [_copy(target, Path(lake))]
    measured.append(_copy(target, Path(lake)))
    writes = _writes(client, float(write_s))
    stop, during = threading.Event(), list[float]()
    if float(write_s) > 0:
        writer = threading.Thread(target=lambda: during.append(_writes_until(client, stop)))
        writer.start()
        measured.append(_copy(target, Path(lake), least_s=float(write_s)))
        stop.set()
        writer.join()
    unchanged = _unchanged(target, Path(lake))
    print(json.dumps({"copies": measured, "writes": writes, "during": during,
                      "unchanged_wire_bytes": unchanged}))  # fmt: skip


def _copy(url: str, lake: Path, least_s: float = 0.0) -> dict[str, Any]:
    """Copy until `least_s` are over, at least once; each copy starts with nothing."""
    begin, copied = time.perf_counter(), list[dict[str, Any]]()
    while not copied or time.perf_counter() - begin < least_s:
        copied.append(_copy_once(url, lake))
    return copied[-1]


def _copy_once(url: str, lake: Path) -> dict[str, Any]:
    ticket = _ticket(url)
    began = time.time_ns() // 1000
    begin = time.perf_counter()
    workspace = CopyWorkspace(lake, ticket.copy_id)
    workspace.save_ticket(ticket)
    grant = ticket.grants[0]
    offered = grant.tables[0]
    live = [file.path for file in offered.files if not file.path.startswith("_delta_log")]
    selected = select_files(workspace, grant, offered, live, lake / TABLE)
    require_space(workspace, selected.fetch)
    stats = fetch_files(workspace, ticket.grants, selected.fetch)
    seconds = time.perf_counter() - begin
    estimate = ticket.decision.copy
    transfer = Transfer(
        transfer_id=ticket.copy_id, worker_id="target", node_id="B", kind=CatchUpKind.COPY,
        donors=(grant.node_id,), from_position=0, to_position=grant.position, started_at=began,
        finished_at=time.time_ns() // 1000, actual_s=seconds,
        estimated_s=None if estimate is None else estimate.seconds,
        size_bytes=stats.size_bytes, wire_bytes=stats.wire_bytes,
    )  # fmt: skip
    _call(f"{url}/v1/worker/transfers", msgspec.json.encode(transfer))
    workspace.remove()
    return {
        "seconds": seconds, "size_bytes": stats.size_bytes, "wire_bytes": stats.wire_bytes,
        "estimated_s": transfer.estimated_s,
    }  # fmt: skip


def _unchanged(url: str, lake: Path) -> int:
    """Copy again over a table that has all files already; return the bytes that travel."""
    ticket = _ticket(url)
    first = CopyWorkspace(lake, ticket.copy_id)
    grant = ticket.grants[0]
    offered = grant.tables[0]
    live = [file.path for file in offered.files if not file.path.startswith("_delta_log")]
    fetched = fetch_files(
        first, ticket.grants, select_files(first, grant, offered, live, lake / TABLE).fetch
    )
    first.table_dir(TABLE).rename(lake / TABLE)
    again = CopyWorkspace(lake, str(uuid.uuid4()))
    selected = select_files(again, grant, offered, live, lake / TABLE)
    stats = fetch_files(again, ticket.grants, selected.fetch)
    assert fetched.complete and stats.complete
    assert selected.reused_bytes == fetched.size_bytes
    return stats.wire_bytes


def _writes(client: Client, seconds: float) -> float:
    """Return the transactions a second that one writer gets accepted at the donor."""
    stop = threading.Event()
    timer = threading.Timer(seconds, stop.set)
    timer.start()
    return _writes_until(client, stop) if seconds > 0 else 0.0


def _writes_until(client: Client, stop: threading.Event) -> float:
    rows, count, begin = rows_of(BATCH), 0, time.perf_counter()
    while not stop.is_set():
        client.submit_many("readings", rows, run_transactions=BATCH, level="accepted")
        count += BATCH
    return count / (time.perf_counter() - begin)


def _ticket(url: str) -> CopyTicket:
    body = json.dumps({"worker_id": "target", "forced": True}).encode()
    return msgspec.json.decode(_call(f"{url}/v1/worker/copies", body), type=CopyTicket)


def _report(url: str, status: dict[str, Any], tables: dict[str, int] | None, worker: str) -> None:
    own = json.loads(_call(f"{url}/v1/status"))
    states = {
        name: TableState(version=at, signature=_SIGNATURE, schema=DEFINITION.fingerprint())
        for name, at in (tables or {}).items()
    }
    report = WorkerReport(
        worker_id=worker, node_id=own["node_id"], lineage=status["lineage"],
        epoch=status["epoch"], position=status["position"] if tables else 0,
        chain_hash=status["chain_hash"] if tables else "", tables=states,
    )  # fmt: skip
    _call(f"{url}/v1/worker/reports", msgspec.json.encode(report))


def _linked(url: str) -> dict[str, Any]:
    """Wait until both nodes are linked and what was committed is ordered; return the status."""
    while True:
        status: dict[str, Any] = json.loads(_call(f"{url}/v1/status"))
        if all(peer["linked"] for peer in status["peers"]) and status["position"] >= 2:
            return status
        time.sleep(0.05)


def _wait_ready(url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            _call(f"{url}/readyz")
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def _call(url: str, body: bytes | None = None) -> bytes:
    headers = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
        return bytes(answer.read())


if __name__ == "__main__":
    main(*sys.argv[1:])
