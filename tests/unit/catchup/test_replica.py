"""The machine of a replica, phase by phase."""

from __future__ import annotations

from typing import Any

import pytest

from sparktxlog.catchup.phases import TRANSITIONS, Phase
from sparktxlog.catchup.planner import Plan
from sparktxlog.catchup.ranges import PositionRange, RangeQueue
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


class Driver:
    """A machine with a clock, and answers to whatever it asked for last."""

    def __init__(self, position: int = 0, **settings: Any) -> None:
        self.machine = ReplicaMachine(position=position, **settings)
        self.now_s = 0.0
        self.last: list[ReplicaAction] = []

    def send(self, event: ReplicaEvent) -> list[ReplicaAction]:
        self.last = self.machine.handle(event, self.now_s) or []
        return self.last

    def received(self, first: int, last: int) -> list[ReplicaAction]:
        return self.send(Received(first=first, last=last))

    @property
    def ticket(self) -> int:
        return self.machine._ticket

    def fail(self, fault: Fault, reason: str = "broken") -> list[ReplicaAction]:
        return self.send(Failed(ticket=self.ticket, fault=fault, reason=reason))

    def wait(self) -> float:
        """Let the time pass until the machine wants it to; return the seconds."""
        deadline = self.machine.next_deadline()
        assert deadline is not None
        waited, self.now_s = deadline - self.now_s, deadline
        self.send(Tick())
        return waited

    def asked(self, kind: type) -> Any:
        """Return the only action of the last answer, which must be of a kind."""
        (action,) = self.last
        assert isinstance(action, kind), action
        return action

    def to_load(self) -> Driver:
        """Go to LOAD, where the grant is asked for."""
        self.send(PlanTold(plan=Plan.COPY))
        self.asked(BackUp)
        self.send(BackedUp(ticket=self.ticket))
        self.asked(RequestLoad)
        return self


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_it_begins_with_basic_and_waits(driver: Driver) -> None:
    assert (driver.machine.phase, driver.machine.position) == (Phase.BASIC, 0)
    assert driver.machine.waits
    assert driver.machine.next_deadline() is None


def test_basic_takes_the_head_performs_and_waits(driver: Driver) -> None:
    driver.received(1, 10)
    assert driver.asked(Apply) == Apply(ticket=driver.ticket, first=1, last=10)
    assert driver.machine.position == 0
    assert driver.received(11, 20) == []
    driver.send(Applied(ticket=driver.ticket))
    assert (driver.machine.position, driver.asked(Apply).last) == (10, 20)
    driver.send(Applied(ticket=driver.ticket))
    assert (driver.machine.position, driver.machine.waits) == (20, True)


def test_duplicates_overlaps_and_late_answers_change_nothing(driver: Driver) -> None:
    driver.received(1, 10)
    old = driver.ticket
    for first, last in ((1, 10), (3, 5), (1, 12)):
        assert driver.received(first, last) == []
    driver.send(Applied(ticket=old))
    assert (driver.asked(Apply).first, driver.last[0].last) == (11, 12)  # type: ignore[union-attr]
    assert driver.send(Applied(ticket=old)) == []
    assert driver.send(Failed(ticket=old, fault=Fault.DETERMINISTIC, reason="late")) == []
    assert driver.send(BackedUp(ticket=driver.ticket)) == []
    driver.send(Applied(ticket=driver.ticket))
    assert driver.received(1, 12) == []
    assert driver.received(5, 4) == []
    assert (driver.machine.position, driver.machine.waits) == (12, True)


def test_a_gap_requests_exactly_what_is_missing(driver: Driver) -> None:
    driver.received(31, 40)
    assert driver.machine.phase.value == "REQUEST"
    missing = driver.asked(RequestRange)
    assert (missing.first, missing.last) == (1, 30)
    assert driver.received(21, 30) == []
    driver.received(1, 20)
    assert driver.machine.phase is Phase.BASIC
    for end in (20, 30, 40):
        assert driver.asked(Apply).last == end
        driver.send(Applied(ticket=driver.ticket))
    assert driver.machine.waits


def test_an_expired_log_or_a_repeatable_error_loads_at_once() -> None:
    for fault in (Fault.UNAVAILABLE, Fault.DETERMINISTIC):
        asking = Driver()
        asking.received(5, 9)
        asking.fail(fault)
        assert (asking.machine.phase, asking.last) == (Phase.LOAD, [BackUp(ticket=asking.ticket)])
        applying = Driver()
        applying.received(1, 9)
        applying.fail(fault)
        assert (applying.machine.phase, applying.machine.position) == (Phase.LOAD, 0)


