"""Containers of runs in append-only files next to the journal, which says where each one lies.

A container that is written into SQLite goes to the disk twice: into the write-ahead log, and into
the database.  So the containers of a large write lie in files, and rows of the journal name them:

    append …  sync  COMMIT     the bytes are on the disk before a row names them
    forget    COMMIT  remove   a file goes as a whole, once no row names it

A process appends to no file of a former one.  So bytes that no row names, such as those of a write
that a kill cut, need no repair; they go with their file.  A row that names bytes which are not
there, or are other ones, is damage: the journal is not opened.

A few files that nothing names stay as spares: each gets a new number, and is written over from its
beginning.  A sync of bytes that have their place on the disk takes a tenth of the time of one that
makes a file longer.

    16 bytes   magic "TXLOGPL1", then the number of the file, 64-bit, little endian
    …          containers, without gap or frame
"""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from sparktxlog.errors import CorruptLogError
from sparktxlog.files.durability import (
    move_durably,
    place_durably,
    storage_error,
    storing,
    sync_data,
    sync_directory,
)

_log = structlog.get_logger("sparktxlog.journal")

#: Name of its directory in the data directory.
PAYLOAD_LOG = "payload_log"
#: The containers of a write with at least so many bytes of them lie here.  Fewer are cheaper in
#: SQLite: a second sync costs more than writing them twice (docs/decisions/0102).
LEAST_BYTES = 64 << 10
#: A write begins a new file if the present one has so many bytes.
FILE_BYTES = 16 << 20
#: Spares that are kept at most, while so many files more have room on the disk.
_SPARES, _ROOM = 4, 16

_MAGIC = b"TXLOGPL1"
_HEAD = struct.Struct("<8sQ")
_SUFFIX = ".payloads"


class ContainerPlace(NamedTuple):
    """Where a container lies: file, first byte, bytes, and their CRC-32."""

    file: int
    start: int
    size: int
    check: int


