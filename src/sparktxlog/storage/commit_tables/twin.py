"""Plain twins of commit tables: what Delta refuses to do to a table that a catalog manages.

Delta compacts, vacuums and opens by path no table with the feature `catalogManaged`.  A plain twin
is a directory with the same data files, as hard links, and the same versions; only its protocol
does not name that feature.  All else stays: in-commit timestamps, row tracking, deletion vectors.
So a commit that Delta makes on the twin is, byte for byte, the one that a catalog's table needs as
its next version.

A twin has one user at a time.  It is of no more use once a version on it lost: sessions of Spark
keep what they read from a path, so the next attempt needs a twin at another path.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from sparktxlog.codec.delta_catalog.catalog_requests import ProposedCommit
from sparktxlog.codec.delta_catalog.merged_commits import merged_commits
from sparktxlog.delta.checkpoints import Checkpoint, newest_of_twin, take_checkpoint
from sparktxlog.delta.commit_contents import (
    CommitContent,
    LiveFiles,
    NeededFile,
    read_commit_file,
)
from sparktxlog.delta.commit_files import commit_bytes
from sparktxlog.delta.log_files import STAGED_COMMITS, commits_in, newest_commit
from sparktxlog.errors import CorruptLogError, InvalidRequestError, StorageError
from sparktxlog.files.durability import (
    create_file,
    link_new,
    read_whole,
    storing,
    sync_directory,
    sync_file,
    sync_parents,
    write_durably,
)
from sparktxlog.files.foreign_files import Linked
from sparktxlog.model.tables.commit_table import (
    COMMIT_LOG,
    REPLACE_HINT,
    REPLACES_NOTHING,
    commit_file_name,
)
from sparktxlog.storage.commit_tables.table_places import TablePlaces

#: The feature that a twin lacks, among those of readers and of writers.
CATALOG_MANAGED = "catalogManaged"
FEATURES = ("readerFeatures", "writerFeatures")
#: Makes Delta refuse CREATE OR REPLACE TABLE on a twin of a transaction.  By path it verifies the
#: columns, with what is noted of each, and then replaces nothing.  Delta takes away what has this
#: name among a column's metadata where it reads a schema: nobody sees or copies it.
_GUARD = "__supports_qualified_star"
_Fields = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinCommit:
    """A commit that was made on a twin, staged in the table's directory."""

    #: What a request says of it.
    proposed: ProposedCommit
    content: CommitContent
    #: Files that the table got with it: nothing else of the table names them.
    brought: tuple[str, ...] = field(default=(), compare=False)


def make_plain_twin(
    table: Path, version: int, twin: Path, *, history: bool = True, guarded: bool = False
) -> None:
    """Make a plain twin of a table at a version.

    A log that Delta has cleaned up begins with a checkpoint, and so does its twin.

    Args:
        table: The table's directory; all versions up to this one are published there.
        twin: A path that does not exist, best on the table's file system, below no other table.
        history: With all versions of the table; else only what the newest one needs.
        guarded: For statements of users: CREATE OR REPLACE TABLE, which would do nothing, fails.
            Its versions are not those of the table then (`own_version`).

    Raises:
        CorruptLogError: The directory lacks a version, or a file that the version needs.
        DiskFullError, StorageError: It exists, or is not whole; remove it.
    """
    with storing(twin):
        twin.mkdir(parents=True)
    begins = table / commit_file_name(0)
    base = None if history and begins.exists() else newest_of_twin(table, version)
    _extend(table, version, twin, base, changed=guarded_lines if guarded else without_feature)


def extend_plain_twin(table: Path, version: int, twin: Path) -> None:
    """Add the versions that a twin lacks, up to this one; after a crash, do it again.

    Raises:
        CorruptLogError: The twin has a version that is not the table's, or the table lacks a
            version or a file.
        DiskFullError, StorageError: Some versions may be added; try again.
    """
    _extend(table, version, twin, None, changed=without_feature)


def _extend(
    table: Path,
    version: int,
    twin: Path,
    base: Checkpoint | None,
    *,
    changed: Callable[[bytes], bytes],
) -> None:
    """Add versions; a twin that has none begins with a checkpoint, if there is one.

    Args:
        changed: Returns the lines that define the table, as the twin has them.
    """
    live = LiveFiles()
    with storing(twin):
        (twin / COMMIT_LOG).mkdir(exist_ok=True)
        first = _check_untouched(table, twin) + 1
        if base is not None:
            live.begin(base.adds())
            first = base.version + 1
        link_files(table, range(first, version + 1), twin, live)
        if base is not None:
            take_checkpoint(base, twin, changed)
            first = base.version  # Delta asks its commit file for the timestamp
        # Each version comes after its files, so what a crash leaves is a twin at an older version.
        for number in range(first, version + 1):
            name, raw = commit_file_name(number), commit_bytes(table, number)
            own = changed(raw)
            if create_file(twin / name, table / name if own == raw else own) is Linked.OTHER:
                raise _touched(number, table, twin)
        sync_directory(twin / COMMIT_LOG)


