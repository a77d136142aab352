"""Backs up a replica: makes an image of its newest complete batch.

    state.json → position, chain hash, table versions → files of these versions → store → manifest

A backup needs no Spark, no node and no lock of the worker: Delta never changes a written file, so
the versions of the last complete batch stay readable while the worker goes on.  Only VACUUM and log
cleanup can remove files; then the backup starts again with a newer batch, and reuses the files that
are stored already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time_ns

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.delta.live_files import needed_files
from sparktxlog.delta.log_files import files_of_log
from sparktxlog.errors import CorruptLogError, DivergedError, NotAppliedError, StorageError
from sparktxlog.worker.backup.commit_table_images import KeptCommitTable, commit_table_files
from sparktxlog.worker.backup.image_store import (
    Image,
    ImageCommitTable,
    ImageFile,
    ImageStore,
    ImageTable,
    check_image_name,
)
from sparktxlog.worker.replica.state import ReplicaState, ReplicaTable, applied_state, read_state

#: Most attempts, each with a newer batch, when files vanish.
_ATTEMPTS = 3


class VersionGoneError(Exception):
    """The directory does not hold all files of a version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageProgress:
    """Progress of a backup or restore."""

    #: Present table.
    table: str
    files: int
    size_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupResult:
    """Result of a backup."""

    image: Image
    #: Files read in this run; the others were known by name, size and time.
    read_files: int
    #: Files that the store did not have yet, and their bytes on its disk.
    new_files: int
    added_bytes: int
    #: How often it started again because files vanished.
    repeated: int


def back_up_replica(
    lake: str | Path,
    store: ImageStore,
    *,
    name: str,
    site: str = "",
    commit_tables: Sequence[KeptCommitTable] = (),
    tell: Callable[[ImageProgress], None] = lambda _: None,
) -> BackupResult:
    """Store the newest complete batch of a replica as an image.

    Args:
        name: Of the new image.
        site: Node whose replica it is; written into the image.
        commit_tables: The site's commit tables, which are taken along.
        tell: Called after each file.

    Raises:
        InvalidNameError, InvalidRequestError: The name is reserved or taken (definite).
        NotAppliedError: Nothing was applied yet, or a copy is unfinished (definite).
        DivergedError: A table stands still: its image would have the fault too (definite).
        CorruptLogError: A file of the lake does not have its recorded size (definite).
        StorageError: Files of the batch are missing, and there is no newer batch.  No image was
            made (definite); the next attempt uses the files that were stored.
    """
    lake = Path(lake).absolute()
    check_image_name(name)
    with store.writing():
        store.check_free(name)
        tried: list[ReplicaState] = []
        while True:
            drops = _drops_in(lake)
            state = _whole_batch(lake)
            try:
                backup = _Backup(lake, store, state, tell, drops, commit_tables)
                return backup.run(name, site, repeated=len(tried))
            except (VersionGoneError, FileNotFoundError) as error:
                if len(tried) + 1 >= _ATTEMPTS or not _is_newer(read_state(lake), state):
                    raise StorageError(
                        f"position {state.position} of {lake} cannot be backed up: {error}",
                        hint="A file of the newest batch is gone: recount with `sparktxlog "
                        "verify`.  If VACUUM ran, let a worker apply something and try again.",
                        path=str(lake),
                    ) from error
                tried.append(state)
            except OSError as error:
                raise StorageError(
                    f"backing up {lake} to {store.root} failed: {error}",
                    hint="The backup may be repeated: it uses what is stored already.",
                    path=str(error.filename or lake),
                ) from error