class PayloadLog:
    """The files of one journal.  `read` and `size_bytes` may run in any thread, all else in one.

    Args:
        directory: Made when the first file is.
        named: Each file that a row names → the end of what rows name in it.

    Raises:
        CorruptLogError: A file is missing, too short, or another one.
        OSError: The disk fails.
    """

    def __init__(self, directory: Path, named: Iterable[tuple[int, int]]) -> None:
        self._directory = directory
        #: Each file that this process does not write → its bytes.
        self._whole = {
            int(path.stem): path.stat().st_size
            for path in directory.glob(f"*{_SUFFIX}")
            if path.stem.isdecimal()
        }
        ends = dict(named)
        for number, end in ends.items():
            self._check(number, end)
        #: Those of them that no row names, and that are to be written over.
        self._spares = list[int]()
        #: Number of the newest file.
        self._newest = max((0, *ends, *self._whole))
        #: What this process appends to, None = the next append makes it; where; its bytes as a
        #: spare.
        self._descriptor: int | None = None
        self._end = self._length = 0
        #: How many of its bytes are synced; and what has to be synced for its name.
        self._synced_to = 0
        self._unsynced_names: list[Path] = [directory, directory.parent]

    def _path_of(self, number: int) -> Path:
        return self._directory / f"{number:016}{_SUFFIX}"

    def _check(self, number: int, end: int) -> None:
        path = self._path_of(number)
        size = self._whole.get(number)
        if size is None:
            raise self.lost(path)
        with path.open("rb") as file:
            head = file.read(_HEAD.size)
        if head != _HEAD.pack(_MAGIC, number) or size < end:
            raise _damaged(path, f"it has {size:,} bytes, the journal names {end:,} in it")

    @staticmethod
    def lost(path: Path) -> CorruptLogError:
        """Return the error of a file that rows name and that is not there."""
        return _damaged(path, "it is missing")

    # -- any thread ----------------------------------------------------------------------------

    def read(self, place: ContainerPlace) -> bytes:
        """Return the bytes at a place.

        Raises:
            FileNotFoundError: No row names the file any more, or it is lost.
            CorruptLogError: They are other ones: so it may be if no row names them any more.
            StorageError: The disk fails.
        """
        path = self._path_of(place.file)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise storage_error(error, path) from error
        try:
            with storing(path):
                content = os.pread(descriptor, place.size, place.start)
        finally:
            os.close(descriptor)
        if len(content) != place.size or zlib.crc32(content) != place.check:
            raise _damaged(path, f"{place.size:,} bytes at {place.start:,} are other ones")
        return content

    def container(self, row: Sequence[Any]) -> bytes | None:
        """Return the container of a row that ends with PAYLOAD_COLUMNS; errors as `read`."""
        payload, *place = row[-5:]
        return payload if place[0] is None else self.read(ContainerPlace(*place))

    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(tuple(self._whole.values())) + max(self._end, self._length)

    # -- writing -------------------------------------------------------------------------------

    def begin(self) -> int:
        """Begin a write; return what `cut` takes."""
        if self._end >= FILE_BYTES:
            self._leave()
        return self._end

    def append(self, payload: bytes) -> ContainerPlace:
        """Append a container; it is durable after `sync`.

        Raises:
            DiskFullError: **After calling** `cut` nothing of it is left (definite).
            StorageError: The disk fails.
        """
        with storing(self._path_of(self._newest)):
            if self._descriptor is None:
                self._make()
            place = ContainerPlace(self._newest, self._end, len(payload), zlib.crc32(payload))
            self._put(payload)
        return place

    def sync(self) -> None:
        """Make what was appended durable.

        Raises:
            DiskFullError: **After calling** `cut` nothing of it is left (definite).
            StorageError: The disk fails.
        """
        if self._descriptor is None or self._synced_to == self._end:
            return
        with storing(self._path_of(self._newest)):
            sync_data(self._descriptor)
            while self._unsynced_names:
                sync_directory(self._unsynced_names[0])
                del self._unsynced_names[0]
        self._synced_to = self._end

    def cut(self, end: int) -> None:
        """Take back what was appended since `begin`: no row names it, nor will.

        Nothing is appended to that file any more: after a failed sync it may hold what no disk has.
        The disk may be full: no spare takes its space any longer.
        """
        self._keep_spares(0)
        if self._descriptor is None or self._end == end > 0:
            return
        number = self._newest
        with suppress(OSError):  # what stays is named by no row
            os.ftruncate(self._descriptor, end)
        self._end, self._length = end, 0
        self._leave()
        if not end:
            self._remove(number)

    def drop_unnamed(self, is_named: Callable[[int], bool], *, few: bool = False) -> None:
        """Remove the files that no row names, but for some spares.

        Args:
            is_named: Returns whether a row names a file.
            few: Whether the disk gets back what may be missed for a while, too.
        """
        if (few or self._end >= FILE_BYTES) and not is_named(self._newest):
            self._leave()
        for number in sorted(set(self._whole).difference(self._spares)):
            if not is_named(number):
                if self._whole[number] >= FILE_BYTES:
                    self._spares.append(number)
                else:
                    self._remove(number)
        if self._spares:
            scarce = shutil.disk_usage(self._directory).free < _ROOM * FILE_BYTES
            self._keep_spares(0 if few or scarce else _SPARES)

    def drop_all(self) -> None:
        """Remove all files: no row will be read any more."""
        self._leave()
        self._spares = list(self._whole)
        self._keep_spares(0)

    def keep(self, directory: Path) -> None:
        """Give all files second names below another directory, durably.

        Raises:
            OSError: Some may have them; repeat it.
        """
        paths = sorted(self._directory.glob(f"*{_SUFFIX}"))
        if paths:
            places = {directory / PAYLOAD_LOG / path.name: path for path in paths}
            place_durably(places, directory)

    def close(self) -> None:
        """Append no more; a second call does nothing."""
        self._leave()

    def _make(self) -> None:
        self._directory.mkdir(exist_ok=True)
        # Taken before anything can fail: what an attempt left never is in the way of the next.
        number = self._newest = self._newest + 1
        path, spare = self._path_of(number), None
        length, flags = 0, os.O_WRONLY | os.O_CLOEXEC
        try:
            if self._spares:
                spare = self._spares.pop()
                length = self._whole.pop(spare)
                move_durably(self._path_of(spare), path)
            else:
                flags |= os.O_CREAT | os.O_EXCL
            self._descriptor = os.open(path, flags, 0o666)
        except OSError:
            if spare is not None:  # it has one of the names
                self._remove(spare)
                self._remove(number)
            raise
        self._synced_to, self._end, self._length = 0, 0, length
        if self._directory not in self._unsynced_names:
            self._unsynced_names.insert(0, self._directory)
        self._put(_HEAD.pack(_MAGIC, number))

    def _put(self, content: bytes) -> None:
        assert self._descriptor is not None
        left = memoryview(content)
        while left:
            written = os.pwrite(self._descriptor, left, self._end)
            self._end += written
            left = left[written:]

    def _leave(self) -> None:
        """Append no more to the present file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._whole[self._newest] = max(self._end, self._length)
            self._descriptor, self._end, self._length = None, 0, 0

    def _keep_spares(self, most: int) -> None:
        for number in self._spares[most:]:
            self._remove(number)
        del self._spares[most:]

    def _remove(self, number: int) -> None:
        path = self._path_of(number)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("a file that nothing names stays", path=str(path), reason=str(error))
            return
        self._whole.pop(number, None)


def _damaged(path: Path, why: str) -> CorruptLogError:
    return CorruptLogError(
        f"{path} is damaged: {why}",
        hint="Put the file back.  If it is lost, move only journal.sqlite and its -wal and -shm "
        "files aside, nothing else: a node with peers then joins them again, and keeps its tables "
        "and payloads.  What it alone had accepted is lost.",
        path=str(path),
    )
