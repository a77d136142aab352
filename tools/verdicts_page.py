"""Makes tables of docs/verdicts.md of the states that tests/unit/health/test_verdicts.py checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_TABLE = Path(__file__).resolve().parents[1] / "tests" / "testdata" / "verdicts.json"
_COMMANDS = ("workers", "peers", "plan", "verify --compare")
_STATES = """\
| when | state | exit code | code | what it means, and the way out | `/readyz` |
|---|---|---|---|---|---|
"""
_READERS = """\
| when | `workers`, `peers`, `plan`, `verify --compare` | `why` | sensor | alerts | would not be \
survived, by `survival` and `drill` |
|---|---|---|---|---|---|
"""


def table_of_verdicts() -> str:
    """Return what the judge says in each state."""
    return _STATES + "".join(map(_row, _cases()))


def table_of_readers() -> str:
    """Return what the other readers say in each state."""
    return _READERS + "".join(map(_row_of_others, _cases()))


def _cases() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads(_TABLE.read_text())["cases"]
    return cases


def _row(case: dict[str, Any]) -> str:
    said = case["says"]
    text = " ".join(part for part in (said["text"].rstrip(".") + ".", said["way_out"]) if part)
    unready = f"503: {', '.join(said['unready'])}" if said["unready"] else "200"
    return _line(case["case"], said["state"], said["exit"], f"`{said['code']}`", text, unready)


def _row_of_others(case: dict[str, Any]) -> str:
    said = case["says"]
    codes = ", ".join(str(said["exits"][name]) for name in _COMMANDS)
    kind, text = said["sensor"]
    sensor = f"{kind}: {text}" if text else "is done"
    lost = [f"{site}: {'; '.join(why)}" for site, why in said["survival"].items()]
    more = [f"{site}, by the drill alone" for site in said["drill"] if site not in said["survival"]]
    alerts = ", ".join(said["alerts"]) or "none"
    return _line(case["case"], codes, said["why"], sensor, alerts, ". ".join(lost + more) or "none")


def _line(*cells: object) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |\n"
