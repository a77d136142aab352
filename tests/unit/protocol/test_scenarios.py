"""Scenario files: `pytest --rewrite` writes the results of this run into them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.verification.scenario import run_file

FILES = sorted((Path(__file__).parents[2] / "testdata" / "rounds").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    expected = path.read_text()
    result = run_file(expected)
    if request.config.getoption("--rewrite"):
        path.write_text(result)
    else:
        assert result == expected


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 10
