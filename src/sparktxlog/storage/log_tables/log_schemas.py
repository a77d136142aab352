"""Arrow schemas of the tables in `log/`; docs/formats.md describes them for readers.

Only types that every Delta reader has at reader version 1 / writer version 2: no timestamp
without zone, no decimal wider than needed, no unsigned integer.
"""

from __future__ import annotations

import pyarrow as pa

_TIMESTAMP = pa.timestamp("us", tz="UTC")


def _list(item: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", item))


#: An operation of a transaction, as element of `operations`.
OPERATION = pa.struct(
    [
        #: Place in its transaction, from 0.
        pa.field("op", pa.int32()),
        pa.field("table", pa.string()),
        #: Value of `OperationKind`.
        pa.field("kind", pa.string()),
        #: Rows carried; NULL for kinds that carry none.
        pa.field("rows", pa.int64()),
        #: Bytes carried; of inline rows their share of the run's section, rounded.
        pa.field("bytes", pa.int64()),
        #: Staged files, relative to the payload store.
        pa.field("files", _list(pa.string())),
        #: Of delete_where.
        pa.field("predicate", pa.string()),
    ]
)

#: `log/synchronized_queue`: one row per transaction, key and order `position`.
SYNCHRONIZED_QUEUE = pa.schema(
    [
        #: 1-based place in the synchronized queue, without gap.
        pa.field("position", pa.int64(), nullable=False),
        #: The run that carried it: sequence number of its first transaction, and how many.
        pa.field("run_seq", pa.int64(), nullable=False),
        pa.field("run_n", pa.int32(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        #: Logical time of the run, microseconds; orders, never read as a clock.
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("incarnation", pa.int64(), nullable=False),
        #: Number of the transaction at its origin, from 1, without gap.
        pa.field("sequence", pa.int64(), nullable=False),
        #: UUID text.
        pa.field("transaction_id", pa.string(), nullable=False),
        #: `committed` or `rejected`, the same at every site.
        pa.field("outcome", pa.string(), nullable=False),
        #: `code: text` of a rejection.
        pa.field("reason", pa.string()),
        #: NULL if the payload was gone when the row was written again after a loss.
        pa.field("operations", _list(OPERATION)),
        #: Published files that hold the transaction's inline rows, relative to the payload store.
        pa.field("inline", _list(pa.string())),
        #: SHA-256 of the run's manifest, and the queue's chain hash at the run's end; hexadecimal.
        pa.field("digest", pa.string(), nullable=False),
        pa.field("chain_hash", pa.string(), nullable=False),
        #: Wall clocks: the origin's at submit (NULL as `operations`), this node's at ordering.
        pa.field("submitted_at", _TIMESTAMP),
        pa.field("ordered_at", _TIMESTAMP, nullable=False),
    ]
)

#: `log/workers`: reports of workers that changed something, one row per report.
WORKERS = pa.schema(
    [
        pa.field("reported_at", _TIMESTAMP, nullable=False),
        pa.field("worker_id", pa.string(), nullable=False),
        #: Node whose replica it is.
        pa.field("node_id", pa.string(), nullable=False),
        pa.field("lineage", pa.string(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        #: Applied position and the chain hash there.
        pa.field("position", pa.int64(), nullable=False),
        pa.field("chain_hash", pa.string(), nullable=False),
        #: Value of `ReplicaVerdict`.
        pa.field("verdict", pa.string(), nullable=False),
        #: `up-to-date`, `replay`, `copy` or `stop`, and why.
        pa.field("plan", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("engine", pa.string()),
    ]
)

#: `log/signatures`: state of one table of one replica at one position.
SIGNATURES = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("chain_hash", pa.string(), nullable=False),
        pa.field("table", pa.string(), nullable=False),
        pa.field("node_id", pa.string(), nullable=False),
        pa.field("worker_id", pa.string(), nullable=False),
        #: Delta version of the table there.
        pa.field("version", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        #: `rows:lane0:lane1`, lanes in hexadecimal.
        pa.field("signature", pa.string(), nullable=False),
        #: Fingerprint of names, types and keys.
        pa.field("schema", pa.string(), nullable=False),
        #: Why the table stands still, empty if it does not.
        pa.field("diverged", pa.string()),
        pa.field("reported_at", _TIMESTAMP, nullable=False),
    ]
)

#: `log/transfers`: one row per finished or failed catch-up of a replica, key `transfer_id`.
TRANSFERS = pa.schema(
    [
        pa.field("transfer_id", pa.string(), nullable=False),
        pa.field("worker_id", pa.string(), nullable=False),
        #: Node whose replica it is.
        pa.field("node_id", pa.string(), nullable=False),
        #: `replay` or `copy`.
        pa.field("kind", pa.string(), nullable=False),
        #: Nodes copied from, empty for a replay.
        pa.field("donors", _list(pa.string())),
        #: Position before and after.
        pa.field("from_position", pa.int64(), nullable=False),
        pa.field("to_position", pa.int64(), nullable=False),
        pa.field("started_at", _TIMESTAMP, nullable=False),
        pa.field("finished_at", _TIMESTAMP, nullable=False),
        #: What the planner expected, NULL if it gave no estimate; and what was measured.
        pa.field("estimated_s", pa.float64()),
        pa.field("actual_s", pa.float64(), nullable=False),
        #: Bytes of files needed, of them read over the network (compressed), and found here.
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("wire_bytes", pa.int64(), nullable=False),
        pa.field("reused_bytes", pa.int64(), nullable=False),
        pa.field("transactions", pa.int64(), nullable=False),
        #: `done`, or why it failed.
        pa.field("outcome", pa.string(), nullable=False),
        #: Message and reason of the decision.
        pa.field("reason", pa.string()),
    ]
)

#: A place in the roster of an epoch, as element of `roster`.
SEAT = pa.struct(
    [
        pa.field("id", pa.string()),
        #: One address, or several with commas between them.
        pa.field("url", pa.string()),
        #: Votes, 0 = none.
        pa.field("weight", pa.int64()),
        pa.field("witness", pa.bool_()),
        pa.field("incarnation", pa.int64()),
    ]
)

#: `log/epochs`: one row per epoch that this node has taken up, key (lineage, epoch).
EPOCHS = pa.schema(
    [
        pa.field("lineage", pa.string(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        #: Node ids in precedence order, as `roster`.
        pa.field("members", _list(pa.string()), nullable=False),
        pa.field("quorum", pa.int64(), nullable=False),
        pa.field("quorum_rule", pa.string(), nullable=False),
        pa.field("roster", _list(SEAT), nullable=False),
        #: End of the queue of the epoch before.
        pa.field(
            "begins_after",
            pa.struct([pa.field("position", pa.int64()), pa.field("chain_hash", pa.string())]),
            nullable=False,
        ),
        #: Members, against the epoch that this node took up before; NULL = none is remembered.
        pa.field("joined", _list(pa.string())),
        pa.field("left", _list(pa.string())),
        #: Other nodes whose seat is new, gone or altered.
        pa.field("changed", _list(pa.string())),
        #: Phase of this node when it took the epoch up.
        pa.field("phase", pa.string(), nullable=False),
        #: Wall clock of this node.
        pa.field("taken_up_at", _TIMESTAMP, nullable=False),
    ]
)

#: Columns of `log/synchronized_queue` that an accepted transaction has not got.
_ORDERED_ONLY = {"run_seq", "epoch", "timestamp", "sequence", "outcome", "chain_hash", "ordered_at"}

#: `log/quarantine`: one row per transaction that a node gave up to follow another history.
QUARANTINE = pa.schema(
    [
        #: Names the act, and its directory below `quarantine/`.
        pa.field("quarantine_id", pa.string(), nullable=False),
        pa.field("quarantined_at", _TIMESTAMP, nullable=False),
        #: `ordered`, `accepted` (own) or `acquired` (of another origin).
        pa.field("why", pa.string(), nullable=False),
        #: Log that it was ordered or accepted in.
        pa.field("lineage", pa.string(), nullable=False),
        #: True: the run is in the queue of the node that is followed as well.
        pa.field("survives", pa.bool_(), nullable=False),
        #: As in `log/synchronized_queue`; `position` in the queue that was given up, those that
        #: were never ordered numbered on behind its end.
        *(
            field.with_nullable(field.nullable or field.name in _ORDERED_ONLY)
            for field in SYNCHRONIZED_QUEUE
        ),
        #: Absolute directory that the names in `operations` and `inline` are relative to.
        pa.field("files_root", pa.string(), nullable=False),
        #: JSON: file → partition column → value as Delta writes it, of files that lack these
        #: columns; NULL = none does.
        pa.field("partitions", pa.string()),
        #: JSON: definitions of the tables that the transaction creates, NULL = it creates none.
        pa.field("creates", pa.string()),
        #: What of the transaction could not be kept, NULL = nothing is missing.
        pa.field("remark", pa.string()),
    ]
)

#: Table directory below `log/` → schema.
LOG_TABLES = {
    "synchronized_queue": SYNCHRONIZED_QUEUE,
    "workers": WORKERS,
    "signatures": SIGNATURES,
    "transfers": TRANSFERS,
    "epochs": EPOCHS,
    "quarantine": QUARANTINE,
}
