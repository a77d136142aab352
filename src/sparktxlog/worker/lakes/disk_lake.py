"""A lake in a directory: staged files get second names there, and all is forced to the disk."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from sparktxlog.attic.attic import Attic, Entry, Kind
from sparktxlog.delta.log_files import commit_path
from sparktxlog.errors import ApplyError
from sparktxlog.files.durability import move_durably, place_durably
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.worker.apply.batches import Batch
from sparktxlog.worker.apply.settling import settle, undo_torn
from sparktxlog.worker.lakes.payload_files import PayloadFiles, check_payload


class DiskLake:
    """A directory with a directory for each table.  Methods are those of `Lake`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def url(self) -> str:
        """As `Lake.url`."""
        return str(self.root)

    def table(self, name: str) -> Path:
        """As `Lake.table`."""
        return self.root / name

    def url_of(self, name: str) -> str:
        """As `Lake.url_of`."""
        return str(self.root / name)

    def has(self, name: str) -> bool:
        """As `Lake.has`."""
        return os.path.lexists(self.root / name)

    def identity(self, name: str, version: int) -> Hashable:
        """As `Lake.identity`."""
        try:
            status = commit_path(self.root / name, version).stat()
        except FileNotFoundError:
            return version, 0, 0
        return version, status.st_ino, status.st_mtime_ns

    def undo_torn(self, name: str, recorded: int, log_id: str, batch: Batch | None) -> bool:
        """As `Lake.undo_torn`."""
        return bool(undo_torn(self.root / name, recorded, log_id, batch, name))

    def settle(self, name: str, first: int, last: int, *, found: bool = False) -> None:
        """As `Lake.settle`."""
        settle(self.root / name, first, last, found=found)

    def bring(self, name: str, path: str, file: StagedFile, payloads: PayloadFiles) -> int:
        """As `Lake.bring`: the file gets a second name, or is copied."""
        target = self.root / name / path
        while True:
            try:
                fresh = payloads.give(file, target)
            except FileNotFoundError as error:
                raise ApplyError(
                    f"payload file {payloads.url}/{file.path} is missing",
                    hint="Node and worker must share the payload store, "
                    "and it must hold what was not applied yet.",
                    path=file.path,
                ) from error
            try:
                check_payload(file, target)
                break
            except ApplyError:
                target.unlink(missing_ok=True)
                # A file that a crash left was damaged; the payload store may have a good one.
                if fresh:
                    raise
        return target.stat().st_mtime_ns // 1_000_000

    def drops_of(self, name: str) -> set[str]:
        """As `Lake.drops_of`."""
        return {one.id for one in Attic.of_lake(self.root).entries(Kind.DROPPED, name)}

    def set_aside(
        self,
        name: str,
        mark: str,
        why: str,
        kind: Kind = Kind.DROPPED,
        facts: dict[str, Any] | None = None,
    ) -> str:
        """As `Lake.set_aside`."""
        attic, table = Attic.of_lake(self.root), self.root / name
        return str(attic.put(table, kind=kind, table=name, mark=mark, why=why, facts=facts).path)

    def keep(self, name: str, mark: str, why: str, facts: dict[str, Any]) -> Entry:
        """As `Lake.keep`: by second names, or copies."""
        attic, table = Attic.of_lake(self.root), self.root / name
        return attic.keep(table, kind=Kind.TABLE, table=name, mark=mark, why=why, facts=facts)

    def put_rows(self, name: str, rows: Path, mark: str, why: str, facts: dict[str, Any]) -> Entry:
        """As `Lake.put_rows`."""
        said: dict[str, Any] = {"table": name, "mark": mark, "why": why, "facts": facts}
        attic = Attic.of_lake(self.root)
        return attic.put(rows, kind=Kind.ROWS, source=self.root / name, **said)

    def kept(self, name: str) -> list[Entry]:
        """As `Lake.kept`."""
        return Attic.of_lake(self.root).entries(table=name)

    def forget(self, entry: Entry) -> None:
        """As `Lake.forget`."""
        Attic.of_lake(self.root).remove(entry)

    def back_up(self, name: str, mark: str, why: str, attic: Path) -> None:
        """As `Lake.back_up`: by second names, or copies."""
        place, kind = Attic(attic), Kind.BACKUP
        # What was kept already stays: after a crash the lake may hold new files.
        if place.newest(kind, name, mark) is None:
            place.keep(self.root / name, kind=kind, table=name, mark=mark, why=why)

    def bring_own(self, name: str, files: Mapping[str, int], to: Path) -> bool:
        """As `Lake.bring_own`: a copy looks into the table itself."""
        return False

    def add_files(self, name: str, files: Mapping[str, Path]) -> None:
        """As `Lake.add_files`: by second names."""
        places = {self.root / name / path: source for path, source in files.items()}
        for target, source in places.items():
            if not (target.exists() and target.samefile(source)):
                os.utime(source)  # until they are committed, VACUUM judges files by their age
        place_durably(places, self.root / name)

    def take_over(self, name: str, directory: Path, mark: str) -> None:
        """As `Lake.take_over`: by one rename."""
        move_durably(directory, self.root / name)

    def is_begun(self, name: str, mark: str) -> bool:
        """As `Lake.is_begun`: never, a rename is whole."""
        return False
