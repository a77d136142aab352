"""Makes files and their names survive a power loss."""

from __future__ import annotations

import errno
import filecmp
import os
import secrets
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from sparktxlog.errors import DiskFullError, StorageError
from sparktxlog.files.foreign_files import Linked, goes_on, open_regular, read_open

_BLOCK_BYTES = 64 << 10
#: How a file is opened to be synced: somebody may have put a pipe in its place.
_WITHOUT_WAITING = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
#: Files that are open at once to be synced.
_OPEN_AT_ONCE = 128

#: What a file gets: its bytes, or pieces of them in their order.
Content = bytes | memoryview | Iterable[bytes | memoryview]


def sync_file(path: str | Path) -> None:
    """Bring a file's bytes to the disk."""
    goes_on(path)
    descriptor = os.open(path, _WITHOUT_WAITING)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_data(descriptor: int) -> None:
    """Bring what was appended to an open file to the disk, with as much as reading it needs."""
    # Systems without it sync all that they know of the file.
    getattr(os, "fdatasync", os.fsync)(descriptor)


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


def sync_tree(root: Path) -> None:
    """Bring all files of a directory and their names to the disk, its own name not."""
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            sync_file(Path(folder, name))
        sync_directory(folder)


def link_new(source: Path, target: Path, *, copies: bool = True) -> bool:
    """Give a file a second name, unless that is taken; its directory is made if missing.

    **After calling** sync the directory of `target`; the bytes of a copy are synced.

    Args:
        copies: Whether a file that cannot have the name is copied.

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
        return link_new(source, target, copies=copies)
    except OSError:
        if not copies:
            raise
        target.parent.mkdir(parents=True, exist_ok=True)
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
        try:
            os.link(source, fresh)
        except OSError:
            # Another file system, one without hard links, or too many links.
            copy_durably(source, fresh)
        fresh.replace(target)
    finally:
        # A part of it, on a full disk; or both names are the same file: `rename` keeps both then.
        fresh.unlink(missing_ok=True)


def copy_durably(source: Path, target: Path) -> None:
    """Copy a regular file with its times to a new name; its bytes are synced, the name is not.

    Raises:
        OSError: A part of it may have the name; or something else has it.
    """
    with os.fdopen(open_regular(source), "rb") as content, open(target, "xb") as copy:
        shutil.copyfileobj(content, copy)
        copy.flush()
        shutil.copystat(source, target)  # a write sets the time, too
        os.fsync(copy.fileno())


def place_durably(places: Mapping[Path, Path], root: Path, *, replaces: bool = True) -> None:
    """Give files second names below a directory, or copy them; bytes and names are durable then.

    Args:
        places: Name → file that gets it, in their order.  Directories of names are made.
        root: The directory; it is there.
        replaces: Whether whatever has a name already is replaced, each in one step.

    Raises:
        FileExistsError: Something else has a name, and is not replaced.
        OSError: Some may have their names; repeat it.
    """
    for target, source in places.items():
        sync_file(source)
        if target.exists() and target.samefile(source):
            continue  # an attempt before may not have synced the name
        target.parent.mkdir(parents=True, exist_ok=True)
        if replaces:
            link_or_copy(source, target)
        elif not link_new(source, target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    sync_parents(places, root)


def place_tree(source: Path, target: Path, *, links: bool = True) -> None:
    """Give all files of a directory second names in another one, or copy them, durably.

    **After calling** sync the directory of `target`.

    Args:
        links: False: each is copied, since somebody may write into it.

    Raises:
        OSError: Parts may be there.
    """

    def refuse(error: OSError) -> None:
        raise error

    place = link_or_copy if links else copy_durably
    for folder, _, names in os.walk(source, onerror=refuse):
        inside = target / Path(folder).relative_to(source)
        inside.mkdir(parents=True, exist_ok=True)
        for name in names:
            place(Path(folder) / name, inside / name)
        sync_directory(inside)


def move_durably(source: Path, target: Path) -> None:
    """Give a file or directory another name on its disk, in one step.

    Raises:
        OSError: It has one of the names; the new one is perhaps not durable.
    """
    source.rename(target)
    sync_directory(target.parent)  # first: after a power loss it has both names rather than none
    if source.parent != target.parent:
        with suppress(FileNotFoundError):  # somebody removed what was left empty
            sync_directory(source.parent)


def remove_at_once(directory: Path, gone: Path) -> None:
    """Remove a directory, which disappears in one step.

    Args:
        gone: A name for what is being removed; a kill or an error leaves some of it there.

    Raises:
        OSError: It is there still, or some of it under the other name.
    """
    move_durably(directory, gone)
    shutil.rmtree(gone)


def create_file(path: Path, content: bytes | Path, *, durable: bool = True) -> Linked:
    """Give a file its name, unless that is taken; it appears whole.

    An answer that is lost does no harm: what has the name is compared.

    Args:
        content: Its bytes; or a durable file, which gets a second name, or is copied where it
            cannot have one.
        durable: Bytes are synced before they get the name; the name never is.

    Returns:
        What then has the name.

    Raises:
        OSError: Nothing has it; or nobody knows.
    """
    fresh = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        if isinstance(content, Path):
            link_or_copy(content, fresh)
        else:
            fresh.write_bytes(content)
            if durable:
                sync_file(fresh)
        try:
            os.link(fresh, path)
        except OSError:
            if not path.exists():
                raise
        if path.samefile(fresh):
            return Linked.SAME
        return Linked.EQUAL if filecmp.cmp(fresh, path, shallow=False) else Linked.OTHER
    finally:
        fresh.unlink(missing_ok=True)


def drop_uncreated(directory: Path) -> None:
    """Remove what kills left of files that were to get a name there; nobody may be at it.

    Raises:
        OSError: The disk fails.
    """
    for name in (f".{'[0-9a-f]' * 32}.tmp", f".{'[0-9a-f]' * 16}.new"):  # `create_file`, stores
        for path in directory.glob(name):
            path.unlink(missing_ok=True)


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


def write_at_once(path: Path, content: Content, *, mode: int = 0o666) -> None:
    """Replace a file in one step for whoever reads it; a power loss may leave a part of it.

    Args:
        mode: Its rights, before those are taken away that new files do not have.

    Raises:
        OSError: The file is the old one.
    """
    fresh = path.with_name(f".{secrets.token_hex(8)}.new")  # others may write it, too
    try:
        _write_fresh(fresh, content, mode)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def write_durably(path: Path, content: Content) -> None:
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


def _write_fresh(path: Path, content: Content, mode: int = 0o666) -> None:
    """Write a file of its own under a name, never through a link that somebody put there."""
    path.unlink(missing_ok=True)
    with open(path, "xb", opener=lambda name, how: os.open(name, how, mode)) as file:
        file.writelines([content] if isinstance(content, bytes | memoryview) else content)


def storage_error(error: OSError, path: str | Path) -> StorageError:
    """Return the error of this project for a system error."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(
            f"no space left for {path}",
            hint="Free space on that disk; then try again.",
            path=str(path),
        )
    return StorageError(f"{path} failed: {error.strerror or error}", path=str(path))
