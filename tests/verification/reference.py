"""The rule of the seed, written down without any cleverness, to compare the core with.

One `ReferenceMaster` sees what a node sees and works out, from scratch each time, the longest
common prefix of all masters' queues cut at the least counter.  With q = all the
core's ADD must be exactly that; with a smaller quorum that prefix must be a prefix of the ADD.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from sparktxlog.model.ids import full_table_name
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.commit_table import CommitKind, CommitOperation, CommitTable
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.conditions import Condition, TableWrites
from sparktxlog.model.transactions.operation import Mark, RunFacts
from sparktxlog.protocol.messages.actions import (
    Action,
    PersistForeignRun,
    PersistOwnRun,
    PersistQueue,
)
from sparktxlog.protocol.messages.events import Event, PayloadArrived, PostReceived, TailReceived
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.protocol.messages.recovery import RecoveredState


def longest_common_prefix(queues: Sequence[Sequence[RunHeader]]) -> list[RunHeader]:
    """Return the longest list that all queues begin with."""
    prefix: list[RunHeader] = []
    for place in zip(*queues, strict=False):
        if any(header != place[0] for header in place):
            break
        prefix.append(place[0])
    return prefix


class ReferenceMaster:
    """One node's knowledge as plain sets and lists.

    Args:
        node_id: The node whose events it sees.
        members: All nodes.
        state: What the node started with.
    """

    def __init__(self, node_id: str, members: Sequence[str], state: RecoveredState) -> None:
        self.node_id = node_id
        self.members = tuple(members)
        #: Last synchronized sequence number per origin.
        self.done = {member: state.watermarks.get(member, 0) for member in members}
        self.headers: dict[str, dict[int, RunHeader]] = {member: {} for member in members}
        #: Durable here.
        self.held: set[tuple[str, int]] = set()
        #: Every promise ever received.
        self.promises: dict[str, list[tuple[int, int]]] = {member: [] for member in members}
        self.vectors: dict[str, dict[str, int]] = {member: {} for member in members}
        self.saw_tail = False
        for run in state.incoming:
            self._hold(run.header)

    def _hold(self, header: RunHeader) -> None:
        self.headers[header.origin][header.seq] = header
        self.held.add((header.origin, header.seq))

    def known(self, origin: str) -> int:
        """Return up to where the origin's headers are held without gap."""
        last = self.done[origin]
        while (header := self.headers[origin].get(last + 1)) is not None:
            last = header.last
        return last

    def see(self, events: Sequence[Event], actions: Sequence[Action]) -> None:
        """Take in what the node was told, and what it made durable of it."""
        kept = {a.header for a in actions if isinstance(a, PersistForeignRun)}
        for event in events:
            if isinstance(event, PostReceived):
                post = event.post
                for header in post.headers:
                    if header.seq == self.known(post.sender) + 1:
                        self.headers[post.sender][header.seq] = header
                self.promises[post.sender].append((post.counter, post.last_seq))
                if post.cut is not None:
                    self.promises[post.sender].append(post.cut)
                vector = self.vectors[post.sender]
                for origin, seq in post.acquired.items():
                    vector[origin] = max(seq, vector.get(origin, 0))
            elif isinstance(event, PayloadArrived) and event.header in kept:
                self._hold(event.header)
            elif isinstance(event, TailReceived):
                self.saw_tail = True
        for action in actions:
            if isinstance(action, PersistOwnRun):
                self._hold(action.header)

    def queue_of(self, member: str) -> list[RunHeader]:
        """Return a member's incoming queue as far as this node knows it, in order."""
        queue = []
        for origin in self.members:
            for seq, header in self.headers[origin].items():
                if not self.done[origin] < seq <= self.known(origin):
                    continue
                if member == self.node_id:
                    acquired = (origin, seq) in self.held
                else:
                    acquired = origin == member or (
                        self.vectors[member].get(origin, 0) >= header.last
                    )
                if acquired:
                    queue.append(header)
        return sorted(queue, key=lambda header: header.key)

    def least_counter(self) -> int | None:
        """Return the least usable promise of the other members, None = unlimited."""
        least: int | None = None
        for member in self.members:
            if member == self.node_id:
                continue
            known = self.known(member)
            usable = max((c for c, n in self.promises[member] if n <= known), default=-1)
            least = usable if least is None else min(least, usable)
        return least

    def addition(self) -> list[RunHeader]:
        """Return what ADD must append now, by the seed's rule."""
        prefix = longest_common_prefix([self.queue_of(member) for member in self.members])
        least = self.least_counter()
        agreed = []
        for header in prefix:
            if least is not None and header.ts > least:
                break
            agreed.append(header)
        return agreed

    def compare(self, actions: Sequence[Action], quorum: int) -> str:
        """Compare the node's ADD with the rule; return what is wrong, empty if nothing is."""
        added = [e.header for a in actions if isinstance(a, PersistQueue) for e in a.entries]
        expected = self.addition()
        wrong = ""
        if self.saw_tail or (quorum < len(self.members) and added[: len(expected)] == expected):
            pass
        elif added != expected:
            wrong = f"{self.node_id} added {_names(added)}, the rule says {_names(expected)}"
        for header in added:
            self.done[header.origin] = header.last
            self.headers[header.origin].pop(header.seq, None)
        return wrong


