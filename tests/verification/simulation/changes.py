"""Who changes tables in a simulated hour, and who writes to them as a node knows them (P33).

Some changes are drops; other clients create the same tables again and again.  All are drawn beside
everything else, so the histories are those that there are without them.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from sparktxlog.model.tables.alteration import DROPPED, TableChange
from sparktxlog.model.tables.table import Column
from sparktxlog.model.transactions.operation import Touch
from sparktxlog.protocol.master import Master

#: Part of the runs with a change.
_RUNS = 0.15
#: Tables that are changed: few, so that writers meet a change.
_TABLES = 3
#: A table with so many columns gets no more.
_MOST_COLUMNS = 12
#: Part of the changes that drop the table.
_GONE = 0.15
#: Chance that a change makes the table synchronous, or ordinary again.
_SYNCHRONOUS = 0.1
#: Chance that a run changes a table in two transactions, and of a column that is there.
_TWICE, _TAKEN = 0.2, 0.03
#: Of changes of columns: up to here renames, then wider types, then drops; the rest adds.
_RENAMES, _WIDENS, _DROPS = 0.2, 0.3, 0.55


@dataclass(frozen=True, slots=True)
class DrawnChanges:
    """What a run changes, and what it writes to the same tables."""

    changes: tuple[tuple[int, str, TableChange], ...] = ()
    touches: tuple[Touch, ...] = ()


class Alterers:
    """Clients that change a table as a node knows it, and others that write to it.

    Args:
        seed: Of their own draws.
    """

    def __init__(self, seed: str) -> None:
        self._random = Random(f"{seed}:changes")
        self._synchronous = Random(f"{seed}:synchronous tables")

    def draw(self, master: Master, n: int) -> DrawnChanges:
        """Return changes of a run of `n` transactions, as a node takes them."""
        random = self._random
        tables = sorted(master.tables)[:_TABLES]
        if random.random() >= _RUNS or not tables:
            return DrawnChanges()
        name = random.choice(tables)
        version = master.tables[name].schema_version
        places = sorted({random.randrange(n) for _ in range(1 + (random.random() < _TWICE))})
        writers = tuple(i for i in range(n) if i not in places and random.random() < 0.5)
        return DrawnChanges(
            changes=tuple((index, name, self._change(master, name)) for index in places),
            touches=tuple(
                Touch(table=name, schema_version=version, txs=txs)
                for txs in (tuple(places), writers)
                if txs
            ),
        )

    def _change(self, master: Master, name: str) -> TableChange:
        random, table = self._random, master.tables[name]
        if random.random() < _GONE:
            return DROPPED
        if self._synchronous.random() < _SYNCHRONOUS:
            return TableChange(is_sync=not table.is_sync)
        chosen = random.choice(table.columns).name
        if random.random() < 0.3:
            return TableChange(keys=() if table.keys else (chosen,))
        taken = random.random() < _TAKEN
        fresh = table.columns[0].name if taken else f"c{table.schema_version}"
        drawn, columns = random.random(), len(table.columns)
        if drawn < _RENAMES:
            return TableChange(rename=((chosen, fresh),))
        if drawn < _WIDENS:
            return TableChange(widen=((chosen, f"decimal({20 + min(columns, 18)},0)"),))
        if (drawn < _DROPS and columns > 1) or columns >= _MOST_COLUMNS:
            # To drop a key is refused, and changes nothing.
            again = Column(name=chosen, type="bigint")
            return TableChange(drop=(chosen,), add=(again,) if random.random() < 0.5 else ())
        return TableChange(add=(Column(name=fresh, type="bigint"),))
