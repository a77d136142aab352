"""The short form of `make puts`: many threads put into a bucket whose way fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.verification.places import places_in
from tests.verification.puts.__main__ import put

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.slow]


def test_what_was_acknowledged_is_there_once_and_whole(tmp_path: Path) -> None:
    with places_in(tmp_path, "s3", 0.05, seed=5) as places:
        found = put(places, puts=600, faulty=0.15, seed=5, processes=1, quiet=True)
    assert found.violations == []
    assert found.puts >= 600
    # There were writers that lost, and some that do not know; most kinds of faults befell some.
    told = {told for _, told in found.record.count}
    assert {"new", "done", "lost", "unknown"} <= told
    assert {"throttled", "lost", "failed", "delayed"} <= found.record.faults.keys()
