"""Backs up a replica: makes an image of its newest complete batch.

    state.json → position, chain hash, table versions → files of these versions → manifest → name

A backup needs no Spark, no node and no lock of the worker: Delta never changes a written file, so
the versions of the last complete batch stay readable while the worker goes on.  Only VACUUM and log
cleanup can remove files; then the backup starts again with a newer batch, and reuses the files that
are stored already.

A file with the name, size and time that it has in the replica's image before is not read.  So an
image costs only what is new.  What is stored of it must not have been written since: else it is
compared, and mended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import time_ns

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.delta.live_files import needed_files
from sparktxlog.delta.log_files import TablePlace, files_of_log
from sparktxlog.errors import CorruptLogError, DivergedError, NotAppliedError, StorageError
from sparktxlog.files.fetch import Progress
from sparktxlog.worker.backup.commit_table_images import (
    KeptCommitTable,
    commit_table_files,
)
from sparktxlog.worker.backup.image import (
    CHUNK_BYTES,
    Image,
    ImageCommitTable,
    ImageFile,
    ImageTable,
)
from sparktxlog.worker.backup.image_store import (
    Before,
    ImageStore,
    ImageWriter,
    KeptFile,
    ToKeep,
    check_image_name,
)
from sparktxlog.worker.backup.originals import (
    DiskTable,
    StoredTable,
    TableFiles,
    VersionGoneError,
)
from sparktxlog.worker.lakes.lake_places import attic_of, bucket_at, is_in_bucket
from sparktxlog.worker.replica.state import ReplicaState, applied_state, read_state

#: Most attempts, each with a newer batch, when files vanish.
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupResult:
    """Result of a backup."""

    image: Image
    #: Files that were read and written in this run, and their bytes; the others were here already.
    new_files: int
    added_bytes: int
    #: How many of the new ones had been stored before, and were damaged or missing by now.
    mended_files: int
    #: How often it started again because files vanished.
    repeated: int


def back_up_replica(
    lake: str | Path,
    store: ImageStore,
    *,
    name: str,
    site: str = "",
    commit_tables: Sequence[KeptCommitTable] = (),
    tell: Progress = lambda done, total: None,
) -> BackupResult:
    """Store the newest complete batch of a replica as an image.

    Args:
        name: Of the new image.
        site: Node whose replica it is; written into the image.
        commit_tables: The site's commit tables, which are taken along.
        tell: Called with present and total bytes after each file.

    Raises:
        InvalidNameError, InvalidRequestError: The name is reserved or taken (definite).
        NotAppliedError: Nothing was applied yet, or a copy is unfinished (definite).
        DivergedError: A table stands still: its image would have the fault too (definite).
        CorruptLogError: A file of the lake does not have its recorded size, or neither it nor the
            stored one has the bytes of the image before: no image was made (definite).
        StorageError: Files of the batch are missing, and there is no newer batch.  No image was
            made (definite); the next attempt uses the files that were stored.
        LockedError: Another backup writes there (definite).
    """
    lake = str(lake) if is_in_bucket(lake) else Path(lake).absolute()
    check_image_name(name)
    with store.writing() as writer:
        store.check_free(name)
        repeated = 0
        while True:
            drops = _drops_in(lake)
            state = _whole_batch(lake)
            try:
                backup = _Backup(lake, store, writer, state, tell, drops, commit_tables)
                return backup.run(name, site, repeated=repeated)
            except (VersionGoneError, FileNotFoundError) as error:
                repeated += 1
                if repeated >= _ATTEMPTS or not _is_newer(read_state(lake), state):
                    raise StorageError(
                        f"position {state.position} of {lake} cannot be backed up: {error}",
                        hint="A file of the newest batch is gone: recount with `sparktxlog "
                        "verify`.  If VACUUM ran, let a worker apply something and try again.",
                        path=str(lake),
                    ) from error
            except OSError as error:
                raise StorageError(
                    f"backing up {lake} to {store.url} failed: {error}",
                    hint="The backup may be repeated: it uses what is stored already.",
                    path=str(error.filename or lake),
                ) from error


def image_name(now_us: int) -> str:
    """Return the default name of an image made at a time, microseconds since 1970 UTC."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(now_us / 1e6, UTC).strftime("%Y%m%dT%H%M%SZ")


def version_files(table: TablePlace, version: int) -> dict[str, int | None]:
    """Return the files of a version: path below the table → bytes, None = not recorded.

    Raises:
        VersionGoneError: The log of the version is not whole.
        StorageError: The directory cannot be read.
    """
    try:
        files: dict[str, int | None] = dict.fromkeys(files_of_log(table, version))
    except CorruptLogError as error:
        raise VersionGoneError(error.message) from error
    needed = needed_files(table, version).values()
    return files | {file.path: file.size if file.is_exact else None for file in needed}


def _whole_batch(lake: str | Path) -> ReplicaState:
    state = applied_state(lake)
    if state.copying is not None:
        raise NotAppliedError(
            f"the replica in {lake} is being copied from another site",
            hint="Back it up when the copy is done; its tables have no common position.",
            path=str(lake),
        )
    for table, reason in sorted(state.diverged.items()):
        raise DivergedError(
            f"table {table!r} stands still and must not be backed up: {reason}",
            hint="Repair the replica first, or back up another site's.",
            table=table,
        )
    return state


def _is_newer(now: ReplicaState | None, before: ReplicaState) -> bool:
    return now is not None and (
        now.position != before.position
        or {n: t.version for n, t in now.tables.items()}
        != {n: t.version for n, t in before.tables.items()}
    )


