"""Replicas: reports of workers, which ones are alive, and verdicts on them (S2a, S3, P24).

Reports of the own site come from its worker, those of other sites with their nodes' posts.  Each is
judged by the log (`comparison`) and by the reports of other sites for the same positions
(`opinions`); the order of arrival does not matter.  So a report may change the verdict on another
replica; `turned` returns such changes.

A site may have several replicas, each with a name and perhaps a set of tables (`model.replicas`).
What is kept of the own ones over a restart is in `own_replica`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

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
from sparktxlog.errors import DivergedError, ExpiredError, NotFoundError
from sparktxlog.model.answers import Difference
from sparktxlog.model.replicas import (
    MAIN,
    MOST_REPLICAS,
    holds,
    name_of,
    replica_id,
    site_of,
)
from sparktxlog.model.report import Recount, ReplicaVerdict, WorkerReport
from sparktxlog.model.restore_point import RESTORE_POINTS, points_in
from sparktxlog.model.status_words import difference_text
from sparktxlog.model.tables.groups import not_held
from sparktxlog.model.tables.table import Tables
from sparktxlog.model.transactions.receipt import Appliers
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.replicas.own_replica import (
    HISTORY,
    OwnReplica,
    registered,
)
from sparktxlog.runtime.replicas.table_sets import TableSets
from sparktxlog.storage.interfaces import Write

_log = structlog.get_logger("sparktxlog.replicas")

#: Log time for which replicas differ before they are recounted, microseconds: a third site may
#: decide meanwhile, and a full scan is expensive.
RECOUNT_AFTER_US = 10_000_000
#: Tables that a warning names.
_NAMED = 5


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


class _Passed(NamedTuple):
    """How far a site is."""

    position: int
    #: Its replicas that count.
    states: tuple[JudgedReplica, ...]


class Replicas:
    """All replicas known here."""

    def __init__(self, base: Foundation) -> None:
        self._base = base
        self._node_id = base.config.node_id
        #: Silence after which a worker counts as dead.
        self._dead_after_us = int(base.config.worker_dead_after * 1_000_000)
        #: Replica, as `model.replicas` names it, → what is known of it; a copied lake gives two
        #: replicas one worker id.
        self._states: dict[str, JudgedReplica] = {}
        #: Log time of the first check for silent workers; earlier reports count from there.
        self._watched_since = 0
        #: Own replicas whose workers were reported as silent.
        self._silent: set[str] = set()
        self._opinions = Opinions(HISTORY, self._pinned, self._may_have)
        #: Name → what is kept of that replica of this site.
        self._own: dict[str, OwnReplica] = {}
        #: Name → lake of each registered replica of this site, as its worker named it; the main
        #: one's is the node's own.
        self.lakes: dict[str, str] = {}
        #: Those of them that peers hear of: they are kept durably, or were until now.
        self._said = set(registered(base.state.values))
        #: Site → names of its replicas for which there is no place here.
        self._left_out: dict[str, set[str]] = {}
        self.sets = TableSets(lambda: Tables.of(base.master.tables))
        self._turned = Turned()
        #: Newest known log time, microseconds.
        self._now = 0
        self._restore(base.state.values)

    def _restore(self, saved: Mapping[str, bytes]) -> None:
        for name, lake in {MAIN: "", **registered(saved)}.items():
            own = self._own[name] = OwnReplica(name, saved)
            if lake:
                self.lakes[name] = lake
            for opinion in own.evidence:
                self._opinions.add(opinion)
            for report in own.former:
                self._record(report)
        for own in self._own.values():
            if (newest := own.newest) is None:
                continue
            report = own.recounts.amend(newest)
            base = self._compare(report)
            self._states[report.replica] = JudgedReplica(
                report=report, newest=newest, comparison=base, base=base, heard_at=0
            )
            self._judge_all(report.replica)

    def _own_replica(self, name: str) -> OwnReplica:
        """Return what is kept of a replica of this site, from its first report on."""
        if name not in self._own:
            self._own[name] = OwnReplica(name, {})
        return self._own[name]

    # -- reports -----------------------------------------------------------------------------------

    def accept(self, report: WorkerReport, now: int) -> tuple[Comparison, bool, list[Write]]:
        """Judge a report; return the verdict, whether its state is new, and what to keep of it.

        **After calling**: what it made of other replicas is in `turned`.
        """
        own, newest = report.node_id == self._node_id, report
        if own:
            report = self._own_replica(report.name).recounts.amend(report)
        self._now = max(self._now, now)
        known = self._states.get(report.replica)
        if known is not None and known.report.worker_id != report.worker_id:
            known = None  # an earlier worker: a lake has one replica
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
        state = self._states[report.replica] = JudgedReplica(
            report=report, newest=newest, comparison=base, base=base, heard_at=now
        )
        if known is not None:
            # Compared with the report that was passed on before.
            state.comparison, state.contested_at = known.comparison, known.contested_at
        self._judge_all(report.replica)
        comparison = state.comparison
        # The same state may be judged again: a replica AHEAD of this node is IN_SYNC later.
        changed = changed or known is None or not _same_verdict(known.comparison, comparison)
        self._tell(state, known)
        writes: list[Write] = []
        if changed and own and comparison.verdict is ReplicaVerdict.IN_SYNC:
            writes = self._keep_batch(report)
        if own and report.follows != (known is not None and known.report.follows):
            writes.append(self._own_replica(report.name).keep_follows(report))
        return comparison, changed, writes

    def turned(self) -> Turned:
        """Return the other replicas whose verdict changed since the last call."""
        turned, self._turned = self._turned, Turned()
        # One may have changed twice, or be of an earlier worker.
        replicas = dict.fromkeys(state.report.replica for state in turned.states)
        turned.states = [self._states[one] for one in replicas if one in self._states]
        return turned

    def take_recount(self, recount: Recount) -> list[Write]:
        """Add the result of a full scan of one of this site's; return the writes that keep it.

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
        state = self.own(recount.worker_id)
        name = MAIN if state is None else state.report.name
        return self._own_replica(name).recounts.take(recount)

    def recount_due(self, name: str = MAIN) -> list[str]:
        """Return tables that an own worker must recount: replicas differ (S3), or it was asked."""
        state = self.named(name)
        if state is None:
            return []
        recounts, contest = self._own_replica(name).recounts, state.comparison.contest
        due = sorted(recounts.asked & state.report.tables.keys())
        if contest is None or self._now - state.contested_at < RECOUNT_AFTER_US:
            return due
        found = recounts.uncounted(state.report, contest.tables, contest.position)
        return [*found, *(one for one in due if one not in found)]

    def ask_recount(self, name: str, tables: Sequence[str], now: int) -> tuple[str, list[str]]:
        """Have a worker of this site recount tables once its next report comes.

        Args:
            name: Of the replica.
            tables: Names of the log.

        Returns:
            The worker, and all tables that it is asked for.

        Raises:
            NotFoundError: No worker follows for the replica, or it has not such a table (definite).
        """
        state = self.named(name)
        if state is None or not state.report.follows or self._is_silent(state, now):
            raise NotFoundError(
                f"no worker follows the log for replica {name[:80]!r} of this site",
                hint="`sparktxlog apply --follow` starts one; `sparktxlog verify` counts without.",
                replica=name[:80],
            )
        missing = [table for table in tables if table not in state.report.tables]
        if missing:
            raise NotFoundError(
                f"replica {name!r} of this site has no table {missing[0][:140]!r}",
                hint="It may not be applied here yet: `sparktxlog status` says how far it is.",
                table=missing[0][:140],
            )
        asked = self._own_replica(name).recounts.asked
        asked.update(tables)
        return state.report.worker_id, sorted(asked)

    def counted_at(self, replica: str, table: str) -> int | None:
        """Return where an own replica's table was recounted last; None = not since the start."""
        own = self._own.get(name_of(replica)) if site_of(replica) == self._node_id else None
        return None if own is None else own.recounts.counted_at(table)

    def _judge_all(self, accepted: str = "") -> None:
        """Judge all replicas again by the opinions of all sites; note changed verdicts."""
        sound: dict[str, str] = {}
        for site, state in self._states.items():
            until = state.report.position
            state.conviction = self._opinions.conviction(site, _replica(state.report), until)
            usable = state.base.verdict in (ReplicaVerdict.IN_SYNC, ReplicaVerdict.AHEAD)
            if usable and state.conviction is None and self._belongs(site_of(site)):
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
            if site_of(site) == self._node_id and state.conviction is not None:
                evidence = self._opinions.at(state.conviction.position)
                self._turned.writes += self._own_replica(name_of(site)).keep_evidence(evidence)

    def _note_turned(self, state: JudgedReplica, before: Comparison) -> None:
        self._turned.states.append(state)
        self._tell(state, replace(state, comparison=before))
        if state.report.node_id != self._node_id or before.verdict is state.comparison.verdict:
            return
        if state.comparison.verdict is ReplicaVerdict.IN_SYNC:
            self._turned.writes += self._keep_batch(state.report)

    def _may_have(self, replica: str, table: str) -> bool:
        """Return whether a replica's site holds the rows of a table (P41)."""
        return self.sets.may_have(site_of(replica), table)

    def _belongs(self, site: str) -> bool:
        """Whether a site still belongs to the cluster."""
        return site == self._node_id or site in self._base.links

    def _pinned(self) -> set[int]:
        """Return the positions whose opinions verdicts depend on."""
        found = [state.conviction for state in self._states.values()]
        found += [state.comparison.contest for state in self._states.values()]
        return {dissent.position for dissent in found if dissent is not None}

    def _keep_batch(self, report: WorkerReport) -> list[Write]:
        table = self._base.master.tables.get(RESTORE_POINTS)
        named = () if table is None else points_in(dict(table.properties))
        return self._own_replica(report.name).keep_batch(
            report, {point.position for point in named}
        )

    def _record(self, report: WorkerReport) -> None:
        signatures = recordable(report)
        if signatures is not None:
            donor, copied_at = report.copy_origin
            self._opinions.add(
                Opinion(
                    site=report.replica,
                    replica=_replica(report),
                    position=report.position,
                    chain_hash=report.chain_hash,
                    signatures=signatures,
                    donor=donor,
                    copied_at=copied_at,
                    only=report.only,
                )
            )

    def _compare(self, report: WorkerReport) -> Comparison:
        base, own = self._base, self._own.get(report.name)
        if report.node_id != self._node_id:
            own = None
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
                recounted=() if own is None else own.recounts.wrong(report),
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
            site=report.replica,
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
            site = state.report.replica
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

    def applied(self, sites: Appliers) -> int:
        """Return the position that the own site, or so many equal sites, have applied.

        Of a group only its sites count.

        A site has applied what one of its replicas has that holds all tables, or what all of them
        have that hold a set of tables, if these sets leave out none.  Replicas that differ count
        together up to the last position where they were equal.  Followers count only for
        themselves: nobody relies on them (P38).
        """
        return self._least(sites, still=False)

    def passed(self, sites: Appliers) -> int:
        """Return the same; sites that have passed it while tables there stand still count, too."""
        return self._least(sites, still=True)

    def passed_by(self, position: int, sites: Appliers) -> dict[str, dict[str, str]]:
        """Return the sites that count for `passed` at a position: table that stands still → why."""
        return {
            site: {
                name: table.diverged
                for state in passed.states
                for name, table in state.report.tables.items()
                if table.diverged
            }
            for site, passed in self._positions(sites, still=True).items()
            if passed.position >= position
        }

    def _least(self, sites: Appliers, *, still: bool) -> int:
        passed = self._positions(sites, still=still)
        return sites.reached({site: one.position for site, one in passed.items()})

    def _positions(self, sites: Appliers, *, still: bool) -> dict[str, _Passed]:
        """Return site → how far it is, by the replicas that count.

        Args:
            still: Also those in which some tables stand still.
        """
        whole: dict[str, _Passed] = {}
        parts: dict[str, list[_Passed]] = {}
        view, own = self._base.master.view, sites.own
        for state in self._states.values():
            report, comparison, site = state.report, state.comparison, state.report.node_id
            if site != self._node_id and (own or view.follows(site)):
                continue
            in_sync = comparison.verdict is ReplicaVerdict.IN_SYNC
            position = report.position
            if not (in_sync or (still and comparison.cause in OF_TABLES)):
                position = -1
            elif not own and comparison.contest is not None:
                position = comparison.contest.equal_to
            found = _Passed(position, (state,))
            if report.only:
                parts.setdefault(site, []).append(found)
            elif position > (whole[site].position if site in whole else -1):
                whole[site] = found
        for site, of_parts in parts.items():
            least = min(one.position for one in of_parts)
            if least <= (whole[site].position if site in whole else -1):
                continue
            states = tuple(state for one in of_parts for state in one.states)
            if not self.sets.leave_out((state.report.only for state in states), site):
                whole[site] = _Passed(least, states)
        return whole

    # -- the replicas of a site --------------------------------------------------------------------

    def forget(self, site: str) -> None:
        """Forget the replicas of a site that returned with another disk (P21)."""
        self.keep_only(site, ())

    def keep_only(self, site: str, names: Iterable[str]) -> bool:
        """Forget the replicas of a site but these; return whether there were others."""
        self._left_out[site] = self._left_out.get(site, set()).intersection(names)
        gone = [one for one in self._states if site_of(one) == site and name_of(one) not in names]
        for one in gone:
            del self._states[one]
        return bool(gone)

    def has_room(self, report: WorkerReport) -> bool:
        """Return whether a report is of a known replica, or its site may have one more.

        One without a place is not known here, which a warning says.
        """
        known = [one for one in self._states if site_of(one) == report.node_id]
        has_room = report.replica in self._states or len(known) < MOST_REPLICAS
        left_out = self._left_out.setdefault(report.node_id, set())
        if has_room:
            left_out.discard(report.name)
        elif len(left_out) < MOST_REPLICAS:
            left_out.add(report.name)
        return has_room

    def register(self, name: str, lake: str) -> list[Write]:
        """Note the lake of a replica of this site; return the writes that keep it.

        **After calling**: `registered`, once they are durable.
        """
        if self.lakes.get(name) == lake:
            return []
        self.lakes[name] = lake
        return self._own_replica(name).keep_lake(lake)

    def unregister(self, name: str) -> list[Write]:
        """Forget a replica of this site; return the writes that remove what is kept of it.

        **After calling**: `unregistered`, once they are durable.
        """
        self._said.update({name}.intersection(self.names()))
        self.lakes.pop(name, None)
        self._states.pop(replica_id(self._node_id, name), None)
        own = self._own.pop(name, None)
        return [] if own is None else own.forget()

    def registered(self, name: str) -> None:
        """Let peers hear of a replica of this site that is registered durably."""
        if name in self.lakes:
            self._said.add(name)

    def unregistered(self, name: str) -> None:
        """Let peers hear no more of a replica of this site, unless it is registered again."""
        self._said.discard(name)

    def names(self) -> tuple[str, ...]:
        """Return the names of this site's replicas that peers may hear of, ascending."""
        return tuple(sorted(self._said | {MAIN}.intersection(self._own)))

    def states(self) -> list[JudgedReplica]:
        """Return the newest state of each replica, by site and name."""
        return [state for _, state in sorted(self._states.items())]

    def of_own_site(self) -> list[JudgedReplica]:
        """Return those of this site's replicas, the main one first."""
        return [state for state in self.states() if state.report.node_id == self._node_id]

    def own(self, worker_id: str | None = None) -> JudgedReplica | None:
        """Return the state of this site's replica that the worker named is the newest one of.

        Args:
            worker_id: None: of the main replica, else of the first one.
        """
        found = self.of_own_site()
        return next((s for s in found if worker_id in (None, s.report.worker_id)), None)

    def named(self, name: str) -> JudgedReplica | None:
        """Return the state of a replica of this site, None = it has not reported."""
        return self._states.get(replica_id(self._node_id, name))

    def state(self, replica: str) -> JudgedReplica:
        """Return the newest state of a replica, whose worker has reported."""
        return self._states[replica]

    def latest_own(self, now: int) -> list[WorkerReport]:
        """Return the newest reports of this site's workers, with their age, for a new peer."""
        return [
            replace(own.report, age_us=now - own.heard_at if own.heard_at else -1)
            for own in self.of_own_site()
            if own.report.name in self.names()
        ]

    def history(self, after: int, limit: int, name: str = MAIN) -> list[WorkerReport]:
        """Return an own replica's known states after a position, ascending, at most `limit`."""
        own = self._own.get(name)
        return [] if own is None else list(own.history(after, limit))

    def snapshot(self, position: int | None, name: str = MAIN) -> WorkerReport | None:
        """Return an own replica's report at a position, or its newest one."""
        kept = self._own.get(name)
        if kept is None:
            return None
        if position is not None and (found := kept.at(position)) is not None:
            return found
        own = self.named(name)
        # A report with tables that stand still is not kept with those that are what the log says.
        still = own is not None and own.comparison.cause in OF_TABLES
        if own is not None and still and position in (None, own.report.position):
            return own.report
        return None if position is not None else kept.last()

    def readable(self, table: str = "") -> list[str]:
        """Return the names of this site's replicas to read a table from, best first.

        Those that can be shown come first, then those in which it does not stand still, then the
        most current one.

        Args:
            table: Empty = all tables: replicas with a set only where no other one has applied any.

        Raises:
            NotHeldHereError: Other sites hold the rows of the table (definite).
        """
        if table and not self._base.holds(table):
            raise not_held(table, self.sets.sites(table))
        found = [s for s in self.of_own_site() if not table or holds(s.report.only, table)]
        whole = [s for s in found if not s.report.only and s.report.position > 0]
        found = found if table or not whole else whole
        if len(found) <= 1:
            return [found[0].report.name if found else MAIN]
        definition = Tables.of(self._base.master.tables).alike(table)
        name = table if definition is None else definition.name

        def order(state: JudgedReplica) -> tuple[bool, bool, int]:
            report, own = state.report, state.report.name
            shown = self.applied_by(own) > 0 and self.snapshot(None, own) is not None
            of_it = [report.tables.get(name)] if table else list(report.tables.values())
            still = any(one is not None and bool(one.diverged) for one in of_it)
            return not shown, still, -report.position

        return [state.report.name for state in sorted(found, key=order)]

    def applied_by(self, name: str) -> int:
        """Return the position up to which tables of an own replica can be read."""
        state = self.named(name)
        if state is None:
            return 0
        in_sync = state.comparison.verdict is ReplicaVerdict.IN_SYNC
        return state.report.position if in_sync or state.comparison.cause in OF_TABLES else 0

    def refuse_diverged(self, name: str = MAIN) -> None:
        """Refuse to show an own replica that differs from the log.

        One that says which tables differ is shown: readers of these tables are informed.

        Raises:
            DivergedError: With the reason, such as the version of another writer (definite).
        """
        own = self.named(name)
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
            replica: state
            for replica, state in self._states.items()
            if site_of(replica) == self._node_id and self._is_silent(state, now)
        }
        new = [found[replica] for replica in sorted(found.keys() - self._silent)]
        for replica in sorted(self._silent - found.keys()):
            _log.info("worker heard again", site=replica)
        self._silent = set(found)
        for state in new:
            _log.error(
                "worker silent",
                worker=state.report.worker_id,
                site=state.report.replica,
                position=state.report.position,
                silent_for_s=self.silence_us(state, now) / 1e6,
                last_error=state.report.error,
            )
        return [state.report for state in new]

    def warnings(self, now: int) -> list[dict[str, str]]:
        """Return warnings about workers, for status."""
        found = []
        for state in self.states():
            report = state.report
            name = f"worker {_worker(report)} of site {report.node_id}"
            if self._is_silent(state, now):
                silence_s = self.silence_us(state, now) / 1e6
                said = f"{name} has been silent for {silence_s:,.1f} s and did not end"
                if report.error:
                    said += f"; its last error: {report.error}"
                found.append({"code": "worker-silent", "text": said})
            elif report.error:
                found.append({"code": "worker-error", "text": f"{name}: {report.error}"})
        for site, names in sorted(self._left_out.items()):
            if names and self._belongs(site):
                text = (
                    f"site {site} has more than {MOST_REPLICAS} replicas: "
                    f"{', '.join(sorted(names))} are not known here, and hold no log here"
                )
                found.append({"code": "replicas-not-known", "text": text})
        return [*found, *self._warnings_of_sets()]

    def _warnings_of_sets(self) -> list[dict[str, str]]:
        """Return warnings about tables that no replica of this site holds, and idle patterns."""
        found, own = [], self.of_own_site()
        for state in own:
            idle = self.sets.idle_patterns(state.report.only) if state.report.only else []
            if idle:
                text = f"replica {state.report.replica} holds {', '.join(idle)}: no such table"
                found.append({"code": "pattern-matches-nothing", "text": text})
        sets = (state.report.only for state in own)
        left_out = self.sets.left_out(sets, self._node_id) if own else []
        if left_out:
            more = f" and {len(left_out) - _NAMED:,} more" if len(left_out) > _NAMED else ""
            text = (
                f"no replica of site {self._node_id} holds {', '.join(left_out[:_NAMED])}{more}: "
                "what is committed there is not applied at this site"
            )
            found.append({"code": "tables-not-held", "text": text})
        return found

    def _is_silent(self, state: JudgedReplica, now: int) -> bool:
        """Return whether a worker that should report does not.

        For a site that is not linked this is unknown.
        """
        site = state.report.node_id
        heard = site == self._node_id or (self._belongs(site) and self._base.links[site].up)
        if not state.report.follows or not heard:
            return False
        return self.silence_us(state, now) > self._dead_after_us

    def silence_us(self, state: JudgedReplica, now: int) -> int:
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
                    "name": report.name,
                    "only": list(report.only),
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
                    **({"tables": report.table_lines()} if tables else {}),
                    **self._lake_of(report),
                }
            )
        return lines

    def _lake_of(self, report: WorkerReport) -> dict[str, str]:
        lake = self.lakes.get(report.name) if report.node_id == self._node_id else None
        return {} if lake is None else {"lake": lake}


def _worker(report: WorkerReport) -> str:
    """Return how a worker is called at its site."""
    return report.worker_id if report.name == MAIN else f"{report.name} ({report.worker_id})"


def _replica(report: WorkerReport) -> str:
    """Return a name for the tables of a report, which changes with a copy or a new lake."""
    return f"{report.worker_id} {report.copied_from}"


def _same_verdict(one: Comparison, other: Comparison) -> bool:
    return (one.verdict, one.contest is None) == (other.verdict, other.contest is None)
