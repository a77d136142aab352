"""What a Delta commit file says: its actions, as far as a catalog must know them.

A commit file has one action a line, as JSON.  Paths in it are URLs relative to the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from io import BytesIO
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from sparktxlog.delta.file_paths import path_of_file, vector_path
from sparktxlog.delta.log_files import is_in_log
from sparktxlog.errors import CorruptLogError, InvalidNameError, StagedCommitError
from sparktxlog.model.ids import LARGEST, check_relative_path

_T = TypeVar("_T")

#: Bytes around a deletion vector in its file: size before, checksum after.
_AROUND_A_VECTOR = 8
#: Where a schema has the name in files of a column with two names.
STORED_NAME = "delta.columnMapping.physicalName"
#: Schemas that are remembered.
_KNOWN_SCHEMAS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededFile:
    """A file that a commit needs."""

    #: Below the table's directory, decoded.
    path: str
    #: Its bytes; for a file with several deletion vectors, how many it has at least.  Negative: the
    #: commit says what no file can have, and `new_commits` refuses it.
    size: int
    is_exact: bool = True
    #: A data file whose rows Delta clustered.
    is_clustered: bool = False
    #: False: the version before has it too, because the commit removes and adds it (what it adds is
    #: a deletion vector); every site has it.
    is_new: bool = True


class TableProtocol(msgspec.Struct, frozen=True, rename="camel"):
    """Versions and features that readers and writers of a table must know."""

    min_reader_version: int
    min_writer_version: int
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()

    @property
    def features(self) -> frozenset[str]:
        """All features."""
        return frozenset((*self.reader_features, *self.writer_features))

    def is_same(self, other: TableProtocol) -> bool:
        """Whether the other one demands the same; the order of features says nothing."""

        def key(one: TableProtocol) -> tuple[object, ...]:
            features = (frozenset(one.reader_features), frozenset(one.writer_features))
            return (one.min_reader_version, one.min_writer_version, *features)

        return key(self) == key(other)


class TableMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """Columns and properties of a table."""

    schema_string: str
    partition_columns: tuple[str, ...] = ()
    configuration: dict[str, str] = {}
    description: str | None = None

    @property
    def columns(self) -> dict[str, Any]:
        """The schema, in Delta's JSON; nobody changes it.

        Raises:
            StagedCommitError: The text is no schema (definite).
        """
        return _columns_of(self.schema_string)

    @property
    def partition_names(self) -> frozenset[str]:
        """The names that partition columns have in commit files: the physical ones.

        Raises:
            StagedCommitError: A partition column is none of the schema (definite).
        """
        names = {
            one["name"].lower(): one.get("metadata", {}).get(STORED_NAME, one["name"])
            for one in self.columns["fields"]
        }
        for name in names.values():
            if not isinstance(name, str):
                raise _wrong(f"metaData.schemaString.{STORED_NAME}", name, "is no name")
        unknown = [column for column in self.partition_columns if column.lower() not in names]
        if unknown:
            raise _wrong("metaData.partitionColumns", unknown[0], "is no column of the table")
        return frozenset(names[column.lower()] for column in self.partition_columns)


class _Column(msgspec.Struct):
    name: str
    type: str | dict[str, Any]
    nullable: bool
    metadata: dict[str, Any] = {}


#: Parts of a type that is no text, by what it says that it is.
_PARTS: dict[str, dict[str, Any]] = {
    "struct": {"fields": list[_Column]},
    "array": {"elementType": str | dict[str, Any], "containsNull": bool},
    "map": {
        "keyType": str | dict[str, Any],
        "valueType": str | dict[str, Any],
        "valueContainsNull": bool,
    },
}


@lru_cache(_KNOWN_SCHEMAS)
def _columns_of(schema: str) -> dict[str, Any]:
    """Return the columns of a schema string; each commit and each answer asks for them."""
    try:
        found = msgspec.json.decode(schema, type=dict[str, Any])
        if found.get("type") != "struct":
            raise msgspec.ValidationError("it is no struct")
        _check_type(found)
        return found
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise _wrong("metaData.schemaString", schema, f"is no schema: {error}") from error


def _check_type(kind: str | dict[str, Any]) -> None:
    """Check that a type has all that its readers, here and elsewhere, look for.

    Raises:
        msgspec.ValidationError: It has not.
    """
    if isinstance(kind, str):
        return
    parts = _PARTS.get(str(kind.get("type")))
    if parts is None:
        raise msgspec.ValidationError(f"{str(kind)[:80]} is no type")
    for key, wanted in parts.items():
        found = msgspec.convert(kind.get(key), wanted)
        if key.endswith("Type"):
            _check_type(found)
        for column in found if key == "fields" else ():
            _check_type(column.type)


class _Vector(msgspec.Struct, rename="camel"):
    storage_type: str
    path_or_inline_dv: str
    size_in_bytes: int = 0
    #: Where it begins in its file; Parquet says nothing of one that has no file.
    offset: int | None = None


class _File(msgspec.Struct, rename="camel"):
    path: str
    size: int = 0
    deletion_vector: _Vector | None = None
    clustering_provider: str | None = None
    partition_values: dict[str, str | None] | None = None


class _Removed(msgspec.Struct, rename="camel"):
    path: str
    deletion_vector: _Vector | None = None


class _Domain(msgspec.Struct):
    domain: str
    configuration: str = ""
    removed: bool = False


class _Info(msgspec.Struct, rename="camel"):
    in_commit_timestamp: int | None = None
    txn_id: str | None = None


class _Line(msgspec.Struct, rename="camel"):
    commit_info: _Info | None = None
    add: _File | None = None
    cdc: _File | None = None
    remove: _Removed | None = None
    meta_data: TableMetadata | None = None
    protocol: TableProtocol | None = None
    domain_metadata: _Domain | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitContent:
    """A commit file, read."""

    #: In-commit timestamp, milliseconds since 1970 UTC.
    timestamp: int
    files: tuple[NeededFile, ...]
    #: Path of an added data file → all files that readers of its rows need.
    added: dict[str, tuple[NeededFile, ...]]
    metadata: TableMetadata | None
    protocol: TableProtocol | None
    #: Domain → its configuration as JSON text, None = removed.
    domains: dict[str, str | None]
    #: Files that belong to what the commit removes, and that it does not need itself; other
    #: deletion vectors of the version may be in one of them.
    removed: frozenset[str] = frozenset()
    #: Names in the partition values of files that it adds → the first such file.
    partitions: dict[frozenset[str], str] = field(default_factory=dict)

    def check_partitions(self, names: frozenset[str]) -> None:
        """Check that all files that it adds have values of the table's partition columns.

        Readers take a name that is missing for NULL, so rows would be read with other values.

        Args:
            names: See `TableMetadata.partition_names`.

        Raises:
            StagedCommitError: One has not; the message names it (definite).
        """
        for given, path in self.partitions.items():
            if given != names:
                wanted = f"names {sorted(names)}" if names else "no partitions"
                raise _wrong(
                    "add.partitionValues",
                    sorted(given),
                    f"are not those of the table, which has {wanted}; the file is {path!r}",
                )


_lines = msgspec.json.Decoder(_Line)


def read_commit_file(content: bytes) -> CommitContent:
    """Return what a commit file says.

    Raises:
        StagedCommitError: It is no commit of a catalog-managed table, or names a file by a path
            that leaves the table; field `field` says where (definite).
    """
    lines = _decoded_lines(content)
    info = next((line.commit_info for line in lines), None)
    if info is None or info.in_commit_timestamp is None:
        raise _wrong(
            "commitInfo", content[:80], "does not begin with commitInfo and its inCommitTimestamp"
        )
    if not 0 < info.in_commit_timestamp <= LARGEST:
        raise _wrong("commitInfo.inCommitTimestamp", info.in_commit_timestamp, "is no time")
    metadata: TableMetadata | None = None
    protocol: TableProtocol | None = None
    domains: dict[str, str | None] = {}
    files: dict[str, NeededFile] = {}
    added: dict[str, tuple[NeededFile, ...]] = {}
    partitions: dict[frozenset[str], str] = {}
    removed, vectors = set[str](), list[_Vector | None]()
    for line in lines:
        metadata = _single("metaData", metadata, line.meta_data)
        protocol = _single("protocol", protocol, line.protocol)
        if line.remove is not None:
            removed.add(_relative("remove.path", line.remove.path))
            vectors.append(line.remove.deletion_vector)
        for file in (line.add, line.cdc):
            if file is not None:
                needs = _needed(file)
                partitions.setdefault(frozenset(file.partition_values or ()), file.path)
                for needed in needs:
                    _keep(files, needed)
                if file is line.add:
                    added[needs[0].path] = tuple(needs)
        domain = line.domain_metadata
        if domain is not None:
            if domain.domain in domains:
                raise _wrong("domainMetadata", domain.domain, "occurs twice")
            domains[domain.domain] = None if domain.removed else domain.configuration
    for path in (*files, *removed):  # they travel, so they follow the rule of the payload stores
        _check_path(path)
    for path in removed & files.keys():  # an action may come after the one that it belongs to
        files[path] = replace(files[path], is_new=False)
    return CommitContent(
        timestamp=info.in_commit_timestamp,
        files=tuple(files.values()),
        added=added,
        metadata=metadata,
        protocol=protocol,
        domains=domains,
        removed=frozenset({*removed, *(one.path for one in _vectors(vectors))} - files.keys()),
        partitions=partitions,
    )


class LiveFiles:
    """The files that readers of a version need, brought from version to version."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[NeededFile, ...]] = {}

    def begin(self, adds: Iterable[dict[str, Any]]) -> None:
        """Take the `add` actions of a checkpoint.

        Raises:
            StagedCommitError: One names no file of the table (definite).
        """
        for action in adds:
            needs = tuple(_needed(_converted(action)))
            self._files[needs[0].path] = needs

    def follow(self, content: CommitContent) -> None:
        """Go on to the next version."""
        for path in content.removed:
            self._files.pop(path, None)
        self._files.update(content.added)

    def read(self, content: bytes) -> TableProtocol | None:
        """Go on to the next version of any table by its commit file; return its protocol, if any.

        Raises:
            StagedCommitError: It cannot be read, or names a file of another table (definite).
        """
        removed, added, protocol = set[str](), dict[str, tuple[NeededFile, ...]](), None
        for line in _decoded_lines(content):
            if line.remove is not None:
                removed.add(_relative("remove.path", line.remove.path))
            if line.add is not None:
                needs = tuple(_needed(line.add))
                added[needs[0].path] = needs
            protocol = line.protocol or protocol
        for path in removed:
            self._files.pop(path, None)
        self._files.update(added)
        return protocol

    @property
    def data(self) -> list[NeededFile]:
        """The data files among them."""
        return [files[0] for files in self._files.values()]

    @property
    def sizes(self) -> dict[str, int]:
        """Path of a data file → its bytes."""
        return {file.path: file.size for file in self.data}

    @property
    def needed(self) -> dict[str, NeededFile]:
        """By path; what was there before the first version is not among them."""
        found: dict[str, NeededFile] = {}
        for files in self._files.values():
            for file in files:
                _keep(found, file)
        return found


