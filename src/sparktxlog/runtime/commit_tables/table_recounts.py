"""Recounts commit tables from their files, compares sites, and mends what differs.

A version has a record: its files with sizes and digests.  A recount reads every file and compares
it with the record, and the record with those of other sites.  So it finds a changed file and a
foreign commit here, and says which site has another history.  A repair fetches the right file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import structlog

from sparktxlog.delta.checkpoints import Checkpoint, newest_checkpoint
from sparktxlog.delta.commit_contents import LiveFiles, read_commit_file
from sparktxlog.errors import (
    BusyError,
    InvalidRequestError,
    TxLogError,
    UnknownTableError,
)
from sparktxlog.model.tables.commit_table import CommitTable, commit_file_name
from sparktxlog.model.tables.table_checks import (
    CommitTableCheck,
    CommitTableCheckRequest,
    CommitTableFinding,
    FileFault,
    majority_site,
)
from sparktxlog.model.tables.table_versions import VersionFiles
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.runtime.commit_tables import table_records
from sparktxlog.runtime.commit_tables.table_fetcher import TableFetcher
from sparktxlog.runtime.commit_tables.table_records import TableRecords, count_file
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.storage.commit_tables.site_tables import SiteTables

_log = structlog.get_logger("sparktxlog.recounts")

#: Most findings of one answer, and of one table in memory.
_MOST_FINDINGS = 1_000


class _LogBase(NamedTuple):
    """Where a table's log begins."""

    #: The first version whose commit file is there.
    first: int
    #: The newest whole checkpoint: it says what cleaned versions left.
    checkpoint: Checkpoint


