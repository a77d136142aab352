"""Which files each version of a commit table consists of, equal at all sites (protocol P36).

A version is its commit file and the files that it brings: data files, deletion vectors, change
data.  Names and bytes are equal at all sites, so a digest over them shows whether two sites have
the same version, and a site that lacks files gets them from any other one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.transactions.operation import StagedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFiles:
    """A version of a commit table: its commit file and the files that it brings."""

    version: int
    #: Their paths are below the table's directory.
    files: tuple[StagedFile, ...]

    @property
    def commit_file(self) -> StagedFile | None:
        """The commit file; None = somebody names a version without one."""
        path = commit_file_name(self.version)
        return next((file for file in self.files if file.path == path), None)

    @property
    def brought(self) -> tuple[StagedFile, ...]:
        """All files but the commit file."""
        return tuple(file for file in self.files if file is not self.commit_file)

    @property
    def digest(self) -> str:
        """SHA-256 over paths, sizes and digests of all files, hexadecimal."""
        digest = hashlib.sha256()
        for file in sorted(self.files, key=lambda one: one.path):
            digest.update(f"{file.path}\0{file.size_bytes}\0{file.digest}\n".encode())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedVersion:
    """A version of a commit table, and where the log has it."""

    #: Of the table.
    uuid: str
    version: int
    position: int
    #: That made it, as text; the payload store has its files below it, and below the UUID.
    transaction_id: str
    #: Paths below the table's directory; none = this site never had the files.
    files: tuple[StagedFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTable:
    """What a position did to a commit table: made, renamed or dropped it, or gave it a version."""

    uuid: str
    #: `schema.table`, from that position on.
    name: str
    position: int
    is_dropped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedVersions:
    """What was ordered of commit tables after a position."""

    #: The position up to which it is all of it.
    upto: int
    #: Ascending by position.
    versions: tuple[OrderedVersion, ...] = ()
    #: The last change of each table up to the end of the queue that is in the range.
    tables: tuple[NamedTable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersions:
    """What a site reports of its versions of a commit table; the answer to a peer."""

    versions: tuple[VersionFiles, ...]
    #: The newest version that is placed there, -1 = none.
    placed: int
