"""A stopped node B whose queue parts from that of A, which goes on: for tests of quarantine."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from tests.support.storage_samples import (
    ORDERS,
    entries_of,
    ids_in,
    inline_block,
    run_of,
)

from sparktxlog.codec.containers.payload import read_manifest
from sparktxlog.config import NodeConfig, load_config
from sparktxlog.errors import (
    ExpiredError,
    NotFoundError,
)
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import OP_COLUMN, POSITION_COLUMN, OperationKind
from sparktxlog.protocol.messages.posts import QueueEntry, Rejection
from sparktxlog.storage.interfaces import (
    AppendQueue,
    PutRun,
)
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.storage.log_tables.queue_table import QueueTable
from sparktxlog.storage.payloads.local_store import LocalPayloadStore
from sparktxlog.storage.segments.publishing import publish

LOG = "log of A and B"
CITIES = TableDefinition(
    name="cities",
    columns=(Column(name="id", type="bigint"), Column(name="land", type="string")),
    partition_by=("land",),
)


def append_run(seq: int, n: int = 1, *, origin: str = "B", **options: Any) -> PutRun:
    """A run of n transactions of one appended row each; the row's id is the sequence number."""
    ids = range(seq, seq + n)
    rows = pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "city": [f"city {i}" for i in ids],
            "amount": pa.array([Decimal(i) for i in ids], pa.decimal128(10, 2)),
        }
    )
    block, section = inline_block("orders", OperationKind.APPEND, rows, 0, tx=range(n))
    return run_of(seq=seq, n=n, origin=origin, blocks=[block], sections=[section], **options)


@dataclass
class OtherNode:
    """Stands in for a node that goes on under a forced log id."""

    entries: list[QueueEntry]
    #: Transaction id text → receipt.
    receipts: dict[str, dict[str, Any]] = field(default_factory=dict)
    begins_after: tuple[int, bytes] = (0, bytes(32))
    kept_after: int = 0
    changed: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    url: str = "http://a:7070"

    def get(self, path: str, **query: Any) -> Any:
        self.asked.append(path)
        if path == "/v1/status":
            end = self.entries[-1].end if self.entries else 0
            chain = self.entries[-1].chain_hash if self.entries else bytes(32)
            found = {
                "node_id": "A",
                "phase": "NORMAL",
                "halted": None,
                "log_id": "forced",
                "epoch": 2,
                "ancestors": [{"log_id": LOG, "epoch": 1}],
                "begins_after": {
                    "position": self.begins_after[0],
                    "chain_hash": self.begins_after[1].hex(),
                },
                "chain_position": end,
                "chain_hash": chain.hex(),
                "roster": [{"id": "A", "incarnation": 1}, {"id": "B", "incarnation": 1}],
            }
            return found | self.changed
        if path == "/v1/info":
            return {"log_id": LOG}
        if path == "/v1/queue":
            if query["after"] < self.kept_after:
                raise ExpiredError("expired", kept_after=self.kept_after)
            behind = [e for e in self.entries if e.position > query["after"]][: query["limit"]]
            return [
                {"position": e.position, "n": e.header.n, "chain_hash": e.chain_hash.hex()}
                for e in behind
            ]
        receipt = self.receipts.get(path.rsplit("/", 1)[1])
        if receipt is None:
            raise NotFoundError("never seen")
        return receipt

    def hold(self, run: PutRun, position: int | None = 7) -> None:
        """Know a run by its first id."""
        header = run.header
        self.receipts[str(uuid.UUID(bytes=ids_in(run)[:16]))] = {
            "position": position,
            "run": {"origin": header.origin, "incarnation": header.incarnation, "seq": header.seq},
        }


class Node:
    """The data directory of B, which gives way."""

    def __init__(self, directory: Path) -> None:
        self.data_dir = directory / "B"
        self.data_dir.mkdir()
        self.entries: list[QueueEntry] = []
        self.config: NodeConfig = load_config(
            None,
            {
                "node-id": "B",
                "master-url": "http://127.0.0.1:7002",
                "data-dir": str(self.data_dir),
                "cluster-secret": "sixteen characters",
                "peer.1.id": "A",
                "peer.1.url": "http://127.0.0.1:7001",
            },
            {},
        )
        self.config = replace(self.config, first_log_id=LOG)
        self.payloads = LocalPayloadStore(self.config.payload_dir)

    def write(self, *writes: Any) -> None:
        journal = Journal(self.data_dir, id_window=self.config.id_window)
        try:
            journal.write(list(writes))
        finally:
            journal.close()

    def order(
        self,
        runs: Sequence[PutRun],
        *,
        rejections: dict[int, tuple[Rejection, ...]] | None = None,
    ) -> None:
        """Put runs at the end of the queue."""
        last = self.entries[-1] if self.entries else None
        entries = entries_of(
            runs,
            after=last.end if last else 0,
            previous=last.chain_hash if last else bytes(32),
            rejections=rejections,
        )
        made = [
            (entry.position + block.txs[0], block.definition)
            for entry, run in zip(entries, runs, strict=True)
            for block in read_manifest(run.payload).blocks
            if block.definition is not None and block.txs is not None
        ]
        tables = (*(() if last else ((1, ORDERS), (1, CITIES))), *made)
        self.write(
            *runs, AppendQueue(entries=entries, ordered_at=1_700_000_000_000_000, tables=tables)
        )
        self.entries.extend(entries)

    def publish(self) -> None:
        """Publish the whole queue."""
        journal = Journal(self.data_dir, id_window=self.config.id_window)
        try:
            marks = publish(
                journal.read_queue(0, 1_000, payloads=True),
                signature_interval=1_000,
                tables={"orders": ORDERS, "cities": CITIES},
                payloads=self.payloads,
                queue=QueueTable(self.data_dir / "log", LOG),
                creations=journal.read_created,
                prepared=journal.read_prepared,
            )
            journal.write(marks)
        finally:
            journal.close()

    def kept(self) -> list[dict[str, Any]]:
        """Return the rows in quarantine, ascending by position."""
        table = pa.table(DeltaTable(self.data_dir / "log" / "quarantine").to_pyarrow_table())
        rows: list[dict[str, Any]] = table.sort_by("position").to_pylist()
        return rows


def rows_of(transaction: dict[str, Any], column: str = "id") -> list[Any]:
    """Return a column of the inline rows of a transaction."""
    found = []
    for name in transaction["inline"] or ():
        for row in pq.read_table(Path(transaction["files_root"]) / name).to_pylist():
            if row[POSITION_COLUMN] == transaction["position"]:
                assert row[OP_COLUMN] == 0
                found.append(row[column])
    return found


def parted(directory: Path) -> tuple[Node, OtherNode]:
    """Return B with six common transactions, and A, which went on behind them by three runs."""
    node = Node(directory)
    node.order([append_run(1, 2), append_run(1, 3, origin="A"), append_run(3)])
    own = entries_of(
        [append_run(4 + i, origin="A") for i in range(3)],
        after=6,
        previous=node.entries[-1].chain_hash,
    )
    return node, OtherNode([*node.entries, *own])
