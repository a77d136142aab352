"""A directory of backup images: files stored once by their content, one manifest for each image.

    lock                      held while a backup writes
    files/<aa>/<sha256>[.zst] a file under the digest of its plain bytes, perhaps compressed
    images/<name>.json        manifest; written last, so an image with one is complete
    known.jsonl               files of a lake that were already read: path, size, time → digest

Stored files never change; files that no image needs can be removed.  A file gets its name after
its bytes were synced, so a backup that is killed leaves only a temporary file, and the next backup
continues from there.  `known.jsonl` only saves reading: without it a backup takes longer.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec
import zstandard

from sparktxlog.errors import (
    CorruptLogError,
    InvalidNameError,
    InvalidRequestError,
    LockedError,
    NotFoundError,
)
from sparktxlog.model.ids import local_path
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.storage.durability import sync_directory, write_durably

#: The format of a manifest; a later one is refused.
FORMAT_VERSION = 1
#: A file is stored compressed if its first bytes shrink to this part or less.
_WORTH = 0.9
_BLOCK_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
#: Means the default name.
_RESERVED = frozenset({"default"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFile:
    """A file of a table, by its path relative to the table's directory."""

    path: str
    size_bytes: int
    #: Modification time, microseconds since 1970 UTC: Delta dates commits by it.
    modified_at: int
    #: SHA-256, hexadecimal.
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTable:
    """A table at the image's position."""

    definition: TableDefinition
    #: Delta version of the site that was backed up.
    version: int
    signature: TableSignature
    #: Ascending by path.
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
    #: By UUID.
    commit_tables: dict[str, ImageCommitTable] = field(default_factory=dict)

    @property
    def all_files(self) -> list[tuple[str, ImageFile]]:
        """All files with their tables: a name, or the UUID of a commit table."""
        tables: dict[str, ImageTable | ImageCommitTable] = {**self.tables, **self.commit_tables}
        return [(name, file) for name, table in sorted(tables.items()) for file in table.files]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files as they were at the site."""
        return sum(file.size_bytes for _, file in self.all_files)

    @property
    def files(self) -> int:
        """Number of files."""
        return len(self.all_files)


class _Envelope(msgspec.Struct):
    #: SHA-256 of the image's bytes, hexadecimal.
    digest: str
    image: msgspec.Raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Result of storing a file."""

    digest: str
    size_bytes: int
    #: New bytes on disk, 0 = it was already stored.
    added_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """Stored files that no image needs, and their bytes on the disk."""

    files: int
    size_bytes: int


def check_image_name(name: str) -> str:
    """Return the name of an image.

    Raises:
        InvalidNameError: It may not be used (definite).
    """
    if not _NAME.fullmatch(name) or name.lower() in _RESERVED:
        raise InvalidNameError(
            f"{name[:120]!r} cannot name a backup image",
            hint="1 to 100 letters, digits, dots, dashes and underscores; 'default' is reserved.",
            value=name[:120],
        )
    return name


