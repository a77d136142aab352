"""A log without a node, for tests of the worker: payload files, segments, and what must come out.

`LogBuilder` plays submitter and publisher: it writes staged and inline Parquet files and makes the
segments a node would serve.  `expected` is a dumb reference: one operation after the other on
lists of rows.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparktxlog.codec.arrow import file_schema
from sparktxlog.codec.partitions import partition_texts
from sparktxlog.errors import ExpiredError, TransportError
from sparktxlog.model.answers import RepairedFiles, ReplicaLine
from sparktxlog.model.copying import Transfer
from sparktxlog.model.report import Recount, WorkerReport
from sparktxlog.model.tables.alteration import DROPPED, TableChange
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import OP_COLUMN, POSITION_COLUMN, StagedFile
from sparktxlog.storage.interfaces import Segment, TableEffect
from sparktxlog.worker.apply.tables import OwnCommit
from sparktxlog.worker.replica.source import Answer, LogTail, NodeInfo

Row = tuple[Any, ...]


def table(
    name: str,
    columns: str,
    *,
    keys: Sequence[str] = (),
    partition_by: Sequence[str] = (),
    deletion_vectors: bool = False,
) -> TableDefinition:
    """Return a definition from `name type, name type, …`."""
    parts = [part.strip().split(" ", 1) for part in re.split(r",\s(?=[\w.]+ )", columns)]
    return TableDefinition(
        name=name,
        columns=tuple(Column(name=part[0], type=part[1]) for part in parts),
        keys=tuple(keys),
        partition_by=tuple(partition_by),
        deletion_vectors=deletion_vectors,
    )


@dataclass
class Operation:
    """One operation as the reference sees it."""

    position: int
    op: int
    kind: str
    table: str
    rows: list[Row] = field(default_factory=list)
    matches: Callable[[Row], bool] | None = None


class LogBuilder:
    """Makes transactions and publishes them as segments."""

    def __init__(self, root: Path, *, interval: int = 10_000, log_id: str = "test") -> None:
        self.root = root
        self.payloads = root / "payloads"
        self.payloads.mkdir(parents=True, exist_ok=True)
        self.interval = interval
        self.log_id = log_id
        self.tables: dict[str, TableDefinition] = {}
        self._dropped: dict[str, TableDefinition] = {}
        self.segments: list[Segment] = []
        self.operations: list[Operation] = []
        self.position = 0
        self._op = itertools.count()
        self._published = 0
        self._hash = "00"
        self._effects: list[TableEffect] = []
        self._inline: dict[tuple[str, str], list[tuple[int, int, Row]]] = {}
        self.transaction_id = ""

    def transaction(self) -> LogBuilder:
        """Begin the next transaction; operations that follow belong to it."""
        self.position += 1
        self._op = itertools.count()
        self.transaction_id = str(uuid.UUID(int=self.position))
        return self

    def create(self, definition: TableDefinition) -> LogBuilder:
        definition = definition.created_after(self._dropped.get(definition.name))
        self.tables[definition.name] = definition
        self._effects.append(
            TableEffect(
                table=definition.name,
                kind="create_table",
                first=self.position,
                last=self.position,
                op=next(self._op),
                definition=definition,
                schema_version=definition.schema_version,
            )
        )
        return self

    def drop(self, name: str) -> LogBuilder:
        """Drop a table of which all rows are published."""
        before = self.tables.pop(name)
        self._dropped[name] = before.dropped()
        self.operations = [one for one in self.operations if one.table != name]
        self._effects.append(
            TableEffect(
                table=name,
                kind="drop_table",
                first=self.position,
                last=self.position,
                op=next(self._op),
                schema_version=before.schema_version,
                change=DROPPED,
            )
        )
        return self

    def rename(self, name: str, **names: str) -> LogBuilder:
        """Rename columns; see `alter`."""
        return self.alter(name, TableChange(rename=tuple(names.items())))

    def alter(self, name: str, change: TableChange) -> LogBuilder:
        """Change a table; inline rows of a segment belong to what it is at the segment's end."""
        before = self.tables[name]
        self.tables[name] = change.applied_to(before)
        self._effects.append(
            TableEffect(
                table=name,
                kind="alter_table",
                first=self.position,
                last=self.position,
                op=next(self._op),
                schema_version=before.schema_version,
                change=change,
            )
        )
        return self

    def inline(self, kind: str, name: str, rows: Iterable[Row]) -> LogBuilder:
        """Operation with rows that travel with the manifest."""
        op, listed = next(self._op), list(rows)
        self._inline.setdefault((name, kind), []).extend((self.position, op, row) for row in listed)
        self.operations.append(Operation(self.position, op, kind, name, listed))
        return self

    def staged(
        self,
        kind: str,
        name: str,
        rows: Iterable[Row],
        *,
        claim: str = "",
        files: int = 1,
        given: Sequence[StagedFile] = (),
    ) -> LogBuilder:
        """Operation with staged files.

        Args:
            files: In so many files the rows are written …
            given: … but for these files, in which they are already.
        """
        op, listed = next(self._op), list(rows)
        definition = self.tables[name]
        keys = definition.keys if kind == "delete_keys" else None
        written = list(given)
        for index in range(0 if given else files):
            part = listed[index::files]
            for partition, chosen in _by_partition(definition, part, keys):
                path = f"{self.transaction_id}/{name}/{op}-part-{len(written)}.parquet"
                left_out = list(partition or ())
                data = rows_table(definition, chosen, keys).drop_columns(left_out)
                written.append(self._write(path, data, partition))
        self._effects.append(
            TableEffect(
                table=name,
                kind=kind,
                first=self.position,
                last=self.position,
                op=op,
                files=tuple(written),
                claim=claim,
                schema_version=definition.schema_version,
            )
        )
        self.operations.append(Operation(self.position, op, kind, name, listed))
        return self

    def delete_where(self, name: str, predicate: str, matches: Callable[[Row], bool]) -> LogBuilder:
        op = next(self._op)
        self._effects.append(
            TableEffect(
                table=name,
                kind="delete_where",
                first=self.position,
                last=self.position,
                op=op,
                predicate=predicate,
                schema_version=self.tables[name].schema_version,
            )
        )
        self.operations.append(Operation(self.position, op, "delete_where", name, matches=matches))
        return self

    def publish(self) -> Segment:
        """Publish everything since the last time as one segment."""
        first = self._published + 1
        effects = list(self._effects)
        for (name, kind), rows in self._inline.items():
            effects.append(self._inline_effect(name, kind, rows, first))
        to_hash = hashlib.sha256(f"{self._hash}{self.position}".encode()).hexdigest()
        segment = Segment(
            first=first,
            last=self.position,
            from_hash=self._hash,
            to_hash=to_hash,
            epoch=1,
            transactions=self.position - self._published,
            rejected=0,
            effects=tuple(effects),
        )
        self.segments.append(segment)
        self._hash, self._published = to_hash, self.position
        self._effects, self._inline = [], {}
        return segment

    def with_claims(self, sign: Callable[[str, list[Row]], str]) -> None:
        """Give all staged appends of published segments the claims of honest submitters."""
        rows = {(o.position, o.op, o.table): o.rows for o in self.operations}
        self.segments = [
            replace(
                segment,
                effects=tuple(
                    replace(e, claim=sign(e.table, rows[e.first, e.op, e.table]))
                    if e.kind == "append" and not e.inline and not e.claim
                    else e
                    for e in segment.effects
                ),
            )
            for segment in self.segments
        ]

    def _inline_effect(
        self, name: str, kind: str, rows: list[tuple[int, int, Row]], first: int
    ) -> TableEffect:
        definition = self.tables[name]
        keys = definition.keys if kind == "delete_keys" else None
        files = []
        groups: dict[Any, list[tuple[int, int, Row]]] = {}
        for item in sorted(rows, key=lambda item: item[:2]):
            found = _by_partition(definition, [item[2]], keys)[0][0]
            groups.setdefault(tuple(sorted((found or {}).items())), []).append(item)
        for index, (partition, items) in enumerate(groups.items()):
            data = rows_table(definition, [item[2] for item in items], keys)
            data = data.append_column(POSITION_COLUMN, pa.array([i[0] for i in items], pa.int64()))
            data = data.append_column(OP_COLUMN, pa.array([i[1] for i in items], pa.int32()))
            path = f"inline/{first}-{self.position}/{name}-{kind}-{index}.parquet"
            files.append(self._write(path, data, dict(partition) or None))
        return TableEffect(
            table=name,
            kind=kind,
            first=min(item[0] for item in rows),
            last=max(item[0] for item in rows),
            files=tuple(files),
            inline=True,
            schema_version=definition.schema_version,
        )

    def _write(
        self, path: str, data: pa.Table, partition: dict[str, str | None] | None
    ) -> StagedFile:
        target = self.payloads / path
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(data, target)
        content = target.read_bytes()
        return StagedFile(
            path=path,
            size_bytes=len(content),
            rows=data.num_rows,
            digest=hashlib.sha256(content).hexdigest(),
            partition=partition,
        )


