"""The directory of a copy below the lake: staged files, what is known of them, journals.

    lake/_sparktxlog/copies/<copy_id>/<table>/<path>       a staged file, whole and verified
                                      <table>/<path>.part  one that is not whole yet
                                      chunks-<stream>.jsonl  chunks whose bytes were written
                                      files.jsonl          tree digests of the staged files

A chunk's bytes are written before its line, a file is brought to the disk before it gets its
name.  Lines prove nothing by themselves: after a crash the bytes they name are hashed again, so
neither kill -9 nor a power cut can make a wrong file of them; what does not fit is fetched again.
A line that cannot be read is as good as none.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from sparktxlog.errors import DiskFullError, InvalidNameError, RemoteProtocolError, StorageError
from sparktxlog.model.ids import check_table_name
from sparktxlog.worker.copy.fetch.tasks import ChunkRecord, FileKey, FileTask

#: Below the lake; Delta ignores the leading underscore.
COPIES = Path("_sparktxlog", "copies")
_COPY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_PART = ".part"
_FILES = "files.jsonl"
_ADOPTED = "adopted"
_R = TypeVar("_R", "ChunkRecord", "FileRecord")


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A staged file that was proved: a line of `files.jsonl`."""

    table: str
    path: str
    size_bytes: int
    #: Tree digest, hexadecimal, over chunks of this size.
    digest: str
    chunk_bytes: int
    #: Lease whose donor's digest it was compared with.
    lease_id: str


