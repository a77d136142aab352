"""Checkpoints: the state of a version in files of its own.

*Classic* ones are Parquet, in one file or several parts.  Those of *version 2* have a file at the
top, JSON or Parquet, and Parquet files with the actions of data files, the *sidecars*.  Commit
tables have those with JSON: so a checkpoint of a twin is one of the table as soon as its JSON file
has the table's protocol.  A checkpoint is local to a site; it changes nothing that a reader sees,
only how many commits it has to read.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sparktxlog.delta.commit_contents import TableProtocol
from sparktxlog.delta.log_files import (
    LAST_CHECKPOINT,
    TablePlace,
    log_of,
    names_in_log,
    store_of,
    whole_checkpoints,
)
from sparktxlog.errors import CorruptLogError, ObjectMissingError
from sparktxlog.files.durability import storage_error
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.files.stores.store import Store
from sparktxlog.model.tables.commit_table import COMMIT_LOG

#: How the UUID begins in the name of a checkpoint that was taken from a twin.
_TAKEN = "00000000-0000-4000-8000-"
_SIDECARS = f"{COMMIT_LOG}_sidecars/"
_ADDED = ("path", "size", "deletionVector", "clusteringProvider")
#: Fields of actions that have fields; others with names of their own are maps.
_STRUCTS = ("deletionVector", "format", "stats_parsed")
_ROWS = "numRecords"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A whole checkpoint."""

    table: Store
    version: int
    #: Keys of the parts of a classic one, or of the one file at the top.
    tops: tuple[str, ...]
    sidecars: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Where the first file at the top is."""
        return self.table.url_of(self.tops[0])

    @property
    def is_json(self) -> bool:
        """Whether it has the form of those of commit tables."""
        return self.tops[0].endswith(".json")

    def read_top(self) -> bytes:
        """Return the first file at the top; errors as `Store.read`."""
        return self.table.read(self.tops[0])

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
        for key in (*self.tops, *self.sidecars):
            with _reading(self.table, key) as file:
                if key.endswith(".json"):
                    lines = map(msgspec.json.decode, file.readall().splitlines())
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


def newest_checkpoint(
    table: TablePlace, version: int, names: Iterable[str] | None = None
) -> Checkpoint | None:
    """Return the newest checkpoint at a version or before, None = there is none that is whole.

    Args:
        names: Of the files in the log, where they are known.

    Raises:
        CorruptLogError: One is damaged.
        StorageError: As `Store`.
    """
    return next(_checkpoints(table, version, names), None)


def newest_of_twin(table: TablePlace, version: int) -> Checkpoint | None:
    """Return the newest one that `take_checkpoint` takes, None = there is none that is whole."""
    return next((one for one in _checkpoints(table, version) if one.is_json), None)


def _checkpoints(
    table: TablePlace, version: int, names: Iterable[str] | None = None
) -> Iterator[Checkpoint]:
    """Yield whole checkpoints, the newest first."""
    store = store_of(table)
    there = names_in_log(store) if names is None else names
    for number, parts in reversed(whole_checkpoints(there, version)):
        tops = tuple(f"{COMMIT_LOG}{name}" for name in parts)
        sidecars = _sidecars(store, tops[0])
        if all(_is_there(store, sidecar) for sidecar in sidecars):
            yield Checkpoint(table=store, version=number, tops=tops, sidecars=sidecars)


def _sidecars(table: Store, top: str) -> tuple[str, ...]:
    """Return the sidecars that the file at the top of a checkpoint names."""
    found = Checkpoint(table=table, version=0, tops=(top,))._actions("sidecar", ("path",))
    return tuple(f"{_SIDECARS}{one['path']}" for one in found)


@contextmanager
def _reading(table: Store, key: str) -> Iterator[RawIOBase]:
    """Give a file of a checkpoint, opened; sessions of others write them.

    Raises:
        CorruptLogError: It is damaged.
        StorageError: It cannot be read.
    """
    url = table.url_of(key)
    try:
        with table.reader(key) as file:
            yield file
    except (msgspec.MsgspecError, pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise storage_error(error, url) from error
        raise CorruptLogError(f"{url} cannot be read: {error}", path=url) from error


def _is_there(table: Store, sidecar: str) -> bool:
    """Return whether there is a sidecar that can be taken: a plain file in its directory."""
    is_plain = "/" not in sidecar.removeprefix(_SIDECARS)
    return is_plain and table.find(sidecar) is not None


def take_checkpoint(
    found: Checkpoint, target: TablePlace, changed: Callable[[bytes], bytes]
) -> None:
    """Give a table a checkpoint of its twin, or the other way round, durably.

    Args:
        target: The table that gets it.
        changed: Returns the JSON lines with the other one's protocol.

    Raises:
        CorruptLogError: The checkpoint is damaged (definite).
        StorageError: As `Store`; the target may have a part of it, which nobody reads.
    """
    to, size = store_of(target), 0
    for sidecar in found.sidecars:
        with _reading(found.table, sidecar) as file:
            size += pq.read_metadata(file).num_rows
        is_file = isinstance(found.table, DiskStore)
        path = Path(found.table.url_of(sidecar))
        to.replace(sidecar, path if is_file else found.table.read(sidecar))
    raw = changed(found.read_top())
    to.replace(f"{COMMIT_LOG}{taken_name(found.version)}", raw)
    if last_checkpoint(to) < found.version:
        say_last(to, found.version, size + len(raw.splitlines()))


def taken_name(version: int) -> str:
    """Return a name in a log for a checkpoint that is taken from a twin."""
    return f"{version:020}.checkpoint.{_TAKEN}{uuid.uuid4().hex[:12]}.json"


def is_taken(name: str) -> bool:
    """Return whether a name in a log is that of a checkpoint that was taken from a twin."""
    return f".checkpoint.{_TAKEN}" in name and name.endswith(".json")


def forget_taken(table: TablePlace) -> None:
    """Remove all but the two newest checkpoints that were taken; Delta's own are its to remove.

    Somebody may be about to read the one before the newest.

    Raises:
        CorruptLogError, StorageError: Some may be left; try again.
    """
    store = store_of(table)
    for name in sorted(filter(is_taken, names_in_log(store)))[:-2]:
        sidecars = _sidecars(store, f"{COMMIT_LOG}{name}")
        store.remove([f"{COMMIT_LOG}{name}", *sidecars])


class _Last(msgspec.Struct):
    version: int


def last_checkpoint(table: TablePlace) -> int:
    """Return the version of the newest checkpoint, as the log says; -1 = it does not."""
    try:
        said = store_of(table).read(f"{COMMIT_LOG}{LAST_CHECKPOINT}")
        return msgspec.json.decode(said, type=_Last).version
    except (ObjectMissingError, msgspec.MsgspecError):
        return -1


def say_last(table: TablePlace, version: int, actions: int) -> None:
    """Write durably which checkpoint is the newest, and how many actions it has."""
    forget_last(table)
    said = msgspec.json.encode({"version": version, "size": actions})
    store_of(table).replace(f"{COMMIT_LOG}{LAST_CHECKPOINT}", said)


def forget_last(table: TablePlace) -> None:
    """Make the log name no checkpoint as the newest one: readers look for one."""
    # Hadoop compares a file with the checksum that it wrote next to it.
    names = (LAST_CHECKPOINT, f".{LAST_CHECKPOINT}.crc")
    store_of(table).remove(f"{COMMIT_LOG}{name}" for name in names)


def files_to_sync(table: Path, first: int, last: int) -> list[Path]:
    """Return the files of the newest checkpoint, if it is of one of these versions."""
    log, version = log_of(table), last_checkpoint(table)
    if not first <= version <= last:
        return []
    sidecars = [*(table / _SIDECARS).glob("*")]
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
