"""Stages a donor's tables next to the replica's: fetches, checks, recounts; replaces nothing.

    all tables:   offered → equal already? → logs → ways → live files → space for all of them
    table by table:                                        live files → recount → staged

The disk must have space for all logs before the first log is fetched, and for all data files before
the first data file.  Every step may be repeated: files in the workspace are not fetched twice, and
a table that a recount finds equal to the offered one is not fetched at all.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from sparktxlog.delta.log_files import has_log, newest_version
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import ApplyError, StorageError
from sparktxlog.files.selection import Wanted
from sparktxlog.files.tasks import Fetched
from sparktxlog.model.copying import Lease, OfferedFile, OfferedTable
from sparktxlog.model.tables.commit_table import COMMIT_LOG
from sparktxlog.worker.apply.deltalog import forget_log
from sparktxlog.worker.apply.signatures import signature_of
from sparktxlog.worker.apply.steps import failures_named
from sparktxlog.worker.apply.worker_session import read_newest, read_version, tagged
from sparktxlog.worker.copy.copy_terms import CopyOptions
from sparktxlog.worker.copy.donor_fetcher import DonorFetcher
from sparktxlog.worker.copy.layout import Way, check_copyable, data_files, log_files, swap_way
from sparktxlog.worker.copy.swap import StagedTable, find_copy, is_renamed
from sparktxlog.worker.lakes.lake import Lake
from sparktxlog.worker.replica.state import PendingCopy, ReplicaState, ReplicaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlannedTable:
    """A table whose log is staged, and whose data must be fetched."""

    staged: StagedTable
    files: Sequence[OfferedFile]
    data: Wanted
    #: Paths of its log and its data.
    paths: frozenset[str]


class CopyStager:
    """Stages the tables of one attempt of a copy.

    Args:
        session: The worker's own.
        lake: The replica's tables.
        state: Of the replica, with the copy journaled in it.
        fetcher: Fetches the files.
        lease: Of the best donor, whose tables are copied.
        options: How the copy is made.
    """

    def __init__(
        self,
        session: SparkSession,
        lake: Lake,
        state: ReplicaState,
        fetcher: DonorFetcher,
        lease: Lease,
        options: CopyOptions,
    ) -> None:
        assert state.copying is not None
        self._session = session
        self._lake = lake
        self._state = state
        self._pending: PendingCopy = state.copying
        self._fetcher = fetcher
        self._lease = lease
        self._options = options
        self.fetched = Fetched()
        self.staged: dict[str, StagedTable] = {}
        #: Table → version of one that is equal already: it was kept, or swapped in earlier.
        self.standing: dict[str, int] = {}
        #: Table → kept, rename or commit, of each in place.
        self.ways: dict[str, str] = {}

    def stage_tables(self) -> None:
        """Fetch all tables that are not equal already into the workspace, and recount them.

        Raises:
            TransportError, StorageError: The donor failed; ask for a new ticket.
            DiskFullError: The tables do not fit on the disk; none of their data was fetched.
            ApplyError: The table cannot be copied by its files (definite).
        """
        for name, planned in self._prepare().items():
            with failures_named(name):
                self.fetched += self._fetcher.fetch(self._bring_own(planned))
                _prune(planned.staged.path, planned.paths)
                if self._options.verify:
                    self._recount(planned.staged)
                self.staged[name] = planned.staged

    # --- before the first data file -----------------------------------------------------------

    def _prepare(self) -> dict[str, _PlannedTable]:
        """Stage the logs of all tables that are not equal, and check the space for all data."""
        #: Log of the replica's table, None = the donor's log replaces it.
        olds: dict[str, LogState | None] = {}
        logs: dict[str, Wanted] = {}
        for offered in self._lease.tables:
            name = offered.definition.name
            with failures_named(name):
                standing = self._find_standing(offered)
                if standing is not None:
                    self.standing[name] = standing
                    continue
                # A part of a table has a log that can be read, and is none of the replica.
                begun = self._lake.is_begun(name, self._pending.copy_id)
                whole = self._options.history or self._is_another(offered) or begun
                olds[name] = None if whole else self._readable_log(name)
                logs[name] = self._select_log(offered, whole=olds[name] is None)
        self._fetcher.require_space([*logs.values()])
        planned = {}
        for offered in self._lease.tables:
            name = offered.definition.name
            if name in logs:
                with failures_named(name):
                    planned[name] = self._plan(offered, logs[name], olds[name])
        self._fetcher.require_space([table.data for table in planned.values()])
        return planned

    def _is_another(self, offered: OfferedTable) -> bool:
        """Return whether the replica's table of that name was dropped before the offered one."""
        known = self._state.tables.get(offered.definition.name)
        first = offered.definition.first_version
        return known is not None and known.definition.first_version != first

    def _select_log(self, offered: OfferedTable, *, whole: bool) -> Wanted:
        return self._fetcher.select(offered.definition.name, log_files(offered, whole=whole))

    def _plan(self, offered: OfferedTable, log: Wanted, old: LogState | None) -> _PlannedTable:
        """Fetch a table's log; decide how the table is swapped in, and which data that needs."""
        name, stage = offered.definition.name, self._fetcher.staged(offered.definition.name)
        version = self._stage_log(offered, stage, log)
        check_copyable(name, version)
        way = swap_way(old, version)
        if way is Way.RENAME and old is not None:
            log = self._select_log(offered, whole=True)
            self._fetcher.require_space([log])
            version = self._stage_log(offered, stage, log)
        files = data_files(offered, version, history=self._options.history)
        data = self._fetcher.select(name, files)
        return _PlannedTable(
            staged=StagedTable(offered=offered, path=stage, log=version, way=way),
            files=files,
            data=data,
            paths=log.paths | data.paths,
        )

    def _bring_own(self, planned: _PlannedTable) -> Wanted:
        """Bring what the replica has itself; return what must still be fetched."""
        name, sizes = planned.staged.name, {one.path: one.size_bytes for one in planned.files}
        if not self._lake.bring_own(name, sizes, planned.staged.path):
            return planned.data
        return self._fetcher.select(name, planned.files)

    def _stage_log(self, offered: OfferedTable, stage: Path, log: Wanted) -> LogState:
        self.fetched += self._fetcher.fetch(log)
        # An attempt with another donor may have left log files, which do not belong to this log.
        _prune(stage, log.paths, COMMIT_LOG)
        forget_log(self._session, stage)
        return LogState.read(stage, offered.version)

    def _readable_log(self, name: str) -> LogState | None:
        """Return the log of the replica's table, None if it cannot be read."""
        table = self._lake.table(name)
        if not has_log(table):
            return None
        try:
            return LogState.read(table, files=False)
        except StorageError as error:
            _logger.warning("log of table %s cannot be read: %s", name, str(error)[:300])
            return None

    def _find_standing(self, offered: OfferedTable) -> int | None:
        """Return the version of a table that a recount finds equal to the offered one."""
        definition = offered.definition
        name = definition.name
        table, known = self._lake.table(name), self._state.tables.get(name)
        version, way = find_copy(table, self._pending.copy_id, self._lease), Way.COMMIT.value
        if version is None and name in self._pending.swapped:
            noted = self._pending.renamed.get(name)
            version = offered.version if is_renamed(table, offered, noted) else None
            way = Way.RENAME.value
        if version is None and self._options.verify and not self._pending.suspect:
            version, way = self._find_equal(offered, known), "kept"
        if version is None:
            return None
        try:
            url = self._lake.url_of(name)
            forget_log(self._session, url)
            found = signature_of(read_version(self._session, url, version), definition)
        except (PySparkException, Py4JError):
            return None
        if found != offered.signature:
            return None
        self.ways[name] = way
        return version

    def _find_equal(self, offered: OfferedTable, known: ReplicaTable | None) -> int | None:
        """Return the recorded version of a table that did not change since the position."""
        if known is None or known.diverged or self._state.position > self._lease.position:
            return None
        if (known.signature, known.definition) != (offered.signature, offered.definition):
            return None
        newest = newest_version(self._lake.table(known.definition.name), known.version)
        return known.version if newest == known.version else None

    def _recount(self, staged: StagedTable) -> None:
        """Compare the staged rows with the donor's report, by a full scan.

        Raises:
            ApplyError: They differ; the replica was not changed (definite).
        """
        definition, wanted = staged.offered.definition, staged.offered.signature
        with tagged(self._session, "recount", staged.name):
            found = signature_of(read_newest(self._session, str(staged.path)), definition)
        if found != wanted:
            raise ApplyError(
                f"table {staged.name!r} from {self._lease.node_id} counts {found.to_text()}, "
                f"its report says {wanted.to_text()}",
                hint="Nothing was changed here.  Verify the donor (jobs/verify.py), or copy from "
                "another one.",
                table=staged.name,
                donor=self._lease.node_id,
            )


def _prune(root: Path, wanted: AbstractSet[str], below: str = "") -> None:
    """Remove staged files that this attempt does not want."""
    start = root / below
    for path in [*start.rglob("*")] if start.is_dir() else []:
        if path.is_file() and str(path.relative_to(root)) not in wanted:
            path.unlink()
