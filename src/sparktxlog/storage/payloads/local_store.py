"""The payload store: staged and published files below one root on a file system.

A staged file counts as held only after its rows were counted, too.

    <root>/<transaction id>/<table>/…     staged by a submitter, or fetched from a peer
    <root>/inline/<first>-<last>/…        inline rows of a published segment
    <root>/.incoming/…                    transfers under way, see `files.arrivals`
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from sparktxlog.errors import ManifestMismatchError
from sparktxlog.files.arrivals import Arrivals
from sparktxlog.files.durability import (
    replace_file,
    storing,
    sync_or_rewrite,
    sync_parents,
)
from sparktxlog.files.foreign_files import ForeignFile
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.parquet_files import count_rows
from sparktxlog.storage.payloads.payload_store import PayloadStore


class LocalPayloadStore(Arrivals, PayloadStore):
    """A payload store in a directory; safe to use from several threads.

    Args:
        root: Directory that the node and its executors see under one path; made if missing.
    """

    @property
    def place(self) -> str:
        return str(self.root)

    def take(self, owner: str) -> None:
        pass  # a directory is a setting of one machine, and `doctor` looks at its disk

    def write_file(self, relative: str, content: bytes | memoryview) -> None:
        path = Path(self.path(relative))
        with storing(path):
            replace_file(path, content)

    def sync(self, relatives: Iterable[str]) -> None:
        paths = [self.path(relative) for relative in relatives]
        with storing(self.root):
            for path in paths:
                sync_or_rewrite(path)
            sync_parents(paths, self.root)

    @contextmanager
    def at_hand(self, file: StagedFile) -> Iterator[Path]:
        yield Path(self.path(file.path))

    def kept_copy(self, relative: str) -> Path | None:
        path = Path(self.path(relative))
        with storing(path):
            return path if path.is_file() else None

    def sendable(self, file: StagedFile) -> ForeignFile:
        return ForeignFile(self.place, file.path)

    def forget_verified(self, relative: str) -> None:
        """Make the next `verify` of a file read it again."""
        self.forget(Path(self.path(relative)))

    def _check_content(self, file: StagedFile, source: FileIO, path: str) -> None:
        check_rows(file, source, path)


def check_rows(file: StagedFile, source: BinaryIO | FileIO, path: str) -> None:
    """Compare the rows of an open file with its manifest.

    Args:
        path: Where it is.

    Raises:
        ManifestMismatchError: It has another number of them (definite).
    """
    # The files of a commit may be anything: Parquet, deletion vectors, JSON.
    rows = count_rows(path, source) if file.rows else 0
    if rows != file.rows:
        raise ManifestMismatchError(
            f"{file.path!r} holds {rows:,} rows, its manifest says {file.rows:,}",
            path=file.path,
            rows=rows,
        )
