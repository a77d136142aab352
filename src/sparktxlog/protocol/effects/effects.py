"""Effects: tables and outcomes, computed from the synchronized queue alone (P25b to P36).

Every site processes the same runs in the same order, so every site rejects the same transactions.
A transaction is REJECTED as a whole if its id is already in the id window, if it is ordered later
than that window after it was accepted, or later than it is valid, if it creates a table that exists
with another definition, or whose name is that of a table of the other kind, if it touches a table
that does not exist (any more) or has another schema version (P33), if it writes to a synchronous
table in an ordinary run (P34), if its run is void (P32), or if its condition does not hold (P27).
To create an identical table again is a commit without effect.  A create counts for its own
transaction and later ones, a change of a table, also its drop, for later ones.  A table that is
created after a drop of its name is another one: schema versions and writes of the name go on.  A
prepared transaction is judged twice: where it is ordered, and where its last participant says YES
(P35).
Commit tables are not among these: see `commits` (P36).

Cost: O(blocks) for a run, however many tables there are; transactions are looked at one by one only
in a run that creates or changes tables, has marks or commits, or does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from sparktxlog.errors import (
    CommitRejectedError,
    NameTakenError,
    SchemaMismatchError,
    StaleSchemaError,
)
from sparktxlog.model.ids import full_table_name, log_name
from sparktxlog.model.restore_point import RESTORE_POINTS
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.commit_table import CommitOperation
from sparktxlog.model.tables.groups import sites_of
from sparktxlog.model.tables.table import TableDefinition, Tables
from sparktxlog.model.transactions.conditions import Condition
from sparktxlog.model.transactions.marks import Undecided
from sparktxlog.model.transactions.operation import Mark, RunFacts, Touch
from sparktxlog.protocol.effects.commits import CommitFold
from sparktxlog.protocol.effects.idwindow import IdWindow
from sparktxlog.protocol.effects.last_writes import LastWrites
from sparktxlog.protocol.effects.marking import Marking
from sparktxlog.protocol.messages.posts import Rejection
from sparktxlog.protocol.messages.recovery import NoOlderIds, OlderIds

#: Tables that a run creates or changes: (position of the transaction, definition after it).
Created = tuple[tuple[int, TableDefinition], ...]

_NONE: Mapping[str, TableDefinition] = MappingProxyType({})


class Effects:
    """Tables at the end of the synchronized queue, and the ids of its last positions.

    Args:
        tables: As they came into being, changed and were dropped, in this order.
        older_ids: Looks up ids before those positions.
        window_us: Log time, microseconds, for which an id is known at least.
        writes: The last writes to the tables; None = nobody counts them.
        marking: Knows what is prepared and undecided; None = nothing is.
        commits: Knows the commit tables; None = there are none.
    """

    __slots__ = (
        "_commits", "_marking", "_older_ids", "_tables", "_window", "_window_us", "_writes",
        "tables",
    )  # fmt: skip

    def __init__(
        self,
        tables: Iterable[TableDefinition],
        window: IdWindow,
        older_ids: OlderIds | None = None,
        window_us: int = 0,
        writes: LastWrites | None = None,
        marking: Marking | None = None,
        commits: CommitFold | None = None,
    ) -> None:
        self._older_ids = older_ids or NoOlderIds()
        self._window_us = window_us
        #: By lower-case name: Spark and many file systems ignore case.
        #: Dropped ones are remembered, see `TableDefinition.dropped`.
        self._tables: dict[str, TableDefinition] = {t.name.lower(): t for t in tables}
        self._window = window
        self._writes = writes or LastWrites({}, 0)
        self._marking = marking or Marking()
        self._commits = commits or CommitFold()
        #: The same by name, as it grows.
        self.tables = Tables(self._tables)

    def rows_until(self) -> int:
        """Return a position after which no row table was written to, changed or dropped.

        A worker has nothing to apply after it.  0: there never was a row table.
        """
        if not len(self._tables) - (RESTORE_POINTS in self._tables):
            return 0
        return self._writes.last

    def locate(self, transaction_id: bytes) -> int | None:
        """Return the first position of a transaction id, None if not among the last positions."""
        return self._window.locate(transaction_id)

    def locate_all(self, ids: bytes) -> list[tuple[int, int]]:
        """Return (index, first position) of those of the ids that are among the last positions."""
        return self._window.locate_all(ids)

    def apply(
        self,
        position: int,
        facts: RunFacts,
        ts: int = 0,
        size_bytes: int = 0,
        origin: str = "",
    ) -> tuple[tuple[Rejection, ...], Created]:
        """Process the run that starts at `position` with timestamp `ts`.

        Args:
            size_bytes: Of its payload container.
            origin: Node that accepted it.

        Returns:
            Its rejections, and the tables that it created or changed.
        """
        assert position == self._window.end + 1, (position, self._window.end)
        rejected = self._reject_by_id(position, facts, ts)
        if facts.voided:
            rejected = {index: _voided(index) for index in range(facts.n)} | rejected
        self._marking.pass_time(ts)
        created: list[tuple[int, TableDefinition]] = []
        if facts.participants:
            self._prepare(position, facts, rejected, size_bytes, origin)
        elif (
            facts.creates
            or facts.changes
            or facts.marks
            or facts.commits
            or not all(self._fits(touch, facts.holders) for touch in facts.touches)
        ):
            created = self._judge_each(position, facts, rejected)
        elif facts.touches or facts.conditions:
            self._writes.apply(position, facts, rejected, self._broken)
        return tuple(rejected[index] for index in sorted(rejected)), tuple(created)

    def _reject_by_id(self, position: int, facts: RunFacts, ts: int) -> dict[int, Rejection]:
        """Reject repeats, and transactions too late to tell whether they are repeats (P25c).

        The accepting node looked among all ids up to `acceptance.position`; the window holds the
        last ones.  Only a run that was ordered long after it was accepted leaves a gap between.
        """
        acceptance, window, ids = facts.acceptance, self._window, facts.ids
        rejected: dict[int, Rejection] = {
            index: _transaction_expired(index) for index, until in facts.valid_until if ts > until
        }
        repeats: list[tuple[int, int]] = []
        for index in window.add(ids):
            first = window.locate(ids[16 * index : 16 * index + 16], position + index)
            assert first is not None
            window.note_repeat(position + index, first)
            repeats.append((index, first))
        if acceptance is not None:
            known_to = acceptance.position + window.size
            if position + facts.n - 1 > known_to:
                if ts - acceptance.ts > self._window_us:
                    expired = range(max(0, known_to + 1 - position), facts.n)
                    rejected |= {index: _id_expired(index) for index in expired}
                else:
                    repeats += self._older_ids.find(ids, acceptance.position)
            repeats += acceptance.repeats
        self._older_ids.appended(position, ids)
        for index, first in repeats:
            window.note_repeat(position + index, first)
            rejected[index] = _duplicate(index, first)
        return rejected

    def _fits(
        self, touch: Touch, holders: int, fresh: Mapping[str, TableDefinition] = _NONE
    ) -> bool:
        """Return whether a write was made for its table as it is here.

        Args:
            holders: Of its run: the accepting node may have taken it for an ordinary one (P34).
        """
        key = touch.table.lower()
        table = fresh.get(key) or self._tables.get(key)
        return (
            table is not None
            and table.name == touch.table
            and table.schema_version == touch.schema_version
            and not table.is_dropped
            and (holders > 0 or not table.is_sync)
        )

    def _judge_each(
        self, position: int, facts: RunFacts, rejected: dict[int, Rejection]
    ) -> list[tuple[int, TableDefinition]]:
        """Judge a run's transactions one by one: each sees the effects of those before it.

        Returns:
            What they create and change.
        """
        created: list[tuple[int, TableDefinition]] = []
        written: set[str] = set()
        creates: dict[int, list[TableDefinition]] = {}
        for index, definition in facts.creates:
            creates.setdefault(index, []).append(definition)
        changes: dict[int, list[tuple[str, TableChange]]] = {}
        for index, table, change in facts.changes:
            changes.setdefault(index, []).append((table, change))
        conditions, marks = dict(facts.conditions), dict(facts.marks)
        commits: dict[int, list[CommitOperation]] = {}
        for index, commit in facts.commits:
            commits.setdefault(index, []).append(commit)
        ids = facts.ids
        touches_of = _touches_by_index(facts)
        for index in range(facts.n):
            if index in rejected:
                continue
            touches, fresh = touches_of(index), dict[str, TableDefinition]()
            reason = self._misfit(index, creates.get(index, ()), touches, facts.holders, fresh)
            names = [definition.name for definition in fresh.values()]
            if reason is None and index in changes:
                reason = self._change(index, changes[index], fresh)
            condition = conditions.get(index)
            if reason is None and condition is not None:
                reason = self._broken(condition, position, index)
            if reason is None and index in marks:
                reason = self._mark(marks[index], position, index, written)
            if reason is None and index in commits:
                reason = self._named_as_rows(commits[index], index, fresh)
            if reason is None and index in commits:
                own = ids[16 * index : 16 * index + 16]
                reason = self._commits.take(commits[index], position + index, own, index)
            if reason is not None:
                rejected[index] = reason
                continue
            self._tables.update(fresh)
            created.extend((position + index, definition) for definition in fresh.values())
            written |= self._writes.note(position + index, names, touches)
        self._writes.keep(written)
        self._commits.end_run()
        return created

    def _prepare(
        self,
        position: int,
        facts: RunFacts,
        rejected: dict[int, Rejection],
        size_bytes: int,
        origin: str,
    ) -> None:
        """Judge a prepared transaction, alone in its run; if it fits, it is undecided (P35)."""
        if rejected:
            return
        one = Undecided(
            transaction_id=facts.ids,
            position=position,
            participants=facts.participants,
            valid_until=facts.valid_until[0][1],
            touches=facts.touches,
            condition=facts.conditions[0][1] if facts.conditions else None,
            holders=facts.holders,
            size_bytes=size_bytes,
            origin=origin,
        )
        rejected[0] = self._unfit(one, position, 0) or self._marking.admit(one, 0)

    def _mark(self, mark: Mark, position: int, index: int, written: set[str]) -> Rejection | None:
        """Take in a mark; the last YES lets its transaction take effect in this place (P35).

        Args:
            position: Start of the run.
            written: Tables that the run wrote to; those of the transaction are added.

        Returns:
            Why the mark does not count.
        """
        reason, complete = self._marking.take(mark, index)
        if complete is not None:
            unfit = self._unfit(complete, position, index)
            self._marking.decide(complete, index, unfit)
            if unfit is None:
                written |= self._writes.note(position + index, (), complete.touches)
        return reason

    def _unfit(self, one: Undecided, position: int, index: int) -> Rejection | None:
        """Return why a prepared transaction would take no effect in a place."""
        reason = self._misfit(index, (), one.touches, one.holders, {})
        if reason is None and one.condition is not None:
            reason = self._broken(one.condition, position, index)
        return reason

    def _misfit(
        self,
        index: int,
        definitions: Sequence[TableDefinition],
        touches: Sequence[Touch],
        holders: int,
        fresh: dict[str, TableDefinition],
    ) -> Rejection | None:
        """Return why a transaction does not fit the tables; put what it creates into `fresh`."""
        for definition in definitions:
            key = definition.name.lower()
            present = fresh.get(key) or self._tables.get(key)
            if present is None or present.is_dropped:
                taken = self._commits.tables.named(full_table_name(definition.name))
                if taken is not None:
                    return _name_taken(f"commit table {taken.name!r}", index)
                if present is not None and sites_of(present) != sites_of(definition):
                    return _other_sites(definition.name, index)
                fresh[key] = definition.created_after(present)
            elif not present.is_like(definition):
                return Rejection(
                    index=index,
                    code=SchemaMismatchError.code,
                    text=f"table {present.name!r} exists with another definition",
                )
        misfit = next((touch for touch in touches if not self._fits(touch, holders, fresh)), None)
        return None if misfit is None else self._rejection(misfit, index, fresh)

    def _named_as_rows(
        self,
        commits: Sequence[CommitOperation],
        index: int,
        fresh: Mapping[str, TableDefinition],
    ) -> Rejection | None:
        """Return why commits cannot name their tables: one name is that of a row table (P36).

        Those row tables count that existed before the transaction, and those that it creates.
        """
        for commit in commits:
            if commit.name:
                schema, _, name = commit.name.partition(".")
                key = log_name(schema, name).lower()
                for table in (self._tables.get(key), fresh.get(key)):
                    if table is not None and not table.is_dropped:
                        return _name_taken(f"row table {table.name!r}", index)
        return None

    def _change(
        self,
        index: int,
        changes: Sequence[tuple[str, TableChange]],
        fresh: dict[str, TableDefinition],
    ) -> Rejection | None:
        """Put the tables that a transaction changes into `fresh`; return why it cannot (P33).

        The accepting node looked at each change, at this very schema version.
        """
        for name, change in changes:
            key = name.lower()
            try:
                fresh[key] = change.applied_to(fresh.get(key) or self._tables[key])
            except CommitRejectedError as error:
                return Rejection(
                    index=index, code=SchemaMismatchError.code, text=error.message, table=name
                )
        return None

    def _broken(self, condition: Condition, position: int, index: int) -> Rejection | None:
        """Return why a transaction's condition does not hold; its own creates do not count."""
        for name in condition.tables:
            if name not in self.tables:
                return _unknown(name, index)
        return self._writes.conflict(condition, position + index, index)

    def _rejection(
        self, touch: Touch, index: int, fresh: Mapping[str, TableDefinition] = _NONE
    ) -> Rejection:
        key = touch.table.lower()
        table = fresh.get(key) or self._tables.get(key)
        if table is None or table.name != touch.table or table.is_dropped:
            return _unknown(touch.table, index)
        text = (
            f"table {touch.table!r} has schema version {table.schema_version}, "
            f"the transaction was made for {touch.schema_version}"
        )
        if table.schema_version == touch.schema_version:
            text = (
                f"table {touch.table!r} is synchronous, the transaction was taken as an ordinary "
                "one"
            )
        return Rejection(
            index=index,
            code=StaleSchemaError.code,
            text=text,
            table=touch.table,
            winner=self._writes.winner(touch.table),
        )


