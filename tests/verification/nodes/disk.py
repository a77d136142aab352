"""Disks of simulated nodes: what a kill, a power loss and a bad disk leave of their files.

A node works on real files.  When it ends, its directory is moved aside, with all that still has it
open, and what is on the disk is copied to the old name: nothing that the ended process holds can
reach it, and no lock of it is left.  A killed process leaves all it wrote; a power loss takes what
was not fsynced, wholly, partly or not at all; what was fsynced before in the same file stays.
SQLite syncs by itself, unseen: what a commit under
`synchronous=FULL` wrote to its log is durable, by its documentation; under less it is not.  What a
commit that failed wrote may be in that log all the same, but nothing says that it is on the disk.
A file whose fsync failed counts as clean: a later fsync brings what is written after that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any

from sparktxlog.errors import TxLogError
from sparktxlog.files.foreign_files import INCOMING
from sparktxlog.storage.interfaces import Write
from sparktxlog.storage.journal import journal as journal_module
from sparktxlog.storage.journal.journal import JOURNAL_NAME, Journal
from sparktxlog.storage.journal.sqlite_schema import translate
from sparktxlog.storage.payload_log import PAYLOAD_LOG

#: Pages SQLite may use by default, as it says.
_ALL_PAGES = 1_073_741_823
#: `PRAGMA synchronous` of a journal whose commits are durable.
_FULL = 2
_JOURNAL_FILES = (JOURNAL_NAME, f"{JOURNAL_NAME}-wal")
_SHARED_MEMORY = f"{JOURNAL_NAME}-shm"

_real_fsync, _real_pwrite = os.fsync, os.pwrite


#: Modification time of a file whose fsync failed, until it is written again; nanoseconds.
_DISTRUSTED_NS = 1


class KilledError(BaseException):
    """The process ends here; nothing may handle it."""


class Failure(StrEnum):
    """How a commit fails."""

    #: Nothing of it was kept: its write failed.
    LOST = "lost"
    #: It stands in the log, whose fsync failed: a power loss may take it, or a part of it.
    KEPT = "kept"


@dataclass(slots=True)
class _Synced:
    """What of one directory tree was fsynced."""

    #: Inode → content when it was synced last.
    content: dict[int, bytes] = field(default_factory=dict)
    #: Directory → its names and their inodes when it was synced last.
    names: dict[str, dict[str, int]] = field(default_factory=dict)


class SimulatedDisk:
    """The directory of one node.

    Args:
        root: Where directories are made.
        name: The node's.
        random: Source of everything by chance.
    """

    def __init__(self, root: Path, name: str, random: Random) -> None:
        self.path = root / name
        self._aside = root / "aside"
        self._random = random
        self._count = 0
        #: Rises with every loss.
        self.generation = 1
        #: True: no file can grow.
        self.full = False
        #: How the next commit fails, None = it does not; `lasting`: and all after it.
        self.failing: Failure | None = None
        self.lasting = False
        #: Error number of each fsync of a file, 0 = none.
        self.sync_error = 0
        #: Files that could not be synced once: a node may take them for lost.
        self.distrusted = set[Path]()
        #: True: a commit failed since the journal was opened.
        self.failed = False
        #: Writes of a commit of which nobody knows whether it was kept.
        self.doubtful: Sequence[Write] = ()
        self._journal: Journal | None = None
        #: Bytes of SQLite's log that outlive a power loss.
        self._log_bytes = 0
        self._synced = _Synced()
        self.path.mkdir(parents=True)
        self._settle()

    # -- while a node runs -------------------------------------------------------------------------

    def opened(self, journal: Journal) -> None:
        """See a journal opened: what it found is on the disk."""
        self._journal = journal
        self._log_bytes = self._log_size()
        self.failed = False
        journal._db = _Connection(journal._db, self)  # type: ignore[assignment]
        self.fill(self.full)

    def commit_fails(self) -> Failure | None:
        """Return how a commit that is about to be done fails, None = it does not."""
        failure = self.failing
        if failure is not None:
            self.failed = True
            self.failing = failure if self.lasting else None
        return failure

    def mend(self) -> None:
        """Let the disk work again."""
        self.failing, self.lasting, self.sync_error = None, False, 0

    def committed(self) -> None:
        """See the journal commit."""
        assert self._journal is not None
        if self._journal._db.execute("PRAGMA synchronous").fetchone()[0] >= _FULL:
            self._log_bytes = self._log_size()

    def fill(self, full: bool) -> None:
        """Let the disk be full, or have room again: then SQLite gets no more pages."""
        self.full = full
        if self._journal is not None:
            pages = 1 if full else _ALL_PAGES  # the file's present size is the least that counts
            self._journal._db.execute(f"PRAGMA max_page_count={pages}")

    def fsynced(self, path: str, descriptor: int) -> None:
        """See a file or directory of this disk fsynced.

        Raises:
            OSError: It fails.
        """
        status = os.fstat(descriptor)
        if self.sync_error:
            os.utime(path, ns=(_DISTRUSTED_NS, _DISTRUSTED_NS))
            if self.sync_error == errno.EIO:
                self.distrusted.add(Path(path))
                self.failed = self.failed or Path(path).parent.name == PAYLOAD_LOG
            raise OSError(self.sync_error, os.strerror(self.sync_error), path)
        if status.st_mtime_ns == _DISTRUSTED_NS and not stat.S_ISDIR(status.st_mode):
            return  # its pages count as written
        if stat.S_ISDIR(status.st_mode):
            with os.scandir(path) as entries:
                self._synced.names[path] = {entry.name: entry.inode() for entry in entries}
        elif Path(path).name not in _JOURNAL_FILES:
            self._synced.content[status.st_ino] = Path(path).read_bytes()

    def keeps(self, path: Path) -> bool:
        """Return whether a power loss would leave a file as it is."""
        if not path.exists():
            return False
        inode = path.stat().st_ino
        named = self._synced.names.get(str(path.parent), {}).get(path.name)
        return named == inode and self._synced.content.get(inode) == path.read_bytes()

    def _log_size(self) -> int:
        log = self.path / f"{JOURNAL_NAME}-wal"
        return log.stat().st_size if log.exists() else 0

    # -- the end of a process ----------------------------------------------------------------------

    def crash(self, *, power: bool) -> None:
        """Leave what a kill, or a power loss, leaves."""
        self._journal = None
        self._count += 1
        old = self._aside / f"{self.path.name}-{self._count}"
        old.parent.mkdir(exist_ok=True)
        self.path.rename(old)
        shutil.copytree(old, self.path, ignore=shutil.ignore_patterns(_SHARED_MEMORY))
        if power:
            self._lose_unsynced(old)
        self._settle()

    def stopped(self) -> None:
        """See a node stop cleanly."""
        self._journal = None

    def unlock(self) -> None:
        """See a process end by itself: what its threads still received is locked no more."""
        for path in sorted((self.path / "payloads" / INCOMING).glob("*")):
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content)

    def copy(self, other: SimulatedDisk) -> None:
        """Hold what another disk holds, whose node may run on."""
        shutil.copytree(
            other.path, self.path, ignore=shutil.ignore_patterns(_SHARED_MEMORY), dirs_exist_ok=True
        )
        self.generation = other.generation
        self._settle()

    def lose(self) -> None:
        """Lose everything; what comes next is another disk."""
        self.crash(power=False)
        shutil.rmtree(self.path)
        self.path.mkdir()
        self.generation += 1
        self._settle()

    def _lose_unsynced(self, old: Path) -> None:
        log = self.path / f"{JOURNAL_NAME}-wal"
        if log.exists() and (size := log.stat().st_size) > self._log_bytes:
            at = self._random.choice((size, self._random.randint(self._log_bytes, size)))
            os.truncate(log, at)
            if self._random.random() < 0.5:  # its length was written before its content
                os.truncate(log, size)
        # A stream of its own: how many files there are must not change what comes later.
        random, found = Random(self._random.random()), []
        for directory, _, files in os.walk(old):
            here = self.path / Path(directory).relative_to(old)
            known = self._synced.names.get(str(here), {})
            for name in {*files, *known}:
                was = Path(directory) / name
                inode = was.stat().st_ino if was.exists() else None
                if not was.is_dir() and not name.startswith(JOURNAL_NAME):
                    found.append((inode or known[name], here / name, was, inode, known.get(name)))
        # By age: names may be drawn by others, and are no order to rely on.
        reached: dict[int, bool] = {}
        found.sort(key=lambda item: (item[0], item[3] is None))
        for _, path, was, inode, named in found:
            for one in (inode, named):
                if one is not None:
                    reached.setdefault(one, random.random() < 0.5)
            self._lose_file(path, was, inode, named, reached, random)

    def _lose_file(
        self, here: Path, was: Path, inode: int | None, named: int | None,
        reached: dict[int, bool], random: Random,
    ) -> None:  # fmt: skip
        """Decide what is left under one name.

        Args:
            here, was: The copy, and the file that was left.
            inode: What the name led to in the end, None = it was removed.
            named: What it led to when its directory was synced last, None = nothing.
            reached: File → whether later changes of its names reached the disk.
        """
        synced = self._synced.content
        if inode is None or (inode != named and not reached[inode]):
            back = named in synced and (inode is not None or not reached[named or 0])
            here.unlink(missing_ok=True)
            if back and named is not None:
                here.write_bytes(synced[named])
            return
        now, kept = was.read_bytes(), synced.get(inode)
        if kept != now:
            # What was synced and not changed since is there, before and behind the rest.
            torn = now[: (at := random.randint(0, len(now)))] + (kept or b"")[at:]
            here.write_bytes(random.choice((torn, kept or b"", now)))

    def _settle(self) -> None:
        """Take what is there now as what is on the disk."""
        self._synced = _Synced()
        for directory, _, files in os.walk(self.path):
            with os.scandir(directory) as entries:
                self._synced.names[directory] = {entry.name: entry.inode() for entry in entries}
            for name in files:
                path = Path(directory) / name
                if not name.startswith(JOURNAL_NAME):
                    self._synced.content[path.stat().st_ino] = path.read_bytes()


class _Connection:
    """A journal's connection to a disk that may fail."""

    def __init__(self, connection: sqlite3.Connection, disk: SimulatedDisk) -> None:
        self._connection = connection
        self._disk = disk
        #: True: the process is killed before its next commit is done.
        self.dying = False

    def end(self) -> None:
        """End the process.

        Raises:
            KilledError: It does.
        """
        raise KilledError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    @property
    def in_transaction(self) -> bool:
        """Whether there is something to roll back; a dead process rolls nothing back."""
        return self._connection.in_transaction and not self.dying

    def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
        """Execute a statement; a commit may fail, or the process not live to do it."""
        if statement != "COMMIT":
            return self._connection.execute(statement, *arguments)
        if self.dying:
            self.end()
        failure = self._disk.commit_fails()
        if failure is not Failure.LOST:
            done = self._connection.execute(statement)
            if failure is None:
                return done
        raise _io_error()


