"""What a worker tells its node, and what the node makes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from sparktxlog.model.ids import Int64, JournalNumber
from sparktxlog.model.signature import TableSignature


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A table of a replica at the replica's applied position."""

    #: Delta version that holds exactly the transactions up to the position.
    version: Int64
    signature: TableSignature
    #: `TableDefinition.fingerprint()`.
    schema: str
    #: Empty, or why the table stands still (foreign commit, failed apply).
    diverged: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCost:
    """What a worker applied last and how long it took: what estimates of replays learn from.

    All counts are of the same piece of work, one batch or several in a row.
    """

    batches: Int64
    #: Keyed table steps, each a MERGE.
    merges: Int64
    transactions: Int64
    #: Bytes of files put in place without reading a row.
    appended_bytes: Int64
    #: Bytes of rows that went through a MERGE.
    merged_bytes: Int64
    #: From the first read to the saved state, waiting for new transactions left out.
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """State of a replica after a batch, or a heartbeat with the state unchanged."""

    worker_id: str
    #: Node (site) whose replica this is.
    node_id: str
    lineage: str
    epoch: Int64
    #: Applied position, a run end.
    position: JournalNumber
    #: Chain hash at `position`, hexadecimal.
    chain_hash: str
    tables: dict[str, TableState] = field(default_factory=dict)
    #: `pyspark 4.2.0 delta 4.4.0` …
    engine: str = ""
    #: Wall clock of the report, microseconds since 1970 UTC.
    reported_at: Int64 = 0
    #: What the newest batch cost; None = nothing was measured since the last report.
    pace: ReplayCost | None = None
    #: Why the worker cannot repair its replica by itself, empty = it can.
    irreparable: str = ""
    #: Node, position and copy that the replica came from last, `B@1200/3f0c…`; empty = none.
    copied_from: str = ""
    #: Time since its node heard it, microseconds, where that passes it on later; -1 = unknown.
    age_us: Int64 = 0
    #: True: it goes on reporting until it says that it ends.  False: it ends by itself, or ended.
    follows: bool = False
    #: Why it stands still, or ended; empty since the next thing that it did.
    error: str = ""
    #: Names `tables` for later reports, which may leave out what did not change; empty = no name.
    label: str = ""
    #: Label of the report that `tables` changes (`codec/report_changes`); empty = they are all.
    base: str = ""
    #: Tables of that one which are no more.
    gone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecountedTable:
    """What a full scan of a table's rows found (protocol S2b)."""

    #: Delta version that was counted.
    version: Int64
    #: Signatures as text; counted is empty where files of the table are missing or damaged.
    recorded: str
    counted: str
    #: What was found besides, for people; empty = nothing.
    cause: str = ""

    @property
    def sound(self) -> bool:
        """Whether the rows are what the worker reported."""
        return self.counted == self.recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Recount:
    """Tables of a replica as a full scan found them, told to the replica's own node."""

    worker_id: str
    node_id: str
    #: Of the replica that was counted, as its reports say.
    copied_from: str
    position: JournalNumber
    tables: dict[str, RecountedTable] = field(default_factory=dict)


class ReplicaVerdict(str, Enum):
    """What a replica's report says about it (protocol S3)."""

    KNOWN = "KNOWN"
    AHEAD = "AHEAD"
    DIVERGED = "DIVERGED"
    FOREIGN = "FOREIGN"
    EMPTY = "EMPTY"
