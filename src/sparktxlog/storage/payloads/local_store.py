"""The payload store: staged and published files below one root on a file system.

A staged file counts as held only after its rows were counted, too.

    <root>/<transaction id>/<table>/…     staged by a submitter, or fetched from a peer
    <root>/inline/<first>-<last>/…        inline rows of a published segment
    <root>/.incoming/…                    transfers under way, see `files.arrivals`
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from time import monotonic
from typing import Protocol

from sparktxlog.errors import ManifestMismatchError
from sparktxlog.files.arrivals import Arrivals
from sparktxlog.files.durability import (
    replace_file,
    storing,
    sync_or_rewrite,
    sync_parents,
)
from sparktxlog.files.foreign_files import ForeignFile, digest_of, foreign_file, with_progress
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.parquet_files import count_rows
from sparktxlog.storage.payloads.payload_store import PayloadStore

#: More files than these are taken in by several threads.
_FEW_FILES, _PARALLEL_FILES = 8, 8


class Source(Protocol):
    """A file that the store takes in."""

    def link_as(self, target: ForeignFile) -> None:
        """Give it, or a copy of it, a place on the store's disk."""


class LocalPayloadStore(Arrivals, PayloadStore):
    """A payload store in a directory; safe to use from several threads.

    Args:
        root: Directory that the node and its executors see under one path; made if missing.
    """

    def write_file(self, relative: str, content: bytes | memoryview) -> None:
        path = Path(self.path(relative))
        with storing(path):
            replace_file(path, content)

    def take_in(self, sources: Mapping[str, Source | bytes]) -> tuple[StagedFile, ...]:
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

    def _taken_in(self, relative: str, path: Path, source: Source | bytes) -> StagedFile:
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

    def verified_within(self, path: Path, seconds: float) -> bool:
        """Return whether a file was verified so recently that its submit may be under way."""
        with self._lock:
            known = self._verified.get(path)
        return known is not None and monotonic() - known[2] < seconds

    def forget_verified(self, relative: str) -> None:
        """Make the next `verify` of a file read it again."""
        self.forget(Path(self.path(relative)))

    def _check_content(self, file: StagedFile, source: FileIO, path: str) -> None:
        # The files of a commit may be anything: Parquet, deletion vectors, JSON.
        rows = count_rows(path, source) if file.rows else 0
        if rows != file.rows:
            raise ManifestMismatchError(
                f"{file.path!r} holds {rows:,} rows, its manifest says {file.rows:,}",
                path=file.path,
                rows=rows,
            )
