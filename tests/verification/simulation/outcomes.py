"""What becomes of each transaction: recomputed from its id and tables, beside the cores (P25b).

A client whose node is lost or silent commits the same ids elsewhere, so one id may be ordered more
than once, in epochs of their own and long after each other.  Only the first takes effect, and only
if it was ordered soon enough after a node accepted it; the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.verification.reference import ReferenceEffects
from tests.verification.simulation.commits import check_histories, mark_commits
from tests.verification.simulation.marks import Marks

from sparktxlog.model.transactions.conditions import Condition
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.posts import QueueEntry, RunHeader
from sparktxlog.protocol.messages.recovery import MasterConfig

_DUPLICATE, _EXPIRED, _VOIDED = "duplicate-transaction", "expired-id", "voided"
_LATE = "expired-transaction"
_STALE = "stale-schema"
_CONFLICT = "conflict"
_OUTRUN = "version-conflict"


class Outcomes:
    """Watches the ids of one world.

    Args:
        facts: Facts of all payloads, by digest.
        marks: Counts repeats.
        config: Of any node: how long ids are known for, and what was read counts.
    """

    def __init__(self, facts: Mapping[bytes, RunFacts], marks: Marks, config: MasterConfig) -> None:
        self._facts = facts
        self._marks = marks
        self._window = config.id_window
        self._window_us = config.id_window_us
        #: Tables of the one queue.
        self.effects = ReferenceEffects(config.condition_window)
        #: Id → node that took it first.
        self._takers: dict[bytes, str] = {}
        #: Id → position and header it was ordered at first, of what counts as the same.
        self._eldest: dict[bytes, tuple[int, RunHeader]] = {}
        #: Id → all positions it was ordered at.
        self._places: dict[bytes, list[int]] = {}

    def _ids(self, header: RunHeader) -> Iterator[bytes]:
        ids = self._facts[header.digest].ids
        return (ids[at : at + 16] for at in range(0, len(ids), 16))

    def accepted(self, header: RunHeader) -> None:
        """See a node tell that a run is durable there."""
        takers = [self._takers.setdefault(one, header.origin) for one in self._ids(header)]
        if any(taker != header.origin for taker in takers):
            self._marks.hit("same id at two nodes")

    def ordered(self, entry: QueueEntry) -> str:
        """See the one queue grow by an entry; return what is wrong with its outcomes."""
        header = entry.header
        expected: list[tuple[int, str, int | None]] = []
        facts = self._facts[header.digest]
        acceptance = facts.acceptance
        assert acceptance is not None
        too_late = header.ts - acceptance.ts > self._window_us
        seen, until = dict(acceptance.repeats), dict(facts.valid_until)
        for index, one in enumerate(self._ids(header)):
            position = entry.position + index
            first, earlier = self._eldest.setdefault(one, (position, header))
            places = self._places.setdefault(one, [position])
            at = places[-1]
            places.append(position)
            gap = position - acceptance.position > self._window
            if index in seen:
                # The accepting node may have looked further back than anybody needs to know.
                first = seen[index] if seen[index] in places else 0
            elif entry.end - acceptance.position > self._window and not too_late:
                # Every site looks up the whole gap.  The first one there may be older than the
                # one that the memory of all begins with: a copy between may have expired.
                first = next(place for place in places if place > acceptance.position)
            elif gap and position - at > self._window:
                # What stands between, nobody needs to know any more.
                first = position
            if first < position:
                expected.append((index, _DUPLICATE, first))
                self._mark_repeat(header, earlier, position - at, late=gap and not too_late)
            elif gap and too_late:
                self._eldest[one] = (position, header)
                expected.append((index, _EXPIRED, None))
                self._marks.hit("expired id")
            elif facts.voided:
                expected.append((index, _VOIDED, None))
            elif header.ts > until.get(index, header.ts):
                expected.append((index, _LATE, None))
        by_id = [index for index, _, _ in expected]
        seen_before = len(self.effects.decided)
        by_table = self.effects.apply(entry.position, facts, by_id, header.ts)
        expected = sorted([*expected, *((index, code, None) for index, code in by_table.items())])
        if set(by_table.values()) & {"unknown-table", "schema-mismatch"}:
            self._marks.hit("rejected for its table")
        if _STALE in by_table.values():
            self._marks.hit("stale schema")
        for index, _, change in facts.changes:
            if index not in by_id and index not in by_table:
                self._marks.hit("table dropped" if change.is_dropped else "table changed")
        mark_commits(self._marks, facts, by_id, by_table)
        if wrong := self._decided(entry, self.effects.decided[seen_before:]):
            return wrong
        if wrong := self._winners(entry):
            return wrong
        for index, condition in facts.conditions:
            self._mark_condition(entry, index, condition, by_table.get(index, ""), by_id)
        found = [(one.index, one.code, one.first) for one in entry.rejections]
        if found != expected:
            return f"P25b, P25c: {header} at {entry.position} rejects {found}, not {expected}"
        return ""

    def _decided(self, entry: QueueEntry, expected: list[tuple[int, int, str]]) -> str:
        """P35: return what is wrong with what an entry decides."""
        found = [
            (entry.position + one.index, one.position, one.rejection.code if one.rejection else "")
            for one in entry.verdicts
        ]
        for _, _, code in found:
            self._marks.hit(f"prepared: {code or 'committed'}")
        if found != expected:
            return f"P35: {entry.header} at {entry.position} decides {found}, not {expected}"
        return ""

    def _winners(self, entry: QueueEntry) -> str:
        """P27, P33, P36: return which rejection names another winner than it lost to."""
        told_of = [one.rejection for one in entry.verdicts if one.rejection is not None]
        for told in (*entry.rejections, *told_of):
            lost = self.effects.lost.get(entry.position + told.index, (None, None))
            if told.code in (_CONFLICT, _STALE) and (told.table, told.winner) != lost:
                return f"P27, P33: {told} at {entry.position}, it lost to {lost}"
            if told.code == _OUTRUN:
                named = (told.table, told.version, told.winner, told.winner_id)
                if named != self.effects.commits.lost.get(entry.position + told.index):
                    return f"P36: {told} at {entry.position} names another winner"
        return ""

    def _mark_condition(
        self, entry: QueueEntry, index: int, condition: Condition, code: str, by_id: list[int]
    ) -> None:
        if index in by_id:
            self._marks.hit("condition of a repeat")
        elif not code:
            self._marks.hit("read held" if condition.reads else "version held")
        elif code == _CONFLICT:
            table, winner = self.effects.lost[entry.position + index]
            self._marks.hit("read too old" if table is None else "conflict")
            if winner is not None and winner >= entry.position:
                self._marks.hit("conflict within a run")

    def check_no_lost_update(self, log: list[QueueEntry]) -> str:
        """P27: return which read took effect although its table was written to in between.

        From the queue and what it rejects alone: the positions of what took effect.
        """
        writers: dict[str, list[int]] = {}
        prepared: dict[int, RunFacts] = {}
        for entry in log:
            facts = self._facts[entry.header.digest]
            rejected = {rejection.index for rejection in entry.rejections}
            busy = facts.touches or facts.conditions
            effective = set(range(facts.n if busy else 0)) - rejected
            found = [(index, facts, index) for index in effective]
            prepared.update((entry.position, facts) for _ in facts.participants[:1])
            # What was prepared takes effect in the place of a mark (P35).
            for one in entry.verdicts:
                if one.rejection is None:
                    found.append((one.index, prepared[one.position], 0))
            for index, facts, of in sorted(found, key=lambda item: item[0]):
                position, conditions = entry.position + index, dict(facts.conditions)
                condition = conditions.get(of, Condition())
                for table in condition.reads:
                    since = condition.read_position or 0
                    between = [at for at in writers.get(table, ()) if at > since]
                    if between:
                        return f"P27: {position} read {table} at {since}, then wrote {between}"
                for touch in facts.touches:
                    if touch.txs is None or of in touch.txs:
                        writers.setdefault(touch.table, []).append(position)
        return ""

    def check_commit_histories(self, log: list[QueueEntry]) -> str:
        """P36: return what is wrong with the history of a commit table, empty = nothing."""
        return check_histories(log, self._facts)

    def _mark_repeat(
        self, header: RunHeader, earlier: RunHeader, distance: int, *, late: bool
    ) -> None:
        if distance > self._window:
            self._marks.hit("same id behind the window")
        if late:
            self._marks.hit("repeat ordered late")
        if earlier.origin != header.origin:
            self._marks.hit("duplicate rejected")
        if earlier.epoch != header.epoch:
            self._marks.hit("same id in two epochs")

    def check_once(self, log: list[QueueEntry]) -> str:
        """Return which transaction took effect more or less than once in the whole queue."""
        places: dict[bytes, list[tuple[int, bool]]] = {}
        for entry in log:
            rejected = {rejection.index for rejection in entry.rejections}
            for index, one in enumerate(self._ids(entry.header)):
                place = (entry.position + index, index not in rejected)
                places.setdefault(one, []).append(place)
            for verdict in entry.verdicts:
                found = places[verdict.transaction_id]
                at = [place for place, _ in found].index(verdict.position)
                found[at] = (verdict.position, verdict.rejection is None)
        for one, found in places.items():
            if any(effective for _, effective in found[1:]):
                return f"P25c: transaction {one.hex()} is at {found}: effective is not once"
        return ""

    def check_known(self, name: str, master: Master) -> str:
        """Return which id of the window a node places elsewhere than the queue of all does."""
        end = master.base.position
        for one, places in self._places.items():
            place = master.locate(one)
            known = places[-1] > end - self._window
            if (place in places) if known else place is None:
                continue
            return f"P25c: {name} has transaction {one.hex()} at {place}, of {places}"
        return ""
