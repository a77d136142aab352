"""Conditions of simulated clients, and an independent judge of what became of them (P27).

Clients read a table at one node and commit at whatever node takes it, while others write to it.
The judge takes in one transaction after the other, from the payloads of the one queue.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from random import Random

from tests.verification.reference import ReferenceEffects

from sparktxlog.model.transactions.conditions import Condition
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.model.transactions.receipt import Receipt
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.posts import QueueEntry

_CONFLICT = "conflict"
#: What the fold says of a transaction before it looks at tables and conditions.
_BY_ID = ("duplicate-transaction", "expired-id", "expired-transaction", "voided")
#: Chance that a transaction has a condition; how many positions back its client read.
_CONDITIONAL = 0.25
_BACK = (0, 0, 0, 1, 4)


class Readers:
    """Draw conditions, from chance of their own: histories are those that there are without them.

    Args:
        story: Names the seed.
        table: What is read.
    """

    def __init__(self, story: str, table: str) -> None:
        self._random = Random(f"{story}:conditions")
        self._table = table

    def read(self, masters: list[Master]) -> Condition | None:
        """Return what a client rests on that read at one of these nodes, None = nothing."""
        random = self._random
        if random.random() >= _CONDITIONAL or not masters:
            return None
        master = random.choice(masters)
        writes = master.writes(self._table)
        if writes is None or self._table not in master.tables:
            return None
        if random.random() < 0.3:
            return Condition(versions=((self._table, writes.version),))
        position = max(0, master.base.position - random.choice(_BACK))
        return Condition(read_position=position, reads=(self._table,))


class Judge:
    """Judges the one queue as it grows, and what nodes and clients say of it.

    Args:
        window: Positions for which what was read counts.
        happened: Counts rare events.
    """

    def __init__(self, window: int, happened: Callable[[str], None]) -> None:
        self._reference = ReferenceEffects(window)
        self._happened = happened
        self._entries: list[QueueEntry] = []
        #: Positions of what took effect and wrote to a table.
        self._writers: dict[str, list[int]] = {}
        #: Facts of what was prepared, by position.
        self._prepared: dict[int, RunFacts] = {}

    def ordered(self, entry: QueueEntry, facts: RunFacts) -> str:
        """See the queue grow by a run; return what is wrong with its outcomes."""
        self._entries.append(entry)
        told = {one.index: one.code for one in entry.rejections}
        by_id = [index for index, code in told.items() if code in _BY_ID]
        before = len(self._reference.decided)
        expected = self._reference.apply(entry.position, facts, by_id, ts=entry.header.ts)
        found = {index: code for index, code in told.items() if index not in by_id}
        if found != expected:
            return f"P27: {entry.header} at {entry.position} rejects {found}, not {expected}"
        if facts.participants:
            self._prepared[entry.position] = facts
        decided = [
            (entry.position + one.index, one.position, one.rejection.code if one.rejection else "")
            for one in entry.verdicts
        ]
        if decided != self._reference.decided[before:]:
            wanted = self._reference.decided[before:]
            return f"P35: {entry.header} at {entry.position} decides {decided}, not {wanted}"
        for _, _, code in decided:
            self._happened(f"prepared: {code or 'committed'}")
        for one in entry.rejections:
            lost_to = self._reference.lost.get(entry.position + one.index)
            if one.code == _CONFLICT and (one.table, one.winner) != lost_to:
                return f"P27: {one} at {entry.position} lost to {lost_to}"
        return self._lost_update(entry, facts, told)

    def _lost_update(self, entry: QueueEntry, facts: RunFacts, told: dict[int, str]) -> str:
        """Return which read took effect although its table was written to in between."""
        effects = [(index, facts, index) for index in range(facts.n) if index not in told]
        # What was prepared takes effect in the place of a mark (P35).
        effects += [
            (one.index, self._prepared[one.position], 0)
            for one in entry.verdicts
            if one.rejection is None
        ]
        for index, facts, of in sorted(effects, key=lambda effect: effect[0]):
            condition = dict(facts.conditions).get(of, Condition())
            if condition.tables:
                self._happened("condition held")
            for table in condition.reads:
                since = condition.read_position or 0
                writers = self._writers.get(table, [])
                if between := writers[bisect_right(writers, since) :]:
                    place = entry.position + index
                    return f"P27: {place} read {table} at {since}, written at {between[:3]}"
            for table in {t.table for t in facts.touches if t.txs is None or of in t.txs}:
                self._writers.setdefault(table, []).append(entry.position + index)
        return ""

    def known(self, name: str, master: Master) -> str:
        """Return what a node has wrong about writes, at its start or at the end."""
        for table, writes in self._reference.writes_at(master.base.position).items():
            if master.writes(table) != writes:
                return f"P27: {name} knows {master.writes(table)} of {table}, not {writes}"
        return ""

    def answered(self, receipt: Receipt) -> str:
        """Return what is wrong with the winners that a client was told."""
        for told in receipt.rejections:
            if told.code != _CONFLICT:
                continue
            self._happened("conflict told")
            place = bisect_right(self._entries, told.winner or 0, key=lambda e: e.position) - 1
            origin = self._entries[place].header.origin if place >= 0 else None
            if told.origin not in (None, origin):
                return f"P27: {told} was committed at {origin}"
        return ""
