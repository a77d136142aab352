"""The short form of `make sim`: simulated hours with faults, every invariant at every step."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.verification.mutation.killers import LAYOUTS_BY_NAME, hunted
from tests.verification.simulation.run import LAYOUTS, layout_of, run_seed
from tests.verification.simulation.world import World

from sparktxlog.errors import InvariantViolation
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.operation import Acceptance, RunFacts
from sparktxlog.protocol.messages.actions import PersistQueue
from sparktxlog.protocol.messages.posts import QueueEntry, Rejection, RunHeader, chain_hash

#: CI runs `make sim SEEDS=500` beside the tests.
SEEDS = 12
#: A seed whose batches are small, so that its nodes write most often.
_TORN_SEED = 26


def test_one_seed_is_one_history_in_every_process() -> None:
    """Nothing hangs on the order of sets, which each process has its own of."""
    first, second = (_told_by_process(_TORN_SEED, hash_seed) for hash_seed in ("1", "2"))
    assert first == second
    assert f"seed {_TORN_SEED}, " in first and "no violation" in first


def _told_by_process(seed: int, hash_seed: str) -> str:
    """Return what a process of its own says of a seed, its trace included."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.verification.simulation", "--seed", str(seed)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


def test_another_seed_is_another_history() -> None:
    first, other = run_seed(5, hour_us=400_000_000), run_seed(12, hour_us=400_000_000)
    assert first.layout == other.layout and first.trace != other.trace


def _order(world: World, origin: str, seq: int, ids: str, rejected: tuple[int, ...] = ()) -> None:
    """Let node a append a run to its queue; `ids` has a letter for each transaction."""
    node, number = world.nodes["a"], len(world.facts) + 1
    digest, n = number.to_bytes(32, "big"), len(ids)
    world.facts[digest] = RunFacts(
        n=n,
        ids=b"".join(one.encode() * 16 for one in ids),
        acceptance=Acceptance(position=0, ts=0),
    )
    header = RunHeader(
        epoch=1,
        ts=number,
        origin=NodeId(origin),
        incarnation=1,
        seq=seq,
        n=n,
        digest=digest,
        size_bytes=1,
    )
    last = node.disk.queue[-1] if node.disk.queue else None
    position, previous = (last.end + 1, last.chain_hash) if last else (1, bytes(32))
    entry = QueueEntry(
        position=position,
        header=header,
        previous_hash=previous,
        chain_hash=chain_hash(previous, header),
        rejections=tuple(
            Rejection(index=i, code="duplicate-transaction", text="", first=2) for i in rejected
        ),
    )
    node.disk.queue.append(entry)
    world.checks.wrote(node, [PersistQueue(entries=(entry,))])


def test_a_gap_in_the_numbers_of_an_origin_is_found() -> None:
    world = World(0, layout_of(0))
    _order(world, "a", 1, "kl")
    _order(world, "b", 1, "m")
    _order(world, "a", 3, "n")
    with pytest.raises(InvariantViolation, match="I2"):
        _order(world, "b", 3, "o")


@pytest.mark.parametrize("rejected", [(), (0,), (0, 1)])
def test_a_transaction_that_takes_effect_twice_or_never_is_found(rejected: tuple[int, ...]) -> None:
    """The same id came to two nodes: of the later run its transaction alone is rejected."""
    world = World(0, layout_of(0))
    _order(world, "a", 1, "kl")
    with pytest.raises(InvariantViolation, match="P25c"):
        _order(world, "b", 1, "ml", rejected)
    world = World(0, layout_of(0))
    _order(world, "a", 1, "kl")
    _order(world, "b", 1, "ml", (1,))
    assert world.marks.counts["duplicate rejected"] == 1


def test_a_late_copy_repeats_the_first_one_behind_its_acceptance() -> None:
    """P25c: all sites look up the gap, and find the first copy, not an expired one behind it.

    The third copy of an id came too late to be compared with the first, which the memory of all
    had lost; the fourth one was accepted in time.
    """
    seed = 468
    assert hunted(seed, LAYOUTS[seed % len(LAYOUTS)]) == ""


@pytest.mark.parametrize(
    ("seed", "name"),
    [
        # P30: a member knew another disk of a joiner, and stopped before it saw the new one.
        (29, "two-alone"),
        # P1a: the files of a run are lost whose former stamp was ordered.
        (7, "two-alone"),
        # P29: a node lost its disk before most others had heard it.
        (56, "five"),
    ],
)
def test_histories_that_once_went_wrong(seed: int, name: str) -> None:
    assert hunted(seed, LAYOUTS_BY_NAME[name]) == ""


def test_nobody_waits_for_followers_that_are_killed_cut_off_and_promoted() -> None:
    """P38: I12 wants progress of the members alone; in the end the followers have all."""
    layout = LAYOUTS_BY_NAME["three-followed"]
    outcome = run_seed(2, layout=layout, hour_us=400_000_000, fault_pause_us=5_000_000)
    assert not outcome.violation
    for mark in ("follower promoted", "member made a follower", "follower at the end"):
        assert outcome.marks[mark], mark


def test_nodes_with_slow_disks_stand_aside_and_come_back() -> None:
    """P37: they are left out and admitted again and again, while other faults strike."""
    layout = LAYOUTS_BY_NAME["three-slow"]
    outcome = run_seed(2, layout=layout, hour_us=400_000_000, fault_pause_us=5_000_000)
    assert not outcome.violation and outcome.marks["told who stands aside"] > 10


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_hours_with_faults_violate_nothing() -> None:
    outcomes = [run_seed(seed) for seed in range(SEEDS)]
    assert [f"seed {o.seed}: {o.violation}" for o in outcomes if o.violation] == []
    assert min(outcome.transactions for outcome in outcomes) >= 1_000
    assert min(outcome.epochs for outcome in outcomes) >= 3
