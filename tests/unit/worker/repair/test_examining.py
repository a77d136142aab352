"""Whose versions stand in a table before a copy replaces it, and which of them were seen to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.unit.worker.apply.test_tables import ADD, metadata, write

from sparktxlog.delta.log_files import commit_path, newest_commit
from sparktxlog.model.copying import OfferedFile, OfferedTable
from sparktxlog.model.signature import EMPTY_SIGNATURE
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.worker.apply.tables import OwnCommit
from sparktxlog.worker.repair.examining import Examined, examine, foreign_commits, placed_log
from sparktxlog.worker.replica.state import PlacedLog, ReplicaTable

DEFINITION = TableDefinition(name="t", columns=(Column(name="id", type="bigint"),))


def swap_of(copy_id: str) -> str:
    """Return the metadata of a copy's commit."""
    return OwnCommit(
        log_id="l",
        epoch=1,
        table="t",
        first=5,
        last_position=5,
        from_hash="h",
        to_hash="h",
        step=9,
        last=True,
        signature="",
        copy_id=copy_id,
        donor="b",
    ).to_text()


def looked_at(table: Path, recorded: int | None, placed: PlacedLog | None = None) -> Examined:
    known = None
    if recorded is not None:
        known = ReplicaTable(definition=DEFINITION, version=recorded, signature=EMPTY_SIGNATURE)
    return examine(table, known, log_id="l", name="t", copy_id="c1", placed=placed)


def foreign_in(examined: Examined) -> list[int]:
    return [commit.version for commit in examined.foreign]


def offered(table: Path, version: int) -> OfferedTable:
    """Offer the log of a table as its donor has it."""
    files = []
    for path in sorted((table / "_delta_log").glob("*.json")):
        status = path.stat()
        files.append(
            OfferedFile(
                path=f"_delta_log/{path.name}",
                size_bytes=status.st_size,
                modified_at=status.st_mtime_ns // 1000,
            )
        )
    return OfferedTable(
        definition=DEFINITION, version=version, signature=EMPTY_SIGNATURE, files=tuple(files)
    )


def test_a_table_without_a_commit_holds_nothing(tmp_path: Path) -> None:
    for table in (tmp_path / "none", tmp_path):
        assert looked_at(table, None) == Examined(version=-1)
    assert newest_commit(tmp_path) == -1


def test_only_changes_of_others_behind_the_recorded_version_are_foreign(tmp_path: Path) -> None:
    quiet: dict[str, Any] = {"add": {"path": "o.parquet", "dataChange": False}}
    write(tmp_path, 0, ADD, userMetadata=metadata(2))
    write(tmp_path, 1, quiet, operation="OPTIMIZE")
    write(tmp_path, 2, ADD, engineInfo="spark")
    write(tmp_path, 3, ADD, userMetadata=metadata(5))
    found = looked_at(tmp_path, 0)
    assert (found.version, foreign_in(found), found.swapped) == (3, [2], None)
    assert found.committed_at == commit_path(tmp_path, 3).stat().st_mtime_ns // 1000
    assert "spark" in found.foreign[0].author
    assert [c.version for c in foreign_commits(tmp_path, 0, "l", "t")] == [2]
    assert foreign_in(looked_at(tmp_path, 2)) == []


def test_old_commits_that_were_cleaned_up_are_no_gap(tmp_path: Path) -> None:
    write(tmp_path, 7, ADD)
    write(tmp_path, 8, ADD)
    assert foreign_in(looked_at(tmp_path, None)) == [7, 8]


def test_what_stands_below_the_copys_own_commit_was_seen_to(tmp_path: Path) -> None:
    write(tmp_path, 0, ADD, userMetadata=metadata(2))
    write(tmp_path, 1, ADD)
    write(tmp_path, 2, ADD, userMetadata=swap_of("another"))
    assert (looked_at(tmp_path, 0).swapped, foreign_in(looked_at(tmp_path, 0))) == (None, [1])
    write(tmp_path, 3, ADD, userMetadata=swap_of("c1"))
    assert (looked_at(tmp_path, 0).swapped, foreign_in(looked_at(tmp_path, 0))) == (3, [])
    write(tmp_path, 4, ADD)
    found = looked_at(tmp_path, 0)
    assert (found.version, found.swapped, foreign_in(found)) == (4, 3, [4])


def test_a_directory_that_the_copy_renamed_is_known_by_its_last_commit(tmp_path: Path) -> None:
    # Commits of others before the donor's version are the donor's history, not this replica's.
    write(tmp_path, 0, ADD)
    write(tmp_path, 1, ADD, userMetadata=metadata(5))
    placed = placed_log(offered(tmp_path, 1))
    assert placed is not None
    write(tmp_path, 2, ADD)
    found = looked_at(tmp_path, None, placed)
    assert (found.version, found.swapped, foreign_in(found)) == (2, 1, [2])
    # Of another time it is another log: the rename had not happened yet.
    os.utime(commit_path(tmp_path, 1), ns=(1_000, 1_000))
    found = looked_at(tmp_path, None, placed)
    assert (found.swapped, foreign_in(found)) == (None, [0, 2])
    assert (
        placed_log(OfferedTable(definition=DEFINITION, version=1, signature=EMPTY_SIGNATURE))
        is None
    )


def test_a_table_that_took_the_place_is_told(tmp_path: Path) -> None:
    write(tmp_path, 0, ADD)
    write(tmp_path, 1, ADD)
    assert "version 5 is gone" in looked_at(tmp_path, 5).replaced
    assert "was written by" in looked_at(tmp_path, 1).replaced
    write(tmp_path, 1, ADD, userMetadata=metadata(5))
    assert looked_at(tmp_path, 1).replaced == ""
