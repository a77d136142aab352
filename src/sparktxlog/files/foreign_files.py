"""Opens files that somebody else may write or rename: Spark sessions, perhaps of another user.

A name below such a directory may be a link to a secret of the node, a pipe that nobody writes to,
or another file a moment after it was looked at.  So each directory on the way is opened below the
one before, without following links, and the file without waiting; it must be a regular one.  What
is checked is what is open.  Files of the node are made under random names first, which nobody can
have taken (decision 72).
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from io import BufferedReader, FileIO, RawIOBase
from pathlib import Path
from typing import BinaryIO, TypeVar

_T = TypeVar("_T")
#: Where files are made that get a place below the same root, with one step.
INCOMING = ".incoming"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_REGULAR = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FRESH = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK_BYTES = 1 << 20


class Linked(Enum):
    """What has a name that a file was to get."""

    #: The file itself, or a durable copy.
    SAME = "same"
    #: Another file of the same bytes, which are not durable.
    EQUAL = "equal"
    OTHER = "other"


@dataclass(slots=True)
class Progress:
    """How far work on files came: a disk or mount that hangs stops it (decision 77)."""

    #: What it works at.
    path: str
    #: When it was seen to go on, monotonic seconds.
    at: float
    #: Seconds that what it does since then may take, without being seen to go on.
    may_take_s: float = 0.0

    @classmethod
    def begin(cls, place: str) -> Progress:
        """Return the progress of what this thread does from now on."""
        made = cls(place, time.monotonic())
        _PROGRESS.set(made)
        return made


_PROGRESS: ContextVar[Progress | None] = ContextVar("progress", default=None)


def goes_on(path: str | Path, may_take_s: float = 0.0) -> None:
    """Note that this thread goes on, at a path.

    Args:
        may_take_s: What it does next ends by itself within so many seconds; 0 = within those that
            a disk or mount has.
    """
    if (progress := _PROGRESS.get()) is not None:
        progress.path, progress.at = str(path), time.monotonic()
        progress.may_take_s = may_take_s


def with_progress(work: Callable[..., _T]) -> Callable[..., _T]:
    """Return work that other threads do for this one: it goes on if they do."""
    progress = _PROGRESS.get()

    def shared(*args: object) -> _T:
        _PROGRESS.set(progress)
        return work(*args)

    return shared


def open_regular(name: str | Path, how: int = os.O_RDONLY, *, inside: int | None = None) -> int:
    """Return the descriptor of a regular file; never waits, and follows no link at its name.

    Args:
        how: Flags of `os.open`.
        inside: Descriptor of the directory that the name is in; None = the name is a path.

    Raises:
        OSError: There is none, or what is there is a link or no regular file.
    """
    with _refusing(name):
        descriptor = os.open(name, how | _REGULAR, dir_fd=inside)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(name)
    return descriptor


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """A file below a directory that others write to; its methods block.

    Args:
        root: The directory, which the node trusts; it may be reached by links.
        relative: Below it; was checked to have no part like `..`.
    """

    root: str
    relative: str

    @property
    def path(self) -> str:
        """Where it is, for messages."""
        return f"{self.root}/{self.relative}"

    def open(self) -> FileIO:
        """Open it to be read.

        Raises:
            OSError: There is none, or it is no regular file, or lies beyond a link.
        """
        with self._parent() as parent, _refusing(self.path):
            return FileIO(open_regular(self._name, inside=parent))

    def read(self, most: int | None = None) -> bytes:
        """Return its bytes; errors as `open`.

        Args:
            most: If the file is longer, this and at least one more byte is enough; None = all of
            it.
        """
        with self.open() as file:
            return read_open(file.fileno(), most)

    def size(self) -> int:
        """Return its bytes, in number; errors as `open`, but its bytes may be unreadable."""
        found = self.status()
        if not stat.S_ISREG(found.st_mode):
            raise _not_regular(self.path)
        return found.st_size

    def status(self) -> os.stat_result:
        """Return what the system says of whatever has the name.

        Raises:
            OSError: Nothing has it; or it lies beyond a link.
        """
        with self._parent() as parent:
            return os.stat(self._name, dir_fd=parent, follow_symlinks=False)

    def remove(self) -> None:
        """Remove the name.  **After calling** sync the directory; errors as `status`."""
        with self._parent() as parent:
            os.unlink(self._name, dir_fd=parent)

    def link_as(self, target: ForeignFile) -> None:
        """Give it a second name, whose directories are made; or a durable copy, as a last resort.

        What has the name already is replaced, in one step.

        **After calling** sync the directory of `target`.

        Raises:
            OSError: As `open`; or it can neither be linked nor copied.
        """
        self._link(target, replaces=True)

    def link_new(self, target: ForeignFile) -> bool:
        """As `link_as`, unless something has the name already; return whether it is new there."""
        try:
            self._link(target, replaces=False)
        except FileExistsError:
            return False
        return True

    def _link(self, target: ForeignFile, *, replaces: bool) -> None:
        with (
            self._parent() as parent,
            target._named_at_once(replaces=replaces, is_only_here=False) as (to, fresh),
        ):
            try:
                os.link(self._name, fresh, src_dir_fd=parent, dst_dir_fd=to, follow_symlinks=False)
            except FileNotFoundError:
                raise
            except OSError:  # another file system, one without hard links, or too many links
                with os.fdopen(open_regular(self._name, inside=parent), "rb") as source:
                    _copy(source, os.open(fresh, _FRESH, 0o666, dir_fd=to))
            if not stat.S_ISREG(os.stat(fresh, dir_fd=to, follow_symlinks=False).st_mode):
                raise _not_regular(self.path)

    @contextmanager
    def _named_at_once(self, *, replaces: bool, is_only_here: bool) -> Iterator[tuple[int, str]]:
        """Give its directory and a fresh name; the file that gets that has this name afterwards.

        Args:
            replaces: Whether what has the name already is replaced.
            is_only_here: The file will have no other name.

        Raises:
            FileExistsError: Something has the name, and is not replaced.
        """
        fresh = f".{secrets.token_hex(8)}.new"
        with self._parent(make=True) as to:
            try:
                yield to, fresh
                if replaces:
                    os.replace(fresh, self._name, src_dir_fd=to, dst_dir_fd=to)
                else:
                    _name_in(to, fresh, self._name, is_only_here=is_only_here)
            finally:
                with suppress(FileNotFoundError):
                    # If both names are the same file, `rename` keeps both.
                    os.unlink(fresh, dir_fd=to)

    def put_new(self, content: bytes) -> bool:
        """Give durable bytes this name unless something has it; its directories are made.

        **After calling** sync the directory.

        Returns:
            Whether they have it now; an answer that is lost does no harm.

        Raises:
            OSError: Nothing was changed, or nobody knows; or the directory lies beyond a link.
        """
        try:
            self._put_fresh(content, replaces=False)
        except FileExistsError:
            return False
        return True

    def replace(self, content: bytes) -> None:
        """Give durable bytes this name in place of what has it; else as `put_new`."""
        self._put_fresh(content, replaces=True)

    def _put_fresh(self, content: bytes, *, replaces: bool) -> None:
        with (
            self._named_at_once(replaces=replaces, is_only_here=True) as (to, fresh),
            os.fdopen(os.open(fresh, _FRESH, 0o666, dir_fd=to), "wb") as file,
        ):
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def move_to(self, other: ForeignFile) -> bool:
        """Move whatever has this name to another one, whose directories are made, durably.

        Returns:
            Whether there was anything.

        Raises:
            OSError: It is left; or lies beyond a link.
        """
        with suppress(FileNotFoundError), self._parent() as parent:
            os.stat(self._name, dir_fd=parent, follow_symlinks=False)
            with other._parent(make=True, durable=True) as to:
                os.rename(self._name, other._name, src_dir_fd=parent, dst_dir_fd=to)
                os.fsync(to)
                os.fsync(parent)
            return True
        return False

    def put(self, source: str | bytes) -> Linked:
        """Give a durable file of the node, or bytes, this name if it is free.

        A reader of the name never sees a part of it.  If a power loss left a part of the same
        bytes, that is filled.  Where there are no hard links, a file is copied.

        Returns:
            What then has the name.

        Raises:
            OSError: Nothing has it; or the directory lies beyond a link.
        """
        with self._parent(make=True) as parent:
            try:
                os.stat(self._name, dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                with suppress(FileExistsError):  # somebody else was faster
                    return self._put_new(source, parent)
            try:
                found = FileIO(open_regular(self._name, inside=parent))
            except OSError:
                return Linked.OTHER  # a link, a pipe, a directory
            with found:
                if isinstance(source, str):
                    return _compared(source, found)
                held = read_open(found.fileno())
            if held == source:
                return Linked.EQUAL
            if not _is_torn(held, source):
                return Linked.OTHER
            # In its place: other tables may have the file under another name.
            with os.fdopen(open_regular(self._name, os.O_WRONLY, inside=parent), "wb") as file:
                file.truncate(0)
                file.write(source)
            return Linked.EQUAL

    def _put_new(self, source: str | bytes, parent: int) -> Linked:
        if isinstance(source, str):
            try:
                os.link(source, self._name, dst_dir_fd=parent, follow_symlinks=False)
                return Linked.SAME
            except FileExistsError:
                raise
            except OSError as error:  # another file system, one without hard links, or many links
                if error.errno in (errno.ENOENT, errno.ENOSPC):
                    raise
        fresh = f"placing-{secrets.token_hex(8)}"
        with ForeignFile(self.root, f"{INCOMING}/{fresh}")._parent(make=True) as incoming:
            try:
                descriptor = os.open(fresh, _FRESH, 0o666, dir_fd=incoming)
                if isinstance(source, bytes):
                    with os.fdopen(descriptor, "wb") as file:
                        file.write(source)
                else:
                    with os.fdopen(open_regular(source), "rb") as content:
                        _copy(content, descriptor)
                os.link(
                    *(fresh, self._name),
                    src_dir_fd=incoming,
                    dst_dir_fd=parent,
                    follow_symlinks=False,
                )
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(fresh, dir_fd=incoming)
        return Linked.EQUAL if isinstance(source, bytes) else Linked.SAME

    def make_parent(self) -> None:
        """Make the directories on the way.

        Raises:
            OSError: A link or a file has the name of one.
        """
        with self._parent(make=True):
            pass

    @property
    def _name(self) -> str:
        return self.relative.rpartition("/")[2]

    @contextmanager
    def _parent(self, *, make: bool = False, durable: bool = False) -> Iterator[int]:
        """Give the descriptor of its directory.

        Args:
            make: Whether directories that are missing are made.
            durable: Whether the names of the directories below the root are synced.
        """
        goes_on(self.path)
        try:
            directory = os.open(self.root, _DIRECTORY)
        except FileNotFoundError:
            if not make:
                raise
            Path(self.root).mkdir(parents=True, exist_ok=True)
            directory = os.open(self.root, _DIRECTORY)
        try:
            for name in self.relative.split("/")[:-1]:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(name, dir_fd=directory)
                if durable:
                    os.fsync(directory)
                with _refusing(self.path):
                    inner = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
                os.close(directory)
                directory = inner
            yield directory
        finally:
            os.close(directory)


def foreign_file(root: Path, path: str | Path) -> ForeignFile:
    """Return a file below a root by its path."""
    return ForeignFile(str(root), str(Path(path).relative_to(root)))


def read_open(descriptor: int, most: int | None = None) -> bytes:
    """Return the bytes of an open file, with few calls of the system; `most` as `ForeignFile.read`.

    Raises:
        OSError: The disk fails.
    """
    size = os.fstat(descriptor).st_size
    pieces, left = list[bytes](), size + 1 if most is None else min(size, most) + 1
    while left > 0 and (piece := os.read(descriptor, left)):
        pieces.append(piece)
        left -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def digest_of(content: BinaryIO | RawIOBase, path: str | Path) -> str:
    """Return the SHA-256 of the rest of an open file, as hex.

    Raises:
        OSError: The disk fails.
    """
    found, block = hashlib.sha256(), bytearray(_BLOCK_BYTES)
    view = memoryview(block)
    while size := content.readinto(block):  # type: ignore[union-attr]
        found.update(view[:size])
        goes_on(path)
    return found.hexdigest()


def _name_in(directory: int, fresh: str, name: str, *, is_only_here: bool) -> None:
    """Give a file of a directory a second name there, unless that is taken.

    An answer that is lost does no harm: what has the name is compared.

    Args:
        is_only_here: The file has no other name, so nobody else can have given it this one.
    """
    try:
        os.link(fresh, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    except OSError as error:
        if isinstance(error, FileExistsError) and not is_only_here:
            raise
        try:
            named = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            named = None
        if named is None or not os.path.samestat(named, os.stat(fresh, dir_fd=directory)):
            raise


def _copy(source: BinaryIO, target: int) -> None:
    """Copy an open file; the target's bytes are synced, and it is closed."""
    with os.fdopen(target, "wb") as copy:
        while block := source.read(_BLOCK_BYTES):
            copy.write(block)
            goes_on(source.name)
        copy.flush()
        os.fsync(copy.fileno())


def _compared(source: str, found: FileIO) -> Linked:
    with os.fdopen(open_regular(source), "rb") as ours:
        if os.path.sameopenfile(ours.fileno(), found.fileno()):
            return Linked.SAME
        size = os.fstat(found.fileno()).st_size
        if os.fstat(ours.fileno()).st_size != size:
            return Linked.OTHER
        theirs = BufferedReader(found)
        while block := ours.read(_BLOCK_BYTES):
            if theirs.read(len(block)) != block:
                return Linked.OTHER
            goes_on(source)
    return Linked.EQUAL


def _is_torn(found: bytes, whole: bytes) -> bool:
    """Return whether a power loss can have left these bytes of others: some, or zeros for some."""
    if whole.startswith(found):
        return True
    return len(found) <= len(whole) and all(
        one in (0, right) for one, right in zip(found, whole, strict=False)
    )


@contextmanager
def _refusing(path: str | Path) -> Iterator[None]:
    """Name what is there: a link, or a file in the place of a directory."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise _not_regular(path) from error
        raise


def _not_regular(path: str | Path) -> OSError:
    text = "is a link, or beyond one, or no regular file; the node opens no others there"
    return OSError(errno.ELOOP, text, str(path))
