"""The report of a switch of sites: a line for each step, in each form."""

from __future__ import annotations

from pathlib import Path

from sparktxlog.cli.switch.switch_report import BEFORE, DONE, SwitchReport, SwitchStep


def report(*states: str) -> SwitchReport:
    steps = [
        SwitchStep(name=f"s{number}", what="<x>", state=state, seconds=1.234)
        for number, state in enumerate(states)
    ]
    return SwitchReport(old="A", new="F", began_at=1, steps=steps, members=["F", "B"], epoch=7)


def test_only_a_step_that_was_done_now_has_seconds() -> None:
    assert [row[3] for row in report(DONE, BEFORE, "to do").rows()] == ["1.23", "", ""]


def test_the_verdict_says_what_became_of_it(tmp_path: Path) -> None:
    done, planned, refused = report(DONE, BEFORE), report(BEFORE, "to do"), report("to do")
    refused.problems = ["F is paused"]
    done.warnings = ["A was not asked"]
    assert done.verdict() == "F is in and A is out; members of epoch 7: F, B."
    assert planned.verdict().endswith("nothing was changed.") and not planned.finished
    assert refused.verdict() == "Refused, nothing was changed: F is paused."
    assert done.to_json()["finished"] and done.to_json()["steps"][0]["seconds"] == 1.234
    page = done.write(tmp_path)
    assert "- Warning: A was not asked." in page.read_text()
    assert "&lt;x&gt;" in page.with_suffix(".html").read_text()
