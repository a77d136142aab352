"""Makes docs/verdicts.md of the table of states that tests/unit/health/test_verdicts.py checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_TABLE = Path(__file__).resolve().parents[1] / "tests" / "testdata" / "verdicts.json"
_HEAD = """# Verdicts

{note}

One function judges (`sparktxlog.health`): from a node's status it makes a verdict on the cluster
and one on each site. A verdict has a state, a code, a sentence and a way out. `sparktxlog status`,
its exit code, `log.status()`, the pages and their banner, `sparktxlog why`, Airflow's sensor,
Dagster's check and the metrics `sparktxlog_state` and `sparktxlog_site_verdict` all say the same.
Exit codes: 0 in sync, 3 lagging, 4 diverged.

`/readyz` answers another question: whether this one node can serve. It is 503 only for what is
wrong with the node itself, so a site that lags is ready, and a node that is paused is not.

The cluster gets the worst verdict that is found. The table lists states as node A of the sites A, B
and C sees them; the log ends at position 7. The same table is a test.

| when | state | exit code | code | what it means, and the way out | `/readyz` |
|---|---|---|---|---|---|
"""


def verdicts_page(note: str) -> str:
    """Return the page.

    Args:
        note: Says that the page is generated.
    """
    cases = json.loads(_TABLE.read_text())["cases"]
    return _HEAD.format(note=note) + "".join(map(_row, cases))


def _row(case: dict[str, Any]) -> str:
    said = case["says"]
    text = " ".join(part for part in (said["text"].rstrip(".") + ".", said["way_out"]) if part)
    unready = f"503: {', '.join(said['unready'])}" if said["unready"] else "200"
    cells = (case["case"], said["state"], said["exit"], f"`{said['code']}`", text, unready)
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |\n"
