"""The short forms of `make rivals` and `make list-appends`: nodes are killed and cut off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.verification.rivals.__main__ import run
from tests.verification.rivals.list_appends import run as run_lists
from tests.verification.torture.list_append import Seen

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.slow]


def test_no_row_is_lost_or_doubled_and_histories_are_equal(tmp_path: Path) -> None:
    found = run(tmp_path, commits=240, tables=2, writers=1, seed=5)
    assert found.violations == []
    assert len(found.told.committed) >= 240
    assert {site for site, _ in found.told.committed.values()} == {"A", "B", "C"}
    # There were faults, and writers that lost, so the rules of both were needed.
    assert found.faults.total() >= 2
    assert max(found.told.attempts) > 1
    assert found.told.pairs > 0


@pytest.mark.repeated
@pytest.mark.timeout(600)
def test_rows_in_a_bucket_that_fails_are_there_once(tmp_path: Path) -> None:
    """Throttled and late requests, lost and cut answers, old lists, a bucket that is away."""
    found = run(
        tmp_path, commits=120, tables=2, writers=1, seed=5, pause=3, store="s3", faulty=0.03
    )
    assert found.violations == []
    assert len(found.told.committed) >= 120
    assert {site for site, _ in found.told.committed.values()} == {"A", "B", "C"}
    assert found.faults.total() >= 2
    # Each kind of fault befell some request; of lists that are asked for twice there are few.
    faults = {"throttled", "lost", "failed", "cut", "delayed", "away"}
    assert faults <= found.requests.keys()


def test_lists_of_deltas_java_client_are_serializable(tmp_path: Path) -> None:
    """Delta's serializable isolation: who read what the winners added to fails."""
    found = run_lists(tmp_path, commits=150, tables=2, sessions=2, seed=5, pause=4)
    assert found.judged() == []
    told = found.told
    assert told["ordered"] >= 150
    assert min(told["read"], told["rejected"], found.faults.total()) > 0
    # The same history with a lost update: the check is not blind on real ones.
    at, one, name = next(
        (at, one, name)
        for at, one in enumerate(found.transactions)
        for name, seen in one.reads.items()
        if one.told == "ordered" and name in one.appends and seen.length
    )
    elements, length = one.reads[name]
    found.transactions[at] = replace(one, reads={**one.reads, name: Seen(elements, length - 1)})
    assert "G-single" in {anomaly.kind for anomaly in found.judged()}
