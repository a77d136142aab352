"""The target's end of `copying`: run where the target is, prints one JSON line of measurements.

Plays the worker without Spark: both replicas are reported by this process, and a copy ends when
all files are staged, verified and on the disk.  Only the swap, a few Delta commits, is left out.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import urllib.request
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.ordering import create_table
from sparktxlog import Client
from sparktxlog.files.fetch import fetch_files
from sparktxlog.files.selection import Wanted, require_space, select_files
from sparktxlog.files.tasks import FileTask
from sparktxlog.files.workspace import CopyWorkspace, remove_workspaces
from sparktxlog.model.copying import CatchUpKind, CopyTicket, Transfer
from sparktxlog.model.report import TableState, WorkerReport
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.tables.table import Column, TableDefinition

TABLE = "big"
#: Copies of which the last is the one to look at.
COPIES = 2
#: Client token of both nodes.
TOKEN = "token of this run"
#: URL of a node → the file with the token of its workers.
_WORKER_TOKENS: dict[str, Path] = {}
DEFINITION = TableDefinition(
    name=TABLE, columns=(Column(name="a", type="bigint"), Column(name="b", type="bigint"))
)
_SIGNATURE = TableSignature(rows=1, lane0=1, lane1=1)


def main(mode: str, donor: str, target: str, lake: str, *rest: str) -> None:
    """Do what the mode says: `measure`, `keep` or `resume`."""
    data_dir = Path(lake).parent
    Path(lake).mkdir(exist_ok=True)
    _WORKER_TOKENS.update(
        {donor: data_dir.with_name("a") / "worker.token", target: data_dir / "worker.token"}
    )
    for url in (donor, target):
        _wait_ready(url)
    if mode == "measure":
        client = Client(donor, TOKEN)
        client.create_table(TABLE, {"a": "bigint", "b": "bigint"})
        create_table(client)
        status = _linked(donor)
        _report(donor, status, {TABLE: int(rest[0])}, "donor")
        _report(target, status, None, "target")
        _wait_donor(target)
        copies = [_copy_once(target, Path(lake), int(rest[1])) for _ in range(COPIES)]
        unchanged = _unchanged(target, Path(lake))
        result = {
            "copies": copies,
            "unchanged_wire_bytes": unchanged,
            "served_bytes": _served(donor),
        }
    elif mode == "keep":
        result = _keep_copying(target, Path(lake))
    else:
        result = _resume(donor, target, Path(lake))
    print(json.dumps(result), flush=True)


def _keep_copying(url: str, lake: Path) -> dict[str, Any]:
    """Copy again and again until the standard input ends; say when it has begun."""
    stop = threading.Event()
    threading.Thread(target=_wait_end, args=(stop,), daemon=True).start()
    print("begun", flush=True)
    begin, fetched, here = time.perf_counter(), 0, 0

    def note(here_bytes: int, total: int) -> None:
        nonlocal here
        here = here_bytes
        if stop.is_set():
            raise InterruptedError

    while not stop.is_set():
        workspace, ticket, wanted = _selected(url, lake)
        with suppress(InterruptedError):
            fetch_files(workspace, ticket.lease, wanted, progress=note)
        fetched += here
        remove_workspaces(lake)
    return {"fetched_bytes": fetched, "seconds": time.perf_counter() - begin}


def _wait_end(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


def _resume(donor: str, url: str, lake: Path) -> dict[str, Any]:
    """Fetch into one workspace, whoever was killed at it before; return what the donor served."""
    workspace, ticket, wanted = _selected(url, lake, "resumed")

    def tell(here: int, total: int) -> None:
        print(json.dumps({"part": here / total}), flush=True)

    stats = fetch_files(workspace, ticket.lease, wanted, progress=tell)
    return {
        "size_bytes": stats.size_bytes,
        "served_bytes": _served(donor),
        "chunk_bytes": ticket.lease.chunk_bytes,
    }


def _served(donor: str) -> float:
    """Return the plain bytes of all chunks that the donor served."""
    lines = _call(f"{donor}/metrics").decode().splitlines()
    (line,) = [line for line in lines if line.startswith("sparktxlog_donor_file_bytes_total ")]
    return float(line.split()[1])


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process, user and system (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _selected(url: str, lake: Path, copy_id: str = "") -> tuple[CopyWorkspace, CopyTicket, Wanted]:
    ticket = _ticket(url)
    workspace = CopyWorkspace(lake, copy_id or ticket.copy_id)
    return workspace, ticket, select_files(workspace, ticket.lease, _live(ticket))


def _live(ticket: CopyTicket) -> list[FileTask]:
    files = ticket.lease.tables[0].files
    return [FileTask.of(TABLE, file) for file in files if not file.path.startswith("_delta_log")]


def _copy_once(url: str, lake: Path, donor_pid: int) -> dict[str, Any]:
    began = time.time_ns() // 1000
    workspace, ticket, wanted = _selected(url, lake)
    begin, own, donors = time.perf_counter(), time.process_time(), _cpu_s(donor_pid)
    require_space(workspace, wanted.works)
    stats = fetch_files(workspace, ticket.lease, wanted)
    seconds = time.perf_counter() - begin
    own, donors = time.process_time() - own, _cpu_s(donor_pid) - donors
    lease = ticket.lease
    estimate = ticket.decision.copy
    transfer = Transfer(
        transfer_id=ticket.copy_id,
        worker_id="target",
        node_id="B",
        kind=CatchUpKind.COPY,
        donors=(lease.node_id,),
        from_position=0,
        to_position=lease.position,
        started_at=began,
        finished_at=time.time_ns() // 1000,
        actual_s=seconds,
        fetch_s=stats.fetch_s,
        estimated_s=None if estimate is None else estimate.seconds,
        size_bytes=stats.size_bytes,
        wire_bytes=stats.wire_bytes,
    )
    _call(f"{url}/v1/worker/transfers", msgspec.json.encode(transfer))
    remove_workspaces(lake)
    return {
        "seconds": seconds,
        "size_bytes": stats.size_bytes,
        "wire_bytes": stats.wire_bytes,
        "estimated_s": transfer.estimated_s,
        "target_cpu_s": own,
        "donor_cpu_s": donors,
    }


def _unchanged(url: str, lake: Path) -> int:
    """Copy again over a table that has all files already; return the bytes that travel."""
    first, ticket, wanted = _selected(url, lake)
    fetched = fetch_files(first, ticket.lease, wanted)
    first.table_dir(TABLE).rename(lake / TABLE)
    again = CopyWorkspace(lake, str(uuid.uuid4()))
    selected = select_files(again, ticket.lease, _live(ticket))
    stats = fetch_files(again, ticket.lease, selected)
    assert stats.reused_bytes == fetched.size_bytes
    return stats.wire_bytes


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
        worker_id=worker,
        node_id=own["node_id"],
        log_id=status["log_id"],
        epoch=status["epoch"],
        position=status["position"] if tables else 0,
        chain_hash=status["chain_hash"] if tables else "",
        tables=states,
    )
    _call(f"{url}/v1/worker/reports", msgspec.json.encode(report))


def _linked(url: str) -> dict[str, Any]:
    """Wait until both nodes are linked and what was committed is ordered; return the status."""
    while True:
        status: dict[str, Any] = json.loads(_call(f"{url}/v1/status"))
        if all(peer["linked"] for peer in status["peers"]) and status["position"] >= 2:
            return status
        time.sleep(0.05)


def _wait_donor(url: str) -> None:
    """Wait until a node knows a replica of another site that may lend."""
    while True:
        status = json.loads(_call(f"{url}/v1/status"))
        others = [r for r in status["replicas"] if r["node_id"] != status["node_id"]]
        if any(replica["verdict"] == "IN_SYNC" for replica in others):
            return
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
    node, worker, _ = url.partition("/v1/worker/")
    token = _WORKER_TOKENS[node].read_text().strip() if worker else TOKEN
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
        return bytes(answer.read())


if __name__ == "__main__":
    main(*sys.argv[1:])
