"""Explore configurations, replay a violation (`make explore`)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tests.verification.exploration.configurations import CONFIGURATIONS
from tests.verification.exploration.mutants import MUTANTS
from tests.verification.exploration.reports import document, story
from tests.verification.exploration.runs import core_of, run_one
from tests.verification.exploration.space import Exploration, Space

from sparktxlog.errors import InvariantViolation


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore; return 1 if an invariant was broken."""
    options = _parser().parse_args(arguments)
    if options.replay:
        return _replay(options.replay, options.steps.split(","), options.mutant)
    names = options.names or list(CONFIGURATIONS)
    run = partial(run_one, limit=options.limit, mutant=options.mutant)
    found: list[Exploration] = []
    for result in _results(run, names, options.jobs):
        found.append(result)
        if result.violation:
            print(story(result, options.mutant), flush=True)
        # Written anew with each one: a long run that is stopped leaves what it has.
        if options.write:
            options.write.write_text(document(found))
        if options.json:
            text = json.dumps([asdict(one) for one in found], indent=1)
            options.json.write_text(text + "\n")
    if not (options.write or options.json):
        print(document(found))
    return int(any(result.violation for result in found))


def _results(
    run: Callable[[str], Exploration], names: Sequence[str], jobs: int
) -> Iterator[Exploration]:
    if jobs == 1:
        yield from map(run, names)
        return
    with ProcessPoolExecutor(jobs, max_tasks_per_child=1) as pool:
        yield from pool.map(run, names)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="exploration", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="configurations; default: all")
    parser.add_argument("--limit", type=int, default=1_500_000, help="states of each, at most")
    parser.add_argument("--jobs", type=int, default=1, help="configurations at once")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page there")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), default="", help="break a rule")
    parser.add_argument("--replay", metavar="NAME", help="take the steps given by --steps")
    parser.add_argument("--steps", default="", help="names of steps, separated by commas")
    return parser


def _replay(name: str, steps: Sequence[str], mutant: str) -> int:
    with core_of(mutant) as core:
        space = Space(CONFIGURATIONS[name], core)
        state = space.begin()
        for step in filter(None, steps):
            try:
                words, state = space.follow(state, step)
            except KeyError:
                print(f"there is no step {step} here")
                return 2
            except (InvariantViolation, AssertionError) as error:
                print(f"{step}\n{type(error).__name__}: {error}")
                return 1
            print(words)
        for number in state[: len(space.names)]:
            node = space.nodes.facts[number]
            queue = [f"{e.header.origin}:{e.header.seq}" for e in node.queue]
            epoch = 1 if node.view is None else node.view.epoch
            print(f"{node.name}: {node.phase}, epoch {epoch}, queue {queue}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
