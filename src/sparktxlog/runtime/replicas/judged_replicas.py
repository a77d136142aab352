"""Replicas: reports of workers, which ones are alive, and verdicts on them (S2a, S3, P24).

Reports of the own site come from its worker, those of other sites with their nodes' posts.  Each is
judged by the log (`comparison`) and by the reports of other sites for the same positions
(`opinions`); the order of arrival does not matter.  So a report may change the verdict on another
replica; `turned` returns such changes.

A bounded number of the own replica's batches is kept as snapshots: position → table versions.
After a restart they are this site's opinions; other sites repeat theirs.  The evidence of the last
conviction of the own replica is kept too, so that a restart does not acquit it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

import msgspec
import structlog

from sparktxlog.catchup.comparison import (
    OF_TABLES,
    Comparison,
    LogView,
    compare,
    judge,
    recordable,
)
from sparktxlog.catchup.opinions import Dissent, Opinion, Opinions
from sparktxlog.errors import DivergedError, ExpiredError
from sparktxlog.model.answers import Difference
from sparktxlog.model.report import Recount, ReplicaVerdict, WorkerReport
from sparktxlog.model.restore_point import RESTORE_POINTS, points_in
from sparktxlog.model.status_words import difference_text
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.replicas.recounts import Recounts
from sparktxlog.storage.interfaces import PutValue, Write
from sparktxlog.storage.journal.value_ring import ring_value, ring_values

_log = structlog.get_logger("sparktxlog.replicas")

#: Batches of the own replica kept for snapshots, and positions with opinions.
HISTORY = 1_000
#: Log time for which replicas differ before they are recounted, microseconds: a third site may
#: decide meanwhile, and a full scan is expensive.
RECOUNT_AFTER_US = 10_000_000
_PREFIX = "batch:"
#: Of batches that end at restore points.
_POINT = "batch-of-point:"
_OWN = "report:own"
_EVIDENCE = "opinions:own"
#: The own worker that follows the log: it must report after a restart of this node too.
_FOLLOWS = "follows:own"


@dataclass(slots=True, kw_only=True)
class JudgedReplica:
    """The newest report of one worker, and the verdict on it."""

    #: The report with results of recounts, as it is judged and passed on.
    report: WorkerReport
    #: The report as the worker sent it.
    newest: WorkerReport
    #: Verdict by the log and by other sites' opinions.
    comparison: Comparison
    #: Log time when the report came in, microseconds; 0 = before this start.
    heard_at: int
    #: Verdict by the log alone.
    base: Comparison
    #: Where a majority says that it is wrong.
    conviction: Dissent | None = None
    #: Log time since when it is contested, microseconds.
    contested_at: int = 0

    @property
    def contested(self) -> bool:
        """Whether it differs from another one and no majority says which is right."""
        return self.comparison.contest is not None


@dataclass(slots=True, kw_only=True)
class Turned:
    """Replicas whose verdicts changed since the last call."""

    states: list[JudgedReplica] = field(default_factory=list)
    #: Writes to keep of them.
    writes: list[Write] = field(default_factory=list)


class Replicas:
    """All replicas known here."""

    def __init__(self, base: Foundation) -> None:
        self._base = base
        self._node_id = base.config.node_id
        #: Silence after which a worker counts as dead.
        self._dead_after_us = int(base.config.worker_dead_after * 1_000_000)
        #: Site → its replica; a copied lake gives two sites one worker id.
        self._states: dict[str, JudgedReplica] = {}
        #: Log time of the first check for silent workers; earlier reports count from there.
        self._watched_since = 0
        #: Own workers that were reported as silent.
        self._silent: set[str] = set()
        self._opinions = Opinions(HISTORY, self._pinned)
        self._recounts = Recounts(base.state.values)
        self._turned = Turned()
        #: The evidence of the own replica's last conviction, as it is kept.
        self._evidence: list[Opinion] = []
        #: Newest known log time, microseconds.
        self._now = 0
        #: Position → the own replica's report there, ascending.
        self._batches: OrderedDict[int, WorkerReport] = OrderedDict()
        #: Those of them that end at restore points, as they are kept.
        self._points: set[int] = set()
        self._slot = 0
        self._restore(base.state.values)

    def _restore(self, saved: Mapping[str, bytes]) -> None:
        if evidence := saved.get(_EVIDENCE):
            self._evidence = msgspec.msgpack.decode(evidence, type=list[Opinion])
            for opinion in self._evidence:
                self._opinions.add(opinion)
        newest = msgspec.msgpack.decode(saved[_OWN], type=WorkerReport) if _OWN in saved else None
        found: list[tuple[WorkerReport, int | None]] = []
        for place, value in ring_values(_PREFIX, saved):
            found.append((msgspec.msgpack.decode(value, type=WorkerReport), place))
        for name, value in saved.items():
            if name.startswith(_POINT) and value:
                found.append((msgspec.msgpack.decode(value, type=WorkerReport), None))
        # Of two at one position the later one counts: the lake may be a new one.
        for report, slot in sorted(found, key=lambda i: (i[0].position, i[0].reported_at)):
            if newest is not None and _same_tables(report, newest):
                self._batches[report.position] = report
                self._points |= {report.position} if slot is None else set()
            self._record(report)
            if slot is not None:
                self._slot = (slot + 1) % HISTORY
        if newest is not None:
            follows = saved.get(_FOLLOWS) == newest.worker_id.encode()
            newest = replace(newest, follows=follows, error="")
            report = self._recounts.amend(newest)
            base = self._compare(report)
            self._states[report.node_id] = JudgedReplica(
                report=report, newest=newest, comparison=base, base=base, heard_at=0
            )
            self._judge_all(report.node_id)

    # -- reports -----------------------------------------------------------------------------------

    def accept(self, report: WorkerReport, now: int) -> tuple[Comparison, bool, list[Write]]:
        """Judge a report; return the verdict, whether its state is new, and what to keep of it.

        **After calling**: what it made of other replicas is in `turned`.
        """
        own, newest = report.node_id == self._node_id, report
        if own:
            report = self._recounts.amend(report)
        self._now = max(self._now, now)
        known = self._states.get(report.node_id)
        if known is not None and known.report.worker_id != report.worker_id:
            known = None  # an earlier worker: a site has one replica
        changed = (
            known is None
            or known.report.position != report.position
            or (
                (known.report.tables, known.report.log_id, known.report.copied_from)
                != (report.tables, report.log_id, report.copied_from)
            )
        )
        base = self._compare(report)
        if base.verdict is ReplicaVerdict.IN_SYNC:
            self._record(report)
        state = self._states[report.node_id] = JudgedReplica(
            report=report, newest=newest, comparison=base, base=base, heard_at=now
        )
        if known is not None:
            # Compared with the report that was passed on before.
            state.comparison, state.contested_at = known.comparison, known.contested_at
        self._judge_all(report.node_id)
        comparison = state.comparison
        # The same state may be judged again: a replica AHEAD of this node is IN_SYNC later.
        changed = changed or known is None or not _same_verdict(known.comparison, comparison)
        self._tell(state, known)
        writes: list[Write] = []
        if changed and own and comparison.verdict is ReplicaVerdict.IN_SYNC:
            writes = self._keep_batch(report)
        if own and report.follows != (known is not None and known.report.follows):
            value = report.worker_id.encode() if report.follows else b""
            writes.append(PutValue(name=_FOLLOWS, value=value))
        return comparison, changed, writes

    def turned(self) -> Turned:
        """Return the other replicas whose verdict changed since the last call."""
        turned, self._turned = self._turned, Turned()
        # One may have changed twice, or be of an earlier worker.
        sites = dict.fromkeys(state.report.node_id for state in turned.states)
        turned.states = [self._states[site] for site in sites]
        return turned

    def take_recount(self, recount: Recount) -> list[Write]:
        """Add the result of a full scan of this site's replica; return the writes that keep it.

        **After calling**: have the replica's newest report judged again, by `accept`.
        """
        wrong = sorted(name for name, table in recount.tables.items() if not table.sound)
        (_log.error if wrong else _log.info)(
            "recount",
            worker=recount.worker_id,
            position=recount.position,
            tables=sorted(recount.tables),
            wrong=wrong,
        )
        return self._recounts.take(recount)

    def recount_due(self) -> list[str]:
        """Return tables that the own worker must recount because other sites differ (S3)."""
        state = self.own()
        contest = None if state is None else state.comparison.contest
        if state is None or contest is None or self._now - state.contested_at < RECOUNT_AFTER_US:
            return []
        return self._recounts.uncounted(state.report, contest.tables, contest.position)

    def _judge_all(self, accepted: str = "") -> None:
        """Judge all replicas again by the opinions of all sites; note changed verdicts."""
        sound: dict[str, str] = {}
        for site, state in self._states.items():
            until = state.report.position
            state.conviction = self._opinions.conviction(site, _replica(state.report), until)
            usable = state.base.verdict in (ReplicaVerdict.IN_SYNC, ReplicaVerdict.AHEAD)
            if usable and state.conviction is None and self._belongs(site):
                sound[site] = _replica(state.report)
        for site, state in self._states.items():
            before = state.comparison
            contest = None
            replica, until = _replica(state.report), state.report.position
            if sound.get(site) == replica:
                contest = self._opinions.contest(site, replica, until, sound)
            state.comparison = judge(state.base, state.conviction, contest)
            if not state.contested or before.contest is None:
                state.contested_at = self._now
            if site != accepted and not _same_verdict(before, state.comparison):
                self._note_turned(state, before)
            if site == self._node_id and state.conviction is not None:
                self._turned.writes += self._keep_evidence(state.conviction.position)

    def _note_turned(self, state: JudgedReplica, before: Comparison) -> None:
        self._turned.states.append(state)
        self._tell(state, replace(state, comparison=before))
        if state.report.node_id != self._node_id or before.verdict is state.comparison.verdict:
            return
        if state.comparison.verdict is ReplicaVerdict.IN_SYNC:
            self._turned.writes += self._keep_batch(state.report)

    def _keep_evidence(self, position: int) -> list[Write]:
        """Keep the opinions that convict the own replica: once for each conviction."""
        evidence = self._opinions.at(position)
        if evidence == self._evidence:
            return []
        self._evidence = evidence
        return [PutValue(name=_EVIDENCE, value=msgspec.msgpack.encode(evidence))]

    def _belongs(self, site: str) -> bool:
        """Whether a site still belongs to the cluster."""
        return site == self._node_id or site in self._base.links

    def _pinned(self) -> set[int]:
        """Return the positions whose opinions verdicts depend on."""
        found = [state.conviction for state in self._states.values()]
        found += [state.comparison.contest for state in self._states.values()]
        return {dissent.position for dissent in found if dissent is not None}

    def _keep_batch(self, report: WorkerReport) -> list[Write]:
        for position, batch in list(self._batches.items())[::-1]:
            if _same_tables(batch, report) and position < report.position:
                break
            # It is of a former lake, or of tables that a copy replaced: versions mean something
            # else now.
            del self._batches[position]
        self._batches[report.position] = report
        writes = self._keep_points()
        while len(self._batches) - len(self._points) > HISTORY:
            del self._batches[next(p for p in self._batches if p not in self._points)]
        value = msgspec.msgpack.encode(report)
        slot, self._slot = self._slot, (self._slot + 1) % HISTORY
        return [
            ring_value(_PREFIX, HISTORY, slot, value),
            PutValue(name=_OWN, value=value),
            *writes,
        ]

    def _keep_points(self) -> list[Write]:
        """Keep the batches that end at restore points as long as there are these points."""
        table = self._base.master.tables.get(RESTORE_POINTS)
        named = () if table is None else points_in(dict(table.properties))
        wanted = {point.position for point in named} & self._batches.keys()
        gone, new, self._points = self._points - wanted, wanted - self._points, wanted
        return [
            *(PutValue(name=f"{_POINT}{position}", value=b"") for position in gone),
            *(
                PutValue(
                    name=f"{_POINT}{position}",
                    value=msgspec.msgpack.encode(self._batches[position]),
                )
                for position in new
            ),
        ]

    def _record(self, report: WorkerReport) -> None:
        signatures = recordable(report)
        if signatures is not None:
            donor, copied_at = _origin(report.copied_from)
            self._opinions.add(
                Opinion(
                    site=report.node_id,
                    replica=_replica(report),
                    position=report.position,
                    chain_hash=report.chain_hash,
                    signatures=signatures,
                    donor=donor,
                    copied_at=copied_at,
                )
            )

    def _compare(self, report: WorkerReport) -> Comparison:
        base = self._base
        chain_hash, known = None, True
        if report.position <= base.ordered.value:
            try:
                chain_hash = base.journal.read_hash_at(report.position)
            except ExpiredError:
                known = False
        return compare(
            report,
            LogView(
                log_id=base.config.log_id,
                position=base.ordered.value,
                published=base.published.value,
                kept_after=base.kept_after.value,
                chain_hash=None if chain_hash is None else chain_hash.hex(),
                hash_known=known,
                recounted=self._recounts.wrong(report),
            ),
        )

    @staticmethod
    def _tell(state: JudgedReplica, known: JudgedReplica | None) -> None:
        report, comparison = state.report, state.comparison
        if known is not None and _same_verdict(known.comparison, comparison):
            return
        bad = comparison.verdict in (ReplicaVerdict.DIVERGED, ReplicaVerdict.FOREIGN)
        (_log.error if bad else _log.warning if state.contested else _log.info)(
            "replica",
            worker=report.worker_id,
            site=report.node_id,
            position=report.position,
            verdict=comparison.verdict.value,
            reason=comparison.reason,
        )

    def overtaken(self) -> list[tuple[WorkerReport, int]]:
        """Return reports, and their times, that were AHEAD and that the queue has reached since."""
        position = self._base.ordered.value
        return [
            (state.newest, state.heard_at)
            for state in self._states.values()
            if state.comparison.verdict is ReplicaVerdict.AHEAD
            and state.report.position <= position
        ]

    def differences(self) -> list[Difference]:
        """Return each table of each replica that differs from others, as it began."""
        found: list[Difference] = []
        for state in self.states():
            site = state.report.node_id
            dissent = state.conviction or state.comparison.contest
            if dissent is None:
                continue
            for table in dissent.tables:
                began = self._opinions.began(site, _replica(state.report), table, dissent)
                one: Difference = {
                    "site": site,
                    "table": table,
                    "equal_to": began.equal_to,
                    "position": began.position,
                    "signature": began.signature,
                    "others": dict(began.others),
                    "convicted": state.conviction is not None,
                    "sentence": "",
                    "transactions": [],
                }
                one["sentence"] = difference_text(one)
                found.append(one)
        return found

    # -- questions ---------------------------------------------------------------------------------

    def applied(self, sites: int) -> int:
        """Return the position that the own replica (1) or any `sites` equal sites applied.

        Followers count only for themselves: nobody relies on them (P38).
        Replicas that differ count together up to the last position where they were equal.  0 asks
        for the own replica, also one in which some tables stand still: its others can be read.
        """
        return _at_most(self._positions(sites, still=sites == 0), sites)

    def passed(self, sites: int) -> int:
        """Return the same; sites that have passed it while tables there stand still count, too."""
        return _at_most(self._positions(sites, still=True), sites)

    def passed_by(self, position: int, sites: int) -> dict[str, dict[str, str]]:
        """Return the sites that count for `passed` at a position: table that stands still → why."""
        return {
            site: {n: t.diverged for n, t in self._states[site].report.tables.items() if t.diverged}
            for site, at in self._positions(sites, still=True).items()
            if at >= position
        }

    def _positions(self, sites: int, *, still: bool) -> dict[str, int]:
        """Return site → position of the replicas that count.

        Args:
            still: Also those in which some tables stand still.
        """
        best: dict[str, int] = {}
        view = self._base.master.view
        for site, state in self._states.items():
            if site != self._node_id and view.follows(site):
                continue
            in_sync = state.comparison.verdict is ReplicaVerdict.IN_SYNC
            if not (in_sync or (still and state.comparison.cause in OF_TABLES)):
                continue
            position, contest = state.report.position, state.comparison.contest
            if sites > 1 and contest is not None:
                position = contest.equal_to
            if sites > 1 or site == self._node_id:
                best[site] = position
        return best

    def forget(self, site: str) -> None:
        """Forget the replica of a site that returned with another disk, until it reports (P21)."""
        self._states.pop(site, None)

    def states(self) -> list[JudgedReplica]:
        """Return the newest state of each site's replica, by site."""
        return [state for _, state in sorted(self._states.items())]

    def own(self, worker_id: str | None = None) -> JudgedReplica | None:
        """Return the state of this site's replica, if the worker named is its newest one."""
        own = self._states.get(self._node_id)
        if own is None or worker_id not in (None, own.report.worker_id):
            return None
        return own

    def state(self, node_id: str) -> JudgedReplica:
        """Return the newest state of a site's replica, whose worker has reported."""
        return self._states[node_id]

    def latest_own(self, now: int) -> list[WorkerReport]:
        """Return the newest report of this site's worker, with its age, for a new peer."""
        own = self.own()
        if own is None:
            return []
        return [replace(own.report, age_us=now - own.heard_at if own.heard_at else -1)]

    def history(self, after: int, limit: int) -> list[WorkerReport]:
        """Return the own replica's known states after a position, ascending, at most `limit`."""
        found = (batch for position, batch in self._batches.items() if position > after)
        return list(islice(found, limit))

    def snapshot(self, position: int | None) -> WorkerReport | None:
        """Return the own replica's report at a position, or its newest one."""
        kept = None if position is None else self._batches.get(position)
        if kept is not None:
            return kept
        own = self.own()
        # A report with tables that stand still is not kept with those that are what the log says.
        still = own is not None and own.comparison.cause in OF_TABLES
        if own is not None and still and position in (None, own.report.position):
            return own.report
        if position is not None:
            return None
        return next(reversed(self._batches.values()), None)

    def refuse_diverged(self) -> None:
        """Refuse to show an own replica that differs from the log.

        One that says which tables differ is shown: readers of these tables are informed.

        Raises:
            DivergedError: With the reason, such as the version of another writer (definite).
        """
        own = self.own()
        if own is None or own.comparison.verdict is not ReplicaVerdict.DIVERGED:
            return
        if own.comparison.cause in OF_TABLES:
            return
        wrong = sorted(name for name, table in own.report.tables.items() if table.diverged)
        repair = f"Repair it with `sparktxlog repair {wrong[0]}`." if wrong else ""
        raise DivergedError(
            f"this site's replica is DIVERGED: {own.comparison.reason}",
            hint=repair or "`sparktxlog plan` says what to do.",
            tables=wrong,
            position=own.report.position,
        )

    def newly_silent(self, now: int) -> list[WorkerReport]:
        """Find own workers that went silent since the last call; log them, and their return.

        Returns:
            The last reports of those that did.
        """
        self._watched_since = self._watched_since or now
        found = {
            state.report.worker_id: state
            for state in self._states.values()
            if state.report.node_id == self._node_id and self._is_silent(state, now)
        }
        new = [found[worker_id] for worker_id in sorted(found.keys() - self._silent)]
        for worker_id in sorted(self._silent - found.keys()):
            _log.info("worker heard again", worker=worker_id, site=self._node_id)
        self._silent = set(found)
        for state in new:
            _log.error(
                "worker silent",
                worker=state.report.worker_id,
                site=self._node_id,
                position=state.report.position,
                silent_for_s=self._silence_us(state, now) / 1e6,
                last_error=state.report.error,
            )
        return [state.report for state in new]

    def warnings(self, now: int) -> list[dict[str, str]]:
        """Return warnings about workers, for status."""
        found = []
        for state in self.states():
            report = state.report
            name = f"worker {report.worker_id} of site {report.node_id}"
            if self._is_silent(state, now):
                silence_s = self._silence_us(state, now) / 1e6
                said = f"{name} has been silent for {silence_s:,.1f} s and did not end"
                if report.error:
                    said += f"; its last error: {report.error}"
                found.append({"code": "worker-silent", "text": said})
            elif report.error:
                found.append({"code": "worker-error", "text": f"{name}: {report.error}"})
        return found

    def _is_silent(self, state: JudgedReplica, now: int) -> bool:
        """Return whether a worker that should report does not.

        For a site that is not linked this is unknown.
        """
        site = state.report.node_id
        heard = site == self._node_id or (self._belongs(site) and self._base.links[site].up)
        if not state.report.follows or not heard:
            return False
        return self._silence_us(state, now) > self._dead_after_us

    def _silence_us(self, state: JudgedReplica, now: int) -> int:
        """Return how long a worker has not reported, at most since this node watches it."""
        return now - (state.heard_at or self._watched_since or now)

    def status(self, now: int, *, tables: bool = False) -> list[dict[str, Any]]:
        """Return one line per replica for status; `tables`: with its tables."""
        lines = []
        for state in self.states():
            report, comparison = state.report, state.comparison
            age_us = now - state.heard_at if state.heard_at else None
            lines.append(
                {
                    "worker_id": report.worker_id,
                    "node_id": report.node_id,
                    "position": report.position,
                    "chain_hash": report.chain_hash,
                    "verdict": comparison.verdict.value,
                    "reason": comparison.reason,
                    "contested": state.contested,
                    "age_s": None if age_us is None else round(age_us / 1e6, 3),
                    "alive": age_us is not None and age_us <= self._dead_after_us,
                    "silent": self._is_silent(state, now),
                    "error": report.error,
                    "engine": report.engine,
                    "table_count": len(report.tables),
                    "batch": None if report.batch is None else asdict(report.batch),
                    **({"tables": _tables_of(report)} if tables else {}),
                }
            )
        return lines