def link_files(table: Path, versions: range, target: Path, live: LiveFiles) -> None:
    """Give the files of versions second names in another directory, durably.

    Args:
        live: The files of the version before, which get names there too; brought to the last one.

    Raises:
        CorruptLogError: The directory lacks a version, or a file that the last one needs.
        OSError: The disk fails.
    """
    missing, linked = set[str](), list[Path]()

    def link(files: Iterable[NeededFile]) -> None:
        for file in files:
            try:
                link_new(table / file.path, target / file.path)
                linked.append(target / file.path)
            except FileNotFoundError:
                missing.add(file.path)

    link(live.needed.values())
    for number in versions:
        content = read_commit_file(commit_bytes(table, number))
        live.follow(content)
        link(content.files)
    # What no reader of the last version needs may be vacuumed.
    for path in missing & live.needed.keys():
        raise CorruptLogError(
            f"{table / path} is missing, and version {versions.stop - 1} needs it",
            hint="Copy it from another site: names are equal at all sites.",
            path=str(table / path),
        )
    sync_parents(linked, target)


def own_version(table: Path, twin: Path) -> int | None:
    """Return the first version that was made on a twin, None = all are the table's."""
    own = (version for version in commits_in(twin) if not _is_same(table, twin, version))
    return next(own, None)


def stage_twin_commit(table: Path, twin: Path, version: int, last: int | None = None) -> TwinCommit:
    """Stage a commit that was made on a twin in the table's directory, durably.

    Its new files become those of the table, too.  To do it again stages the same file: its UUID,
    which is the id of the transaction, follows from the content.  Nothing is a version until the
    node says so.

    Args:
        version: The twin's next one after those of the table.
        last: The twin's versions up to this one become one of the table.

    Raises:
        StagedCommitError: It is no commit for a table of a catalog (definite).
        InvalidRequestError: It replaces the table, or see `merged_commits` (definite).
        CorruptLogError: The twin has no such version, or the table another file of a name.
        DiskFullError, StorageError: It may be staged in part; try again.
    """
    with storing(twin):
        several = range(version, (version if last is None else last) + 1)
        raw, content = commit_of_versions([commit_bytes(twin, one) for one in several], version)
        sources = {file.path: str(twin / file.path) for file in content.files if file.is_new}
        for source in sources.values():
            sync_file(source)
        # A commit may add files again that the table has: its statistics, or marks of rows.
        brought = tuple(path for path in sources if not (table / path).exists())
    commit = staged_commit(version, raw, content, brought)
    path = table / STAGED_COMMITS / commit.proposed.file_name
    try:
        TablePlaces(table.parent).place(table.name, sources)
        with storing(path):
            write_durably(path, raw)
    except BaseException:  # nobody has asked for it
        with suppress(StorageError):
            withdraw_twin_commit(table, commit)
        raise
    return commit


def commit_of_versions(raws: Sequence[bytes], version: int) -> tuple[bytes, CommitContent]:
    """Return the commit file of a table that does what versions of its twin did, and what it says.

    Raises:
        StagedCommitError: It is no commit for a table of a catalog (definite).
        InvalidRequestError: It replaces the table, or see `merged_commits` (definite).
    """
    for one in raws:
        _check_not_replaced(one)
    raw = _unguarded(merged_commits(raws, version))
    content = read_commit_file(raw)
    if content.protocol is not None:
        raw = with_feature(raw)
        content = read_commit_file(raw)
    return raw, content


def staged_commit(
    version: int, raw: bytes, content: CommitContent, brought: tuple[str, ...]
) -> TwinCommit:
    """Return what a request says of a commit file; its UUID follows from the bytes."""
    own = uuid.UUID(bytes=blake2b(raw, digest_size=16).digest(), version=4)
    return TwinCommit(
        proposed=ProposedCommit(
            version=version,
            timestamp=content.timestamp,
            file_name=f"{version:020}.{own}.json",
            file_size=len(raw),
            file_modification_timestamp=content.timestamp,
        ),
        content=content,
        brought=brought,
    )


def _check_not_replaced(raw: bytes) -> None:
    """Refuse a version that gives the table other properties: it would lose those that it needs."""
    operation = str(json.loads(raw.splitlines()[0]).get("commitInfo", {}).get("operation"))
    if "REPLACE TABLE" in operation:
        raise InvalidRequestError(
            f"{operation} takes away the properties that a commit table needs",
            hint=REPLACE_HINT,
            field="operation",
            value=operation,
        )


