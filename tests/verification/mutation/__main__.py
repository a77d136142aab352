"""`python -m tests.verification.mutation`: break each rule and see that something finds out.

Prints the tables and writes them to docs/verification/mutants*.md.  Exit code 1: a mutation
survived that is not listed as a survivor.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track
from tests.verification.mutation.isolation import run_all
from tests.verification.mutation.mutant import BY_NAME, MUTANTS, Killer, Result

#: Runs in a process of its own.
EXAMINE = "tests.verification.mutation.killers:examine"
#: Where the pages are, when run in the repository.
_PAGES = Path("docs/verification")


def examine_all(
    names: Sequence[str], budget_s: float, killers: Sequence[Killer] = (), *, jobs: int = 1
) -> Iterator[Result]:
    """Let what may find mutations look for each of them; see `killers.examine`."""
    mutants = [BY_NAME[name] for name in names]
    tasks = [(mutant.patches, EXAMINE, (mutant, budget_s, killers)) for mutant in mutants]
    return run_all(tasks, jobs)


def main() -> int:
    """Run what the command line asks for."""
    arguments = _arguments()
    names = arguments.only or [mutant.name for mutant in MUTANTS]
    unknown = sorted(set(names) - BY_NAME.keys())
    if unknown:
        print(f"no such mutation: {', '.join(unknown)}", file=sys.stderr)
        return 2
    # Not before: a process with a mutated core imports this module.
    from tests.verification.mutation.report import as_json, finder, pages

    console = Console(stderr=True)
    running = examine_all(names, arguments.budget, jobs=arguments.jobs)
    results = []
    for result in track(running, "mutants", total=len(names), console=console, transient=True):
        results.append(result)
        found = "survived" if result.kill is None else f"found by {finder(result.kill)}"
        console.print(f"{result.name}: {found}", highlight=False)
    texts = pages(results)
    if not arguments.only and arguments.pages.is_dir():
        for name, text in texts.items():
            (arguments.pages / name).write_text(text)
    print(json.dumps(as_json(results)) if arguments.json else "\n".join(texts.values()))
    unexpected = [result.name for result in results if not result.is_expected]
    if unexpected:
        print(f"survived: {', '.join(unexpected)}", file=sys.stderr)
    return 1 if unexpected else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.verification.mutation",
        description="Break each rule of the protocol once and see what finds out.",
        epilog='example: make mutants MUTANT_ARGS="--budget 300 --only lowest-ballot"',
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=60.0,
        help="CPU seconds for each way to find one (default 60)",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these mutations; no page then")
    parser.add_argument(
        "--pages", type=Path, default=_PAGES, help=f"directory of the pages ({_PAGES})"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
