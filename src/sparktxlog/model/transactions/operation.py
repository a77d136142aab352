"""Operations of transactions, and the manifest of a run that carries them.

A *run* is a group of transactions of one origin, stamped and made durable together (protocol
P1b).  Its manifest is columnar: one `Block` per (table, kind) for all inline rows of
all its transactions, so that no object exists per transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sparktxlog.model.ids import transaction_id_from_text
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.commit_table import CommitOperation
from sparktxlog.model.tables.groups import CopiesNeeded
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.conditions import Condition

#: Most transactions of a run (protocol P1b).
LONGEST_RUN = 8_192
#: Column of inline rows: index of the row's transaction in its run, int32, ascending.
TX_COLUMN = "__txlog_tx"
#: Column of inline rows: place of the row's operation in its transaction, int32.
OP_COLUMN = "__txlog_op"
#: Column of published inline files: position of the row's transaction, int64.  In staged files of
#: many transactions: the same, less the position of the first one of their run (P41).
POSITION_COLUMN = "__txlog_position"
#: Place of a block whose rows say it themselves.
IN_ROWS = -1
#: Bytes of what the content of one transaction is known by; all zero = not known.
DIGEST_BYTES = 8


class OperationKind(str, Enum):
    """What an operation does to its table."""

    CREATE_TABLE = "create_table"
    ALTER_TABLE = "alter_table"
    DROP_TABLE = "drop_table"
    APPEND = "append"
    UPSERT = "upsert"
    DELETE_KEYS = "delete_keys"
    DELETE_WHERE = "delete_where"
    OVERWRITE = "overwrite"


#: Kinds that carry rows, inline or staged.
ROW_KINDS = frozenset(
    {
        OperationKind.APPEND,
        OperationKind.UPSERT,
        OperationKind.DELETE_KEYS,
        OperationKind.OVERWRITE,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """A Parquet file in the payload store, written once by the submitter, or one of a commit."""

    #: Relative to the payload store, `<transaction id>/<table>/<name>.parquet`.
    path: str
    size_bytes: int
    #: 0 = of a commit table: the log knows nothing of what is in it (P36).
    rows: int
    #: SHA-256 of the file, hexadecimal.
    digest: str
    #: Partition column → value as Delta writes it (text, None = NULL); the file lacks the columns.
    partition: dict[str, str | None] | None = None
    #: Delta's statistics JSON (numRecords, minValues, maxValues, nullCount); set by the origin.
    stats: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineSection:
    """Rows sent with the manifest: section `index` of the payload, an Arrow IPC stream."""

    index: int
    size_bytes: int
    rows: int
    #: SHA-256 of the section, hexadecimal.
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One kind of operation on one table, of one or many transactions of a run.

    Inline blocks hold rows of many transactions: the section's columns `TX_COLUMN` and
    `OP_COLUMN` say of which transaction a row is and in which order.  So do blocks with staged
    files whose `op` is `IN_ROWS`, by `POSITION_COLUMN` and `OP_COLUMN` of these files.  All other
    blocks belong to one operation of one transaction: `txs` has one element and `op` its place.
    """

    table: str
    kind: OperationKind
    #: Version of the table's schema that the rows were checked against.
    schema_version: int = 1
    #: Indices of the transactions in it, ascending; None = all of the run.
    txs: tuple[int, ...] | None = None
    #: Index of the operation in its transaction; inline blocks have a column for it, and so have
    #: files of many transactions (`IN_ROWS`).
    op: int = 0
    inline: InlineSection | None = None
    files: tuple[StagedFile, ...] = ()
    #: For create_table.
    definition: TableDefinition | None = None
    #: For delete_where.
    predicate: str | None = None
    #: Signature of the rows carried, computed by the submitter: a claim (protocol S2b).
    claim: TableSignature | None = None
    #: For alter_table and drop_table: made for `schema_version`, it leads to the next one (P33).
    change: TableChange | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What a participant says of a prepared transaction (P35)."""

    #: Of the prepared transaction, 16 bytes.
    transaction_id: bytes
    participant: str
    #: False: it must not take effect.
    yes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """What the accepting node knew of a run's ids: only `repeats` were already in its queue.

    It looked them up among all ids within the id window before `position`.  So a node that orders
    the run only has to look at later positions (protocol P25c).
    """

    #: End of the accepting node's synchronized queue, and the log time there (microseconds).
    position: int
    ts: int
    #: (transaction index, first position of its id), ascending.
    repeats: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunManifest:
    """Everything about a run except its bulk data; its SHA-256 is the run's digest."""

    #: Number of transactions.
    n: int
    #: `n` transaction ids of 16 bytes, in order.
    ids: bytes
    blocks: tuple[Block, ...]
    #: Wall clock at submit, microseconds since 1970 UTC (for display and retention, protocol C4).
    submitted_at: int
    #: Transactions of one session are stamped in submit order (protocol P1a).
    session: str | None = None
    #: It stays if what its session submitted before it is withdrawn (P34).  Only its origin asks.
    stands_alone: bool = False
    #: Written by the node that accepts the run, never by a client; None = nobody accepted it yet.
    acceptance: Acceptance | None = None
    #: (transaction index, microseconds since 1970 UTC): no effect if ordered later.
    valid_until: tuple[tuple[int, int], ...] = ()
    version: int = 1
    #: True: the run is void; its content is lost, and it takes no effect (P32).
    voided: bool = False
    #: (transaction index, condition under which it takes effect), ascending (P27).
    conditions: tuple[tuple[int, Condition], ...] = ()
    #: Of a synchronous run: how many members hold it before it is ordered, the origin included;
    #: written by the node that accepts it (P34).  0 = an ordinary run.
    holders: int = 0
    #: Of a prepared transaction, alone in its run: those that have to say YES, distinct (P35).
    participants: tuple[str, ...] = ()
    #: (transaction index, mark), ascending; these transactions do nothing else (P35).
    marks: tuple[tuple[int, Mark], ...] = ()
    #: (transaction index, what it does to a commit table), ascending by index; of one transaction
    #: at most one for each table (P36).
    commits: tuple[tuple[int, CommitOperation], ...] = ()
    #: Of transactions with commits, of different tables, in a run of nothing else: the commit file
    #: of each commit, and all that it adds to its table, as
    #: `<transaction id>/<table's UUID>/<path below the table>` (P36).
    commit_files: tuple[StagedFile, ...] = ()
    #: The same of commits whose files are small: the last sections of the container have their
    #: bytes, in this order.  A commit has all its files here, or there.
    carried_files: tuple[StagedFile, ...] = ()
    #: What the content of each transaction is known by (`codec.content_digests`), in order; written
    #: by the node that accepts it.  Empty: a void run.
    content_digests: bytes = b""
    #: What it needs of each group that it writes rows of; written by its accepting node (P41).
    copies: tuple[CopiesNeeded, ...] = ()

    def transaction_id(self, index: int) -> bytes:
        """Return the id of the transaction at `index` (0-based)."""
        return self.ids[16 * index : 16 * index + 16]

    @property
    def staged_files(self) -> list[StagedFile]:
        """All files in the payload store that belong to the run."""
        return [*(file for block in self.blocks for file in block.files), *self.commit_files]

    def files_at(self, site: str) -> list[StagedFile]:
        """The staged files that a site holds: all but those of other sites' groups (P41)."""
        if not self.copies:
            return self.staged_files
        return [*self.other_files, *self.grouped_files_at(site)]

    def grouped_files_at(self, site: str) -> list[StagedFile]:
        """The staged files of groups that a site holds: copies are waited for before the stamp."""
        here = {table for one in self.copies if site in one.sites for table in one.tables}
        return [file for one in self.blocks if one.table in here for file in one.files]

    @property
    def other_files(self) -> list[StagedFile]:
        """The staged files that all sites hold."""
        grouped = {table for one in self.copies for table in one.tables}
        found = (file for one in self.blocks if one.table not in grouped for file in one.files)
        return [*found, *self.commit_files]

    @property
    def staged_bytes(self) -> int:
        """Bytes of the staged files."""
        return sum(file.size_bytes for file in self.staged_files)

    def files_by_commit(self) -> dict[tuple[bytes, str], tuple[StagedFile, ...]]:
        """Return the files of each commit that has some, by transaction id and table's UUID."""
        found: dict[tuple[str, str], list[StagedFile]] = {}
        for file in (*self.commit_files, *self.carried_files):
            transaction_id, uuid, *_ = (*file.path.split("/", 2), "")
            found.setdefault((transaction_id, uuid), []).append(file)
        return {
            (transaction_id_from_text(text), uuid): tuple(files)
            for (text, uuid), files in found.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch:
    """Transactions of a run that touch a table; `txs` None = all."""

    table: str
    schema_version: int
    txs: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What the core needs of a run's content to keep the tables (protocol P25b)."""

    n: int
    ids: bytes
    touches: tuple[Touch, ...] = ()
    #: (transaction index, definition), ascending by index.
    creates: tuple[tuple[int, TableDefinition], ...] = ()
    acceptance: Acceptance | None = None
    #: (transaction index, microseconds since 1970 UTC), ascending by index.
    valid_until: tuple[tuple[int, int], ...] = ()
    voided: bool = False
    #: (transaction index, condition), ascending by index.
    conditions: tuple[tuple[int, Condition], ...] = ()
    #: (transaction index, table, change), ascending by index; each is among the touches too.
    changes: tuple[tuple[int, str, TableChange], ...] = ()
    #: See `RunManifest.holders`.
    holders: int = 0
    #: See `RunManifest.participants`.
    participants: tuple[str, ...] = ()
    #: (transaction index, mark), ascending by index.
    marks: tuple[tuple[int, Mark], ...] = ()
    #: (transaction index, what it does to a commit table), ascending by index.
    commits: tuple[tuple[int, CommitOperation], ...] = ()
    #: See `RunManifest.copies`.
    copies: tuple[CopiesNeeded, ...] = ()

    @classmethod
    def of(cls, manifest: RunManifest) -> RunFacts:
        """Extract the facts; O(blocks)."""
        touches = []
        creates = []
        changes = []
        for block in manifest.blocks:
            if block.kind is OperationKind.CREATE_TABLE:
                assert block.definition is not None and block.txs is not None
                creates.append((block.txs[0], block.definition))
            else:
                if block.change is not None and block.txs:
                    changes.append((block.txs[0], block.table, block.change))
                touches.append(
                    Touch(table=block.table, schema_version=block.schema_version, txs=block.txs)
                )
        creates.sort(key=lambda item: item[0])
        changes.sort(key=lambda item: item[0])
        return cls(
            n=manifest.n,
            ids=manifest.ids,
            touches=tuple(touches),
            creates=tuple(creates),
            acceptance=manifest.acceptance,
            valid_until=manifest.valid_until,
            voided=manifest.voided,
            conditions=manifest.conditions,
            changes=tuple(changes),
            holders=manifest.holders,
            participants=manifest.participants,
            marks=manifest.marks,
            commits=manifest.commits,
            copies=manifest.copies,
        )
