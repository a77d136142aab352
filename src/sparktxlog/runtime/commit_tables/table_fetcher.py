"""Fetches versions of commit tables that this site lacks from peers, and puts them in place.

A node that begins with a summary of the queue, or that yielded to another history, knows a table's
newest version and lacks the earlier ones.  It asks one peer after the other what they consist of,
and fetches what is not here.  The steps for a table, each repeatable after a kill:

1. list what the versions consist of: paths, sizes and digests of all files;
2. get the commit files and read them: they must name the files of the list, and the newest one must
   have the timestamp that the log knows;
3. get the other files; what readers of the newest version do not need may be gone everywhere;
4. publish the commit files in their order, and keep the list as this site's record.

Then the placer finds them there, checks them as it checks what somebody copied, and goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from sparktxlog.delta.commit_contents import LiveFiles, read_commit_file
from sparktxlog.errors import (
    CorruptLogError,
    ManifestMismatchError,
    NotFoundError,
    StagedCommitError,
    TransportError,
    TxLogError,
)
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.tables.table_versions import VersionFiles
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.runtime.commit.executor import Executor
from sparktxlog.runtime.commit.run_fetching import RunFetcher
from sparktxlog.runtime.commit_tables.table_records import TableRecords
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.storage.commit_tables.site_tables import SiteTables
from sparktxlog.storage.commit_tables.table_staging import TableStaging
from sparktxlog.supervision import KeyedTasks, foreseen
from sparktxlog.transport.peer_link import PeerLink

_log = structlog.get_logger("sparktxlog.tables")

#: Files fetched at once: fewer than the fetcher of runs has threads, which go first.
_PARALLEL_FILES = 2
#: Tables fetched at once.
_PARALLEL_TABLES = 2


@dataclass(slots=True)
class TableTransfer:
    """How far the versions of a table are on their way."""

    first: int
    last: int
    #: The peer that is asked.
    peer: str = ""
    files: int = 0
    of_files: int = 0
    size_bytes: int = 0
    of_bytes: int = 0

    @property
    def text(self) -> str:
        """The same in words."""
        return (
            f"versions {self.first} to {self.last} come from {self.peer or 'a peer'}: "
            f"{self.files:,} of {self.of_files:,} files, "
            f"{self.size_bytes:,} of {self.of_bytes:,} bytes"
        )


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A file of a version."""

    version: int
    file: StagedFile


