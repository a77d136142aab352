"""On real nodes a site is killed, then cut off; a backup is restored; nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.verification.rehearsal.rehearsing import Rehearsals

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.slow, pytest.mark.faults]

SITES = ("paris", "oslo", "rome")


@pytest.mark.timeout(420)
def test_no_commit_is_lost_and_writers_go_on_after_suspect_timeout(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = Rehearsals(tmp_path, SITES, 2.0).run(spark.newSession())
    # Each writer has two commits before, and two after each of two faults, however slow it is.
    assert found.lost == {site: [] for site in SITES} and found.ordered >= len(SITES) * 6
    assert len(found.rehearsals) == 2
    for one in found.rehearsals:
        # The others wait for the site for suspect-timeout, or a little less: the silence begins
        # with the last post before the fault.
        assert 1 < max(one.pause_s.values()) < 60 and one.return_s > 0
    assert set(found.signatures) == set(SITES) and len(set(found.signatures.values())) == 1
    assert found.wrong == {}
