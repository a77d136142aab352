"""The short form of `make rivals`: commits from three sites while nodes are killed and cut off."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.verification.rivals.__main__ import run

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.slow]


def test_no_row_is_lost_or_doubled_and_histories_are_equal(tmp_path: Path) -> None:
    found = run(tmp_path, commits=120, tables=2, writers=1, seed=5)
    assert found.violations == []
    assert len(found.told.committed) >= 120
    assert {site for site, _ in found.told.committed.values()} == {"A", "B", "C"}
    # There were faults, and writers that lost, so the rules of both were needed.
    assert found.faults.total() >= 3
    assert max(found.told.attempts) > 1
