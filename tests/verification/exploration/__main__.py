"""Explore configurations, replay a violation (`make explore`)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.verification.exploration.configurations import CONFIGURATIONS
from tests.verification.exploration.mutants import MUTANTS
from tests.verification.mutation.isolation import run_all, run_isolated

_RUNS = "tests.verification.exploration.runs"


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore, each configuration in a process of its own; return 1 if an invariant was broken."""
    # Not before: a process with a mutated core imports this module.
    from tests.verification.exploration.reports import document, story

    options = _parser().parse_args(arguments)
    patches = MUTANTS[options.mutant] if options.mutant else ()
    if options.replay:
        steps = options.steps.split(",")
        code, said = run_isolated(patches, f"{_RUNS}:replay", options.replay, steps)
        print("\n".join(said))
        return int(code)
    names = options.names or list(CONFIGURATIONS)
    tasks = [(patches, f"{_RUNS}:run_one", (name, options.limit)) for name in names]
    found = []
    for result in run_all(tasks, options.jobs):
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


if __name__ == "__main__":
    sys.exit(main())
