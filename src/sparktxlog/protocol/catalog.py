"""Catalog and outcomes: a pure fold over the synchronized queue (protocol P25, P25b).

Every site folds the same runs in the same order, so every site rejects the same transactions.
A transaction is REJECTED as a whole when its id stands among the last positions already, when it
creates a table that exists with another definition, when it touches a table that does not exist,
or with another schema version than the table has.  Creating an identical table again is a commit
without effect.  A create counts for its own transaction and those behind it.

Cost: O(blocks) for a run whose tables all exist; transactions are looked at one by one only where
they are rejected.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from sparktxlog.model.operation import RunFacts, Touch
from sparktxlog.model.table import TableDefinition
from sparktxlog.protocol.idwindow import IdWindow
from sparktxlog.protocol.messages import Rejection

#: What a run brings into being: (position of the creating transaction, definition).
Created = tuple[tuple[int, TableDefinition], ...]


class Catalog:
    """Tables at the end of the synchronized queue, and the ids of its last positions."""

    __slots__ = ("_tables", "_window")

    def __init__(self, tables: Iterable[TableDefinition], window: IdWindow) -> None:
        #: By lower-case name: Spark and many file systems ignore case.
        self._tables: dict[str, TableDefinition] = {t.name.lower(): t for t in tables}
        self._window = window

    @property
    def tables(self) -> Mapping[str, TableDefinition]:
        """Return the tables by name; a snapshot."""
        return MappingProxyType({t.name: t for t in self._tables.values()})

    def locate(self, transaction_id: bytes) -> int | None:
        """Return the position of a transaction id, None if not among the last positions."""
        return self._window.locate(transaction_id)

    def fold(self, position: int, facts: RunFacts) -> tuple[tuple[Rejection, ...], Created]:
        """Take in the run that starts at `position`; return what it rejects and creates."""
        assert position == self._window.end + 1, (position, self._window.end)
        repeats = self._window.add(facts.ids)
        if not repeats and not facts.creates and all(map(self._fits, facts.touches)):
            return (), ()
        rejected = {
            index: Rejection(
                index=index,
                code="duplicate-transaction",
                text="the transaction id was ordered before",
            )
            for index in repeats
        }
        created = self._create(position, facts, rejected)
        for touch in facts.touches:
            self._reject_touches(touch, facts, created, position, rejected)
        return tuple(rejected[index] for index in sorted(rejected)), tuple(created)

    def _fits(self, touch: Touch) -> bool:
        table = self._tables.get(touch.table.lower())
        return (
            table is not None
            and table.name == touch.table
            and table.schema_version == touch.schema_version
        )

    def _create(
        self, position: int, facts: RunFacts, rejected: dict[int, Rejection]
    ) -> list[tuple[int, TableDefinition]]:
        """Let the run's creates take effect, those of one transaction all or none."""
        created: list[tuple[int, TableDefinition]] = []
        by_index: dict[int, list[TableDefinition]] = {}
        for index, definition in facts.creates:
            by_index.setdefault(index, []).append(definition)
        for index, definitions in sorted(by_index.items()):
            if index in rejected:
                continue
            fresh: dict[str, TableDefinition] = {}
            for definition in definitions:
                key = definition.name.lower()
                present = fresh.get(key) or self._tables.get(key)
                if present is None:
                    fresh[key] = definition
                elif present != definition:
                    rejected[index] = Rejection(
                        index=index,
                        code="schema-mismatch",
                        text=f"table {present.name!r} exists with another definition",
                    )
                    break
            if index in rejected:
                continue
            before = dict(self._tables)
            self._tables.update(fresh)
            misfit = next(
                (t for t in facts.touches if _touches(t, index) and not self._fits(t)), None
            )
            if misfit is not None:
                # The transaction fails as a whole, its creates with it.
                rejected[index] = self._rejection(misfit, index)
                self._tables = before
            else:
                created.extend((position + index, definition) for definition in fresh.values())
        return created

    def _reject_touches(
        self,
        touch: Touch,
        facts: RunFacts,
        created: list[tuple[int, TableDefinition]],
        position: int,
        rejected: dict[int, Rejection],
    ) -> None:
        """Reject the transactions of `touch` for which its table is not there."""
        until = facts.n
        if self._fits(touch):
            until = next((at - position for at, d in created if d.name == touch.table), 0)
            if until == 0:
                return
        if touch.txs is None:
            concerned: Iterable[int] = range(until)
        else:
            concerned = touch.txs[: bisect_left(touch.txs, until)]
        early = until < facts.n
        for index in concerned:
            if index not in rejected:
                rejected[index] = (
                    _unknown(touch.table, index) if early else self._rejection(touch, index)
                )

    def _rejection(self, touch: Touch, index: int) -> Rejection:
        table = self._tables.get(touch.table.lower())
        if table is None or table.name != touch.table:
            return _unknown(touch.table, index)
        return Rejection(
            index=index,
            code="schema-mismatch",
            text=(
                f"table {touch.table!r} has schema version {table.schema_version}, "
                f"the transaction was checked against {touch.schema_version}"
            ),
        )


def _unknown(table: str, index: int) -> Rejection:
    return Rejection(
        index=index, code="unknown-table", text=f"there is no table {table!r} at this position"
    )


def _touches(touch: Touch, index: int) -> bool:
    if touch.txs is None:
        return True
    at = bisect_left(touch.txs, index)
    return at < len(touch.txs) and touch.txs[at] == index
