"""Child process: submits Parquet files with damaged bytes.  A crash is its exit code.

Prints how many were refused, how many were taken, and how many of these cannot be read.
"""

from __future__ import annotations

import hashlib
import random
import resource
import sys
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sparktxlog.codec.submits.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.errors import CommitRejectedError
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import OperationKind, StagedFile
from sparktxlog.runtime.commit.staged_checks import verify_staged
from sparktxlog.storage.payloads.local_store import LocalPayloadStore

TABLE = TableDefinition(
    name="bulk",
    columns=(
        Column(name="id", type="bigint", nullable=False),
        Column(name="name", type="string"),
        Column(name="amount", type="decimal(10,2)"),
        Column(name="at", type="timestamp"),
        Column(name="tags", type="array<string>"),
    ),
)
ROWS = 300
#: Address space above what the process has when it begins, bytes.
ROOM = 1 << 30


def main(root: str, rounds: int) -> None:
    """Damage one file after another: single bits, runs of noise, and everything but the footer."""
    chance = random.Random(23)
    store = LocalPayloadStore(Path(root))
    rows = pa.table(
        {
            "id": range(ROWS),
            "name": [f"name {number % 7}" for number in range(ROWS)],
            "amount": pa.array([None, 1] * (ROWS // 2), pa.decimal128(10, 2)),
            "at": pa.array(range(ROWS), pa.timestamp("us", "UTC")),
            "tags": pa.array([["a", None], [], None] * (ROWS // 3), pa.list_(pa.string())),
        }
    )
    clean = pa.BufferOutputStream()
    pq.write_table(rows, clean, compression="zstd", version="2.6")
    data = clean.getvalue().to_pybytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    with open("/proc/self/statm") as status:
        bound = int(status.read().split()[0]) * resource.getpagesize() + ROOM
    found: Counter[str] = Counter()
    assert submit(store, data)
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
    for number in range(rounds):
        damaged = bytearray(data)
        if number % 3 == 0:
            damaged[4:footer] = chance.randbytes(footer - 4)
        elif number % 3 == 1:
            at = chance.randrange(len(data))
            damaged[at] ^= 1 << chance.randrange(8)
        else:
            at, end = chance.randrange(footer, len(data)), chance.randrange(1, 16)
            damaged[at : at + end] = chance.randbytes(len(damaged[at : at + end]))
        kind = "taken" if submit(store, bytes(damaged)) else "refused"
        found[kind] += 1
        found["garbage"] += kind == "taken" and number % 3 == 0
    sys.stdout.write(f"{found['refused']} {found['taken']} {found['garbage']}\n")


def submit(store: LocalPayloadStore, data: bytes) -> bool:
    """Return whether a file of these bytes is taken."""
    identity = uuid.uuid4()
    path = Path(store.path(f"{identity}/bulk/a.parquet"))
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    file = StagedFile(
        path=f"{identity}/bulk/a.parquet",
        size_bytes=len(data),
        rows=ROWS,
        digest=hashlib.sha256(data).hexdigest(),
    )
    operation = PreparedOperation(table="bulk", kind=OperationKind.APPEND, files=(file,))
    transaction = PreparedTransaction(transaction_id=identity.bytes, operations=(operation,))
    try:
        taken = verify_staged(transaction, {"bulk": TABLE}, store)
    except CommitRejectedError:
        return False
    finally:
        path.unlink()
        path.parent.rmdir()
        path.parent.parent.rmdir()
    assert replace(taken.operations[0].files[0], stats="") == file
    return True


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
