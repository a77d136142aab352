"""The table of mutations with what found them, as Markdown and as one JSON object."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tests.verification.mutation.mutant import Kill, Killer, Result
from tests.verification.mutation.traces import TRACES

_HEAD = """\
# Mutations of the protocol core

Written by `make mutants`; do not edit. Each line is a *mutant*: the core with one rule
([rules.md](../rules.md)) broken in one way, by a text patch to some of its lines
(`tests/verification/mutation/mutants`). The line also says what found it:

- a random schedule of normal operation (`tests/verification/strategies.py`);
- a seed of the simulation of clusters (`simulation`, with a fault every five simulated seconds);
- a *trace*: a short, fixed history of one core (`mutation/traces.py`).

A mutant that nothing finds must be one of the six that are known to be harmless, with the reason.
"""
_LONGEST = 110


def markdown(results: Sequence[Result]) -> str:
    """Return the whole page."""
    found = [result for result in results if result.kill is not None]
    rows = [
        "| Rule | Mutation | Lines of | Found by | After | What was violated |",
        "|---|---|---|---|---|---|",
        *(_row(result) for result in results if result.kill is not None),
    ]
    left = [
        "| Rule | Mutation | Tried | Why it survives |",
        "|---|---|---|---|",
        *(_survivor(result) for result in results if result.kill is None),
    ]
    return "\n".join(
        [
            _HEAD,
            f"{len(results)} mutations, {len(found)} found.",
            "",
            *rows,
            "",
            "## Survivors",
            "",
            *left,
            "",
        ]
    )


def as_json(results: Sequence[Result]) -> dict[str, Any]:
    """Return the totals and one object for each mutation."""
    return {
        "mutants": len(results),
        "killed": sum(result.kill is not None for result in results),
        "survivors": [r.name for r in results if r.kill is None],
        "unexpected": [r.name for r in results if not r.is_expected],
        "results": [
            {
                "name": r.name,
                "rule": r.mutant.rule,
                "kill": None if r.kill is None else asdict(r.kill),
                "tried": r.tried,
                "seconds": round(r.seconds, 1),
            }
            for r in results
        ],
    }


def _row(result: Result) -> str:
    mutant, kill = result.mutant, result.kill
    assert kill is not None
    runs = f"{kill.runs} run{'' if kill.runs == 1 else 's'}"
    return (
        f"| {mutant.rule} | `{mutant.name}`: {mutant.says} | {mutant.where} | "
        f"{finder(kill)} | {runs}, {kill.seconds:.1f} s | {_violated(kill)} |"
    )


def finder(kill: Kill) -> str:
    """Return what found a mutation."""
    if kill.killer is Killer.TRACE:
        return f"trace `{kill.where}`"
    return kill.where


def _survivor(result: Result) -> str:
    mutant = result.mutant
    tried = ", ".join(f"{runs} {killer} runs" for killer, runs in result.tried.items())
    reason = mutant.survives or "**not expected to survive**"
    return f"| {mutant.rule} | `{mutant.name}`: {mutant.says} | {tried} | {reason} |"


def _violated(kill: Kill) -> str:
    """Return the violation, or what a trace asserts when its assertion has no text."""
    rules = {trace.__name__: trace.__doc__ or "" for trace in TRACES}
    return _short(kill.violation) or _short(rules.get(kill.where, ""))


def _short(violation: str) -> str:
    """Return the head of a violation without times and types, fit for a table."""
    text = re.sub(r"^\w+: |\[invariant\] |at [\d.]+ s: ", "", violation.split("\n")[0])
    text = re.sub(
        r"RunHeader\(epoch=(\d+), ts=(\d+), origin='(\w+)', .*?seq=(\d+).*?(\)|$)",
        r"run \3:\4 of epoch \1",
        text,
    )
    text = re.sub(r"\[invariant\] |at [\d.]+ s: ", "", text).replace("|", "\\|")
    return text if len(text) <= _LONGEST else text[:_LONGEST].rstrip() + " …"
