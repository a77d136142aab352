"""Runs the core: the cycle is the one task that calls it.

The cycle passes all waiting events to the core in one call, and appends the core's actions to the
executor's stream.  It goes on while a write is in flight.  Single transactions gather until the
writer is free and then become one run (group commit, P1b).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from sparktxlog.codec.containers.assembly import assemble_run
from sparktxlog.codec.containers.payload import (
    checked_manifest,
    digest_of,
    encode_payload,
    split_payload,
)
from sparktxlog.codec.submits.known_contents import Content
from sparktxlog.codec.submits.transactions import PreparedTransaction
from sparktxlog.errors import BusyError, TxLogError
from sparktxlog.model.tables.groups import CopiesNeeded
from sparktxlog.model.transactions.operation import Acceptance, RunFacts, RunManifest
from sparktxlog.protocol.messages.actions import Action, Alarm, PersistForeignRun
from sparktxlog.protocol.messages.events import Event, PayloadArrived, Rested, RunSubmitted, Tick
from sparktxlog.protocol.messages.view import View
from sparktxlog.runtime.audit_trail import AuditTrail
from sparktxlog.runtime.clock import wall_us
from sparktxlog.runtime.commit.executor import Executor
from sparktxlog.runtime.commit.holdings import Holdings, OwnRun
from sparktxlog.runtime.commit.receipts import Receipts, Submission
from sparktxlog.runtime.commit_tables.rival_commits import RivalCommits
from sparktxlog.runtime.donors.copy_throttle import CopyThrottle
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.replicas.judged_replicas import Replicas
from sparktxlog.runtime.tokens.place_owners import PlaceOwners
from sparktxlog.storage.interfaces import INHERITED, OlderIdsFound

_log = structlog.get_logger("sparktxlog.cycle")

#: Most events that wait for the core; then submits are refused and messages dropped.
_MAX_EVENTS = 16_384
#: Most bytes of peers' payloads that wait for the core, and of durable payloads in memory.
_FOREIGN_BYTES = 128 << 20
_CACHE_BYTES = 16 << 20


@dataclass(slots=True, eq=False)
class _Single:
    """A transaction that waits to become part of a run."""

    transaction: PreparedTransaction
    #: What is known of its id; None = manifests of this wire version do not say it (P31).
    acceptance: Acceptance | None
    size_bytes: int
    #: How many holders its run needs; 0 = an ordinary one (P34).
    holders: int
    #: Copies that it needs of its groups; it is alone in its run then (P41).
    copies: tuple[CopiesNeeded, ...]
    alone: bool
    #: Commit tables that it brings files of: of each table one version, because the journal keeps
    #: one for a run.
    tables: frozenset[str]
    #: Some of these files travel by themselves: the run waits until peers have them.
    has_staged: bool
    opened: asyncio.Future[tuple[Submission, int]]


class FollowsCore(Protocol):
    """Follows the views of the core, and its end."""

    def is_busy(self) -> bool:
        """Return whether other work delays this node's answers."""

    def enter(self, view: View) -> None:
        """Follow a decided view, after it is durable and its actions were sent."""

    def halted(self, alarm: Alarm) -> None:
        """Note that the core takes no more part, and why."""


