"""Replicas made without Spark: Delta tables by delta-rs, and the reports that go with them."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from sparktxlog.model.report import TableState, WorkerReport
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.tables.table import Column, TableDefinition

#: The table of `tests.support.node_processes.TABLE`.
DEFINITION = TableDefinition(
    name="t", columns=(Column(name="id", type="bigint"), Column(name="v", type="string"))
)
SIGNATURE = TableSignature(rows=3, lane0=1, lane1=2)


def append_rows(directory: Path, rows: int, *, seed: int = 0, width: int = 8) -> int:
    """Append rows with random texts in one commit; return the version."""
    chance = random.Random(seed)
    texts = [chance.randbytes(width).hex() for _ in range(rows)]
    table = pa.table({"id": pa.array(range(rows), pa.int64()), "v": texts})
    write_deltalake(directory, table, mode="append")
    return DeltaTable(directory).version()


def write_state(lake: Path, worker_id: str, position: int) -> None:
    """Write what a worker keeps beside its tables."""
    own = lake / "_sparktxlog"
    own.mkdir(parents=True, exist_ok=True)
    state = {"worker_id": worker_id, "log_id": "l", "position": position}
    (own / "state.json").write_text(json.dumps(state))


def report_of(status: Mapping[str, Any], version: int, worker_id: str = "w") -> WorkerReport:
    """Return a report of the replica at the end of a node's queue."""
    return WorkerReport(
        worker_id=worker_id,
        node_id=status["node_id"],
        log_id=status["log_id"],
        epoch=status["epoch"],
        position=status["position"],
        chain_hash=status["chain_hash"],
        tables={
            "t": TableState(version=version, signature=SIGNATURE, schema=DEFINITION.fingerprint())
        },
    )


def as_json(report: WorkerReport) -> dict[str, Any]:
    """Return a report as it is posted."""
    found: dict[str, Any] = json.loads(msgspec.json.encode(report))
    return found


def contents(directory: Path) -> dict[str, bytes]:
    """Return all files below a directory: relative path → bytes."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def chunk_digests(data: bytes, chunk_bytes: int) -> str:
    """Return the SHA-256 of each chunk, one after the other."""
    starts = range(0, len(data), chunk_bytes)
    return "".join(hashlib.sha256(data[at : at + chunk_bytes]).hexdigest() for at in starts)
