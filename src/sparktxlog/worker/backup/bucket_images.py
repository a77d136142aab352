"""Images in a bucket: each content once, whatever images and sites have it.

    images/<name>.json      manifest, created last, by one condition
    contents/<digest>       bytes of files, by the digests of their chunks and their size
    lock                    held while somebody writes (`worker.lakes.lake_lease`)

A bucket has no links, so files of several images are one object, which has no table's name.  What
is under a digest never changes: to put it again does no harm, and a killed backup's next one finds
what was sent.  Only a removal could, of what a backup relies on, so both hold the lock.
"""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import Lock

from sparktxlog.files.stores.bucket import BucketStore
from sparktxlog.files.stores.part import PartOfStore
from sparktxlog.files.stores.store import Created, Found
from sparktxlog.model.buckets import bucket_url, whole_bucket
from sparktxlog.worker.backup.image import Image, ImageFile, manifest_of
from sparktxlog.worker.backup.image_store import (
    IMAGE_NAME,
    ImageStore,
    KeptFile,
    ToKeep,
    check_image_name,
)
from sparktxlog.worker.backup.originals import (
    Original,
    StoredOriginal,
    VersionGoneError,
    digests_of,
)
from sparktxlog.worker.lakes.lake_lease import place_locked
from sparktxlog.worker.lakes.lake_places import bucket_at, lock_store_at

_IMAGES, _CONTENTS, _SUFFIX = "images", "contents", ".json"
#: Digest and bytes; whatever else lies there is somebody else's.
_CONTENT_KEY = re.compile("[0-9a-f]{64}-[0-9]+")
#: Files that are sent, and chunks that are fetched, at the same time.
_AT_ONCE = 8


class BucketImages(ImageStore):
    """The images below one prefix of a bucket, which the environment of this process reaches.

    Raises:
        ConfigError: The URL names no bucket, or the environment does not fit (definite).
        MissingDependencyError: The extra for its provider is not installed (definite).
    """

    streams = _AT_ONCE

    def __init__(self, url: str) -> None:
        self.store: BucketStore = bucket_at(url, "directory of images")
        self._lock_store = lock_store_at(url, "directory of images")
        place = bucket_url(url, "directory of images")
        assert place is not None, "the caller looked"
        self._bucket = bucket_at(whole_bucket(place))

    def made(self) -> dict[str, float]:
        """As `ImageStore.made`."""
        found = self.store.list(_IMAGES)
        made = {one.key.removeprefix(f"{_IMAGES}/"): one.changed_s for one in found}
        names = {key.removesuffix(_SUFFIX): at for key, at in made.items() if key.endswith(_SUFFIX)}
        return {name: at for name, at in names.items() if IMAGE_NAME.fullmatch(name)}

    def manifest_key(self, name: str) -> str:
        """As `ImageStore.manifest_key`."""
        return f"{_IMAGES}/{name}{_SUFFIX}"

    def file_key(self, image: str, table: str, file: ImageFile) -> str:
        """As `ImageStore.file_key`."""
        return f"{_CONTENTS}/{_content_key(file)}"

    def sizes(self, image: Image) -> dict[str, int]:
        """As `ImageStore.sizes`."""
        return {found.key: found.size_bytes for found in self.store.list(_CONTENTS)}

    def original(self, key: str) -> Original:
        """As `ImageStore.original`."""
        if (found := self.store.find(key)) is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such object", key)
        return StoredOriginal(self._bucket, self.store, found)

    @contextmanager
    def writing(self) -> Iterator[_Writer]:
        """As `ImageStore.writing`.

        Raises:
            LyingStoreError: The bucket is new here, and does not keep its promises (definite).
        """
        with place_locked(
            self.store, self._lock_store, owned="place of images", owner="backup or removal"
        ) as lease:
            contents = PartOfStore(self.store, _CONTENTS, lease.check)
            there = {one.key: one for one in contents.list() if _CONTENT_KEY.fullmatch(one.key)}
            manifests = PartOfStore(self.store, _IMAGES, lease.check)
            yield _Writer(self, contents, manifests, there, self.made())


