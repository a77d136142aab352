"""A place of backup images: a directory, or a prefix of a bucket.

Each image is a donor (`StoredFiles`), with the values of a lease.  An image is there when its
manifest is, which comes last; so one that is there is complete.  Stored files never change.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sparktxlog.delta.log_files import is_in_log
from sparktxlog.errors import (
    CorruptLogError,
    InvalidNameError,
    InvalidRequestError,
    NotFoundError,
    ObjectMissingError,
)
from sparktxlog.files.fetch import Progress, fetch_files
from sparktxlog.files.file_donors import StoredFiles
from sparktxlog.files.selection import require_space, select_files
from sparktxlog.files.stores.store import Store
from sparktxlog.files.tasks import FileTask
from sparktxlog.files.workspace import CopyWorkspace
from sparktxlog.storage.lock import LOCK_NAME
from sparktxlog.worker.backup.image import Image, ImageFile, image_of
from sparktxlog.worker.backup.originals import Original, VersionGoneError, digests_of

IMAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
#: The first means the default name.
_RESERVED = frozenset({"default", LOCK_NAME})


@dataclass(frozen=True, slots=True, kw_only=True)
class ToKeep:
    """A file of the site, which an image gets."""

    #: A name, or the UUID of a commit table.
    table: str
    #: Below the table.
    path: str
    original: Original
    #: Those of the image, except the last one of the file.
    chunk_bytes: int
    #: The file in the replica's image before, if it has name, size and time of this one.
    before: Before | None

    def as_kept(self, digests: str) -> ImageFile:
        """Return what a manifest says of it, once what is stored of it was found damaged or absent.

        Raises:
            CorruptLogError: Nor has the site the bytes of before: data files never change.
        """
        before = self.before
        if before is not None and before.file.digests != digests and not is_in_log(self.path):
            raise CorruptLogError(
                f"{self.original.url} has other bytes than in image {before.image!r}, with the "
                "same name, size and time; and the image has lost its own",
                hint="The replica is damaged: recount it with `sparktxlog verify`, and repair it, "
                "or back up another site's.",
                table=self.table,
                path=self.original.url,
            )
        return ImageFile(
            path=self.path,
            size_bytes=self.original.size_bytes,
            modified_at=self.original.modified_ns // 1000,
            digests=digests,
        )

    def was_kept(self, file: ImageFile) -> bool:
        """Return whether the image before has a file with the bytes of this one."""
        return self.before is not None and self.before.file.digests == file.digests


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """A file of the replica's image before, with name, size and time of an original."""

    image: str
    file: ImageFile


class KeptFile(NamedTuple):
    """A file of an image that is made."""

    file: ImageFile
    #: Its bytes were stored now.
    is_new: bool
    #: They had been stored before, and were missing or others by now; old images have them again.
    is_mended: bool = False


class ImageWriter(Protocol):
    """Writes images to one place, which nobody else does meanwhile.

    Errors of all methods, in addition to those that they name:
        LockedError: Another process writes there by now (definite).
        StorageError: As `Store`; what is stored is used by the next attempt.
        OSError: A disk fails.
    """

    @property
    def at_once(self) -> int:
        """How many files are stored at the same time."""

    def keep(self, worker_id: str, wanted: ToKeep) -> KeptFile:
        """Store a file of a replica's next image, durably, unless its bytes are there.

        What is stored is taken for whole if it was not written since the image before.  Else it is
        read and compared, and mended.

        Raises:
            VersionGoneError: It changed while it was read.
            CorruptLogError: As `ToKeep.as_kept`.
        """

    def add(self, image: Image) -> None:
        """Make the image whose files were kept, durably.

        Raises:
            InvalidRequestError: The name is taken (definite).
        """

    def remove(self, names: Iterable[str] = (), *, dry_run: bool = False) -> tuple[int, int]:
        """Remove images, and what killed backups and removals left.

        Returns:
            Number and bytes of the files that no other image has.

        Args:
            dry_run: Only count.

        Raises:
            NotFoundError: There is no image of a name (definite: nothing was removed).
        """


def check_image_name(name: str) -> str:
    """Return the name of an image.

    Raises:
        InvalidNameError: It may not be used (definite).
    """
    if not IMAGE_NAME.fullmatch(name) or name.lower() in _RESERVED:
        raise InvalidNameError(
            f"{name[:120]!r} cannot name a backup image",
            hint="1 to 100 letters, digits, dots, dashes and underscores; 'default' and 'lock' are "
            "reserved.",
            value=name[:120],
        )
    return name