def files_of_removed(removes: Iterable[dict[str, Any]]) -> set[str]:
    """Return the files that `remove` actions of a checkpoint name.

    Raises:
        StagedCommitError: One names no file of the table (definite).
    """
    return {needed.path for action in removes for needed in _needed(_converted(action))}


def _converted(action: dict[str, Any]) -> _File:
    try:
        return msgspec.convert(action, _File)
    except msgspec.ValidationError as error:
        raise _wrong("action", action, f"cannot be read: {error}") from error


def _decoded_lines(content: bytes) -> Iterator[_Line]:
    """Yield the lines of a commit file; only one is held with all that it says."""
    for number, line in enumerate(BytesIO(content), start=1):
        yield _decoded(number, line)


def _decoded(number: int, line: bytes) -> _Line:
    try:
        return _lines.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise _wrong(f"line {number}", line[:80], f"cannot be read: {error}") from error


def _single(field: str, known: _T | None, found: _T | None) -> _T | None:
    if known is not None and found is not None:
        raise _wrong(field, found, "occurs more than once")
    return known if found is None else found


def _needed(file: _File) -> list[NeededFile]:
    data = NeededFile(
        path=_relative("add.path", file.path),
        size=file.size,
        is_clustered=file.clustering_provider is not None,
    )
    return [data, *_vectors([file.deletion_vector])]


