"""One replica's way back to the present, as a machine: events and time in, actions out.

    BASIC    applies what continues its position
    REQUEST  asks for what is missing before the head of the queue
    LOAD     backs up, asks for a grant, fetches chunks, restarts at the snapshot's position
    IDLE     stands still, with a reason, until a master is declared or an operator resumes it

What the log does not hold any more, and what would fail again, needs a copy; what failed on the
way is tried again with growing pauses, and then the replica goes idle.
What neither of them would change, a wrong token or a full disk, makes it idle at once.
Every remote task has a deadline that signs of life push on, so nothing waits for ever.
At any time `position` states what the tables hold.
"""

from __future__ import annotations

from enum import Enum
from typing import assert_never

from sparktxlog.catchup.phases import TRANSITIONS, Move, Phase
from sparktxlog.catchup.planner import Plan
from sparktxlog.catchup.ranges import PositionRange, RangeQueue
from sparktxlog.catchup.replica_events import (
    Applied,
    Apply,
    BackedUp,
    BackUp,
    ChunkWritten,
    Failed,
    Fault,
    FetchChunk,
    GoIdle,
    KeptAlive,
    LoadOffered,
    MasterDeclared,
    PlanTold,
    Received,
    ReplicaAction,
    ReplicaEvent,
    RequestLoad,
    RequestRange,
    Restart,
    Restarted,
    Resume,
    Tick,
)

__all__ = ["Phase", "ReplicaMachine"]


class _Task(Enum):
    """What is under way; at most one at a time."""

    APPLY = "apply"
    REQUEST = "request"
    BACK_UP = "back-up"
    ASK = "ask"
    FETCH = "fetch"
    RESTART = "restart"


#: Tasks of this machine itself: not interrupted, and answered for certain.
_LOCAL = frozenset({_Task.APPLY, _Task.BACK_UP, _Task.RESTART})


