"""A place where files arrive: what a peer or an executor sends becomes a durable file, or nothing.

`path` checks every name from outside: it stays below the root and crosses no link, so a manifest
cannot make a node read or write elsewhere.  A file counts as held only after its size and digest
were compared with its manifest, and its bytes and name were fsynced.

    <root>/…              files, named as in their manifests
    <root>/.incoming/…    transfers under way, kept to go on with
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from secrets import token_hex
from time import monotonic
from typing import BinaryIO, Protocol

import structlog

from sparktxlog.errors import (
    BusyError,
    InvalidNameError,
    ManifestMismatchError,
    PayloadStoreError,
    StorageError,
)
from sparktxlog.files.durability import (
    replace_file,
    storage_error,
    storing,
    sync_or_rewrite,
    sync_parents,
)
from sparktxlog.files.foreign_files import (
    INCOMING,
    ForeignFile,
    digest_of,
    foreign_file,
    goes_on,
    with_progress,
)
from sparktxlog.files.last_use import LastUse
from sparktxlog.model.ids import check_relative_path
from sparktxlog.model.transactions.operation import StagedFile

_log = structlog.get_logger("sparktxlog.files")

#: Verified files that are remembered, so that a second check costs one stat.
_REMEMBERED = 65_536
#: More files than these are taken in by several threads.
_FEW_FILES, _PARALLEL_FILES = 8, 8

_Mark = tuple[int, int, int]


class Source(Protocol):
    """A file that is taken in."""

    def link_as(self, target: ForeignFile) -> None:
        """Give it, or a copy of it, a place on a disk of the node."""


class Arrivals:
    """A directory in which files arrive; safe to use from several threads.  Its methods block.

    Args:
        root: The directory; made if missing.
    """

    def __init__(self, root: Path) -> None:
        with storing(root):
            (root / INCOMING).mkdir(parents=True, exist_ok=True)
        self.root = root.resolve()
        self._lock = threading.Lock()
        #: Path → inode, size and modification time at verification, and the digest found.
        self._verified: dict[Path, tuple[_Mark, str]] = {}
        #: By the first part of a name.
        self.last_use = LastUse()
        #: Held to see that a file is there and remember it, and to take unneeded ones away.
        self._confirming = threading.Lock()

    def path(self, relative: str) -> str:
        """Return the absolute path of a checked relative name; the file need not exist.

        Raises:
            InvalidNameError: It would leave the root, or crosses a link (definite).
        """
        parts = check_relative_path(relative).split("/")
        goes_on(f"{self.root}/{relative}")
        if parts[0] == INCOMING or self._crosses_link(parts):
            raise InvalidNameError(
                f"{relative[:140]!r} leaves the payload store or crosses a link",
                hint="Stage regular files below the payload store; links are refused.",
                value=relative[:140],
            )
        return f"{self.root}/{relative}"

    def _crosses_link(self, parts: Sequence[str]) -> bool:
        """Return whether a part of a path below the root is a link; the root itself has none."""
        place = str(self.root)
        for part in parts:
            place = f"{place}/{part}"
            try:
                status = os.lstat(place)
            except OSError:
                return False  # it is not there, and so nothing below it
            if stat.S_ISLNK(status.st_mode):
                return True
        return False

    def verify(self, file: StagedFile) -> None:
        """Check existence, size, digest and what else is said of it; then fsync it and its name.

        Raises:
            PayloadStoreError: No such file (definite).
            ManifestMismatchError: Something differs (definite).
        """
        path = Path(self.path(file.path))
        with self._confirming:
            mark = self._mark(file, path)
            with self._lock:
                known = self._verified.get(path)
            if known is not None and known == (mark, file.digest):
                self._remember(path, mark, file.digest)
                return
        with storing(path):
            self._check(file, path)
            sync_or_rewrite(path)
            sync_parents([path], self.root)
        with self._confirming:
            self._mark(file, path)
            self._remember(path, mark, file.digest)

    def has(self, file: StagedFile) -> bool:
        """Return whether a file with this name and size is here."""
        path = Path(self.path(file.path))
        with storing(path):
            try:
                status = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                return False
        return stat.S_ISREG(status.st_mode) and status.st_size == file.size_bytes

    def holds(self, file: StagedFile) -> bool:
        """Return whether a file is here and the right one; repeated calls read it only once."""
        try:
            self.verify(file)
        except (InvalidNameError, ManifestMismatchError, PayloadStoreError):
            return False
        return True

    def takes(self, file: StagedFile, found: str) -> bool:
        """Give another file below the root this one's name, too, if it is the same.

        Returns:
            Whether it is.  A link, or what is no regular file, is not.
        """
        source, path = ForeignFile(str(self.root), found), Path(self.path(file.path))
        with storing(source.path):
            try:
                self._check(file, source.path)
            except ManifestMismatchError:
                return False
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ELOOP):
                    return False
                raise
            source.link_as(foreign_file(self.root, path))
            sync_or_rewrite(path)
            sync_parents([path], self.root)
        self._confirm(file, path)
        return True

    def take_in(self, sources: Mapping[str, Source | bytes]) -> tuple[StagedFile, ...]:
        """Give files, or bytes, places here; whatever was there is replaced.

        A file is linked: a write into it damages it here too, and a check finds that.

        Args:
            sources: Path below the root → what it gets.

        Returns:
            What a manifest says of them, once their bytes and names are durable; their rows count
            as none.

        Raises:
            InvalidNameError: A name leaves the root (definite).
            DiskFullError, StorageError: Some may not be taken in.
        """
        paths = {relative: Path(self.path(relative)) for relative in sources}

        def taken_in(relative: str) -> StagedFile:
            return self._taken_in(relative, paths[relative], sources[relative])

        if len(paths) > _FEW_FILES:  # each waits for the disk
            with ThreadPoolExecutor(_PARALLEL_FILES, "taking-in") as threads:
                files = list(threads.map(with_progress(taken_in), paths))
        else:
            files = list(map(taken_in, paths))
        self.sync_names(paths)
        for file in files:
            path = paths[file.path]
            self._confirm(file, path)
        return tuple(files)

    def _taken_in(self, relative: str, path: Path, source: Source | bytes) -> StagedFile:
        with storing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(source, bytes):
                replace_file(path, source)
            else:
                source.link_as(foreign_file(self.root, path))
            with foreign_file(self.root, path).open() as content:
                digest = digest_of(content, path)
                size = os.fstat(content.fileno()).st_size
            # The bytes: also those of the file in the table, which is the same one.
            sync_or_rewrite(path)
        return StagedFile(path=relative, size_bytes=size, rows=0, digest=digest)

    def fetch(
        self, file: StagedFile, sent: Callable[[int], Iterable[bytes]], *, named: bool = True
    ) -> None:
        """Get a file from a sender, unless a good copy is here; it is verified and durable then.

        If `sent` raises, the bytes that came are kept, and the next call goes on after them.

        Args:
            sent: Returns the bytes of the file from an offset on; called unless all are here.
            named: False: **after calling** for several files call `sync_names` for all of them.

        Raises:
            ManifestMismatchError: The bytes are another file; none are kept (definite).
            BusyError: Another transfer of the same file is under way (definite).
            DiskFullError, StorageError: The disk is full, or fails; received bytes are kept.
        """
        was_here = self.has(file)
        if was_here and self._is_good(file):
            return
        with self._receiving(file) as target:
            held = os.fstat(target).st_size
            if not (held or was_here) and self.has(file) and self._is_good(file):
                # Another transfer, which its caller gave up, ended between that look and our lock.
                self._partial(file).unlink()
                return
            self._fill(file, target, sent(held) if held < file.size_bytes else (), held)
            self._put_in_place(file, named=named)

    def _is_good(self, file: StagedFile) -> bool:
        """Return whether a file that is here is the right one; a damaged one is logged."""
        try:
            self.verify(file)
        except (ManifestMismatchError, StorageError) as error:
            _log.warning("damaged file is fetched again", path=file.path, reason=str(error))
            return False
        return True

    def receive_part(self, file: StagedFile, part: Sequence[bytes], offset: int) -> int:
        """Take the next bytes of a file that its sender uploads; the last ones put it in place.

        Only the bytes after those that are here are taken, so a part may be repeated.

        Args:
            part: In pieces; none = only ask for what is here.
            offset: Its place in the file.

        Returns:
            How many bytes are here now.  All of them: the file is verified, fsynced and in place.

        Raises:
            ManifestMismatchError: They are another file, and none are kept; or another file has
                that name (definite).
            BusyError: Another part of the same file is being taken (definite).
            DiskFullError, StorageError: The disk is full, or fails; bytes taken before are kept.
        """
        if Path(self.path(file.path)).exists():
            self.verify(file)
            return file.size_bytes
        with self._receiving(file) as target:
            held = os.fstat(target).st_size
            if offset == held:
                held = self._fill(file, target, part, held)
            if held == file.size_bytes:  # perhaps from before a kill or a full disk
                self._put_in_place(file, replaces=False)
        return held

    @contextmanager
    def _receiving(self, file: StagedFile) -> Iterator[int]:
        """Give the descriptor of a file that is being received; nobody else writes it meanwhile."""
        partial = self._partial(file)
        with storing(partial):
            descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        with os.fdopen(descriptor, "r+b", buffering=0) as target:
            try:
                fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BusyError(
                    f"{file.path!r} is being received already", path=file.path
                ) from error
            if not _is_at(target.fileno(), partial):
                # The other transfer ended between our open and our lock: the file is in place.
                raise BusyError(f"{file.path!r} was received meanwhile", path=file.path)
            yield target.fileno()

    def _put_in_place(self, file: StagedFile, *, named: bool = True, replaces: bool = True) -> None:
        """Verify, fsync and place a received file.

        Args:
            named: Whether its name is brought to the disk, too.
            replaces: Whether it takes the place of a file of its name.

        Raises:
            ManifestMismatchError: The bytes are another file, and are removed; or there is a file
                of the name (definite).
        """
        partial, final = self._partial(file), Path(self.path(file.path))
        try:
            with storing(partial):
                self._check(file, partial)
        except ManifestMismatchError:
            partial.unlink()
            raise
        with storing(final):
            sync_or_rewrite(partial)
            final.parent.mkdir(parents=True, exist_ok=True)
            # Two files of one name are received under two names, so the lock of each lets both in.
            with self._lock:
                if not replaces and final.exists():
                    partial.unlink()
                    raise ManifestMismatchError(
                        f"another file has the name {file.path!r} already",
                        hint="Stage each file under a name of its own.",
                        path=file.path,
                    )
                partial.replace(final)
            if named:
                sync_parents([final], self.root)
        self._confirm(file, final)

    def sync_names(self, relatives: Iterable[str]) -> None:
        """Bring the names of files to the disk, each directory once."""
        with storing(self.root):
            sync_parents([self.path(relative) for relative in relatives], self.root)

    def _fill(self, file: StagedFile, descriptor: int, chunks: Iterable[bytes], held: int) -> int:
        """Write bytes after those that are here; return how many are here then."""
        # Only errors of our own writes are the disk's; `chunks` raises errors of the link.
        for chunk in chunks:
            if held + len(chunk) > file.size_bytes:
                self._partial(file).unlink()
                raise ManifestMismatchError(
                    f"more than the {file.size_bytes:,} bytes of {file.path!r} arrive",
                    path=file.path,
                )
            goes_on(self._partial(file))
            with storing(file.path):
                _write_at(descriptor, chunk, held)
            held += len(chunk)
        return held

    def _partial(self, file: StagedFile) -> Path:
        name = f"{file.path}\0{file.digest}\0{file.size_bytes}".encode()
        return self.root / INCOMING / hashlib.sha256(name).hexdigest()

    def _mark(self, file: StagedFile, path: Path) -> _Mark:
        try:
            status = path.lstat()
        except FileNotFoundError as error:
            raise PayloadStoreError(
                f"no file {file.path!r} in the payload store {self.root}",
                hint="The node and the Spark executors must see one payload store under one"
                " path: check payload-dir.",
                path=file.path,
                root=str(self.root),
            ) from error
        except OSError as error:
            raise storage_error(error, path) from error
        if not stat.S_ISREG(status.st_mode):
            raise PayloadStoreError(f"{file.path!r} is not a regular file", path=file.path)
        return (status.st_ino, status.st_size, status.st_mtime_ns)

    def _confirm(self, file: StagedFile, path: Path) -> None:
        """Remember a file whose bytes were compared; errors as `verify` if it was taken away."""
        with self._confirming:
            self._remember(path, self._mark(file, path), file.digest)

    def _remember(self, path: Path, mark: _Mark, digest: str) -> None:
        with self._lock:
            self._verified.pop(path, None)
            if len(self._verified) >= _REMEMBERED:
                del self._verified[next(iter(self._verified))]
            self._verified[path] = (mark, digest)
        self.last_use.note(path.relative_to(self.root).parts[0])

    def take_away(self, top: str, seconds: float) -> Path | None:
        """Take what is at the top of the root out of reach, unless a submit may be under way.

        A submit finds its files before this, and keeps them, or does not find them.

        Args:
            seconds: For so long after a file was verified, a submit may be; at most `KEPT_S`.

        Returns:
            Where it is now, to be removed; None: it stays, or is gone.
        """
        path, target = self.root / top, self.root / INCOMING / f"removed-{token_hex(8)}"
        with self._confirming, storing(path):
            if self.last_use.is_since(top, monotonic() - seconds):
                return None
            try:
                path.rename(target)  # another file of the same name has another mark
            except FileNotFoundError:
                return None
        return target

    def remove_unused(self, relative: str, since: float) -> bool:
        """Remove the name of a file, unless a submit verified one of its directory at the top.

        Args:
            since: At or after this moment, monotonic seconds.

        Returns:
            Whether there was a file that is removed.
        """
        path = Path(self.path(relative))
        with self._confirming, storing(path):
            if self.last_use.is_since(relative.partition("/")[0], since):
                return False
            self.forget(path)
            try:
                path.unlink()
            except FileNotFoundError:
                return False  # removed before a crash
        return True

    def forget(self, path: Path) -> None:
        """Forget that a file was verified: it is removed."""
        with self._lock:
            self._verified.pop(path, None)

    def _check(self, file: StagedFile, path: str | Path) -> None:
        """Compare a file with its manifest.

        Raises:
            ManifestMismatchError: Its size, digest, or what else is said of it, differs (definite).
            OSError: It cannot be read, or is no regular file.
        """
        with foreign_file(self.root, path).open() as source:
            check_bytes(file, source, path)
            self._check_content(file, source, str(path))

    def _check_content(self, file: StagedFile, source: FileIO, path: str) -> None:
        """Check what else a manifest says of a file whose bytes are the right ones."""


def check_bytes(file: StagedFile, source: BinaryIO | FileIO, path: str | Path) -> None:
    """Compare an open file with its manifest.

    Args:
        path: Where it is.

    Raises:
        ManifestMismatchError: Its size or digest differs (definite).
        OSError: It cannot be read.
    """
    size = os.fstat(source.fileno()).st_size
    if size != file.size_bytes:
        raise ManifestMismatchError(
            f"{file.path!r} has {size:,} bytes, its manifest says {file.size_bytes:,}",
            path=file.path,
            size_bytes=size,
        )
    digest = digest_of(source, path)
    if digest != file.digest:
        raise ManifestMismatchError(
            f"{file.path!r} has the digest {digest}, its manifest says {file.digest}",
            path=file.path,
            digest=digest,
        )


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


def _write_at(descriptor: int, chunk: bytes, offset: int) -> None:
    view = memoryview(chunk)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written
