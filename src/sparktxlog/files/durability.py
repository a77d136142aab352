"""Makes files and their names survive a power loss."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from sparktxlog.errors import DiskFullError, StorageError
from sparktxlog.files.foreign_files import goes_on, open_regular, read_open

_BLOCK_BYTES = 64 << 10
#: How a file is opened to be synced: somebody may have put a pipe in its place.
_WITHOUT_WAITING = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
#: Files that are open at once to be synced.
_OPEN_AT_ONCE = 128


def sync_file(path: str | Path) -> None:
    """Bring a file's bytes to the disk."""
    goes_on(path)
    descriptor = os.open(path, _WITHOUT_WAITING)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_several(paths: Sequence[str]) -> None:
    """Bring files and directories to the disk, in their order, as far as they are there still.

    The system begins to write many before the first is waited for: so the others wait less.  After
    a failure the bytes are there to be written by the next attempt.

    Raises:
        StorageError: The disk fails.
    """
    for first in range(0, len(paths), _OPEN_AT_ONCE):
        opened = list[tuple[str, int]]()
        try:
            for path in paths[first : first + _OPEN_AT_ONCE]:
                goes_on(path)
                with storing(path), suppress(FileNotFoundError):
                    opened.append((path, os.open(path, _WITHOUT_WAITING)))
            if hasattr(os, "posix_fadvise"):
                for _, descriptor in opened:
                    with suppress(OSError):  # the sync says it
                        # Bytes that are not written yet are not dropped: it begins to write them.
                        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            for path, descriptor in opened:
                goes_on(path)
                with storing(path):
                    _sync_or_rewrite(path, descriptor)
        finally:
            for _, descriptor in opened:
                os.close(descriptor)


def sync_or_rewrite(path: str | Path) -> None:
    """As `sync_file`; after a failure the bytes are there to be written by the next attempt."""
    goes_on(path)
    descriptor = os.open(path, _WITHOUT_WAITING)
    try:
        _sync_or_rewrite(path, descriptor)
    finally:
        os.close(descriptor)


def _sync_or_rewrite(path: str | Path, descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError:
        with suppress(OSError), os.fdopen(open_regular(path, os.O_RDWR), "r+b") as file:
            _write_again(file)
        raise


def rewrite_file(path: str | Path) -> None:
    """Write a file's bytes again in their place, and bring them to the disk.

    After a failed fsync the system may treat unwritten pages as written; this writes them.
    """
    with os.fdopen(open_regular(path, os.O_RDWR), "r+b") as file:
        _write_again(file)
        os.fsync(file.fileno())


def _write_again(file: BinaryIO) -> None:
    """Write a file's bytes in their place."""
    position = 0
    while block := file.read(_BLOCK_BYTES):
        file.seek(position)
        position += file.write(block)
        # A buffered file must be positioned between reading and writing.
        file.seek(position)
    file.flush()


def sync_directory(path: str | Path) -> None:
    """Bring a directory's names to the disk."""
    goes_on(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_parents(paths: Iterable[str | Path], root: str | Path) -> None:
    """Bring the names of files to the disk, in every directory from theirs up to `root`."""
    for directory in parents_up_to(paths, root):
        sync_directory(directory)


def parents_up_to(paths: Iterable[str | Path], root: str | Path) -> list[Path]:
    """Return every directory from those of files up to `root`, each once, the deepest first."""
    top = Path(root)
    directories: set[Path] = set()
    for path in paths:
        for parent in Path(path).parents:
            if parent in directories:
                break
            directories.add(parent)
            if parent == top:
                break
    return sorted(directories, reverse=True)


def link_new(source: Path, target: Path) -> bool:
    """Give a file a second name, unless that is taken; its directory is made if missing.

    **After calling** sync the directory of `target`; the bytes of a copy are synced.

    Returns:
        Whether it is new there.

    Raises:
        FileNotFoundError: There is no such file.
        OSError: It can neither be linked nor copied.
    """
    try:
        os.link(source, target)  # one call for each of many files
    except FileExistsError:
        return False
    except FileNotFoundError:
        if not source.exists():
            raise
        target.parent.mkdir(parents=True, exist_ok=True)
        return link_new(source, target)
    except OSError:
        link_or_copy(source, target)
    return True


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name; whatever had that name is replaced in one step.

    **After calling** sync the directory of `target`; the bytes of a copy are synced.

    Raises:
        OSError: The file can neither be linked nor copied.
    """
    fresh = target.with_name(f".{target.name}.new")
    fresh.unlink(missing_ok=True)
    try:
        os.link(source, fresh)
    except OSError:
        # Another file system, one without hard links, or too many links.
        with os.fdopen(open_regular(source), "rb") as content, open(fresh, "xb") as copy:
            shutil.copyfileobj(content, copy)
            shutil.copystat(source, fresh)
            copy.flush()
            os.fsync(copy.fileno())
    fresh.replace(target)
    # If both names are the same file, `rename` keeps both.
    fresh.unlink(missing_ok=True)


def read_whole(path: str | Path) -> bytes:
    """Return the bytes of a file, with fewer calls of the system than `Path.read_bytes`.

    It must be a regular one, no link; a file below directories of others is a `ForeignFile`.
    """
    descriptor = open_regular(path)
    try:
        return read_open(descriptor)
    finally:
        os.close(descriptor)


def free_name(path: Path) -> Path:
    """Return a free name: this one, or with a number after it."""
    found, number = path, 1
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file in one step: after a crash it is either the old or the new one.

    Raises:
        OSError: The file is the old or the new one.
    """
    fresh = path.with_name(f"{path.name}.new")
    _write_fresh(fresh, content)
    sync_file(fresh)
    fresh.replace(path)
    sync_directory(path.parent)


@contextmanager
def storing(path: str | Path) -> Iterator[None]:
    """Convert a system error about a file into an error of this project.

    Raises:
        DiskFullError: No space left (definite).
        StorageError: The disk fails.
    """
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from error


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """Replace a file; its directory is made if missing.  **After calling** sync.

    The old file may be linked elsewhere, so it is not written into.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_fresh(path, content)


def _write_fresh(path: Path, content: bytes | memoryview) -> None:
    """Write a file of its own under a name, never through a link that somebody put there."""
    path.unlink(missing_ok=True)
    with open(path, "xb") as file:
        file.write(content)


def storage_error(error: OSError, path: str | Path) -> StorageError:
    """Return the error of this project for a system error."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(
            f"no space left for {path}",
            hint="Free space on that disk; then try again.",
            path=str(path),
        )
    return StorageError(f"{path} failed: {error.strerror or error}", path=str(path))
