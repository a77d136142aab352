"""Pins: hard links to the files of a replica while they are copied.

    lake/_sparktxlog/leases/<lease_id>/<table>/…   the table's directory, file by file

A hard link keeps a file's bytes when its name is removed.  So VACUUM, log cleanup and rewrites need
not wait for a copy, and the replica stays online and writable.  Pins cost directory entries, and
the space of files that are deleted meanwhile.  They survive a crash; `release_others` removes those
without a lease.

A link shares its file with the original: a write *into* a file, such as Spark's to the one that
names the newest checkpoint, changes the pinned one too.  So a reader compares a pin with its
listing.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sparktxlog.errors import DiskFullError, FileChangedError, NotFoundError, StorageError
from sparktxlog.model.copying import OfferedFile

#: Below the lake; Delta ignores the leading underscore.
OWN_DIRECTORY = "_sparktxlog"
_LEASES = "leases"


class Pinned(Protocol):
    """A pinned file, or object of a bucket; its methods block.

    Raises:
        FileChangedError: It is no longer what was pinned (definite).
        StorageError: It cannot be read.
    """

    @property
    def path(self) -> str:
        """Relative to the table's directory, with slashes."""

    @property
    def identity(self) -> Hashable:
        """Differs from that of all other bytes."""

    @property
    def size_bytes(self) -> int:
        """How many bytes it has."""

    def offered(self) -> OfferedFile:
        """Return it as leases list it."""

    def check(self) -> None:
        """Return if it is what was pinned."""

    def fill(self, offset: int, into: memoryview) -> None:
        """Read bytes from an offset on; the file has as many."""


