"""The command line of the simulation of whole nodes; each seed has a process of its own.

The last line is `seeds N, events N, epochs N, transactions N, violations N`.  Exit code 1: a seed
violated an invariant, or a rare branch was never taken.
"""

from __future__ import annotations

import argparse
import logging
import os
import pickle
import select
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import structlog
from tests.verification.nodes import far_sites
from tests.verification.nodes.lost_disks import run_weeks
from tests.verification.nodes.marks import EXPECTED
from tests.verification.nodes.mutants import MUTANTS
from tests.verification.nodes.placing_mutants import PLACING
from tests.verification.nodes.run import FAULTS_UNTIL_S, layout_of, run_seed
from tests.verification.seeds import (
    Outcome,
    add_arguments,
    seeds_of,
    tell_marks,
    tell_totals,
    telling,
)

_PROGRAM = "python -m tests.verification.nodes"
#: From so many seeds on every mark must show.
_ENOUGH_FOR_MARKS = 20
_MEMORY = Path("/dev/shm")


def command(arguments: list[str]) -> int:
    """Run what the command line asks for; return the exit code."""
    asked = _arguments(arguments)
    if not asked.log:
        structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
        logging.disable()
    if asked.mutant in MUTANTS:
        MUTANTS[asked.mutant]()
    if asked.far is not None:
        return _far(asked.far)
    if asked.seed is not None:
        return _one(asked)
    started = perf_counter()
    seeds = seeds_of(asked)
    again = f"{_PROGRAM} --seed {{}}{_same(asked)}".format
    outcomes = list(telling(_run_all(seeds, asked), len(seeds), again))
    return _report(outcomes, asked, perf_counter() - started)


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="Simulate clusters of whole nodes with faults and check what they must keep.",
        epilog="example: make sim-nodes SEEDS=100",
    )
    add_arguments(parser, seeds=8)
    parser.add_argument("--check-trace", action="store_true",
                        help="run each seed twice: it must be one history")  # fmt: skip
    parser.add_argument("--faults-until", type=float, default=FAULTS_UNTIL_S, metavar="S",
                        help=f"seconds with faults (default {FAULTS_UNTIL_S:g})")  # fmt: skip
    parser.add_argument(
        "--mutant", choices=sorted({*MUTANTS, *PLACING}), help="break a rule: it must be found"
    )
    parser.add_argument("--weeks", choices=("by-the-runbook", "in-haste"),
                        help="three weeks in which disks are lost one after the other")  # fmt: skip
    parser.add_argument("--far", type=float, metavar="S",
                        help="how long commits take at sites that are so far apart")  # fmt: skip
    parser.add_argument("--trace", action="store_true", help="with --seed: print the history")
    parser.add_argument("--log", action="store_true", help="with --seed: print the nodes' logs")
    return parser.parse_args(arguments)


def _same(asked: argparse.Namespace) -> str:
    """Return the arguments without which a seed is another history."""
    found = f" --mutant {asked.mutant}" if asked.mutant else ""
    found += f" --weeks {asked.weeks}" if asked.weeks else ""
    if asked.faults_until != FAULTS_UNTIL_S:
        found += f" --faults-until {asked.faults_until:g}"
    return found


# -- processes -------------------------------------------------------------------------------------


def _run_all(seeds: range, asked: argparse.Namespace) -> Iterator[Outcome]:
    """Yield the outcomes in the order of the seeds."""
    again = 2 if asked.check_trace else 1
    waiting = [(seed, turn) for seed in seeds for turn in range(again)]
    running: dict[int, tuple[int, int]] = {}
    done: dict[int, list[Outcome]] = {seed: [] for seed in seeds}
    following = iter(seeds)
    seed = next(following, None)
    while seed is not None:
        while waiting and len(running) < asked.jobs:
            chosen, _ = waiting.pop(0)
            pipe = _fork(chosen, asked)
            running[pipe] = (chosen, pipe)
        for pipe in select.select(list(running), [], [])[0]:
            chosen, _ = running.pop(pipe)
            done[chosen].append(_read(chosen, pipe))
        while seed is not None and len(done[seed]) == again:
            yield _compared(done[seed])
            seed = next(following, None)


def _fork(seed: int, asked: argparse.Namespace) -> int:
    """Run a seed in a process of its own; return where its outcome comes from.

    What killed nodes held, threads among it, ends with that process.
    """
    sys.stdout.flush()
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        data = b""
        try:
            data = pickle.dumps(_run(seed, asked))
        except BaseException:
            traceback.print_exc()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(data)
        sys.stdout.flush()
        os._exit(0)
    os.close(writing)
    return reading


def _read(seed: int, pipe: int) -> Outcome:
    with os.fdopen(pipe, "rb") as reading:
        data = reading.read()
    os.wait()
    if not data:
        text = "its process ended without an outcome"
        return Outcome(seed=seed, layout=layout_of(seed).name, violation=text)
    outcome: Outcome = pickle.loads(data)
    return outcome


def _directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="nodes-", dir=_MEMORY if _MEMORY.is_dir() else None))


def _run(seed: int, asked: argparse.Namespace) -> Outcome:
    root = _directory()
    log = print if asked.trace and asked.seed is not None else None
    try:
        if asked.weeks:
            return run_weeks(seed, root, waits=asked.weeks == "by-the-runbook", log=log)
        return run_seed(seed, root, until_s=asked.faults_until, log=log)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _compared(outcomes: list[Outcome]) -> Outcome:
    first = outcomes[0]
    if any(other.trace != first.trace for other in outcomes) and not first.violation:
        first.violation = "run twice, it is not one history"
    return first


def _far(delay_s: float) -> int:
    root = _directory()
    try:
        far_sites.tell(delay_s, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0


# -- telling ---------------------------------------------------------------------------------------


def _one(asked: argparse.Namespace) -> int:
    (outcome,) = _run_all(range(asked.seed, asked.seed + 1), asked)
    print("marks: " + ", ".join(f"{mark} {n}" for mark, n in sorted(outcome.marks.items())))
    print(
        f"seed {outcome.seed}, {outcome.layout}, trace {outcome.trace}, {outcome.events} events, "
        f"{outcome.epochs} epochs, {outcome.transactions} transactions, whole after "
        f"{outcome.healed_s:.1f} s, {outcome.simulated_s:.0f} s in {outcome.seconds:.1f} CPU s: "
        f"{outcome.violation or 'no violation'}"
    )
    return 1 if outcome.violation else 0


def _report(outcomes: list[Outcome], asked: argparse.Namespace, seconds: float) -> int:
    missing = tell_marks(outcomes, () if asked.weeks else EXPECTED, _ENOUGH_FOR_MARKS)
    healed = sorted(outcome.healed_s for outcome in outcomes)
    print(f"whole again after: median {healed[len(healed) // 2]:.1f} s, most {healed[-1]:.1f} s")
    simulated, spent = sum(o.simulated_s for o in outcomes), sum(o.seconds for o in outcomes)
    most, rate = max(outcome.seconds for outcome in outcomes), simulated / max(spent, 1e-9)
    print(
        f"{simulated:.0f} simulated s, {spent:.0f} CPU s ({spent / len(outcomes):.1f} a seed, most "
        f"{most:.1f}), {rate:.1f} x real time; took {seconds:.0f} s"
    )
    tell_totals(outcomes, missing, as_json=asked.json)
    return 1 if missing or any(outcome.violation for outcome in outcomes) else 0
