"""How a demo ends: with a drill, which counts, and whose report stays when the sites go."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from sparktxlog.cli.demo import narration
from sparktxlog.cli.demo.demo_nodes import Cluster
from sparktxlog.cli.demo.narration import Narration, run_story
from sparktxlog.cli.demo.sites import Sites


class Outcome:
    """A demo that passed."""

    seconds = 0.0
    passed = True

    def to_json(self) -> dict[str, Any]:
        return {"equal": True, "passed": True}

    def show(self, console: Console) -> None:
        console.print("equal")


class Short(Narration):
    """A demo without processes, whose drill finds what it is told to find."""

    def __init__(self, directory: Path, console: Console, *, survives: bool) -> None:
        quiet = type("Quiet", (), {"stop": lambda self: None})()
        super().__init__(directory, console, cast(Cluster, quiet), cast(Sites, quiet), Outcome())
        self.survives = survives

    def run(self) -> None:
        (self.directory / "site-a").mkdir()
        (self.directory / "relays.log").touch()

    def drill(self) -> dict[str, Any]:
        page = self.directory / "reports" / "drill.md"
        page.parent.mkdir()
        page.touch()
        return {"passed": self.survives, "report": str(page)}


def short(survives: bool) -> Callable[[Path, Console], Narration]:
    return lambda directory, console: Short(directory, console, survives=survives)


@pytest.mark.parametrize("survives", [True, False])
def test_the_report_stays_and_the_drill_counts(
    survives: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = tmp_path / "demo"
    monkeypatch.setattr(narration.tempfile, "mkdtemp", lambda prefix: str(root))
    assert run_story(short(survives), keep=False, directory=None, as_json=True) is survives
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] is survives and found["equal"]
    assert Path(found["drill"]["report"]).exists()
    # After a failure all stays, to be looked at.
    kept = {"reports"} if survives else {"reports", "site-a", "relays.log"}
    assert {path.name for path in root.iterdir()} == kept
