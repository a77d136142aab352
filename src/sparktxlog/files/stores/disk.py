"""A directory of this machine as a store: files with hard links, forced to the disk.

A file gets its name when its bytes are durable, by one step.  Spark sessions may write below the
same directory, so files are opened as those of others (decision 72).
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path

from sparktxlog.errors import InvalidNameError, ObjectMissingError, StorageError
from sparktxlog.files.durability import (
    storing,
    sync_directory,
    sync_file,
    sync_parents,
)
from sparktxlog.files.foreign_files import INCOMING, ForeignFile, goes_on, read_open
from sparktxlog.files.stores.store import PIECE_BYTES, Created, Found, OpenContent, same_bytes
from sparktxlog.files.stores.store_failures import missing
from sparktxlog.model.ids import check_relative_path

#: Names that files have before they get their own; also after a crash.
_PASSING = re.compile(r"\.[0-9a-f]{16}\.new")
#: Attempts to create what appears and disappears.
_ATTEMPTS = 5


class DiskStore:
    """A directory.  Methods are those of `Store`.

    Args:
        root: It is made when something is put there.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def __repr__(self) -> str:
        return f"DiskStore({self.url!r})"

    @property
    def url(self) -> str:
        """As `Store.url`."""
        return str(self._root)

    def url_of(self, key: str) -> str:
        """As `Store.url_of`."""
        return f"{self._root}/{key}"

    def find(self, key: str) -> Found | None:
        """As `Store.find`."""
        file = self._file(key)
        with storing(file.path):
            try:
                status = file.status()
            except FileNotFoundError:
                return None
        return _found(key, status) if stat.S_ISREG(status.st_mode) else None

    def read(self, key: str, *, offset: int = 0, size: int | None = None) -> bytes:
        """As `Store.read`."""
        with self._opened(key) as content:
            if offset == 0 and size is None:
                return read_open(content.fileno())
            content.seek(offset)
            return io.BufferedReader(content).read(-1 if size is None else size)

    def read_into(self, key: str, offset: int, into: memoryview) -> int:
        """As `Store.read_into`."""
        with self._opened(key) as content:
            return os.preadv(content.fileno(), [into], offset)

    def reader(self, key: str) -> FileIO:
        """As `Store.reader`."""
        file = self._file(key)
        with storing(file.path):
            try:
                return file.open()
            except FileNotFoundError:
                raise missing(file.path, "read it") from None

    def open(self, key: str, *, offset: int = 0) -> OpenContent:
        """As `Store.open`."""
        with ExitStack() as opened:
            content = opened.enter_context(self._opened(key))
            found = _found(key, os.fstat(content.fileno()))
            content.seek(offset)
            return OpenContent(found, self._pieces(found, content, offset, opened.pop_all()))

    def _pieces(
        self, found: Found, content: FileIO, at: int, opened: ExitStack
    ) -> Generator[bytes, None, None]:
        with opened:
            while piece := content.read(PIECE_BYTES):
                goes_on(self.url_of(found.key))
                at += len(piece)
                yield piece
        if at < found.size_bytes:
            raise StorageError(
                f"{self.url_of(found.key)} became shorter while it was read",
                hint="Somebody writes into it.",
                url=self.url_of(found.key),
            )

    @contextmanager
    def _opened(self, key: str) -> Iterator[FileIO]:
        with storing(self.url_of(key)), self.reader(key) as content:
            yield content

    def create(self, key: str, content: bytes | Path, *, alone: bool = False) -> Created:
        """As `Store.create`."""
        if isinstance(content, bytes):
            target = self._file(key)
            return self._name(lambda: target.put_new(content), key, content)
        source = self._durable(content)
        return self._name(lambda: source.link_new(self._file(key)), key, content)

    def replace(self, key: str, content: bytes | Path) -> None:
        """As `Store.replace`."""
        target = self._file(key)
        with storing(target.path):
            if isinstance(content, bytes):
                target.replace(content)
            else:
                self._durable(content).link_as(target)
            sync_parents([target.path], self._root)

    def copy(self, source: str, target: str) -> Created:
        """As `Store.copy`: a second name, where the disk has such."""
        given, _ = self._file(source), self._file(target)
        with self._opened(source) as content:
            os.fsync(content.fileno())  # others wrote it, perhaps
        return self._name(lambda: given.link_new(self._file(target)), target, Path(given.path))

    def _name(self, make: Callable[[], bool], key: str, content: bytes | Path) -> Created:
        """Give durable bytes the name of a key, unless that has bytes, which are compared.

        Args:
            make: Does it; returns whether the key has them.
        """
        target = self._file(key)
        for _ in range(_ATTEMPTS):
            with storing(target.path):
                if make():
                    sync_parents([target.path], self._root)
                    return Created.NEW
                with suppress(ObjectMissingError):  # removed meanwhile
                    with self._opened(key) as found:
                        os.fsync(found.fileno())
                    sync_parents([target.path], self._root)
                    same = same_bytes(content, self.open(key).pieces)
                    return Created.EQUAL if same else Created.OTHER
        raise StorageError(
            f"{target.path} was there and was not there, {_ATTEMPTS} times in turn",
            hint="Look what else creates and removes it.",
            url=target.path,
        )

    def _durable(self, content: Path) -> ForeignFile:
        """Bring the bytes of a file to the disk."""
        with storing(content):
            sync_file(content)
        return ForeignFile(str(content.parent), content.name)

    def list(self, prefix: str = "") -> Iterator[Found]:
        """As `Store.list`."""
        top = self._root / check_relative_path(prefix) if prefix else self._root
        with storing(top):
            if not top.is_dir():
                return
            for directory, names, files, descriptor in os.fwalk(top, onerror=_refuse):
                goes_on(directory)
                below = Path(directory).relative_to(self._root)
                if not below.parts:
                    names[:] = [name for name in names if name != INCOMING]
                for name in files:
                    if _PASSING.fullmatch(name):
                        continue
                    try:
                        status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    if stat.S_ISREG(status.st_mode):
                        yield _found((below / name).as_posix(), status)

    def names(self, directory: str) -> Sequence[str]:
        """As `Store.names`."""
        top = self._root / check_relative_path(directory)
        with storing(top), suppress(FileNotFoundError), os.scandir(top) as found:
            return [
                one.name
                for one in found
                if one.is_file(follow_symlinks=False) and not _PASSING.fullmatch(one.name)
            ]
        return []

    def directories(self, directory: str) -> Sequence[str]:
        """As `Store.directories`."""
        top = self._root / check_relative_path(directory)
        with storing(top), suppress(FileNotFoundError), os.scandir(top) as found:
            return [one.name for one in found if one.is_dir(follow_symlinks=False)]
        return []

    def remove(self, keys: Iterable[str]) -> None:
        """As `Store.remove`."""
        directories = set[str]()
        for key in keys:
            file = self._file(key)
            with storing(file.path), suppress(FileNotFoundError):
                file.remove()
                directories.add(file.path.rpartition("/")[0])
        for directory in directories:
            with storing(directory), suppress(FileNotFoundError):
                sync_directory(directory)

    def _file(self, key: str) -> ForeignFile:
        check_relative_path(key)
        if key.startswith(f"{INCOMING}/") or _PASSING.fullmatch(key.rpartition("/")[2]):
            raise InvalidNameError(
                f"{key[:140]!r} is a name that the store itself gives",
                hint="Choose another name.",
                value=key[:140],
            )
        return ForeignFile(self.url, key)


def _found(key: str, status: os.stat_result) -> Found:
    mark = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    return Found(key, status.st_size, status.st_mtime, mark)


def _refuse(error: OSError) -> None:
    """Let `fwalk` fail, except where a directory is missing or was removed meanwhile."""
    if not isinstance(error, FileNotFoundError):
        raise error
