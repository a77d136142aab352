"""Reports of workers to their nodes, recounts, and the verdicts of nodes."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from sparktxlog.model.ids import Int64, JournalNumber
from sparktxlog.model.replicas import MAIN, ReplicaName, TableSet, replica_id
from sparktxlog.model.signature import TableSignature


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A table of a replica at the replica's applied position."""

    #: Delta version with exactly the transactions up to the position.
    version: Int64
    signature: TableSignature
    #: `TableDefinition.fingerprint()`.
    schema: str
    #: Why the table stands still (foreign commit, failed apply), or empty.
    diverged: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCost:
    """What a worker applied last and how long it took; estimates of replays learn from it.

    All counts are of the same work, one batch or several in a row.
    """

    batches: Int64
    #: Keyed table steps, each a MERGE.
    merges: Int64
    transactions: Int64
    #: Bytes of files that were placed without reading a row.
    appended_bytes: Int64
    #: Bytes of rows that went through a MERGE.
    merged_bytes: Int64
    #: From the first read to the saved state, without waits for new transactions.
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """How far a worker is in the batch that it is applying."""

    #: Positions of the batch.
    first: JournalNumber
    last: JournalNumber
    #: Table of the stage under way, and what is done to it: create, alter, clear, merge, place.
    table: str
    act: str
    #: Its number, from 1, among the stages of the batch; each is one Delta commit at most.
    stage: Int64
    stages: Int64
    #: Since the batch began.
    seconds: float
    #: Until its end, as estimated from the stages that are done; None = nothing is done yet.
    left_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """State of a replica after a batch; a heartbeat repeats it."""

    worker_id: str
    #: Node (site) whose replica this is.
    node_id: str
    log_id: str
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
    #: Cost of the newest batch; None = nothing was measured since the last report.
    pace: ReplayCost | None = None
    #: Why the worker cannot repair its replica itself, empty = it can.
    irreparable: str = ""
    #: Node, position and id of the replica's last copy, `B@1200/3f0c…`; empty = none.
    copied_from: str = ""
    #: Microseconds since its node received it, if a node passes it on later; -1 = unknown.
    age_us: Int64 = 0
    #: True: it reports until it says that it ends.  False: it will end after its work, or ended.
    follows: bool = False
    #: Why it stands still, or ended; empty again after its next action.
    error: str = ""
    #: The batch that it is applying, as a heartbeat says; None = none that it knows of.
    batch: BatchProgress | None = None
    #: Label of `tables` for later reports, which may leave out unchanged ones; empty = none.
    label: str = ""
    #: Label of the report that `tables` changes (`codec/report_changes`); empty = they are all.
    base: str = ""
    #: Tables of that report that no longer exist.
    gone: tuple[str, ...] = ()
    #: Name of the replica at its site.
    name: ReplicaName = MAIN
    #: Patterns of the row tables that it holds (`model.replicas`); empty = all.
    only: TableSet = ()

    @property
    def replica(self) -> str:
        """The text by which the replica is known: `A`, or `A/reports`."""
        return replica_id(self.node_id, self.name)

    @property
    def copy_origin(self) -> tuple[str, int]:
        """Site and position that the replica was copied from; ("", 0) = never copied."""
        donor, _, rest = self.copied_from.rpartition("@")
        position = rest.partition("/")[0]
        return (donor, int(position)) if donor and position.isdecimal() else ("", 0)

    def table_lines(self) -> dict[str, dict[str, Any]]:
        """Return name → what a status shows of a table, by name."""
        return {
            name: {
                "version": table.version,
                "signature": table.signature.to_text(),
                "schema": table.schema,
                "diverged": table.diverged,
            }
            for name, table in sorted(self.tables.items())
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnReport(WorkerReport):
    """A report as a worker sends it to the node of its site; peers get the rest of it."""

    #: Root of the replica's tables, absolute where the worker runs; empty = it does not say.
    lake: str = ""
    #: Machine and process of the worker, for people; empty = it does not say.
    runs_on: str = ""

    def for_peers(self) -> WorkerReport:
        """Return the report without what concerns this site alone."""
        return WorkerReport(**{one.name: getattr(self, one.name) for one in fields(WorkerReport)})


@dataclass(frozen=True, slots=True, kw_only=True)
class RecountedTable:
    """What a full scan of a table's rows found (protocol S2b)."""

    #: Delta version that was counted.
    version: Int64
    #: Signatures as text; `counted` is empty if files of the table are missing or damaged.
    recorded: str
    counted: str
    #: Other findings, for people; empty = none.
    cause: str = ""

    @property
    def sound(self) -> bool:
        """Whether the rows are those that the worker reported."""
        return self.counted == self.recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Recount:
    """Tables of a replica as a full scan found them; a report to the replica's own node."""

    worker_id: str
    node_id: str
    #: `copied_from` of the replica that was counted, as in its reports.
    copied_from: str
    position: JournalNumber
    tables: dict[str, RecountedTable] = field(default_factory=dict)


class ReplicaVerdict(str, Enum):
    """A node's verdict on a replica (protocol S3)."""

    IN_SYNC = "IN_SYNC"
    AHEAD = "AHEAD"
    DIVERGED = "DIVERGED"
    FOREIGN = "FOREIGN"
    EMPTY = "EMPTY"