class TableFetcher:
    """Fetches tables, each in a task of its own; belongs to the event loop."""

    def __init__(
        self,
        base: Foundation,
        executor: Executor,
        fetcher: RunFetcher,
        records: TableRecords,
        places: SiteTables,
    ) -> None:
        self._base = base
        self._executor = executor
        self._fetcher = fetcher
        self._records = records
        self._places = places
        self.staging = TableStaging(base.config.commit_table_dir, places)
        #: Called with the UUID of a table whose versions are in place.
        self.on_fetched: Callable[[str], None] = lambda uuid: None
        #: What is under way, by UUID.
        self.transfers: dict[str, TableTransfer] = {}
        #: UUID → why no peer could give what is missing, by peer.
        self.failures: dict[str, dict[str, TxLogError]] = {}
        self._tasks = KeyedTasks[str]()
        self._tables = asyncio.Semaphore(_PARALLEL_TABLES)
        self._files = asyncio.Semaphore(_PARALLEL_FILES)

    def start(self, uuid: str, first: int, last: int) -> None:
        """Fetch versions unless that is under way; `on_fetched` follows, or an entry in `failures`.

        Args:
            first: The first version that is missing; all before are placed.
            last: The last one.
        """
        if not self._base.ending.is_set():
            self._tasks.start(uuid, partial(self._guarded, uuid, first, last))

    async def mend(self, uuid: str, version: int, file: StagedFile) -> None:
        """Put the right file of a placed version in its place; what was there is set aside.

        Raises:
            NotFoundError: No peer has it (definite).
            TransportError: A peer that may have it cannot be asked, or did not send it.
            StorageError: The disk fails.
        """
        links, wanted = self._base.sources(), _Wanted(version, file)
        await self._on_files(uuid, self._places.doubt, uuid, file)
        if file.path == commit_file_name(version):
            await self._get_commit(wanted, links, uuid)
            await self._on_files(uuid, self.staging.publish, uuid, [(version, file)])
        else:
            await self._get_file(wanted, links, uuid)

    async def close(self) -> None:
        """Stop; what came is used after the next start."""
        await self._tasks.close()

    async def _guarded(self, uuid: str, first: int, last: int) -> None:
        try:
            async with self._tables:
                transfer = self.transfers[uuid] = TableTransfer(first, last)
                failures = await self._fetch(uuid, transfer)
        except TxLogError as error:
            failures = {self._base.config.node_id: error}
        except Exception as error:  # noqa: BLE001
            _log.exception("fetching a commit table failed unexpectedly", uuid=uuid)
            failures = {self._base.config.node_id: foreseen(error)}
        finally:
            self.transfers.pop(uuid, None)
        if failures is None:
            self.failures.pop(uuid, None)
            self.on_fetched(uuid)
        else:
            reasons, known = _texts(failures), _texts(self.failures.get(uuid, {}))
            self.failures[uuid] = failures
            if reasons != known:
                _log.warning("a commit table could not be fetched", uuid=uuid, reasons=reasons)

    async def _fetch(self, uuid: str, transfer: TableTransfer) -> dict[str, TxLogError] | None:
        """Ask one peer after the other; return why none could help, None = one did."""
        failures: dict[str, TxLogError] = {}
        # One that is not linked yet, as at the start, is waited for a moment.
        links = self._base.sources()
        for link in links:
            transfer.peer = link.node_id
            try:
                await self._fetch_from(link, links, uuid, transfer)
            except (TransportError, ManifestMismatchError, CorruptLogError, NotFoundError) as error:
                failures[link.node_id] = error
            else:
                return None
        return failures

    async def _fetch_from(
        self, link: PeerLink, links: Sequence[PeerLink], uuid: str, transfer: TableTransfer
    ) -> None:
        versions = await self._listed(link, uuid, transfer.first, transfer.last)
        files = [_Wanted(one.version, file) for one in versions for file in one.files]
        transfer.of_files, transfer.of_bytes = len(files), _bytes_of(files)
        transfer.files = transfer.size_bytes = 0
        commits = [_Wanted(one.version, one.commit_file) for one in versions if one.commit_file]
        await self._all(self._get_commit, commits, links, uuid, transfer)
        needed = await self._checked(uuid, versions)
        brought = [_Wanted(one.version, file) for one in versions for file in one.brought]

        async def get(wanted: _Wanted, links: Sequence[PeerLink], uuid: str) -> None:
            try:
                await self._get_file(wanted, links, uuid)
            except NotFoundError:
                if wanted.file.path in needed:
                    raise

        await self._all(get, brought, links, uuid, transfer)
        published = [(one.version, one.file) for one in commits]
        await self._records.keep(uuid, versions)
        await self._on_files(uuid, self.staging.publish, uuid, published)
        _log.info(
            "commit table fetched",
            uuid=uuid,
            peer=link.node_id,
            first=transfer.first,
            last=transfer.last,
            files=len(files),
        )

    async def _listed(self, link: PeerLink, uuid: str, first: int, last: int) -> list[VersionFiles]:
        """Return what versions consist of, without a gap."""
        found: list[VersionFiles] = []
        after = first - 1
        while after < last:
            answer = await link.table_versions(uuid, after, last)
            versions = [one.version for one in answer.versions]
            if not versions or versions != [*range(after + 1, after + 1 + len(versions))]:
                raise NotFoundError(f"it names versions {versions[:3]} after version {after}")
            found += answer.versions
            after = versions[-1]
            if after >= answer.placed < last:
                raise NotFoundError(f"it has versions up to {answer.placed} itself")
        for one in found:
            if one.commit_file is None:
                raise CorruptLogError(f"it names version {one.version} without its commit file")
        return found

    async def _all(
        self,
        get: Callable[[_Wanted, Sequence[PeerLink], str], Awaitable[None]],
        files: Iterable[_Wanted],
        links: Sequence[PeerLink],
        uuid: str,
        transfer: TableTransfer,
    ) -> None:
        """Get files, some at once, and note each."""
        waiting = iter(files)

        async def next_ones() -> None:
            for wanted in waiting:
                async with self._files:
                    await get(wanted, links, uuid)
                transfer.files += 1
                transfer.size_bytes += wanted.file.size_bytes

        tasks = [asyncio.create_task(next_ones()) for _ in range(_PARALLEL_FILES)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _get_commit(self, wanted: _Wanted, links: Sequence[PeerLink], uuid: str) -> None:
        missing = await self._on_files(uuid, self.staging.missing_commit, uuid, wanted.file)
        await self._receive(wanted, links, uuid, missing)

    async def _get_file(self, wanted: _Wanted, links: Sequence[PeerLink], uuid: str) -> None:
        missing = await self._on_files(uuid, self.staging.missing_file, uuid, wanted.file)
        if missing is not None and await self._on_files(
            uuid, self._places.copies, uuid, wanted.file
        ):
            return
        await self._receive(wanted, links, uuid, missing)
        await self._on_files(uuid, self._places.arrived, uuid, wanted.file)

    async def _receive(
        self, wanted: _Wanted, links: Sequence[PeerLink], uuid: str, missing: StagedFile | None
    ) -> None:
        """Receive a file, if it is missing, from the first peer that has it.

        Raises:
            NotFoundError: All peers answered that they do not have it (definite).
            TransportError: A peer that may have it did not send it.
            ManifestMismatchError: A peer sent another one (definite).
        """
        if missing is None:
            return
        name = wanted.file.path
        path = f"versions/{uuid}/{wanted.version}/{name}"
        failure: TxLogError | None = None
        for link in links:
            if not link.up:
                failure = TransportError(f"no link to {link.node_id}: {link.reason}")
                continue
            try:
                await self._fetcher.get_file(link, missing, into=self._places.arrivals, source=path)
            except (TransportError, ManifestMismatchError) as error:
                if error.fields.get("status") != NotFoundError.http_status:
                    failure = error
            else:
                return
        raise failure or NotFoundError(
            f"no peer has file {name!r} of version {wanted.version}", path=name
        )

    async def _checked(self, uuid: str, versions: Sequence[VersionFiles]) -> frozenset[str]:
        """Check the commit files that came; return what readers of the newest version need."""
        after = versions[0].version - 1
        read = self._base.journal.read_ordered_commits
        ordered = await self._base.run_blocking(read, uuid, after)
        timestamps = {commit.version: commit.timestamp for commit in ordered}
        needed: frozenset[str]
        needed = await self._on_files(uuid, self._check, uuid, versions, timestamps)
        return needed

    def _on_files(self, uuid: str, work: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return self._base.run_on_files(self._places.where(uuid), work, *args)

    def _check(
        self, uuid: str, versions: Sequence[VersionFiles], timestamps: dict[int, int]
    ) -> frozenset[str]:
        live = LiveFiles()
        for one in versions:
            assert one.commit_file is not None, "it was checked"
            place = self.staging.commit_file(uuid, one.commit_file)
            try:
                content = read_commit_file(self._places.read(str(place)))
            except StagedCommitError as error:
                self.staging.drop(uuid)
                raise CorruptLogError(
                    f"its version {one.version} cannot be read: {error.message}"
                ) from error
            named = {file.path for file in content.files if file.is_new}
            known = timestamps.get(one.version, content.timestamp)
            if named != {file.path for file in one.brought} or known != content.timestamp:
                self.staging.drop(uuid)
                raise CorruptLogError(
                    f"its version {one.version} is another one than the log has: its timestamp is "
                    f"{content.timestamp}, expected is {known}; it names {len(named):,} files, its "
                    f"site {len(one.brought):,}",
                    uuid=uuid,
                    version=one.version,
                )
            live.follow(content)
        return frozenset(live.needed)


def _texts(failures: Mapping[str, TxLogError]) -> dict[str, str]:
    return {peer: error.message for peer, error in failures.items()}


def _bytes_of(files: Iterable[_Wanted]) -> int:
    return sum(one.file.size_bytes for one in files)