def _drops_in(lake: str | Path) -> set[str]:
    """Return the ids of all entries of the attic with dropped tables."""
    if isinstance(lake, Path):
        return {entry.id for entry in Attic.of_lake(lake).entries(Kind.DROPPED)}
    return {one for one in attic_of(lake).ids() if one.startswith(f"{Kind.DROPPED.value}-")}


class _Backup:
    """One attempt at one batch."""

    def __init__(
        self,
        lake: str | Path,
        store: ImageStore,
        writer: ImageWriter,
        state: ReplicaState,
        tell: Progress,
        drops: set[str],
        commit_tables: Sequence[KeptCommitTable],
    ) -> None:
        self._lake = lake
        self._commit_tables = commit_tables
        self._drops = drops
        self._writer = writer
        self._state = state
        self._tell = tell
        #: (table, path) → the file in the replica's image before.
        self._before = {
            (table, file.path): Before(image=before.name, file=file)
            for before in store.newest_of(state.worker_id)
            if before.chunk_bytes == CHUNK_BYTES
            for table, file in before.all_files
        }
        self._new = self._added = self._mended = 0

    def run(self, name: str, site: str, *, repeated: int) -> BackupResult:
        state = self._state
        # All lists first: a missing log is found before anything is read.
        rows = [self._row_table(name) for name in sorted(state.tables)]
        wanted = {
            one.name: version_files(one.place, state.tables[one.name].version) for one in rows
        }
        unneeded: dict[str, set[str]] = {}
        sources = [*rows, *(table.files() for table in self._commit_tables)]
        for table, source in zip(self._commit_tables, sources[len(rows) :], strict=True):
            wanted[table.uuid], unneeded[table.uuid] = commit_table_files(table, source)
        total = sum(_size_of(one, path) for one in sources for path in wanted[one.name])
        kept: dict[str, list[ImageFile]] = {one.name: [] for one in sources}
        done = 0
        for owner, file in self._keep_all(sources, wanted, unneeded):
            kept[owner].append(file)
            done += file.size_bytes
            self._tell(done, total)
        tables = {
            table: ImageTable(
                definition=found.definition,
                version=found.version,
                signature=found.signature,
                files=tuple(kept[table]),
            )
            for table, found in sorted(state.tables.items())
        }
        commit_tables = {
            table.uuid: ImageCommitTable(
                name=table.name, version=table.version, files=tuple(kept[table.uuid])
            )
            for table in self._commit_tables
        }
        if gone := sorted(_drops_in(self._lake) - self._drops):
            # Its files may be those of the next table of that name.
            raise VersionGoneError(f"a table was dropped meanwhile: {gone[0]}")
        image = Image(
            name=name,
            created_at=time_ns() // 1000,
            worker_id=state.worker_id,
            log_id=state.log_id,
            epoch=state.epoch,
            position=state.position,
            chain_hash=state.chain_hash,
            tables=tables,
            site=site,
            chunk_bytes=CHUNK_BYTES,
            commit_tables=commit_tables,
            only=state.only,
        )
        self._writer.add(image)
        return BackupResult(
            image=image,
            new_files=self._new,
            added_bytes=self._added,
            mended_files=self._mended,
            repeated=repeated,
        )

    def _row_table(self, name: str) -> TableFiles:
        if isinstance(self._lake, Path):
            return DiskTable(self._lake / name)
        return StoredTable(bucket_at(self._lake), name)

    def _keep_all(
        self,
        sources: Sequence[TableFiles],
        wanted: Mapping[str, Mapping[str, int | None]],
        unneeded: Mapping[str, set[str]],
    ) -> Iterator[tuple[str, ImageFile]]:
        """Store all files; yield each of them with the name of its table, in their order."""

        def keep(one: tuple[TableFiles, str, int | None]) -> KeptFile | None:
            table, path, size = one
            try:
                return self._keep(table, path, size)
            except FileNotFoundError:
                if path not in unneeded.get(table.name, ()):
                    raise
                return None  # upkeep of the commit table removed it meanwhile

        files = [
            (table, path, size)
            for table in sources
            for path, size in sorted(wanted[table.name].items())
        ]
        with ThreadPoolExecutor(self._writer.at_once, "images") as threads:
            results = map(keep, files) if self._writer.at_once == 1 else threads.map(keep, files)
            for (table, _, _), kept in zip(files, results, strict=True):
                if kept is not None:
                    self._new += kept.is_new
                    self._added += kept.file.size_bytes if kept.is_new else 0
                    self._mended += kept.is_mended
                    yield table.name, kept.file

    def _keep(self, table: TableFiles, path: str, recorded: int | None) -> KeptFile:
        """Store a file."""
        original = table.original(path)
        size, modified_at = original.size_bytes, original.modified_ns // 1000
        if recorded is not None and recorded != size:
            raise CorruptLogError(
                f"{original.url} has {size} bytes, its table recorded {recorded}",
                hint="The replica is damaged: repair it, or back up another site's.",
                table=table.name,
                path=original.url,
            )
        before = self._before.get((table.name, path))
        if before is not None:
            same = (before.file.size_bytes, before.file.modified_at) == (size, modified_at)
            before = before if same else None
        wanted = ToKeep(
            table=table.name,
            path=path,
            original=original,
            chunk_bytes=CHUNK_BYTES,
            before=before,
        )
        return self._writer.keep(self._state.worker_id, wanted)


def _size_of(table: TableFiles, path: str) -> int:
    """Return its bytes, 0 if it was removed a moment ago."""
    try:
        return table.original(path).size_bytes
    except FileNotFoundError:
        return 0