class ReplicaMachine:
    """State of one replica's catching up.

    Args:
        position: Applied position at start, ≥ 0.
        retries: Attempts after a first transport error.
        pause_s: Pause before the first of them; doubles.
        silence_s: A remote task without a sign of life for so long has failed.
        loads: Fresh requests for a grant in one LOAD, after chunks that failed.
        streams: Chunks fetched at once.
        queue_limit: Ranges that wait at most.

    **After calling** `handle`: carry the actions out in order, and send `Tick` when
    `next_deadline()` has passed.
    """

    def __init__(
        self,
        *,
        position: int,
        retries: int = 3,
        pause_s: float = 1.0,
        silence_s: float = 60.0,
        loads: int = 3,
        streams: int = 1,
        queue_limit: int = 1_024,
    ) -> None:
        self._retries = retries
        self._pause_s = pause_s
        self._silence_s = silence_s
        self._loads = loads
        self._streams = streams
        self.phase = Phase.BASIC
        #: What the tables hold; only `Applied` and `Restarted` move it.
        self.position = position
        #: Why it stands still; empty unless IDLE.
        self.reason = ""
        #: Newest master declared.
        self.master = ""
        self._queue = RangeQueue(queue_limit)
        #: Furthest position ever received: the log reaches at least so far.
        self._heard = position
        self._task: _Task | None = None
        self._ticket = 0
        self._applying: PositionRange | None = None
        #: End of the pause if no task is under way, else of the patience with it.
        self._deadline: float | None = None
        #: Transport errors in a row of the task at hand.
        self._failures = 0
        #: Latest plan that came while a local task ran.
        self._postponed: PlanTold | None = None
        #: It went idle because the node said so: a later plan may wake it.
        self._stopped_by_plan = False
        #: It found out itself that it cannot do without a copy; until one is in place.
        self._needs_copy = False
        #: The node's newest plan was a copy; until one is in place.
        self._told_copy = False
        #: The old files are kept, and nothing replaced them yet.
        self._backed_up = False
        #: Chunks that failed in this LOAD.
        self._repeats = 0
        #: Copies since anything was applied.
        self._barren = 0
        self._snapshot = 0
        self._chunks = 0
        #: Chunks asked for: 0 … asked - 1.
        self._asked = 0
        self._written: set[int] = set()

    # -- the face ----------------------------------------------------------------------------------

    def handle(self, event: ReplicaEvent, now_s: float) -> list[ReplicaAction]:
        """Take in an event; return what is to be done, in order."""
        match event:
            case Received():
                actions = self._received(event)
            case Tick():
                actions = self._tick(now_s)
            case PlanTold():
                # Local tasks are not interrupted: the newest plan waits for their end.
                self._postponed = event
                actions = []
            case MasterDeclared():
                actions = self._declared(event.node_id)
            case Resume():
                actions = self._resume()
            case _ if event.ticket != self._ticket or self._task is None:
                return []
            case Failed():
                actions = self._failed(event.fault, event.reason, now_s)
            case KeptAlive():
                self._extend(now_s)
                actions = []
            case Applied() | BackedUp() | LoadOffered() | ChunkWritten() | Restarted():
                actions = self._succeeded(event, now_s)
            case _:
                assert_never(event)
        return [*actions, *self._go_on(now_s)]

    def next_deadline(self) -> float | None:
        """Return when `Tick` is due, None while only events can bring something new."""
        return self._deadline

    @property
    def waits(self) -> bool:
        """Whether nothing is to be done: all that was received is applied."""
        return self.phase is Phase.BASIC and self._task is None and self._deadline is None

    # -- what came ---------------------------------------------------------------------------------

    def _received(self, event: Received) -> list[ReplicaAction]:
        if event.last < event.first or event.first < 1:
            return []
        self._heard = max(self._heard, event.last)
        # What is being applied is still in the queue, so it is not taken in twice.
        self._queue.add(PositionRange(first=event.first, last=event.last), self.position)
        head = self._queue.head
        if self.phase is Phase.REQUEST and head and head.first == self.position + 1:
            return self._go(Move.FILLED)
        return []

    def _succeeded(
        self, event: Applied | BackedUp | LoadOffered | ChunkWritten | Restarted, now_s: float
    ) -> list[ReplicaAction]:
        """Take in the success of the task at hand; answers to another kind of task are ignored."""
        match event, self._task:
            case Applied(), _Task.APPLY:
                assert self._applying is not None
                self._done(self._applying.last)
                self._barren = 0
                return []
            case BackedUp(), _Task.BACK_UP:
                self._task, self._backed_up = None, True
                return []
            case LoadOffered(), _Task.ASK:
                return self._offered(event, now_s)
            case ChunkWritten(), _Task.FETCH:
                return self._chunk(event.index, now_s)
            case Restarted(), _Task.RESTART:
                self._done(self._snapshot)
                self._backed_up = self._needs_copy = self._told_copy = False
                self._barren += 1
                return self._go(Move.LOADED)
            case _:
                return []

    def _done(self, position: int) -> None:
        self.position = position
        self._queue.drop_to(position)
        self._task, self._applying, self._deadline, self._failures = None, None, None, 0

    def _failed(self, fault: Fault, reason: str, now_s: float) -> list[ReplicaAction]:
        task, self._task, self._deadline = self._task, None, None
        match task:
            case _Task.APPLY | _Task.REQUEST | _Task.FETCH | _Task.RESTART if (
                fault is Fault.REFUSED
            ):
                return self._go(Move.REFUSED, reason)
            case _Task.APPLY | _Task.REQUEST if fault is not Fault.TRANSPORT:
                self._needs_copy = True
                return self._load(Move.BEYOND_REPLAY, reason)
            case _Task.BACK_UP:
                return self._go(Move.REFUSED, f"the old files are not kept: {reason}")
            case _Task.ASK if fault is not Fault.TRANSPORT:
                return self._go(Move.REFUSED, f"nothing to copy from: {reason}")
            case _Task.FETCH | _Task.RESTART:
                return self._repeat(fault, reason, now_s)
            case _:
                return self._retry(reason, now_s)

    def _retry(self, reason: str, now_s: float) -> list[ReplicaAction]:
        """Pause before the next attempt at the same, or go idle after the last one."""
        self._failures += 1
        if self._failures > self._retries:
            tries = f"{self._failures} attempts failed"
            return self._go(Move.SPENT, f"{tries}, the last one: {reason}")
        self._pause(self._failures, now_s)
        return []

    def _repeat(self, fault: Fault, reason: str, now_s: float) -> list[ReplicaAction]:
        """Begin again with the request for a grant, later if the way is broken."""
        self._repeats += 1
        if self._repeats > self._loads:
            tries = f"{self._repeats} copies failed"
            return self._go(Move.SPENT, f"{tries}, the last one: {reason}")
        if fault is Fault.TRANSPORT:
            self._pause(self._repeats, now_s)
        return []

    def _tick(self, now_s: float) -> list[ReplicaAction]:
        if self._deadline is None or now_s < self._deadline:
            return []
        self._deadline = None
        if self._task is not None:
            return self._failed(
                Fault.TRANSPORT, f"no sign of life for {self._silence_s:g} s", now_s
            )
        return []

    # -- orders ------------------------------------------------------------------------------------

    def _told(self, event: PlanTold) -> list[ReplicaAction]:
        idle = self.phase is Phase.IDLE
        if event.plan is not Plan.STOP:
            self._told_copy = event.plan is Plan.COPY
        if event.plan is Plan.STOP:
            if idle:
                return []
            actions = self._go(Move.STOP_TOLD, event.reason)
            self._stopped_by_plan = True
            return actions
        if idle and not self._stopped_by_plan:
            return []
        if event.plan is Plan.COPY:
            return [] if self.phase is Phase.LOAD else self._load(Move.COPY_TOLD, event.reason)
        return self._resume() if idle else []

    def _declared(self, node_id: str) -> list[ReplicaAction]:
        changed, self.master = self.master != node_id, node_id
        if changed and self.phase is Phase.REQUEST:
            # What the old one owed is asked of the new one, which failed at nothing yet.
            self._task, self._deadline, self._failures = None, None, 0
        return self._resume()

    def _resume(self) -> list[ReplicaAction]:
        if self.phase is not Phase.IDLE:
            return []
        self._barren = 0
        unfinished = self._needs_copy or self._told_copy
        return self._go(Move.RESUMED_UNFINISHED if unfinished else Move.RESUMED)

    # -- phases ------------------------------------------------------------------------------------

    def _go(self, move: Move, reason: str = "") -> list[ReplicaAction]:
        """Change the phase; what it is about begins in `_go_on`."""
        self.phase = TRANSITIONS[self.phase, move]
        self._task, self._deadline, self._failures, self._repeats = None, None, 0, 0
        self._stopped_by_plan = False
        self.reason = ""
        if self.phase is Phase.IDLE:
            self.reason = reason or move.value
            return [GoIdle(reason=self.reason)]
        return []

    def _load(self, move: Move, reason: str) -> list[ReplicaAction]:
        """Go for a copy, unless the last ones led nowhere."""
        if self._barren < self._loads:
            return self._go(move)
        if self.phase is Phase.IDLE:
            return []
        return self._go(Move.SPENT, f"{self._barren} copies did not help: {reason}")

    def _go_on(self, now_s: float) -> list[ReplicaAction]:
        """Do what was postponed, then start what the phase is about if nothing is under way."""
        actions: list[ReplicaAction] = []
        if self._postponed is not None and self._task not in _LOCAL:
            told, self._postponed = self._postponed, None
            actions += self._told(told)
        if self._task is not None or self._deadline is not None:
            return actions
        missing = self._lacks()
        if self.phase is Phase.BASIC and missing is not None:
            actions += self._go(Move.GAP)
        match self.phase:
            case Phase.BASIC:
                actions += self._apply(now_s)
            case Phase.REQUEST:
                assert missing is not None
                ticket = self._start(_Task.REQUEST, now_s)
                actions.append(RequestRange(ticket=ticket, first=missing.first, last=missing.last))
            case Phase.LOAD if self._backed_up:
                actions.append(RequestLoad(ticket=self._start(_Task.ASK, now_s)))
            case Phase.LOAD:
                actions.append(BackUp(ticket=self._start(_Task.BACK_UP, now_s)))
            case Phase.IDLE:
                pass
            case _:
                assert_never(self.phase)
        return actions

    def _apply(self, now_s: float) -> list[ReplicaAction]:
        head = self._queue.head
        if head is None:
            return []
        self._applying = head
        ticket = self._start(_Task.APPLY, now_s)
        return [Apply(ticket=ticket, first=head.first, last=head.last)]

    def _offered(self, event: LoadOffered, now_s: float) -> list[ReplicaAction]:
        self._snapshot, self._chunks = event.position, event.chunks
        self._written = set()
        self._failures = 0
        self._asked = min(self._streams, event.chunks)
        if not event.chunks:
            return self._restart(now_s)
        self._task = _Task.FETCH
        self._extend(now_s)
        return [FetchChunk(ticket=self._ticket, index=index) for index in range(self._asked)]

    def _chunk(self, index: int, now_s: float) -> list[ReplicaAction]:
        if not 0 <= index < self._asked or index in self._written:
            return []
        self._written.add(index)
        if len(self._written) == self._chunks:
            return self._restart(now_s)
        self._extend(now_s)
        if self._asked == self._chunks:
            return []
        self._asked += 1
        return [FetchChunk(ticket=self._ticket, index=self._asked - 1)]

    def _restart(self, now_s: float) -> list[ReplicaAction]:
        ticket = self._start(_Task.RESTART, now_s)
        return [Restart(ticket=ticket, position=self._snapshot)]

    # -- tasks -------------------------------------------------------------------------------------

    def _start(self, task: _Task, now_s: float) -> int:
        self._task = task
        self._ticket += 1
        self._extend(now_s)
        return self._ticket

    def _extend(self, now_s: float) -> None:
        self._deadline = None if self._task in _LOCAL else now_s + self._silence_s

    def _pause(self, failures: int, now_s: float) -> None:
        self._deadline = now_s + self._pause_s * 2 ** (failures - 1)

    def _lacks(self) -> PositionRange | None:
        """Return what is missing before the head of the queue, or before the end heard of."""
        head = self._queue.head
        last = self._heard if head is None else head.first - 1
        return PositionRange(first=self.position + 1, last=last) if last > self.position else None
