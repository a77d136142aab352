"""Accounts between which money is moved: what a read of all of them at one position must show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BankRead:
    """The balances of all accounts at one position, read at a node."""

    node: str
    position: int
    #: Account → balance.
    balances: Mapping[int, int]


def bank_violations(reads: Iterable[BankRead], opening: Mapping[int, int]) -> Iterator[str]:
    """Yield what is wrong, a sentence each.

    Args:
        reads: In any order.
        opening: What all accounts had at first.
    """
    total = sum(opening.values())
    first: dict[int, BankRead] = {}
    for read in reads:
        where = f"{read.node} at position {read.position}"
        if read.balances.keys() != opening.keys():
            yield f"{where}: accounts {sorted(read.balances.keys() ^ opening.keys())} differ"
        elif sum(read.balances.values()) != total:
            yield f"{where}: the total is {sum(read.balances.values())}, not {total}"
        if any(balance < 0 for balance in read.balances.values()):
            yield f"{where}: an account is below zero"
        other = first.setdefault(read.position, read)
        if other.balances != read.balances:
            yield f"{where}: other balances than at {other.node}"
