"""Messages between masters: headers and counters only; payloads are sent separately."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field

from sparktxlog.model.ids import NodeId


@dataclass(frozen=True, slots=True, kw_only=True, order=False)
class RunHeader:
    """A stamped run: transactions `seq .. seq+n-1` of `origin`, all at timestamp `ts` (P1b)."""

    epoch: int
    #: Timestamp, microseconds of the log clock.
    ts: int
    origin: NodeId
    #: Incarnation of the origin; a node that lost its disk returns as a new one.
    incarnation: int
    #: Sequence number of the first transaction.
    seq: int
    #: Number of transactions, 1 … 8,192.
    n: int
    #: SHA-256 of the run's manifest.
    digest: bytes
    #: Bytes of the payload container (manifest and inline rows), without staged files.
    size_bytes: int
    #: Bytes of staged files that must be fetched as well; 0 = all inline.
    staged_bytes: int = 0

    @property
    def key(self) -> tuple[int, int, str, int]:
        """Order key, identical at every node."""
        return (self.epoch, self.ts, self.origin, self.seq)

    @property
    def last(self) -> int:
        """Sequence number of the last transaction."""
        return self.seq + self.n - 1

    @property
    def place(self) -> tuple[tuple[int, int, str, int], int, int]:
        """Key, incarnation and count: no node gives one place to two runs."""
        return (self.key, self.incarnation, self.n)

    def voids(self, other: RunHeader) -> bool:
        """Return whether this run replaces another one, whose files are lost (P32).

        Only void runs have no files.
        """
        return self.place == other.place and self.staged_bytes == 0 < other.staged_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeBase:
    """End of a synchronized queue (P3); hash 32 zero bytes and empty origin at position 0."""

    position: int = 0
    #: Chain hash at `position`.
    chain_hash: bytes = bytes(32)
    #: Origin and last sequence number of the run that ends there.
    origin: str = ""
    seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """End of the received tail that a node has not appended yet (P9)."""

    position: int
    #: Chain hash at `position`.
    chain_hash: bytes
    #: Further entries that it has room for.
    room: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """One node's status: its state at one moment (P3)."""

    log_id: str
    epoch: int
    sender: NodeId
    #: The sender's own post counter since its start: the seed's round number.
    round: int
    base: MergeBase
    #: Promise (c, n): own transactions of this epoch with ts <= c are exactly seq <= n (P2).
    counter: int
    last_seq: int
    #: Own headers after those that the receiver reported, ascending by seq, bounded (P3b).
    headers: tuple[RunHeader, ...] = ()
    #: If the bound cut the headers: the promise (c, n) that the sent ones fulfil.
    cut: tuple[int, int] | None = None
    #: Per origin: headers held up to this seq, without gap.
    known: dict[str, int] = field(default_factory=dict)
    #: Per origin: headers and payloads durable up to this seq, without gap (P4).
    acquired: dict[str, int] = field(default_factory=dict)
    #: Digests of announced, unstamped runs whose files the sender holds (P1a).
    held: tuple[bytes, ...] = ()
    #: Wall clock of the sender, microseconds since 1970 UTC; compared with the receiver's (C3).
    wall: int = 0
    #: True: the sender has unsynchronized transactions.
    busy: bool = False
    #: Counter the sender started with; (start, round) orders its posts across its restarts.
    start: int = 0
    #: The part of a tail that it has after `base`; None = nothing.
    ahead: Ahead | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """An unstamped run whose staged files peers should prefetch (P1a); no header, no seq."""

    log_id: str
    epoch: int
    origin: NodeId
    #: Digest of the run's manifest.
    digest: bytes
    size_bytes: int
    staged_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry:
    """A run's place in the synchronized queue."""

    #: Position of the run's first transaction.
    position: int
    header: RunHeader
    #: Chain hash before the run (at `position - 1`) and at its end.
    previous_hash: bytes
    chain_hash: bytes
    #: Transactions of the run that take no effect; ascending by index.
    rejections: tuple[Rejection, ...] = ()
    #: Prepared transactions that are decided here, in the order in which they are (P35).
    verdicts: tuple[Verdict, ...] = ()

    @property
    def end(self) -> int:
        """Position of the run's last transaction."""
        return self.position + self.header.n - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Ordered outcome REJECTED of one transaction, the same at every site (P25b)."""

    #: Index in the run.
    index: int
    #: Error code as in `errors`: `unknown-table`, `schema-mismatch`, `duplicate-transaction`,
    #: `expired-id`, `expired-transaction`, `voided`, `conflict`, `stale-schema`, `not-prepared`,
    #: `not-a-participant`, `too-many-prepared`, `version-conflict`, `stale-timestamp`,
    #: `name-taken`.  Of a transaction that takes effect later, if ever: `prepared`.  Of a decided
    #: one also `rolled-back`.
    code: str
    text: str
    #: Of a repeated id: its first position.
    first: int | None = None
    #: Of a conflict: the table, and the position of the write that it lost to; None = not known.
    #: Of a stale schema: the table, and the position of the last write to it.
    table: str | None = None
    winner: int | None = None
    #: Of a commit that lost (P36): the newest version of its table, and the transaction that
    #: committed that.
    version: int | None = None
    winner_id: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of a prepared transaction, the same at every site (P35)."""

    transaction_id: bytes
    #: Where it was ordered.
    position: int
    #: Index of the mark that decides it: if it is committed, it takes effect in the place of that.
    #: It is 0 for one that expired: that one is decided before the run.
    index: int
    #: Why it takes no effect; None = it is committed.
    rejection: Rejection | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Part of a synchronized queue for a lagging peer (P9)."""

    log_id: str
    epoch: int
    sender: NodeId
    #: Chain hash at the position before the first entry.
    previous_hash: bytes
    entries: tuple[QueueEntry, ...]
    #: End of the sender's queue.
    end: int = 0


_FIXED = struct.Struct(">QQQQIH")


def chain_hash(previous: bytes, header: RunHeader) -> bytes:
    """Return the chain hash at the end of a run that follows `previous` (protocol S1).

    Each run of the queue is hashed together with the hash before it, so two nodes with the same
    hash at a position hold the same queue up to there.  The bytes that are hashed, in this order:

        32 bytes  chain hash before the run; 32 zero bytes at position 0
         8 bytes  epoch                          unsigned, big endian, as are all numbers
         8 bytes  timestamp, microseconds
         8 bytes  incarnation of the origin
         8 bytes  sequence number of the run's first transaction
         4 bytes  number of transactions
         2 bytes  length of the origin's node id
         …        node id of the origin, UTF-8
        32 bytes  digest of the run's payload
    """
    origin = header.origin.encode()
    fixed = _FIXED.pack(
        header.epoch, header.ts, header.incarnation, header.seq, header.n, len(origin)
    )
    return hashlib.sha256(b"".join((previous, fixed, origin, header.digest))).digest()
