"""The payload store: staged and published files below one root on a file system.

`path` checks every name from outside: it stays below the root and crosses no link, so a manifest
cannot make a node read or write elsewhere.  A file counts as held only after its size, digest and
row count were compared with its manifest, and its bytes and name were fsynced.

    <root>/<transaction id>/<table>/…     staged by a submitter, or fetched from a peer
    <root>/inline/<first>-<last>/…        inline rows of a published segment
    <root>/.incoming/…                    transfers under way, kept for resumption
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from time import monotonic

from sparktxlog.errors import (
    BusyError,
    InvalidNameError,
    ManifestMismatchError,
    PayloadStoreError,
)
from sparktxlog.model.ids import check_relative_path
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.durability import (
    replace_file,
    storage_error,
    storing,
    sync_or_rewrite,
    sync_parents,
)
from sparktxlog.storage.foreign_files import (
    INCOMING,
    ForeignFile,
    digest_of,
    foreign_file,
    goes_on,
    with_progress,
)
from sparktxlog.storage.parquet_files import count_rows
from sparktxlog.storage.payloads.payload_store import PayloadStore

#: Verified files that are remembered, so that a second check costs one stat.
_REMEMBERED = 65_536
#: More files than these are taken in by several threads.
_FEW_FILES, _PARALLEL_FILES = 8, 8

_Mark = tuple[int, int, int]


class LocalPayloadStore(PayloadStore):
    """A payload store in a directory; safe to use from several threads.

    Args:
        root: Directory that the node and its executors see under one path; made if missing.
    """

    def __init__(self, root: Path) -> None:
        with storing(root):
            (root / INCOMING).mkdir(parents=True, exist_ok=True)
        self.root = root.resolve()
        self._lock = threading.Lock()
        #: Path → inode, size and modification time at verification, the digest found, and when,
        #: monotonic seconds.
        self._verified: dict[Path, tuple[_Mark, str, float]] = {}

    def path(self, relative: str) -> str:
        parts = check_relative_path(relative).split("/")
        goes_on(f"{self.root}/{relative}")
        if parts[0] == INCOMING or self._crosses_link(parts):
            raise InvalidNameError(
                f"{relative[:140]!r} leaves the payload store or crosses a link",
                hint="Stage plain files below the payload store; links are refused.",
                value=relative[:140],
            )
        return f"{self.root}/{relative}"

    def _crosses_link(self, parts: Sequence[str]) -> bool:
        """Return whether a part of a path below the root is a link; the root itself has none."""
        place = str(self.root)
        for part in parts:
            place = f"{place}/{part}"
            try:
                status = os.lstat(place)
            except OSError:
                return False  # it is not there, and so nothing below it
            if stat.S_ISLNK(status.st_mode):
                return True
        return False

    def verify(self, file: StagedFile) -> None:
        path = Path(self.path(file.path))
        mark = self._mark(file, path)
        with self._lock:
            known = self._verified.get(path)
        if known is not None and known[:2] == (mark, file.digest):
            return
        with storing(path):
            _check_file(file, foreign_file(self.root, path))
            sync_or_rewrite(path)
            sync_parents([path], self.root)
        self._remember(path, mark, file.digest)

    def has(self, file: StagedFile) -> bool:
        """Return whether a file with this name and size is here."""
        try:
            status = Path(self.path(file.path)).stat()
        except FileNotFoundError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size == file.size_bytes

    def receive(
        self, file: StagedFile, chunks: Iterable[bytes], offset: int = 0, *, named: bool = True
    ) -> None:
        final = Path(self.path(file.path))
        with self._receiving(file) as target:
            self._fill(file, target, chunks, offset)
            self._put_in_place(file, final, named=named)

    def receive_part(self, file: StagedFile, part: Sequence[bytes], offset: int) -> int:
        final = Path(self.path(file.path))
        if final.exists():
            self.verify(file)
            return file.size_bytes
        with self._receiving(file) as target:
            held = os.fstat(target).st_size
            if offset != held:
                return held
            self._fill(file, target, part, offset)
            held += sum(map(len, part))
            if held == file.size_bytes:
                self._put_in_place(file, final, replaces=False)
        return held

    @contextmanager
    def _receiving(self, file: StagedFile) -> Iterator[int]:
        """Give the descriptor of a file that is being received; nobody else writes it meanwhile."""
        partial = self._partial(file)
        with storing(partial):
            descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        with os.fdopen(descriptor, "r+b", buffering=0) as target:
            try:
                fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BusyError(
                    f"{file.path!r} is being received already", path=file.path
                ) from error
            if not _is_at(target.fileno(), partial):
                # The other transfer ended between our open and our lock: the file is in place.
                raise BusyError(f"{file.path!r} was received meanwhile", path=file.path)
            yield target.fileno()

    def _put_in_place(
        self, file: StagedFile, final: Path, *, named: bool = True, replaces: bool = True
    ) -> None:
        """Verify, fsync and place a received file.

        Args:
            named: Whether its name is brought to the disk, too.
            replaces: Whether it takes the place of a file of its name.

        Raises:
            ManifestMismatchError: The bytes are another file, and are removed; or there is a file
                of the name (definite).
        """
        partial = self._partial(file)
        try:
            _check_file(file, foreign_file(self.root, partial))
        except ManifestMismatchError:
            partial.unlink()
            raise
        with storing(final):
            sync_or_rewrite(partial)
            final.parent.mkdir(parents=True, exist_ok=True)
            # Two files of one name are received under two names, so the lock of each lets both in.
            with self._lock:
                if not replaces and final.exists():
                    partial.unlink()
                    raise ManifestMismatchError(
                        f"another file has the name {file.path!r} already",
                        hint="Stage each file under a name of its own.",
                        path=file.path,
                    )
                partial.replace(final)
            if named:
                sync_parents([final], self.root)
        self._remember(final, self._mark(file, final), file.digest)

    def sync_names(self, relatives: Iterable[str]) -> None:
        with storing(self.root):
            sync_parents([self.path(relative) for relative in relatives], self.root)

    def received_bytes(self, file: StagedFile) -> int:
        try:
            return min(self._partial(file).stat().st_size, file.size_bytes)
        except FileNotFoundError:
            return 0

    def write_file(self, relative: str, content: bytes | memoryview) -> None:
        path = Path(self.path(relative))
        with storing(path):
            replace_file(path, content)

    def take_in(self, sources: Mapping[str, ForeignFile | bytes]) -> tuple[StagedFile, ...]:
        """Give files, or bytes, places in the store; whatever was there is replaced.

        A file is linked: a write into it damages it here too, and a check finds that.

        Args:
            sources: Path in the store → what it gets.

        Returns:
            What a manifest says of them, once their bytes and names are durable; their rows count
            as none.

        Raises:
            InvalidNameError: A name leaves the root (definite).
            DiskFullError, StorageError: Some may not be taken in.
        """
        paths = {relative: Path(self.path(relative)) for relative in sources}

        def taken_in(relative: str) -> StagedFile:
            return self._taken_in(relative, paths[relative], sources[relative])

        if len(paths) > _FEW_FILES:  # each waits for the disk
            with ThreadPoolExecutor(_PARALLEL_FILES, "taking-in") as threads:
                files = list(threads.map(with_progress(taken_in), paths))
        else:
            files = list(map(taken_in, paths))
        with storing(self.root):
            # The names of all files, with one sync of each directory.
            sync_parents(paths.values(), self.root)
        for file in files:
            path = paths[file.path]
            self._remember(path, self._mark(file, path), file.digest)
        return tuple(files)

    def _taken_in(self, relative: str, path: Path, source: ForeignFile | bytes) -> StagedFile:
        with storing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(source, bytes):
                replace_file(path, source)
            else:
                source.link_as(foreign_file(self.root, path))
            with foreign_file(self.root, path).open() as content:
                digest = digest_of(content, path)
                size = os.fstat(content.fileno()).st_size
            # The bytes: also those of the file in the table, which is the same one.
            sync_or_rewrite(path)
        return StagedFile(path=relative, size_bytes=size, rows=0, digest=digest)

    def sync(self, relatives: Iterable[str]) -> None:
        paths = [self.path(relative) for relative in relatives]
        with storing(self.root):
            for path in paths:
                sync_or_rewrite(path)
            sync_parents(paths, self.root)

    def _fill(
        self, file: StagedFile, descriptor: int, chunks: Iterable[bytes], offset: int
    ) -> None:
        held = os.fstat(descriptor).st_size
        if offset > held:
            raise PayloadStoreError(
                f"{file.path!r} cannot resume at byte {offset:,}: {held:,} bytes are here",
                path=file.path,
                offset=offset,
                held=held,
            )
        total = offset
        with storing(file.path):
            os.ftruncate(descriptor, offset)
        # Only errors of our own writes are the disk's; `chunks` raises errors of the link.
        for chunk in chunks:
            if total + len(chunk) > file.size_bytes:
                self._partial(file).unlink()
                raise ManifestMismatchError(
                    f"more than the {file.size_bytes:,} bytes of {file.path!r} arrive",
                    path=file.path,
                )
            goes_on(self._partial(file))
            with storing(file.path):
                _write_at(descriptor, chunk, total)
            total += len(chunk)

    def _partial(self, file: StagedFile) -> Path:
        name = hashlib.sha256(f"{file.path}\0{file.digest}".encode()).hexdigest()
        return self.root / INCOMING / name

    def _mark(self, file: StagedFile, path: Path) -> _Mark:
        try:
            status = path.lstat()
        except FileNotFoundError as error:
            raise PayloadStoreError(
                f"no file {file.path!r} in the payload store {self.root}",
                hint="The node and the Spark executors must see one payload store under one"
                " path: check payload-dir.",
                path=file.path,
                root=str(self.root),
            ) from error
        except OSError as error:
            raise storage_error(error, path) from error
        if not stat.S_ISREG(status.st_mode):
            raise PayloadStoreError(f"{file.path!r} is not a plain file", path=file.path)
        return (status.st_ino, status.st_size, status.st_mtime_ns)

    def _remember(self, path: Path, mark: _Mark, digest: str) -> None:
        with self._lock:
            if len(self._verified) >= _REMEMBERED:
                del self._verified[next(iter(self._verified))]
            self._verified[path] = (mark, digest, monotonic())

    def verified_within(self, path: Path, seconds: float) -> bool:
        """Return whether a file was verified so recently that its submit may be under way."""
        with self._lock:
            known = self._verified.get(path)
        return known is not None and monotonic() - known[2] < seconds

    def forget_verified(self, relative: str) -> None:
        """Make the next `verify` of a file read it again."""
        self.forget(Path(self.path(relative)))

    def forget(self, path: Path) -> None:
        """Forget that a file was verified: it is removed."""
        with self._lock:
            self._verified.pop(path, None)


def _check_file(file: StagedFile, found: ForeignFile) -> None:
    with found.open() as source:
        _check_open(file, source, found.path)


def _check_open(file: StagedFile, source: FileIO, path: str) -> None:
    size = os.fstat(source.fileno()).st_size
    if size != file.size_bytes:
        raise ManifestMismatchError(
            f"{file.path!r} has {size:,} bytes, its manifest says {file.size_bytes:,}",
            path=file.path,
            size_bytes=size,
        )
    digest = digest_of(source, path)
    if digest != file.digest:
        raise ManifestMismatchError(
            f"{file.path!r} has the digest {digest}, its manifest says {file.digest}",
            path=file.path,
            digest=digest,
        )
    # The files of a commit may be anything: Parquet, deletion vectors, JSON.
    rows = count_rows(path, source) if file.rows else 0
    if rows != file.rows:
        raise ManifestMismatchError(
            f"{file.path!r} holds {rows:,} rows, its manifest says {file.rows:,}",
            path=file.path,
            rows=rows,
        )


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


def _write_at(descriptor: int, chunk: bytes, offset: int) -> None:
    view = memoryview(chunk)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written
