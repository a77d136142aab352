"""Proof by full scan: recount a replica's tables, compare sites, and name the causes.

The signature that a worker records is a sum of claims and of its own counts; only a recount proves
it.  If a recount differs from the record, the causes are searched in this order:

    a data file that is missing, not of its recorded size, or cannot be read
    a placed file whose bytes differ from those in the log (SHA-256)
    a transaction whose claimed signature is not that of its rows (protocol S2b)

The result goes to the replica's node, which then plans a repair of this replica.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from sparktxlog.delta.live_files import live_files
from sparktxlog.delta.log_files import TablePlace, store_of
from sparktxlog.errors import (
    ExpiredError,
    ObjectMissingError,
    StorageError,
    StoreUnavailableError,
    first_lines,
)
from sparktxlog.files.foreign_files import digest_of
from sparktxlog.files.stores.store import Store
from sparktxlog.model.replicas import replica_id
from sparktxlog.model.report import Recount, RecountedTable
from sparktxlog.model.signature import EMPTY_SIGNATURE, TableSignature
from sparktxlog.model.status_words import replica_of
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.interfaces import TableEffect
from sparktxlog.worker.apply.batches import Piece
from sparktxlog.worker.apply.fold import FILE_COLUMN, join_path, quoted_path, rows_of
from sparktxlog.worker.apply.placing import placed_name
from sparktxlog.worker.apply.signatures import (
    hashed,
    row_hash,
    signature_from,
    signature_of,
    sums_of,
)
from sparktxlog.worker.apply.worker_session import applier_session, read_version, tagged
from sparktxlog.worker.lakes.lake import Lake
from sparktxlog.worker.lakes.lake_places import lake_at, payloads_at
from sparktxlog.worker.lakes.payload_files import PayloadFiles
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaState, ReplicaTable, applied_state
from sparktxlog.worker.verify.table_verification import verdict_lines
from sparktxlog.worker.verify.watching import tasks_shown, watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparktxlog.model.tables.table import TableDefinition

_logger = logging.getLogger(__name__)

#: Segments read at once in the search for a wrong claim.
_SEGMENTS_AT_ONCE = 200
#: Most findings named for a table and cause.
_NAMED = 20
#: Rows decoded at once in the search for a damaged file.
_ROWS_AT_ONCE = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFinding:
    """Result of a recount of one table."""

    table: str
    version: int
    #: Signatures as text, `rows:lane0:lane1`; counted is empty if the table cannot be read.
    recorded: str
    counted: str
    #: Node → signature that it reported at the same position, if it differs from the count.
    differing_sites: dict[str, str] = field(default_factory=dict)
    #: Why it stands still, or what was found: sentences that name files and transactions.
    causes: tuple[str, ...] = ()
    #: Data files are missing, not of their recorded size, or cannot be read.
    damaged: bool = False

    @property
    def proves(self) -> bool:
        """Whether the node gets it: a scan that failed over undamaged files proves nothing."""
        return bool(self.counted) or self.damaged

    @property
    def sound(self) -> bool:
        """Whether recount, record and other sites agree, and the table does not stand still."""
        return self.counted == self.recorded and not self.differing_sites and not self.causes

    def lines(self) -> list[str]:
        """Return lines for people: one for the table, and one for each of its faults."""
        differing = [f"site {site} has {text}" for site, text in self.differing_sites.items()]
        counted = f"{self.counted or 'nothing'} by full scan"
        said = [*self.causes, *differing]
        return verdict_lines(self.table, self.version, counted, said, sound=self.sound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Result of a recount of a replica."""

    node_id: str
    position: int
    tables: tuple[TableFinding, ...]
    #: Nodes with a replica at the same position.
    compared_sites: tuple[str, ...]
    #: The node's answer.
    verdict: str = ""
    plan: str = ""
    #: Which replica it is, as `model.replicas` names it.
    replica: str = ""

    @property
    def sound(self) -> bool:
        """Whether nothing differs anywhere."""
        return all(table.sound for table in self.tables)

    def lines(self) -> list[str]:
        """Return lines for people."""
        others = ", ".join(self.compared_sites) or "no other site"
        title = (
            f"site {self.replica or self.node_id} at position {self.position:,}; compared: {others}"
        )
        return [title, *(line for table in self.tables for line in table.lines())]


