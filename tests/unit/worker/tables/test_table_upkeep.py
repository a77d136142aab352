"""Single flight of maintenance, and what it refuses before it starts anything."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from sparktxlog.api.jobs.job import JobContext
from sparktxlog.api.jobs.upkeep import verified
from sparktxlog.errors import LockedError, NotAppliedError
from sparktxlog.worker.replica.source import HttpLogSource, NodeInfo
from sparktxlog.worker.tables.row_upkeep import maintain_replica
from sparktxlog.worker.tables.table_upkeep import TableUpkeep, Upkeep
from sparktxlog.worker.verify.lake_lock import VERIFICATION, one_at_a_time


def test_only_one_maintenance_runs_on_a_lake(tmp_path: Path) -> None:
    with one_at_a_time(tmp_path):
        with pytest.raises(LockedError, match="running already") as caught, one_at_a_time(tmp_path):
            pass
        assert caught.value.definite
    with one_at_a_time(tmp_path):
        assert (tmp_path / "_sparktxlog" / "maintenance.lock").exists()


def test_one_verification_runs_on_a_lake_beside_its_maintenance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = NodeInfo(
        node_id="A", log_id="l", payload_root="p", lake_root=str(tmp_path), signature_interval=9
    )
    monkeypatch.setattr(HttpLogSource, "info", lambda _: info)
    monkeypatch.setattr(HttpLogSource, "rows_and_commits", lambda *_: (["t"], []))
    arguments = Namespace(url="http://a:1", compare=False, lake=None, table=["t"])
    # Refused before Spark takes its seconds to start.
    with (
        one_at_a_time(tmp_path),
        one_at_a_time(tmp_path, VERIFICATION),
        pytest.raises(LockedError, match=f"verification of {tmp_path} is running already"),
    ):
        verified(JobContext(arguments=arguments), recount=True)
    with one_at_a_time(tmp_path / "mistyped", VERIFICATION):
        assert not (tmp_path / "mistyped").exists()


def test_a_lake_without_a_replica_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAppliedError):
        maintain_replica(None, tmp_path, Upkeep())  # type: ignore[arg-type]


def test_lines_say_what_was_done_and_what_was_not() -> None:
    done = TableUpkeep(
        table="t",
        files_before=1_000,
        files=2,
        disk_before=5_000,
        disk=4_000,
        optimized=True,
        vacuumed="full",
        seconds=1.25,
    )
    assert done.describe() == (
        "t: compacted, vacuumed (full); files 1,000 to 2, on disk 5,000 to 4,000 bytes, 1.2 s"
    )
    assert "not compacted" in TableUpkeep(table="t").describe()
    assert TableUpkeep(table="t", failed="why").describe().endswith("; FAILED: why")
