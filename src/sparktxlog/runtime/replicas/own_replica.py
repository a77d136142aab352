"""What a node keeps of each replica of its own site, over restarts.

A bounded number of a replica's batches is kept as snapshots: position → table versions.  After a
restart they are the replica's opinions; other sites repeat theirs.  The evidence of its last
conviction is kept too, so that a restart does not acquit it.

The names of the main replica's values are as they are for a site with one replica.  Those of
another one begin with `replica/NAME/`; it is registered while there is one for its lake.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import islice

import msgspec

from sparktxlog.catchup.opinions import Opinion
from sparktxlog.model.replicas import MAIN
from sparktxlog.model.report import WorkerReport
from sparktxlog.runtime.replicas.recounts import Recounts
from sparktxlog.storage.interfaces import PutValue, Write
from sparktxlog.storage.journal.value_ring import ring_value, ring_values

#: Batches of a replica kept for snapshots, and positions with opinions.
HISTORY = 1_000
_REPLICA = "replica/"
_LAKE = "/lake"


def registered(saved: Mapping[str, bytes]) -> dict[str, str]:
    """Return the replicas that are registered beside the main one, each with its lake."""
    return {
        key.removeprefix(_REPLICA).removesuffix(_LAKE): value.decode()
        for key, value in sorted(saved.items())
        if key.startswith(_REPLICA) and key.endswith(_LAKE) and value
    }


class _Names:
    """Names of a replica's values in the journal."""

    def __init__(self, name: str) -> None:
        own = "" if name == MAIN else f"{_REPLICA}{name}/"
        self.batch = f"{own}batch:"
        #: Of batches that end at restore points.
        self.point = f"{own}batch-of-point:"
        self.newest = f"{own}report:own"
        self.evidence = f"{own}opinions:own"
        #: Its worker follows the log: it must report after a restart of this node too.
        self.follows = f"{own}follows:own"
        self.recount = f"{own}recount:own"
        self.lake = f"{own.removesuffix('/')}{_LAKE}" if own else ""


class OwnReplica:
    """One replica of this site.

    Args:
        name: Its name.
        saved: Named values of the journal.
    """

    def __init__(self, name: str, saved: Mapping[str, bytes]) -> None:
        self._names = names = _Names(name)
        self.recounts = Recounts(saved, names.recount)
        #: The evidence of the last conviction, as it is kept.
        self.evidence: list[Opinion] = []
        #: All that it reported and that is kept, oldest first.
        self.former: list[WorkerReport] = []
        #: The newest report before this start; None = there is none.
        self.newest: WorkerReport | None = None
        #: Position → report there, ascending; those of the tables that there are now.
        self._batches: OrderedDict[int, WorkerReport] = OrderedDict()
        #: Those of them that end at restore points, as they are kept.
        self._points: set[int] = set()
        self._slot = 0
        #: Places of the ring that are in use.
        self._slots: set[int] = set()
        self._restore(saved)

    def _restore(self, saved: Mapping[str, bytes]) -> None:
        names = self._names
        if evidence := saved.get(names.evidence):
            self.evidence = msgspec.msgpack.decode(evidence, type=list[Opinion])
        newest = None
        if value := saved.get(names.newest):
            newest = msgspec.msgpack.decode(value, type=WorkerReport)
        found: list[tuple[WorkerReport, int | None]] = []
        for place, value in ring_values(names.batch, saved):
            found.append((msgspec.msgpack.decode(value, type=WorkerReport), place))
            self._slots.add(place)
        for name, value in saved.items():
            if name.startswith(names.point) and value:
                found.append((msgspec.msgpack.decode(value, type=WorkerReport), None))
        # Of two at one position the later one counts: the lake may be a new one.
        for report, slot in sorted(found, key=lambda i: (i[0].position, i[0].reported_at)):
            if newest is not None and same_tables(report, newest):
                self._batches[report.position] = report
                self._points |= {report.position} if slot is None else set()
            self.former.append(report)
            if slot is not None:
                self._slot = (slot + 1) % HISTORY
        if newest is not None:
            follows = saved.get(names.follows) == newest.worker_id.encode()
            self.newest = replace(newest, follows=follows, error="")

    # -- what is kept ------------------------------------------------------------------------------

    def keep_batch(self, report: WorkerReport, points: Collection[int]) -> list[Write]:
        """Keep the report of a batch, and those at restore points as long as there are these.

        Args:
            points: Positions of all restore points.
        """
        for position, batch in list(self._batches.items())[::-1]:
            if same_tables(batch, report) and position < report.position:
                break
            # It is of a former lake, or of tables that a copy replaced: versions mean something
            # else now.
            del self._batches[position]
        self._batches[report.position] = report
        writes = self._keep_points(points)
        while len(self._batches) - len(self._points) > HISTORY:
            del self._batches[next(p for p in self._batches if p not in self._points)]
        value = msgspec.msgpack.encode(report)
        slot, self._slot = self._slot, (self._slot + 1) % HISTORY
        self._slots.add(slot)
        return [
            ring_value(self._names.batch, HISTORY, slot, value),
            PutValue(name=self._names.newest, value=value),
            *writes,
        ]

    def _keep_points(self, points: Collection[int]) -> list[Write]:
        point, wanted = self._names.point, set(points) & self._batches.keys()
        gone, new, self._points = self._points - wanted, wanted - self._points, wanted
        return [
            *(PutValue(name=f"{point}{position}", value=b"") for position in gone),
            *(
                PutValue(
                    name=f"{point}{position}",
                    value=msgspec.msgpack.encode(self._batches[position]),
                )
                for position in new
            ),
        ]

    def keep_evidence(self, evidence: list[Opinion]) -> list[Write]:
        """Keep the opinions that convict it: once for each conviction."""
        if evidence == self.evidence:
            return []
        self.evidence = evidence
        return [PutValue(name=self._names.evidence, value=msgspec.msgpack.encode(evidence))]

    def keep_follows(self, report: WorkerReport) -> Write:
        """Keep whether its worker follows the log."""
        value = report.worker_id.encode() if report.follows else b""
        return PutValue(name=self._names.follows, value=value)

    def keep_lake(self, lake: str) -> list[Write]:
        """Keep that it is registered, with its lake; the main one always is."""
        return [PutValue(name=self._names.lake, value=lake.encode())] if self._names.lake else []

    def forget(self) -> list[Write]:
        """Return the writes that remove all that is kept of it."""
        names = self._names
        single = (names.newest, names.evidence, names.follows, names.recount, names.lake)
        return [
            *(PutValue(name=name, value=b"") for name in single if name),
            *(PutValue(name=f"{names.batch}{slot}", value=b"") for slot in sorted(self._slots)),
            *(PutValue(name=f"{names.point}{position}", value=b"") for position in self._points),
        ]

    # -- questions ---------------------------------------------------------------------------------

    def history(self, after: int, limit: int) -> Iterator[WorkerReport]:
        """Return its known states after a position, ascending, at most `limit`."""
        found = (batch for position, batch in self._batches.items() if position > after)
        return islice(found, limit)

    def at(self, position: int) -> WorkerReport | None:
        """Return its report at a position, None = it is not kept."""
        return self._batches.get(position)

    def last(self) -> WorkerReport | None:
        """Return the report of its newest batch that is what the log says."""
        return next(reversed(self._batches.values()), None)


def same_tables(one: WorkerReport, other: WorkerReport) -> bool:
    """Return whether two reports have the same Delta tables in the same versions."""
    return (one.worker_id, one.copied_from) == (other.worker_id, other.copied_from)
