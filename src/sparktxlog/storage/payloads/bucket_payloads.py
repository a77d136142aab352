"""A payload store in a bucket; what is on its way there lies in a directory of the node.

    <bucket>/<transaction id>/<table>/…    as in a directory
    <bucket>/inline/<first>-<last>/…
    <bucket>/.owner                        which site has the prefix
    <directory>/…                          files that arrived and are not in the bucket yet, and
                                           those of commits until they are placed

A file is compared with its manifest in the directory before a byte of it is in the bucket, so the
bucket never has a part of a file, and a transfer goes on after a kill.  It is held once one
conditional request has put it into the bucket.  An object is read again only if its mark is not
that of the one that was compared.
"""

from __future__ import annotations

import io
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import structlog

from sparktxlog.errors import ManifestMismatchError, ObjectMissingError, PayloadStoreError
from sparktxlog.files.arrivals import Source
from sparktxlog.files.durability import storing, write_at_once
from sparktxlog.files.foreign_files import goes_on
from sparktxlog.files.last_use import LastUse
from sparktxlog.files.stores.objects import StoredObject
from sparktxlog.files.stores.store import Created, Found, Store
from sparktxlog.files.stores.whole_files import in_parallel
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.payloads.local_store import LocalPayloadStore, check_rows
from sparktxlog.storage.payloads.payload_store import PayloadStore
from sparktxlog.storage.site_bucket import SiteBucket

if TYPE_CHECKING:  # nodes without buckets lack the library
    from sparktxlog.files.stores.donor_buckets import DonorBuckets

_log = structlog.get_logger("sparktxlog.storage")

#: Objects that are remembered, so that a second check costs one look.
_REMEMBERED = 65_536
#: Seconds between two signs of life of what waits for another thread.
_SIGN_S = 1.0


@dataclass(frozen=True, slots=True)
class _Known:
    """An object whose bytes were compared with a manifest."""

    mark: str
    digest: str


class _Turn:
    """A lock that nobody needs any more is forgotten."""

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()


