"""Images in a directory: each is a directory of Delta tables, and files are shared by hard links.

    <name>/_image.json      manifest: position, tables, files with the digests of their chunks
    <name>/<table>/<path>   a file of a table as it was at the site; a commit table has its UUID
    .<worker id>.new/       a backup that is not finished; that replica's next one goes on there
    .<name>.gone/           an image that is being removed
    lock                    held while somebody writes

An image gets its name by one rename.  A file that the replica's image before has too is a hard link
to that one's.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

from sparktxlog.errors import CorruptLogError, InvalidRequestError
from sparktxlog.files.durability import (
    link_new,
    move_durably,
    place_durably,
    remove_at_once,
    storing,
    sync_directory,
    write_durably,
)
from sparktxlog.files.part_writer import chunk_buffer, complete_part, write_chunk
from sparktxlog.files.selection import is_file
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.files.stores.store_failures import missing
from sparktxlog.files.tasks import hash_chunks
from sparktxlog.model.ids import local_path
from sparktxlog.storage.lock import DirectoryLock
from sparktxlog.worker.backup.image import CHUNK_BYTES, Image, ImageFile, manifest_of
from sparktxlog.worker.backup.image_store import (
    IMAGE_NAME,
    ImageStore,
    KeptFile,
    ToKeep,
    check_image_name,
)
from sparktxlog.worker.backup.originals import DiskOriginal, Original, VersionGoneError

#: No table can have this name.
_MANIFEST = "_image.json"


class _Directory(DiskStore):
    """The directory: nobody else writes there, so a file is read by its path, at once."""

    def read_into(self, key: str, offset: int, into: memoryview) -> int:
        path = self.url_of(key)
        with storing(path):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise missing(path, "read it") from None
            try:
                return os.preadv(descriptor, [into], offset)
            finally:
                os.close(descriptor)


class DiskImages(ImageStore):
    """The images of one directory.

    Raises:
        InvalidRequestError: The directory is elsewhere, or an earlier commit wrote it (definite).
    """

    #: One is written while another one is hashed.
    streams = 2

    def __init__(self, root: str | Path) -> None:
        self.root = Path(local_path(str(root), "directory of images")).absolute()
        if (self.root / "known.jsonl").exists():
            raise InvalidRequestError(
                f"an earlier commit of sparktxlog wrote the images in {self.root}",
                hint="Name a new directory; restore those images with the commit that wrote them.",
                path=str(self.root),
            )
        self.store = _Directory(self.root)

    def made(self) -> dict[str, float]:
        """As `ImageStore.made`."""
        found = (path.parent for path in self.root.glob(f"*/{_MANIFEST}"))
        return {one.name: one.stat().st_mtime_ns for one in found if IMAGE_NAME.fullmatch(one.name)}

    def manifest_key(self, name: str) -> str:
        """As `ImageStore.manifest_key`."""
        return f"{name}/{_MANIFEST}"

    def file_key(self, image: str, table: str, file: ImageFile) -> str:
        """As `ImageStore.file_key`."""
        return f"{image}/{table}/{file.path}"

    def sizes(self, image: Image) -> dict[str, int]:
        """As `ImageStore.sizes`."""
        return {found.key: found.size_bytes for found in self.store.list(image.name)}

    def original(self, key: str) -> Original:
        """As `ImageStore.original`."""
        return DiskOriginal.found(self.root / key)

    def check_free(self, name: str) -> None:
        """As `ImageStore.check_free`; anything else of that name counts, too."""
        if (self.root / check_image_name(name)).exists():
            raise self.taken(name)

    def unfinished(self, worker_id: str) -> Path:
        """Return the directory in which a replica's next image is made."""
        return self.root / f".{worker_id}.new"

    @contextmanager
    def writing(self) -> Iterator[_Writer]:
        """As `ImageStore.writing`."""
        lock = DirectoryLock(self.root)
        try:
            yield _Writer(self, chunk_buffer(CHUNK_BYTES))
        finally:
            lock.release()