class Cycle:
    """Passes events to the core, its only caller, and the core's actions to the executor."""

    def __init__(
        self,
        base: Foundation,
        executor: Executor,
        holdings: Holdings,
        receipts: Receipts,
        rivals: RivalCommits,
    ) -> None:
        self._rivals = rivals
        config, master = base.config, base.master
        self._master = master
        self._executor = executor
        self._holdings = holdings
        self._receipts = receipts
        self._clock = base.clock
        self._traces = base.traces
        #: Most transactions, and bytes, of a run assembled here.
        self._run_limit = (config.run_limit_transactions, config.run_limit_bytes)
        self._id_window = config.id_window
        #: Ticket of the last run; greater than every ticket of recovered announcements.
        inherited = int(base.state.values.get(INHERITED, 0))
        tickets = (run.ticket for run in base.state.core.announcements)
        self._ticket = max((inherited, *tickets))
        self._delivery: FollowsCore | None = None
        self._view = master.view
        self._events: deque[Event] = deque()
        self._singles: deque[_Single] = deque()
        self._waiting: dict[bytes, _Single] = {}
        self._wake = asyncio.Event()
        #: When the core wants its next tick; the alarm, if it is set, rings then or before.
        self._deadline: int | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._rings_at = 0
        #: Set when the core has halted; reads go on.
        self.halted: Alarm | None = None

    # -- input -------------------------------------------------------------------------------------

    def tell(self, event: Event) -> bool:
        """Queue an event for the core; False if the queue is full and it was dropped."""
        if len(self._events) >= _MAX_EVENTS:
            return False
        self.tell_always(event)
        return True

    def tell_always(self, event: Event) -> None:
        """Queue an event that the core must not miss; the core bounds the number of these."""
        self._events.append(event)
        self._wake.set()

    def accept_run(
        self, manifest: RunManifest, payload: bytes, acceptance: Acceptance | None, holders: int
    ) -> Submission:
        """Pass a client's run to the core, with what is known of its ids.

        Args:
            manifest: With what it needs of groups (P41).
            payload: Its container; the sections count.
            holders: See `RunManifest.holders`.

        Raises:
            BusyError: The core's queue is full (definite).
        """
        manifest = replace(manifest, acceptance=acceptance, holders=holders)
        if holders or manifest.copies:  # how long it may wait goes by this node's clock
            manifest = replace(manifest, submitted_at=wall_us())
        payload = encode_payload(manifest, split_payload(payload)[1])
        return self._submit_run(manifest, payload, singles=False)

    def acceptance(self, ids: bytes, older: OlderIdsFound) -> Acceptance:
        """Return what memory and files know of the ids; together they must cover all positions.

        Args:
            older: What was found among ids older than the core's memory.

        Raises:
            BusyError: Memory moved on too far (definite).
        """
        known = self._master.acceptance(ids)
        if older.end < known.position - self._id_window:
            raise BusyError("ids of old transactions are being written", hint="Try again soon.")
        if not older.found:
            return known
        repeats = dict(known.repeats) | {index: at for index, (at, _) in older.found.items()}
        return replace(known, repeats=tuple(sorted(repeats.items())))

    def _submit_run(self, manifest: RunManifest, payload: bytes, *, singles: bool) -> Submission:
        if len(self._events) >= _MAX_EVENTS:
            raise BusyError("too many events wait for the core", hint="Try again soon.")
        self._ticket += 1
        ticket, digest = self._ticket, digest_of(payload)
        self._holdings.put_own(
            ticket, OwnRun(digest=digest, payload=payload, session=manifest.session)
        )
        submission = self._receipts.open(
            ticket,
            manifest.ids,
            singles=singles,
            holders=manifest.holders,
            digests=manifest.content_digests,
        )
        self.tell(
            RunSubmitted(
                ticket=ticket,
                digest=digest,
                size_bytes=len(payload),
                staged_bytes=manifest.staged_bytes,
                facts=RunFacts.of(manifest),
                session=manifest.session,
                submitted_at=manifest.submitted_at,
                stands_alone=manifest.stands_alone,
            )
        )
        return submission

    def submit_single(
        self,
        transaction: PreparedTransaction,
        acceptance: Acceptance | None,
        holders: int,
        content: Content | None = None,
        copies: tuple[CopiesNeeded, ...] = (),
    ) -> asyncio.Future[tuple[Submission, int]]:
        """Add a transaction to the next run; return the run and its index there, once it is made.

        Another submit of the same id gets the same future, so none may be cancelled.

        Args:
            acceptance: What is known of its id.
            holders: See `RunManifest.holders`.
            content: Of the transaction; None = it is compared with none that waits.
            copies: See `RunManifest.copies`.

        Raises:
            BusyError: Too many transactions wait (definite).
            IdTakenError: One with the same id and other content waits (definite).
        """
        single = self._waiting.get(transaction.transaction_id)
        if single is None:
            if len(self._singles) >= _MAX_EVENTS:
                raise BusyError("too many transactions wait", hint="Try again soon.")
            single = self._queue_single(transaction, acceptance, holders, copies)
        elif content is not None:
            content.check(Content(single.transaction))
        return single.opened

    def _queue_single(
        self,
        transaction: PreparedTransaction,
        acceptance: Acceptance | None,
        holders: int,
        copies: tuple[CopiesNeeded, ...],
    ) -> _Single:
        operations, files = transaction.operations, transaction.commit_files
        single = _Single(
            transaction=transaction,
            acceptance=acceptance,
            size_bytes=sum(o.rows.nbytes for o in operations if o.rows is not None)
            + sum(file.size_bytes for file in files),
            holders=holders,
            copies=copies,
            alone=transaction.session is not None
            or bool(transaction.participants)
            or any(o.files for o in operations),
            tables=frozenset(one.uuid for one in transaction.commits if files),
            has_staged=len(files) > len(transaction.contents),
            opened=asyncio.get_running_loop().create_future(),
        )
        self._singles.append(single)
        self._waiting[transaction.transaction_id] = single
        self._wake.set()
        return single

    @property
    def gathered_runs(self) -> int:
        """How many runs were accepted that the core has not seen yet; single ones become one."""
        told = sum(isinstance(event, RunSubmitted) for event in self._events)
        return told + bool(self._singles)

    def writer_is_free(self) -> None:
        """Wake the cycle: gathered transactions may become a run now."""
        if self._singles:
            self._wake.set()

    def look_for_rest(self) -> None:
        """Wake the cycle if the core waits for a moment of rest, and this may be one."""
        if self._master.wants_rest and self._is_at_rest():
            self._wake.set()

    def _is_at_rest(self) -> bool:
        executor = self._executor
        busy = self._delivery is not None and self._delivery.is_busy()
        return not (self._singles or executor.writing or executor.depth or busy)

    # -- the task ----------------------------------------------------------------------------------

    async def run(self, delivery: FollowsCore) -> None:
        """Work until cancelled.

        Raises:
            InvariantViolation: A bug or a damaged disk; the node must stop.
        """
        self._delivery = delivery
        self._deadline = self._master.next_deadline()
        self._wake.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self.halted is not None:
                self._events.clear()
                continue
            if self._singles and not self._executor.writing:
                self._assemble()
            self._turn()

    def _turn(self) -> None:
        now = self._clock.now()
        if self._deadline is not None and self._deadline <= now:
            self._events.append(Tick())
        if self._master.wants_rest and self._is_at_rest():
            self._events.append(Rested())
        if self._events:
            events = list(self._events)
            self._events.clear()
            if self._traces is not None:
                self._traces.saw(events)
            actions = self._master.handle_all(events, now, self._clock.wall())
            self._sort_arrived(events, actions)
            self._executor.put(actions)
            if self._master.view is not self._view:
                self._enter(self._master.view)
            for action in actions:
                if isinstance(action, Alarm):
                    self.raise_alarm(action)
        self._set_timer()
        self.look_for_rest()

    def _enter(self, view: View) -> None:
        """Apply a new view to the node, after the actions that came with it."""
        self._view = view
        delivery = self._delivery
        assert delivery is not None, "only `run` enters views"
        self._executor.write_then((), lambda: delivery.enter(view))

    def _set_timer(self) -> None:
        deadline = self._deadline = self._master.next_deadline()
        if deadline is None:
            return
        if self._alarm is not None:
            if self._rings_at <= deadline:
                return  # it is set again when it rings: the deadline moves with each message
            self._alarm.cancel()
        delay, self._rings_at = self._clock.seconds_until(deadline), deadline
        self._alarm = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._wake.set()

    def _sort_arrived(self, events: Sequence[Event], actions: Sequence[Action]) -> None:
        """Keep the payloads that the core asks for; drop those that it has or does not want."""
        for action in actions:
            if isinstance(action, PersistForeignRun):
                self._holdings.foreign_wanted(action.header)
        for event in events:
            if isinstance(event, PayloadArrived):
                self._holdings.foreign_refused(event.header)

    def raise_alarm(self, alarm: Alarm) -> None:
        """Log an alarm; after a fatal one the node takes no more part."""
        (_log.critical if alarm.fatal else _log.warning)("alarm", code=alarm.code, text=alarm.text)
        if alarm.fatal and self.halted is None:
            self.halted = alarm
            _log.critical("this node has halted", code=alarm.code, reason=alarm.text)
            if self._delivery is not None:
                self._delivery.halted(alarm)

    # -- group commit ------------------------------------------------------------------------------

    def _assemble(self) -> None:
        """Make runs of all waiting transactions; those of one run need as many holders (P34)."""
        awaiting = self._set_apart()
        while self._singles:
            group = [self._singles.popleft()]
            size = group[0].size_bytes
            most, most_bytes = self._run_limit
            tables, passed_over = set(group[0].tables), list[_Single]()
            while not group[0].alone and self._singles and len(group) < most:
                following = self._singles[0]
                if following.alone:
                    break
                if _kind(following) != _kind(group[0]) or tables & following.tables:
                    passed_over.append(self._singles.popleft())
                    continue
                size += following.size_bytes
                if size > most_bytes:
                    break
                group.append(self._singles.popleft())
                tables |= following.tables
            self._singles.extendleft(reversed(passed_over))
            self._open(group)
        self._singles.extend(awaiting)

    def _set_apart(self) -> list[_Single]:
        """Return commits that wait for those of other sites; refuse those whose version is taken.

        A transaction that does other things too is refused where it is ordered.  One of a session
        does not wait: what the session submits later would come before it (P1a).
        """
        if not any(single.tables for single in self._singles):
            return []
        singles, awaiting = list(self._singles), list[_Single]()
        self._singles.clear()
        for single in singles:
            transaction = single.transaction
            is_one = len(transaction.commits) == 1 and not transaction.operations
            lost = self._rivals.lost_to(transaction.commits) if is_one else None
            if lost is not None and not self._may_be_ordered(transaction.transaction_id):
                del self._waiting[transaction.transaction_id]
                if not single.opened.done():
                    single.opened.set_exception(lost)
            elif not single.alone and any(self._rivals.is_awaited(one) for one in single.tables):
                awaiting.append(single)
            else:
                self._singles.append(single)
        return awaiting

    def _may_be_ordered(self, transaction_id: bytes) -> bool:
        """Return whether a transaction came another way meanwhile: then it is a repeat that won."""
        return bool(self._master.acceptance(transaction_id).repeats)

    def _open(self, group: list[_Single]) -> None:
        for single in group:
            del self._waiting[single.transaction.transaction_id]
        try:
            manifest, payload = assemble_run(
                [single.transaction for single in group],
                wall_us(),
                acceptance=_together([single.acceptance for single in group]),
                holders=group[0].holders,
                copies=group[0].copies,
            )
            submission = self._submit_run(manifest, payload, singles=True)
        except TxLogError as error:
            for single in group:
                if not single.opened.done():
                    single.opened.set_exception(error)
            return
        for index, single in enumerate(group):
            if not single.opened.done():
                single.opened.set_result((submission, index))

    def fail_waiting(self, error: TxLogError) -> None:
        """Refuse the transactions that wait to become a run; nothing of them happened."""
        while self._singles:
            single = self._singles.popleft()
            del self._waiting[single.transaction.transaction_id]
            if not single.opened.done():
                single.opened.set_exception(error)


