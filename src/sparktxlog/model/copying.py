"""Messages between donor, target and their nodes about a copy of a replica.

A *donor* pins the files of its replica under a `Lease`.  The *target*
fetches the missing files in chunks, straight from the donor's node, with the lease's token.  The
target's own node only arranges the copy; no file passes through it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from sparktxlog.model.ids import Int64, JournalNumber
from sparktxlog.model.replicas import MAIN, replica_id
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.tables.table import TableDefinition

#: Header of a chunk's answer: SHA-256 of its bytes before compression, hexadecimal.
CHUNK_DIGEST_HEADER = "X-Txlog-Chunk-Digest"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedFile:
    """A pinned file of a table, by its path relative to the table's directory."""

    path: str
    size_bytes: Int64
    #: Modification time, microseconds since 1970 UTC: Delta dates commits by it.
    modified_at: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTable:
    """A table of the donor's replica at the position of the lease."""

    definition: TableDefinition
    #: Delta version at the donor with exactly the transactions up to the position.
    version: Int64
    signature: TableSignature
    #: All files of the table's directory at the time of the lease, its log included,
    #: ascending by path; not all of them belong to `version`.
    files: tuple[OfferedFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease and the files that it pins: the snapshot of a donor's replica at one position."""

    lease_id: str
    #: Bearer token of the lease: secret, valid for its files until it expires.
    token: str = field(repr=False)
    node_id: str
    #: URL of the donor, without path.
    url: str
    log_id: str
    epoch: Int64
    #: Position of the snapshot, a run end; and the chain hash there, hexadecimal.
    position: JournalNumber
    chain_hash: str
    #: Size of all chunks except the last one of a file.
    chunk_bytes: Int64
    #: Seconds after which an unused lease ends; each request renews it.
    lease_s: float
    tables: tuple[OfferedTable, ...] = ()
    #: Name of the donor's replica at its site.
    name: str = MAIN
    #: Directory with the pinned files, TABLE/PATH, if the target is of the same site and they are
    #: on a disk; empty = they come over the network.
    pins: str = ""

    @property
    def replica(self) -> str:
        """The text by which the donor's replica is known."""
        return replica_id(self.node_id, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSize:
    """The size of a copy of a donor's replica: its live files."""

    node_id: str
    position: JournalNumber
    #: Table → [(path of a live data file relative to the table, bytes)], deletion vectors left out.
    files: dict[str, list[tuple[str, int]]] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Bytes of all live files."""
        return sum(size for files in self.files.values() for _, size in files)


class CatchUpKind(str, Enum):
    """How a replica catches up."""

    REPLAY = "replay"
    COPY = "copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What the planner expects; never a measurement."""

    kind: CatchUpKind
    seconds: float
    #: What it was computed from, in words: `41,000,000,000 bytes at 104.9 Mbit/s (as configured)`.
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The planner's choice for one replica, as a value."""

    worker_id: str
    #: up-to-date, replay, copy or stop.
    plan: str
    #: The reason in words, with the compared numbers.
    reason: str
    #: Log message that belongs to it, empty for none.
    message: str = ""
    replay: Estimate | None = None
    copy: Estimate | None = None
    #: Transactions to replay.
    behind: Int64 = 0
    #: Replica to copy from, as `model.replicas` names it; empty if none.
    donor: str = ""
    #: Patterns of the tables that the replica holds; empty = all.
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTicket:
    """What a worker needs for a copy."""

    copy_id: str
    decision: Decision
    lease: Lease
    #: Chunks to fetch at once (`replication.streams`).
    streams: Int64 = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A finished or failed catch-up, estimate against actual."""

    transfer_id: str
    worker_id: str
    node_id: str
    kind: CatchUpKind
    #: Replicas copied from, empty for a replay.
    donors: tuple[str, ...] = ()
    #: Position before and after.
    from_position: Int64
    to_position: Int64
    started_at: Int64
    finished_at: Int64
    estimated_s: float | None
    actual_s: float
    #: Of these, seconds in which bytes arrived; None = unknown.
    fetch_s: float | None = None
    #: Bytes of files needed; of these, fetched over the network (compressed), and found here.
    size_bytes: Int64 = 0
    wire_bytes: Int64 = 0
    reused_bytes: Int64 = 0
    transactions: Int64 = 0
    #: `done`, or why it failed.
    outcome: str = "done"
    #: Message and reason of the decision.
    reason: str = ""
