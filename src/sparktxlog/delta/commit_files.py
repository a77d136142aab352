"""Commits: written by hand, read as their actions, and torn ones found.

A writer of a log creates the file of the next version; if two do, the file system lets one of them.
Nobody else calls fsync: neither Spark nor delta-rs.  So after a power cut the newest versions may
be torn, the file itself or one that it adds.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparktxlog.delta.file_paths import files_of, path_of_file
from sparktxlog.delta.log_files import TablePlace, store_of
from sparktxlog.errors import CorruptLogError, ObjectMissingError
from sparktxlog.files.stores.store import Created
from sparktxlog.model.tables.commit_table import commit_file_name

#: Ends of a file with a footer that can be read, and of one whose footer is encrypted.
_PLAIN, _ENCRYPTED = b"PAR1", b"PARE"


def commit_by_hand(
    table: TablePlace,
    version: int,
    info: dict[str, Any],
    user_metadata: str,
    actions: Iterable[dict[str, Any]],
) -> None:
    """Write a version's file durably, unless there is one already.

    To do it again after a failure, with the same actions, is no error.

    **After calling**, on a disk, sync the directories of the files that the version adds.

    Raises:
        FileExistsError: Somebody else committed that version (definite: nothing was written).
        StorageError: As `Store.create`; unless it is definite, the version may be there.
    """
    store, key = store_of(table), commit_file_name(version)
    said = info | {"engineInfo": "sparktxlog", "userMetadata": user_metadata}
    lines = (json.dumps(line, separators=(",", ":")) for line in ({"commitInfo": said}, *actions))
    content = "".join(f"{line}\n" for line in lines).encode()
    if store.create(key, content) is Created.OTHER:
        url = store.url_of(key)
        raise FileExistsError(errno.EEXIST, "somebody else committed this version", url)


def commit_bytes(table: TablePlace, version: int) -> bytes:
    """Return the commit file of a version.

    Raises:
        CorruptLogError: There is none.
        StorageError: As `Store`, or it is no plain file.
    """
    store, key = store_of(table), commit_file_name(version)
    try:
        return store.read(key)
    except ObjectMissingError:
        name, url = key.rpartition("/")[2], store.url_of(key)
        raise CorruptLogError(
            f"{store.url} has no version {version}: {name} is missing", path=url
        ) from None


def read_actions(table: TablePlace, version: int) -> list[dict[str, Any]] | None:
    """Return the actions of a commit, None if its file is torn or has a line that is none.

    Raises:
        CorruptLogError, StorageError: As `commit_bytes`.
    """
    content = commit_bytes(table, version)
    try:
        actions = [json.loads(line) for line in content.splitlines() if line.strip()]
    except ValueError:
        return None
    return actions if actions and all(map(_is_action, actions)) else None


def files_of_commit(table: TablePlace, version: int) -> set[str]:
    """Return the files that a commit adds or removes, of change data too; paths below the table.

    Raises:
        CorruptLogError: It is missing or cannot be read, so that nobody knows.
        StorageError: As `commit_bytes`.
    """
    actions = read_actions(table, version)
    if actions is None:
        url = store_of(table).url_of(commit_file_name(version))
        raise CorruptLogError(
            f"{url} is damaged: nothing is removed",
            hint="Repair the table: sparktxlog repair, with its name.",
            path=url,
        )
    found = set[str]()
    for action in actions:
        for kind in ("add", "remove"):
            if kind in action:
                found.update(files_of(action[kind]))
        if "cdc" in action:
            found.add(path_of_file(action["cdc"]["path"]))
    return found


def _is_action(line: object) -> bool:
    return isinstance(line, dict) and all(isinstance(said, dict) for said in line.values())


def lowest_torn(table: Path, versions: Sequence[int]) -> int | None:
    """Return the lowest version that is torn, or that adds a file which is; None = all are whole.

    Args:
        versions: Those that may be torn, ascending; they are there.

    Raises:
        OSError: A file cannot be read now, which says nothing about it.
    """
    lowest, removed = None, set[str]()
    for version in reversed(versions):
        actions = read_actions(table, version)
        if actions is None:
            lowest = version
            continue
        adds = [action["add"] for action in actions if "add" in action]
        # Files that a later version replaced may already be deleted.
        if not all(add["path"] in removed or _is_whole(table, add) for add in adds):
            lowest = version
        removed |= {action["remove"]["path"] for action in actions if "remove" in action}
    return lowest


def _is_whole(table: Path, add: dict[str, Any]) -> bool:
    data, *vectors = files_of(add)
    try:
        with open(table / data, "rb") as file:
            if file.seek(0, os.SEEK_END) != add["size"]:
                return False
            if data.endswith(".parquet"):
                file.seek(max(0, add["size"] - 4))
                end = file.read(4)
                if end not in (_PLAIN, _ENCRYPTED):
                    return False
                if end == _PLAIN:
                    pq.read_metadata(file)
        vector = add.get("deletionVector") or {}
        needed = int(vector.get("offset") or 0) + int(vector.get("sizeInBytes") or 0)
        return all((table / name).stat().st_size >= needed for name in vectors)
    except (FileNotFoundError, pa.ArrowException):
        return False
    except OSError as error:
        if error.errno is not None:
            raise
        return False  # Arrow cannot decode the footer
