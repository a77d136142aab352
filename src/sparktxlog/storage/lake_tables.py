"""Row tables in the lake of a replica, as their Delta logs describe them; only for reading.

lake/orders/<log>   written by the site's worker, by nobody else
"""

from __future__ import annotations

from pathlib import Path

from sparktxlog.codec.delta_catalog.table_states import DeltaTableState
from sparktxlog.delta.log_files import TablePlace, has_commit, has_log, store_of
from sparktxlog.delta.log_segments import Version, read_version
from sparktxlog.errors import (
    STORE_AWAY,
    CorruptLogError,
    StorageError,
)
from sparktxlog.files.stores.part import PartOfStore
from sparktxlog.model.tables.commit_table import commit_file_name

#: Distinguishes a commit file from another one in its place, and when it was written, in
#: milliseconds since 1970 UTC.
_Stamp = tuple[str, int]


class LakeTables:
    """Tables of a lake; its methods block, and may be called in any thread.

    To open a table takes longer the more files it has, so a version is opened once.
    """

    def __init__(self, lake: TablePlace) -> None:
        self._lake = lake
        #: Name → newest version that was read, and its commit file.
        self._known: dict[str, tuple[DeltaTableState, _Stamp]] = {}

    def place(self, name: str) -> TablePlace:
        """Return where a table is."""
        lake = self._lake
        return lake / name if isinstance(lake, Path) else PartOfStore(lake, name)

    def read(self, name: str) -> DeltaTableState | None:
        """Return a table at its newest version, None = there is none here.

        Rows are not looked at.  Times are those of the table's creation and of the newest commit
        file.  The version that changed the definition last is not looked for: it is the newest one.

        Raises:
            CorruptLogError: The table cannot be read.
            StorageError: The bucket of the lake cannot be reached.
        """
        place = self.place(name)
        known = self._known.get(name)
        try:
            if known is not None and self._is_newest(place, *known):
                return known[0]
            if not has_log(place):
                self._known.pop(name, None)
                return None
            found = read_version(place)
            stamp = _stamp(place, found.version)
            state = None if stamp is None else _state(found, stamp)
        except STORE_AWAY:
            raise
        except (StorageError, OSError) as error:
            if not has_log(place):
                return None  # its worker has just put it aside
            url = store_of(place).url
            raise CorruptLogError(
                f"the table in {url} cannot be read: {error}", path=url
            ) from error
        if state is None or stamp is None:
            return None
        self._known[name] = state, stamp
        return state

    @staticmethod
    def _is_newest(place: TablePlace, state: DeltaTableState, stamp: _Stamp) -> bool:
        """Return whether a version that was read is still there, and is the newest one."""
        is_there = _stamp(place, state.version) == stamp
        return is_there and not has_commit(place, state.version + 1)


def _stamp(place: TablePlace, version: int) -> _Stamp | None:
    found = store_of(place).find(commit_file_name(version))
    return None if found is None else (found.mark, int(found.changed_s * 1000))


def _state(found: Version, stamp: _Stamp) -> DeltaTableState:
    written = stamp[1]
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
