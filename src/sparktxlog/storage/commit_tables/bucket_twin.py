"""Plain twins of commit tables in a bucket, which has no links.

    <root>/<UUID>/…                      the table
    <root>/<twin>/<log>/…                its newest version as a checkpoint, which names the table's
                                         files by their URLs; then the versions after it
    <root>/<twin>/…                      files that were written on the twin

What is committed on a twin names files of the table by URL, and new ones relative to the twin.  The
table's commit names all of them relative to the table; new ones are copied within the bucket.

Delta looks whether a version is there and then puts it, so it may overwrite one that the twin got
from its table meanwhile.  So a twin knows the bytes that it put, and compares them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from sparktxlog.delta.checkpoints import taken_name
from sparktxlog.delta.file_paths import path_in_log, path_of_file, vector_code, vector_path
from sparktxlog.delta.log_files import STAGED_COMMITS, commits_among
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import CorruptLogError, ObjectMissingError, StorageError
from sparktxlog.files.stores.store import Created, Store
from sparktxlog.files.stores.whole_files import in_parallel
from sparktxlog.model.tables.commit_table import COMMIT_LOG, commit_file_name
from sparktxlog.storage.commit_tables.shared_tables import Twin
from sparktxlog.storage.commit_tables.twin import (
    TwinCommit,
    commit_of_versions,
    staged_commit,
    unchanged_version,
    with_actions,
)

_LOG = COMMIT_LOG.rstrip("/")
_FILES = ("add", "remove", "cdc")
_Fields = dict[str, Any]


def url_in_log(url: str) -> str:
    """Return the URL of a table as logs name it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{path_in_log(parts.path)}"


def by_url(raw: bytes, table: str) -> bytes:
    """Return lines of a table's log with the URLs of its files.

    Args:
        table: URL of the table, as `url_in_log`.
    """

    def named(action: _Fields) -> _Fields:
        found = action | {"path": _absolute(action["path"], table)}
        vector = action.get("deletionVector")
        if vector and vector["storageType"] == "u":
            path = path_in_log(vector_path(vector["pathOrInlineDv"]))
            found["deletionVector"] = vector | {
                "storageType": "p",
                "pathOrInlineDv": f"{table}/{path}",
            }
        return found

    return with_actions(raw, dict.fromkeys(_FILES, named))


def by_path(raw: bytes, table: str) -> bytes:
    """Return lines of a twin's log with the paths of files relative to the table.

    Raises:
        CorruptLogError: They name a file of another table.
    """

    def named(action: _Fields) -> _Fields:
        found = action | {"path": _relative(action["path"], table)}
        vector = action.get("deletionVector")
        if vector and vector["storageType"] == "p":
            path = path_of_file(_relative(vector["pathOrInlineDv"], table))
            found["deletionVector"] = vector | {
                "storageType": "u",
                "pathOrInlineDv": vector_code(path),
            }
        return found

    return with_actions(raw, dict.fromkeys(_FILES, named))


def _is_url(path: str) -> bool:
    return "://" in path


def _absolute(path: str, table: str) -> str:
    return path if _is_url(path) else f"{table}/{path}"


def _relative(path: str, table: str) -> str:
    if not _is_url(path):
        return path
    if not path.startswith(f"{table}/"):
        raise CorruptLogError(
            f"a commit on a twin of {table} names {path[:200]!r}, which is not there", path=path
        )
    return path.removeprefix(f"{table}/")


def checkpoint_of(state: LogState) -> bytes:
    """Return a whole checkpoint, of version 2 and in one JSON file, of a version of a table.

    What was removed is left out.
    """

    def lines() -> Iterator[_Fields]:
        yield {"checkpointMetadata": {"version": state.version}}
        yield {"protocol": state.protocol}
        yield {"metaData": state.metadata}
        for app, number in state.transactions.items():
            yield {"txn": {"appId": app, "version": number}}
        for domain, said in state.domains.items():
            yield {"domainMetadata": {"domain": domain, "configuration": said, "removed": False}}
        for add in state.adds.values():
            yield {"add": add | {"dataChange": False}}

    return b"".join(
        json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
        for line in lines()
    )