@pytest.mark.parametrize("first", [1, 5])
def test_transport_errors_are_tried_again_with_growing_pauses(first: int) -> None:
    driver = Driver()
    action = driver.received(first, 9)[0]
    for pause_s in (1.0, 2.0, 4.0):
        assert driver.fail(Fault.TRANSPORT) == []
        assert driver.wait() == pause_s
        again = driver.asked(type(action))
        assert (again.first, again.last) == (action.first, action.last)  # type: ignore[union-attr]
    driver.fail(Fault.TRANSPORT, "link down")
    assert driver.machine.phase is Phase.IDLE
    assert driver.asked(GoIdle).reason == "4 attempts failed, the last one: link down"
    assert driver.machine.next_deadline() is None
    driver.send(MasterDeclared(node_id="B"))
    assert isinstance(driver.last[0], type(action))
    assert (driver.machine.master, driver.machine.reason) == ("B", "")


def test_success_in_between_makes_all_attempts_good_again(driver: Driver) -> None:
    for end in (9, 18, 27):
        driver.received(end - 8, end)
        for _ in range(3):
            driver.fail(Fault.TRANSPORT)
            driver.wait()
        driver.send(Applied(ticket=driver.ticket))
    assert (driver.machine.phase, driver.machine.position) == (Phase.BASIC, 27)


def test_what_comes_by_itself_ends_the_waiting_for_it(driver: Driver) -> None:
    driver.received(5, 9)
    driver.fail(Fault.TRANSPORT)
    driver.received(1, 4)
    assert (driver.machine.phase, driver.asked(Apply).last) == (Phase.BASIC, 4)


def test_silence_is_a_transport_error_and_signs_of_life_push_it_on(driver: Driver) -> None:
    driver.received(5, 9)
    driver.now_s = 59.0
    assert driver.send(Tick()) == []
    driver.send(KeptAlive(ticket=driver.ticket))
    assert driver.wait() == 60.0
    assert driver.wait() == 1.0
    driver.asked(RequestRange)


def test_a_new_master_is_asked_at_once(driver: Driver) -> None:
    driver.received(5, 9)
    driver.fail(Fault.TRANSPORT)
    driver.send(MasterDeclared(node_id="B"))
    driver.asked(RequestRange)
    assert driver.send(MasterDeclared(node_id="B")) == []


# -- LOAD ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [0, 1, 5])
@pytest.mark.parametrize("streams", [1, 3])
def test_load_backs_up_fetches_all_chunks_and_restarts(chunks: int, streams: int) -> None:
    driver = Driver(position=7, streams=streams).to_load()
    grant = driver.ticket
    asked = driver.send(LoadOffered(ticket=grant, position=100, chunks=chunks))
    fetched = []
    while asked and isinstance(asked[0], FetchChunk):
        action = asked.pop(0)
        assert isinstance(action, FetchChunk)
        fetched.append(action.index)
        assert len(asked) < streams
        asked += driver.send(ChunkWritten(ticket=grant, index=action.index))
        assert driver.send(ChunkWritten(ticket=grant, index=action.index)) == []
    assert fetched == list(range(chunks))
    assert asked == [Restart(ticket=driver.ticket, position=100)]
    assert (driver.machine.phase, driver.machine.position) == (Phase.LOAD, 7)
    driver.send(Restarted(ticket=driver.ticket))
    assert (driver.machine.phase, driver.machine.position) == (Phase.BASIC, 100)
    assert driver.machine.waits


def test_after_a_copy_it_goes_on_from_the_snapshot(driver: Driver) -> None:
    driver.received(11, 20)
    driver.fail(Fault.UNAVAILABLE)
    driver.received(21, 30)
    driver.send(BackedUp(ticket=driver.ticket))
    driver.send(LoadOffered(ticket=driver.ticket, position=15, chunks=0))
    driver.send(Restarted(ticket=driver.ticket))
    assert (driver.asked(Apply).first, driver.last[0].last) == (16, 20)  # type: ignore[union-attr]


def test_a_snapshot_behind_what_was_heard_of_requests_the_rest() -> None:
    driver = Driver(position=50).to_load()
    driver.send(LoadOffered(ticket=driver.ticket, position=30, chunks=0))
    driver.send(Restarted(ticket=driver.ticket))
    missing = driver.asked(RequestRange)
    assert (missing.first, missing.last) == (31, 50)


def test_without_a_backup_nothing_is_copied(driver: Driver) -> None:
    driver.send(PlanTold(plan=Plan.COPY))
    driver.fail(Fault.DETERMINISTIC, "disk full")
    assert (driver.machine.phase, driver.asked(GoIdle).reason) == (
        Phase.IDLE, "the old files are not kept: disk full",
    )  # fmt: skip


def test_a_refused_load_goes_idle_and_waits_for_a_master(driver: Driver) -> None:
    driver.to_load()
    driver.fail(Fault.UNAVAILABLE, "no donor")
    assert driver.asked(GoIdle).reason == "nothing to copy from: no donor"
    assert driver.send(PlanTold(plan=Plan.COPY)) == []
    driver.send(MasterDeclared(node_id="B"))
    # The old files are kept already.
    assert (driver.machine.phase, driver.asked(RequestLoad)) == (
        Phase.LOAD, RequestLoad(ticket=driver.ticket),
    )  # fmt: skip


