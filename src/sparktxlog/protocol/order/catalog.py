"""Catalog and outcomes, computed from the synchronized queue alone (protocol P25b, P25c).

Every site processes the same runs in the same order, so every site rejects the same transactions.
A transaction is REJECTED as a whole if its id is already in the id window, if it is ordered later
than that window after it was accepted, or later than it is valid, if it creates a table that exists
with another definition, if it touches a table that does not exist or has another schema version, or
if its run is void (P32).  To create an identical table again is a commit without effect.  A create
counts for its own transaction and later ones.

Cost: O(blocks) for a run, however many tables there are; transactions are looked at one by one
only where they are rejected.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from sparktxlog.model.operation import RunFacts, Touch
from sparktxlog.model.table import TableDefinition, Tables
from sparktxlog.protocol.order.idwindow import IdWindow
from sparktxlog.protocol.words.messages import Rejection
from sparktxlog.protocol.words.recovery import NoOlderIds, OlderIds

#: Tables that a run creates: (position of the creating transaction, definition).
Created = tuple[tuple[int, TableDefinition], ...]

_NONE: Mapping[str, TableDefinition] = MappingProxyType({})


class Catalog:
    """Tables at the end of the synchronized queue, and the ids of its last positions.

    Args:
        older_ids: Looks up ids before those positions.
        window_us: Log time, microseconds, for which an id is known at least.
    """

    __slots__ = ("_older_ids", "_tables", "_window", "_window_us", "tables")

    def __init__(
        self,
        tables: Iterable[TableDefinition],
        window: IdWindow,
        older_ids: OlderIds | None = None,
        window_us: int = 0,
    ) -> None:
        self._older_ids = older_ids or NoOlderIds()
        self._window_us = window_us
        #: By lower-case name: Spark and many file systems ignore case.
        self._tables: dict[str, TableDefinition] = {t.name.lower(): t for t in tables}
        self._window = window
        #: The same by name, as it grows.
        self.tables = Tables(self._tables)

    def locate(self, transaction_id: bytes) -> int | None:
        """Return the first position of a transaction id, None if not among the last positions."""
        return self._window.locate(transaction_id)

    def locate_all(self, ids: bytes) -> list[tuple[int, int]]:
        """Return (index, first position) of those of the ids that are among the last positions."""
        return self._window.locate_all(ids)

    def fold(
        self, position: int, facts: RunFacts, ts: int = 0
    ) -> tuple[tuple[Rejection, ...], Created]:
        """Process the run that starts at `position` with timestamp `ts`.

        Returns:
            Its rejections and created tables.
        """
        assert position == self._window.end + 1, (position, self._window.end)
        rejected = self._reject_by_id(position, facts, ts)
        if facts.voided:
            rejected = {index: _voided(index) for index in range(facts.n)} | rejected
        if not rejected and not facts.creates and all(map(self._fits, facts.touches)):
            return (), ()
        created = self._create(position, facts, rejected)
        for touch in facts.touches:
            self._reject_touches(touch, facts, created, position, rejected)
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

    def _fits(self, touch: Touch, fresh: Mapping[str, TableDefinition] = _NONE) -> bool:
        key = touch.table.lower()
        table = fresh.get(key) or self._tables.get(key)
        return (
            table is not None
            and table.name == touch.table
            and table.schema_version == touch.schema_version
        )

    def _create(
        self, position: int, facts: RunFacts, rejected: dict[int, Rejection]
    ) -> list[tuple[int, TableDefinition]]:
        """Apply the run's creates, those of one transaction all or none."""
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
            misfit = next(
                (t for t in facts.touches if _touches(t, index) and not self._fits(t, fresh)), None
            )
            if misfit is not None:
                # The transaction fails as a whole, its creates with it.
                rejected[index] = self._rejection(misfit, index, fresh)
            else:
                self._tables.update(fresh)
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
        """Reject the transactions of `touch` whose table does not exist."""
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

    def _rejection(
        self, touch: Touch, index: int, fresh: Mapping[str, TableDefinition] = _NONE
    ) -> Rejection:
        key = touch.table.lower()
        table = fresh.get(key) or self._tables.get(key)
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


def _unknown(table: str, index: int) -> Rejection:
    return Rejection(
        index=index, code="unknown-table", text=f"there is no table {table!r} at this position"
    )


def _touches(touch: Touch, index: int) -> bool:
    if touch.txs is None:
        return True
    at = bisect_left(touch.txs, index)
    return at < len(touch.txs) and touch.txs[at] == index
