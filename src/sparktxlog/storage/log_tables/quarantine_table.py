"""`log/quarantine`: transactions that a node gave up to follow another history (protocol P28).

    <entry>/payloads/inline/<first>-<last>/…    their inline rows, as if published
    <entry>/payloads/<transaction id>/…         their staged files, linked
    log/quarantine                              one row each, see docs/formats-log.md

The rows are those of `log/synchronized_queue`, with what people need to submit them again; files
are named relative to `files_root`.  They are separate files, because the payload store removes
files that no transaction of its log names, and the node may later publish under the same names.

Everything is fsynced when `append` returns.  The Delta transaction version of an act is the last
position that it wrote, so an act that was killed continues there and writes nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparktxlog.codec.containers.payload import read_manifest
from sparktxlog.delta.live_files import live_files
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import (
    CorruptLogError,
    ExpiredError,
    InvalidNameError,
    ManifestMismatchError,
    SchemaMismatchError,
    StorageError,
)
from sparktxlog.files.durability import (
    place_durably,
    replace_file,
    storing,
    sync_file,
    sync_parents,
)
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import IN_ROWS, Block
from sparktxlog.storage.interfaces import StoredEntry
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.storage.log_tables.log_schemas import QUARANTINE, SYNCHRONIZED_QUEUE
from sparktxlog.storage.log_tables.log_table import LogTable
from sparktxlog.storage.log_tables.queue_table import QUEUE_NAME
from sparktxlog.storage.payloads.payload_store import PayloadStore
from sparktxlog.storage.segments.publishing import build_segment, restored_rows

QUARANTINE_NAME = "quarantine"

#: Number of segments that are read at once.
_SEGMENTS = 500
#: Errors of a payload that cannot be turned into rows.
_DAMAGED = (CorruptLogError, ManifestMismatchError, SchemaMismatchError)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """A run that a node gives up."""

    #: With its position, or the one it would have had; sequence number 0 = none yet.
    stored: StoredEntry
    #: `ordered`, `accepted` or `acquired`.
    why: str
    log_id: str
    #: Whether the followed history also has the run.
    survives: bool


class QuarantineFiles:
    """Files of one act of quarantine; used by one thread.

    Args:
        directory: Content of the act's entry in the node's attic.
        payloads: The node's payload store.
    """

    def __init__(self, directory: Path, payloads: PayloadStore) -> None:
        root = directory / "payloads"
        with storing(root):
            root.mkdir(parents=True, exist_ok=True)
        self._top = directory.resolve()
        self.root = root.resolve()
        self._payloads = payloads
        self._fresh: list[Path] = []
        #: Place here → file of the payload store.
        self._linked: dict[Path, Path] = {}

    def write_file(self, relative: str, content: bytes | memoryview) -> None:
        """Write a file; it replaces one of the same name that a killed act left."""
        path = self.root / relative
        with storing(path):
            replace_file(path, content)
        self._fresh.append(path)

    def keep(self, relative: str) -> bool:
        """Let the next `sync` link a file of the payload store here; return whether it exists.

        It is copied if hard links are not possible.
        """
        try:
            source = self._payloads.kept_copy(relative)
        except InvalidNameError:
            return False
        target = self.root / relative
        with storing(target):
            if source is None:
                return target.is_file()  # linked by an act that was killed
        self._linked[target] = source
        return True

    def sync(self) -> None:
        """Link files, and bring them and the written ones to the disk."""
        with storing(self.root):
            place_durably(self._linked, self._top)
            for path in self._fresh:
                sync_file(path)
            sync_parents([*self._fresh, self.root / "files"], self._top)
        self._linked.clear()
        self._fresh.clear()


@dataclass(slots=True)
class _Notes:
    """Remarks about single transactions, by position."""

    remarks: dict[int, str] = field(default_factory=dict)
    #: File → partition values.
    partitions: dict[int, dict[str, dict[str, str | None]]] = field(default_factory=dict)
    creates: dict[int, list[TableDefinition]] = field(default_factory=dict)

    def remark(self, entry: StoredEntry, text: str) -> None:
        """Add a remark to all transactions of a run."""
        for position in range(entry.entry.position, entry.entry.end + 1):
            self.remarks[position] = text

    def gone(self, position: int, paths: Sequence[str]) -> None:
        """Note which files of a transaction are missing."""
        if paths:
            before = self.remarks.get(position)
            start = "missing files: " if before is None else f"{before}, "
            self.remarks[position] = start + ", ".join(paths)

    def partition(self, position: int, path: str, values: dict[str, str | None] | None) -> None:
        """Note the partition values of a file."""
        if values is not None:
            self.partitions.setdefault(position, {})[path] = values


def _unpartitioned(table: TableDefinition) -> TableDefinition:
    """Return a table whose rows go to one file for all partitions, with all columns, for people."""
    columns = tuple(replace(column, stored="") for column in table.columns)
    return replace(table, columns=columns, partition_by=())


class Quarantine:
    """One act: writes given-up runs and their files.

    Args:
        log_root: Directory of the log tables.
        quarantine_id: Names the act; an act of the same name continues after a kill.
        files: Where its files go.
        journal: Journal of the node that gives up runs; only read.
        tables: All tables that the runs may touch.

    Raises:
        CorruptLogError: The table of earlier acts is damaged.
    """

    def __init__(
        self,
        log_root: Path,
        quarantine_id: str,
        files: QuarantineFiles,
        journal: Journal,
        tables: Mapping[str, TableDefinition],
    ) -> None:
        self._id = quarantine_id
        self._files = files
        self._journal = journal
        self._tables = {name: _unpartitioned(table) for name, table in tables.items()}
        self._queue = log_root / QUEUE_NAME
        self.path = log_root / QUARANTINE_NAME
        self._table = LogTable(
            self.path, QUARANTINE, app_id=f"sparktxlog:quarantine:{quarantine_id}"
        )

    @property
    def position(self) -> int:
        """Last position that this act wrote, 0 = none."""
        return self._table.transaction_version

    def append(self, runs: Sequence[GivenUp]) -> None:
        """Append runs, neighbours by position, fsynced with all files.

        Raises:
            DiskFullError: No space left; do it again.
            StorageError: Do it again: what is there is not written twice.
        """
        notes = _Notes()
        pieces: list[pa.Table] = []
        for held, group in groupby(runs, lambda run: self._is_held(run.stored)):
            entries = [run.stored for run in group]
            pieces.append((self._built if held else self._found)(entries, notes))
        self._files.sync()
        rows = _as_quarantined(
            pa.concat_tables(pieces), runs, notes, self._id, str(self._files.root)
        )
        self._table.append(rows, transaction=runs[-1].stored.entry.end)

    def incomplete(self) -> int:
        """Return how many transactions of this act are incomplete: see the column `remark`."""
        wanted = (pc.field("quarantine_id") == self._id) & pc.field("remark").is_valid()
        return sum(
            pq.read_table(self.path / name, columns=["quarantine_id", "remark"])
            .filter(wanted)
            .num_rows
            for name in live_files(self.path).sizes
        )

    # -- from the payloads -------------------------------------------------------------------------

    def _older(self, table: str, schema_version: int) -> TableDefinition | None:
        found = self._journal.read_definition(table, schema_version)
        return None if found is None else _unpartitioned(found)

    def _is_held(self, stored: StoredEntry) -> bool:
        """Return whether the payloads of a run, and of what takes effect in it, are here (P35)."""
        decided = (one for one in stored.entry.verdicts if one.rejection is None)
        prepared = (self._journal.read_prepared(one.transaction_id) for one in decided)
        return stored.payload is not None and all(prepared)

    def _is_undecided(self, stored: StoredEntry) -> bool:
        prepared = any(one.code == "prepared" for one in stored.entry.rejections)
        return prepared and self._journal.find_verdict(stored.ids) is None

    def _built(self, entries: Sequence[StoredEntry], notes: _Notes) -> pa.Table:
        """Make rows and files of payloads; a damaged payload loses only its own rows.

        What is prepared and undecided keeps its rows too: nobody else may have them.
        """
        undecided = [item.entry.position for item in entries if self._is_undecided(item)]
        shown = [
            replace(item, entry=replace(item.entry, rejections=()))
            if item.entry.position in undecided
            else item
            for item in entries
        ]
        try:
            _, rows = build_segment(
                shown,
                self._tables,
                self._files,
                older=self._older,
                prepared=self._journal.read_prepared,
            )
        except _DAMAGED as error:
            if len(entries) > 1:
                return pa.concat_tables([self._built([entry], notes) for entry in entries])
            notes.remark(entries[0], f"its payload cannot be read: {error.message}")
            return restored_rows(entries)
        if undecided:
            is_undecided = pc.is_in(rows["position"], pa.array(undecided, pa.int64()))
            outcome = pc.if_else(is_undecided, "prepared", rows["outcome"])
            at = rows.schema.get_field_index("outcome")
            rows = rows.set_column(at, rows.schema.field(at), outcome)
        for entry in entries:
            assert entry.payload is not None
            manifest = read_manifest(entry.payload)
            files = manifest.files_by_commit()
            for index, commit in manifest.commits:
                own = files.get((manifest.transaction_id(index), commit.uuid), ())
                position = entry.entry.position + index
                notes.gone(position, [f.path for f in own if not self._files.keep(f.path)])
            for block, position in self._blocks(entry):
                if block.definition is not None:
                    notes.creates.setdefault(position, []).append(block.definition)
                notes.gone(position, [f.path for f in block.files if not self._files.keep(f.path)])
                for file in block.files:
                    notes.partition(position, file.path, file.partition)
        return rows

    def _blocks(self, stored: StoredEntry) -> Iterator[tuple[Block, int]]:
        """Yield the blocks without inline rows, and the positions where they take effect."""
        assert stored.payload is not None
        entry = stored.entry
        parts = [(stored.payload, entry.position)]
        for one in entry.verdicts:
            payload = self._journal.read_prepared(one.transaction_id)
            if one.rejection is None and payload is not None:
                parts.append((payload, entry.position + one.index))
        for payload, start in parts:
            for block in read_manifest(payload).blocks:
                if block.inline is None and (block.txs or block.op == IN_ROWS):
                    yield block, start + (block.txs or (0,))[0]

    # -- from what was published -------------------------------------------------------------------

    def _found(self, entries: Sequence[StoredEntry], notes: _Notes) -> pa.Table:
        """Use published rows and files, because the payloads are forgotten."""
        first, last = entries[0].entry.position, entries[-1].entry.end
        published = _published_rows(self._queue, first, last)
        partitions = self._partitions(first, last, notes)
        pieces = []
        for entry in entries:
            rows = published(entry.entry.position, entry.entry.end)
            if rows is None:
                rows = restored_rows([entry])
            pieces.append(rows)
            for row in rows.select(["position", "operations", "inline"]).to_pylist():
                position = row["position"]
                if row["operations"] is None:
                    notes.remarks[position] = "its payload is missing: only header and id are left"
                named = [*(row["inline"] or ())]
                for operation in row["operations"] or ():
                    named.extend(operation["files"] or ())
                notes.gone(position, [path for path in named if not self._files.keep(path)])
                for path in named:
                    notes.partition(position, path, partitions.get(path))
        return pa.concat_tables(pieces)

    def _partitions(self, first: int, last: int, notes: _Notes) -> dict[str, dict[str, str | None]]:
        """Return the partition values of files published between two positions; note tables."""
        found: dict[str, dict[str, str | None]] = {}
        after = first - 1
        while after < last:
            try:
                segments = self._journal.read_segments(after, _SEGMENTS)
            except ExpiredError as error:
                # Expired segments have no files.
                after = max(after + 1, int(error.fields["kept_after"]))
                continue
            if not segments:
                break
            for segment in segments:
                for effect in segment.effects:
                    if effect.definition is not None and first <= effect.first <= last:
                        notes.creates.setdefault(effect.first, []).append(effect.definition)
                    found.update({f.path: f.partition for f in effect.files if f.partition})
            after = segments[-1].last
        return found


def _published_rows(queue: Path, first: int, last: int) -> Callable[[int, int], pa.Table | None]:
    """Return a function that reads the published rows of a run, None if some are missing."""
    pieces = [SYNCHRONIZED_QUEUE.empty_table()]
    with suppress(StorageError, OSError, pa.ArrowException):
        pieces.extend(_read_rows(queue, first, last))
    rows = pa.concat_tables(pieces).sort_by("position")
    places = {position: at for at, position in enumerate(rows["position"].to_pylist())}

    def of(position: int, end: int) -> pa.Table | None:
        at, count = places.get(position), end - position + 1
        if at is None or places.get(end) != at + count - 1:
            return None
        return rows.slice(at, count)

    return of


def _read_rows(queue: Path, first: int, last: int) -> Iterable[pa.Table]:
    for path in LogState.read(queue).files_between("position", first - 1, last):
        with pq.ParquetFile(queue / path) as source:
            rows = source.read().cast(SYNCHRONIZED_QUEUE)
        yield rows.filter((pc.field("position") >= first) & (pc.field("position") <= last))


# -- the table's own columns -----------------------------------------------------------------------


def _as_quarantined(
    rows: pa.Table, runs: Sequence[GivenUp], notes: _Notes, act: str, files_root: str
) -> pa.Table:
    """Return rows of the queue with the columns of the quarantine."""
    spread = [run for run in runs for _ in range(run.stored.entry.header.n)]
    ordered = pa.array([run.why == "ordered" for run in spread])
    stamped = pa.array([run.stored.entry.header.seq > 0 for run in spread])
    positions = rows["position"].to_pylist()
    partitions = [notes.partitions.get(at) for at in positions]
    creates = [notes.creates.get(at) for at in positions]
    count, now = len(spread), datetime.now(UTC)
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        "quarantine_id": pa.array([act] * count),
        "quarantined_at": pa.array([now] * count, QUARANTINE.field("quarantined_at").type),
        "why": pa.array([run.why for run in spread]),
        "log_id": pa.array([run.log_id for run in spread]),
        "survives": pa.array([run.survives for run in spread]),
        "files_root": pa.array([files_root] * count),
        "partitions": pa.array(
            [_json(files) if files else None for files in partitions], pa.string()
        ),
        "creates": pa.array([_json(made) if made else None for made in creates], pa.string()),
        "remark": pa.array([notes.remarks.get(at) for at in positions], pa.string()),
    }
    for known in SYNCHRONIZED_QUEUE:
        column = rows.column(known.name)
        if known.name in ("outcome", "chain_hash", "ordered_at"):
            column = pc.if_else(ordered, column, pa.scalar(None, known.type))
        elif known.name in ("run_seq", "epoch", "timestamp", "sequence"):
            column = pc.if_else(stamped, column, pa.scalar(None, known.type))
        columns[known.name] = column
    return pa.table([columns[name] for name in QUARANTINE.names], schema=QUARANTINE)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