@dataclass(frozen=True, slots=True)
class _Writer:
    """Methods are those of `ImageWriter`."""

    images: BucketImages
    contents: PartOfStore
    manifests: PartOfStore
    #: Each content that is there.
    there: dict[str, Found]
    #: When each image was made, by the clock of the store, as it says when contents were put.
    made: dict[str, float]
    #: Contents that this process put, or read and compared.
    seen: set[str] = field(default_factory=set)
    mending: Lock = field(default_factory=Lock)
    at_once: int = _AT_ONCE

    def keep(self, worker_id: str, wanted: ToKeep) -> KeptFile:
        """As `ImageWriter.keep`; several threads may call it."""
        before = wanted.before
        if before is not None and self._has(before.file, wanted.chunk_bytes, before.image):
            return KeptFile(before.file, is_new=False)
        original = wanted.original
        file = wanted.as_kept(digests_of(original, wanted.chunk_bytes))
        if self._has(file, wanted.chunk_bytes):
            return KeptFile(file, is_new=False)
        key = _content_key(file)
        # Two files may have one content, and what is damaged is removed once.
        with self.mending if key in self.there else nullcontext():
            if key in self.seen:
                return KeptFile(file, is_new=False)
            is_mended = key in self.there or wanted.was_kept(file)
            if key in self.there:  # of another size, or with other bytes
                self.contents.remove([key])
            made = original.give(self.contents, key)
            if made is Created.OTHER or original.is_other():
                self.contents.remove([key])
                raise VersionGoneError(f"{original.url} changed while it was read")
            self.seen.add(key)
        return KeptFile(file, made is Created.NEW, is_mended)

    def _has(self, file: ImageFile, chunk_bytes: int, image: str = "") -> bool:
        """Return whether the bytes of a file are there; they are read unless it is known.

        Args:
            image: Has the file: what was not put since it was made is what it was then.
        """
        key = _content_key(file)
        found = self.there.get(key)
        if key in self.seen:
            return True
        if found is None or found.size_bytes != file.size_bytes:
            return False
        # Stores may know times to the second only.
        if image in self.made and found.changed_s < self.made[image]:
            return True
        if self.images.whole(f"{_CONTENTS}/{key}", file, chunk_bytes) is None:
            return False
        self.seen.add(key)
        return True

    def add(self, image: Image) -> None:
        """As `ImageWriter.add`."""
        name = f"{image.name}{_SUFFIX}"
        if self.manifests.create(name, manifest_of(image)) is not Created.NEW:
            raise self.images.taken(image.name)

    def remove(self, names: Iterable[str] = (), *, dry_run: bool = False) -> tuple[int, int]:
        """As `ImageWriter.remove`.

        Raises:
            CorruptLogError: A manifest that stays is damaged, so nobody knows what it needs
                (definite: nothing was removed).
        """
        gone = {check_image_name(name) for name in names}
        there = {found.key.removesuffix(_SUFFIX): found for found in self.manifests.list()}
        for name in sorted(gone - there.keys()):
            raise self.images.no_image(name)
        needed = {
            _content_key(file)
            for name in self.images.names()
            if name not in gone
            for _, file in self.images.image(name).all_files
        }
        unneeded = self.there.keys() - needed
        sizes = [there[name].size_bytes for name in gone]
        sizes += [self.there[key].size_bytes for key in unneeded]
        if not dry_run:
            # No manifest is ever there without its contents.
            self.manifests.remove(f"{name}{_SUFFIX}" for name in sorted(gone))
            self.contents.remove(sorted(unneeded))
        return len(sizes), sum(sizes)


def _content_key(file: ImageFile) -> str:
    digest = hashlib.sha256(file.digests.encode()).hexdigest()
    return f"{digest}-{file.size_bytes}"