class ReferenceEffects:
    """Tables of a log, transaction by transaction: what the core folds by runs (P25b).

    Args:
        window: Positions for which what was read counts (P27).
    """

    def __init__(self, window: int = 1_000_000) -> None:
        self._window = window
        #: (position, definition after it) of what was created, changed or dropped, in order.
        self.created: list[tuple[int, TableDefinition]] = []
        #: Dropped ones too.
        self._tables: dict[str, TableDefinition] = {}
        #: Table → where it came into being and who wrote to it, as far as that counts.
        self._births: dict[str, int] = {}
        self._writers: dict[str, list[int]] = {}
        #: (table, what was written to it) after each run that did.
        self.written: list[tuple[str, TableWrites]] = []
        #: Position of what lost → table and position of the write that it lost to.
        self.lost: dict[int, tuple[str | None, int | None]] = {}
        #: Prepared and undecided: id → where it is ordered, its facts, and who said YES (P35).
        self._undecided: dict[bytes, tuple[int, RunFacts, set[str]]] = {}
        #: (where it is decided, where it is ordered, why it takes no effect), in this order.
        self.decided: list[tuple[int, int, str]] = []
        #: Commit tables, by their histories (P36).
        self.commits = ReferenceCommits()
        #: After each run that changed them: where it ends, id → who said YES.
        self._later: list[tuple[int, dict[bytes, tuple[str, ...]]]] = [(0, {})]

    def apply(
        self,
        position: int,
        facts: RunFacts,
        rejected: Collection[int],
        ts: int = 0,
    ) -> dict[int, str]:
        """Take in the run that starts at a position; return index → code of what it rejects.

        Args:
            rejected: Indices that are rejected for their ids.
            ts: Timestamp of the run.
        """
        for one, (at, prepared, _) in list(self._undecided.items()):
            if prepared.valid_until[0][1] < ts:
                del self._undecided[one]
                self.decided.append((position, at, "expired-transaction"))
        codes = {index: "" for index in range(facts.n) if index not in rejected}
        marks, wrote = dict(facts.marks), set[str]()
        for index in codes:
            tables = dict(self._tables)
            codes[index] = self._try(position + index, index, facts, tables)
            if not codes[index] and facts.participants:
                self._undecided[facts.ids] = (position, facts, set())
                codes[index] = "prepared"
            elif not codes[index] and index in marks:
                codes[index] = self._mark(marks[index], position + index, wrote)
            elif not codes[index]:
                one = facts.ids[16 * index : 16 * index + 16]
                own = [commit for at, commit in facts.commits if at == index]
                there = [*self._tables.values(), *tables.values()]
                rows = {full_table_name(t.name).lower() for t in there if not _is_gone(t)}
                codes[index] = self.commits.judge(own, position + index, one, rows)
            if codes[index]:
                continue
            before, self._tables = self._tables, tables
            changed = [key for key, table in tables.items() if before.get(key) != table]
            fresh = [key for key in changed if _is_gone(before.get(key))]
            changed = [*fresh, *(key for key in changed if key not in fresh)]
            self.created += [(position + index, tables[key]) for key in changed]
            touched = {t.table for t in facts.touches if t.txs is None or index in t.txs}
            made = {tables[key].name for key in fresh}
            for table in made:
                if table in self._births or table in self._writers:
                    # It was dropped: to create it again is a write.
                    self._writers.setdefault(table, []).append(position + index)
                else:
                    self._births[table] = position + index
            for table in touched:
                self._writers.setdefault(table, []).append(position + index)
            wrote |= touched | made
        self.written += [(table, self._last(table)) for table in wrote]
        self.commits.end_run(position)
        left = {one: tuple(sorted(said)) for one, (_, _, said) in self._undecided.items()}
        if left != self._later[-1][1]:
            self._later.append((position + facts.n - 1, left))
        return {index: code for index, code in codes.items() if code}

    def _try(
        self,
        position: int,
        index: int,
        facts: RunFacts,
        tables: dict[str, TableDefinition],
    ) -> str:
        """Return why a run's transaction would take no effect at a position, empty = it would."""
        code, stale = self._take(index, facts, tables, self.commits.names())
        if stale:
            self.lost[position] = (stale, self._winner(stale))
        conditions = dict(facts.conditions)
        if not code and index in conditions:
            code = self._judge(conditions[index], position)
        return code

    def _mark(self, mark: Mark, position: int, wrote: set[str]) -> str:
        """Take in what a participant says at a position; return why it does not count (P35)."""
        if mark.transaction_id not in self._undecided:
            return "not-prepared"
        at, prepared, said = self._undecided[mark.transaction_id]
        if mark.participant not in prepared.participants:
            return "not-a-participant"
        said.add(mark.participant)
        if mark.yes and said < set(prepared.participants):
            return ""
        del self._undecided[mark.transaction_id]
        code = "rolled-back"
        if mark.yes:
            code = self._try(position, 0, prepared, dict(self._tables))
        self.decided.append((position, at, code))
        if not code:
            for table in {touch.table for touch in prepared.touches}:
                self._writers.setdefault(table, []).append(position)
                wrote.add(table)
        return ""

    def at(self, position: int) -> dict[str, TableDefinition]:
        """Return the tables that there are at a position, by name."""
        found = {table.name.lower(): table for at, table in self.created if at <= position}
        return {table.name: table for table in found.values() if not _is_gone(table)}

    def undecided_at(self, position: int) -> dict[bytes, tuple[str, ...]]:
        """Return what is undecided at a run end: id → who said YES, sorted."""
        return next(left for end, left in reversed(self._later) if end <= position)

    def writes_at(self, position: int) -> dict[str, TableWrites]:
        """Return what was written to tables up to a run end, as far as it counts."""
        return {table: found for table, found in self.written if found.position <= position}

    def _last(self, table: str) -> TableWrites:
        writers = self._writers.get(table, [])
        return TableWrites(
            version=len(writers), position=[self._births.get(table, 0), *writers][-1]
        )

    def _judge(self, condition: Condition, position: int) -> str:
        """Return why a condition does not hold at a position, empty = it does."""
        there = {table.name for table in self._tables.values() if not _is_gone(table)}
        if {*condition.reads, *dict(condition.versions)} - there:
            return "unknown-table"
        read, lost = condition.read_position, None
        if read is not None and read < position - self._window:
            self.lost[position] = (None, None)
            return "conflict"
        for table in condition.reads:
            assert read is not None
            known = [*self._writers.get(table, []), self._births.get(table, 0)]
            if lost is None and any(read < at < position for at in known):
                lost = table
        for table, version in condition.versions:
            if lost is None and len(self._writers.get(table, [])) != version:
                lost = table
        if lost is None:
            return ""
        self.lost[position] = (lost, self._winner(lost))
        return "conflict"

    def _winner(self, table: str) -> int | None:
        """Return where a table was written last, None if nothing counts yet."""
        is_known = table in self._births or table in self._writers
        return self._last(table).position if is_known else None

    @staticmethod
    def _take(
        index: int, facts: RunFacts, tables: dict[str, TableDefinition], taken: set[str]
    ) -> tuple[str, str | None]:
        """Let one transaction create and change its tables.

        Args:
            taken: Names of commit tables.

        Returns:
            Why it is rejected, empty = it is not; the table whose older schema it was made for.
        """
        for at, table in facts.creates:
            if at != index:
                continue
            there = tables.get(table.name.lower())
            if _is_gone(there) and full_table_name(table.name).lower() in taken:
                return "name-taken", None
            if there is None:
                tables[table.name.lower()] = there = table
            elif _is_gone(there):
                # Its schema versions go on.
                first = there.schema_version + 1
                there = replace(table, schema_version=first, first_version=first)
                tables[table.name.lower()] = there
            columns = tuple(replace(column, stored="") for column in there.columns)
            version = table.schema_version
            seen = replace(there, schema_version=version, first_version=1, columns=columns)
            if seen != table:
                return "schema-mismatch", None
        for touch in facts.touches:
            if touch.txs is None or index in touch.txs:
                known = tables.get(touch.table.lower())
                if known is None or _is_gone(known) or known.name != touch.table:
                    return "unknown-table", None
                if known.schema_version != touch.schema_version:
                    return "stale-schema", touch.table
                if known.is_sync and not facts.holders:
                    return "stale-schema", touch.table
        for at, name, change in facts.changes:
            if at == index:
                after = _changed(tables[name.lower()], change)
                if after is None:
                    return "schema-mismatch", None
                tables[name.lower()] = after
        return "", None


