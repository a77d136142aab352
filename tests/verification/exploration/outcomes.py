"""What becomes of each transaction: each queue is judged by the reference, from its start.

So all nodes decide alike, whatever they had seen, and wherever one of them was restarted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.verification.exploration.transactions import TABLE
from tests.verification.model.disk import CoreDisk
from tests.verification.model.invariants import violated
from tests.verification.reference import ReferenceEffects
from tests.verification.simulation.marks import Marks
from tests.verification.simulation.outcomes import Outcomes

from sparktxlog.model.transactions.conditions import TableWrites
from sparktxlog.model.transactions.marks import Undecided
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.posts import QueueEntry
from sparktxlog.protocol.messages.recovery import MasterConfig

#: What is known of a table that was there before the log began: all writes count.
_NEVER = TableWrites(version=0, position=0)


class Judge:
    """Compares nodes with the reference.

    Args:
        facts: Facts of all payloads, by digest.
        config: Of any node.
    """

    def __init__(self, facts: Mapping[bytes, RunFacts], config: MasterConfig) -> None:
        self._facts = facts
        self._config = config
        #: Queue with outcomes → the effects at its end.
        self._judged: dict[tuple[QueueEntry, ...], ReferenceEffects] = {}

    def check(self, disk: CoreDisk, master: Master) -> None:
        """Compare a node's queue, and what its disk and its memory have at the end of it.

        Raises:
            InvariantViolation: With the rule's code.
        """
        queue = tuple(disk.queue)
        effects = self._judged.get(queue)
        if effects is None:
            effects = self._judged[queue] = self._judge(queue)
        end = queue[-1].end if queue else 0
        memory = {table: master.writes(table) for table in master.tables}
        kept = {table: disk.writes.get(table, _NEVER) for table in disk.tables}
        writes, undecided = effects.writes_at(end), effects.undecided_at(end)
        expected = {table: writes.get(table, _NEVER) for table in effects.at(end)}
        for where, found in (("on disk", kept), ("in memory", memory)):
            if found != expected:
                violated(f"P27: {disk.owner} has {found} {where} at {end}: {expected}")
        for where, ones in (("on disk", disk.undecided.values()), ("in memory", master.undecided)):
            if _said(ones) != undecided:
                violated(f"P35: {disk.owner} has {_said(ones)} {where} at {end}: {undecided}")
        tables = effects.commits.at(end)
        there = {uuid: table for uuid, table in tables.items() if not table.is_dropped}
        if (disk.commit_tables, dict(master.commit_tables)) != (tables, there):
            violated(f"P36: {disk.owner} has other commit tables at {end}: {tables}")

    def _judge(self, queue: tuple[QueueEntry, ...]) -> ReferenceEffects:
        outcomes, log = Outcomes(self._facts, Marks(), self._config), list(queue)
        outcomes.effects.apply(0, RunFacts(n=1, ids=bytes(16), creates=((0, TABLE),)), ())
        wrong = [outcomes.ordered(entry) for entry in log]
        wrong += [outcomes.check_once(log), outcomes.check_no_lost_update(log)]
        wrong += [outcomes.check_commit_histories(log)]
        for story in filter(None, wrong):
            violated(story)
        return outcomes.effects


def _said(undecided: Iterable[Undecided]) -> dict[bytes, tuple[str, ...]]:
    """Return who said YES, sorted, to what."""
    return {one.transaction_id: tuple(sorted(one.said)) for one in undecided}
