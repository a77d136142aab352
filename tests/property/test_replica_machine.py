"""Any order of ranges, any sequence of failures: applied once, ascending, and never stuck."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import event, given, settings
from hypothesis import strategies as st

from sparktxlog.catchup.phases import Phase
from sparktxlog.catchup.planner import Plan
from sparktxlog.catchup.replica import ReplicaMachine
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

RETRIES, LOADS = 2, 2
#: Tasks of the replica itself, which the shell answers for certain.
LOCAL = (Apply, BackUp, Restart)
END = 40


@dataclass
class Shell:
    """Carries out what the machine wants, as well or as badly as the test says."""

    machine: ReplicaMachine
    now_s: float = 0.0
    #: Actions not answered yet.
    open: list[ReplicaAction] = field(default_factory=list)
    #: Where the tables came from: ranges applied since the last copy.
    applied: list[int] = field(default_factory=list)
    restarted_at: int = 0
    old_tickets: list[int] = field(default_factory=list)
    #: Positions that came.
    here: set[int] = field(default_factory=set)

    def send(self, occurrence: ReplicaEvent) -> None:
        if isinstance(occurrence, Received):
            self.here.update(range(occurrence.first, occurrence.last + 1))
        for action in self.machine.handle(occurrence, self.now_s):
            if isinstance(action, GoIdle):
                assert action.reason
                self.open = []
                continue
            if self.open and action.ticket != self.open[-1].ticket:  # type: ignore[union-attr]
                # A task begins only when the one before is over: local ones are never dropped.
                assert not any(isinstance(other, LOCAL) for other in self.open)
                self.open = []
            self.open.append(action)
            self.old_tickets.append(action.ticket)
        self.check()

    def check(self) -> None:
        machine = self.machine
        expected = self.applied[-1] if self.applied else self.restarted_at
        assert machine.position == expected
        positions = range(self.restarted_at + 1, expected + 1)
        assert self.applied == list(positions)
        idle = machine.phase is Phase.IDLE
        assert bool(machine.reason) is idle
        local = any(isinstance(action, LOCAL) for action in self.open)
        deadline = machine.next_deadline()
        # Never stuck: something is due, or will certainly be answered, or nothing is wanted.
        assert idle or local or deadline is not None or machine.waits
        if idle or machine.waits:
            assert deadline is None

    def succeed(self, chunks: int = 2, snapshot: int = END) -> None:
        action = self.open.pop(0)
        match action:
            case Apply():
                positions = range(action.first, action.last + 1)
                assert self.here.issuperset(positions)
                self.applied += positions
                self.send(Applied(ticket=action.ticket))
            case RequestRange():
                self.send(Received(first=action.first, last=action.last))
            case BackUp():
                self.send(BackedUp(ticket=action.ticket))
            case RequestLoad():
                self.send(LoadOffered(ticket=action.ticket, position=snapshot, chunks=chunks))
            case FetchChunk():
                self.send(ChunkWritten(ticket=action.ticket, index=action.index))
            case Restart():
                self.applied, self.restarted_at = [], action.position
                self.send(Restarted(ticket=action.ticket))
            case GoIdle():
                raise AssertionError("never open")

    def fail(self, fault: Fault) -> None:
        action = self.open.pop(0)
        assert not isinstance(action, GoIdle)
        self.open = []
        self.send(Failed(ticket=action.ticket, fault=fault, reason="made up"))

    def wait(self) -> None:
        deadline = self.machine.next_deadline()
        if deadline is not None:
            self.now_s = max(self.now_s, deadline)
            self.open = []
            self.send(Tick())


def machine() -> ReplicaMachine:
    return ReplicaMachine(position=0, retries=RETRIES, loads=LOADS, streams=2, queue_limit=6)


RANGE = st.tuples(st.integers(1, END), st.integers(0, 12)).map(
    lambda pair: Received(first=pair[0], last=min(pair[0] + pair[1], END))
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(RANGE, st.booleans()), max_size=60))
def test_positions_are_applied_once_and_ascending(steps: list[Received | bool]) -> None:
    shell = Shell(machine())
    heard = 0
    for step in steps:
        if isinstance(step, Received):
            heard = max(heard, step.last)
            shell.send(step)
        elif shell.open:
            shell.succeed()
    while shell.open:
        shell.succeed()
    # `check` compared with 1 … n after every step; nothing heard of is left out.
    assert shell.machine.waits
    assert shell.applied == list(range(1, heard + 1))


STEP = st.one_of(
    RANGE,
    st.sampled_from(
        ["succeed", "wait", "alive", "late", "stop", "copy", "replay", "resume", "new"]
    ),
    st.sampled_from(list(Fault)),
    st.tuples(st.integers(0, 3), st.integers(0, END)),
)


def play(shell: Shell, step: object) -> None:
    """Let one thing happen, whether it fits or not."""
    match step:
        case Received():
            shell.send(step)
        case Fault() if shell.open:
            shell.fail(step)
        case (int(chunks), int(snapshot)) if shell.open:
            shell.succeed(chunks, snapshot)
        case "succeed" if shell.open:
            shell.succeed()
        case "wait" if not any(isinstance(action, LOCAL) for action in shell.open):
            shell.wait()
        case "alive" if shell.old_tickets:
            shell.send(KeptAlive(ticket=shell.old_tickets[-1]))
        case "late" if shell.old_tickets[:-2]:
            ticket = shell.old_tickets[0]
            current = {action.ticket for action in shell.open if not isinstance(action, GoIdle)}
            if ticket not in current:
                shell.send(Applied(ticket=ticket))
                shell.send(Failed(ticket=ticket, fault=Fault.DETERMINISTIC, reason="late"))
        case "stop" | "copy" | "replay":
            shell.send(PlanTold(plan=Plan(step)))
        case "resume":
            shell.send(Resume())
        case "new":
            shell.send(MasterDeclared(node_id=str(len(shell.old_tickets))))
        case _:
            pass


@settings(max_examples=500, deadline=None)
@given(st.lists(STEP, max_size=60), st.sampled_from(list(Fault)))
def test_it_is_never_stuck_and_ends_well_or_idle(steps: list[object], fault: Fault) -> None:
    shell = Shell(machine())
    for step in steps:
        play(shell, step)
    event(shell.machine.phase.value)
    # Whatever happened: if everything fails from now on it stands still soon, with a reason …
    for _ in range(8 * (RETRIES + 1) * (LOADS + 2)):
        if shell.machine.phase is Phase.IDLE or shell.machine.waits:
            break
        if shell.open:
            shell.fail(fault)
        else:
            shell.wait()
    assert shell.machine.phase is Phase.IDLE or shell.machine.waits
    # … and when the faults are gone, it comes back.
    shell.send(PlanTold(plan=Plan.REPLAY))
    shell.send(Resume())
    for _ in range(20 * END):
        if not shell.open:
            break
        shell.succeed()
    assert shell.machine.waits
    assert shell.machine.next_deadline() is None