class Pinning(Protocol):
    """Pins what a replica's tables consist of; its methods block.

    Raises:
        StorageError: As the disk, or the `Store`, says.
    """

    def pin(self, lease_id: str, tables: Iterable[str]) -> Mapping[str, tuple[Pinned, ...]]:
        """Pin all of some tables; return it by table, ascending by path.

        If that fails, nothing stays pinned.

        **After calling**: check that what the copy needs is among the files.

        Args:
            lease_id: A new name that can name a directory.

        Raises:
            NotFoundError: The lake has no such table (definite).
        """

    def release(self, lease_id: str) -> bool:
        """Remove the pins of a lease; False: some are left, and the next start removes them."""

    def release_others(self, live: Collection[str] = ()) -> Sequence[str]:
        """Remove the pins of all leases except the live ones; return the removed leases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIdentity:
    """Attributes that change when a file is replaced or written into."""

    inode: int
    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> FileIdentity:
        """Return the identity of a file as the system sees it now."""
        return cls(inode=found.st_ino, size_bytes=found.st_size, modified_ns=found.st_mtime_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedFile:
    """A pinned file: its link, and its identity when it was pinned."""

    #: Relative to the table's directory, with slashes.
    path: str
    #: Absolute path of the link.
    location: str
    identity: FileIdentity

    @property
    def size_bytes(self) -> int:
        """As `Pinned.size_bytes`."""
        return self.identity.size_bytes

    def offered(self) -> OfferedFile:
        """As `Pinned.offered`."""
        return OfferedFile(
            path=self.path,
            size_bytes=self.identity.size_bytes,
            modified_at=self.identity.modified_ns // 1000,
        )

    def check(self) -> None:
        """As `Pinned.check`."""
        try:
            found = FileIdentity.of(os.stat(self.location, follow_symlinks=False))  # noqa: PTH116
        except FileNotFoundError as error:
            raise changed(self.path) from error
        except OSError as error:
            raise _unreadable(self.path, error) from error
        if found != self.identity:
            raise changed(self.path)

    def fill(self, offset: int, into: memoryview) -> None:
        """As `Pinned.fill`."""
        try:
            descriptor = os.open(self.location, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise changed(self.path) from error
        except OSError as error:
            raise _unreadable(self.path, error) from error
        try:
            if FileIdentity.of(os.fstat(descriptor)) != self.identity:
                raise changed(self.path)
            done = 0
            while done < len(into):
                count = os.preadv(descriptor, [into[done:]], offset + done)
                if not count:
                    break
                done += count
            if done != len(into) or FileIdentity.of(os.fstat(descriptor)) != self.identity:
                raise changed(self.path)
        except OSError as error:
            raise _unreadable(self.path, error) from error
        finally:
            os.close(descriptor)


def changed(path: str) -> FileChangedError:
    """Return the error of a file that is no longer what was pinned."""
    return FileChangedError(
        f"{path} is no longer the file that was pinned",
        hint="Ask for a new lease if the copy needs this file.",
        path=path,
    )


def _unreadable(path: str, error: OSError) -> StorageError:
    return StorageError(f"{path} cannot be read: {error.strerror}", path=path)


def place_of_pins(lake: Path, lease_id: str) -> Path:
    """Return the directory with the pins of a lease, TABLE/PATH."""
    return lake.absolute() / OWN_DIRECTORY / _LEASES / lease_id


class Pins:
    """Hard links below one lake; methods are those of `Pinning`, for any thread.

    Args:
        lake: Root of the replica's tables.
    """

    def __init__(self, lake: str | Path) -> None:
        self._lake = Path(lake).absolute()
        self._root = self._lake / OWN_DIRECTORY / _LEASES

    def pin(self, lease_id: str, tables: Iterable[str]) -> dict[str, tuple[PinnedFile, ...]]:
        """As `Pinning.pin`: every file of their directories is linked.

        Files that disappear meanwhile (temporary files of a writer), other than regular files, and
        names that are not UTF-8, which Delta never uses, are left out.

        Raises:
            NotFoundError: The lake has no such table (definite).
            DiskFullError: No space for directory entries (definite).
            StorageError: The file system refuses hard links (nothing stays pinned).
        """
        base = self._root / lease_id
        try:
            return {table: self._pin_table(table, base / table) for table in sorted(set(tables))}
        except BaseException:
            self.release(lease_id)
            raise

    def release(self, lease_id: str) -> bool:
        """As `Pinning.release`."""
        base = self._root / lease_id
        shutil.rmtree(base, ignore_errors=True)
        return not base.exists()

    def release_others(self, live: Collection[str] = ()) -> list[str]:
        """As `Pinning.release_others`."""
        try:
            found = sorted(entry.name for entry in os.scandir(self._root))
        except FileNotFoundError:
            return []
        stale = [name for name in found if name not in live]
        for name in stale:
            self.release(name)
        return stale

    def _pin_table(self, table: str, target: Path) -> tuple[PinnedFile, ...]:
        source = self._lake / table
        if not source.is_dir():
            raise NotFoundError(
                f"the replica has no table {table!r}: {source} is not a directory",
                hint="Run a worker: sparktxlog apply.",
                table=table,
            )
        pinned = []
        made: set[str] = set()
        for relative in _files_below(str(source)):
            if not _is_text(relative):
                continue
            location = os.path.join(target, relative)  # noqa: PTH118 - twice as fast, 100,000 times
            folder = os.path.dirname(location)  # noqa: PTH120
            if folder not in made:
                self._make(folder)
                made.add(folder)
            identity = self._link(f"{source}{os.sep}{relative}", location)
            if identity is not None:
                pinned.append(PinnedFile(path=relative, location=location, identity=identity))
        return tuple(sorted(pinned, key=lambda file: file.path))

    def _make(self, folder: str) -> None:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _refusal(error, folder) from error

    def _link(self, source: str, location: str) -> FileIdentity | None:
        """Return the identity of the linked file, None if it is gone or not a regular file."""
        try:
            os.link(source, location, follow_symlinks=False)
            found = os.lstat(location)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _refusal(error, source) from error
        if not stat.S_ISREG(found.st_mode):
            os.unlink(location)  # noqa: PTH108 - a symbolic link would lead out of the pins
            return None
        return FileIdentity.of(found)


def _files_below(directory: str) -> Iterator[str]:
    """Yield the relative paths of all entries other than directories, also hidden ones."""
    folders = [""]
    while folders:
        prefix = folders.pop()
        try:
            entries = list(os.scandir(f"{directory}{os.sep}{prefix}"))
        except FileNotFoundError:
            continue  # an empty partition, removed meanwhile
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(f"{prefix}{entry.name}/")
            else:
                yield f"{prefix}{entry.name}"


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refusal(error: OSError, path: str) -> StorageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(
            f"no space to pin {path}", hint="Free space on the disk of the lake.", path=path
        )
    hints = {
        errno.EXDEV: "Keep a table and its lake on one file system: no links or mounts below "
        "lake-dir.",
        errno.EPERM: "Run node and worker as the same user, on a file system with hard links "
        "(ext4, XFS, APFS).",
        errno.EMLINK: "Wait until older leases have expired (replication.lease).",
    }
    return StorageError(
        f"{path} cannot be pinned by a hard link: {error.strerror}",
        hint=hints.get(
            error.errno or 0,
            "A donor's lake must be on a file system with hard links (ext4, XFS, APFS); copy from "
            "another site.",
        ),
        path=path,
    )
