"""Prepared transactions in a simulated hour, and participants that say YES or NO (P35).

They are drawn beside everything else, so the histories are those that there are without them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from tests.verification.simulation.node import SimulatedNode

from sparktxlog.model.transactions.conditions import Condition
from sparktxlog.model.transactions.marks import Undecided
from sparktxlog.model.transactions.operation import Mark, RunFacts

#: Part of the runs of one transaction that are prepared, and of all runs that have marks.
_PREPARED, _MARKED = 0.3, 0.4
_PARTICIPANTS = ("p", "q", "r")
#: How long what is prepared is valid, microseconds.
_VALID_US = (1_000_000, 20_000_000, 120_000_000)
#: Part of the prepared ones that rest on a table, and tables that are read.
_READS, _READ = 0.5, 3
#: Chance that a participant says NO, and that somebody speaks who should not.
_NO, _STRANGER, _UNKNOWN = 0.1, 0.05, 0.05


@dataclass(frozen=True, slots=True)
class DrawnMarks:
    """What a run prepares, or who says what in it."""

    participants: tuple[str, ...] = ()
    valid_until: tuple[tuple[int, int], ...] = ()
    conditions: tuple[tuple[int, Condition], ...] = ()
    marks: tuple[tuple[int, Mark], ...] = ()


class Participants:
    """Clients that prepare transactions, and others that mark what their node knows of.

    Args:
        seed: Of their own draws.
    """

    def __init__(self, seed: str) -> None:
        self._random = Random(f"{seed}:prepared")

    def draw(self, node: SimulatedNode, n: int, *, plain: bool) -> DrawnMarks:
        """Return what a run of `n` transactions prepares or marks, as a node takes it.

        Args:
            plain: Whether it neither creates nor changes a table, so that it may be prepared.
        """
        random, master = self._random, node.master
        assert master is not None
        drawn, marked = random.random(), random.random()
        if n == 1 and plain and drawn < _PREPARED:
            names = tuple(random.sample(_PARTICIPANTS, random.randrange(1, 4)))
            until = master.next_stamp + random.choice(_VALID_US)
            read = sorted(master.tables)[:_READ] if random.random() < _READS else []
            reads = tuple(random.sample(read, 1)) if read else ()
            condition = Condition(read_position=master.base.position, reads=reads)
            return DrawnMarks(
                participants=names,
                valid_until=((0, until),),
                conditions=((0, condition),) if reads else (),
            )
        undecided = list(node.disk.undecided.values())
        if marked >= _MARKED or not undecided:
            return DrawnMarks()
        places = [index for index in range(n) if random.random() < 0.5]
        return DrawnMarks(marks=tuple((at, self._mark(random.choice(undecided))) for at in places))

    def _mark(self, one: Undecided) -> Mark:
        random = self._random
        return Mark(
            transaction_id=bytes(16) if random.random() < _UNKNOWN else one.transaction_id,
            participant="s" if random.random() < _STRANGER else random.choice(one.participants),
            yes=random.random() >= _NO,
        )


def without_marked(facts: RunFacts) -> RunFacts:
    """Return facts of a run whose marks, and commits to commit tables, do nothing else."""
    marked = {index for index, _ in (*facts.marks, *facts.commits)}
    if not marked:
        return facts
    touches = []
    for touch in facts.touches:
        txs = tuple(at for at in touch.txs or range(facts.n) if at not in marked)
        touches += [replace(touch, txs=txs)] if txs else []
    return replace(
        facts,
        touches=tuple(touches),
        creates=tuple(item for item in facts.creates if item[0] not in marked),
        conditions=tuple(item for item in facts.conditions if item[0] not in marked),
        changes=tuple(item for item in facts.changes if item[0] not in marked),
    )
