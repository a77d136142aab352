"""What a drill says of what it found."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from sparktxlog.cli.drill.drill_report import DrillReport, Rehearsal


def _report(**changes: object) -> DrillReport:
    report = DrillReport(
        began_at=1_700_000_000_000_000,
        sites=["A", "B", "C"],
        suspect_timeout_s=4.0,
        rehearsals=[
            Rehearsal(
                name="site-lost",
                what="<killed>",
                pause_s={"A": 4.04, "B": 3.0},
                return_s=1.25,
                told=1_200,
            )
        ],
        signatures={"A": "1:x", "B": "1:x", "C": "1:x"},
        seconds=41.0,
    )
    for name, value in changes.items():
        setattr(report, name, value)
    return report


def test_a_drill_without_loss_passes() -> None:
    report = _report()
    assert report.passed and report.to_json()["passed"]
    text = report.markdown()
    assert "| site-lost | 0 of 1,200 | A 4.0 s, B 3.0 s | 1.2 s | none |" in text
    assert "**Passed: no commit of 1,200 that a writer was told was lost, and the sites'" in text
    assert "&lt;killed&gt;" in report.html() and "<killed>" not in report.html()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lost": 2}, "FAILED: site-lost: 2 commits lost"),
        ({"problems": ["C did not come back"]}, "FAILED: site-lost: C did not come back"),
    ],
)
def test_what_is_lost_or_does_not_come_back_fails(changes: dict[str, object], text: str) -> None:
    report = _report()
    for name, value in changes.items():
        setattr(report.rehearsals[0], name, value)
    assert not report.passed and report.verdict() == text


def test_unequal_signatures_fail() -> None:
    report = _report(signatures={"A": "1:x", "B": "1:y"})
    assert not report.passed and "signatures differ" in report.verdict()


def test_each_drill_is_a_page_and_a_row(tmp_path: Path) -> None:
    for _ in range(2):
        _report().record(tmp_path / "log")
    rows = DeltaTable(tmp_path / "log" / "drills").to_pyarrow_table().to_pylist()
    assert [(row["lost"], row["longest_pause_s"], row["passed"]) for row in rows] == [
        (0, 4.04, True)
    ] * 2
    page = _report().write(tmp_path / "reports")
    assert page.name == "drill-2023-11-14-221320.md" and page.with_suffix(".html").is_file()