def test_a_failed_chunk_begins_again_with_a_fresh_grant(driver: Driver) -> None:
    driver.to_load()
    for repeat in range(4):
        grant = driver.ticket
        driver.send(LoadOffered(ticket=grant, position=9, chunks=3))
        driver.send(ChunkWritten(ticket=grant, index=0))
        driver.fail(Fault.UNAVAILABLE, "file changed")
        if repeat < 3:
            assert driver.asked(RequestLoad).ticket > grant
            assert driver.send(ChunkWritten(ticket=grant, index=1)) == []
    assert driver.asked(GoIdle).reason == "4 copies failed, the last one: file changed"


def test_a_broken_way_pauses_before_the_fresh_grant(driver: Driver) -> None:
    driver.to_load()
    for pause_s in (1.0, 2.0):
        driver.send(LoadOffered(ticket=driver.ticket, position=9, chunks=3))
        assert driver.fail(Fault.TRANSPORT) == []
        assert driver.wait() == pause_s
        driver.asked(RequestLoad)
    driver.fail(Fault.TRANSPORT)
    driver.wait()
    driver.asked(RequestLoad)


def test_a_copy_that_does_not_help_is_not_repeated_for_ever(driver: Driver) -> None:
    driver.received(1, 50)
    for _ in range(3):
        driver.fail(Fault.DETERMINISTIC, "predicate fails")
        driver.send(BackedUp(ticket=driver.ticket))
        driver.send(LoadOffered(ticket=driver.ticket, position=10, chunks=0))
        driver.send(Restarted(ticket=driver.ticket))
        driver.asked(Apply)
    driver.fail(Fault.DETERMINISTIC, "predicate fails")
    assert driver.asked(GoIdle).reason == "3 copies did not help: predicate fails"
    driver.send(Resume())
    driver.asked(BackUp)


# -- orders ----------------------------------------------------------------------------------------


def test_orders_wait_for_local_work_and_the_newest_counts(driver: Driver) -> None:
    driver.received(1, 9)
    driver.received(10, 12)
    assert driver.send(PlanTold(plan=Plan.COPY)) == []
    assert driver.send(PlanTold(plan=Plan.STOP, reason="operator")) == []
    driver.send(Applied(ticket=driver.ticket))
    assert (driver.machine.position, driver.asked(GoIdle).reason) == (9, "operator")
    assert driver.send(PlanTold(plan=Plan.STOP)) == []
    driver.send(PlanTold(plan=Plan.REPLAY))
    assert driver.asked(Apply).last == 12


def test_a_stopped_replica_copies_when_the_node_says_so(driver: Driver) -> None:
    driver.send(PlanTold(plan=Plan.STOP))
    assert (driver.machine.phase, driver.machine.reason) == (Phase.IDLE, "stop-told")
    driver.to_load()
    assert driver.send(PlanTold(plan=Plan.COPY)) == []
    driver.send(PlanTold(plan=Plan.STOP, reason="enough"))
    assert driver.machine.phase is Phase.IDLE


def test_a_copy_it_needs_itself_is_taken_up_again(driver: Driver) -> None:
    driver.received(1, 9)
    driver.fail(Fault.DETERMINISTIC)
    driver.send(BackedUp(ticket=driver.ticket))
    driver.send(PlanTold(plan=Plan.STOP))
    driver.send(Resume())
    assert (driver.machine.phase, len(driver.last)) == (Phase.LOAD, 1)
    assert driver.send(Resume()) == []


def test_the_position_can_be_asked_in_every_phase() -> None:
    driver, seen = Driver(position=3), set()
    steps: list[tuple[type, dict[str, Any]]] = [
        (Received, {"first": 9, "last": 12}),
        (PlanTold, {"plan": Plan.COPY}),
        (PlanTold, {"plan": Plan.COPY}),
    ]
    for kind, values in steps:
        driver.send(kind(**values))
        seen.add(driver.machine.phase)
        assert driver.machine.position == 3
    driver.fail(Fault.DETERMINISTIC)
    seen |= {driver.machine.phase, Driver().machine.phase}
    assert driver.machine.position == 3
    assert seen == set(Phase)


def test_every_phase_can_be_reached_and_left() -> None:
    assert {start for start, _ in TRANSITIONS} == set(Phase) == set(TRANSITIONS.values())


# -- the queue -------------------------------------------------------------------------------------


def test_the_queue_is_sorted_disjoint_and_bounded() -> None:
    queue = RangeQueue(3)
    for first, last in ((30, 40), (10, 12), (1, 35), (50, 60), (5, 70)):
        queue.add(PositionRange(first=first, last=last), 4)
    assert len(queue) == 3
    taken = []
    while queue.head:
        taken.append((queue.head.first, queue.head.last))
        queue.drop_to(queue.head.last)
    assert taken == [(5, 9), (10, 12), (13, 29)]
