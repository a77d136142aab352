"""What a commit table needs no more: old files, decided commits, directories without a table."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.support.delta_writer import SCHEMA, StagedTable, info_of, lines_of

from sparktxlog.storage.commit_tables.table_sweep import (
    NAME_AGE_MS,
    STAGED_AGE_MS,
    UNUSED_AGE_MS,
    abandoned,
    decided_commits,
    remove_abandoned,
    remove_directory,
    retention_ms,
    unneeded_files,
    unused_directories,
)

DAY = 86_400_000
NOW = int(time.time() * 1000) + 100 * DAY


@pytest.fixture
def table(tmp_path: Path) -> StagedTable:
    """A table without rows, whose version 0 is 40 days old."""
    directory = tmp_path / str(uuid.uuid4())
    metadata, protocol = {"schemaString": json.dumps(SCHEMA)}, {"minReaderVersion": 3}
    made = StagedTable(directory.name, directory, "", metadata, protocol | {"minWriterVersion": 7})
    made.write_first(timestamp=NOW - 40 * DAY)
    return made


def publish(table: StagedTable, version: int, days_ago: float, *actions: dict[str, Any]) -> None:
    content = lines_of(info_of(int(NOW - days_ago * DAY)), *actions)
    table.published(version).write_bytes(content)


def removal(add: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"remove": {"path": add["add"]["path"], **more}}


def path_of(add: dict[str, Any]) -> str:
    found: str = add["add"]["path"]
    return found


def names(table: StagedTable, version: int, now: int = NOW, days: int = 7) -> set[str]:
    found = unneeded_files(table.directory, version, now_ms=now, keep_ms=days * DAY)
    return {path.relative_to(table.directory).as_posix() for path in found.paths}


def test_only_what_no_version_of_late_needs_is_old(table: StagedTable) -> None:
    long_gone, gone, lost, lives = (table.add() for _ in range(4))
    publish(table, 1, 30, long_gone, gone)
    publish(table, 2, 20, lives, removal(long_gone))
    publish(table, 3, 6, removal(gone))  # version 2 was the newest one seven days ago
    (table.directory / f".{path_of(long_gone)}.crc").write_text("sum")
    (table.directory / f".{path_of(lives)}.crc").write_text("sum")
    (table.directory / "_symlink").write_text("of somebody else")
    unused = {path_of(long_gone), f".{path_of(long_gone)}.crc", path_of(lost)}
    assert names(table, 3) == unused
    assert names(table, 3, days=25) == {path_of(lost)}
    assert names(table, 3, days=5) == unused | {path_of(gone)}
    # Bytes are not old yet, and names are not.
    assert names(table, 3, int(time.time() * 1000)) == set()
    now = time.time()
    os.utime(table.directory / path_of(lost), (now - 9 * 86_400,) * 2)
    assert names(table, 3, int(now * 1000)) == set()
    assert names(table, 3, int(now * 1000) + NAME_AGE_MS + 1000) == {path_of(lost)}
    swept = unneeded_files(table.directory, 3, now_ms=NOW, keep_ms=7 * DAY)
    assert swept.size_bytes == 11
    swept.remove()
    swept.remove()
    assert names(table, 3) == set()
    assert (table.directory / path_of(gone)).exists()


def test_a_file_of_several_deletion_vectors_lives_as_long_as_one(table: StagedTable) -> None:
    coded = "^-aqEH.-t@S}K{vb[*k^"
    name = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    (table.directory / name).write_bytes(b"x" * 99)
    one, two = table.add(), table.add()
    for place, add in enumerate((one, two)):
        add["add"]["deletionVector"] = {
            "storageType": "u",
            "pathOrInlineDv": coded,
            "offset": 20 * place,
            "sizeInBytes": 9,
        }
    publish(table, 1, 30, one, two)
    publish(table, 2, 20, removal(one, deletionVector=one["add"]["deletionVector"]))
    assert names(table, 2) == {path_of(one)}
    publish(table, 3, 19, removal(two, deletionVector=two["add"]["deletionVector"]))
    assert names(table, 3) == {path_of(one), path_of(two), name}


def test_what_waits_to_be_ordered_is_needed(table: StagedTable) -> None:
    waits, lost = table.add(), table.add()
    table.stage(1, waits)
    assert names(table, 0) == {path_of(lost)}
    publish(table, 1, 20)  # another one won
    assert names(table, 1) == {path_of(waits), path_of(lost)}


def test_staged_commits_go_once_their_version_is_decided(table: StagedTable) -> None:
    staged = [table.staged(table.stage(version)["file-name"]) for version in (1, 1, 2)]
    checksum = staged[0].with_name(f".{staged[0].name}.crc")
    checksum.write_text("sum")
    now = int(time.time() * 1000)
    assert decided_commits(table.directory, 1, now_ms=now).paths == []
    later = now + STAGED_AGE_MS + 1000
    found = decided_commits(table.directory, 1, now_ms=later)
    assert {*found.paths} == {*staged[:2], checksum}
    assert len(decided_commits(table.directory, 2, now_ms=later).paths) == 4


def test_directories_without_a_table_go_after_a_while(tmp_path: Path) -> None:
    known, dropped = (tmp_path / str(uuid.uuid4()) for _ in range(2))
    for directory in (known, dropped, tmp_path / ".attic"):
        directory.mkdir()
    now = int(time.time() * 1000)
    later = now + UNUSED_AGE_MS + 60_000

    def seen(when: int, *tables: Path, dry_run: bool = False) -> list[Path]:
        uuids = [path.name for path in tables]
        return unused_directories(tmp_path, uuids, now_ms=when, dry_run=dry_run)

    assert seen(now, known, dry_run=True) == seen(later, known) == []
    # From when it was first seen without a table.
    assert seen(now, known) == []
    assert seen(later, known, dropped) == []
    assert seen(later, known) == []
    assert seen(later, known) == [dropped]
    kept = tmp_path / ".commits" / dropped.name
    kept.mkdir(parents=True)
    remove_directory(dropped)
    assert not kept.exists()
    assert seen(later, known) == []
    assert sorted(path.name for path in (tmp_path / ".unused").iterdir()) == []


def test_what_killed_jobs_and_transfers_left_goes_when_nobody_writes_to_it(tmp_path: Path) -> None:
    twin, part = tmp_path / ".transactions" / "a1", tmp_path / ".incoming" / "b2"
    for path in (twin / "_delta_log" / "0.json", twin / "p=1" / "x.parquet", part):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    now = int(time.time() * 1000)

    def written(days_ago: float, *paths: Path) -> None:
        for path in paths:
            os.utime(path, ns=(0, int((now - days_ago * DAY) * 1_000_000)))

    def seen() -> list[Path]:
        return abandoned(tmp_path, now_ms=now)

    written(8, part)
    written(8, *(path for path in (twin, *twin.rglob("*")) if path.is_dir()))
    written(0, *(path for path in twin.rglob("*") if path.is_file()))
    assert seen() == [twin, part], "files of a twin have the times of the table's"
    written(6, twin / "p=1")
    assert seen() == [part], "a statement wrote a file there"
    written(6, part)
    assert seen() == []
    written(8, twin / "p=1", part)
    remove_abandoned(seen())
    assert not twin.exists() and not part.exists()
    assert seen() == abandoned(tmp_path / "nowhere", now_ms=now) == []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("interval 1 week", 604_800),
        ("INTERVAL 2 days 3 hours", 183_600),
        ("interval 30 minutes", 1_800),
        ("0 seconds", 0),
        ("interval 1 month", None),
        ("soon", None),
        ("", None),
    ],
)
def test_retention_is_that_of_the_table(text: str, seconds: int | None) -> None:
    found = retention_ms({"delta.deletedFileRetentionDuration": text})
    assert found == (None if seconds is None else seconds * 1000)
    assert retention_ms({}) == 604_800_000
