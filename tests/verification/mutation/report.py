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
_FIRST = "mutants.md"
#: Page → what its rules are about, and the rules, without the letters of their parts.
PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    _FIRST: ("one order", ("P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P10")),
    "mutants-epochs.md": (
        "epochs",
        ("P11", "P12", "P13", "P14", "P15", "P16", "P17", "P37", "P39", "P40"),
    ),
    "mutants-returns.md": (
        "nodes that come back",
        ("P18", "P19", "P20", "P21", "P22", "P23", "P25b", "P25c", "P29", "P30", "P31"),
    ),
    "mutants-sites.md": ("clocks, followers, groups, void runs", ("C1", "C3", "P32", "P38", "P41")),
    "mutants-transactions.md": ("transactions and changes of tables", ("P27", "P33", "P35")),
    "mutants-tables.md": ("synchronous transactions and commit tables", ("P34", "P36")),
}
_PAGE_OF = {rule: page for page, (_, rules) in PAGES.items() for rule in rules}
_LONGEST = 110


def pages(results: Sequence[Result]) -> dict[str, str]:
    """Return the text of each page, by its name; the first one has totals and survivors."""
    found = [result for result in results if result.kill is not None]
    left = [
        "| Rule | Mutation | Tried | Why it survives |",
        "|---|---|---|---|",
        *(_survivor(result) for result in results if result.kill is None),
    ]
    texts = {}
    for page, (about, rules) in PAGES.items():
        table = [
            "| Rule | Mutation | Lines of | Found by | After | What was violated |",
            "|---|---|---|---|---|---|",
            *(_row(result) for result in found if page_of(result.mutant.rule) == page),
            "",
        ]
        if page == _FIRST:
            total = f"{len(results)} mutations, {len(found)} found."
            listed = [f"- [{what}]({name})" for name, (what, _) in PAGES.items() if name != _FIRST]
            heading = f"## Rules of {about}"
            parts = [_HEAD, total, "", "Other rules:", "", *listed, "", heading, "", *table]
            texts[page] = "\n".join([*parts, "## Survivors", "", *left, ""])
        else:
            head = f"# Mutations: {about}"
            text = (
                f"Written by `make mutants`; do not edit. [Mutations]({_FIRST}) explains the lines."
            )
            named = f"Rules: {', '.join(rules)}."
            texts[page] = "\n".join([head, "", text, named, "", *table])
    return texts


def page_of(rule: str) -> str:
    """Return the page that has the mutations of a rule, such as P25b.

    Raises:
        ValueError: No page has it.
    """
    page = _PAGE_OF.get(rule) or _PAGE_OF.get(rule.rstrip("abcdefghijklmnopqrstuvwxyz"))
    if page is None:
        raise ValueError(f"rule {rule} has no page: name it in PAGES of {__name__}")
    return page


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
