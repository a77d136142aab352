"""A simulated node: a real core, the real stream of actions, a disk and a clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.verification.model.disk import CoreDisk
from tests.verification.simulation.marks import crash_mark

from sparktxlog.errors import OutdatedError
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.action_order import MAX_BATCH, ActionStream
from sparktxlog.protocol.messages.actions import (
    Action,
    Alarm,
    PersistRestamp,
    PersistView,
    TellDoubt,
    TellPhase,
)
from sparktxlog.protocol.messages.events import Event, Rested, RunSubmitted, Tick
from sparktxlog.protocol.messages.recovery import MasterConfig, OlderIds
from sparktxlog.protocol.messages.versions import NEWEST
from sparktxlog.protocol.messages.view import Phase
from sparktxlog.runtime.clock import Clock

if TYPE_CHECKING:
    from tests.verification.simulation.world import World

#: Wall clock when the simulation begins, microseconds since 1970 UTC.
FOUNDED_US = 1_790_000_000_000_000
#: What enters a new epoch, behind the entries of the final queue.
_OF_EPOCH = (PersistView, PersistRestamp)
#: A write that cannot be done yet is tried again after so long.
_AGAIN_US = 50_000


class SimulatedNode:
    """One node; `master` is None while it is down.

    A write takes time, and a crash keeps or loses it as a whole.
    """

    def __init__(
        self,
        world: World,
        config: MasterConfig,
        facts: dict[bytes, RunFacts],
        *,
        max_batch: int = MAX_BATCH,
    ) -> None:
        self.world = world
        self.config = config
        self.name = config.node_id
        self._facts = facts
        self.disk = CoreDisk(self.name, facts)
        self.master: Master | None = None
        self.paused = False
        #: Microseconds its wall clock is ahead, and by how much its clocks are fast (parts per
        #: million).
        self.skew_us = 0
        self.drift_ppm = 0
        #: Microseconds that its machine slept; its steady clock stood still then.
        self.slept_us = 0
        self._clock: Clock
        #: What stands before the core's memory of ids.
        self.older_ids: OlderIds
        #: Microseconds a write takes, at most.
        self.slow_us = 2_000
        self.alarms: list[Alarm] = []
        #: True: its disk has no room; a write is tried again until it has.
        self.full = False
        #: The true disk, while another one is mounted.
        self.kept: CoreDisk | None = None
        self.submits: dict[int, RunSubmitted] = {}
        #: Phase told of last since the start, and in which epoch.
        self.told_phase: tuple[Phase, int] | None = None
        #: Called when a view or its stamps wait for a later write than what stands before them,
        #: with the microseconds until that begins.
        self.on_torn_epoch: Callable[[SimulatedNode, int], None] | None = None
        #: Called when a write begins, with what it writes and the microseconds until it is done.
        self.on_write: Callable[[SimulatedNode, list[Action], int], None] | None = None
        #: Counts starts and crashes: what was scheduled before one is void.
        self.life = 0
        #: How often it was started; a lost or older disk brings no older release back.
        self._starts = 0
        self._stream: ActionStream[Action] = ActionStream(max_batch=max_batch)
        self._writing: list[Action] | None = None
        self._inbox: list[Event] = []
        self._timer_at = -1

    # -- life --------------------------------------------------------------------------------------

    @property
    def newest(self) -> int:
        """Newest wire version that its release speaks; the release after this one is made up."""
        return NEWEST + (self.world.layout.upgraded and not self.is_before)

    @property
    def is_before(self) -> bool:
        """Whether it runs this release, and the layout has a later one."""
        return self.world.layout.upgraded and self._starts < 2

    @property
    def up(self) -> bool:
        """Whether it runs (it may be paused)."""
        return self.master is not None

    @property
    def member(self) -> bool:
        """Whether it is a member that works."""
        phases = (Phase.NORMAL, Phase.SUSPECT, Phase.WEDGED)
        return self.master is not None and self.master.phase in phases and self.kept is None

    def wall(self) -> int:
        """Return its wall clock, microseconds since 1970 UTC."""
        return FOUNDED_US + self._steady() + self.skew_us + self.slept_us

    def _steady(self) -> int:
        now = self.world.now
        return now - self.slept_us + now * self.drift_ppm // 1_000_000

    def start(self) -> None:
        """Start from the disk."""
        assert self.master is None
        self.life += 1
        self._starts += 1
        self.submits = dict(self.disk.announcements)
        state = self.disk.load(self.config.id_window)
        self.older_ids = state.older_ids
        self.disk.starts += 1
        config = replace(
            self.config, incarnation=self.disk.incarnation, start=self.disk.starts,
            boot=f"{self.name}-{self.life}", log_id=self.disk.log_id or self.config.log_id,
            newest=self.newest,
        )  # fmt: skip
        self._clock = Clock(
            state.reserved, wall=self.wall, steady_ns=lambda: self._steady() * 1_000
        )
        self.master = self.world.master_class(config, state, self._clock.now(), self.wall())
        self.world.checks.started(self)
        if self.world.greet(self):
            self.handle([Tick()])

    def crash(self, *, failed: bool = False) -> None:
        """Lose everything but the disk; a write in flight is kept or lost, some sends are made.

        Args:
            failed: It ends because that write failed: nothing is sent, whatever is kept.
        """
        random = self.world.random
        writing, self._writing = self._writing, None
        if writing is not None:
            kept = not self.full and random.random() < 0.5
            self._mark_crash(writing, kept=kept, failed=failed)
            if kept:
                self._write(writing)
                told = [a for a in writing if not self._stream.must_be_durable(a)]
                for action in told[: 0 if failed else random.randrange(len(told) + 1)]:
                    self.world.carry_out(self, action)
        self.master = None
        self.paused = False
        self.told_phase = None
        self.life += 1
        self._stream.clear()
        self._inbox.clear()
        self._timer_at = -1
        self.world.lost_sight_of(self)

    def _mark_crash(self, writing: list[Action], *, kept: bool, failed: bool) -> None:
        """Count, for each kind of `Persist…` in the write in flight, what became of it."""
        if failed:
            self.world.marks.hit(f"failed write {'kept' if kept else 'lost'}")
        for kind in {type(a) for a in writing if self._stream.must_be_durable(a)}:
            self.world.marks.hit(crash_mark(kind, kept=kept))

    def lose_disk(self) -> None:
        """Return, once started, as a new incarnation without a memory (P21)."""
        assert self.master is None
        incarnation = self.disk.incarnation + 1
        self.disk = CoreDisk(self.name, self._facts)
        self.disk.incarnation = incarnation
        self.world.checks.disk_lost(self)

    def mount(self, disk: CoreDisk) -> None:
        """Have another disk from the next start on."""
        assert self.master is None
        self.disk = disk
        self.world.checks.disk_changed(self)

    def resume(self) -> None:
        """Go on after a pause, with all that arrived meanwhile."""
        self.paused = False
        events, self._inbox = self._inbox, []
        self.handle([*events, Tick()])

    # -- work --------------------------------------------------------------------------------------

    def handle(self, events: Sequence[Event]) -> None:
        """Let the core handle events and work off what it wants done."""
        if self.master is None:
            return
        if self.paused:
            self._inbox.extend(events)
            return
        clock = self._clock.now()
        actions = self.master.handle_all(events, clock, self.wall())
        self.world.steps += len(events)
        if actions:
            self.world.checks.handled(self, actions)
            self._stream.put(actions)
            self._pump()
        if self.master is not None:
            self._set_timer(clock)
            self._rest()

    def _rest(self) -> None:
        """Tell the core of a moment of rest, if it waits for one and this is one."""
        if self.master is not None and self.master.wants_rest and self._writing is None:
            self.world.marks.hit("moment of rest")
            self.handle([Rested()])

    def _pump(self) -> None:
        stream = self._stream
        if self._writing is not None:
            return
        for action in stream.leading():
            self._carry_out(action)
        if stream:
            self._writing = stream.take()
            delay = 50 + int(self.world.random.random() * self.slow_us)
            self.world.after(delay, self._written, self.life)
            if self.on_write is not None:
                self.on_write(self, self._writing, delay)
            if stream:
                self.world.marks.hit("batch cut short")
                if self.on_torn_epoch and any(isinstance(a, _OF_EPOCH) for a in stream):
                    self.on_torn_epoch(self, delay)

    def _written(self, life: int) -> None:
        if life != self.life or self._writing is None:
            return
        if self.paused or self.full:
            self.world.after(_AGAIN_US, self._written, life)
            return
        batch, self._writing = self._writing, None
        self._write(batch)
        for action in batch:
            if not self._stream.must_be_durable(action):
                self._carry_out(action)
                if life != self.life:
                    return
        self._pump()
        self._rest()

    def _write(self, batch: list[Action]) -> None:
        persists = [action for action in batch if self._stream.must_be_durable(action)]
        self.disk.write(persists, self.submits)
        self.world.checks.wrote(self, persists)

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Alarm):
            self.alarms.append(action)
            if action.code == OutdatedError.code:
                self.world.join_anew(self, self.master.view if self.master else None)
        elif isinstance(action, TellDoubt):
            self.world.doubt(self, action.peer)
        elif isinstance(action, TellPhase):
            self.world.phase_changed(self, action)
        else:
            self.world.carry_out(self, action)

    def _set_timer(self, clock: int) -> None:
        assert self.master is not None
        deadline = self.master.next_deadline()
        if deadline is None:
            return
        now = self.world.now
        at = max(now + deadline - clock, now + 1)
        if self._timer_at <= now or at < self._timer_at:
            self._timer_at = at
            self.world.at(at, self._ring, self.life, at)

    def _ring(self, life: int, at: int) -> None:
        if life == self.life and at == self._timer_at:
            self._timer_at = -1
            self.handle([Tick()])
