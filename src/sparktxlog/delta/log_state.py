"""A version of a table, with all that its log says of it and of each file.

A table may have many files: `live_files` holds less of each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypedDict

import msgspec

from sparktxlog.delta.commit_contents import STORED_NAME, TableProtocol
from sparktxlog.delta.file_paths import path_of_file
from sparktxlog.delta.log_files import TablePlace
from sparktxlog.delta.log_segments import LogSegment
from sparktxlog.errors import CorruptLogError

_Action = dict[str, Any]
_actions = msgspec.json.Decoder(dict[str, _Action])


class _Definition(TypedDict, total=False):
    protocol: _Action
    metaData: _Action
    domainMetadata: _Action
    txn: _Action


#: Skips what is said of files.
_definitions = msgspec.json.Decoder(_Definition)


class _Statistics(msgspec.Struct, rename="camel"):
    num_records: int | None = None
    min_values: _Action = {}
    max_values: _Action = {}


@dataclass(slots=True)
class LogState:
    """A version of a table; its parts have the form of the log's JSON."""

    version: int = -1
    protocol: _Action = field(default_factory=dict)
    metadata: _Action = field(default_factory=dict)
    #: Path of a live file → its `add` action.
    adds: dict[str, _Action] = field(default_factory=dict)
    #: Path of a file that was removed → when, milliseconds since 1970 UTC.
    removed: dict[str, int] = field(default_factory=dict)
    #: Application → its newest transaction.
    transactions: dict[str, int] = field(default_factory=dict)
    #: Domain → its configuration, JSON.
    domains: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(
        cls,
        table: TablePlace,
        version: int | None = None,
        *,
        files: bool = True,
        known: bool = False,
    ) -> LogState:
        """Return a version.

        Args:
            version: None = the newest.
            files: Read of files, too.
            known: Whether all features must be known here; else **after calling** look at them.

        Raises:
            CorruptLogError: The directory has no log, or lacks the version, or it cannot be read.
            StorageError: It needs features that are not known here; or as `Store`.
        """
        segment, state = LogSegment.of(table, version), cls()
        decoder: msgspec.json.Decoder[Any] = _actions if files else _definitions
        with segment.reading():
            if segment.checkpoint is not None:
                state.version = segment.checkpoint.version - 1
                state.follow(segment.checkpoint.actions(files=files))
            for content in segment.commits():
                state.follow(decoder.decode_lines(content))
        if "minReaderVersion" not in state.protocol or "schemaString" not in state.metadata:
            url = segment.table.url
            raise CorruptLogError(f"the log of {url} does not define it", path=url)
        if known:
            segment.check_known(msgspec.convert(state.protocol, TableProtocol))
        return state

    def follow(self, actions: Iterable[dict[str, _Action]]) -> None:
        """Go on to the next version."""
        self.version += 1
        added = dict[str, _Action]()
        for action in actions:
            if protocol := action.get("protocol"):
                self.protocol = _said(protocol)
            if metadata := action.get("metaData"):
                self.metadata = _said(metadata)
            if add := action.get("add"):
                added[path_of_file(add["path"])] = _said(add)
            if remove := action.get("remove"):
                path = path_of_file(remove["path"])
                self.adds.pop(path, None)
                self.removed[path] = remove.get("deletionTimestamp") or 0
            if txn := action.get("txn"):
                self.transactions[txn["appId"]] = txn["version"]
            if domain := action.get("domainMetadata"):
                self.domains[domain["domain"]] = domain.get("configuration") or ""
                if domain.get("removed"):
                    del self.domains[domain["domain"]]
        # A file that gets another deletion vector is removed and added, in any order.
        self.adds |= added

    @property
    def features(self) -> frozenset[str]:
        """Features that its protocol names, readers' and writers'."""
        listed = ("readerFeatures", "writerFeatures")
        return frozenset(name for key in listed for name in self.protocol.get(key) or ())

    @property
    def configuration(self) -> dict[str, str]:
        """Properties of the table."""
        return dict(self.metadata.get("configuration") or {})

    @property
    def names_in_files(self) -> dict[str, str]:
        """Name in files → name of each column."""
        fields: list[_Action] = msgspec.json.decode(self.metadata["schemaString"])["fields"]
        return {
            field.get("metadata", {}).get(STORED_NAME, field["name"]): field["name"]
            for field in fields
        }

    def rows(self, path: str) -> int:
        """Return how many rows a live file has, 0 = its log does not say it."""
        return self._statistics(path).num_records or 0

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


def _said(action: _Action) -> _Action:
    """Return an action without fields that its writer wrote to say nothing."""
    return {name: value for name, value in action.items() if value is not None}