class Journal:
    """Appends lines to one file; each is written at once, so that only the last can be torn.

    Used by one thread.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            # A line torn by a crash must not swallow the next one.
            self._write(b"\n")

    def append(self, record: ChunkRecord | FileRecord) -> None:
        """Add a line.

        Raises:
            DiskFullError, StorageError: It is not there; the bytes it names are, and unused.
        """
        self._write(msgspec.json.encode(record) + b"\n")

    def _write(self, line: bytes) -> None:
        try:
            if os.write(self._descriptor, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise disk_error(error, self._path) from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class CopyWorkspace:
    """The directory of one copy; picklable, holds nothing open.

    One process at a time fetches into it, besides the parts it handed out itself.

    Args:
        lake: Root of the replica's tables.
        copy_id: Of the ticket.

    Raises:
        InvalidNameError: The copy id is no name for a directory (definite).
    """

    def __init__(self, lake: str | Path, copy_id: str) -> None:
        if not _COPY_ID.fullmatch(copy_id):
            raise InvalidNameError(
                f"copy id {copy_id[:140]!r} is none",
                hint="Letters, digits, - and _ are allowed, 1 to 128 of them.",
                field="copy_id",
                value=copy_id[:140],
            )
        self.lake = Path(lake)
        self.copy_id = copy_id
        self.root = self.lake / COPIES / copy_id

    @staticmethod
    def found(lake: str | Path) -> list[CopyWorkspace]:
        """Return the workspaces below a lake, the one written to last first."""
        try:
            entries = [entry for entry in os.scandir(Path(lake) / COPIES) if entry.is_dir()]
        except FileNotFoundError:
            return []
        entries.sort(key=lambda entry: (-entry.stat().st_mtime_ns, entry.name))
        return [CopyWorkspace(lake, e.name) for e in entries if _COPY_ID.fullmatch(e.name)]

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
        """Return where a file is while it is not whole."""
        staged = self.staged(table, path)
        return staged.with_name(staged.name + _PART)

    def missing_bytes(self, tasks: Iterable[FileTask]) -> int:
        """Return what the files will still take on the disk, in bytes."""
        return sum(max(0, task.size_bytes - self._present(task)) for task in tasks)

    def _present(self, task: FileTask) -> int:
        if self.staged(*task.key).exists():
            return task.size_bytes
        try:
            return self.part(*task.key).stat().st_blocks * 512
        except FileNotFoundError:
            return 0

    # -- journals ----------------------------------------------------------------------------------

    def journal(self, stream: str) -> Journal:
        """Open the journal of a stream, for appending `ChunkRecord`s."""
        self.root.mkdir(parents=True, exist_ok=True)
        return Journal(self.root / f"chunks-{stream}.jsonl")

    def file_journal(self) -> Journal:
        """Open the journal of whole files, for appending `FileRecord`s."""
        self.root.mkdir(parents=True, exist_ok=True)
        return Journal(self.root / _FILES)

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
        """Return file → the newest record of it."""
        return {(r.table, r.path): r for r in _lines(self.root / _FILES, FileRecord)}

    # -- other copies ------------------------------------------------------------------------------

    def adopt(self, older: CopyWorkspace, tasks: Iterable[FileTask]) -> int:
        """Take over what an older copy of this lake fetched of the wanted files.

        Nothing is believed: a fetch compares whole files with its donor's digests, and hashes the
        chunks of the others again.  What is here already stays.

        Args:
            older: Keeps its whole files, which become links; its parts are moved, so that no two
                copies write into one file.  It must be at rest; remove it afterwards.
            tasks: Wanted files; one of another size is another file.

        Returns:
            Number of files taken over, in whole or in part.

        Raises:
            DiskFullError, StorageError: Not all was taken over; what was is whole.
        """
        files, chunks = older.file_records(), older.chunk_records()
        taken = 0
        with self.file_journal() as whole, self.journal(_ADOPTED) as parts:
            for task in tasks:
                record = files.get(task.key)
                if self.staged(*task.key).exists() or self.part(*task.key).exists():
                    continue
                if record is not None and self._link_staged(older, task):
                    whole.append(record)
                    taken += 1
                elif task.key in chunks and older.part(*task.key).exists():
                    # The lines first: without bytes they are harmless.
                    for line in _as_lines(task, chunks[task.key]):
                        parts.append(line)
                    taken += self._move_part(older, task)
        return taken

    def _link_staged(self, older: CopyWorkspace, task: FileTask) -> bool:
        source, target = older.staged(*task.key), self.staged(*task.key)
        try:
            if source.stat().st_size != task.size_bytes:
                return False
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(source, target)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise disk_error(error, target) from error
        return True

    def _move_part(self, older: CopyWorkspace, task: FileTask) -> bool:
        target = self.part(*task.key)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            older.part(*task.key).rename(target)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise disk_error(error, target) from error
        return True

    def remove(self) -> None:
        """Remove the workspace with all that is staged in it; none is fine.

        Raises:
            StorageError: Something of it is still there.
        """
        try:
            shutil.rmtree(self.root)
        except FileNotFoundError:
            return
        except OSError as error:
            raise disk_error(error, self.root) from error


def remove_others(lake: str | Path, keep: Collection[str] = ()) -> list[str]:
    """Remove the workspaces of all copies of a lake but some; return whose were removed."""
    stale = [space for space in CopyWorkspace.found(lake) if space.copy_id not in keep]
    for space in stale:
        space.remove()
    return sorted(space.copy_id for space in stale)


def _as_lines(task: FileTask, chunks: dict[int, set[str]]) -> Iterator[ChunkRecord]:
    for number, digests in sorted(chunks.items()):
        for digest in sorted(digests):
            yield ChunkRecord(table=task.table, path=task.path, chunk=number, digest=digest)


def _lines(journal: Path, kind: type[_R]) -> Iterator[_R]:
    decoder = msgspec.json.Decoder(kind)
    try:
        file = open(journal, "rb")  # noqa: SIM115 - closed below; a missing one is no error
    except FileNotFoundError:
        return
    with file:
        for line in file:
            try:
                yield decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue  # torn by a crash: what it named is fetched or hashed again


def disk_error(error: OSError, path: Path) -> StorageError:
    """Return the error of this project that says what the system's means for a copy."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(
            f"no space left for {path}",
            hint="Free space on the disk of the lake; what is fetched is kept and used again.",
            path=str(path),
        )
    return StorageError(
        f"{path} failed: {error.strerror or error}",
        hint="What is fetched is kept and used again.",
        path=str(path),
    )
