"""Where two sites began to differ: bisection over the positions that both reported (S2a).

Sites report at batch ends, and batches differ, so only positions that both reported can be
compared.  Signatures are sums: a wrong row stays in all later ones, until the table is copied
anew or overwritten.  So a difference is monotone between two repairs, and is looked for from the
end:

    equal at the newest common position     no difference stands; older, repaired ones are history
    else gallop back (1, 2, 4 … positions)  to one where the table was equal,
    then bisect between it and the last position seen different

A caller that knows a position at which the sites were equal (a repair, an earlier comparison)
passes it, and nothing at or before it is asked.  Assumed: a repair and a new difference do not both
lie between two galloping steps.  If they do, an older pair may be named; whatever is named is
true: equal at its first position, different at its second, no common position between them.

Asked are O(log n) states of each site for a table, each state once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sparktxlog.catchup.opinions import majority

#: Stands for the chain hash among a state's tables: sites whose orders differ, differ in it.
HISTORY = ""

#: (site, position) → table → signature as text; `HISTORY` → chain hash.
SignatureAt = Callable[[str, int], Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A table of two sites that was equal at one common position, and different at the next."""

    #: `HISTORY`: the orders of transactions themselves differ.
    table: str
    #: 0 = nothing was equal yet but the empty replicas.
    last_equal: int
    first_differing: int
    #: What each site reported at `first_differing`; empty = it had no such table.
    left: str
    right: str


def common_positions(left: Sequence[int], right: Sequence[int]) -> list[int]:
    """Return the positions in both ascending lists, ascending."""
    return sorted(set(left) & set(right))


def standing_differences(
    left: str,
    right: str,
    positions: Sequence[int],
    signature_at: SignatureAt,
    *,
    known_equal: int = 0,
) -> list[Difference]:
    """Return where each table began to differ that differs at the newest common position.

    Args:
        left: A site, first argument of `signature_at`.
        right: The other site.
        positions: Common positions, ascending.
        known_equal: Last position known equal; 0 = both replicas empty.

    Returns:
        One for each table that differs, by name; empty if the sites are equal.
    """
    behind = [position for position in positions if position > known_equal]
    if not behind:
        return []
    states = _States(left, right, signature_at)
    return [
        _locate(states, table, behind, known_equal)
        for table in states.tables(behind[-1])
        if states.differ(table, behind[-1])
    ]


def disagreeing(signatures: Mapping[str, str]) -> tuple[str, ...]:
    """Return the sites that are not of the majority's opinion.

    Args:
        signatures: Site → what it reported at one position.

    Returns:
        Empty if all agree, or if no opinion has more than half of at least three sites.
    """
    opinion = majority(signatures)
    if opinion is None:
        return ()
    return tuple(sorted(site for site, found in signatures.items() if found != opinion))


def _locate(states: _States, table: str, positions: list[int], known_equal: int) -> Difference:
    # Invariant: equal at index `low` (-1 = known_equal), different at index `high`.
    low, high, step = -1, len(positions) - 1, 1
    while (probe := high - step) >= 0:
        if not states.differ(table, positions[probe]):
            low = probe
            break
        high, step = probe, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        if states.differ(table, positions[middle]):
            high = middle
        else:
            low = middle
    one, other = states.pair(table, positions[high])
    return Difference(
        table=table,
        last_equal=known_equal if low < 0 else positions[low],
        first_differing=positions[high],
        left=one,
        right=other,
    )


class _States:
    """Asks for each state once, however many tables are looked for."""

    def __init__(self, left: str, right: str, signature_at: SignatureAt) -> None:
        self._sites = (left, right)
        self._ask = signature_at
        self._known: dict[int, tuple[Mapping[str, str], Mapping[str, str]]] = {}

    def tables(self, position: int) -> list[str]:
        left, right = self._at(position)
        return sorted({*left, *right})

    def pair(self, table: str, position: int) -> tuple[str, str]:
        left, right = self._at(position)
        return left.get(table, ""), right.get(table, "")

    def differ(self, table: str, position: int) -> bool:
        left, right = self.pair(table, position)
        return left != right

    def _at(self, position: int) -> tuple[Mapping[str, str], Mapping[str, str]]:
        if position not in self._known:
            left, right = self._sites
            self._known[position] = self._ask(left, position), self._ask(right, position)
        return self._known[position]
