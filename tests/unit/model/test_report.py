"""Reports of workers: what they say of a replica's last copy, and of its tables."""

from __future__ import annotations

import pytest

from sparktxlog.model.report import TableState, WorkerReport
from sparktxlog.model.signature import TableSignature


def _report(copied_from: str = "", **tables: TableState) -> WorkerReport:
    return WorkerReport(
        worker_id="w",
        node_id="A",
        log_id="l",
        epoch=1,
        position=10,
        chain_hash="ab" * 32,
        copied_from=copied_from,
        tables=tables,
    )


@pytest.mark.parametrize(
    ("copied_from", "origin"),
    [
        ("", ("", 0)),
        ("B@1200/3f0c", ("B", 1_200)),
        ("B@1200", ("B", 1_200)),
        ("B/reports@7/1", ("B/reports", 7)),
        ("B@x/1", ("", 0)),
        ("@5/1", ("", 0)),
    ],
)
def test_a_report_says_where_its_replica_was_copied_from(
    copied_from: str, origin: tuple[str, int]
) -> None:
    assert _report(copied_from).copy_origin == origin


def test_lines_of_tables_are_in_order_and_have_signatures_as_text() -> None:
    signature = TableSignature(rows=1, lane0=2, lane1=3)
    state = TableState(version=4, signature=signature, schema="s")
    lines = _report(u=state, t=state).table_lines()
    assert list(lines) == ["t", "u"]
    shown = {"version": 4, "signature": signature.to_text(), "schema": "s", "diverged": ""}
    assert lines["t"] == shown
