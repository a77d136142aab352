"""Where a worker finds the files that the log names: staged and published ones.

On a disk they are compared with their digests again: it may have lost something.  A bucket answers
for the bytes that it took, and the node compared those before.  What somebody put into the place of
an object is found by its size here, else by a recount.
"""

from __future__ import annotations

import io
import secrets
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from sparktxlog.errors import ApplyError, ManifestMismatchError, ObjectMissingError
from sparktxlog.files.arrivals import check_bytes
from sparktxlog.files.durability import link_new
from sparktxlog.files.stores.objects import StoredObject
from sparktxlog.files.stores.part import PartOfStore
from sparktxlog.files.stores.store import Created, Found, Store
from sparktxlog.model.transactions.operation import StagedFile


class PayloadFiles(Protocol):
    """The files of a payload store, to be read; methods block.

    Errors of all methods, in addition to those that they name:
        StorageError: As `Store`.
        OSError: The disk fails.
    """

    @property
    def url(self) -> str:
        """Where they are, as Spark names it: an absolute path, or the URL of a bucket."""

    def is_there(self) -> bool:
        """Return whether the store itself is there."""

    def has(self, file: StagedFile) -> bool:
        """Return whether anything has the name of a file."""

    def check(self, file: StagedFile) -> None:
        """Compare a file with its manifest.

        Raises:
            ApplyError: It is gone, or is not what its manifest says (definite).
        """

    def read(self, file: StagedFile, columns: Sequence[str]) -> pa.Table:
        """Read columns of a small Parquet file.

        Raises:
            OSError, ArrowException: It is gone, or no such file.
        """

    def give(self, file: StagedFile, target: Path) -> bool:
        """Give a file a name on this machine, unless that is taken; return whether it is new.

        Neither bytes nor name are durable.

        Raises:
            FileNotFoundError: It is gone.
        """

    def put(self, file: StagedFile, into: PartOfStore, key: str) -> Created:
        """Put a file under a key that nobody else gives; errors as `check`."""


@dataclass(frozen=True, slots=True)
class StagedOnDisk:
    """Files below a directory that node and worker share.  Methods are those of `PayloadFiles`."""

    root: Path

    @property
    def url(self) -> str:
        """As `PayloadFiles.url`."""
        return str(self.root)

    def is_there(self) -> bool:
        """As `PayloadFiles.is_there`."""
        return self.root.is_dir()

    def has(self, file: StagedFile) -> bool:
        """As `PayloadFiles.has`."""
        return (self.root / file.path).exists()

    def check(self, file: StagedFile) -> None:
        """As `PayloadFiles.check`."""
        check_payload(file, self.root / file.path)

    def read(self, file: StagedFile, columns: Sequence[str]) -> pa.Table:
        """As `PayloadFiles.read`."""
        return pq.read_table(self.root / file.path, columns=list(columns))

    def give(self, file: StagedFile, target: Path) -> bool:
        """As `PayloadFiles.give`: a link, where the disk has such."""
        return link_new(self.root / file.path, target)

    def put(self, file: StagedFile, into: PartOfStore, key: str) -> Created:
        """As `PayloadFiles.put`."""
        self.check(file)
        return into.create(key, self.root / file.path, alone=True)


@dataclass(frozen=True, slots=True)
class StagedInBucket:
    """Files in a bucket.  Methods are those of `PayloadFiles`."""

    store: Store
    #: The whole bucket.
    bucket: Store

    @property
    def url(self) -> str:
        """As `PayloadFiles.url`."""
        return self.store.url

    def is_there(self) -> bool:
        """As `PayloadFiles.is_there`: a node that took it left its name."""
        return self.store.find(".owner") is not None

    def has(self, file: StagedFile) -> bool:
        """As `PayloadFiles.has`."""
        return self.store.find(file.path) is not None

    def check(self, file: StagedFile) -> None:
        """As `PayloadFiles.check`: size only."""
        self._found(file)

    def _found(self, file: StagedFile) -> Found:
        found = self.store.find(file.path)
        if found is not None and found.size_bytes == file.size_bytes:
            return found
        url = self.store.url_of(file.path)
        has = "is missing" if found is None else f"has {found.size_bytes:,} bytes"
        raise ApplyError(
            f"payload file {url} {has}, the log says {file.size_bytes:,} bytes",
            hint="Something else changed the payload store; the node fetches the file again if "
            "another site has it whole.",
            path=file.path,
        )

    def read(self, file: StagedFile, columns: Sequence[str]) -> pa.Table:
        """As `PayloadFiles.read`."""
        content = StoredObject(self.store, file.path).read()
        return pq.read_table(io.BytesIO(content), columns=list(columns))

    def give(self, file: StagedFile, target: Path) -> bool:
        """As `PayloadFiles.give`: a copy."""
        if target.exists():
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{secrets.token_hex(8)}.new")
        try:
            self._copy_to(file, fresh)
            return link_new(fresh, target)
        finally:
            fresh.unlink(missing_ok=True)

    def _copy_to(self, file: StagedFile, path: Path) -> None:
        with StoredObject(self.store, file.path).open() as content, path.open("xb") as copy:
            while block := content.read(1 << 20):
                copy.write(block)

    def put(self, file: StagedFile, into: PartOfStore, key: str) -> Created:
        """As `PayloadFiles.put`: a copy within the bucket, where it is there; else it travels."""
        self._found(file)
        source, target = self.store.url_of(file.path), into.url_of(key)
        in_bucket = f"{self.bucket.url}/"
        if target.startswith(in_bucket):
            into.may_write()
            with suppress(ObjectMissingError):
                return self.bucket.copy(
                    source.removeprefix(in_bucket), target.removeprefix(in_bucket)
                )
            self.check(file)  # says that it is gone
        with tempfile.TemporaryDirectory(prefix="sparktxlog-") as directory:
            copy = Path(directory) / "payload"
            self._copy_to(file, copy)
            check_payload(file, copy)
            return into.create(key, copy, alone=True)


def check_payload(file: StagedFile, path: Path) -> None:
    """Compare a file with its manifest.

    Raises:
        ApplyError: It is gone, has another size or digest, or cannot be read (definite).
    """
    try:
        with path.open("rb") as source:
            check_bytes(file, source, path)
        return
    except ManifestMismatchError as error:
        found = error.message
    except FileNotFoundError:
        found = f"{file.path!r} is missing"
    except OSError as error:
        found = f"{file.path!r} cannot be read: {error.strerror}"
    raise ApplyError(
        f"payload file {found}",
        hint="Something else changed the payload store, or its disk fails; the node "
        "fetches the file again if another site has it whole.",
        path=file.path,
    )