class BucketPayloads(PayloadStore):
    """Staged and published files of a site in a bucket; safe to use from several threads.

    Args:
        bucket: Its root has the files.
        directory: Of the node, for what is on its way; made if missing.
        impatient: The same place for the publisher's thread, which a bucket that is away must not
            hold up for long; default: that of `bucket`.
        donors: Buckets of other sites that the service copies from; None = there are none.
    """

    def __init__(
        self,
        bucket: SiteBucket,
        directory: Path,
        impatient: Store | None = None,
        donors: DonorBuckets | None = None,
    ) -> None:
        self._bucket, self.here, self._donors = bucket, LocalPayloadStore(directory), donors
        self._impatient = impatient or bucket.store
        self.root = self.here.root
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        #: By the first part of a name.
        self.last_use = LastUse()
        #: By name: one thread at a time compares or moves a file.
        self._turns = WeakValueDictionary[str, _Turn]()
        #: Names of files that are at hand, as often as they are.
        self._in_use = Counter[str]()

    @property
    def place(self) -> str:
        return self._store.url

    @property
    def _store(self) -> Store:
        return self._bucket.store

    @property
    def proved(self) -> Store:
        """The bucket, to write there; see `SiteBucket.proved`."""
        return self._bucket.proved

    @property
    def of_publisher(self) -> Store:
        """As `proved`, for the publisher's thread: it publishes, and removes."""
        self._bucket.check_ready()
        return self._impatient

    def take(self, owner: str) -> None:
        self._bucket.take(owner)

    def path(self, relative: str) -> str:
        return self.here.path(relative)

    # -- published rows ----------------------------------------------------------------------------

    def write_file(self, relative: str, content: bytes | memoryview) -> None:
        self.here.write_file(relative, content)

    def sync(self, relatives: Iterable[str]) -> None:
        names, proved = list(relatives), self.of_publisher

        def put(name: str) -> None:
            path = Path(self.path(name))
            if path.exists():  # else an interrupted call put it
                proved.replace(name, path)

        in_parallel(put, names)
        for name in names:
            self._drop(name)

    # -- checks ------------------------------------------------------------------------------------

    def verify(self, file: StagedFile) -> None:
        path = Path(self.path(file.path))
        with self._turn(file.path):
            if path.exists():
                try:
                    self.here.verify(file)
                except ManifestMismatchError:
                    if self._store.find(file.path) is None:
                        raise
                    self._drop(file.path)  # the disk is at fault, perhaps
                else:
                    self._put(file, replaces=False)
                    return
            self._verify_object(file, self._store.find(file.path))

    def _verify_object(self, file: StagedFile, found: Found | None) -> None:
        """Compare an object with its manifest, unless that was done; errors as `verify`."""
        if found is None:
            raise self._missing(file)
        if found.size_bytes != file.size_bytes:
            raise ManifestMismatchError(
                f"{file.path!r} has {found.size_bytes:,} bytes in the bucket, its manifest says "
                f"{file.size_bytes:,}",
                path=file.path,
                size_bytes=found.size_bytes,
            )
        if self._is_known(file, found):
            self._remember(file.path, found.mark, file.digest)
            return
        self._download(file)
        self._drop_unused(file.path)

    def _missing(self, file: StagedFile) -> PayloadStoreError:
        return PayloadStoreError(
            f"no file {file.path!r} in the payload store {self.place}",
            hint="Stage files with staging='http', or in the node's payload-dir; see payload-url.",
            path=file.path,
            root=self.place,
        )

    def _is_known(self, file: StagedFile, found: Found) -> bool:
        with self._lock:
            known = self._known.get(file.path)
        return known == _Known(found.mark, file.digest)

    def _remember(self, name: str, mark: str, digest: str) -> None:
        with self._lock:
            self._known.pop(name, None)
            if len(self._known) >= _REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[name] = _Known(mark, digest)
        self.last_use.note(name.partition("/")[0])

    def forget_verified(self, relative: str) -> None:
        self.here.forget_verified(relative)
        self.forget(relative)

    def forget(self, relative: str) -> None:
        """Forget that an object was compared: it is removed."""
        with self._lock:
            self._known.pop(relative, None)

    def remove_unneeded(self, top: str, seconds: float) -> bool:
        """Remove the objects of a directory below the root, unless a submit may be under way.

        A submit finds its objects before this, and keeps them, or does not find them.

        Args:
            seconds: For so long after a file was verified, a submit may be; at most `KEPT_S`.

        Returns:
            Whether they were removed.
        """
        with ExitStack() as turns:
            # A caller has its turn until the file is remembered; nobody waits for two.
            names = sorted(found.key for found in self.of_publisher.list(top))
            for name in names:
                turns.enter_context(self._turn(name))
            if self.last_use.is_since(top, monotonic() - seconds):
                return False
            for name in names:
                self.forget(name)
            self.of_publisher.remove(names)
        return True

    def remove_unused(self, names: Collection[str], since: float) -> int:
        """Remove objects, but for those of a directory of which a submit verified one.

        Args:
            since: At or after this moment, monotonic seconds.

        Returns:
            How many are not there any more.
        """
        with ExitStack() as turns:
            for name in sorted(names):
                turns.enter_context(self._turn(name))
            unused = [
                name for name in names if not self.last_use.is_since(name.partition("/")[0], since)
            ]
            for name in unused:
                self.forget(name)
            if unused:
                self.of_publisher.remove(unused)
        return len(unused)

    def has(self, file: StagedFile) -> bool:
        if self.here.has(file):
            return True
        found = self._store.find(file.path)
        return found is not None and found.size_bytes == file.size_bytes

    # -- files at hand -----------------------------------------------------------------------------

    @contextmanager
    def at_hand(self, file: StagedFile) -> Iterator[Path]:
        path = Path(self.path(file.path))
        with self._lock:
            self._in_use[file.path] += 1
        try:
            with self._turn(file.path):
                if not self.here.has(file):
                    self._download(file)
            yield path
        finally:
            with self._lock:
                self._in_use[file.path] -= 1
                known = self._known.get(file.path)
            if known is not None and known.digest == file.digest:
                with self._turn(file.path):  # another thread may compare it
                    self._drop_unused(file.path)

    def kept_copy(self, relative: str) -> Path | None:
        path = Path(self.path(relative))
        with self._turn(relative), storing(path):
            if path.is_file():
                return path
            try:
                content = self._store.open(relative)
            except ObjectMissingError:
                return None
            path.parent.mkdir(parents=True, exist_ok=True)
            write_at_once(path, content.pieces)
            return path

    def sendable(self, file: StagedFile) -> StoredObject:
        self.path(file.path)
        return StoredObject(self._store, file.path)

    def _download(self, file: StagedFile) -> None:
        """Bring an object to the directory, compared with its manifest; errors as `verify`."""
        whole: list[str] = []

        def sent(offset: int) -> Iterable[bytes]:
            content = self._store.open(file.path, offset=offset)
            if not offset:
                whole.append(content.found.mark)
            return content.pieces

        try:
            self.here.fetch(file, sent, named=False)
        except ObjectMissingError as error:
            raise self._missing(file) from error
        if whole:
            self._remember(file.path, whole[-1], file.digest)
        else:  # bytes of others were here already: the object was not compared
            self._put(file, replaces=False)

    def _drop_unused(self, name: str) -> None:
        """Remove a file of which the bucket has an equal one, unless it is at hand somewhere."""
        with self._lock:
            if self._in_use[name]:
                return
            del self._in_use[name]
        self._drop(name)

    def _drop(self, name: str) -> None:
        """Remove what the directory has of a file that the bucket has."""
        path = Path(self.path(name))
        self.here.forget(path)
        with storing(path):
            path.unlink(missing_ok=True)
        for parent in path.parents:
            if parent == self.root:
                return
            try:
                parent.rmdir()
            except OSError:  # not empty, or gone
                return

    # -- files that arrive -------------------------------------------------------------------------

    def take_in(self, sources: Mapping[str, Source | bytes]) -> tuple[StagedFile, ...]:
        files = self.here.take_in(sources)

        def put(file: StagedFile) -> None:
            with self._turn(file.path):
                self._put(file, replaces=True)

        in_parallel(put, files)
        return files

    def fetch(
        self, file: StagedFile, sent: Callable[[int], Iterable[bytes]], *, named: bool = True
    ) -> None:
        self.path(file.path)
        with self._turn(file.path):
            found = self._store.find(file.path)
            if found is not None:
                try:
                    self._verify_object(file, found)
                    return
                except (ManifestMismatchError, PayloadStoreError) as error:
                    _log.warning("damaged file is fetched again", path=file.path, reason=str(error))
            elif self._copies(file):
                return
            self.here.fetch(file, sent, named=False)
            self._put(file, replaces=True)
            if file.rows:  # files of commits are placed next, from here
                self._drop_unused(file.path)

    def _copies(self, file: StagedFile) -> bool:
        """Return whether the bucket has a file now, by a copy from that of another site."""
        if self._donors is None:
            return False
        self._bucket.check_ready()
        found = self._donors.copy(file.path, file.size_bytes, file.digest)
        if found is None:
            return False
        if file.rows:
            with io.BufferedReader(self._store.reader(file.path)) as content:
                check_rows(file, content, self._store.url_of(file.path))
        self._remember(file.path, found.mark, file.digest)
        return True

    def sync_names(self, relatives: Iterable[str]) -> None:
        pass  # what a store took is durable

    def receive_part(self, file: StagedFile, part: Sequence[bytes], offset: int) -> int:
        if not offset and not Path(self.path(file.path)).exists():
            with self._turn(file.path):
                if (found := self._store.find(file.path)) is not None:
                    self._verify_object(file, found)
                    return file.size_bytes
        return self.here.receive_part(file, part, offset)

    def _put(self, file: StagedFile, *, replaces: bool) -> None:
        """Put a file that was compared into the bucket, unless that has it.

        Args:
            replaces: Whether it takes the place of another object.

        Raises:
            ManifestMismatchError: There is another object of the name (definite).
        """
        found = self._store.find(file.path) if file.path in self._known else None
        if found is not None and self._is_known(file, found):
            self._remember(file.path, found.mark, file.digest)
            return
        path, proved = Path(self.path(file.path)), self.proved
        if proved.create(file.path, path, alone=True) is Created.OTHER:
            if not replaces:
                raise ManifestMismatchError(
                    f"another object has the name {file.path!r} in {self.place} already",
                    hint="Stage each file under a name of its own.",
                    path=file.path,
                )
            proved.replace(file.path, path)
        if (found := self._store.find(file.path)) is not None:
            self._remember(file.path, found.mark, file.digest)

    # -- threads -----------------------------------------------------------------------------------

    @contextmanager
    def _turn(self, name: str) -> Iterator[None]:
        with self._lock:
            turn = self._turns.get(name)
            if turn is None:
                turn = self._turns[name] = _Turn()
        while not turn.lock.acquire(timeout=_SIGN_S):
            goes_on(self._store.url_of(name))
        try:
            yield
        finally:
            turn.lock.release()
