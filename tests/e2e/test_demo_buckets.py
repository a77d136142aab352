"""`make demo` with `--store s3`: the sites' tables in a bucket, a cut, and two kills."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.test_demo import run_demo

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.slow, pytest.mark.faults]


@pytest.mark.timeout(1500)
def test_the_demo_passes_with_tables_in_a_bucket(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    found = run_demo(directory, "--store", "s3", "--scale", "0.006", timeout_s=1450)
    assert found["equal"] is True
    assert found["source_differences"] == 0
    assert len(set(found["positions"].values())) == 1
    assert found["signatures"]["A"] == found["signatures"]["B"] == found["signatures"]["C"]
    assert set(found["signatures"]["A"]) == {"aircraft_position", "flights", "planes", "weather"}
    assert (found["cut_site"], found["killed"], found["killed_worker"]) == ("C", "B", "C")
    assert found["rejoined_s"] > 0
    asked = found["bucket_requests"]
    assert set(asked) == set("ABC")
    for of_site in asked.values():
        assert of_site["node"]["put"]["requests"] + of_site["node"]["get"]["requests"] > 0
        assert of_site["worker"]["put"]["requests"] > 0
    # C's worker was started again; it may have had little left to do.
    for site in "AB":
        assert asked[site]["worker"]["put"]["requests"] > 10
        assert asked[site]["worker"]["put"]["bytes"] > 10_000
    for site in "abc":
        tables = directory / f"site-{site}" / "lake"
        assert [path for path in tables.rglob("*") if path.suffix == ".parquet"] == []