class _Writer:
    """Methods are those of `ImageWriter`."""

    at_once = 1

    def __init__(self, images: DiskImages, buffer: memoryview) -> None:
        self.images, self._buffer = images, buffer

    def keep(self, worker_id: str, wanted: ToKeep) -> KeptFile:
        """As `ImageWriter.keep`."""
        size, before = wanted.original.size_bytes, wanted.before
        target = self.images.unfinished(worker_id) / wanted.table / wanted.path
        target.parent.mkdir(parents=True, exist_ok=True)
        digests, is_whole = "", False
        if before is not None:
            key = self.images.file_key(before.image, wanted.table, before.file)
            place = self.images.root / key
            is_whole = is_file(place, size) and _has_time(place, before.file.modified_at)
            if not is_whole and self.images.whole(key, before.file, wanted.chunk_bytes):
                is_whole, at = True, wanted.original.modified_ns
                os.utime(place, ns=(at, at))  # it need not be read again
            if is_whole and _link(place, target):
                return KeptFile(before.file, is_new=False)
        elif is_file(target, size) and target.stat().st_mtime_ns == wanted.original.modified_ns:
            # Its name came after its bytes.
            digests = "".join(hash_chunks(target, size, wanted.chunk_bytes))
        if is_new := not digests:
            digests = _copy(wanted.original, target, self._buffer[: wanted.chunk_bytes])
        file = wanted.as_kept(digests)
        is_mended = not is_whole and wanted.was_kept(file)
        if is_mended:
            self._mend(wanted.table, file, target)
        return KeptFile(file, is_new, is_mended)

    def _mend(self, table: str, file: ImageFile, whole: Path) -> None:
        """Give a whole file to all images whose own is missing, or was written since."""
        for path in self._places.get((table, file.path, file.digests), ()):
            if not is_file(path, file.size_bytes) or not _has_time(path, file.modified_at):
                place_durably({path: whole}, self.images.root)

    @cached_property
    def _places(self) -> dict[tuple[str, str, str], list[Path]]:
        """(table, path, digests) → where images have such a file; of damaged manifests none."""
        found: dict[tuple[str, str, str], list[Path]] = {}
        for name in self.images.names():
            with suppress(CorruptLogError):
                for table, file in self.images.image(name).all_files:
                    place = self.images.root / self.images.file_key(name, table, file)
                    found.setdefault((table, file.path, file.digests), []).append(place)
        return found

    def add(self, image: Image) -> None:
        """As `ImageWriter.add`; files that the image does not have are removed."""
        self.images.check_free(image.name)
        directory = self.images.unfinished(image.worker_id)
        directory.mkdir(exist_ok=True)
        wanted = {directory / table / file.path for table, file in image.all_files}
        for path in [*directory.rglob("*")]:
            if path not in wanted and not path.is_dir():
                path.unlink()
        write_durably(directory / _MANIFEST, manifest_of(image))
        for folder, _, _ in os.walk(directory):
            sync_directory(folder)
        move_durably(directory, self.images.root / image.name)

    def remove(self, names: Iterable[str] = (), *, dry_run: bool = False) -> tuple[int, int]:
        """As `ImageWriter.remove`."""
        root = self.images.root
        images = [root / check_image_name(name) for name in names]
        for directory in images:
            if not (directory / _MANIFEST).exists():
                raise self.images.no_image(directory.name)
        left = [*root.glob(".*.new"), *root.glob(".*.gone")]
        freed = _freed([*left, *images])
        if not dry_run:
            for directory in left:
                shutil.rmtree(directory)
            for directory in images:
                remove_at_once(directory, directory.with_name(f".{directory.name}.gone"))
        return freed


def _has_time(place: Path, modified_at: int) -> bool:
    """Return whether a stored file has the time that it was given, microseconds since 1970 UTC.

    Some file systems keep only every second one.
    """
    stored_ns = place.stat().st_mtime_ns
    off_us = abs(stored_ns // 1_000 - modified_at)
    return off_us == 0 or (stored_ns % 1_000_000_000 == 0 and off_us < 2_000_000)


def _link(place: Path, target: Path) -> bool:
    """Link a stored file; False if it cannot have one name more."""
    target.unlink(missing_ok=True)
    try:
        return link_new(place, target, copies=False)
    except OSError:
        return False


def _copy(original: Original, target: Path, buffer: memoryview) -> str:
    """Copy a file, durably and with its time; return the digests of its chunks.

    Raises:
        VersionGoneError: It is not the one that was found.
    """
    part, done, digests = target.with_name(f"{target.name}.part"), 0, list[str]()
    for chunk in original.chunks(buffer):
        write_chunk(part, chunk, done)
        digests.append(hashlib.sha256(chunk).hexdigest())
        done += len(chunk)
    if done != original.size_bytes:
        raise VersionGoneError(f"{original.url} changed while it was read")
    complete_part(part, target, done, original.modified_ns)
    return "".join(digests)


def _freed(directories: Iterable[Path]) -> tuple[int, int]:
    """Return number and bytes of the files that have no name outside of some directories."""
    names, found = Counter[int](), dict[int, os.stat_result]()
    for directory in directories:
        for path in directory.rglob("*"):
            if path.is_file():
                status = path.lstat()
                names[status.st_ino] += 1
                found[status.st_ino] = status
    last = [found[inode].st_size for inode in found if found[inode].st_nlink == names[inode]]
    return len(last), sum(last)
