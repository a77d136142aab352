"""A lake in a directory: staged files get second names there, and all is forced to the disk."""

from __future__ import annotations

import os
from collections.abc import Hashable
from pathlib import Path

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.delta.log_files import commit_path
from sparktxlog.errors import ApplyError
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

    def set_aside(self, name: str, mark: str, why: str) -> str:
        """As `Lake.set_aside`."""
        attic = Attic.of_lake(self.root)
        entry = attic.put(self.root / name, kind=Kind.DROPPED, table=name, mark=mark, why=why)
        return str(entry.path)