def _io_error() -> sqlite3.Error:
    """Return what SQLite raises on a disk that fails."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
    return error


def die_inside(journal: Journal, writes: object, *, unsynced: bool = False) -> None:
    """Begin a write and be killed in it: all of it but the commit was done.

    Args:
        unsynced: Also its containers in files are not synced.
    """
    connection: Any = journal._db
    connection.dying = True
    if unsynced:
        log: Any = journal._payload_log
        log.sync = connection.end
    with contextlib.suppress(KilledError, TxLogError):  # the disk may be full, or fail
        journal.write(writes)  # type: ignore[arg-type]


def tear(journal: Journal, writes: Sequence[Write]) -> None:
    """Write a commit whose process does not live to see it synced."""
    with contextlib.suppress(TxLogError):  # the disk may be full, or fail
        journal.write(writes)


class Disks:
    """All simulated disks; sees each fsync of this process.

    Args:
        root: An empty directory.
        random: Source of everything by chance.
    """

    def __init__(self, root: Path, random: Random) -> None:
        self.root = root
        self._random = random
        self._all: list[SimulatedDisk] = []

    def make(self, name: str) -> SimulatedDisk:
        """Return a new, empty disk."""
        disk = SimulatedDisk(self.root, name, self._random)
        self._all.append(disk)
        return disk

    def install(self) -> None:
        """Replace calls of the system, and how a journal is opened, until this process ends."""
        os.fsync = os.fdatasync = self._fsync  # type: ignore[assignment]
        os.pwrite = self._pwrite  # type: ignore[assignment]
        module: Any = journal_module
        opening = module.open_journal

        def opened(path: Path) -> sqlite3.Connection:
            if any(disk.path == path.parent and disk.failing for disk in self._all):
                raise translate(_io_error(), path)  # before anything is told
            connection: sqlite3.Connection = opening(path)
            return connection

        module.open_journal = opened

    def _pwrite(self, descriptor: int, content: bytes, at: int) -> int:
        """Write a part of some bytes to a full disk, and no more, if that makes the file longer."""
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        full = any(disk.full and path.is_relative_to(disk.path) for disk in self._all)
        room = max(0, os.fstat(descriptor).st_size - at)
        if not full or len(content) <= room:
            return _real_pwrite(descriptor, content, at)
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return _real_pwrite(descriptor, content[:room], at)

    def _fsync(self, descriptor: int) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        for disk in self._all:
            if path == str(disk.path) or path.startswith(f"{disk.path}/"):
                disk.fsynced(path, descriptor)
                return
        if not path.startswith(str(self.root)):  # else of a killed node
            _real_fsync(descriptor)
