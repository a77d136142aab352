"""The executor at the end of an epoch: a kill between any two writes costs nothing (P18, P20)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.storage_samples import TemporaryJournal, ids_in, run_of

from sparktxlog.errors import StorageError
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.epoch.union import end_of
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.action_order import MAX_BATCH
from sparktxlog.protocol.messages.actions import (
    Action,
    PersistBallot,
    PersistQueue,
    PersistRestamp,
    PersistView,
    TellPhase,
)
from sparktxlog.protocol.messages.balloting import BallotState, Decide
from sparktxlog.protocol.messages.events import EpochMessageReceived
from sparktxlog.protocol.messages.posts import MergeBase
from sparktxlog.protocol.messages.recovery import MasterConfig
from sparktxlog.protocol.messages.view import Ballot, Phase, Seat, View
from sparktxlog.runtime.commit.executor import Executor
from sparktxlog.runtime.commit.holdings import Holdings
from sparktxlog.storage.interfaces import PutBallot, PutRestamp, PutView, Write

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
CONFIG = MasterConfig(node_id=A, members=(A, B), quorum=2, log_id="l", id_window=100)
OWN = [run_of(seq=1 + i, ts=100 + i) for i in range(4)]
FOREIGN = [run_of(origin="b", seq=1 + i, ts=100 + i) for i in range(2)]
TAIL = (OWN[0].header, FOREIGN[0].header)
VIEW = View(
    log_id="l",
    epoch=2,
    roster=(Seat(node_id=A), Seat(node_id=B), Seat(node_id=C)),
    # The new one was not heard yet, so nothing of the new epoch is ordered.
    members=(A, C),
    tail=TAIL,
    end=end_of(MergeBase(), TAIL),
)
#: The promise that wedged the node.
BALLOT = BallotState(epoch=1, promised=Ballot(number=1, node="b"))


class DyingJournal(TemporaryJournal):
    """A journal whose process is killed after a number of writes."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 1_000
        self.kept: list[Write] = []

    def write(self, writes: Sequence[Write]) -> None:
        if self.left <= 0:
            raise StorageError("killed")
        self.left -= 1
        super().write(writes)
        self.kept.extend(writes)


def journal_of_a_wedged_node() -> DyingJournal:
    journal = DyingJournal()
    journal.write([*OWN, *FOREIGN, PutBallot(state=BALLOT)])
    return journal


def decide(journal: TemporaryJournal, now: int = 1_000) -> list[Action]:
    """Start a core from the journal, tell it the decided view, and return what it wants done."""
    master = Master(CONFIG, journal.load(100).core, now)
    event = EpochMessageReceived(message=Decide(sender=B, view=VIEW))
    return master.handle_all([event], now)


async def work(
    journal: TemporaryJournal, actions: Sequence[Action], *, max_batch: int = MAX_BATCH
) -> list[Action]:
    """Carry actions out until all is done, or the journal dies; return what was told."""
    told: list[Action] = []
    holdings = Holdings(foreign_limit_bytes=1 << 20, cache_limit_bytes=1 << 20)
    executor = Executor(journal, holdings, node_id=A, max_batch=max_batch)
    deliverer: Any = SimpleNamespace(
        deliver=lambda action, at: told.append(action),
        wrote=lambda seconds: None,
        rested=lambda: None,
    )
    task = asyncio.create_task(executor.run(deliverer))
    executor.put(actions)
    done = executor.write([])
    await asyncio.wait([task, done], return_when=asyncio.FIRST_COMPLETED)
    task.cancel()
    for ended in await asyncio.gather(task, done, return_exceptions=True):
        assert ended is None or isinstance(ended, (StorageError, asyncio.CancelledError))
    executor.close()
    return told


def persisted(actions: Sequence[Action]) -> list[str]:
    names = [type(action).__name__ for action in actions]
    return [name for name in names if name.startswith("Persist")]


def test_the_core_asks_for_queue_then_view_then_stamps() -> None:
    """What `executor` relies upon when a batch ends in between."""
    kinds = (PersistQueue, PersistView, PersistRestamp)
    names = persisted([a for a in decide(journal_of_a_wedged_node()) if isinstance(a, kinds)])
    assert names == [
        "PersistQueue",
        "PersistView",
        "PersistRestamp",
        "PersistRestamp",
        "PersistRestamp",
    ]


@pytest.mark.parametrize("killed_after", [0, 1, 2, 3, 4, 5, 6, 100])
def test_a_kill_between_any_two_writes_costs_nothing(killed_after: int) -> None:
    journal = journal_of_a_wedged_node()
    journal.left = killed_after
    told = asyncio.run(work(journal, decide(journal), max_batch=1))
    if killed_after < 6:
        assert not [a for a in told if isinstance(a, TellPhase)]
    journal.left = 1_000
    asyncio.run(work(journal, decide(journal, now=5_000), max_batch=1))
    # Once more, with nothing left to be done.
    again = decide(journal, now=9_000)
    assert not [a for a in again if isinstance(a, (PersistView, PersistRestamp, PersistQueue))]

    state = journal.load(100)
    assert state.core.view == VIEW
    assert state.core.base == VIEW.end
    assert [s.entry.header for s in journal.read_queue(0, 9, payloads=False)] == list(TAIL)
    waiting = sorted((run.header for run in state.core.incoming), key=lambda h: h.seq)
    assert [(h.origin, h.seq, h.epoch, h.digest) for h in waiting] == [
        ("a", run.header.seq, 2, run.header.digest) for run in OWN[1:]
    ]
    stamps = [header.ts for header in waiting]
    assert stamps == sorted(set(stamps))
    assert stamps[0] > TAIL[-1].ts
    assert journal.find_transaction(ids_in(OWN[2])) == (waiting[1], 0)
    assert journal.find_transaction(ids_in(FOREIGN[1])) is None


def test_what_the_core_wants_kept_is_what_the_journal_gets() -> None:
    journal = journal_of_a_wedged_node()
    run = replace(OWN[3], header=replace(OWN[3].header, incarnation=3))
    header = replace(run.header, epoch=2, ts=500)
    actions: list[Action] = [
        PersistBallot(state=BALLOT),
        PersistView(view=VIEW, incarnation=3),
        PersistRestamp(header=header),
        TellPhase(phase=Phase.NORMAL, view=VIEW, reason="test"),
    ]
    journal.write([run])
    journal.kept.clear()
    told = asyncio.run(work(journal, actions))
    assert journal.kept == [
        PutBallot(state=BALLOT),
        PutView(view=VIEW, node_id=A, incarnation=3),
        PutRestamp(header=header),
    ]
    assert told == actions[3:]
    assert journal.load(10).incarnation == 3
