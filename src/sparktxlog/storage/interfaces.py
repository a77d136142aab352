"""Values of `storage`: writes of the journal, segments, summaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparktxlog.model.ids import NodeId
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.commit_table import CommitTable
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.tables.table_versions import VersionFiles
from sparktxlog.model.transactions.conditions import TableWrites
from sparktxlog.model.transactions.marks import Undecided, UndecidedChange
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.protocol.messages.balloting import BallotState
from sparktxlog.protocol.messages.posts import QueueEntry, RunHeader
from sparktxlog.protocol.messages.recovery import RecoveredState
from sparktxlog.protocol.messages.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class PutRun:
    """Keep a run: header, payload container (see codec.payload) and facts.

    Used for own and foreign runs.  A run that is already kept stays; a later stamp of the same
    content replaces the earlier one (P20), and a void run replaces its original (P32).
    """

    header: RunHeader
    payload: bytes
    #: True: it is the stamped form of an own run, whose announcement ends.  An equal run of
    #: another origin, or of this node's earlier incarnation, may never be ordered.
    ends_announcement: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PutReservation:
    """Keep the reserved counter H."""

    counter: int


#: Named value: unstamped runs up to this ticket were accepted under an earlier incarnation, where
#: they may have had a stamp (P30, P34).
INHERITED = "inherited-tickets"


@dataclass(frozen=True, slots=True, kw_only=True)
class PutAnnouncement:
    """Keep an own unstamped run."""

    ticket: int
    digest: bytes
    payload: bytes
    session: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DropAnnouncement:
    """Forget an own unstamped run, and keep why each of its transactions was rejected."""

    digest: bytes
    code: str
    text: str
    #: Wall clock, microseconds; reasons older than the id window's time are forgotten.
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBallot:
    """Keep this voter's promise and accepted value (P14, P17)."""

    state: BallotState


