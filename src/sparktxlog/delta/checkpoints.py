"""Checkpoints: the state of a version in files of its own.

*Classic* ones are Parquet, in one file or several parts.  Those of *version 2* have a file at the
top, JSON or Parquet, and Parquet files with the actions of data files, the *sidecars*.  Commit
tables have those with JSON: so a checkpoint of a twin is one of the table as soon as its JSON file
has the table's protocol.  A checkpoint is local to a site; it changes nothing that a reader sees,
only how many commits it has to read.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sparktxlog.delta.commit_contents import TableProtocol
from sparktxlog.delta.log_files import (
    LAST_CHECKPOINT,
    log_of,
    names_in_log,
    whole_checkpoints,
)
from sparktxlog.errors import CorruptLogError
from sparktxlog.files.durability import (
    place_durably,
    read_whole,
    storage_error,
    storing,
    write_durably,
)
from sparktxlog.files.foreign_files import foreign_file

#: How the UUID begins in the name of a checkpoint that was taken from a twin.
_TAKEN = "00000000-0000-4000-8000-"
_SIDECARS = "_sidecars"
_ADDED = ("path", "size", "deletionVector", "clusteringProvider")
#: Fields of actions that have fields; others with names of their own are maps.
_STRUCTS = ("deletionVector", "format", "stats_parsed")
_ROWS = "numRecords"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A whole checkpoint."""

    version: int
    #: The parts of a classic one, or the one file at the top.
    tops: tuple[Path, ...]
    sidecars: tuple[Path, ...] = ()

    @property
    def path(self) -> Path:
        """The first file at the top."""
        return self.tops[0]

    @property
    def is_json(self) -> bool:
        """Whether it has the form of those of commit tables."""
        return self.path.suffix == ".json"

    def adds(self) -> Iterator[dict[str, Any]]:
        """Yield the `add` actions of the version, with the keys that say which files it needs."""
        yield from self._actions("add", _ADDED)

    def actions(self, *, files: bool = True) -> Iterator[dict[str, dict[str, Any]]]:
        """Yield all that the version says, as commits have it.

        Args:
            files: Actions of files, too; of those that were removed only path and time.
        """
        for kind in ("protocol", "metaData", "domainMetadata", "txn", *(("add",) if files else ())):
            yield from ({kind: action} for action in self._actions(kind))
        for action in self._actions("remove", ("path", "deletionTimestamp")) if files else ():
            yield {"remove": action}

    def removed_after(self, timestamp: int) -> Iterator[dict[str, Any]]:
        """Yield the `remove` actions of versions that were committed later, in milliseconds."""
        for action in self._actions("remove", ("path", "deletionVector", "deletionTimestamp")):
            if (action.get("deletionTimestamp") or 0) > timestamp:
                yield action

    def protocol(self) -> TableProtocol | None:
        """Return the protocol of the version; None = it has none, so it is of no use."""
        keys = ("minReaderVersion", "minWriterVersion", "readerFeatures", "writerFeatures")
        for action in self._actions("protocol", keys):
            return msgspec.convert(action, TableProtocol)
        return None

    def metadata(self) -> dict[str, Any] | None:
        """Return the metadata of the version, as JSON has it; None = as `protocol`."""
        return next(self._actions("metaData"), None)

    def _actions(self, kind: str, keys: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
        """Yield actions; empty `keys` = all that they say, but statistics in one form only."""
        for path in (*self.tops, *self.sidecars):
            with _reading(path) as file:
                if path.suffix == ".json":
                    lines = map(msgspec.json.decode, file.read().splitlines())
                    yield from (line[kind] for line in lines if line.get(kind))
                    continue
                rows = pq.ParquetFile(file)
                if kind not in rows.schema_arrow.names:
                    continue
                known = rows.schema_arrow.field(kind).type
                # Statistics of all files would be most of it.
                wanted = [key for key in _whole(known) if not keys or key in keys]
                for batch in rows.iter_batches(columns=[f"{kind}.{key}" for key in wanted]):
                    # The fields of a struct that is NULL mean nothing.
                    found = batch.column(kind).drop_null()
                    yield from map(_said, found.to_pylist(maps_as_pydicts="lossy"))


def _whole(known: pa.StructType) -> list[str]:
    """Return the fields of an action that say all; `…_parsed` repeat others, typed."""
    found = [field.name for field in known if not field.name.endswith("_parsed")]
    if (at := known.get_field_index("stats_parsed")) < 0:
        return found
    # The bounds of values are left out: they are hints, and types differ.
    return found + [f"stats_parsed.{one.name}" for one in known[at].type if one.name == _ROWS]


def _said(action: dict[str, Any]) -> dict[str, Any]:
    """Return an action of Parquet as JSON has it: without what it does not say."""
    found = {
        key: _said(value) if key in _STRUCTS else value
        for key, value in action.items()
        if value is not None
    }
    parsed = found.pop("stats_parsed", None)
    if parsed and "stats" not in found:
        found["stats"] = msgspec.json.encode(parsed).decode()
    return found


def newest_checkpoint(table: Path, version: int) -> Checkpoint | None:
    """Return the newest checkpoint at a version or before, None = there is none that is whole."""
    return next(_checkpoints(table, version), None)


def newest_of_twin(table: Path, version: int) -> Checkpoint | None:
    """Return the newest one that `take_checkpoint` takes, None = there is none that is whole."""
    return next((one for one in _checkpoints(table, version) if one.is_json), None)


def _checkpoints(table: Path, version: int) -> Iterator[Checkpoint]:
    """Yield whole checkpoints, the newest first."""
    for number, names in reversed(whole_checkpoints(names_in_log(table), version)):
        tops = tuple(log_of(table) / name for name in names)
        sidecars = _sidecars(tops[0])
        if all(map(_is_there, sidecars)):
            yield Checkpoint(version=number, tops=tops, sidecars=sidecars)


def _sidecars(top: Path) -> tuple[Path, ...]:
    """Return the sidecars that the file at the top of a checkpoint names."""
    found = Checkpoint(version=0, tops=(top,))._actions("sidecar", ("path",))
    return tuple(top.parent / _SIDECARS / str(one["path"]) for one in found)


@contextmanager
def _reading(path: Path) -> Iterator[FileIO]:
    """Give a file of a checkpoint, opened.

    Raises:
        CorruptLogError: It is damaged.
        StorageError: It cannot be read.
    """
    try:
        with _opened(path) as file:
            yield file
    except (msgspec.MsgspecError, pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise storage_error(error, path) from error
        raise CorruptLogError(f"{path} cannot be read: {error}", path=str(path)) from error


def _opened(path: Path) -> FileIO:
    """Open a file of a checkpoint; sessions of others write them."""
    log = path.parent.parent if path.parent.name == _SIDECARS else path.parent
    return foreign_file(log.parent, path).open()


def _is_there(sidecar: Path) -> bool:
    """Return whether there is a sidecar that can be taken: a plain file in its directory."""
    try:
        _opened(sidecar).close()
    except (OSError, ValueError):  # elsewhere
        return False
    return sidecar.parent.name == _SIDECARS and ".." not in sidecar.parts


def take_checkpoint(found: Checkpoint, target: Path, changed: Callable[[bytes], bytes]) -> None:
    """Give a table a checkpoint of its twin, or the other way round, durably.

    Args:
        target: The directory that gets it.
        changed: Returns the JSON lines with the other one's protocol.
    """
    log = log_of(target)
    with storing(log):
        log.mkdir(parents=True, exist_ok=True)
        size = 0
        for sidecar in found.sidecars:
            with _opened(sidecar) as file:
                size += pq.read_metadata(file).num_rows
        place_durably({log / _SIDECARS / one.name: one for one in found.sidecars}, log)
        raw = changed(read_whole(found.path))
        name = f"{found.version:020}.checkpoint.{_TAKEN}{uuid.uuid4().hex[:12]}.json"
        write_durably(log / name, raw)
        if last_checkpoint(target) < found.version:
            say_last(target, found.version, size + len(raw.splitlines()))


def forget_taken(table: Path) -> None:
    """Remove all but the two newest checkpoints that were taken; Delta's own are its to remove.

    Somebody may be about to read the one before the newest.

    Raises:
        CorruptLogError, StorageError: Some may be left; try again.
    """
    log = log_of(table)
    with storing(log):
        for path in sorted(log.glob(f"*.checkpoint.{_TAKEN}*.json"))[:-2]:
            sidecars = _sidecars(path)
            path.unlink()
            for sidecar in sidecars:
                sidecar.unlink(missing_ok=True)


class _Last(msgspec.Struct):
    version: int


def last_checkpoint(table: Path) -> int:
    """Return the version of the newest checkpoint, as the log says; -1 = it does not."""
    try:
        return msgspec.json.decode(read_whole(log_of(table) / LAST_CHECKPOINT), type=_Last).version
    except (FileNotFoundError, msgspec.MsgspecError):
        return -1


def say_last(table: Path, version: int, actions: int) -> None:
    """Write durably which checkpoint is the newest, and how many actions it has."""
    forget_last(table)
    said = msgspec.json.encode({"version": version, "size": actions})
    write_durably(log_of(table) / LAST_CHECKPOINT, said)


def forget_last(table: Path) -> None:
    """Make the log name no checkpoint as the newest one: readers look for one."""
    # Hadoop compares a file with the checksum that it wrote next to it.
    for name in (LAST_CHECKPOINT, f".{LAST_CHECKPOINT}.crc"):
        (log_of(table) / name).unlink(missing_ok=True)


def files_to_sync(table: Path, first: int, last: int) -> list[Path]:
    """Return the files of the newest checkpoint, if it is of one of these versions."""
    log, version = log_of(table), last_checkpoint(table)
    if not first <= version <= last:
        return []
    sidecars = [*(log / _SIDECARS).glob("*")]
    return [log / LAST_CHECKPOINT, *log.glob(f"{version:020}.checkpoint*"), *sidecars]


def drop_torn(table: Path, after: int = -1) -> None:
    """Remove checkpoints of later versions that a power cut tore; their commits still exist.

    Raises:
        OSError: One cannot be read now, which says nothing about it.
    """
    log = log_of(table)
    for path in sorted(log.glob("*.checkpoint*.parquet")):
        if path.name[:20].isdigit() and int(path.name[:20]) > after:
            try:
                pq.read_metadata(path)
            except FileNotFoundError:
                continue  # it went with another part
            except (OSError, pa.ArrowException) as error:
                if getattr(error, "errno", None) is not None:
                    raise
                # Else Arrow cannot decode the footer.
                for part in log.glob(f"{path.name[:20]}.checkpoint*"):
                    part.unlink(missing_ok=True)
    if not any(log.glob(f"{last_checkpoint(table):020}.checkpoint*")):
        forget_last(table)