def verify_replica(
    spark: SparkSession, source: HttpLogSource, lake: str | Path, tables: Iterable[str] = ()
) -> Verification:
    """Recount a replica's tables at their recorded versions, and send the result to its node.

    A worker may run meanwhile.  A replica with a wrong table is DIVERGED from then on: it is no
    donor any more, and its worker replaces it by a copy (protocol S2b).

    Args:
        tables: Only these; empty = all.

    Raises:
        NotAppliedError: No worker has ever applied anything here (definite).
    """
    state, found_at = applied_state(lake), lake_at(lake)
    info = source.info()
    session = applier_session(spark)
    own = replica_id(info.node_id, state.name)
    others = {
        # A site that sent no report since the node's start has a line without tables.
        replica_of(replica): replica.get("tables", {})
        for replica in source.replicas()
        if replica["position"] == state.position and replica_of(replica) != own
    }
    search = _Search(session, source, payloads_at(info.payloads), found_at, state.position)
    findings = []
    for name in sorted((set(tables) or state.tables.keys()) & state.tables.keys()):
        table = state.tables[name]
        reported = {
            node: shown[name]["signature"] for node, shown in others.items() if name in shown
        }
        if (counted := _count_table(session, found_at, table)) is not None:
            found, files, failure = counted
            findings.append(search.explain(found, table, files, failure, reported))
    answer = source.take_recount(_recount_of(state, info.node_id, findings))
    return Verification(
        node_id=info.node_id,
        position=state.position,
        tables=tuple(findings),
        compared_sites=tuple(sorted(others)),
        verdict=answer.verdict,
        plan=answer.plan,
        replica=own,
    )


def recount(
    session: SparkSession, lake: Lake, state: ReplicaState, node_id: str, tables: Iterable[str]
) -> Recount:
    """Recount tables of a replica at their recorded versions.

    A table whose scan failed although all its files can be read is left out: that proves nothing.

    Args:
        session: The worker's own.
        tables: Names; those that the replica does not have are left out.
    """
    findings = []
    for name in sorted({*tables} & state.tables.keys()):
        result = _count_table(session, lake, state.tables[name])
        if result is None:
            continue
        found, _, failure = result
        findings.append(found)
        if not found.proves:
            _logger.warning("table %s is not recounted: %s", name, failure)
        elif found.counted != found.recorded:
            counted = found.counted or "nothing"
            causes = "; ".join(found.causes) or "all its files are whole"
            _logger.error(
                "table %s counts %s, recorded is %s; %s", name, counted, found.recorded, causes
            )
    return _recount_of(state, node_id, findings)


def _recount_of(state: ReplicaState, node_id: str, findings: Iterable[TableFinding]) -> Recount:
    """Return the findings that the node gets."""
    tables = {
        table.table: RecountedTable(
            version=table.version,
            recorded=table.recorded,
            counted=table.counted,
            cause="; ".join(table.causes[:3]) if table.counted != table.recorded else "",
        )
        for table in findings
        if table.proves
    }
    return state.recount(node_id, tables)


def recount_tables(
    spark: SparkSession, lake: str | Path, tables: Mapping[str, ReplicaTable] | None = None
) -> dict[str, tuple[str, str]]:
    """Recount a replica without its node; return table → (recorded, counted) where they differ.

    Args:
        lake: Directory of the tables, which is only read.
        tables: What is recorded of them; default: what the replica's state says.

    Raises:
        NotAppliedError: There is no replica (definite).
    """
    session, found = applier_session(spark), {}
    recorded = applied_state(lake).tables if tables is None else tables
    for name, table in sorted(recorded.items()):
        counted = count_rows(session, lake_at(lake).url_of(name), table)
        if counted != table.signature:
            found[name] = (table.signature.to_text(), counted.to_text())
    return found


