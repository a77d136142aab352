"""Which commit becomes which version of which commit table (protocol P36).

Part of the effects: what is known here follows from the queue alone, so every site decides
the same.  What a transaction does to several tables takes effect as a whole, or not at all.  A run
without commits costs one comparison, a commit two look-ups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sparktxlog.errors import (
    NameTakenError,
    StaleTimestampError,
    UnknownTableError,
    VersionConflictError,
)
from sparktxlog.model.tables.commit_table import (
    CommitKind,
    CommitOperation,
    CommitTable,
    CommitTables,
)
from sparktxlog.protocol.messages.posts import Rejection


class CommitFold:
    """The commit tables at the end of the queue.

    Args:
        tables: Those at the end of the queue; dropped ones too.
    """

    __slots__ = ("_by_name", "_by_uuid", "_changed", "_fresh", "_newest", "tables")

    def __init__(self, tables: Iterable[CommitTable] = ()) -> None:
        #: Dropped ones too: nobody may take their UUIDs.
        self._by_uuid = {table.uuid: table for table in tables}
        #: UUID by lower-case name, of those that exist.
        self._by_name = {t.name.lower(): t.uuid for t in self._by_uuid.values() if not t.is_dropped}
        #: UUIDs, ascending by the position of their tables.
        self._newest = dict.fromkeys(sorted(self._by_uuid, key=self._position_of))
        #: UUIDs that the present run changed.
        self._changed: dict[str, None] = {}
        self._fresh: list[CommitTable] = []
        #: Those that exist, as they change.
        self.tables = CommitTables(self._by_uuid, self._by_name, self._newest)

    def _position_of(self, uuid: str) -> int:
        return self._by_uuid[uuid].position

    # -- within a run ------------------------------------------------------------------------------

    def take(
        self, commits: Sequence[CommitOperation], position: int, transaction_id: bytes, index: int
    ) -> Rejection | None:
        """Take in what a transaction does to tables; return why nothing of it takes effect.

        Args:
            commits: One for each table; all are judged by what was there before the transaction.
            position: Of the transaction; all that takes effect before it was taken in.
            index: Its index in the run.
        """
        for commit in commits:
            reason = self._misfit(commit, index)
            if reason is not None:
                return reason
        for commit in commits:
            self._put(commit, position, transaction_id)
        return None

    def _misfit(self, commit: CommitOperation, index: int) -> Rejection | None:
        """Return why a commit cannot take effect."""
        if commit.kind is CommitKind.CREATE:
            taken = self._by_uuid.get(commit.uuid) or self.tables.named(commit.name)
            return None if taken is None else _taken(commit, taken, index)
        table = self.tables.get(commit.uuid)
        if table is None:
            return _unknown(commit.uuid, self._by_uuid, index)
        if commit.kind is CommitKind.RENAME:
            named = self.tables.named(commit.name)
            if named is None or named.uuid == commit.uuid:
                return None
            return _taken(commit, named, index)
        if commit.kind is CommitKind.DROP:
            return None
        if commit.version != table.version + 1:
            return _conflict(commit, table, index)
        if commit.timestamp <= table.timestamp:
            return _stale(commit, table, index)
        return None

    def _put(self, commit: CommitOperation, position: int, transaction_id: bytes) -> None:
        if commit.kind is CommitKind.RENAME:
            self._rename(commit.uuid, commit.name, position)
            return
        is_drop = commit.kind is CommitKind.DROP
        before = self._by_uuid.get(commit.uuid)
        name = commit.name or self._by_uuid[commit.uuid].name
        if is_drop:
            del self._by_name[name.lower()]
        elif commit.kind is CommitKind.CREATE:
            self._by_name[name.lower()] = commit.uuid
        named = self._by_uuid[commit.uuid] if is_drop else commit
        self._by_uuid[commit.uuid] = CommitTable(
            uuid=commit.uuid,
            name=name,
            version=named.version,
            timestamp=named.timestamp,
            transaction_id=transaction_id,
            position=position,
            is_dropped=is_drop,
            renamed=0 if before is None else before.renamed,
        )
        self._newest.pop(commit.uuid, None)
        self._newest[commit.uuid] = None
        self._changed[commit.uuid] = None

    def _rename(self, uuid: str, name: str, position: int) -> None:
        """Give a table another name; its newest version keeps its committer."""
        table = self._by_uuid[uuid]
        del self._by_name[table.name.lower()]
        self._by_name[name.lower()] = uuid
        self._by_uuid[uuid] = replace(table, name=name, renamed=position)
        self._changed[uuid] = None

    # -- after a run -------------------------------------------------------------------------------

    def end_run(self) -> None:
        """Let `take_changes` return the tables that the run changed, as it left them."""
        if self._changed:
            self._fresh += [self._by_uuid[uuid] for uuid in self._changed]
            self._changed = {}

    def take_changes(self) -> tuple[CommitTable, ...]:
        """Return what changed since the last call: one item for each run and table, in order."""
        fresh, self._fresh = tuple(self._fresh), []
        return fresh


def _unknown(uuid: str, known: Mapping[str, CommitTable], index: int) -> Rejection:
    gone = known.get(uuid)
    text = f"there is no commit table {uuid} at this position"
    if gone is not None:
        text = f"commit table {gone.name!r} ({uuid}) was dropped at position {gone.position}"
    return Rejection(index=index, code=UnknownTableError.code, text=text)


def _taken(commit: CommitOperation, taken: CommitTable, index: int) -> Rejection:
    text = f"commit table {taken.name!r} has this name"
    if taken.uuid == commit.uuid:
        text = f"UUID {taken.uuid} is that of commit table {taken.name!r}, there now or before"
    return Rejection(index=index, code=NameTakenError.code, text=text)


def _conflict(commit: CommitOperation, table: CommitTable, index: int) -> Rejection:
    return Rejection(
        index=index,
        code=VersionConflictError.code,
        text=f"commit table {table.name!r} has version {table.version} since position "
        f"{table.position}, so version {commit.version} is not its next one",
        table=table.name,
        winner=table.position,
        version=table.version,
        winner_id=table.transaction_id,
    )


def _stale(commit: CommitOperation, table: CommitTable, index: int) -> Rejection:
    return Rejection(
        index=index,
        code=StaleTimestampError.code,
        text=f"timestamp {commit.timestamp} of version {commit.version} is not later than "
        f"{table.timestamp}, that of version {table.version} of commit table {table.name!r}",
        table=table.name,
    )