def _at_most(positions: Mapping[str, int], sites: int) -> int:
    """Return the position that so many sites have reached, 0 = there are fewer sites."""
    found, number = sorted(positions.values(), reverse=True), max(sites, 1)
    return found[number - 1] if len(found) >= number else 0


def _tables_of(report: WorkerReport) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "version": table.version,
            "signature": table.signature.to_text(),
            "schema": table.schema,
            "diverged": table.diverged,
        }
        for name, table in sorted(report.tables.items())
    }


def _replica(report: WorkerReport) -> str:
    """Return a name for the tables of a report, which changes with a copy or a new lake."""
    return f"{report.worker_id} {report.copied_from}"


def _origin(copied_from: str) -> tuple[str, int]:
    """Return site and position that a replica was copied from; ("", 0) = never copied."""
    donor, _, rest = copied_from.rpartition("@")
    position = rest.partition("/")[0]
    return (donor, int(position)) if donor and position.isdecimal() else ("", 0)


def _same_verdict(one: Comparison, other: Comparison) -> bool:
    return (one.verdict, one.contest is None) == (other.verdict, other.contest is None)


def _same_tables(one: WorkerReport, other: WorkerReport) -> bool:
    """Return whether two reports of a site have the same Delta tables in the same versions."""
    return (one.worker_id, one.copied_from) == (other.worker_id, other.copied_from)
