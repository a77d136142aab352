"""Row tables in the lake of a replica, as their Delta logs describe them; only for reading.

lake/orders/_delta_log   written by the site's worker, by nobody else
"""

from __future__ import annotations

from pathlib import Path

from sparktxlog.codec.delta_catalog.table_states import DeltaTableState
from sparktxlog.delta.log_files import commit_path, has_log
from sparktxlog.delta.log_segments import Version, read_version
from sparktxlog.errors import CorruptLogError, StorageError

#: Distinguishes a commit file from another one in its place: inode, modification time in ns.
_Stamp = tuple[int, int]


class LakeTables:
    """Tables of a lake; its methods block, and may be called in any thread.

    To open a table takes longer the more files it has, so a version is opened once.
    """

    def __init__(self, lake: Path) -> None:
        self._lake = lake
        #: Name → newest version that was read, and its commit file.
        self._known: dict[str, tuple[DeltaTableState, _Stamp]] = {}

    def path(self, name: str) -> Path:
        """Return the directory of a table."""
        return self._lake / name

    def read(self, name: str) -> DeltaTableState | None:
        """Return a table at its newest version, None = there is none here.

        Rows are not looked at.  Times are those of the table's creation and of the newest commit
        file.  The version that changed the definition last is not looked for: it is the newest one.

        Raises:
            CorruptLogError: The table cannot be read.
        """
        path = self.path(name)
        if not has_log(path):
            self._known.pop(name, None)
            return None
        known = self._known.get(name)
        try:
            if known is not None and self._is_newest(path, *known):
                return known[0]
            found = read_version(path)
            stamp = _stamp(commit_path(path, found.version))
            state = _state(found, stamp)
        except (StorageError, OSError) as error:
            if not path.is_dir():
                return None  # its worker has just put it aside
            raise CorruptLogError(
                f"the table in {path} cannot be read: {error}", path=str(path)
            ) from error
        self._known[name] = state, stamp
        return state

    @staticmethod
    def _is_newest(path: Path, state: DeltaTableState, stamp: _Stamp) -> bool:
        """Return whether a version that was read is still there, and is the newest one."""
        try:
            is_there = _stamp(commit_path(path, state.version)) == stamp
        except FileNotFoundError:
            return False
        return is_there and not commit_path(path, state.version + 1).exists()


def _stamp(path: Path) -> _Stamp:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def _state(found: Version, stamp: _Stamp) -> DeltaTableState:
    written = stamp[1] // 1_000_000
    return DeltaTableState(
        version=found.version,
        timestamp=written,
        metadata=found.metadata,
        protocol=found.protocol,
        domains={},
        created=found.metadata.created_time or written,
        changed_version=found.version,
        changed_timestamp=written,
    )
