"""What becomes of each transaction: recomputed from its id alone, beside the cores (P25b).

A client whose node is lost or silent commits the same ids elsewhere, so one id may be ordered more
than once, in epochs of their own.  Only the first takes effect; every further one within the window
of ids is ordered as rejected, the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparktxlog.model.operation import RunFacts
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages import QueueEntry, RunHeader
from sparktxlog.testing.simulation.marks import Marks

_DUPLICATE = "duplicate-transaction"


class Outcomes:
    """Watches the ids of one world.

    Args:
        facts: Facts of all payloads, by digest.
        marks: Counts repeats.
        window: Positions that an id is known for.
    """

    def __init__(self, facts: Mapping[bytes, RunFacts], marks: Marks, window: int) -> None:
        self._facts = facts
        self._marks = marks
        self._window = window
        #: Id → node that took it first.
        self._takers: dict[bytes, str] = {}
        #: Id → position and header it was ordered at last.
        self._newest: dict[bytes, tuple[int, RunHeader]] = {}

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
        header, newest = entry.header, self._newest
        repeats = []
        for index, one in enumerate(self._ids(header)):
            position = entry.position + index
            at, earlier = newest.get(one, (0, header))
            newest[one] = (position, header)
            if not at:
                continue
            if position - at > self._window:
                self._marks.hit("same id behind the window")
                continue
            repeats.append(index)
            if earlier.origin != header.origin:
                self._marks.hit("duplicate rejected")
            if earlier.epoch != header.epoch:
                self._marks.hit("same id in two epochs")
        rejected = [rejection.index for rejection in entry.rejections]
        if rejected != repeats or any(r.code != _DUPLICATE for r in entry.rejections):
            return f"P25b: {header} at {entry.position} rejects {entry.rejections}, not {repeats}"
        return ""

    def check_once(self, log: list[QueueEntry]) -> str:
        """Return which transaction took effect more or less than once in the whole queue."""
        places: dict[bytes, list[tuple[int, bool]]] = {}
        for entry in log:
            rejected = {rejection.index for rejection in entry.rejections}
            for index, one in enumerate(self._ids(entry.header)):
                place = (entry.position + index, index not in rejected)
                places.setdefault(one, []).append(place)
        for one, found in places.items():
            at = 0
            for position, effective in found:
                # Behind the window an id counts as new.
                if effective != (not at or position - at > self._window):
                    return f"P25b: transaction {one.hex()} is at {found}: effective is not once"
                at = position
        return ""

    def check_known(self, name: str, master: Master) -> str:
        """Return which id of the window a node places elsewhere than the queue of all does."""
        end = master.base.position
        for one, (position, _) in self._newest.items():
            place = master.locate(one)
            if position <= end - self._window:
                wrong = place is not None
            else:
                # Of several in the window it is the first.
                wrong = place is None or not end - self._window < place <= position
            if wrong:
                return f"P25b: {name} has transaction {one.hex()} at {place}, not {position}"
        return ""
