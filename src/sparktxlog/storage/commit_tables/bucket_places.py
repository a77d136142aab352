"""Commit tables in a bucket: one prefix below a root for each table, named by its UUID.

    <root>/<UUID>/…          as Spark writes it
    <root>/.owner            which site has the root
    <root>/.given/<UUID>     the node gave the table this place
    <root>/.commits/<UUID>/  second copies of commit files, as in a directory
    <root>/.attic/<id>/…     what was set aside: other objects in the places of the log's, and all
                             tables when the node left its history

Spark sessions reach it with credentials of their own, or those that the node gives them.  What is
on its way from peers lies in a directory of the node: files are checked there before a byte of
them appears in the bucket, and a transfer goes on after a kill.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from sparktxlog.attic.attic import OF_COMMIT_TABLES, Kind
from sparktxlog.attic.bucket_attic import BucketAttic
from sparktxlog.delta.commit_contents import NeededFile
from sparktxlog.delta.log_files import (
    commits_among,
    in_order,
    is_of_checkpoint,
    whole_checkpoints,
)
from sparktxlog.errors import CorruptLogError, ObjectMissingError
from sparktxlog.files.arrivals import Arrivals
from sparktxlog.files.durability import storing, write_at_once
from sparktxlog.files.foreign_files import ForeignFile, digest_of, goes_on
from sparktxlog.files.stores.objects import StoredObject
from sparktxlog.files.stores.part import PartOfStore
from sparktxlog.files.stores.store import Created, Found, Store
from sparktxlog.model.tables.commit_table import COMMIT_LOG, commit_file_name
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.commit_tables.site_tables import UUID, SiteTables
from sparktxlog.storage.commit_tables.table_places import FORKED, GIVEN, KEPT_COMMITS
from sparktxlog.storage.site_bucket import SiteBucket

if TYPE_CHECKING:  # nodes without buckets lack the library
    from sparktxlog.files.stores.donor_buckets import DonorBuckets

_log = structlog.get_logger("sparktxlog.tables")

_BLOCK_BYTES = 1 << 20
#: Checkpoints that were read, below the directory of what is on its way.
_LOGS_READ = ".logs"
#: So many of a table, the newest ones: one may be damaged.
_CHECKPOINTS_READ = 2
#: Objects whose digest is remembered.
_REMEMBERED = 65_536


@dataclass(frozen=True, slots=True)
class _TableObject(StoredObject):
    """An object of a table; what was read of it needs no second look."""

    #: Called with its key, its mark and the SHA-256 of its bytes.
    seen: Callable[[str, str, str], None]

    def link_as(self, target: ForeignFile) -> None:
        self.copy_to(Path(target.path))

    def copy_to(self, path: Path) -> None:
        """Copy it to a disk of the node; the name never has a part of it; errors as `open`."""
        digest = hashlib.sha256()
        path.parent.mkdir(parents=True, exist_ok=True)
        with self.open() as content:

            def blocks() -> Iterator[bytes]:
                while block := content.read(_BLOCK_BYTES):
                    digest.update(block)
                    yield block
                    goes_on(self.path)

            write_at_once(path, blocks())
        self.seen(self.key, content.found.mark, digest.hexdigest())

    def read(self, most: int | None = None) -> bytes:
        with self.open() as content:
            found = io.BufferedReader(content).read(-1 if most is None else most + 1)
            if len(found) == content.found.size_bytes:
                self.seen(self.key, content.found.mark, hashlib.sha256(found).hexdigest())
        return found


class BucketPlaces(SiteTables):
    """The commit tables of this site, in a bucket.

    Args:
        store: Its root has a prefix for each table.
        local: Directory of the node, for what is on its way.
        proof: Proves that the store keeps its promises; raises as `take`.
        donors: Buckets of other sites that the service copies from; None = there are none.
    """

    def __init__(
        self,
        store: Store,
        local: Path,
        proof: Callable[[], object],
        donors: DonorBuckets | None = None,
    ) -> None:
        super().__init__()
        self._store, self._local, self._donors = store, local, donors
        self._bucket = SiteBucket(store, proof, "commit-table-url", "the commit tables")
        self._attic = BucketAttic(
            store, OF_COMMIT_TABLES, may_write=self._bucket.check_ready, in_order=in_order
        )
        #: Key → mark and SHA-256 of what was read there.
        self._known: dict[str, tuple[str, str]] = {}
        self._knowing = threading.Lock()
        #: Key → mark of what `log_directory` has on this machine.
        self._read_here: dict[str, str] = {}
        #: UUIDs of tables of which it has something, or looked.
        self._logs_read: set[str] = set()

    @cached_property
    def arrivals(self) -> Arrivals:
        return Arrivals(self._local)

    # -- places ------------------------------------------------------------------------------------

    @property
    def _proved(self) -> Store:
        return self._bucket.proved

    def check_ready(self) -> None:
        self._bucket.check_ready()

    def take(self, owner: str) -> None:
        self._bucket.take(owner)

    def make(self, uuid: str) -> None:
        self._proved.create(f"{GIVEN}/{uuid}", b"")

    def drop_unused(self, uuid: str) -> None:
        if next(iter(self._store.list(uuid)), None) is None:
            self._store.remove([f"{GIVEN}/{uuid}"])

    def has(self, uuid: str) -> bool:
        if UUID.fullmatch(uuid) is None:
            return False
        return self._store.find(f"{GIVEN}/{uuid}") is not None

    def location(self, uuid: str) -> str:
        return self._store.url_of(uuid)

    def uuid_at(self, location: str) -> str | None:
        # Hadoop's name for the same scheme.
        parent, _, name = location.replace("s3a://", "s3://", 1).rstrip("/").rpartition("/")
        return name if parent == self._store.url and UUID.fullmatch(name) else None

    def where(self, uuid: str) -> str:
        return self._store.url_of(uuid)

    def root(self, uuid: str) -> Store:
        return PartOfStore(self._store, uuid)

    def file(self, uuid: str, relative: str) -> _TableObject:
        return self._object(f"{uuid}/{relative}")

    def _object(self, key: str) -> _TableObject:
        goes_on(self._store.url_of(key))
        return _TableObject(self._store, key, self._remember)

    def set_all_aside(self, name: str) -> None:
        firsts = {found.key.partition("/")[0] for found in self._store.list()}
        said = {"kind": Kind.FORK, "mark": name, "why": FORKED}
        for directory in sorted(firsts):
            goes_on(self._store.url_of(directory))
            if UUID.fullmatch(directory):
                self._attic.put(directory, table=directory, **said)
            elif directory == KEPT_COMMITS:
                self._attic.put(directory, **said)

    # -- what was ordered --------------------------------------------------------------------------

    def holds(self, uuid: str, file: StagedFile) -> bool:
        key = f"{uuid}/{file.path}"
        found = self._store.find(key)
        if found is None:
            return False
        if found.size_bytes == file.size_bytes and self._digest_of(found) == file.digest:
            return True
        self.set_aside(uuid, file.path)
        return False

    def _digest_of(self, found: Found) -> str:
        """Return the SHA-256 of an object, whose bytes are read once."""
        with self._knowing:
            known = self._known.get(found.key)
        if known is None or known[0] != found.mark:
            with self._object(found.key).open() as content:
                known = content.found.mark, digest_of(content, self._store.url_of(found.key))
            self._remember(found.key, *known)
        return known[1]

    def _remember(self, key: str, mark: str, digest: str) -> None:
        with self._knowing:
            if len(self._known) >= _REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[key] = mark, digest

    def arrived(self, uuid: str, file: StagedFile) -> None:
        path = Path(self.arrivals.path(f"{uuid}/{file.path}"))
        if path.exists():
            self.place(uuid, {file.path: str(path)})
            with storing(path):
                path.unlink()

    def copies(self, uuid: str, file: StagedFile) -> bool:
        if self._donors is None:
            return False
        self.check_ready()
        found = self._donors.copy(f"{uuid}/{file.path}", file.size_bytes, file.digest)
        if found is not None:
            self._remember(found.key, found.mark, file.digest)
        return found is not None

    def doubt(self, uuid: str, file: StagedFile) -> None:
        with self._knowing:
            self._known.pop(f"{uuid}/{file.path}", None)

    def place(self, uuid: str, sources: Mapping[str, str | bytes]) -> set[str]:
        for relative, source in sources.items():
            if self._put(f"{uuid}/{relative}", source) is not Created.OTHER:
                continue
            _log.warning(
                "a file of a table was not the one that the log has",
                path=self._store.url_of(f"{uuid}/{relative}"),
            )
            self.set_aside(uuid, relative)
            if self._put(f"{uuid}/{relative}", source) is Created.OTHER:
                raise CorruptLogError(
                    f"{self._store.url_of(f'{uuid}/{relative}')} is not the file that the log has",
                    hint="Somebody writes into the table. Move the object away; the node then "
                    "places the right one.",
                    path=self._store.url_of(f"{uuid}/{relative}"),
                )
        return set()

    def _put(self, key: str, source: str | bytes) -> Created:
        """Put a file, or bytes, under a key, unless it has some; those of a writer are not sent."""
        goes_on(self._store.url_of(key))
        content = source if isinstance(source, bytes) else Path(source)
        found = self._store.find(key) if self._is_known(key) else None
        if found is None:
            # Data files have names that no other writer gives.
            return self._proved.create(key, content, alone=True)
        with storing(source if isinstance(source, str) else key):
            if isinstance(content, bytes):
                size, digest = len(content), hashlib.sha256(content).hexdigest()
            else:
                size = content.stat().st_size
                with content.open("rb") as file:
                    digest = digest_of(file, content)
        is_same = found.size_bytes == size and self._digest_of(found) == digest
        return Created.EQUAL if is_same else Created.OTHER

    def _is_known(self, key: str) -> bool:
        with self._knowing:
            return key in self._known

    def set_aside(self, uuid: str, path: str) -> None:
        goes_on(self._store.url_of(f"{uuid}/{path}"))
        why = "other objects were in the places of the log's"
        self._attic.take(f"{uuid}/{path}", path, kind=Kind.FILES, why=why, table=uuid)

    def found(self, uuid: str, versions: range, files: Iterable[NeededFile]) -> set[str]:
        return set()

    def sync(self, paths: Iterable[str]) -> None:
        pass  # what a store took is durable

    def force_first(self, uuid: str) -> None:
        pass

    # -- published versions ------------------------------------------------------------------------

    def published(self, uuid: str, version: int) -> bytes | None:
        try:
            return self.file(uuid, commit_file_name(version)).read()
        except FileNotFoundError:
            return None

    def is_published(self, uuid: str, version: int) -> bool:
        return self._store.find(f"{uuid}/{commit_file_name(version)}") is not None

    def versions(self, uuid: str) -> list[int]:
        return self._versions(f"{uuid}/{COMMIT_LOG[:-1]}")

    def _versions(self, prefix: str) -> list[int]:
        return commits_among(found.key.rpartition("/")[2] for found in self._store.list(prefix))

    def log_directory(self, uuid: str) -> Path:
        copy, log = self._local / _LOGS_READ / uuid, f"{uuid}/{COMMIT_LOG[:-1]}"
        found = {one.key.removeprefix(f"{uuid}/"): one for one in self._store.list(log)}
        names = set(filter(is_of_checkpoint, found))
        older = whole_checkpoints(names, sys.maxsize)[:-_CHECKPOINTS_READ]
        names.difference_update(*(parts for _, parts in older))
        with storing(copy):
            with self._knowing:
                if uuid not in self._logs_read:  # of an earlier process
                    shutil.rmtree(copy, ignore_errors=True)
                    self._logs_read.add(uuid)
            for path in copy.rglob("*"):
                is_named = path.is_file() and path.suffix != ".new"
                if is_named and path.relative_to(copy).as_posix() not in names:
                    path.unlink(missing_ok=True)
            for name in sorted(names):
                one = found[name]
                if not (copy / name).exists() or self._read_here.get(one.key) != one.mark:
                    with suppress(FileNotFoundError):  # Delta cleans up its log
                        self._object(one.key).copy_to(copy / name)
                        self._read_here[one.key] = one.mark
        return copy

    def kept_commit(self, uuid: str, version: int) -> _TableObject:
        name = commit_file_name(version).rpartition("/")[2]
        return self._object(f"{KEPT_COMMITS}/{uuid}/{name}")

    def forget_kept(self, uuid: str, version: int) -> None:
        self._proved.remove([self.kept_commit(uuid, version).key])

    def keep_commits(self, uuid: str, versions: Iterable[int] | None) -> None:
        if versions is None:
            kept = set(self._versions(f"{KEPT_COMMITS}/{uuid}"))
            versions = (v for v in self.versions(uuid) if v not in kept)
        for version in versions:
            goes_on(self.where(uuid))
            with suppress(ObjectMissingError):  # Delta was faster; it has one
                self._proved.copy(
                    f"{uuid}/{commit_file_name(version)}", self.kept_commit(uuid, version).key
                )

    def publish(self, uuid: str, version: int, source: str | bytes) -> set[str]:
        key = f"{uuid}/{commit_file_name(version)}"
        goes_on(self._store.url_of(key))
        content = source if isinstance(source, bytes) else Path(source)
        if self._proved.create(key, content) is Created.OTHER:
            raise CorruptLogError(
                f"{self._store.url_of(key)} is not the commit that the log has as version "
                f"{version}",
                hint="Somebody wrote into the table. Move the object away; the node then publishes "
                "the right one.",
                path=self._store.url_of(key),
            )
        return set()
