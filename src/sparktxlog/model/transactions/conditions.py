"""Conditions of transactions, and what the log knows of writes to its tables (protocol P27).

A condition is judged where its transaction takes effect, from the queue alone: so every site
decides alike, and what the accepting node had seen by then does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What must hold where a transaction takes effect; else it is rejected as a conflict.

    `read_position` and `reads` belong together: nothing that takes effect after that position, and
    before the transaction, wrote to one of these tables.
    """

    #: Position up to which the transaction's reader had seen the log; None = it read nothing.
    read_position: int | None = None
    #: Names of the tables that it read there, distinct.
    reads: tuple[str, ...] = ()
    #: (table, version that it must have), each table once.
    versions: tuple[tuple[str, int], ...] = ()

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of all tables that it is about; one that is read and compared stands twice."""
        return (*self.reads, *(table for table, _ in self.versions))


class TableWrites(NamedTuple):
    """What was written to a table, up to a position of the queue."""

    #: How many transactions wrote to it and took effect; one counts once, whatever it did there.
    version: int
    #: Position of the last of them; of a table that nobody wrote to, where it came into being.
    position: int
