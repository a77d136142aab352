"""Runs, queue entries and staged files for the tests of the storage room."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparktxlog.codec.containers.payload import digest_of, encode_payload, read_manifest
from sparktxlog.codec.containers.sections import write_section
from sparktxlog.model.ids import NodeId
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import (
    OP_COLUMN,
    TX_COLUMN,
    Block,
    InlineSection,
    OperationKind,
    RunManifest,
    StagedFile,
)
from sparktxlog.protocol.messages.posts import QueueEntry, Rejection, RunHeader
from sparktxlog.storage.interfaces import PutRun, StoredEntry
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.storage.payloads.local_store import LocalPayloadStore

ORDERS = TableDefinition(
    name="orders",
    columns=(
        Column(name="id", type="bigint", nullable=False),
        Column(name="city", type="string"),
        Column(name="amount", type="decimal(10,2)"),
    ),
    keys=("id",),
)


class TemporaryJournal(Journal):
    """A journal in a directory of its own, which goes with it; it survives no power cut."""

    def __init__(self, *, id_window: int = 1_000_000) -> None:
        super().__init__(_directory_of(self), id_window=id_window)
        self._db.execute("PRAGMA synchronous=OFF")


class TemporaryStore(LocalPayloadStore):
    """A payload store in a directory of its own, which goes with it."""

    def __init__(self) -> None:
        super().__init__(_directory_of(self))


def _directory_of(owner: object) -> Path:
    directory = Path(tempfile.mkdtemp(prefix="sparktxlog-test-"))
    weakref.finalize(owner, shutil.rmtree, directory, ignore_errors=True)
    return directory


def ids_of(first: int, n: int) -> bytes:
    """Return n ids, each the SHA-256 of its number cut to 16 bytes."""
    return b"".join(
        hashlib.sha256(number.to_bytes(8, "big")).digest()[:16]
        for number in range(first, first + n)
    )


def inline_block(
    table: str,
    kind: OperationKind,
    rows: pa.Table,
    index: int,
    *,
    tx: Sequence[int],
    op: Sequence[int] | None = None,
    **fields: object,
) -> tuple[Block, bytes]:
    """Return an inline block and its section; `tx` and `op` have one element per row."""
    carried = rows.append_column(TX_COLUMN, pa.array(tx, pa.int32())).append_column(
        OP_COLUMN, pa.array(op if op is not None else [0] * len(tx), pa.int32())
    )
    body = write_section(carried)
    section = InlineSection(
        index=index,
        size_bytes=len(body),
        rows=rows.num_rows,
        digest=hashlib.sha256(body).hexdigest(),
    )
    return Block(table=table, kind=kind, inline=section, **fields), body  # type: ignore[arg-type]


def run_of(
    *,
    origin: str = "a",
    seq: int = 1,
    n: int = 1,
    ts: int | None = None,
    blocks: Sequence[Block] = (),
    sections: Sequence[bytes] = (),
    padding: int = 0,
    ids: bytes | None = None,
    incarnation: int = 1,
    epoch: int = 1,
    **said: Any,
) -> PutRun:
    """Return a run as the journal keeps it; `padding` bytes make its payload larger.

    `said` are other fields of its manifest.
    """
    manifest = RunManifest(
        n=n,
        ids=ids if ids is not None else ids_of(seq + 1_000_000 * ord(origin[0]), n),
        blocks=tuple(blocks)
        if blocks or said
        else (Block(table="orders", kind=OperationKind.APPEND),),
        submitted_at=1_700_000_000_000_000 + seq,
        **said,
    )
    payload = encode_payload(manifest, [*sections, bytes(padding)] if padding else list(sections))
    header = RunHeader(
        epoch=epoch,
        ts=ts if ts is not None else seq * 10,
        origin=NodeId(origin),
        incarnation=incarnation,
        seq=seq,
        n=n,
        digest=digest_of(payload),
        size_bytes=len(payload),
        staged_bytes=manifest.staged_bytes,
    )
    return PutRun(header=header, payload=payload)


def entries_of(
    runs: Sequence[PutRun],
    *,
    after: int = 0,
    previous: bytes = bytes(32),
    rejections: dict[int, tuple[Rejection, ...]] | None = None,
) -> tuple[QueueEntry, ...]:
    """Return the runs as entries of the synchronized queue behind position `after`."""
    entries = []
    for number, run in enumerate(runs):
        chain_hash = hashlib.sha256(previous + run.header.digest).digest()
        entries.append(
            QueueEntry(
                position=after + 1,
                header=run.header,
                previous_hash=previous,
                chain_hash=chain_hash,
                rejections=(rejections or {}).get(number, ()),
            )
        )
        previous = chain_hash
        after += run.header.n
    return tuple(entries)


def stored_of(runs: Sequence[PutRun], **options: object) -> list[StoredEntry]:
    """Return the runs as the publisher reads them."""
    entries = entries_of(runs, **options)  # type: ignore[arg-type]
    return [
        StoredEntry(
            entry=entry,
            ids=ids_in(run),
            ordered_at=1_700_000_001_000_000,
            payload=run.payload,
        )
        for entry, run in zip(entries, runs, strict=True)
    ]


def ids_in(run: PutRun) -> bytes:
    """Return the ids of a run."""
    return read_manifest(run.payload).ids


def parquet_bytes(rows: pa.Table | None = None) -> bytes:
    """Return a small Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows if rows is not None else pa.table({"id": [1, 2, 3]}), sink)
    return memoryview(sink.getvalue()).tobytes()


def staged_of(path: str, content: bytes, *, rows: int = 3, **fields: object) -> StagedFile:
    """Return the manifest of a staged file."""
    values: dict[str, object] = {
        "path": path,
        "size_bytes": len(content),
        "rows": rows,
        "digest": hashlib.sha256(content).hexdigest(),
    }
    return StagedFile(**(values | fields))  # type: ignore[arg-type]