@dataclass(frozen=True, slots=True, kw_only=True)
class PutView:
    """Keep a decided view (P18).

    Removes all incoming runs with their payloads, except those of `node_id` with `incarnation`: a
    run that another node stamped in an earlier epoch, and that is not in the queue, never will be.
    """

    view: View
    #: This node, and its incarnation from now on.
    node_id: NodeId
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PutRestamp:
    """Keep the new epoch and timestamp of an own incoming run; its payload stays (P20)."""

    header: RunHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetJournal:
    """Replace the queue, and all that follows from it, by a summary (P21).

    Removes incoming runs, except those of `node_id` with its incarnation after the summary's
    watermark.  Reserved counter, ballot, unstamped runs and named values stay.  All positions of
    the summary count as published and expired.  **After calling** start the node again.
    """

    summary: QueueSummary
    #: This node, and its incarnation from now on: None = as before, higher after a lost disk.
    node_id: NodeId
    incarnation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendQueue:
    """Move runs to the end of the synchronized queue; their payloads stay readable."""

    entries: tuple[QueueEntry, ...]
    #: Wall clock, microseconds since 1970 UTC.
    ordered_at: int
    #: Tables that were created or changed with these entries: (position, definition after it).
    tables: tuple[tuple[int, TableDefinition], ...] = ()
    #: Table and what was written to it, for each entry that did, ascending by entry.
    writes: tuple[tuple[str, TableWrites], ...] = ()
    #: Prepared transactions that came, were marked or decided, ascending by entry (P35).
    undecided: tuple[UndecidedChange, ...] = ()
    #: Commit tables as each entry left those that it changed, ascending by entry (P36).
    commit_tables: tuple[CommitTable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkPublished:
    """Positions up to `position` are fsynced in the Delta table; `segment` serves the workers."""

    position: int
    #: Delta version of the queue table after the publishing commit.
    version: int
    segment: Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetPayloads:
    """Payloads of the queue up to `position` are no longer needed by any member.

    Those after `spare_after` stay for lagging nodes, as long as all kept payloads have at most
    `spare_bytes`; beyond that the oldest ones are removed (P21).
    """

    position: int
    #: None = no node lags.
    spare_after: int | None = None
    spare_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireLog:
    """Positions up to `position`, the end of a published segment, can no longer be read."""

    position: int
    #: Chain hash there, as a check.
    chain_hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DropExpired:
    """The files of expired segments up to `position` are removed: forget the segments."""

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkJournal:
    """Return free space inside the journal to the disk."""

    #: Fewer free bytes than this stay for later writes.
    least_free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedCommit:
    """A version of a commit table that takes effect, and that a site places (P36)."""

    #: Of the table.
    uuid: str
    version: int
    #: In-commit timestamp, milliseconds since 1970 UTC.
    timestamp: int
    position: int
    transaction_id: bytes
    #: Its commit file, and what it adds; none = this site never had them: the log began later here.
    files: tuple[StagedFile, ...] = ()
    #: They came in the run's container, and the journal has them until the version is placed.
    is_carried: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PutPlaced:
    """A commit table is placed in its directory up to a version."""

    uuid: str
    version: int
    #: What holds for the table there, in a form of its owner.
    state: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DropPlaced:
    """The files of placed commits up to a position are removed from the payload store."""

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PutVersionFiles:
    """The files of versions whose transactions this site never had, or has no more."""

    #: Of the table.
    uuid: str
    versions: tuple[VersionFiles, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PutValue:
    """Keep one small named value (instance ids of peers, worker reports, settings)."""

    name: str
    value: bytes


Write = (
    PutRun
    | PutReservation
    | PutAnnouncement
    | DropAnnouncement
    | PutBallot
    | PutView
    | PutRestamp
    | ResetJournal
    | AppendQueue
    | MarkPublished
    | ForgetPayloads
    | ExpireLog
    | DropExpired
    | ShrinkJournal
    | PutPlaced
    | DropPlaced
    | PutVersionFiles
    | PutValue
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEffect:
    """The effect of a segment on one table: one per (kind, contiguous source).

    Rejected transactions are already left out.  Inline rows: one published Parquet file with the
    table's columns plus POSITION_COLUMN and OP_COLUMN.  Staged files: as submitted; those of many
    transactions have these columns, too, and positions that begin at 0 (P41).
    """

    table: str
    kind: str
    #: First and last position of the transactions concerned, and op order (0 for inline files,
    #: whose rows carry it).
    first: int
    last: int
    op: int = 0
    #: Files relative to the payload store, with Delta statistics.
    files: tuple[StagedFile, ...] = ()
    #: True: the files carry POSITION_COLUMN and OP_COLUMN.
    inline: bool = False
    definition: TableDefinition | None = None
    predicate: str | None = None
    #: Claimed signature of the carried rows as text, "" = none given.
    claim: str = ""
    #: Of the table for which it was made; a change leads to the next one (P33).
    schema_version: int = 1
    change: TableChange | None = None
    #: Of staged files of many transactions: the position of the first one of their run, which is
    #: added to the positions in the files; 0 = they are of one operation.
    run: int = 0
    #: Positions of these transactions that were rejected, ascending: their rows do not count.
    left_out: tuple[int, ...] = ()

    @property
    def says_places(self) -> bool:
        """Whether each row says of which operation it is; else all are of the one at `first`."""
        return self.inline or self.run > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A published piece of the queue; workers apply whole segments.

    No segment crosses a signature boundary (protocol S2a): it ends at the first run end at or
    after each multiple of `signature-interval`, so every site can stop there.
    """

    first: int
    last: int
    #: Chain hashes before `first` and at `last`, hexadecimal.
    from_hash: str
    to_hash: str
    #: Epoch of its last run, hence of the queue at `last`: the same at every site.
    epoch: int
    #: Transactions, and how many of them were rejected.
    transactions: int
    rejected: int
    effects: tuple[TableEffect, ...] = ()
    #: Wall clock of its last run at ordering here, microseconds since 1970 UTC: for retention
    #: only (C4); 0 = not known.
    ordered_at: int = 0

    @property
    def files_bytes(self) -> int:
        """Bytes of the files that it names."""
        return sum(file.size_bytes for effect in self.effects for file in effect.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCut:
    """A place where the log may be cut: the end of a segment, which is a run end."""

    last: int
    #: Chain hash at `last`.
    chain_hash: bytes
    #: As in the segment; 0 = not known.
    ordered_at: int
    #: Bytes of the segment's files.
    files_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogExtent:
    """The part of the log that the journal keeps."""

    #: Positions up to here are expired, 0 = none.
    kept_after: int
    #: Bytes of all files that its segments name.
    files_bytes: int
    #: Bytes of the journal that are in use.
    live_bytes: int
    #: How often the queue was replaced by a summary.
    resets: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """A queue entry with what publishing and tails need."""

    entry: QueueEntry
    ids: bytes
    ordered_at: int
    #: Payload container, None once forgotten.
    payload: bytes | None = None


class IdPieces(Sequence[tuple[int, bytes]]):
    """Many ids, on disk: an iteration holds one piece at a time.

    Args:
        read: Returns all pieces once more: (first position, ids), ascending, without gap.
    """

    def __init__(self, read: Callable[[], Iterator[tuple[int, bytes]]]) -> None:
        self._read = read

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        return self._read()

    def __bool__(self) -> bool:
        return next(self._read(), None) is not None

    def __len__(self) -> int:
        return sum(1 for _ in self._read())

    def __getitem__(self, index: Any) -> Any:
        return tuple(self._read())[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPrepared:
    """A prepared transaction that is undecided, and what it would do (P35)."""

    undecided: Undecided
    #: Its container.
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSummary:
    """The queue at a run end, without the runs before it; a node can continue from it (P21).

    Taken at the end of the published queue; sent as a file (`summary_files`).
    """

    #: The run that ends there, without payload; None = position 0.
    last: StoredEntry | None = None
    #: Per origin: last sequence number.
    watermarks: dict[str, int] = field(default_factory=dict)
    #: Tables by the positions of their creation, ascending.
    tables: tuple[tuple[int, TableDefinition], ...] = ()
    #: Ids of the id window before `last`: (first position, ids), ascending, without gap.
    recent_ids: Sequence[tuple[int, bytes]] = ()
    #: What was written to each table there, as far as it counts (P27).
    writes: dict[str, TableWrites] = field(default_factory=dict)
    #: What is prepared and undecided there, by position (P35).
    prepared: tuple[KeptPrepared, ...] = ()
    #: Commit tables there, dropped ones too, by UUID (P36).
    commit_tables: tuple[CommitTable, ...] = ()
    #: Newest view that its sender knows.
    view: View | None = None
    #: Of the contents at the last positions, up to `position`: `RunManifest.content_digests`.
    content_digests: bytes = b""

    @property
    def position(self) -> int:
        """Where the queue goes on: the last position."""
        return 0 if self.last is None else self.last.entry.end


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalState:
    """What the node needs at start in addition to the core's state."""

    core: RecoveredState
    #: This node's incarnation.
    incarnation: int = 1
    #: Published position and Delta version of the queue table.
    published: int = 0
    published_version: int = -1
    #: Positions up to here are expired.
    kept_after: int = 0
    values: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderIdsFound:
    """What is known of ids older than the core's memory."""

    #: All positions up to here were searched.
    end: int = 0
    #: Index of the id → (its first position, whether it was rejected there; None = not known here).
    found: dict[int, tuple[int, bool | None]] = field(default_factory=dict)
