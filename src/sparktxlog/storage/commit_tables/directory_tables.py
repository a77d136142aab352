"""Commit tables in directories, as jobs of their site reach them."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sparktxlog.delta.checkpoints import forget_taken, newest_of_twin, take_checkpoint
from sparktxlog.delta.commit_contents import NeededFile
from sparktxlog.delta.live_files import live_files
from sparktxlog.delta.log_files import newest_commit
from sparktxlog.errors import CorruptLogError, NotOfferedError
from sparktxlog.storage.commit_tables.shared_tables import (
    UPKEEP_TWINS,
    SharedTable,
    SharedTables,
    Twin,
)
from sparktxlog.storage.commit_tables.table_sweep import (
    OldFiles,
    abandoned,
    decided_commits,
    remove_abandoned,
    remove_directory,
    unneeded_files,
    unused_directories,
)
from sparktxlog.storage.commit_tables.twin import (
    TwinCommit,
    add_unchanged_version,
    extend_plain_twin,
    make_plain_twin,
    own_version,
    stage_twin_commit,
    with_feature,
    withdraw_twin_commit,
)


def directory_of(location: str) -> Path:
    """Return the directory that the URL of a table's location names.

    Raises:
        NotOfferedError: The table lies in a bucket (definite).
    """
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        raise NotOfferedError(
            f"the table lies in a bucket, at {location[:200]}: this works on tables in directories "
            "only",
            hint="Spark SQL reads and writes it; docs/stores.md says what else does.",
            field="location",
            value=location[:200],
        )
    return Path(unquote(parts.path))


@dataclass(frozen=True, slots=True)
class DirectoryTwin(Twin):
    """A plain twin with the files of its table, by hard links."""

    table: Path
    directory: Path

    @property
    def path(self) -> str:
        return str(self.directory)

    def newest(self) -> int:
        return newest_commit(self.directory)

    def follow(self) -> None:
        if (now := newest_commit(self.table)) > self.newest():
            extend_plain_twin(self.table, now, self.directory)

    def own_version(self) -> int | None:
        return own_version(self.table, self.directory)

    def add_unchanged_version(self) -> None:
        add_unchanged_version(self.directory)

    def stage(self, version: int, last: int | None = None) -> TwinCommit:
        return stage_twin_commit(self.table, self.directory, version, last)

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class DirectoryTable(SharedTable):
    """A commit table in a directory."""

    directory: Path
    #: That of its reader table, None = there is none.
    readers: Path | None = None

    @property
    def path(self) -> str:
        return str(self.directory)

    def data(self, version: int) -> list[NeededFile]:
        return live_files(self.directory, version).data

    def twin(self, version: int, place: str, *, guarded: bool = False) -> DirectoryTwin:
        made = DirectoryTwin(self.directory, self.directory.parent / place / uuid.uuid4().hex)
        try:
            make_plain_twin(self.directory, version, made.directory, history=False, guarded=guarded)
        except BaseException:
            made.remove()
            raise
        return made

    def checkpointed(self, version: int) -> int:
        base = newest_of_twin(self.directory, version)
        return -1 if base is None else base.version

    def log_twin(self, version: int, place: str) -> DirectoryTwin:
        return self.twin(version, place)

    def take_checkpoint(self, twin: Twin, version: int) -> None:
        made = newest_of_twin(Path(twin.path), version)
        if made is None or made.version != version:
            raise CorruptLogError(f"Delta wrote no checkpoint in {twin.path}", path=twin.path)
        take_checkpoint(made, self.directory, with_feature)
        forget_taken(self.directory)

    def withdraw(self, commit: TwinCommit) -> None:
        withdraw_twin_commit(self.directory, commit)

    def unneeded(self, version: int, *, now_ms: int, keep_ms: int) -> OldFiles:
        found = unneeded_files(self.directory, version, now_ms=now_ms, keep_ms=keep_ms)
        if self.readers is not None:
            found.second_names = [
                self.readers / path.relative_to(self.directory) for path in found.paths
            ]
        return found

    def decided(self, version: int, *, now_ms: int) -> OldFiles:
        return decided_commits(self.directory, version, now_ms=now_ms)


@dataclass(frozen=True, slots=True)
class DirectoryTables(SharedTables):
    """The directory of all commit tables of a site; one job at a time keeps it in order."""

    root: Path
    #: That of the reader tables, None = there are none.
    reader_root: Path | None = None

    def table(self, name: str, location: str) -> DirectoryTable:
        readers = None if self.reader_root is None else self.reader_root.joinpath(*name.split("."))
        return DirectoryTable(directory_of(location), readers)

    def begin(self) -> None:
        shutil.rmtree(self.root / UPKEEP_TWINS, ignore_errors=True)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def unused(self, known: Collection[str], *, now_ms: int, dry_run: bool) -> list[str]:
        return [*map(str, unused_directories(self.root, known, now_ms=now_ms, dry_run=dry_run))]

    def remove_unused(self, places: Iterable[str]) -> None:
        for place in places:
            remove_directory(Path(place))

    def abandoned(self, *, now_ms: int) -> list[str]:
        return [*map(str, abandoned(self.root, now_ms=now_ms))]

    def remove_abandoned(self, places: Iterable[str]) -> None:
        remove_abandoned(map(Path, places))