def image_name(now_us: int) -> str:
    """Return the default name of an image made at a time, microseconds since 1970 UTC."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(now_us / 1e6, UTC).strftime("%Y%m%dT%H%M%SZ")


def version_files(table: Path, version: int) -> dict[str, int | None]:
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


def _whole_batch(lake: Path) -> ReplicaState:
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


def _drops_in(lake: Path) -> set[tuple[str, str]]:
    return {(entry.table, entry.id) for entry in Attic.of_lake(lake).entries(Kind.DROPPED)}


class _Backup:
    """One attempt at one batch."""

    def __init__(
        self,
        lake: Path,
        store: ImageStore,
        state: ReplicaState,
        tell: Callable[[ImageProgress], None],
        drops: set[tuple[str, str]],
        commit_tables: Sequence[KeptCommitTable],
    ) -> None:
        self._lake = lake
        self._commit_tables = commit_tables
        self._drops = drops
        self._store = store
        self._state = state
        self._tell = tell
        self._known = store.read_known()
        self._used: dict[tuple[str, str, int, int], str] = {}
        self._read = self._new = self._added = 0

    def run(self, name: str, site: str, *, repeated: int) -> BackupResult:
        state = self._state
        # All lists first: a missing log is found before anything is read.
        wanted = {
            self._lake / table: version_files(self._lake / table, state.tables[table].version)
            for table in sorted(state.tables)
        }
        wanted |= {table.directory: commit_table_files(table) for table in self._commit_tables}
        total = sum(
            (directory / path).stat().st_size
            for directory, files in wanted.items()
            for path in files
        )
        files_done = done = 0
        kept: dict[Path, list[ImageFile]] = {}
        for directory, files in wanted.items():
            stored = kept[directory] = []
            for path, size in sorted(files.items()):
                stored.append(self._keep(directory, path, size))
                files_done, done = files_done + 1, done + stored[-1].size_bytes
                self._tell(
                    ImageProgress(
                        table=directory.name, files=files_done, size_bytes=done, total_bytes=total
                    )
                )
        tables = {
            table: _image_table(found, kept[self._lake / table])
            for table, found in sorted(state.tables.items())
        }
        commit_tables = {
            table.uuid: ImageCommitTable(
                name=table.name, version=table.version, files=tuple(kept[table.directory])
            )
            for table in self._commit_tables
        }
        if gone := sorted(_drops_in(self._lake) - self._drops):
            # Its files may be those of the next table of that name.
            raise VersionGoneError(f"table {gone[0][0]!r} was dropped meanwhile")
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
            commit_tables=commit_tables,
        )
        self._store.add(image)
        self._store.note_known(self._others() | self._used, anew=True)
        return BackupResult(
            image=image,
            read_files=self._read,
            new_files=self._new,
            added_bytes=self._added,
            repeated=repeated,
        )

    def _others(self) -> dict[tuple[str, str, int, int], str]:
        """Return the known files of other replicas that are backed up here."""
        own = f"{self._state.worker_id}/"
        return {key: digest for key, digest in self._known.items() if not key[0].startswith(own)}

    def _keep(self, directory: Path, path: str, recorded: int | None) -> ImageFile:
        file, table = directory / path, directory.name
        status = file.stat()
        size, modified_at = status.st_size, status.st_mtime_ns // 1000
        key = (f"{self._state.worker_id}/{table}", path, size, modified_at)
        if recorded is not None and recorded != size:
            raise CorruptLogError(
                f"{file} has {size} bytes, its table recorded {recorded}",
                hint="The replica is damaged: repair it, or back up another site's.",
                table=table,
                path=str(file),
            )
        digest = self._known.get(key)
        if digest is None or self._store.location(digest) is None:
            stored = self._store.put(file)
            digest, size = stored.digest, stored.size_bytes
            self._read += 1
            self._new += bool(stored.added_bytes)
            self._added += stored.added_bytes
            self._store.note_known({key: digest}, anew=False)
        self._used[key] = digest
        return ImageFile(path=path, size_bytes=size, modified_at=modified_at, digest=digest)


def _image_table(table: ReplicaTable, files: list[ImageFile]) -> ImageTable:
    return ImageTable(
        definition=table.definition,
        version=table.version,
        signature=table.signature,
        files=tuple(files),
    )