class ImageStore:
    """The images of one directory.  Reading needs no lock; one process writes at a time.

    A reader of an image that is removed meanwhile gets a clear error about missing files.
    """

    def __init__(self, root: str | Path, *, compress: bool = True) -> None:
        self.root = Path(local_path(str(root), "directory of images")).absolute()
        self._files = self.root / "files"
        self._images = self.root / "images"
        self._compress = compress

    # -- images ------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of all images, ascending."""
        return sorted(path.stem for path in self._images.glob("*.json"))

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
        path = self._images / f"{check_image_name(name)}.json"
        try:
            envelope = msgspec.json.decode(path.read_bytes(), type=_Envelope)
            image = msgspec.json.decode(envelope.image, type=Image)
        except FileNotFoundError:
            raise self._no_image(name) from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _damaged(path, str(error)) from error
        if hashlib.sha256(envelope.image).hexdigest() != envelope.digest:
            raise _damaged(path, "its digest is another one")
        if image.format_version != FORMAT_VERSION:
            raise _damaged(path, f"format {image.format_version} is not known here")
        return image

    def _no_image(self, name: str) -> NotFoundError:
        return NotFoundError(
            f"there is no image {name!r} in {self.root}",
            hint=f"Images: {', '.join(self.names()[-10:]) or 'none'}.",
            name=name,
        )

    def add(self, image: Image) -> None:
        """Write an image's manifest durably, after all its files.

        Raises:
            InvalidRequestError: The name is taken (definite).
        """
        self.check_free(image.name)
        # All directories: a killed backup may have stored files whose names are not durable yet.
        for directory in (*self._files.glob("??"), self._files, self.root):
            sync_directory(directory)
        content = msgspec.json.encode(image)
        envelope = _Envelope(digest=hashlib.sha256(content).hexdigest(), image=msgspec.Raw(content))
        path = self._images / f"{image.name}.json"
        write_durably(path, msgspec.json.encode(envelope))

    def check_free(self, name: str) -> None:
        """Refuse a name that is taken; images are never overwritten.

        Raises:
            InvalidRequestError: An image of that name exists (definite).
        """
        if (self._images / f"{check_image_name(name)}.json").exists():
            raise InvalidRequestError(
                f"there is an image {name!r} in {self.root} already",
                hint="Choose another name, or none: the default name is the time.",
                name=name,
            )

    def remove(self, name: str) -> None:
        """Remove an image's manifest durably; its files stay until `sweep`.  Hold `writing`.

        Raises:
            NotFoundError: There is none of that name (definite).
        """
        path = self._images / f"{check_image_name(name)}.json"
        try:
            path.unlink()
        except FileNotFoundError:
            raise self._no_image(name) from None
        sync_directory(self._images)

    def sweep(self, *, without: Collection[str] = (), dry_run: bool = False) -> Swept:
        """Remove stored files that no image needs.  Hold `writing`.

        Files of an unfinished backup are among them: the next one reads them again.

        Args:
            without: Images that count as removed.
            dry_run: Only count.

        Raises:
            CorruptLogError: A manifest is damaged, so its files are not known (nothing removed).
        """
        images = [image for image in self.images() if image.name not in without]
        needed = {file.digest for image in images for _, file in image.all_files}
        unneeded = [
            path for path in sorted(self._files.glob("??/*")) if path.name[:64] not in needed
        ]
        size_bytes = sum(path.stat().st_size for path in unneeded)
        if not dry_run:
            if unneeded:
                known = self.read_known()
                kept = {key: digest for key, digest in known.items() if digest in needed}
                self.note_known(kept, anew=True)
            for path in unneeded:
                path.unlink()
        return Swept(files=len(unneeded), size_bytes=size_bytes)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the directory for a backup, and remove the temporary files of a killed one.

        Raises:
            LockedError: Another backup writes here (definite).
        """
        for directory in (self._files, self._images):
            directory.mkdir(parents=True, exist_ok=True)
        with open(self.root / "lock", "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise LockedError(
                    f"another backup writes to {self.root}",
                    hint="Wait for it, or take another directory.",
                    path=str(self.root),
                ) from error
            for left in (*self._files.glob(".*.new"), *self._images.glob("*.new")):
                left.unlink()
            yield

    # -- files -------------------------------------------------------------------------------------

    def location(self, digest: str) -> Path | None:
        """Return where a file's content is stored, None if it is not."""
        if not _DIGEST.fullmatch(digest):
            return None
        plain = self._files / digest[:2] / digest
        return next((p for p in (plain, plain.with_suffix(".zst")) if p.exists()), None)

    def put(self, path: Path) -> Stored:
        """Store a file, reading it once; content that the store has is not stored again.

        Raises:
            FileNotFoundError: The file does not exist.
            OSError: It cannot be read or stored.
        """
        fresh = self._files / f".{uuid.uuid4().hex}.new"
        try:
            with open(path, "rb") as source, open(fresh, "xb") as target:
                block = source.read(_BLOCK_BYTES)
                packed = self._compress and _pays(block)
                digest, size = hashlib.sha256(), 0
                with _writer(target, packed=packed) as writer:
                    while block:
                        digest.update(block)
                        size += len(block)
                        writer.write(block)
                        block = source.read(_BLOCK_BYTES)
                name = digest.hexdigest()
                if self.location(name) is not None:
                    return Stored(digest=name, size_bytes=size, added_bytes=0)
                target.flush()
                os.fsync(target.fileno())
                added = os.fstat(target.fileno()).st_size
            final = self._files / name[:2] / (f"{name}.zst" if packed else name)
            final.parent.mkdir(exist_ok=True)
            fresh.rename(final)
            return Stored(digest=name, size_bytes=size, added_bytes=added)
        finally:
            fresh.unlink(missing_ok=True)

    def blocks(self, file: ImageFile, where: str) -> Iterator[bytes]:
        """Yield a file's plain bytes; raise at the end if the digest is wrong.

        Args:
            where: What the file belongs to, for the error.

        Raises:
            CorruptLogError: It is missing or damaged; drop what was yielded.
        """
        path = self.location(file.digest)
        if path is None:
            raise _damaged(self._files / file.digest[:2] / file.digest, f"{where} is missing")
        digest, size = hashlib.sha256(), 0
        try:
            with open(path, "rb") as source:
                for block in _plain_blocks(source, packed=path.suffix == ".zst"):
                    digest.update(block)
                    size += len(block)
                    if size > file.size_bytes:
                        break
                    yield block
        except zstandard.ZstdError as error:
            raise _damaged(path, f"{where}: {error}") from error
        if size != file.size_bytes or digest.hexdigest() != file.digest:
            raise _damaged(path, f"{where} has other bytes than when it was backed up")

    # -- files that need not be read again ---------------------------------------------------------

    def read_known(self) -> dict[tuple[str, str, int, int], str]:
        """Return (lake and table, path, bytes, time) → digest of files that are stored."""
        path, found = self.root / "known.jsonl", {}
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                table, name, size, modified_at, digest = json.loads(line)
                found[str(table), str(name), int(size), int(modified_at)] = str(digest)
            except (ValueError, TypeError):
                # The torn last line of a killed backup, or damage: the file is read again.
                continue
        return found

    def note_known(self, entries: dict[tuple[str, str, int, int], str], *, anew: bool) -> None:
        """Record read files; `anew`: forget all others."""
        path = self.root / "known.jsonl"
        lines = "".join(json.dumps([*key, digest]) + "\n" for key, digest in entries.items())
        if not anew:
            with open(path, "a", encoding="utf-8") as file:
                file.write(lines)
            return
        fresh = path.with_suffix(".jsonl.new")
        fresh.write_text(lines, encoding="utf-8")
        fresh.replace(path)


def _pays(sample: bytes) -> bool:
    packed = zstandard.ZstdCompressor(level=1).compress(sample)
    return len(packed) <= _WORTH * len(sample) if sample else False


@contextmanager
def _writer(target: IO[bytes], *, packed: bool) -> Iterator[Any]:
    if not packed:
        yield target
        return
    with zstandard.ZstdCompressor(level=1).stream_writer(target, closefd=False) as writer:
        yield writer


def _plain_blocks(source: IO[bytes], *, packed: bool) -> Iterator[bytes]:
    reader: Any = source
    if packed:
        reader = zstandard.ZstdDecompressor().stream_reader(source, closefd=False)
    while block := reader.read(_BLOCK_BYTES):
        yield block


def _damaged(path: Path, reason: str) -> CorruptLogError:
    return CorruptLogError(
        f"the backup's file {path} is damaged: {reason}",
        hint="Use another image.  If the site still has the file, remove the damaged one: the next "
        "backup stores it again.",
        path=str(path),
    )
