"""Verdicts on replicas (protocol S3) as a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sparktxlog.catchup.comparison import LogView, Plan, compare, recordable
from sparktxlog.model.report import ReplicaVerdict, TableState, WorkerReport
from sparktxlog.model.signature import TableSignature

HASH = "ab" * 32


def table(rows: int = 1, diverged: str = "") -> TableState:
    return TableState(version=3, signature=TableSignature(rows=rows), schema="s", diverged=diverged)


REPORT = WorkerReport(
    worker_id="w", node_id="A", lineage="l", epoch=1, position=100, chain_hash=HASH,
    tables={"t": table(), "u": table(2)},
)  # fmt: skip
LOG = LogView(lineage="l", position=100, published=100, chain_hash=HASH)
SAME = {"t": table().signature.to_text(), "u": table(2).signature.to_text()}


@pytest.mark.parametrize(
    ("report", "log", "verdict", "plan", "reason"),
    [
        ({}, {}, "KNOWN", "up-to-date", "at position 100"),
        ({}, {"recorded": SAME, "recorded_by": "B"}, "KNOWN", "up-to-date", ""),
        ({}, {"position": 150, "published": 130}, "KNOWN", "replay", "30 transactions"),
        ({}, {"position": 150, "published": 130, "kept_after": 110, "chain_hash": None},
         "KNOWN", "copy", "expired"),
        ({"position": 0, "chain_hash": "0" * 64}, {"published": 7}, "EMPTY", "replay", "7"),
        ({"position": 0, "chain_hash": ""}, {"published": 0, "position": 0}, "EMPTY",
         "up-to-date", ""),
        ({"position": 0, "chain_hash": ""}, {"kept_after": 5}, "EMPTY", "copy", "kept after"),
        ({"position": 101}, {}, "AHEAD", "stop", "ends at 100"),
        ({"lineage": "other"}, {}, "FOREIGN", "stop", "'other'"),
        ({"chain_hash": "cd" * 32}, {}, "DIVERGED", "stop", "another history"),
        ({}, {"chain_hash": None}, "DIVERGED", "stop", "no end of a run"),
        ({"tables": {"t": table(diverged="foreign commit 4")}}, {}, "DIVERGED", "stop",
         "foreign commit 4"),
        ({"tables": {"t": table(9), "u": table(2)}}, {"recorded": SAME, "recorded_by": "B"},
         "DIVERGED", "stop", "recorded first by B"),
        ({"tables": {"t": table()}}, {"recorded": SAME}, "DIVERGED", "stop", "'u' is missing"),
        ({}, {"recorded": {"t": SAME["t"]}}, "DIVERGED", "stop", "'u' was not recorded"),
    ],
)  # fmt: skip
def test_verdicts(
    report: dict[str, Any], log: dict[str, Any], verdict: str, plan: str, reason: str
) -> None:
    comparison = compare(replace(REPORT, **report), replace(LOG, **log))
    assert (comparison.verdict, comparison.plan) == (ReplicaVerdict(verdict), Plan(plan))
    assert reason in comparison.reason


def test_a_standing_table_is_never_the_known_state() -> None:
    assert recordable(REPORT) == SAME
    assert recordable(replace(REPORT, tables={"t": table(diverged="x")})) is None