def count_rows(session: SparkSession, path: Path | str, table: ReplicaTable) -> TableSignature:
    """Count a table's recorded version by a full scan; tags Spark's jobs and logs progress.

    Raises:
        PySparkException, Py4JError: The scan failed.
    """
    name = table.definition.name
    _logger.info("recounting table %s", name)
    look = tasks_shown(session, _logger, f"recounting table {name}")
    with tagged(session, "recount", name), watched(look):
        frame = read_version(session, str(path), table.version)
        return signature_of(frame, table.definition)


def _count_table(
    session: SparkSession, lake: Lake, table: ReplicaTable
) -> tuple[TableFinding, dict[str, int], str] | None:
    """Count a table's recorded version, and name its damaged files.

    Returns:
        The finding, the version's data files with their sizes, and why the scan failed, which alone
        proves nothing.  None: a worker dropped the table meanwhile, so this may be another one.
    """
    name = table.definition.name
    place, drops = lake.table(name), lake.drops_of(name)
    counted, failure, damages, files = "", "", list[str](), dict[str, int]()
    try:
        files = live_files(place, table.version).sizes
        damages = damaged_files(place, files)
        counted = count_rows(session, lake.url_of(name), table).to_text()
    except (StorageError, PySparkException, Py4JError) as error:
        damages = damages or unreadable_files(place, files)
        failure = first_lines(error, 1)
    if lake.drops_of(name) - drops:
        _logger.info("table %s was dropped while it was recounted", name)
        return None
    finding = TableFinding(
        table=table.definition.name,
        version=table.version,
        recorded=table.signature.to_text(),
        counted=counted,
        causes=tuple(damages),
        damaged=bool(damages),
    )
    return finding, files, failure


def damaged_files(table: TablePlace, files: Mapping[str, int]) -> list[str]:
    """Name live data files of a table that are missing, or not of their recorded size."""
    found, store = [], store_of(table)
    # A bucket says the sizes of a thousand objects at once.
    listed = not isinstance(table, Path)
    sizes = {one.key: one.size_bytes for one in store.list()} if listed else {}
    for name, size in sorted(files.items()):
        one = None if listed else store.find(name)
        there = sizes.get(name) if one is None else one.size_bytes
        if there is None:
            found.append(f"data file {name} is missing from {store.url}")
        elif there != size:
            found.append(f"data file {name} has {there} bytes, recorded are {size}")
    return found[:_NAMED]


def unreadable_files(table: TablePlace, files: Iterable[str]) -> list[str]:
    """Name live data files that are there and cannot be decoded; reads every page."""
    found: list[str] = []
    store = store_of(table)
    for name in sorted(files):
        try:
            with (
                store.reader(name) as file,
                pq.ParquetFile(file, page_checksum_verification=True) as reader,
            ):
                for _ in reader.iter_batches(_ROWS_AT_ONCE, use_threads=False):
                    pass
        except StoreUnavailableError:
            raise
        except ObjectMissingError:
            continue
        except MemoryError:
            continue
        except (OSError, ValueError, ArithmeticError, pa.ArrowException) as error:
            # Damaged bytes make the reader fail in many ways.  A lack of this process, such as of
            # file descriptors, says nothing about the file.
            number = error.errno if isinstance(error, OSError) else None
            if number in (None, errno.EIO):
                found.append(f"data file {name} cannot be read: {str(error)[:200]}")
        if len(found) == _NAMED:
            break
    return found


