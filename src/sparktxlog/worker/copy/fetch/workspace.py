"""The directory of a copy below the lake: staged files, their digests, journals.

    lake/_sparktxlog/copies/<copy_id>/<table>/<path>       a staged file, whole and verified
                                      <table>/<path>.part  one that is not whole yet
                                      chunks-<stream>.jsonl  chunks whose bytes were written
                                      file-digests.jsonl   tree digests of the staged files

A chunk's bytes are written before its line; a file and its line are synced before the file gets its
name.  Lines of chunks are no proof: after a crash the bytes that they name are hashed again, and
fetched again if they do not match.  So neither kill -9 nor a power cut can produce a wrong file.
Unreadable lines are ignored.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from sparktxlog.errors import RemoteProtocolError
from sparktxlog.model.ids import check_table_name
from sparktxlog.storage.durability import append_line, storing
from sparktxlog.worker.copy.fetch.tasks import ChunkRecord, FileKey, FileTask

#: Below the lake; Delta ignores the leading underscore.
COPIES = Path("_sparktxlog", "copies")
_PART = ".part"
#: No table can have its name, nor those of the chunks: they have a dash.
_FILES = "file-digests.jsonl"
_R = TypeVar("_R", "ChunkRecord", "FileRecord")


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A staged file that was proved: a line of `file-digests.jsonl`."""

    table: str
    path: str
    size_bytes: int
    #: Tree digest, hexadecimal, over chunks of this size.
    digest: str
    chunk_bytes: int

    @classmethod
    def of(cls, task: FileTask, digest: str, chunk_bytes: int) -> FileRecord:
        """Return the record of a file with this tree digest."""
        return cls(
            table=task.table,
            path=task.path,
            size_bytes=task.size_bytes,
            digest=digest,
            chunk_bytes=chunk_bytes,
        )


class LineJournal:
    """Appends lines to one file; each is written at once, so only the last one can be torn.

    Used by one thread.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with storing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab+", buffering=0)
            size = self._file.seek(0, os.SEEK_END)
            if size and os.pread(self._file.fileno(), 1, size - 1) != b"\n":
                # A line torn by a crash must not swallow the next one.
                self._file.write(b"\n")

    def append(self, record: ChunkRecord | FileRecord) -> None:
        """Add a line.

        Raises:
            DiskFullError, StorageError: It is not written; the bytes that it names are unused.
        """
        line = msgspec.json.encode(record) + b"\n"
        with storing(self._path):
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()


class CopyWorkspace:
    """The directory of one copy; picklable, without open files.

    Only one process at a time fetches into it, beside its own parts.

    Args:
        lake: Root of the replica's tables.
        copy_id: Names the directory.
    """

    def __init__(self, lake: str | Path, copy_id: str) -> None:
        self.lake = Path(lake)
        self.copy_id = copy_id
        self.root = self.lake / COPIES / copy_id

    @staticmethod
    def found(lake: str | Path) -> list[CopyWorkspace]:
        """Return the workspaces below a lake, the last used one first."""
        try:
            entries = [entry for entry in os.scandir(Path(lake) / COPIES) if entry.is_dir()]
        except FileNotFoundError:
            return []
        entries.sort(key=lambda entry: (-entry.stat().st_mtime_ns, entry.name))
        return [CopyWorkspace(lake, entry.name) for entry in entries]

    # -- files -------------------------------------------------------------------------------------

    def table_dir(self, table: str) -> Path:
        """Return the directory of a table's staged files."""
        return self.root / check_table_name(table)

    def staged(self, table: str, path: str) -> Path:
        """Return where a file is staged.

        Raises:
            RemoteProtocolError: The path, which a donor named, leads elsewhere (definite).
        """
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts) or "\0" in path or path.endswith(_PART):
            raise RemoteProtocolError(
                f"table {table!r}: the donor offers the path {path[:300]!r}, which is none of a "
                "file below the table's directory",
                hint="Copy from another site.",
                field="path",
                value=path[:300],
            )
        return self.table_dir(table).joinpath(*parts)

    def part(self, table: str, path: str) -> Path:
        """Return the path of an incomplete file."""
        staged = self.staged(table, path)
        return staged.with_name(staged.name + _PART)

    # -- journals ----------------------------------------------------------------------------------

    def journal(self, stream: str) -> LineJournal:
        """Open the journal of a stream, for appending `ChunkRecord`s."""
        return LineJournal(self.root / f"chunks-{stream}.jsonl")

    def record_files(self, records: Iterable[FileRecord]) -> None:
        """Journal the digests of whole files, durably, **before** they get their names.

        Otherwise a name with the record of an earlier file would count as that file.

        Raises:
            DiskFullError, StorageError: Some are missing; records without files are harmless.
        """
        lines, path = [msgspec.json.encode(record) for record in records], self.root / _FILES
        if lines:
            with storing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                append_line(path, b"\n".join(lines))

    def chunk_records(self) -> dict[FileKey, dict[int, set[str]]]:
        """Return file → chunk number → digests that some line gives it; more than one after
        a file was fetched again.
        """
        known: dict[FileKey, dict[int, set[str]]] = {}
        for journal in sorted(self.root.glob("chunks-*.jsonl")):
            for record in _lines(journal, ChunkRecord):
                file = known.setdefault((record.table, record.path), {})
                file.setdefault(record.chunk, set()).add(record.digest)
        return known

    def file_records(self) -> dict[FileKey, FileRecord]:
        """Return file → its newest record."""
        return {(r.table, r.path): r for r in _lines(self.root / _FILES, FileRecord)}

    # -- other copies ------------------------------------------------------------------------------

    def adopt_older(self) -> None:
        """Take over the newest workspace that a copy left in this lake, unless this one exists.

        Nothing is believed: a fetch compares whole files with its donor's digests, and hashes the
        chunks of the others again.  The older copy must be at rest.

        Raises:
            StorageError: The workspace of the older copy stays as it was.
        """
        if self.root.exists():
            return
        for older in self.found(self.lake)[:1]:
            with storing(older.root):
                older.root.rename(self.root)


def remove_workspaces(lake: str | Path) -> None:
    """Remove the workspaces of all copies of a lake, with all that is staged in them.

    Raises:
        StorageError: Something of them is still there.
    """
    for space in CopyWorkspace.found(lake):
        with storing(space.root):
            shutil.rmtree(space.root)


def _lines(journal: Path, kind: type[_R]) -> Iterator[_R]:
    decoder = msgspec.json.Decoder(kind)
    try:
        file = journal.open("rb")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            try:
                yield decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue  # torn by a crash: its file or chunk is fetched or hashed again
