"""Content signatures of tables and the state of a replica (protocol S2)."""

from __future__ import annotations

from dataclasses import dataclass

from sparktxlog.model.ids import Int64

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSignature:
    """Multiset hash of rows: row count and two sums of salted 64-bit row hashes, modulo 2**64.

    A group: signatures of disjoint row sets add up, removed rows subtract.  It finds accidents,
    not attackers.  Also used for a *delta* (what a batch adds, minus what it removes).
    """

    rows: Int64 = 0
    lane0: int = 0
    lane1: int = 0

    def __add__(self, other: TableSignature) -> TableSignature:
        return TableSignature(
            rows=self.rows + other.rows,
            lane0=(self.lane0 + other.lane0) & _MASK,
            lane1=(self.lane1 + other.lane1) & _MASK,
        )

    def __sub__(self, other: TableSignature) -> TableSignature:
        return TableSignature(
            rows=self.rows - other.rows,
            lane0=(self.lane0 - other.lane0) & _MASK,
            lane1=(self.lane1 - other.lane1) & _MASK,
        )

    def to_text(self) -> str:
        """Return `rows:lane0:lane1`, lanes as 16 hexadecimal digits."""
        return f"{self.rows}:{self.lane0:016x}:{self.lane1:016x}"

    @classmethod
    def from_text(cls, text: str) -> TableSignature:
        """Read what `to_text` wrote."""
        rows, lane0, lane1 = text.split(":")
        return cls(rows=int(rows), lane0=int(lane0, 16), lane1=int(lane1, 16))


EMPTY_SIGNATURE = TableSignature()