class _Search:
    """Searches the log for the cause of a difference."""

    def __init__(
        self,
        session: SparkSession,
        source: HttpLogSource,
        payloads: PayloadFiles,
        lake: Lake,
        position: int,
    ) -> None:
        self._session = session
        self._source = source
        self._payloads = payloads
        self._lake = lake
        self._position = position

    def explain(
        self,
        found: TableFinding,
        table: ReplicaTable,
        files: Mapping[str, int],
        failure: str,
        reported: Mapping[str, str],
    ) -> TableFinding:
        """Add to a finding the sites that differ from it, and the causes.

        Args:
            reported: Node → signature that it reported at the same position.
        """
        causes = [*([table.diverged] if table.diverged else []), *found.causes]
        if failure and not causes:
            causes.append(f"the table cannot be read: {failure}")
        differing = {node: text for node, text in reported.items() if text != found.counted}
        if found.counted != found.recorded or differing:
            causes += self.altered_files(table.definition, files)
            causes += self.wrong_claims(table.definition)
        return replace(found, differing_sites=differing, causes=tuple(causes))

    def altered_files(self, definition: TableDefinition, files: Mapping[str, int]) -> list[str]:
        """Name placed files whose bytes differ from those in the log."""
        found = []
        # They keep their names where they are put into the directories of their partitions.
        by_name = {name.rsplit("/", 1)[-1]: name for name in files}
        table = store_of(self._lake.table(definition.name))
        for effects in self._ranges(definition.name):
            for effect in effects:
                for file in effect.files:
                    name = by_name.get(placed_name(file.path), "")
                    if not name or not file.digest or table.find(name) is None:
                        continue
                    if _digest_of(table, name) != file.digest:
                        found.append(f"data file {name} was altered ({_whose(effect, file)})")
        return found[:_NAMED]

    def wrong_claims(self, definition: TableDefinition) -> list[str]:
        """Name transactions whose claimed signature is not that of their rows."""
        found: list[str] = []
        since = max(definition.first_version, self._hashed_since(definition.name))
        for effects in self._ranges(definition.name):
            claimed = [
                effect
                for effect in effects
                if effect.claim and effect.schema_version >= since and self._is_there(effect)
            ]
            if claimed:
                found += self._compare_claims(definition, claimed)
            if len(found) >= _NAMED:
                break
        return found[:_NAMED]

    def _hashed_since(self, table: str) -> int:
        """Return the first schema version whose rows have the hashes of now (P33)."""
        changed = (
            effect.schema_version + 1
            for effects in self._ranges(table, of_rows=False)
            for effect in effects
            if effect.change is not None and effect.change.changes_hashes
        )
        return max(changed, default=1)

    def _compare_claims(self, definition: TableDefinition, effects: list[TableEffect]) -> list[str]:
        """Recount effects file by file, in one Spark job."""
        pieces = [Piece(effect=effect, whole=True) for effect in effects]
        rows = rows_of(self._session, self._payloads.url, definition.columns, pieces)
        signed = hashed(rows, row_hash(definition.columns), keep=(FILE_COLUMN,))
        counted = signed.groupBy(FILE_COLUMN).agg(*sums_of()).collect()
        by_file = {row[FILE_COLUMN]: signature_from(row) for row in counted}
        found = []
        for effect in effects:
            total = EMPTY_SIGNATURE
            for file in effect.files:
                path = quoted_path(join_path(self._payloads.url, file))
                total += by_file.get(path, EMPTY_SIGNATURE)
            if total != TableSignature.from_text(effect.claim):
                found.append(
                    f"{_whose(effect, effect.files[0])} claimed {effect.claim}, "
                    f"its rows count {total.to_text()}"
                )
        return found

    def _is_there(self, effect: TableEffect) -> bool:
        return all(map(self._payloads.has, effect.files))

    def _ranges(self, table: str, *, of_rows: bool = True) -> Iterator[list[TableEffect]]:
        """Yield the effects on a table that the log still holds, up to the applied position.

        Args:
            of_rows: Only those that bring rows to the table.
        """
        after = self._source.info().kept_after
        while after < self._position:
            try:
                tail = self._source.segments(after, wait_s=0.0, limit=_SEGMENTS_AT_ONCE)
            except ExpiredError:
                before, after = after, self._source.info().kept_after
                if after <= before:
                    raise
                continue  # it was shortened meanwhile
            segments = [s for s in tail.segments if s.last <= self._position]
            if not segments:
                return
            after = segments[-1].last
            yield [
                effect
                for segment in segments
                for effect in segment.effects
                if effect.table == table
                and (not of_rows or (effect.files and effect.kind != "delete_keys"))
            ]


def _digest_of(table: Store, name: str) -> str:
    """Return the SHA-256 of a file of a table, hexadecimal."""
    with table.reader(name) as file:
        return digest_of(file, table.url_of(name))


def _whose(effect: TableEffect, file: StagedFile) -> str:
    if effect.says_places:
        return f"transactions at positions {effect.first} to {effect.last}"
    return f"transaction {file.path.split('/')[0]} at position {effect.first}"
