"""Makes tables of docs/verdicts.md and docs/verdicts-elsewhere.md.

Their states are those that tests/unit/health/test_verdicts.py checks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_TABLE = Path(__file__).resolve().parents[1] / "tests" / "testdata" / "verdicts.json"
_COMMANDS = ("workers", "peers", "plan", "verify --compare")
_STATES = """\
| when | code | what it means, and the way out | `/readyz` |
|---|---|---|---|
"""
_READERS = """\
| when | `workers`, `peers`, `plan`, `verify --compare` | `why` | sensor | alerts | would not be \
survived, by `survival` and `drill` |
|---|---|---|---|---|---|
"""
#: State → heading, the worst first.
_HEADINGS = {
    "diverged": "Diverged, exit code 4",
    "lagging": "Lagging, exit code 3",
    "in sync": "In sync, exit code 0",
    "witness": "A witness, exit code 0",
}
#: Stands for the sentence of the verdict, with its way out.
_VERDICT = "*verdict*"


def table_of_verdicts() -> str:
    """Return what the judge says in each state of the cluster: a table for each verdict."""
    rows: dict[str, dict[tuple[str, ...], list[str]]] = {state: {} for state in _HEADINGS}
    for case in _cases():
        rows[case["says"]["state"]].setdefault(_verdict(case["says"]), []).append(case["case"])
    return "\n".join(
        f"## {_HEADINGS[state]}\n\n{_STATES}{_merged(found)}" for state, found in rows.items()
    )


def table_of_readers() -> str:
    """Return what the other readers say in each state of the cluster."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for case in _cases():
        rows.setdefault(_said_elsewhere(case["says"]), []).append(case["case"])
    return _READERS + _merged(rows)


def _merged(rows: dict[tuple[str, ...], list[str]]) -> str:
    """Return lines of a table; states with equal cells share one."""
    return "".join(_line("; ".join(cases), *cells) for cells, cases in rows.items())


def _cases() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads(_TABLE.read_text())["cases"]
    return cases


def _verdict(said: dict[str, Any]) -> tuple[str, ...]:
    unready = f"503: {', '.join(said['unready'])}" if said["unready"] else "200"
    return f"`{said['code']}`", _sentences(said), unready


def _sentences(said: dict[str, Any]) -> str:
    return " ".join(part for part in (said["text"].rstrip(".") + ".", said["way_out"]) if part)


def _said_elsewhere(said: dict[str, Any]) -> tuple[str, ...]:
    codes = ", ".join(str(said["exits"][name]) for name in _COMMANDS)
    why = " ".join(said["why"].split()).replace(_sentences(said), _VERDICT)
    kind, text = said["sensor"]
    text = text.replace(said["text"], _VERDICT)
    sensor = f"{kind}: {text}" if text else "is done"
    lost = [f"{site}: {'; '.join(why)}" for site, why in said["survival"].items()]
    more = [f"{site}, by the drill alone" for site in said["drill"] if site not in said["survival"]]
    alerts = ", ".join(said["alerts"]) or "none"
    return codes, why, sensor, alerts, ". ".join(lost + more) or "none"


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