class ImageStore(ABC):
    """The images of one place.  Reading needs no lock; one process writes at a time.

    A reader of an image that is removed meanwhile gets a clear error about missing files.
    Errors of all methods, in addition to those that they name, as `Store`.
    """

    #: What all keys are below.
    store: Store
    #: Chunks that are fetched at once.
    streams: int

    @property
    def url(self) -> str:
        """Where it is, for messages: a path or a URL."""
        return self.store.url

    @abstractmethod
    def made(self) -> dict[str, float]:
        """Return the name of each image and when it was made, in any unit, to compare."""

    @abstractmethod
    def manifest_key(self, name: str) -> str:
        """Return the key of an image's manifest."""

    @abstractmethod
    def file_key(self, image: str, table: str, file: ImageFile) -> str:
        """Return the key of a file's bytes."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[ImageWriter]:
        """Lock the place, which is made if missing.

        Raises:
            LockedError: Another process writes here (definite).
            StorageError: It cannot be made or written.
        """

    @abstractmethod
    def sizes(self, image: Image) -> dict[str, int]:
        """Return the bytes of each key that the image may have."""

    @abstractmethod
    def original(self, key: str) -> Original:
        """Return the file under a key.

        Raises:
            FileNotFoundError: It is not there.
        """

    def names(self) -> list[str]:
        """Return the names of all images, ascending."""
        return sorted(self.made())

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
        key = self.manifest_key(check_image_name(name))
        try:
            manifest = self.store.read(key)
        except ObjectMissingError:
            raise self.no_image(name) from None
        return image_of(manifest, name, self.store.url_of(key))

    def newest_of(self, worker_id: str) -> list[Image]:
        """Return the newest readable image of a replica, none if there is none."""
        made = self.made()
        for name in sorted(made, key=lambda one: made[one], reverse=True):
            with suppress(CorruptLogError, NotFoundError):
                if (image := self.image(name)).worker_id == worker_id:
                    return [image]
        return []

    def no_image(self, name: str) -> NotFoundError:
        """Return the error that there is no image of a name."""
        return NotFoundError(
            f"there is no image {name!r} in {self.url}",
            hint=f"Images: {', '.join(self.names()[-10:]) or 'none'}.",
            name=name,
        )

    def check_free(self, name: str) -> None:
        """Refuse a name that is taken; images are never overwritten.

        Raises:
            InvalidRequestError: An image of that name exists (definite).
        """
        if self.store.find(self.manifest_key(check_image_name(name))) is not None:
            raise self.taken(name)

    def taken(self, name: str) -> InvalidRequestError:
        """Return the error that there is an image of a name."""
        return InvalidRequestError(
            f"there is an image {name!r} in {self.url} already",
            hint="Choose another name, or none: the default name is the time.",
            name=name,
        )

    # -- files -------------------------------------------------------------------------------------

    def checked(self, image: Image, table: str, file: ImageFile) -> Original:
        """Return a file of an image, whose bytes were compared with their digests.

        Raises:
            CorruptLogError: It is missing or damaged.
        """
        key = self.file_key(image.name, table, file)
        found = self.whole(key, file, image.chunk_bytes)
        if found is None:
            raise self.damaged(image, table, file)
        return found

    def whole(self, key: str, file: ImageFile, chunk_bytes: int) -> Original | None:
        """Read a stored file, and return it if it has the digests of its manifest, else None."""
        try:
            original = self.original(key)
            is_whole = original.size_bytes == file.size_bytes
            if is_whole and digests_of(original, chunk_bytes) == file.digests:
                return original
        except (FileNotFoundError, VersionGoneError):
            pass
        return None

    def damaged(self, image: Image, table: str, file: ImageFile) -> CorruptLogError:
        """Return the error that a file of an image is missing, or not what was stored."""
        url = self.store.url_of(self.file_key(image.name, table, file))
        return CorruptLogError(
            f"{url} is damaged: it is missing, or has other bytes than when stored",
            hint="Use another image.  If the site still has the file, back it up again: that mends "
            "one that is missing, or was written since; any other one remove before.",
            path=url,
        )

    def donor(self, image: Image) -> StoredFiles:
        """Return an image as what its files are fetched from."""
        return StoredFiles(
            store=self.store,
            keys={
                (table, file.path): self.file_key(image.name, table, file)
                for table, file in image.all_files
            },
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
        fetch_files(workspace, donor, wanted, streams=self.streams, progress=tell)
