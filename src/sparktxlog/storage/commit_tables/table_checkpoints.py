"""Checkpoints in the logs of commit tables and of their twins: Delta writes them, nobody else.

Delta keeps the state of such a table as one JSON file, with protocol and metadata, and Parquet
files beside it, the *sidecars*, with its files.  So a checkpoint of a twin is one of the table as
soon as its JSON file has the table's protocol.  A checkpoint is local to a site; it changes nothing
that a reader sees, only how many commit files it has to read.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sparktxlog.delta.commit_contents import LiveFiles, read_commit_file
from sparktxlog.errors import CorruptLogError
from sparktxlog.model.commit_table import COMMIT_LOG, commit_file_name
from sparktxlog.storage.durability import (
    link_or_copy,
    read_whole,
    storing,
    sync_directory,
    sync_file,
    write_durably,
)
from sparktxlog.storage.foreign_files import foreign_file

_TOP = re.compile(r"([0-9]{20})\.checkpoint\.[0-9a-f-]{36}\.json")
#: How the UUID in the name of a checkpoint begins that was taken from a twin.
_TAKEN = "00000000-0000-4000-8000-"
_SIDECARS, _LAST = "_sidecars", "_last_checkpoint"
_ADDED = ("path", "size", "deletionVector", "clusteringProvider")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCheckpoint:
    """A whole checkpoint."""

    path: Path
    version: int
    sidecars: tuple[Path, ...]

    def adds(self) -> Iterator[dict[str, Any]]:
        """Yield the `add` actions of the version, with the keys that say which files it needs."""
        yield from self._actions("add", _ADDED)

    def removed_after(self, timestamp: int) -> Iterator[dict[str, Any]]:
        """Yield the `remove` actions of versions that were committed later, in milliseconds."""
        for action in self._actions("remove", ("path", "deletionVector", "deletionTimestamp")):
            if (action.get("deletionTimestamp") or 0) > timestamp:
                yield action

    def _actions(self, kind: str, keys: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        for sidecar in self.sidecars:
            with storing(sidecar), _opened(sidecar) as file:
                rows = pq.ParquetFile(file)
                if kind not in rows.schema_arrow.names:
                    continue
                for batch in rows.iter_batches(columns=[kind]):
                    found = batch.column(kind)
                    known = [key for key in keys if found.type.get_field_index(key) >= 0]
                    parts = [found.field(key) for key in known]
                    table = pa.Table.from_arrays(parts, known)
                    yield from (row for row in table.to_pylist() if row["path"] is not None)


class _Sidecar(msgspec.Struct):
    path: str


class _Line(msgspec.Struct):
    sidecar: _Sidecar | None = None


def newest_checkpoint(table: Path, version: int) -> TableCheckpoint | None:
    """Return the newest checkpoint at a version or before, None = there is none that is whole."""
    log = table / COMMIT_LOG
    matches = [_TOP.fullmatch(path.name) for path in log.iterdir()] if log.is_dir() else []
    names = sorted(match[0] for match in matches if match and int(match[1]) <= version)
    for name in reversed(names):
        found = _read(log / name)
        if all(map(_is_there, found.sidecars)):
            return found
    return None


def _read(path: Path) -> TableCheckpoint:
    with storing(path):
        lines = foreign_file(_table_of(path), path).read().splitlines()
    try:
        found = [msgspec.json.decode(line, type=_Line).sidecar for line in lines]
    except msgspec.MsgspecError as error:
        raise CorruptLogError(f"{path} cannot be read: {error}", path=str(path)) from error
    return TableCheckpoint(
        path=path,
        version=int(path.name[:20]),
        sidecars=tuple(path.parent / _SIDECARS / one.path for one in found if one is not None),
    )


def _opened(sidecar: Path) -> FileIO:
    """Open a sidecar; sessions of others write them."""
    return foreign_file(_table_of(sidecar.parent), sidecar).open()


def _is_there(sidecar: Path) -> bool:
    """Return whether there is a sidecar that can be taken: a plain file in its directory."""
    try:
        _opened(sidecar).close()
    except (OSError, ValueError):  # elsewhere
        return False
    return sidecar.parent.name == _SIDECARS and ".." not in sidecar.parts


def _table_of(path: Path) -> Path:
    """Return the table's directory of a file in its log."""
    return path.parent.parent


def take_checkpoint(
    found: TableCheckpoint, target: Path, changed: Callable[[bytes], bytes]
) -> None:
    """Give a table a checkpoint of its twin, or the other way round, durably.

    Args:
        target: The directory that gets it.
        changed: Returns the JSON lines with the other one's protocol.
    """
    log = target / COMMIT_LOG
    with storing(log):
        (log / _SIDECARS).mkdir(parents=True, exist_ok=True)
        size = 0
        for sidecar in found.sidecars:
            with _opened(sidecar) as file:
                size += pq.read_metadata(file).num_rows
            sync_file(sidecar)
            link_or_copy(sidecar, log / _SIDECARS / sidecar.name)
        sync_directory(log / _SIDECARS)
        raw = changed(read_whole(found.path))
        name = f"{found.version:020}.checkpoint.{_TAKEN}{uuid.uuid4().hex[:12]}.json"
        write_durably(log / name, raw)
        if _last(log) < found.version:
            # Hadoop compares a file with the checksum that it wrote beside it.
            (log / f".{_LAST}.crc").unlink(missing_ok=True)
            said = {"version": found.version, "size": size + len(raw.splitlines())}
            write_durably(log / _LAST, msgspec.json.encode(said))


def forget_taken(table: Path) -> None:
    """Remove all but the two newest checkpoints that were taken; Delta's own are its to remove.

    Somebody may be about to read the one before the newest.

    Raises:
        CorruptLogError, StorageError: Some may be left; try again.
    """
    log = table / COMMIT_LOG
    with storing(log):
        for path in sorted(log.glob(f"*.checkpoint.{_TAKEN}*.json"))[:-2]:
            sidecars = _read(path).sidecars
            path.unlink()
            for sidecar in sidecars:
                sidecar.unlink(missing_ok=True)


class _LastCheckpoint(msgspec.Struct):
    version: int


def _last(log: Path) -> int:
    """Return the version of the newest checkpoint that the log names, -1 = none."""
    try:
        found = msgspec.json.decode(read_whole(log / _LAST), type=_LastCheckpoint)
    except (FileNotFoundError, msgspec.MsgspecError):
        return -1
    return found.version


def live_files_at(table: Path, version: int) -> LiveFiles:
    """Return the files that readers of a version need, from the newest checkpoint on.

    Raises:
        CorruptLogError: The directory lacks a version.
        StagedCommitError: A version cannot be read (definite).
    """
    live, base = LiveFiles(), newest_checkpoint(table, version)
    if base is not None:
        live.begin(base.adds())
    for number in range(0 if base is None else base.version + 1, version + 1):
        path = table / commit_file_name(number)
        try:
            live.follow(read_commit_file(foreign_file(table, path).read()))
        except FileNotFoundError:
            raise CorruptLogError(
                f"{table} has no version {number}: {path.name} is missing", path=str(path)
            ) from None
    return live
