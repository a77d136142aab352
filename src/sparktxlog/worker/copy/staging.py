"""A donor's tables staged beside the replica's: fetched, checked, recounted; nothing is replaced.

    all tables:   offered → stands here already? → logs → ways → live files → room for all of them
    table by table:                                              live files → recount → staged

Whether everything fits on the disk is known, and checked, before the first data file travels; the
logs, which say which files are needed, are checked before they come.  Everything here may be done
again at any time: files that are in the workspace are not fetched twice, and a table that stands as
offered, proved by a recount, is not fetched at all.
"""

from __future__ import annotations

import logging
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from sparktxlog.errors import ApplyError
from sparktxlog.model.copying import Grant, OfferedTable
from sparktxlog.worker.apply.deltalog import LogVersion, forget_log, read_log
from sparktxlog.worker.apply.merging import read_newest, read_version, tagged
from sparktxlog.worker.apply.signatures import signature_of
from sparktxlog.worker.apply.steps import failures_named
from sparktxlog.worker.apply.tables import newest_version
from sparktxlog.worker.apply.version_files import LOG
from sparktxlog.worker.copy.copy_terms import CopyOptions
from sparktxlog.worker.copy.donor_fetcher import DonorFetcher
from sparktxlog.worker.copy.fetch.selection import Wanted
from sparktxlog.worker.copy.fetch.tasks import Fetched
from sparktxlog.worker.copy.layout import Way, check_copyable, data_files, log_files, swap_way
from sparktxlog.worker.copy.swap import StagedTable, find_copy, is_renamed
from sparktxlog.worker.replica.state import PendingCopy, ReplicaState, ReplicaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Coming:
    """A table whose log is staged, and whose data has to come."""

    staged: StagedTable
    data: Wanted
    #: Paths of its log and of its data.
    paths: frozenset[str]