def _vectors(found: Iterable[_Vector | None]) -> list[NeededFile]:
    """Return the files of deletion vectors that are not in the commit file itself."""
    return [_vector_file(one) for one in found if one is not None and one.storage_type != "i"]


def _vector_file(vector: _Vector) -> NeededFile:
    if vector.storage_type != "u":
        raise _wrong(
            "add.deletionVector.storageType",
            vector.storage_type,
            "is no place below the table; every site has the table at its own place",
        )
    coded = vector.path_or_inline_dv
    try:
        path = vector_path(coded)
    except CorruptLogError as error:
        raise _wrong("add.deletionVector.pathOrInlineDv", coded, "names no file") from error
    offset = vector.offset or 0
    size = offset + vector.size_in_bytes + _AROUND_A_VECTOR
    if min(offset, vector.size_in_bytes) < 0:
        size = -1
    path = _relative("add.deletionVector.pathOrInlineDv", path)
    return NeededFile(path=path, size=size, is_exact=False)


def _keep(files: dict[str, NeededFile], needed: NeededFile) -> None:
    known = files.get(needed.path)
    if known is None or needed.size < 0 or 0 <= known.size < needed.size:
        files[needed.path] = needed


def _check_path(path: str) -> None:
    try:
        check_relative_path(path)
    except InvalidNameError:
        raise _wrong("path", path, "is no path that a payload store takes") from None


def _relative(field: str, path: str) -> str:
    """Return the path of a URL below the table."""
    try:
        parts, found = urlsplit(path), path_of_file(path)
        elsewhere = parts.scheme or parts.netloc or not found or "\0" in found
        elsewhere = elsewhere or not {"", ".", ".."}.isdisjoint(found.split("/"))
    except (CorruptLogError, ValueError):
        elsewhere = True
    if elsewhere or is_in_log(found):
        raise _wrong(
            field, path, "is no path below the table; every site has the table at its own place"
        )
    return found


def _wrong(field: str, value: object, problem: str) -> StagedCommitError:
    shown = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return StagedCommitError(
        f"{field} of the commit file ({shown[:120]!r}) {problem}", field=field, value=shown[:120]
    )