def _kind(single: _Single) -> tuple[int, bool, bool]:
    """Return what is equal for all transactions of a run."""
    return single.holders, bool(single.tables), single.has_staged


def _together(found: Sequence[Acceptance | None]) -> Acceptance | None:
    """Return what is known of the ids of a run, each of which was looked up at its own time."""
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    oldest = min(known, key=lambda one: one.position)
    repeats = ((index, at) for index, one in enumerate(known) for _, at in one.repeats)
    return replace(oldest, repeats=tuple(repeats))


class CoreLoop:
    """The core with its executor and receipts; it also follows unstamped runs of earlier starts.

    **After calling** the constructor: run `executor.run` and `cycle.run`, and `close` in the end.
    """

    def __init__(self, base: Foundation, replicas: Replicas, throttle: CopyThrottle) -> None:
        self.holdings = Holdings(foreign_limit_bytes=_FOREIGN_BYTES, cache_limit_bytes=_CACHE_BYTES)
        observe = base.metrics.commit_seconds.observe
        self.receipts = Receipts(replicas.applied, throttle.busy, replicas.passed, observe)
        self.executor = Executor(base.journal, self.holdings, node_id=base.config.node_id)
        self.executor.make_room = base.reserve.take
        #: Acts and refusals here.
        self.audit = AuditTrail(
            base.config.node_id, base.state.values, base.master.view, self.executor.write_then
        )
        self.executor.writes_with = self.audit.writes_with
        #: Owners of the places where clients stage.
        self.owners = PlaceOwners(base.state.values, self.executor)
        if base.traces is not None:
            self.executor.on_held = base.traces.held
        self.rivals = RivalCommits(base.config.node_id, base.master.commit_tables, base.loop.time)
        self.cycle = Cycle(base, self.executor, self.holdings, self.receipts, self.rivals)
        for run in base.state.core.announcements:
            own = OwnRun(digest=run.digest, payload=None, session=run.session)
            self.holdings.put_own(run.ticket, own)
            payload = base.journal.read_announced(run.digest)
            self.receipts.open(
                run.ticket,
                run.facts.ids,
                singles=run.facts.n == 1,
                holders=run.facts.holders,
                digests=b"" if payload is None else checked_manifest(payload).content_digests,
            )
            self.receipts.accepted(run.ticket, None)

    def close(self) -> None:
        """Wait for the write in flight and stop the writer."""
        self.executor.close()
