"""`make demo` with `--witness --kill SITE`: two sites, and nobody who repairs anything by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.test_demo import run_demo

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.slow, pytest.mark.faults]


@pytest.mark.timeout(800)
@pytest.mark.parametrize("victim", ["A", pytest.param("B", marks=pytest.mark.repeated)])
def test_with_a_witness_either_site_may_be_lost(tmp_path: Path, victim: str) -> None:
    directory = tmp_path / "demo"
    found = run_demo(directory, "--scale", "0.012", "--witness", "--kill", victim)
    assert found["equal"] is True
    assert found["source_differences"] == 0
    assert found["witness"] == "W"
    assert set(found["positions"]) == {"A", "B"}
    assert len(set(found["positions"].values())) == 1
    assert found["signatures"]["A"] == found["signatures"]["B"]
    assert found["cut_site"] == "B"
    # Out with one epoch, in again with another: nobody was asked.
    assert found["killed"] == victim
    assert len(set(found["epochs"].values())) == 1
    assert found["epochs"]["A"] >= 3
    assert found["evicted_s"] > 0
    assert found["rejoined_s"] > 0
    assert (directory / "site-a" / "lake" / "flights" / "_delta_log").is_dir()
    assert not (directory / "site-w" / "lake").exists()