class TableRecounts:
    """Recounts tables when somebody asks; belongs to the event loop, reads in threads.

    Args:
        placed: UUID → the newest version that is placed here.
    """

    def __init__(
        self,
        base: Foundation,
        records: TableRecords,
        fetcher: TableFetcher,
        places: SiteTables,
        placed: Mapping[str, int],
    ) -> None:
        self._base = base
        self._records = records
        self._fetcher = fetcher
        self._places = places
        self._placed = placed
        #: UUID → what the last recount found and nobody has mended.
        self.findings: dict[str, list[CommitTableFinding]] = {}

    async def check(self, wanted: CommitTableCheckRequest) -> CommitTableCheck:
        """Recount the next versions of a table, as many as take some seconds; mend them if asked.

        Raises:
            UnknownTableError: There is no such commit table (definite).
            InvalidRequestError: There is no such version, or site (definite).
            BusyError: The table is being fetched (definite).
            StorageError: A file cannot be read.
        """
        table = self._base.master.commit_tables.named(wanted.table)
        if table is None:
            raise UnknownTableError(
                f"there is no commit table {wanted.table[:140]!r}", value=wanted.table[:140]
            )
        uuid, placed = table.uuid, self._placed.get(table.uuid, -1)
        problem = wanted.problem
        if wanted.right and wanted.right not in {*self._base.links, self._base.config.node_id}:
            problem = f"{wanted.right[:80]!r} is no site of this log"
        if problem:
            raise InvalidRequestError(problem, field="right" if wanted.right else "after")
        if uuid in self._fetcher.transfers:
            raise BusyError(f"commit table {table.name!r} is being fetched", table=table.name)
        if wanted.after < 0:
            self.findings.pop(uuid, None)
        versions = await self._records_of(uuid, wanted.after, placed)
        checked = versions[-1].version if versions else placed
        foreign_records, absent = await self._ask_all(uuid, versions)
        found = self._contradictions(table, versions, foreign_records, wanted)
        right = {version: record for version, record, _ in found if record is not None}
        if wanted.repair:
            await self._records.keep(uuid, [*right.values()])
            versions = [right.get(one.version, one) for one in versions]
        findings = [finding for _, _, finding in found]
        place = self._places.where(uuid)
        findings += await self._base.run_on_files(
            place, self._count, table, versions, checked >= placed
        )
        if wanted.repair:
            findings = await self._mended(table, versions, right, findings)
        self._remember(uuid, [one for one in findings if not one.repaired])
        return CommitTableCheck(
            node_id=self._base.config.node_id,
            table=table.name,
            uuid=uuid,
            checked=checked,
            placed=placed,
            files=sum(len(one.files) for one in versions),
            size_bytes=sum(file.size_bytes for one in versions for file in one.files),
            compared=tuple(sorted(foreign_records)),
            absent=absent,
            findings=tuple(findings[:_MOST_FINDINGS]),
        )

    async def _records_of(self, uuid: str, after: int, placed: int) -> list[VersionFiles]:
        """Return the records of the next versions, as many as are read in some seconds."""
        found = await self._records.page(uuid, after, placed) if placed > after else []
        size = 0
        for number, one in enumerate(found, start=1):
            size += sum(file.size_bytes for file in one.files)
            if size >= table_records.PAGE_BYTES:
                return found[:number]
        return found

    def _remember(self, uuid: str, findings: list[CommitTableFinding]) -> None:
        if findings:
            kept = self.findings.setdefault(uuid, [])
            kept += findings[: _MOST_FINDINGS - len(kept)]
            _log.error(
                "a commit table differs", uuid=uuid, findings=[one.text for one in findings[:5]]
            )

    # -- this site ---------------------------------------------------------------------------------

    def _count(
        self, table: CommitTable, versions: Sequence[VersionFiles], is_last: bool
    ) -> list[CommitTableFinding]:
        """Compare the files of versions with their records; blocks."""
        found: list[CommitTableFinding] = []
        live: frozenset[str] | None = None
        base = self._base_of_log(table.uuid)
        for one in versions:
            is_cleaned = base is not None and one.version < base.first
            for file in one.files:
                fault = self._fault_of(table.uuid, file)
                if fault is FileFault.MISSING and file is one.commit_file and is_cleaned:
                    continue
                if fault is FileFault.MISSING and file is not one.commit_file:
                    live = self._live(table.uuid, base) if live is None else live
                    fault = fault if file.path in live else None
                if fault is not None:
                    text = (
                        f"commit table {table.name!r}, version {one.version}: file {file.path!r} "
                        f"is {fault.value} at site {self._base.config.node_id}"
                    )
                    found.append(_finding(table, one.version, file.path, fault, text))
        if is_last:
            found += self._foreign(table)
        return found

    def _fault_of(self, uuid: str, file: StagedFile) -> FileFault | None:
        found = self._places.file(uuid, file.path)
        try:
            if found.size() != file.size_bytes:
                return FileFault.CHANGED
        except FileNotFoundError:
            return FileFault.MISSING
        except OSError:  # a link, or another thing that is no file
            return FileFault.CHANGED
        return None if count_file(found, file.path).digest == file.digest else FileFault.CHANGED

    def _base_of_log(self, uuid: str) -> _LogBase | None:
        """Return where a log begins whose first versions Delta cleaned up, None = it is whole."""
        first = min(self._places.versions(uuid), default=0)
        placed = self._placed.get(uuid, -1)
        directory = self._places.log_directory(uuid) if first else None
        checkpoint = None if directory is None else newest_checkpoint(directory, placed)
        if checkpoint is None or checkpoint.version < first - 1:
            return None
        return _LogBase(first, checkpoint)

    def _live(self, uuid: str, base: _LogBase | None) -> frozenset[str]:
        """Return the files that readers of the newest version need."""
        live = LiveFiles()
        if base is not None:
            live.begin(base.checkpoint.adds())
        first = 0 if base is None else base.checkpoint.version + 1
        for version in range(first, self._placed.get(uuid, -1) + 1):
            try:
                live.follow(read_commit_file(self._places.published(uuid, version) or b""))
            except TxLogError:
                continue  # the recount names it
        return frozenset(live.needed)

    def _foreign(self, table: CommitTable) -> list[CommitTableFinding]:
        """Return the commit files of versions that the log does not have."""
        found = []
        versions = self._places.versions(table.uuid)
        # Asked after the look: a version is ordered before anybody publishes it.
        known = self._base.master.commit_tables.get(table.uuid)
        newest = -1 if known is None else known.version
        for version in versions:
            if version > newest:
                text = (
                    f"commit table {table.name!r}: version {version} in {table.uuid} is of no "
                    f"transaction; the newest one of the log is {newest}"
                )
                file = commit_file_name(version)
                found.append(_finding(table, version, file, FileFault.FOREIGN, text))
        return found

    # -- other sites -------------------------------------------------------------------------------

    async def _ask_all(
        self, uuid: str, versions: Sequence[VersionFiles]
    ) -> tuple[dict[str, dict[int, VersionFiles]], dict[str, str]]:
        """Return the records of the peers, by version, and why others did not send theirs."""
        found: dict[str, dict[int, VersionFiles]] = {}
        absent: dict[str, str] = {}
        if not versions:
            return found, absent
        after, last = versions[0].version - 1, versions[-1].version
        for link in tuple(self._base.links.values()):
            try:
                answered: dict[int, VersionFiles] = {}
                at, placed = after, last
                while at < min(last, placed):
                    answer = await link.table_versions(uuid, at, last)
                    answered |= {one.version: one for one in answer.versions}
                    at, placed = max(answered, default=last), answer.placed
                found[link.node_id] = answered
            except TxLogError as error:
                absent[link.node_id] = error.message
        return found, absent

    def _contradictions(
        self,
        table: CommitTable,
        versions: Sequence[VersionFiles],
        others: Mapping[str, Mapping[int, VersionFiles]],
        wanted: CommitTableCheckRequest,
    ) -> list[tuple[int, VersionFiles | None, CommitTableFinding]]:
        """Return versions of which sites have other records, with the right one if it is known."""
        found: list[tuple[int, VersionFiles | None, CommitTableFinding]] = []
        for own in versions:
            records: dict[str, VersionFiles] = {self._base.config.node_id: own}
            records |= {
                site: answered[own.version]
                for site, answered in others.items()
                if own.version in answered
            }
            digests = {site: one.digest for site, one in records.items()}
            if len({*digests.values()}) == 1:
                continue
            right = wanted.right if wanted.right in digests else majority_site(digests)
            if right and digests[right] == own.digest:
                continue  # another site has to be mended
            other = next(one for one in records.values() if one.digest != own.digest)
            text = (
                f"commit table {table.name!r}, version {own.version}: sites have recorded other "
                f"files, {_shown(digests)}; "
                + (f"site {right} is right" if right else "no majority says which one is right")
            )
            finding = CommitTableFinding(
                table=table.name,
                version=own.version,
                file=_first_difference(own, records[right] if right else other),
                fault=FileFault.CONTRADICTED,
                text=text,
                sites=digests,
            )
            found.append((own.version, records[right] if right else None, finding))
        return found

    # -- repair ------------------------------------------------------------------------------------

    async def _mended(
        self,
        table: CommitTable,
        versions: Sequence[VersionFiles],
        right: Mapping[int, VersionFiles],
        findings: Sequence[CommitTableFinding],
    ) -> list[CommitTableFinding]:
        """Mend what was found; return the findings, repaired ones marked."""
        records = {one.version: one for one in versions}
        after: list[CommitTableFinding] = []
        for one in findings:
            repaired, text = False, one.text
            try:
                if one.fault is FileFault.FOREIGN:
                    place = self._places.where(table.uuid)
                    await self._base.run_on_files(
                        place, self._places.set_aside, table.uuid, one.file
                    )
                    repaired = True
                elif one.fault is FileFault.CONTRADICTED:
                    repaired = one.version in right  # its files are among the findings
                else:
                    files = records[one.version].files
                    (file,) = (file for file in files if file.path == one.file)
                    await self._fetcher.mend(table.uuid, one.version, file)
                    repaired = True
            except TxLogError as error:
                text = f"{one.text}; it cannot be repaired: {error.message}"
            if repaired:
                _log.warning("a commit table is repaired", uuid=table.uuid, what=one.text)
            after.append(replace(one, repaired=repaired, text=text))
        return after


def _finding(
    table: CommitTable, version: int, file: str, fault: FileFault, text: str
) -> CommitTableFinding:
    return CommitTableFinding(table=table.name, version=version, file=file, fault=fault, text=text)


def _first_difference(one: VersionFiles, other: VersionFiles) -> str:
    """Return the path of the first file that two records do not have in common."""
    left = {(file.path, file.digest) for file in one.files}
    right = {(file.path, file.digest) for file in other.files}
    return min(path for path, _ in left ^ right)


def _shown(digests: Mapping[str, str]) -> str:
    return ", ".join(f"{site} {digest[:12]}" for site, digest in sorted(digests.items()))