def add_unchanged_version(twin: Path) -> None:
    """Add a version without changes to a twin: its committer has read the version before.

    Raises:
        CorruptLogError: The newest version cannot be found.
        DiskFullError, StorageError: It is not there.
    """
    newest = newest_commit(twin)
    with storing(twin):
        line = unchanged_version(newest, commit_bytes(twin, newest))
        write_durably(twin / commit_file_name(newest + 1), line)


def unchanged_version(newest: int, raw: bytes) -> bytes:
    """Return the commit file of a version without changes.

    Args:
        newest: The version before.
        raw: Its commit file.
    """
    now_ms = max(time.time_ns() // 1_000_000, read_commit_file(raw).timestamp + 1)
    info = {
        "inCommitTimestamp": now_ms,
        "timestamp": now_ms,
        "operation": "READ",
        "operationParameters": {},
        "readVersion": newest,
        "isolationLevel": "Serializable",
        "isBlindAppend": False,
        "txnId": str(uuid.uuid4()),
    }
    return json.dumps({"commitInfo": info}, separators=(",", ":")).encode() + b"\n"


def withdraw_twin_commit(table: Path, commit: TwinCommit) -> None:
    """Remove a staged commit that lost, and the files that the table got with it.

    Raises:
        StorageError: Some may be left; a vacuum removes them.
    """
    staged = table / STAGED_COMMITS / commit.proposed.file_name
    for path in (staged, *(table / brought for brought in commit.brought)):
        with storing(path):
            path.unlink(missing_ok=True)


def _check_untouched(table: Path, twin: Path) -> int:
    """Return the newest version of a twin; all its versions must be those of its table."""
    own = own_version(table, twin)
    if own is not None:
        raise _touched(own, table, twin)
    return newest_commit(twin)


def _is_same(table: Path, twin: Path, version: int) -> bool:
    """Return whether a version of a twin is that of its table."""
    ours, theirs = table / commit_file_name(version), twin / commit_file_name(version)
    try:
        return ours.samefile(theirs) or _plain(read_whole(ours)) == read_whole(theirs)
    except FileNotFoundError:
        return False


def _touched(version: int, table: Path, twin: Path) -> CorruptLogError:
    path = twin / commit_file_name(version)
    return CorruptLogError(
        f"version {version} in {twin} is not that of {table}: somebody wrote there",
        hint="Make the twin again, at another path.",
        path=str(path),
    )


def _plain(raw: bytes) -> bytes:
    return raw if read_commit_file(raw).protocol is None else without_feature(raw)


def without_feature(raw: bytes) -> bytes:
    """Return the lines of a table's log with a twin's protocol."""

    def lacking(features: list[str]) -> list[str]:
        return [name for name in features if name != CATALOG_MANAGED]

    return _with_protocol(raw, lacking)


def with_feature(raw: bytes) -> bytes:
    """Return the lines of a twin's log with the table's protocol."""
    return _with_protocol(raw, lambda features: sorted({*features, CATALOG_MANAGED}))


def guarded_lines(raw: bytes) -> bytes:
    """Return the lines of a table's log as the twin of a transaction has them."""
    return _with_metadata(without_feature(raw), lambda known: known | {_GUARD: REPLACES_NOTHING})


def _unguarded(raw: bytes) -> bytes:
    if _GUARD.encode() not in raw:
        return raw
    return _with_metadata(raw, lambda known: {k: v for k, v in known.items() if k != _GUARD})


def _with_metadata(raw: bytes, changed: Callable[[_Fields], _Fields]) -> bytes:
    """Return lines of a log with other metadata of the table's columns."""

    def metadata(given: _Fields) -> _Fields:
        schema = json.loads(given["schemaString"])
        for column in schema["fields"]:
            column["metadata"] = changed(column.get("metadata") or {})
        return given | {"schemaString": _dumped(schema)}

    return with_actions(raw, {"metaData": metadata})


def _with_protocol(raw: bytes, changed: Callable[[list[str]], list[str]]) -> bytes:
    def protocol(given: _Fields) -> _Fields:
        return given | {key: changed(given.get(key) or []) for key in FEATURES}

    return with_actions(raw, {"protocol": protocol})


def with_actions(raw: bytes, changes: Mapping[str, Callable[[_Fields], _Fields]]) -> bytes:
    """Return the lines of a log with other actions of some kinds; other lines stay as they are.

    Args:
        changes: Kind of action → function of its fields.
    """
    lines = []
    for line in raw.splitlines():
        # Most lines are of files, and long.
        action = json.loads(line) if any(kind.encode() in line for kind in changes) else {}
        if kinds := [kind for kind in changes if action.get(kind)]:
            action |= {kind: changes[kind](action[kind]) for kind in kinds}
            line = _dumped(action).encode()
        lines.append(line + b"\n")
    return b"".join(lines)


def _dumped(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
