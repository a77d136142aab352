"""Copies the checkpoint directory of a streaming query of Spark, so that it goes on elsewhere.

A checkpoint has the query's id in `metadata`, what each batch reads in `offsets/<batch>`, and which
batches are done in `commits/<batch>`; state is next to them.  Names in it are relative.  Offsets of
a commit table and positions of the log mean the same at every site.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sparktxlog.errors import InvalidRequestError, LockedError
from sparktxlog.files.durability import move_durably, storage_error, sync_directory, sync_file
from sparktxlog.model.tables.commit_table import commit_file_name

#: Path below the checkpoint → inode, bytes and time of change, of each file.
_Listing = dict[str, tuple[int, int, int]]


class _Query(msgspec.Struct):
    id: str


class _Batch(msgspec.Struct, rename="camel"):
    app_id: str
    version: int


class _BatchLine(msgspec.Struct):
    txn: _Batch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCopy:
    """A checkpoint that was copied."""

    #: Of the query; sinks know its batches by this id.
    query_id: str
    #: The last batch whose end the checkpoint knows, None = none.
    done: int | None
    #: The batch that was begun and may not be done: the query runs it again, None = none.
    begun: int | None
    files: int
    size_bytes: int

    def to_document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def copy_checkpoint(
    source: Path, target: Path, last_written: Callable[[str], int | None] = lambda _: None
) -> CheckpointCopy:
    """Copy a checkpoint: `target` is not there, or it is whole and on the disk.

    Args:
        source: The checkpoint of a query that was stopped.
        target: A directory that does not exist.
        last_written: Returns the last batch of the query that its sink has, by the query's id;
            None = it has none, or nobody knows.

    Raises:
        InvalidRequestError: `source` is no checkpoint, or an old one, or `target` exists
            (definite).
        LockedError: The checkpoint changed meanwhile: the query runs (definite).
        DiskFullError, StorageError: Nothing was copied.
    """
    source, target = source.absolute(), target.absolute()
    if os.path.lexists(target):
        raise InvalidRequestError(
            f"{target} exists already",
            hint="Name a new directory; a checkpoint is never written over another one.",
            field="TO",
            value=str(target),
        )
    if target.is_relative_to(source):
        raise InvalidRequestError(
            f"{target} is inside the checkpoint {source}", field="TO", value=str(target)
        )
    copying = target.with_name(f".{target.name}.{uuid.uuid4().hex}.copying")
    try:
        before = _listing(source)
        found = _read(source, before)
        _check_newest(source, found, last_written(found.query_id))
        target.parent.mkdir(parents=True, exist_ok=True)
        _copy(source, copying, before)
        if _listing(source) != before:
            raise _running(source)
        move_durably(copying, target)  # fails if somebody made another one with files in it
    except FileNotFoundError as error:
        raise _running(source) from error
    except OSError as error:
        raise storage_error(error, target) from error
    finally:
        shutil.rmtree(copying, ignore_errors=True)
    return found


def last_batch_in(table: Path, version: int, query_id: str) -> int | None:
    """Return the last batch of a query that a commit table has, as far back as its log goes.

    Args:
        table: The table's directory.
        version: Its newest version.
        query_id: Of the query.

    Raises:
        StorageError: A commit file cannot be read.
    """
    wanted = query_id.encode()
    for number in range(version, -1, -1):
        path = table / commit_file_name(number)
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(error, path) from error
        for line in raw.splitlines() if wanted in raw else ():
            batch = msgspec.json.decode(line, type=_BatchLine).txn
            if batch is not None and batch.app_id == query_id:
                return batch.version
    return None


def _check_newest(source: Path, found: CheckpointCopy, written: int | None) -> None:
    """Refuse an old checkpoint: the sink skips batches that it has, whatever is in them now."""
    last = found.done if found.begun is None else found.begun
    if written is not None and written > (-1 if last is None else last):
        raise InvalidRequestError(
            f"checkpoint {source} ends at batch {'none' if last is None else last}, and the sink "
            f"has batch {written} of the query: rows would be left out",
            hint="Copy the newest checkpoint.  If it is lost, begin with a new checkpoint, and "
            "write so that rows may come twice, for example by MERGE.",
            field="FROM",
            value=str(source),
        )


def _listing(source: Path) -> _Listing:
    found: _Listing = {}
    for directory, _, names in os.walk(source, followlinks=True):
        for name in names:
            path = Path(directory, name)
            status = path.stat()
            key = (status.st_ino, status.st_size, status.st_mtime_ns)
            found[str(path.relative_to(source))] = key
    return found


def _read(source: Path, listing: _Listing) -> CheckpointCopy:
    """Return what a checkpoint says.

    Raises:
        InvalidRequestError: It is none, or its batches do not fit together (definite).
    """
    if "metadata" not in listing:
        raise _no_checkpoint(source, "has no file 'metadata'")
    try:
        query = msgspec.json.decode((source / "metadata").read_bytes(), type=_Query)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise _no_checkpoint(source, f"has a 'metadata' that cannot be read: {error}") from error
    last_begun, done = _last(listing, "offsets"), _last(listing, "commits")
    if last_begun not in (done, 0 if done is None else done + 1):
        raise _no_checkpoint(
            source, f"knows batch {last_begun} as the last one begun, {done} as the last one done"
        )
    return CheckpointCopy(
        query_id=query.id,
        done=done,
        begun=None if last_begun == done else last_begun,
        files=len(listing),
        size_bytes=sum(size for _, size, _ in listing.values()),
    )


def _last(listing: _Listing, folder: str) -> int | None:
    """Return the last batch of a folder, which has a file for each."""
    names = [path.removeprefix(f"{folder}/") for path in listing if path.startswith(f"{folder}/")]
    return max((int(name) for name in names if name.isdecimal()), default=None)


def _copy(source: Path, target: Path, listing: _Listing) -> None:
    """Copy files, and bring them and their names to the disk."""
    target.mkdir()
    directories = {target}
    for relative in listing:
        path = target / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / relative, path)
        sync_file(path)
        directories.update(parent for parent in path.parents if parent.is_relative_to(target))
    for directory in directories:
        sync_directory(directory)


def _no_checkpoint(source: Path, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{source} is no checkpoint of a streaming query that can be copied: it {problem}",
        hint="Name the directory that the query has as checkpointLocation.",
        field="FROM",
        value=str(source),
    )


def _running(source: Path) -> LockedError:
    return LockedError(
        f"checkpoint {source} changed while it was copied: its query runs",
        hint="Stop the query, then copy: two queries with one checkpoint lose rows.",
        path=str(source),
    )