class CommitHistory(NamedTuple):
    """One commit table for all time."""

    name: str
    #: (version, timestamp, transaction id, position) of each version, in the order of the log.
    versions: tuple[tuple[int, int, bytes, int], ...]
    #: Id and position of who dropped it; None = it exists.
    dropped: tuple[bytes, int] | None = None
    #: (position, name after it) of each change of its name.
    renames: tuple[tuple[int, str], ...] = ()

    @property
    def last_name(self) -> str:
        """Its name at the end."""
        return self.renames[-1][1] if self.renames else self.name


class ReferenceCommits:
    """Commit tables of a log, by their whole histories (P36)."""

    def __init__(self) -> None:
        self.histories: dict[str, CommitHistory] = {}
        #: Position of a commit that lost → name, newest version, where and who committed that.
        self.lost: dict[int, tuple[str, int, int, bytes]] = {}
        #: Commit tables as each run left those that it changed.
        self.left: list[CommitTable] = []

    def names(self) -> set[str]:
        """Return the names of the tables that exist, in lower case."""
        there = (history for history in self.histories.values() if history.dropped is None)
        return {history.last_name.lower() for history in there}

    def judge(
        self,
        commits: Sequence[CommitOperation],
        position: int,
        one: bytes,
        rows: Collection[str] = (),
    ) -> str:
        """Take in what a transaction does; return why it takes no effect, empty = it does.

        Args:
            rows: Names of row tables.
        """
        if any(commit.name.lower() in rows for commit in commits if commit.name):
            return "name-taken"
        after = dict(self.histories)
        for commit in commits:
            left = self._left(commit, position, one)
            if isinstance(left, str):
                return left
            after[commit.uuid] = left
        self.histories = after
        return ""

    def _left(self, commit: CommitOperation, position: int, one: bytes) -> CommitHistory | str:
        """Return how a commit leaves its table, or why it does not fit what was there before."""
        known = self.histories.get(commit.uuid)
        version = (commit.version, commit.timestamp, one, position)
        if commit.kind is CommitKind.CREATE:
            if known is not None or self._has(commit):
                return "name-taken"
            return CommitHistory(commit.name, (version,))
        if known is None or known.dropped is not None:
            return "unknown-table"
        if commit.kind is CommitKind.DROP:
            return known._replace(dropped=(one, position))
        if commit.kind is CommitKind.RENAME:
            renamed = (*known.renames, (position, commit.name))
            return "name-taken" if self._has(commit) else known._replace(renames=renamed)
        newest, timestamp, winner, at = known.versions[-1]
        if newest != commit.version - 1:
            self.lost[position] = (known.last_name, newest, at, winner)
            return "version-conflict"
        if not timestamp < commit.timestamp:
            return "stale-timestamp"
        return known._replace(versions=(*known.versions, version))

    def _has(self, commit: CommitOperation) -> bool:
        """Return whether another table has the name that a commit wants."""
        others = [h for uuid, h in self.histories.items() if uuid != commit.uuid and not h.dropped]
        return commit.name.lower() in {history.last_name.lower() for history in others}

    def end_run(self, first: int) -> None:
        """Note how a run that starts at a position leaves the tables that it changed."""
        tables = [_as_known(uuid, history) for uuid, history in self.histories.items()]
        self.left += [table for table in tables if table.changed >= first]

    def at(self, position: int) -> dict[str, CommitTable]:
        """Return the tables, dropped ones too, at a run end."""
        return {table.uuid: table for table in self.left if table.changed <= position}