class CopyStager:
    """What one attempt of a copy has staged so far.

    Args:
        session: The worker's own.
        lake: Root of the replica's tables.
        state: Of the replica, with the copy journaled in it.
        fetcher: Where files come from.
        grant: Of the best donor: its tables are the ones copied.
        options: How the copy is made.
    """

    def __init__(
        self,
        session: SparkSession,
        lake: Path,
        state: ReplicaState,
        fetcher: DonorFetcher,
        grant: Grant,
        options: CopyOptions,
    ) -> None:
        assert state.copying is not None
        self._session = session
        self._lake = lake
        self._state = state
        self._pending: PendingCopy = state.copying
        self._fetcher = fetcher
        self._grant = grant
        self._options = options
        self.fetched = Fetched()
        self.staged: dict[str, StagedTable] = {}
        #: Table → version of what stays, or was swapped in by an attempt before.
        self.standing: dict[str, int] = {}
        #: Table → kept, rename or commit, of what stands.
        self.ways: dict[str, str] = {}

    def stage_tables(self) -> None:
        """Fetch all tables that do not stand already into the workspace, and recount them.

        Raises:
            TransportError, StorageError: The donor failed; ask for a ticket anew.
            DiskFullError: The tables do not fit together; nothing of their data was fetched.
            ApplyError: The table cannot be copied by its files (definite).
        """
        for name, coming in self._prepare().items():
            with failures_named(name):
                self.fetched += self._fetcher.fetch(coming.data)
                _prune(coming.staged.path, coming.paths)
                if self._options.verify:
                    self._recount(coming.staged)
                self.staged[name] = coming.staged

    # --- before the first data file -----------------------------------------------------------

    def _prepare(self) -> dict[str, _Coming]:
        """Stage the logs of all tables that do not stand already, and check the room for all."""
        #: Log of what is there, None = the donor's takes its place.
        olds: dict[str, LogVersion | None] = {}
        logs: dict[str, Wanted] = {}
        for offered in self._grant.tables:
            name = offered.definition.name
            with failures_named(name):
                standing = self._find_standing(offered)
                if standing is not None:
                    self.standing[name] = standing
                    continue
                olds[name] = None if self._options.history else self._readable_log(name)
                logs[name] = self._select_log(offered, whole=olds[name] is None)
        self._fetcher.require_space([*logs.values()])
        coming = {}
        for offered in self._grant.tables:
            name = offered.definition.name
            if name in logs:
                with failures_named(name):
                    coming[name] = self._plan(offered, logs[name], olds[name])
        self._fetcher.require_space([table.data for table in coming.values()])
        return coming

    def _select_log(self, offered: OfferedTable, *, whole: bool) -> Wanted:
        return self._fetcher.select(offered.definition.name, log_files(offered, whole=whole))

    def _plan(self, offered: OfferedTable, log: Wanted, old: LogVersion | None) -> _Coming:
        """Fetch a table's log; decide how it is swapped in, and which data that needs."""
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
        return _Coming(
            staged=StagedTable(offered=offered, path=stage, log=version, way=way),
            data=data,
            paths=log.paths | data.paths,
        )

    def _stage_log(self, offered: OfferedTable, stage: Path, log: Wanted) -> LogVersion:
        self.fetched += self._fetcher.fetch(log)
        # Left by an attempt with another donor, its log would be read as part of this one.
        _prune(stage, log.paths, LOG)
        forget_log(self._session, stage)
        return read_log(self._session, stage, offered.version)

    def _readable_log(self, name: str) -> LogVersion | None:
        """Return the newest version of the replica's table, None if its log cannot be read."""
        table = self._lake / name
        if not (table / LOG).is_dir():
            return None
        try:
            forget_log(self._session, table)
            log = read_log(self._session, table, files=False)
        except (PySparkException, Py4JError, ValueError) as error:
            _logger.warning("log of table %s cannot be read: %s", name, str(error)[:300])
            return None
        return log if log.version >= 0 else None

    def _find_standing(self, offered: OfferedTable) -> int | None:
        """Return the version of a table that is as offered already, proved by a recount."""
        definition = offered.definition
        table, known = self._lake / definition.name, self._state.tables.get(definition.name)
        version, way = find_copy(table, self._pending.copy_id, self._grant), Way.COMMIT.value
        if version is None and definition.name in self._pending.swapped:
            version = offered.version if is_renamed(table, offered) else None
            way = Way.RENAME.value
        if version is None and self._options.verify and not self._pending.suspect:
            version, way = self._find_equal(offered, known), "kept"
        if version is None:
            return None
        try:
            forget_log(self._session, table)
            found = signature_of(read_version(self._session, str(table), version), definition)
        except (PySparkException, Py4JError):
            return None
        if found != offered.signature:
            return None
        self.ways[definition.name] = way
        return version

    def _find_equal(self, offered: OfferedTable, known: ReplicaTable | None) -> int | None:
        """Return the recorded version of a table that nothing happened to since the position."""
        if known is None or known.diverged or self._state.position > self._grant.position:
            return None
        if (known.signature, known.definition) != (offered.signature, offered.definition):
            return None
        newest = newest_version(self._lake / known.definition.name, known.version)
        return known.version if newest == known.version else None

    def _recount(self, staged: StagedTable) -> None:
        """Compare staged rows with what the donor reported, by a full scan.

        Raises:
            ApplyError: They differ; the replica is as before (definite).
        """
        definition, wanted = staged.offered.definition, staged.offered.signature
        with tagged(self._session, "recount", staged.name):
            found = signature_of(read_newest(self._session, str(staged.path)), definition)
        if found != wanted:
            raise ApplyError(
                f"table {staged.name!r} from {self._grant.node_id} counts {found.to_text()}, "
                f"its report says {wanted.to_text()}",
                hint="Nothing was changed here.  Verify the donor (jobs/verify.py), or copy from "
                "another one.",
                table=staged.name,
                donor=self._grant.node_id,
            )


def _prune(root: Path, wanted: AbstractSet[str], below: str = "") -> None:
    """Remove staged files that this attempt did not ask for."""
    start = root / below
    for path in [*start.rglob("*")] if start.is_dir() else []:
        if path.is_file() and str(path.relative_to(root)) not in wanted:
            path.unlink()