def _duplicate(index: int, first: int) -> Rejection:
    return Rejection(
        index=index,
        code="duplicate-transaction",
        text="the transaction id was ordered before",
        first=first,
    )


def _id_expired(index: int) -> Rejection:
    return Rejection(
        index=index,
        code="expired-id",
        text="the transaction was accepted longer ago than ids are known for",
    )


def _transaction_expired(index: int) -> Rejection:
    return Rejection(
        index=index,
        code="expired-transaction",
        text="the transaction was ordered after the time it was valid until",
    )


def _voided(index: int) -> Rejection:
    return Rejection(
        index=index,
        code="voided",
        text="nobody could deliver the transaction, and an operator voided it",
    )


def _other_sites(name: str, index: int) -> Rejection:
    text = f"a dropped table of the name {name!r} had its rows at other sites (P41)"
    return Rejection(index=index, code=SchemaMismatchError.code, text=text)


def _name_taken(other: str, index: int) -> Rejection:
    return Rejection(index=index, code=NameTakenError.code, text=f"{other} has this name")


def _unknown(table: str, index: int) -> Rejection:
    return Rejection(
        index=index, code="unknown-table", text=f"there is no table {table!r} at this position"
    )


def _touches_by_index(facts: RunFacts) -> Callable[[int], Sequence[Touch]]:
    """Return a function that says which touches concern a transaction, in the run's order."""
    common = [(order, touch) for order, touch in enumerate(facts.touches) if touch.txs is None]
    of_all = [touch for _, touch in common]
    of_some: dict[int, list[tuple[int, Touch]]] = {}
    for order, touch in enumerate(facts.touches):
        for index in touch.txs or ():
            of_some.setdefault(index, []).append((order, touch))

    def touches_of(index: int) -> Sequence[Touch]:
        own = of_some.get(index)
        return of_all if own is None else [touch for _, touch in sorted(common + own)]

    return touches_of
