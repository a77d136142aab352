"""Commit tables in a bucket, as jobs of their site reach them: by credentials of the job's own.

    <root>/<UUID>/…                    the tables
    <root>/.twins/…, .transactions/…   plain twins of jobs
    <root>/.unused/<UUID>              since when a place has no table

The log of a table is read on this machine, from copies of the files that a version needs.
No lock is held: a job keeps to twins of its own, and what it removes nobody needs.  A bucket knows
of an object only when it was put there, which is later than its bytes are old.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparktxlog.delta.checkpoints import (
    Checkpoint,
    forget_taken,
    newest_checkpoint,
    newest_of_twin,
    taken_name,
)
from sparktxlog.delta.commit_contents import NeededFile, read_commit_file
from sparktxlog.delta.commit_files import commit_bytes
from sparktxlog.delta.file_paths import may_be_data
from sparktxlog.delta.live_files import live_files
from sparktxlog.delta.log_files import (
    LAST_CHECKPOINT,
    STAGED_COMMITS,
    commits_among,
    is_of_checkpoint,
    whole_checkpoints,
)
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import CorruptLogError, NotOfferedError, ObjectMissingError
from sparktxlog.files.durability import storing, write_at_once
from sparktxlog.files.stores.part import PartOfStore
from sparktxlog.files.stores.store import Found, Store, earlier_clock
from sparktxlog.files.stores.whole_files import in_parallel
from sparktxlog.model.tables.commit_table import COMMIT_LOG, UUID_NAME, commit_file_name
from sparktxlog.storage.commit_tables.bucket_twin import BucketTwin
from sparktxlog.storage.commit_tables.shared_tables import (
    UPKEEP_TWINS,
    SharedTable,
    SharedTables,
    Twin,
)
from sparktxlog.storage.commit_tables.table_places import GIVEN, KEPT_COMMITS, TRANSACTION_TWINS
from sparktxlog.storage.commit_tables.table_sweep import (
    NAME_AGE_MS,
    STAGED_AGE_MS,
    STAGED_NAME,
    UNUSED_AGE_MS,
    needed_since,
)
from sparktxlog.storage.commit_tables.twin import (
    TwinCommit,
    guarded_lines,
    with_feature,
    without_feature,
)

_LOG = COMMIT_LOG.rstrip("/")
_UNUSED = ".unused"
#: So many checkpoints of a table are copied: the newest one may be damaged.
_CHECKPOINTS = 2
#: So many commits are copied before it is looked whether older ones are needed.
_COMMITS_AT_ONCE = 64


class LogCopy:
    """What was asked for of a table's log, as files of this machine, until nobody uses it.

    Args:
        store: Of all tables.
        table: Key of the table.
    """

    def __init__(self, store: Store, table: str) -> None:
        self._store, self._table = store, table
        self.directory = Path(tempfile.mkdtemp(prefix="sparktxlog-log-"))
        weakref.finalize(self, shutil.rmtree, self.directory, ignore_errors=True)
        (self.directory / COMMIT_LOG).mkdir()

    def paths(self) -> set[str]:
        """Return the paths below the table of all files in its log now."""
        found = self._store.list(f"{self._table}/{_LOG}")
        return {one.key.removeprefix(f"{self._table}/") for one in found}

    def upto(self, version: int) -> Path:
        """Return a directory with what a version needs, and with the commit of its checkpoint.

        Raises:
            CorruptLogError: The log lacks a commit.
        """
        paths = self.paths()
        tops = [f"{COMMIT_LOG}{top}" for top in _tops(paths, version)]
        self.take(tops)
        self.take(self.sidecars(tops, paths))
        base = newest_checkpoint(self.directory, version)
        first = 0 if base is None else base.version
        self.take_commits(range(first, version + 1), paths)
        return self.directory

    def back_to(self, version: int, cutoff: int) -> Path:
        """Return a directory as `upto`, also with all commits that came after a time.

        Args:
            cutoff: Milliseconds since 1970 UTC.
        """
        self.upto(version)
        paths = self.paths()
        known = commits_among(path.removeprefix(COMMIT_LOG) for path in paths)
        numbers, taken = [number for number in known if number <= version], version + 1
        for end in range(len(numbers), 0, -_COMMITS_AT_ONCE):
            first = numbers[max(0, end - _COMMITS_AT_ONCE)]
            self.take_commits(range(first, taken), paths)
            taken = first
            if read_commit_file(commit_bytes(self.directory, first)).timestamp <= cutoff:
                break
        return self.directory

    def take_commits(self, versions: range, paths: Collection[str]) -> None:
        """Copy the commits of versions; `paths` has what there is.

        Raises:
            CorruptLogError: One is missing.
        """
        names = [commit_file_name(version) for version in versions]
        for name in names:
            if name not in paths:
                self._missing(name)
        self.take(names)

    def take(self, paths: Iterable[str]) -> None:
        """Copy files that are not here yet; those of a log do not change.

        Raises:
            CorruptLogError: One is gone.
        """
        in_parallel(self._take, [path for path in paths if not (self.directory / path).exists()])

    def _take(self, path: str) -> None:
        target = self.directory / path
        with storing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                content = self._store.open(f"{self._table}/{path}")
            except ObjectMissingError:
                self._missing(path)
            write_at_once(target, content.pieces)

    def _missing(self, path: str) -> None:
        url = self._store.url_of(f"{self._table}/{path}")
        raise CorruptLogError(
            f"{url} is missing",
            hint="`sparktxlog verify --table NAME` says what else is; `sparktxlog repair NAME` "
            "gets it from another site.",
            path=url,
        )

    def sidecars(self, tops: Iterable[str], paths: Collection[str]) -> set[str]:
        """Return the sidecars among paths that checkpoints name by their files at the top.

        Those at the top were taken; one that is Parquet may name any.
        """
        known = {path for path in paths if is_of_checkpoint(path) and path.count("/") > 1}
        named = set[str]()
        for top in tops:
            if not top.endswith(".json"):
                return known
            with storing(self.directory / top):
                lines = map(json.loads, (self.directory / top).read_bytes().splitlines())
            named |= {line["sidecar"]["path"] for line in lines if line.get("sidecar")}
        return {path for path in known if path.rpartition("/")[2] in named}


def _tops(paths: Collection[str], version: int) -> list[str]:
    """Return the names of the newest checkpoints of a version or before."""
    names = [path.removeprefix(COMMIT_LOG) for path in paths if path.count("/") == 1]
    whole = whole_checkpoints(names, version)[-_CHECKPOINTS:]
    return [part for _, parts in whole for part in parts]


@dataclass(slots=True)
class OldObjects:
    """Objects of a bucket that are not needed."""

    store: Store
    found: list[Found] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.found)

    @property
    def size_bytes(self) -> int:
        """Their bytes."""
        return sum(one.size_bytes for one in self.found)

    def remove(self) -> None:
        """Remove them, as `Store.remove`."""
        self.store.remove([one.key for one in self.found])


class BucketTable(SharedTable):
    """A commit table in a bucket.

    Args:
        store: Of all tables.
        table: Its key.
    """

    def __init__(self, store: Store, table: str) -> None:
        self._store, self._table = store, table
        self._log = LogCopy(store, table)

    @property
    def path(self) -> str:
        return self._store.url_of(self._table)

    def data(self, version: int) -> list[NeededFile]:
        return live_files(self._log.upto(version), version).data

    # -- twins -------------------------------------------------------------------------------------

    def twin(self, version: int, place: str, *, guarded: bool = False) -> BucketTwin:
        log = self._log.upto(version)
        changed = guarded_lines if guarded else without_feature
        twin = self._fresh(place, changed)
        try:
            twin.begin(LogState.read(log, version), commit_bytes(log, version))
        except BaseException:
            twin.remove()
            raise
        return twin

    def _fresh(self, place: str, changed: Callable[[bytes], bytes]) -> BucketTwin:
        return BucketTwin(self._store, self._table, f"{place}/{uuid.uuid4().hex}", changed)

    def withdraw(self, commit: TwinCommit) -> None:
        staged = f"{STAGED_COMMITS}/{commit.proposed.file_name}"
        self._store.remove(f"{self._table}/{path}" for path in (staged, *commit.brought))

    # -- checkpoints -------------------------------------------------------------------------------

    def checkpointed(self, version: int) -> int:
        base = newest_of_twin(self._log.upto(version), version)
        return -1 if base is None else base.version

    def log_twin(self, version: int, place: str) -> BucketTwin:
        log = self._log.upto(version)
        base, twin = newest_of_twin(log, version), self._fresh(place, without_feature)
        first = 0 if base is None else base.version
        self._log.take_commits(range(first, version + 1), self._log.paths())
        try:
            if base is not None:
                self._copy_sidecars(base, self._table, twin.key)
                self._store.create(f"{twin.key}/{base.tops[0]}", without_feature(base.read_top()))
            for number in range(first, version + 1):
                raw = without_feature(commit_bytes(log, number))
                self._store.create(f"{twin.key}/{commit_file_name(number)}", raw)
        except BaseException:
            twin.remove()
            raise
        return twin

    def _copy_sidecars(self, taken: Checkpoint, source: str, target: str) -> None:
        in_parallel(
            lambda path: self._store.copy(f"{source}/{path}", f"{target}/{path}"), taken.sidecars
        )

    def take_checkpoint(self, twin: Twin, version: int) -> None:
        assert isinstance(twin, BucketTwin)
        copy = LogCopy(self._store, twin.key)
        made = newest_of_twin(copy.upto(version), version)
        if made is None or made.version != version:
            raise CorruptLogError(f"Delta wrote no checkpoint in {twin.path}", path=twin.path)
        self._copy_sidecars(made, twin.key, self._table)
        key = f"{self._table}/{COMMIT_LOG}{taken_name(version)}"
        self._store.create(key, with_feature(made.read_top()))
        said = self._last(twin.key)
        if self._last(self._table).get("version", -1) < version == said.get("version"):
            # Else it names files of the twin.
            last = {"version": version, "size": said.get("size", 0)}
            key = f"{self._table}/{COMMIT_LOG}{LAST_CHECKPOINT}"
            self._store.replace(key, json.dumps(last).encode())
        forget_taken(PartOfStore(self._store, self._table))

    def _last(self, key: str) -> dict[str, Any]:
        """Return what a log says of its newest checkpoint; empty = nothing."""
        with suppress(ObjectMissingError, ValueError):
            said = json.loads(self._store.read(f"{key}/{COMMIT_LOG}{LAST_CHECKPOINT}"))
            return said if isinstance(said, dict) else {}
        return {}

    # -- what is old -------------------------------------------------------------------------------

    def unneeded(self, version: int, *, now_ms: int, keep_ms: int) -> OldObjects:
        cutoff = now_ms - keep_ms
        # What is put there after this list is young.
        there = list(self._store.list(self._table))
        log = self._log.back_to(version, cutoff)
        paths = {one.key.removeprefix(f"{self._table}/"): one for one in there}
        staged = {path for path in self._log.paths() if path.startswith(f"{STAGED_COMMITS}/")}
        self._log.take(path for path in staged if _staged_version(path) > version)
        needed = needed_since(log, version, cutoff)
        before = min(cutoff, now_ms - NAME_AGE_MS)
        return OldObjects(
            self._store,
            [
                one
                for path, one in paths.items()
                if may_be_data(path, changes=True)
                and path not in needed
                and one.changed_s * 1_000 < before
            ],
        )

    def decided(self, version: int, *, now_ms: int) -> OldObjects:
        before = now_ms - STAGED_AGE_MS
        return OldObjects(
            self._store,
            [
                one
                for one in self._store.list(f"{self._table}/{STAGED_COMMITS}")
                if 0 <= _staged_version(one.key) <= version and one.changed_s * 1_000 < before
            ],
        )


def _staged_version(path: str) -> int:
    """Return the version of a staged commit, -1 = it is none."""
    match = STAGED_NAME.fullmatch(path.rpartition("/")[2])
    return int(match[1]) if match else -1


@dataclass(frozen=True, slots=True)
class BucketTables(SharedTables):
    """The prefix of all commit tables of a site."""

    store: Store

    def table(self, name: str, location: str) -> BucketTable:
        # Hadoop's name for the same scheme.
        parent, _, key = location.replace("s3a://", "s3://", 1).rstrip("/").rpartition("/")
        if parent != self.store.url:
            raise NotOfferedError(
                f"{name} lies at {location[:200]}, not in {self.store.url}",
                hint="Run this at the site of its node.",
                field="location",
                value=location[:200],
            )
        return BucketTable(self.store, key)

    def begin(self) -> None:
        pass  # another job may run; what a killed one left is swept when it is old

    def now_ms(self) -> int:
        # Old is what the bucket says: its clock and this one may differ.
        return int(earlier_clock(self.store, f"{UPKEEP_TWINS}/{uuid.uuid4().hex}/clock") * 1_000)

    def unused(self, known: Collection[str], *, now_ms: int, dry_run: bool) -> list[str]:
        marks = {one.key.rpartition("/")[2]: one for one in self.store.list(_UNUSED)}
        there = {one.key.partition("/")[0] for one in self.store.list()}
        there |= {one.key.rpartition("/")[2] for one in self.store.list(GIVEN)}
        found = list[str]()
        for place in sorted(filter(UUID_NAME.fullmatch, there)):
            mark = marks.get(place)
            if place in known:
                self.store.remove([f"{_UNUSED}/{place}"] if mark else [])
            elif mark is not None:
                if mark.changed_s * 1_000 < now_ms - UNUSED_AGE_MS:
                    found.append(self.store.url_of(place))
            elif not dry_run:
                self.store.create(f"{_UNUSED}/{place}", b"")
        return found

    def remove_unused(self, places: Iterable[str]) -> None:
        for place in places:
            uuid_ = place.rpartition("/")[2]
            for prefix in (uuid_, f"{KEPT_COMMITS}/{uuid_}"):
                self.store.remove([one.key for one in self.store.list(prefix)])
            self.store.remove([f"{GIVEN}/{uuid_}", f"{_UNUSED}/{uuid_}"])

    def abandoned(self, *, now_ms: int) -> list[str]:
        newest = dict[str, float]()
        for place in (UPKEEP_TWINS, TRANSACTION_TWINS):
            for one in self.store.list(place):
                twin = "/".join(one.key.split("/")[:2])
                newest[twin] = max(newest.get(twin, 0.0), one.changed_s)
        before = (now_ms - UNUSED_AGE_MS) / 1_000
        return sorted(self.store.url_of(twin) for twin, at in newest.items() if at < before)

    def remove_abandoned(self, places: Iterable[str]) -> None:
        for place in places:
            key = place.removeprefix(f"{self.store.url}/")
            self.store.remove([one.key for one in self.store.list(key)])