def _as_known(uuid: str, history: CommitHistory) -> CommitTable:
    version, timestamp, one, position = history.versions[-1]
    if history.dropped is not None:
        one, position = history.dropped
    return CommitTable(
        uuid=uuid,
        name=history.last_name,
        version=version,
        timestamp=timestamp,
        transaction_id=one,
        position=position,
        is_dropped=history.dropped is not None,
        renamed=history.renames[-1][0] if history.renames else 0,
    )


def _is_gone(table: TableDefinition | None) -> bool:
    return table is None or table.first_version > table.schema_version


def _changed(table: TableDefinition, change: TableChange) -> TableDefinition | None:
    """Return a table after a change (P33), None if it cannot be made."""
    if change.is_dropped:
        version = table.schema_version
        return replace(table, schema_version=version + 1, first_version=version + 2)
    version, keys = table.schema_version + 1, table.keys if change.keys is None else change.keys
    columns, new, wide = list(table.columns), dict(change.rename), dict(change.widen)
    if change.rename or change.drop:
        # From now on files may have other names than users see; none is given twice.
        columns = [replace(column, stored=column.stored or column.name) for column in columns]
    mapped = all(column.stored for column in columns)
    columns = [
        replace(
            column,
            name=new.get(column.name, column.name),
            type=wide.get(column.name, column.type),
        )
        for column in columns
        if column.name not in change.drop
    ]
    columns += [
        Column(
            name=column.name,
            type=column.type,
            nullable=column.nullable,
            stored=f"__txlog_{version}_{column.name}" if mapped else "",
        )
        for column in change.add
    ]
    names = [column.name.lower() for column in columns]
    if any(name == old for old, name in change.rename) or len(set(names)) < len(names):
        return None
    if set(change.drop) & set(keys):
        return None
    keys = tuple(new.get(name, name) for name in keys) if change.keys is None else keys
    is_sync = table.is_sync if change.is_sync is None else change.is_sync
    return replace(
        table, columns=tuple(columns), keys=keys, schema_version=version, is_sync=is_sync
    )


def _names(headers: Sequence[RunHeader]) -> list[str]:
    return [f"{h.origin}:{h.seq}@{h.ts}" for h in headers]
