"""An image: a replica at one position, as its manifest says it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from sparktxlog.errors import CorruptLogError
from sparktxlog.model.copying import OfferedFile, OfferedTable

T = TypeVar("T")

#: The format of a manifest; a later one is refused.
FORMAT_VERSION = 1
#: Size of the chunks whose digests a manifest has, except the last one of a file.
CHUNK_BYTES = 1 << 22


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
    #: Patterns of the row tables that the replica held (`model.replicas`); empty = all.
    only: tuple[str, ...] = ()

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
    #: SHA-256 of the content's bytes, hexadecimal.
    digest: str
    content: msgspec.Raw


def sealed(value: object) -> bytes:
    """Return a value as JSON, with its digest."""
    content = msgspec.json.encode(value)
    digest = hashlib.sha256(content).hexdigest()
    return msgspec.json.encode(_Envelope(digest=digest, content=msgspec.Raw(content)))


def unsealed(found: bytes, kind: type[T]) -> T:
    """Return the value that `sealed` was given.

    Raises:
        ValueError: It is damaged, or of another kind.
    """
    try:
        envelope = msgspec.json.decode(found, type=_Envelope)
        value = msgspec.json.decode(envelope.content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error
    if hashlib.sha256(envelope.content).hexdigest() != envelope.digest:
        raise ValueError("its digest is another one")
    return value


def manifest_of(image: Image) -> bytes:
    """Return the manifest of an image."""
    return sealed(image)


def image_of(manifest: bytes, name: str, place: str) -> Image:
    """Return the image that a manifest says.

    Args:
        name: Where it lies now: somebody may have renamed it.
        place: Of the manifest, for errors.

    Raises:
        CorruptLogError: It is damaged, or of a newer release.
    """
    try:
        image = unsealed(manifest, Image)
    except ValueError as error:
        raise _damaged(place, str(error)) from error
    if image.format_version != FORMAT_VERSION:
        raise _damaged(place, f"format {image.format_version} is not known here")
    return replace(image, name=name)


def _damaged(place: str, reason: str) -> CorruptLogError:
    return CorruptLogError(
        f"the backup's file {place} is damaged: {reason}", hint="Use another image.", path=place
    )
