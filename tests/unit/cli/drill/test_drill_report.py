"""What a drill says of what it found."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparktxlog.cli.drill.drill_report import DrillReport, Rehearsal


def _report(**changes: object) -> DrillReport:
    lost = Rehearsal(name="loss of A", what="<lost>", shown=1_200)
    restored = Rehearsal(name="restore", what="restored", pause_s={"restore": 4.04})
    for name, value in changes.items():
        setattr(lost, name, value)
    return DrillReport(
        began_at=1_700_000_000_000_000,
        sites=["A", "B", "C"],
        suspect_timeout_s=4.0,
        rehearsals=[lost, restored],
        seconds=41.0,
    )


def test_a_drill_without_loss_passes() -> None:
    report = _report()
    assert report.passed and report.to_json()["passed"]
    text = report.markdown()
    assert "| loss of A | 0 of 1,200 |  | none |" in text
    assert "| restore | 0 of 0 | restore 4.0 s | none |" in text
    assert "**Passed: the loss of any one site now would lose nothing" in text
    assert "&lt;lost&gt;" in report.html() and "<lost>" not in report.html()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lost": 2}, "FAILED: 2 transactions are at one site only"),
        ({"problems": ["no majority"]}, "FAILED: loss of A: no majority"),
    ],
)
def test_what_would_be_lost_or_stand_still_fails(changes: dict[str, object], text: str) -> None:
    report = _report(**changes)
    assert not report.passed and report.verdict() == text == report.to_json()["verdict"]


def test_each_drill_is_a_page(tmp_path: Path) -> None:
    page = _report().write(tmp_path / "reports")
    assert page.name == "drill-2023-11-14-221320.md" and page.with_suffix(".html").is_file()