def rows_table(
    definition: TableDefinition, rows: list[Row], names: Sequence[str] | None = None
) -> pa.Table:
    """Return rows as in a file, of all columns or of those named."""
    schema = file_schema(definition, names or [column.name for column in definition.columns])
    columns = list(zip(*rows, strict=True)) if rows else [() for _ in schema]
    return pa.table(
        [pa.array(list(column), kind.type) for column, kind in zip(columns, schema, strict=True)],
        schema=schema,
    )


def _by_partition(
    definition: TableDefinition, rows: list[Row], keys: Sequence[str] | None
) -> list[tuple[dict[str, str | None] | None, list[Row]]]:
    if not definition.partition_by or keys is not None:
        return [(None, rows)]
    names = [column.name for column in definition.columns]
    stored = definition.in_files(definition.partition_by)
    groups: dict[Row, list[Row]] = {}
    for row in rows:
        at = tuple(row[names.index(name)] for name in definition.partition_by)
        groups.setdefault(at, []).append(row)
    return [
        (
            {name: _text(value) for name, value in zip(stored, at, strict=True)},
            group,
        )
        for at, group in groups.items()
    ]


def _text(value: Any) -> str | None:
    """Return a value as Delta writes it for a partition."""
    if value is None or isinstance(value, str):
        return value
    return str(partition_texts(pa.chunked_array([pa.array([value])]))[0])


