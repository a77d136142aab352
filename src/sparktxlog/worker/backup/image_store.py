"""A directory of backup images: each is a donor on a disk, with the values of a lease.

    <name>/_image.json      manifest: position, tables, files with the digests of their chunks
    <name>/<table>/<path>   a file of a table as it was at the site; a commit table has its UUID
    .<worker id>.new/       a backup that is not finished; that replica's next one goes on there
    .<name>.gone/           an image that is being removed
    lock                    held while somebody writes

An image gets its name by one rename, so one with a name is complete.  Stored files never change: a
file that the replica's image before has too is a hard link to that one's.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from sparktxlog.errors import (
    CorruptLogError,
    InvalidNameError,
    InvalidRequestError,
    NotFoundError,
)
from sparktxlog.files.durability import (
    move_durably,
    remove_at_once,
    sync_directory,
    write_durably,
)
from sparktxlog.files.fetch import Progress, fetch_files
from sparktxlog.files.file_donors import StoredFiles
from sparktxlog.files.selection import require_space, select_files
from sparktxlog.files.tasks import FileTask
from sparktxlog.files.workspace import CopyWorkspace
from sparktxlog.model.copying import OfferedFile, OfferedTable
from sparktxlog.model.ids import local_path
from sparktxlog.storage.lock import LOCK_NAME, DirectoryLock

#: The format of a manifest; a later one is refused.
FORMAT_VERSION = 1
#: Size of the chunks whose digests a manifest has, except the last one of a file.
CHUNK_BYTES = 1 << 22
#: No table can have this name.
_MANIFEST = "_image.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
#: The first means the default name.
_RESERVED = frozenset({"default", LOCK_NAME})
#: Chunks that are read at once: one is written while another one is hashed.
_STREAMS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFile(OfferedFile):
    """A file of a table, by its path relative to the table's directory."""

    #: SHA-256 of each chunk, hexadecimal, one after the other.
    digests: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTable(OfferedTable):
    """A table at the image's position; the version is that of the site that was backed up."""

    #: Those of the version, ascending by path.
    files: tuple[ImageFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageCommitTable:
    """A commit table at one version, which may be later than the image's position."""

    #: `schema.table`, empty = no node was asked.
    name: str
    version: int
    #: Ascending by path.
    files: tuple[ImageFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A replica at one position; with the log after it, every later state."""

    name: str
    #: Wall clock, microseconds since 1970 UTC.
    created_at: int
    worker_id: str
    log_id: str
    epoch: int
    #: A run end; and the chain hash there, hexadecimal.
    position: int
    chain_hash: str
    tables: dict[str, ImageTable] = field(default_factory=dict)
    #: Node of the replica, empty = unknown.
    site: str = ""
    format_version: int = FORMAT_VERSION
    chunk_bytes: int = CHUNK_BYTES
    #: By UUID.
    commit_tables: dict[str, ImageCommitTable] = field(default_factory=dict)

    @property
    def all_files(self) -> list[tuple[str, ImageFile]]:
        """All files with their tables: a name, or the UUID of a commit table."""
        tables: dict[str, ImageTable | ImageCommitTable] = {**self.tables, **self.commit_tables}
        return [(name, file) for name, table in sorted(tables.items()) for file in table.files]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for _, file in self.all_files)

    @property
    def files(self) -> int:
        """Number of files."""
        return len(self.all_files)


class _Envelope(msgspec.Struct):
    #: SHA-256 of the image's bytes, hexadecimal.
    digest: str
    image: msgspec.Raw


def check_image_name(name: str) -> str:
    """Return the name of an image.

    Raises:
        InvalidNameError: It may not be used (definite).
    """
    if not _NAME.fullmatch(name) or name.lower() in _RESERVED:
        raise InvalidNameError(
            f"{name[:120]!r} cannot name a backup image",
            hint="1 to 100 letters, digits, dots, dashes and underscores; 'default' and 'lock' are "
            "reserved.",
            value=name[:120],
        )
    return name


class ImageStore:
    """The images of one directory.  Reading needs no lock; one process writes at a time.

    A reader of an image that is removed meanwhile gets a clear error about missing files.

    Raises:
        InvalidRequestError: The directory is elsewhere, or an earlier commit wrote it (definite).
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(local_path(str(root), "directory of images")).absolute()
        if (self.root / "known.jsonl").exists():
            raise InvalidRequestError(
                f"an earlier commit of sparktxlog wrote the images in {self.root}",
                hint="Name a new directory; restore those images with the commit that wrote them.",
                path=str(self.root),
            )

    # -- images ------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of all images, ascending."""
        found = (path.parent.name for path in self.root.glob(f"*/{_MANIFEST}"))
        return sorted(name for name in found if _NAME.fullmatch(name))

    def images(self) -> list[Image]:
        """Return all images, oldest first.

        Raises:
            CorruptLogError: A manifest is damaged.
        """
        found = [self.image(name) for name in self.names()]
        return sorted(found, key=lambda image: (image.created_at, image.name))

    def image(self, name: str) -> Image:
        """Return an image.

        Raises:
            NotFoundError: There is none of that name (definite).
            CorruptLogError: Its manifest is damaged, or of a newer release.
        """
        path = self.root / check_image_name(name) / _MANIFEST
        try:
            envelope = msgspec.json.decode(path.read_bytes(), type=_Envelope)
            image = msgspec.json.decode(envelope.image, type=Image)
        except (FileNotFoundError, NotADirectoryError):
            raise self._no_image(name) from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _damaged(path, str(error)) from error
        if hashlib.sha256(envelope.image).hexdigest() != envelope.digest:
            raise _damaged(path, "its digest is another one")
        if image.format_version != FORMAT_VERSION:
            raise _damaged(path, f"format {image.format_version} is not known here")
        # Its directory may have been renamed.
        return replace(image, name=name)

    def newest_of(self, worker_id: str) -> list[Image]:
        """Return the newest readable image of a replica, none if there is none."""
        made = {name: (self.root / name).stat().st_mtime_ns for name in self.names()}
        for name in sorted(made, key=lambda one: made[one], reverse=True):
            with suppress(CorruptLogError, NotFoundError):
                if (image := self.image(name)).worker_id == worker_id:
                    return [image]
        return []

    def _no_image(self, name: str) -> NotFoundError:
        return NotFoundError(
            f"there is no image {name!r} in {self.root}",
            hint=f"Images: {', '.join(self.names()[-10:]) or 'none'}.",
            name=name,
        )

    # -- writing -----------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the directory, which is made if missing.

        Raises:
            LockedError: Another process writes here (definite).
            StorageError: The directory cannot be made or written.
        """
        lock = DirectoryLock(self.root)
        try:
            yield
        finally:
            lock.release()

    def check_free(self, name: str) -> None:
        """Refuse a name that is taken; images are never overwritten.

        Raises:
            InvalidRequestError: An image of that name exists (definite).
        """
        if (self.root / check_image_name(name)).exists():
            raise InvalidRequestError(
                f"there is an image {name!r} in {self.root} already",
                hint="Choose another name, or none: the default name is the time.",
                name=name,
            )

    def unfinished(self, worker_id: str) -> Path:
        """Return the directory in which a replica's next image is made."""
        return self.root / f".{worker_id}.new"

    def add(self, image: Image) -> None:
        """Give the unfinished image its manifest and its name, durably.  Hold `writing`.

        Each file is complete; those that the image does not have are removed.

        Raises:
            InvalidRequestError: The name is taken (definite).
        """
        self.check_free(image.name)
        directory = self.unfinished(image.worker_id)
        directory.mkdir(exist_ok=True)
        wanted = {directory / table / file.path for table, file in image.all_files}
        for path in [*directory.rglob("*")]:
            if path not in wanted and not path.is_dir():
                path.unlink()
        content = msgspec.json.encode(image)
        envelope = _Envelope(digest=hashlib.sha256(content).hexdigest(), image=msgspec.Raw(content))
        write_durably(directory / _MANIFEST, msgspec.json.encode(envelope))
        for folder, _, _ in os.walk(directory):
            sync_directory(folder)
        move_durably(directory, self.root / image.name)

    def remove(self, names: Iterable[str] = (), *, dry_run: bool = False) -> tuple[int, int]:
        """Remove images, and what killed backups and removals left.  Hold `writing`.

        Returns:
            Number and bytes of the files that no other image has.

        Args:
            dry_run: Only count.

        Raises:
            NotFoundError: There is no image of a name (definite: nothing was removed).
        """
        images = [self.root / check_image_name(name) for name in names]
        for directory in images:
            if not (directory / _MANIFEST).exists():
                raise self._no_image(directory.name)
        left = [*self.root.glob(".*.new"), *self.root.glob(".*.gone")]
        freed = _freed([*left, *images])
        if not dry_run:
            for directory in left:
                shutil.rmtree(directory)
            for directory in images:
                remove_at_once(directory, directory.with_name(f".{directory.name}.gone"))
        return freed

    # -- files -------------------------------------------------------------------------------------

    def donor(self, image: Image) -> StoredFiles:
        """Return an image as what its files are fetched from."""
        return StoredFiles(
            root=self.root / image.name,
            chunk_bytes=image.chunk_bytes,
            known={(table, file.path): file.digests for table, file in image.all_files},
        )

    def fetch(
        self, image: Image, workspace: CopyWorkspace, tasks: Sequence[FileTask], tell: Progress
    ) -> None:
        """Stage files of an image in a workspace: verified, durable; those that are there, linked.

        Raises:
            CorruptLogError: A file is missing or damaged.
            DiskFullError, StorageError: A file cannot be staged.
            RemoteProtocolError: A path that leads elsewhere (definite: nothing was staged).
        """
        donor = self.donor(image)
        wanted = select_files(workspace, donor, tasks)
        require_space(workspace, wanted.works)
        fetch_files(workspace, donor, wanted, streams=_STREAMS, progress=tell)


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


def _damaged(path: Path, reason: str) -> CorruptLogError:
    return CorruptLogError(
        f"the backup's file {path} is damaged: {reason}", hint="Use another image.", path=str(path)
    )
