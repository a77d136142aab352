"""A version of a table, from its log: the newest whole checkpoint, and the commits after it.

Features that are known here say how rows are read, not what a log means.  A table that needs others
is not read: nobody knows what its log says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from sparktxlog.delta.checkpoints import Checkpoint, newest_checkpoint
from sparktxlog.delta.commit_contents import TableMetadata, TableProtocol
from sparktxlog.delta.commit_files import commit_bytes
from sparktxlog.delta.log_files import TablePlace, commits_among, names_in_log, store_of
from sparktxlog.errors import CorruptLogError, StagedCommitError, StorageError
from sparktxlog.files.stores.store import Store

#: The newest version of readers' protocols that is known, and its features.
_READER_VERSION = 3
_FEATURES = frozenset(
    """
    catalogManaged columnMapping deletionVectors timestampNtz typeWidening typeWidening-preview
    v2Checkpoint vacuumProtocolCheck variantType variantType-preview
    """.split()
)


class FullMetadata(TableMetadata, frozen=True, rename="camel"):
    """Columns and properties of a table, and what else its log says of it."""

    id: str = ""
    #: Milliseconds since 1970 UTC.
    created_time: int | None = None


class _Line(msgspec.Struct, rename="camel"):
    meta_data: FullMetadata | None = None
    protocol: TableProtocol | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """What a version says of its table, without its files."""

    version: int
    protocol: TableProtocol
    metadata: FullMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSegment:
    """The files of a log that a version needs."""

    table: Store
    version: int
    checkpoint: Checkpoint | None

    @classmethod
    def of(cls, table: TablePlace, version: int | None) -> LogSegment:
        """Return that of a version, None = the newest.

        Raises:
            CorruptLogError: The directory has no log, or a checkpoint is damaged.
            StorageError: As `Store`.
        """
        store = store_of(table)
        names = names_in_log(store)
        version = max(commits_among(names), default=-1) if version is None else version
        if not names or version < 0:
            raise CorruptLogError(f"{store.url} is not a Delta table", path=store.url)
        found = newest_checkpoint(store, version, names)
        return cls(table=store, version=version, checkpoint=found)

    def commits(self) -> Iterator[bytes]:
        """Yield the commit files after the checkpoint, ascending.

        Raises:
            CorruptLogError: One is missing.
            StorageError: As `Store`.
        """
        first = 0 if self.checkpoint is None else self.checkpoint.version + 1
        for number in range(first, self.version + 1):
            yield commit_bytes(self.table, number)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Convert errors of what reads the segment.

        Raises:
            CorruptLogError: A commit or a checkpoint cannot be read.
        """
        try:
            yield
        except (
            StagedCommitError,
            msgspec.MsgspecError,
            LookupError,
            TypeError,
            UnicodeError,
        ) as error:
            raise CorruptLogError(
                f"version {self.version} of {self.table.url} cannot be read: {error}",
                path=self.table.url,
            ) from error

    def check_known(self, protocol: TableProtocol | None) -> None:
        """Refuse a protocol that is not known here.

        Raises:
            StorageError: It needs other features (definite).
        """
        if protocol is None:
            return
        unknown = sorted({*protocol.reader_features} - _FEATURES)
        if unknown or protocol.min_reader_version > _READER_VERSION:
            raise StorageError(
                f"{self.table.url} needs what is not known here: reader version "
                f"{protocol.min_reader_version}, features {unknown}",
                path=self.table.url,
            )


def read_version(table: TablePlace, version: int | None = None) -> Version:
    """Return what a version says of its table.

    Args:
        version: None = the newest.

    Raises:
        CorruptLogError: The directory has no log, or lacks the version, or it cannot be read.
        StorageError: The table needs features that are not known here; or as `Store`.
    """
    segment = LogSegment.of(table, version)
    protocol, metadata = None, None
    with segment.reading():
        if segment.checkpoint is not None:
            protocol = segment.checkpoint.protocol()
            found = segment.checkpoint.metadata()
            metadata = None if found is None else msgspec.convert(found, FullMetadata)
        decoder = msgspec.json.Decoder(_Line)
        for content in segment.commits():
            for line in decoder.decode_lines(content):
                protocol, metadata = line.protocol or protocol, line.meta_data or metadata
    segment.check_known(protocol)
    if protocol is None or metadata is None:
        url = segment.table.url
        raise CorruptLogError(f"the log of {url} does not define it", path=url)
    return Version(version=segment.version, protocol=protocol, metadata=metadata)