def own_commit(version: int) -> OwnCommit:
    """Return the mark of a worker's commit to the table `t`."""
    return OwnCommit(
        log_id="l",
        epoch=1,
        table="t",
        first=version,
        last_position=version,
        step=0,
        last=True,
        from_hash="",
        to_hash="",
        signature="",
    )


def expected(log: LogBuilder, name: str, *, until: int | None = None) -> list[Row]:
    """Return the rows of a table after all operations, one by one, as a sorted list."""
    definition = log.tables[name]
    names = [column.name for column in definition.columns]
    at = [names.index(key) for key in definition.keys]

    def key_of(row: Row) -> Row:
        return tuple(row[index] for index in at)

    rows: list[Row] = []
    operations = [o for o in log.operations if o.table == name]
    for operation in sorted(operations, key=lambda o: (o.position, o.op)):
        if until is not None and operation.position > until:
            break
        match operation.kind:
            case "append":
                rows += operation.rows
            case "overwrite":
                rows = list(operation.rows)
            case "upsert":
                gone = {key_of(row) for row in operation.rows}
                rows = [row for row in rows if key_of(row) not in gone] + operation.rows
            case "delete_keys":
                keys = set(operation.rows)
                rows = [row for row in rows if key_of(row) not in keys]
            case "delete_where":
                assert operation.matches is not None
                rows = [row for row in rows if not operation.matches(row)]
    return sorted(rows, key=repr)


class MemoryLog:
    """A `LogSource` over a builder's segments."""

    def __init__(self, log: LogBuilder, lake: Path) -> None:
        self.log = log
        self.lake = lake
        self.reports: list[WorkerReport] = []
        self.recounts: list[Recount] = []
        self.answer = Answer(verdict="IN_SYNC", plan="up-to-date")
        self.others: list[ReplicaLine] = []
        self.reachable = True
        #: The log was shortened up to this position.
        self.kept_after = 0
        #: Ranges of which damaged files were asked for, and what is done about them.
        self.repairs: list[tuple[int, int]] = []
        self.repaired: Callable[[], RepairedFiles] = lambda: {"fetched": [], "lost": []}

    def info(self) -> NodeInfo:
        return NodeInfo(
            node_id="a",
            log_id=self.log.log_id,
            payload_root=str(self.log.payloads),
            lake_root=str(self.lake),
            signature_interval=self.log.interval,
            published=self._published(),
            kept_after=self.kept_after,
        )

    def repair_files(self, first: int, last: int) -> RepairedFiles:
        self.repairs.append((first, last))
        return self.repaired()

    def segments(self, after: int, *, wait_s: float, limit: int = 500) -> LogTail:
        self._check()
        if after < self.kept_after:
            raise ExpiredError(f"the log holds what is after {self.kept_after}")
        found = [segment for segment in self.log.segments if segment.last > after]
        return LogTail(
            position=self._published(),
            log_id=self.log.log_id,
            epoch=1,
            segments=tuple(found[:limit]),
        )

    def tables(self) -> dict[str, TableDefinition]:
        return self.log.tables

    def report(self, report: WorkerReport) -> Answer:
        self._check()
        self.reports.append(report)
        return self.answer

    def take_recount(self, recount: Recount) -> Answer:
        self._check()
        self.recounts.append(recount)
        return self.answer

    def replicas(self) -> list[ReplicaLine]:
        return self.others

    def record_transfer(self, transfer: Transfer) -> None:
        """Take the measure of a long replay, of which nobody here makes use."""

    def close(self) -> None:
        pass

    def _published(self) -> int:
        return self.log.segments[-1].last if self.log.segments else 0

    def _check(self) -> None:
        if not self.reachable:
            raise TransportError("the node is away")
