"""What the versions of this site's commit tables consist of: a record of each, in the journal.

The record of a version comes from its transaction, or from the site that it was fetched from.  If a
version has none (somebody copied the directory by hand), its record is counted from the files,
once.
"""

from __future__ import annotations

from sparktxlog.delta.commit_contents import read_commit_file
from sparktxlog.errors import CorruptLogError, StagedCommitError, StorageError
from sparktxlog.files.durability import storing
from sparktxlog.files.foreign_files import digest_of
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.tables.table_versions import VersionFiles
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.runtime.commit.executor import Executor
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.storage.commit_tables.site_tables import SiteTables, TableFile
from sparktxlog.storage.interfaces import PutVersionFiles

#: Most versions, files, and bytes to be counted of one page.
PAGE_VERSIONS, PAGE_FILES, PAGE_BYTES = 500, 20_000, 1 << 30


def count_file(file: TableFile, relative: str) -> StagedFile:
    """Return size and digest of a file; blocks.

    Raises:
        StorageError: It cannot be read.
    """
    with storing(file.path), file.open() as content:
        digest = digest_of(content, file.path)
        size = content.seek(0, 2)
    return StagedFile(path=relative, size_bytes=size, rows=0, digest=digest)


class TableRecords:
    """Records of versions; belongs to the event loop, its file work runs in threads."""

    def __init__(self, base: Foundation, executor: Executor, places: SiteTables) -> None:
        self._base = base
        self._executor = executor
        self._places = places

    async def page(self, uuid: str, after: int, until: int) -> list[VersionFiles]:
        """Return the records of the next versions after one, ascending, without a gap.

        Args:
            until: The last one, which is placed here.

        Raises:
            CorruptLogError, StorageError: The next one has no record, and cannot be counted.
        """
        found: list[VersionFiles] = []
        known = await self.known(uuid, after, PAGE_VERSIONS)
        counted: list[VersionFiles] = []
        files = size = 0
        for version in range(after + 1, min(until, after + PAGE_VERSIONS) + 1):
            if version not in known:
                try:
                    known[version] = await self._base.run_on_files(
                        self._places.where(uuid), self._count, uuid, version
                    )
                except StorageError:
                    if not found:
                        raise
                    break
                counted.append(known[version])
                size += sum(file.size_bytes for file in known[version].files)
            found.append(known[version])
            files += len(known[version].files)
            if files >= PAGE_FILES or size >= PAGE_BYTES:
                break
        if counted:
            await self.keep(uuid, counted)
        return found

    async def known(self, uuid: str, after: int, limit: int) -> dict[int, VersionFiles]:
        """Return the records that there are of versions after one, by version."""
        read = self._base.journal.read_version_files
        rows = await self._base.run_blocking(read, uuid, after, limit)
        return {one.version: one for one in rows}

    async def keep(self, uuid: str, versions: list[VersionFiles]) -> None:
        """Make records durable."""
        for begin in range(0, len(versions), PAGE_VERSIONS):
            page = tuple(versions[begin : begin + PAGE_VERSIONS])
            await self._executor.write([PutVersionFiles(uuid=uuid, versions=page)])

    def _count(self, uuid: str, version: int) -> VersionFiles:
        raw, places = self._places.published(uuid, version), self._places
        try:
            content = read_commit_file(raw or b"")
        except StagedCommitError as error:
            raise CorruptLogError(
                f"version {version} of commit table {uuid} cannot be read at this site: "
                f"{error.message}",
                uuid=uuid,
                version=version,
            ) from error
        paths = [*(file.path for file in content.files if file.is_new), commit_file_name(version)]
        return VersionFiles(
            version=version,
            files=tuple(count_file(places.file(uuid, path), path) for path in paths),
        )
