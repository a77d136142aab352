"""The state of a table of plain files, from its log, with statistics: the tables of `log/`.

It has all that the log says of each file; a table of a lake may have too many for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sparktxlog.delta.file_paths import path_of_file
from sparktxlog.delta.log_segments import LogSegment

_Action = dict[str, Any]
_actions = msgspec.json.Decoder(dict[str, _Action])


class _Statistics(msgspec.Struct, rename="camel"):
    num_records: int = 0
    min_values: _Action = {}
    max_values: _Action = {}


@dataclass(slots=True)
class LogState:
    """A version of a table without deletion vectors."""

    version: int = -1
    #: Path of a live file → its `add` action.
    adds: dict[str, _Action] = field(default_factory=dict)
    #: Path of a file that was removed → when, milliseconds since 1970 UTC.
    removed: dict[str, int] = field(default_factory=dict)
    #: Application → its newest transaction.
    transactions: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, table: Path) -> LogState:
        """Return the newest version.

        Raises:
            CorruptLogError: The directory has no log, or it cannot be read.
            StorageError: The disk fails.
        """
        segment, state = LogSegment.of(table, None), cls()
        with segment.reading():
            if segment.checkpoint is not None:
                state.version = segment.checkpoint.version - 1
                state.follow(segment.checkpoint.actions())
            for content in segment.commits():
                state.follow(_actions.decode_lines(content))
        return state

    def follow(self, actions: Iterable[dict[str, _Action]]) -> None:
        """Go on to the next version."""
        self.version += 1
        for action in actions:
            if add := action.get("add"):
                self.adds[path_of_file(add["path"])] = add
            if remove := action.get("remove"):
                path = path_of_file(remove["path"])
                self.adds.pop(path, None)
                self.removed[path] = remove.get("deletionTimestamp") or 0
            if txn := action.get("txn"):
                self.transactions[txn["appId"]] = txn["version"]

    def rows(self, path: str) -> int:
        """Return how many rows a live file has, 0 = its log does not say it."""
        return self._statistics(path).num_records

    def bounds(self, path: str, column: str) -> tuple[Any, Any]:
        """Return the least and the greatest value in a live file, as JSON; None = not known."""
        found = self._statistics(path)
        return found.min_values.get(column), found.max_values.get(column)

    def files_between(self, column: str, after: Any, upto: Any = None) -> list[str]:
        """Return the live files that may have `after < column <= upto`, sorted by path.

        Args:
            after: As the statistics have it: a time as text, to the millisecond.
            upto: None = no end.
        """
        found = {path: self.bounds(path, column) for path in self.adds}
        return sorted(
            path
            for path, (least, greatest) in found.items()
            if (greatest is None or greatest > after)
            and (least is None or upto is None or least <= upto)
        )

    def _statistics(self, path: str) -> _Statistics:
        return msgspec.json.decode(self.adds[path].get("stats") or "{}", type=_Statistics)
