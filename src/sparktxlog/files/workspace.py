"""The directory of a copy below the lake, with the files that it staged.

    lake/_sparktxlog/copies/<copy_id>/<table>/<path>       a staged file, whole and durable
                                      <table>/<path>.part  one that is not whole yet

No file says what these are: the next attempt compares all bytes with its donor's digests.  So
neither kill -9 nor a power cut nor another donor can produce a wrong file.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from sparktxlog.errors import RemoteProtocolError
from sparktxlog.files.durability import storing
from sparktxlog.model.ids import check_table_name
from sparktxlog.model.tables.commit_table import UUID_NAME

#: Below the lake; Delta ignores the leading underscore.
COPIES = Path("_sparktxlog", "copies")
_PART = ".part"


class CopyWorkspace:
    """The directory of one copy; picklable, without open files.

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
        """Return the workspaces below a lake, the one that was used last first."""
        try:
            entries = [entry for entry in os.scandir(Path(lake) / COPIES) if entry.is_dir()]
        except FileNotFoundError:
            return []
        entries.sort(key=lambda entry: (-entry.stat().st_mtime_ns, entry.name))
        return [CopyWorkspace(lake, entry.name) for entry in entries]

    # -- files -------------------------------------------------------------------------------------

    def table_dir(self, table: str) -> Path:
        """Return the directory of a table's staged files; a commit table is named by its UUID."""
        return self.root / (table if UUID_NAME.fullmatch(table) else check_table_name(table))

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

    # -- other copies ------------------------------------------------------------------------------

    def adopt_older(self) -> None:
        """Take over the newest workspace that a copy left in this lake, unless this one exists.

        The older copy must be at rest.

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
