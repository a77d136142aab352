"""Transactions with conditions in a simulated hour: who reads what, and writes it again (P27).

They are drawn beside everything else, so the histories are those that there are without them.
"""

from __future__ import annotations

from random import Random

from sparktxlog.model.transactions.conditions import Condition
from sparktxlog.model.transactions.operation import Touch
from sparktxlog.protocol.master import Master

#: Part of the runs that have conditions, and of their transactions.
_RUNS, _TRANSACTIONS = 0.25, 0.4
#: Tables that are read: few, so that there are conflicts.
_TABLES = 3
#: How many positions back a client read; the last ones lie behind the window.
_BACK = (0, 0, 0, 1, 5, 40, 400)
#: Chance of a table that there is not, and of a version that is not the table's.
_UNKNOWN, _WRONG = 0.02, 0.1


class ReadersAndWriters:
    """Clients that read a table at a node, and write to it if nobody else did since.

    Args:
        seed: Of their own draws.
    """

    def __init__(self, seed: str) -> None:
        self._random = Random(f"{seed}:conditions")

    def draw(
        self, master: Master, n: int
    ) -> tuple[tuple[tuple[int, Condition], ...], tuple[Touch, ...]]:
        """Return conditions of a run of `n` transactions, as a node takes them, and its writes."""
        random = self._random
        if random.random() >= _RUNS:
            return (), ()
        tables = sorted(master.tables)[:_TABLES]
        conditions: list[tuple[int, Condition]] = []
        writers: dict[str, list[int]] = {}
        read = max(0, master.base.position - random.choice(_BACK))
        for index in range(n):
            if not tables or random.random() >= _TRANSACTIONS:
                continue
            table = random.choice(tables)
            conditions.append((index, self._condition(master, table, read)))
            if random.random() < 0.7:
                writers.setdefault(table, []).append(index)
        touches = tuple(
            Touch(table=table, schema_version=master.tables[table].schema_version, txs=tuple(txs))
            for table, txs in writers.items()
        )
        return tuple(conditions), touches

    def _condition(self, master: Master, table: str, read: int) -> Condition:
        random = self._random
        if random.random() < _UNKNOWN:
            table = "nowhere"
        kind = random.randrange(3)
        reads = (table,) if kind < 2 else ()
        versions = ((table, self._version(master, table)),) if kind else ()
        return Condition(read_position=read if reads else None, reads=reads, versions=versions)

    def _version(self, master: Master, table: str) -> int:
        found = master.writes(table)
        version = 0 if found is None else found.version
        return version + (self._random.random() < _WRONG)
