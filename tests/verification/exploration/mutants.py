"""Cores with one rule broken each that the exploration must find, at its shortest depth."""

from __future__ import annotations

from tests.verification.mutation.mutant import BY_NAME, Patch

#: Goes on during an epoch change: freezing stops nothing (P14), but at a witness.
_NOT_WEDGED = Patch(
    path="src/sparktxlog/protocol/order/ordering.py",
    old="        self.frozen = True\n",
    new="""\
        seats = self._config.roster
        if not any(seat.witness and seat.node_id == self._config.node_id for seat in seats):
            return
        self.frozen = True
""",
)
#: Name → patches; most are of the table of mutations.
MUTANTS: dict[str, tuple[Patch, ...]] = {
    "not-wedged": (_NOT_WEDGED,),
    "longest-instead-of-union": BY_NAME["longest-queue"].patches,
    "accepted-ignored": BY_NAME["accepted-value-ignored"].patches,
    "promise-ignored": BY_NAME["accepts-any-ballot"].patches,
} | {
    name: BY_NAME[name].patches
    for name in ("skip-instead-of-stop", "counter-reused", "quorum-minus-one", "no-vote-majority")
}