@dataclass(slots=True)
class BucketTwin(Twin):
    """A plain twin that names the files of its table by URL.

    Args:
        store: Of all tables.
        table: Key of the table.
        key: Of the twin.
        changed: Returns the lines of the table's log, as the twin has them.
    """

    store: Store
    table: str
    key: str
    changed: Callable[[bytes], bytes]
    #: Version → what the twin got from its table.
    _got: dict[int, bytes] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return self.store.url_of(self.key)

    @property
    def _root(self) -> str:
        return url_in_log(self.store.url_of(self.table))

    def begin(self, state: LogState, raw: bytes) -> None:
        """Begin with a version of the table.

        Args:
            raw: Its commit file, which Delta asks for the timestamp.
        """
        version = state.version
        top = f"{self.key}/{COMMIT_LOG}{taken_name(version)}"
        self.store.create(top, self._as_here(checkpoint_of(state)))
        self._add(version, raw)

    def _as_here(self, raw: bytes) -> bytes:
        return by_url(self.changed(raw), self._root)

    def _add(self, version: int, raw: bytes) -> None:
        """Add a version of the table."""
        key, own = f"{self.key}/{commit_file_name(version)}", self._as_here(raw)
        if self.store.create(key, own) is Created.OTHER:
            url = self.store.url_of(key)
            raise CorruptLogError(
                f"{url} is not version {version} of its table: somebody wrote there",
                hint="Make the twin again, at another path.",
                path=url,
            )
        self._got[version] = own

    def newest(self) -> int:
        log = self.store.list(f"{self.key}/{_LOG}")
        return max(commits_among(found.key.rpartition("/")[2] for found in log), default=-1)

    def follow(self) -> None:
        while True:
            version = max(self._got) + 1
            try:
                raw = self.store.read(f"{self.table}/{commit_file_name(version)}")
            except ObjectMissingError:
                return
            self._add(version, raw)

    def own_version(self) -> int | None:
        versions = range(min(self._got), self.newest() + 1)
        return next((one for one in versions if self._commit(one) != self._got.get(one)), None)

    def _commit(self, version: int) -> bytes:
        key = f"{self.key}/{commit_file_name(version)}"
        try:
            return self.store.read(key)
        except ObjectMissingError:
            url = self.store.url_of(key)
            raise CorruptLogError(f"a twin has no version {version}: {url}", path=url) from None

    def add_unchanged_version(self) -> None:
        newest = self.newest()
        line = unchanged_version(newest, by_path(self._commit(newest), self._root))
        self.store.create(f"{self.key}/{commit_file_name(newest + 1)}", line)

    def stage(self, version: int, last: int | None = None) -> TwinCommit:
        several = range(version, (version if last is None else last) + 1)
        raws = [self._commit(one) for one in several]
        raw, content = commit_of_versions([by_path(one, self._root) for one in raws], version)
        here = {path for one in raws for path in _own_files(one)}
        brought = tuple(file.path for file in content.files if file.path in here)
        commit, taken = staged_commit(version, raw, content, brought), list[str]()
        try:
            self._copy(brought, taken)
            self.store.create(f"{self.table}/{STAGED_COMMITS}/{commit.proposed.file_name}", raw)
        except BaseException:  # nobody has asked for it
            with suppress(StorageError):
                self.store.remove(f"{self.table}/{path}" for path in taken)
            raise
        return commit

    def _copy(self, paths: Iterable[str], taken: list[str]) -> None:
        """Copy files that were written on the twin to the table; note those that were not there."""

        def copy(path: str) -> None:
            try:
                made = self.store.copy(f"{self.key}/{path}", f"{self.table}/{path}")
            except ObjectMissingError as error:
                url = self.store.url_of(f"{self.key}/{path}")
                said = f"{url} is missing, and a commit adds it"
                raise CorruptLogError(said, path=url) from error
            if made is Created.OTHER:
                url = self.store.url_of(f"{self.table}/{path}")
                raise CorruptLogError(f"{url} is another file than the commit adds", path=url)
            if made is Created.NEW:
                taken.append(path)

        in_parallel(copy, paths)

    def remove(self) -> None:
        with suppress(StorageError):
            self.store.remove([found.key for found in self.store.list(self.key)])


def _own_files(raw: bytes) -> set[str]:
    """Return the files that a commit on a twin names relative to that."""
    found = set[str]()

    def noted(action: _Fields) -> _Fields:
        if not _is_url(action["path"]):
            found.add(path_of_file(action["path"]))
        vector = action.get("deletionVector")
        if vector and vector["storageType"] == "u":
            found.add(vector_path(vector["pathOrInlineDv"]))
        return action

    with_actions(raw, dict.fromkeys(_FILES, noted))
    return found
