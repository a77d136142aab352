"""Makes docs/verdicts.md of the table of states that tests/unit/health/test_verdicts.py checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_TABLE = Path(__file__).resolve().parents[1] / "tests" / "testdata" / "verdicts.json"
_COMMANDS = ("workers", "peers", "plan", "verify --compare")
_HEAD = """# Verdicts

{note}

One function judges (`sparktxlog.health`): from a node's status it makes a verdict on the cluster
and one on each site. A verdict has a state, a code, a sentence and a way out. `sparktxlog status`,
its exit code, `log.status()`, the pages and their banner, `sparktxlog why`, Airflow's sensor,
Dagster's check and the metrics `sparktxlog_state`, `sparktxlog_site_verdict` and
`sparktxlog_finding` all say the same. Exit codes: 0 in sync, 3 lagging, 4 diverged.

A command about a part judges that part, and is never worse than `status`: `workers` all sites,
`plan` the site of the asked node, `verify --compare` all sites and what it compared. `peers` is 3,
too, while a link is down that nothing waits for.

`/readyz` answers another question: whether this one node can serve. It is 503 only for what is
wrong with the node itself, so a site that lags is ready, and a node that is paused is not.
`sparktxlog survival` and `drill` answer a third one: what the loss of a site would lose.
Both judge by one function, and end with 3 where a loss would not be survived.

The cluster gets the worst verdict that is found. The table lists states as node A of the sites A, B
and C sees them; the log ends at position 7. The same table is a test.

| when | state | exit code | code | what it means, and the way out | `/readyz` |
|---|---|---|---|---|---|
"""


_OTHERS = """
## What the other readers say

Pages show the verdict first. `why` is that of a transaction at position 7, of the first site that
has not applied it; the sensor waits until all sites are in sync. Alerts are those that the state
raises by itself; rates need more than one moment.

| when | `workers`, `peers`, `plan`, `verify --compare` | `why` | sensor | alerts | would not be \
survived, by `survival` and `drill` |
|---|---|---|---|---|---|
"""


def verdicts_page(note: str) -> str:
    """Return the page.

    Args:
        note: Says that the page is generated.
    """
    cases = json.loads(_TABLE.read_text())["cases"]
    first = _HEAD.format(note=note) + "".join(map(_row, cases))
    return first + _OTHERS + "".join(map(_row_of_others, cases))


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
