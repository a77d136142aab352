"""The Delta tables of log/: exactly once, compaction, power losses."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.support.storage_samples import run_of, stored_of

from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import (
    CorruptLogError,
    DiskFullError,
    InvariantViolation,
    NewerReleaseError,
    StorageError,
)
from sparktxlog.files.stores import disk
from sparktxlog.model.report import TableState, WorkerReport
from sparktxlog.model.signature import TableSignature
from sparktxlog.storage.log_tables import log_table as delta_table
from sparktxlog.storage.log_tables import small_files
from sparktxlog.storage.log_tables.history_tables import HistoryTables
from sparktxlog.storage.log_tables.log_schemas import LOG_TABLES
from sparktxlog.storage.log_tables.log_table import LogTable, repair
from sparktxlog.storage.log_tables.queue_table import QueueTable, set_aside
from sparktxlog.storage.segments.publishing import restored_rows


def rows_of(first: int, last: int) -> pa.Table:
    previous = stored_of([run_of(seq=i) for i in range(1, last + 1)])
    return restored_rows(previous[first - 1 :])


def merge_all(queue: QueueTable) -> None:
    (paths,) = queue._table._pieces(all_of_them=True)
    queue._table._merge(paths)


def positions(log: Path) -> list[int]:
    return positions_of(log / "synchronized_queue")


def positions_of(directory: Path) -> list[int]:
    table = DeltaTable(directory)
    found = QueryBuilder().register("q", table).execute("SELECT position FROM q ORDER BY position")
    return [int(value) for value in pa.table(found).column(0).to_pylist()]


def commit_path(log: Path, version: int) -> Path:
    return log / "synchronized_queue" / "_delta_log" / f"{version:020}.json"


def test_the_table_counts_its_positions(tmp_path: Path) -> None:
    queue = QueueTable(tmp_path, "l")
    assert (queue.position, queue.version) == (0, 0)
    assert queue.append(rows_of(1, 3)) == 1
    assert queue.append(rows_of(4, 4)) == 2
    assert positions(tmp_path) == [1, 2, 3, 4]
    again = QueueTable(tmp_path, "l", published_version=2)
    assert (again.position, again.version) == (4, 2)
    assert QueueTable(tmp_path, "other").position == 0


def test_rows_that_the_table_holds_are_not_written_again(tmp_path: Path) -> None:
    queue = QueueTable(tmp_path, "l")
    queue.append(rows_of(1, 5))
    assert queue.append(rows_of(1, 5)) == 1
    assert queue.append(rows_of(3, 8)) == 2
    assert positions(tmp_path) == list(range(1, 9))
    with pytest.raises(InvariantViolation):
        queue.append(rows_of(10, 11))


def with_description(log: Path, described: str | None) -> None:
    """Have the table created with another description."""
    path = commit_path(log, 0)
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["description"] = described
    path.write_text("\n".join(map(json.dumps, actions)))


def test_a_table_says_its_format_and_a_later_one_is_left_alone(tmp_path: Path) -> None:
    QueueTable(tmp_path, "l").append(rows_of(1, 3))
    described = DeltaTable(tmp_path / "synchronized_queue").metadata().description
    assert described == "sparktxlog log table, format 1"
    with_description(tmp_path, "sparktxlog log table, format 2")
    (tmp_path / "synchronized_queue" / "left.parquet").write_bytes(b"of the later release")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(NewerReleaseError, match=r"has format 2, .* up to 1") as caught:
        QueueTable(tmp_path, "l")
    assert caught.value.definite and caught.value.fields["format"] == 2
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_table_that_needs_what_is_not_known_is_left_alone(tmp_path: Path) -> None:
    """Nobody knows what its log says; delta-rs opened none, either."""
    QueueTable(tmp_path, "l").append(rows_of(1, 3))
    path = commit_path(tmp_path, 0)
    old = '{"minReaderVersion":1,"minWriterVersion":2}'
    new = (
        '{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["x"],"writerFeatures":["x"]}'
    )
    path.write_text(path.read_text().replace(old, new))
    (tmp_path / "synchronized_queue" / "_delta_log" / f".{'1e' * 16}.tmp").write_bytes(b"its own")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(StorageError, match="not known here"):
        QueueTable(tmp_path, "l")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("described", [None, "ours", "sparktxlog log table, format x"])
def test_a_table_without_a_format_is_of_the_first(tmp_path: Path, described: str | None) -> None:
    QueueTable(tmp_path, "l").append(rows_of(1, 3))
    with_description(tmp_path, described)
    assert QueueTable(tmp_path, "l").position == 3


def test_every_reader_can_read_the_table(tmp_path: Path) -> None:
    QueueTable(tmp_path, "l").append(rows_of(1, 2))
    table = DeltaTable(tmp_path / "synchronized_queue")
    protocol = table.protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    assert not protocol.reader_features
    assert not protocol.writer_features
    (add,) = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert (add["num_records"], add["min.position"], add["max.position"]) == (2, 1, 2)


def test_compaction_keeps_rows_and_transaction_version(tmp_path: Path) -> None:
    queue = QueueTable(tmp_path, "l")
    for i in range(1, 8):
        queue.append(rows_of(i, i))
    queue.maintain()
    assert positions(tmp_path) == list(range(1, 8))
    table = DeltaTable(tmp_path / "synchronized_queue")
    assert len(table.file_uris()) == 1
    assert table.transaction_version("sparktxlog:l:queue") == 7
    assert any((tmp_path / "synchronized_queue" / "_delta_log").glob("*.checkpoint.parquet"))
    # What was replaced an hour ago may go; what was replaced now may still be read.
    assert len(list((tmp_path / "synchronized_queue").glob("part-*.parquet"))) == 8
    queue.append(rows_of(8, 9))
    queue.maintain()
    again = QueueTable(tmp_path, "l", published_version=queue.version)
    assert again.position == 9
    again.append(rows_of(10, 10))
    assert positions(tmp_path) == list(range(1, 11))


def test_checkpoints_and_merges_come_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogTable, "look_every", 1)
    monkeypatch.setattr(small_files, "_WORTH_FILES", 4)
    monkeypatch.setattr(delta_table, "_MERGE_ROWS", 4)
    directory = tmp_path / "synchronized_queue"
    queue = QueueTable(tmp_path, "l", checkpoint_every=5)
    version = 0
    for i in range(1, 24):
        version = queue.append(rows_of(i, i))
        assert version == queue.version
        assert queue.tidy() == (i % 4 == 0)
        assert len(LogState.read(directory).adds) <= 8
        state, found = queue._table._state, LogState.read(directory)
        assert (state.version, state.adds.keys()) == (found.version, found.adds.keys())
        assert (state.transactions, state.removed) == (found.transactions, found.removed)
    made = {int(path.name[:20]) for path in directory.glob("_delta_log/*.checkpoint.parquet")}
    assert len(made) == 4, "one for each five commits"
    assert positions(tmp_path) == list(range(1, 24))
    reopened = QueueTable(tmp_path, "l", published_version=version)
    assert reopened.position == 23


@pytest.mark.parametrize("recent", [0, 3, 100])
def test_recent_rows_are_merged_from_memory_and_the_others_from_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recent: int
) -> None:
    monkeypatch.setattr(delta_table, "_RECENT_ROWS", recent)
    queue, directory = QueueTable(tmp_path, "l"), tmp_path / "synchronized_queue"
    for i in range(1, 6):
        queue.append(rows_of(i, i))
    held = sorted(queue._table._recent)
    assert len(held) == min(recent, 5)
    for name in held:  # what is in memory is not read
        (directory / name).write_bytes(b"")
    queue.maintain()
    assert queue._table._recent == {}
    (merged,) = LogState.read(directory).adds
    assert pq.read_table(directory / merged).equals(rows_of(1, 5))
    queue.append(rows_of(6, 6))
    queue.expire(6)
    assert queue._table._recent == {} and positions(tmp_path) == []


def test_while_publishing_is_behind_only_too_many_files_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogTable, "look_every", 1)
    monkeypatch.setattr(small_files, "_WORTH_FILES", 2)
    monkeypatch.setattr(delta_table, "MOST_SMALL", 4)
    queue = QueueTable(tmp_path, "l")
    for i in range(1, 4):
        queue.append(rows_of(i, i))
        assert not queue.tidy(late=True)
    queue.append(rows_of(4, 4))
    assert queue.tidy(late=True) and not queue.tidy()
    assert positions(tmp_path) == [1, 2, 3, 4]


def test_merged_rows_stay_in_order(tmp_path: Path) -> None:
    queue = QueueTable(tmp_path, "l")
    for i in range(1, 13):
        queue.append(rows_of(i, i))
    queue.maintain()
    table = DeltaTable(tmp_path / "synchronized_queue")
    (uri,) = table.file_uris()
    merged = pq.read_table(uri.removeprefix("file://"))
    assert merged.column("position").to_pylist() == list(range(1, 13))


def test_files_stay_in_the_order_of_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file between small ones: readers of pages take files by name."""
    queue, table = QueueTable(tmp_path, "l"), tmp_path / "synchronized_queue"
    for first, last in ((1, 1), (2, 2), (3, 60), (61, 61), (62, 62)):
        queue.append(rows_of(first, last))
    monkeypatch.setattr(small_files, "_LARGE_ROWS", 58)
    for last in (62, 63):
        queue.maintain()
        names = sorted(LogState.read(table).adds)
        found = [pq.read_table(table / name)["position"].to_pylist() for name in names]
        assert found == [[1, 2], [*range(3, 61)], [*range(61, last + 1)]]
        queue.append(rows_of(last + 1, last + 1))
    assert positions(tmp_path) == list(range(1, 65))


@pytest.mark.parametrize("damage", ["torn", "empty", "data", "data-empty"])
@pytest.mark.parametrize("safe", [1, 2])
def test_a_power_loss_undoes_only_what_was_not_fsynced(
    tmp_path: Path, damage: str, safe: int
) -> None:
    queue = QueueTable(tmp_path, "l")
    for i in range(1, 4):
        queue.append(rows_of(i, i))
    path = commit_path(tmp_path, 3)
    data = tmp_path / "synchronized_queue" / "part-00000000000000000003.parquet"
    match damage:
        case "torn":
            path.write_bytes(path.read_bytes()[:-40])
        case "empty":
            path.write_bytes(b"")
        case "data":
            data.write_bytes(data.read_bytes()[:100])
        case _:
            data.unlink()
    repaired = QueueTable(tmp_path, "l", published_version=safe)
    assert (repaired.position, repaired.version) == (2, 2)
    repaired.append(rows_of(3, 5))
    assert positions(tmp_path) == [1, 2, 3, 4, 5]


def test_a_missing_commit_undoes_those_behind_it(tmp_path: Path) -> None:
    queue = QueueTable(tmp_path, "l")
    for i in range(1, 5):
        queue.append(rows_of(i, i))
    commit_path(tmp_path, 3).unlink()
    repaired = QueueTable(tmp_path, "l", published_version=2)
    assert repaired.position == 2
    repaired.append(rows_of(1, 4))
    assert positions(tmp_path) == [1, 2, 3, 4]


def cleaned_in_part(log: Path, monkeypatch: pytest.MonkeyPatch) -> QueueTable:
    """Return a queue of 12 positions in two merged files, whose clean-up a kill ended early.

    delta-rs, which former releases had for it, removes old commits in no order.
    """
    monkeypatch.setattr(delta_table, "_RETENTION_MS", 0)
    monkeypatch.setattr(delta_table, "drop_expired", lambda *_: None)
    queue = QueueTable(log, "l")
    for first in (1, 7):
        for i in range(first, first + 6):
            queue.append(rows_of(i, i))
        queue.maintain()
    for version in (0, 3, 5, 6, 7, 8, 12, 13):
        commit_path(log, version).unlink()
    return queue


@pytest.mark.parametrize("published", [True, False])
def test_a_kill_in_the_middle_of_a_clean_up_damages_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, published: bool
) -> None:
    queue = cleaned_in_part(tmp_path, monkeypatch)
    again = QueueTable(tmp_path, "l", published_version=queue.version if published else -1)
    assert (again.position, again.version) == (12, queue.version)
    again.append(rows_of(13, 13))
    assert positions(tmp_path) == list(range(1, 14))
    commit_path(tmp_path, again.version).write_bytes(b"")
    assert QueueTable(tmp_path, "l", published_version=queue.version).position == 12


def test_a_damaged_fsynced_commit_is_never_undone(tmp_path: Path) -> None:
    queue = QueueTable(tmp_path, "l")
    for i in range(1, 4):
        queue.append(rows_of(i, i))
    commit_path(tmp_path, 3).write_bytes(b"")
    with pytest.raises(CorruptLogError, match="version 3"):
        QueueTable(tmp_path, "l", published_version=3)
    assert commit_path(tmp_path, 3).exists()


def test_a_torn_first_commit_makes_a_new_table(tmp_path: Path) -> None:
    QueueTable(tmp_path, "l")
    commit_path(tmp_path, 0).write_bytes(b'{"commitInfo"')
    queue = QueueTable(tmp_path, "l")
    queue.append(rows_of(1, 2))
    assert positions(tmp_path) == [1, 2]


@pytest.mark.parametrize("footer", [b"", b"PAR1" + b"\xff" * 100 + b"\x60\0\0\0PAR1"])
def test_a_torn_checkpoint_is_dropped(tmp_path: Path, footer: bytes) -> None:
    queue = QueueTable(tmp_path, "l")
    for i in range(1, 4):
        queue.append(rows_of(i, i))
    queue.maintain()
    log = tmp_path / "synchronized_queue" / "_delta_log"
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:50] + footer)
    with pytest.raises(CorruptLogError):
        LogState.read(tmp_path / "synchronized_queue")
    again = QueueTable(tmp_path, "l", published_version=3)
    assert not checkpoint.exists()
    assert not (log / "_last_checkpoint").exists()
    assert again.position == 3
    (log / "_last_checkpoint").write_bytes(b"")
    assert QueueTable(tmp_path, "l", published_version=3).position == 3
    assert positions(tmp_path) == [1, 2, 3]


def test_a_disk_that_is_full_for_a_checkpoint_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, replace = QueueTable(tmp_path, "l"), os.replace

    def full(source: str, target: str, **places: Any) -> None:
        if "checkpoint" in target:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target, **places)

    queue.append(rows_of(1, 1))
    with monkeypatch.context() as patch, pytest.raises(DiskFullError):
        patch.setattr(os, "replace", full)
        queue.maintain()
    assert queue.append(rows_of(1, 2)) == 2
    queue.maintain()
    assert positions(tmp_path) == [1, 2]


def test_a_torn_merge_brings_the_merged_files_back(tmp_path: Path) -> None:
    queue = QueueTable(tmp_path, "l")
    for i in range(1, 4):
        queue.append(rows_of(i, i))
    merge_all(queue)
    (merged,) = (tmp_path / "synchronized_queue").glob("*merged*")
    merged.write_bytes(b"")
    again = QueueTable(tmp_path, "l", published_version=3)
    assert again.version == 3
    assert positions(tmp_path) == [1, 2, 3]


def test_files_that_a_merge_replaced_may_be_gone(tmp_path: Path) -> None:
    queue = QueueTable(tmp_path, "l")
    for i in range(1, 4):
        queue.append(rows_of(i, i))
    merge_all(queue)
    for path in (tmp_path / "synchronized_queue").glob("part-*.parquet"):
        if "merged" not in path.name:
            path.unlink()
    assert repair(tmp_path / "synchronized_queue", -1) == []
    assert QueueTable(tmp_path, "l").position == 3


def test_an_expiry_that_failed_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, table = QueueTable(tmp_path, "l"), tmp_path / "synchronized_queue"
    for i in range(1, 5):
        queue.append(rows_of(i, i))
    assert queue.expire(1) == 1
    unlink = Path.unlink

    def fail(path: Path, *, missing_ok: bool = False) -> None:
        if path.suffix == ".parquet":
            raise OSError(errno.EIO, "Input/output error", str(path))
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as context:
        context.setattr(Path, "unlink", fail)
        with pytest.raises(StorageError):
            queue.expire(2)
    assert queue.expire(2) == 0
    assert len(list(table.glob("*.parquet"))) == 2


def test_a_lost_table_is_begun_again(tmp_path: Path) -> None:
    queue = QueueTable(tmp_path, "l", published_version=7)
    assert queue.position == 0
    queue.append(rows_of(1, 9))
    assert positions(tmp_path) == list(range(1, 10))


def test_a_commit_that_seemed_to_fail_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = QueueTable(tmp_path, "l")
    queue.append(rows_of(1, 2))

    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "sync_parents", broken)
        patch.setattr(LogTable, "_sync_names", broken)
        with pytest.raises(DiskFullError):
            queue.append(rows_of(3, 4))
        with pytest.raises(StorageError):
            queue.append(rows_of(3, 4))
    assert queue.append(rows_of(3, 5)) == 3
    assert positions(tmp_path) == [1, 2, 3, 4, 5]


def test_a_commit_whose_answer_is_lost_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, link = QueueTable(tmp_path, "l"), os.link

    def lose(source: str, target: str, **places: Any) -> None:
        link(source, target, **places)
        raise OSError(5, "no answer")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", lose)
        assert queue.append(rows_of(1, 2)) == 1
    assert queue.append(rows_of(3, 4)) == 2
    assert positions(tmp_path) == [1, 2, 3, 4]


def test_replaced_files_stay_for_their_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no version ever had goes at once."""
    queue, table = QueueTable(tmp_path, "l"), tmp_path / "synchronized_queue"
    for i in range(1, 4):
        queue.append(rows_of(i, i))
    (table / "part-left.parquet").write_bytes(b"of an attempt that was killed")
    (table / "_delta_log" / f".{'1e' * 8}.new").write_bytes(b"of another one")
    queue.maintain()
    assert len(list(table.glob("*.parquet"))) == 4
    queue = QueueTable(tmp_path, "l")  # which reads from the checkpoint when they were replaced
    assert not list(table.glob("_delta_log/.*.new"))
    queue.maintain()
    assert len(list(table.glob("*.parquet"))) == 4
    monkeypatch.setattr(delta_table, "_RETENTION_MS", -1)
    queue.maintain()
    (merged,) = table.glob("*.parquet")
    assert "merged" in merged.name and positions(tmp_path) == [1, 2, 3]


def test_a_commit_found_after_a_kill_has_a_durable_name_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes were durable before it had that name."""
    queue = QueueTable(tmp_path, "l")
    queue.append(rows_of(1, 2))

    fsync = os.fsync

    def fail(*_: object) -> None:
        raise OSError(5, "the disk failed")

    def fail_before_it_has_a_name(at: int) -> None:
        (fail if os.readlink(f"/proc/self/fd/{at}").endswith(".new") else fsync)(at)

    with monkeypatch.context() as patch, pytest.raises(StorageError):
        patch.setattr(os, "fsync", fail_before_it_has_a_name)
        queue.append(rows_of(3, 4))
    assert not commit_path(tmp_path, 2).exists()
    with monkeypatch.context() as patch, pytest.raises(StorageError):
        patch.setattr(delta_table, "sync_directory", fail)
        QueueTable(tmp_path, "l", published_version=0)
    assert queue.append(rows_of(3, 4)) == 2 and positions(tmp_path) == [1, 2, 3, 4]


def test_a_table_of_before_a_summary_is_set_aside_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    queue = QueueTable(log, "l")
    assert set_aside(log, 1) is None  # without rows it contradicts nothing
    queue.append(rows_of(1, 9))
    aside = set_aside(log, 1)
    assert aside == tmp_path / "attic" / "queue-1" / "content"
    assert positions_of(aside) == list(range(1, 10))
    # The new one begins behind the summary at 20; a crash before it counts as published.
    fresh = QueueTable(log, "l", kept_after=20)
    assert fresh.position == 0
    fresh.append(rows_of(21, 22))
    assert set_aside(log, 1) is None
    again = QueueTable(log, "l", kept_after=20)
    assert again.position == 22
    again.append(rows_of(21, 25))
    assert positions(log) == [21, 22, 23, 24, 25]
    # The next reset is another one.
    assert set_aside(log, 2) == tmp_path / "attic" / "queue-2" / "content"
    assert not (log / "synchronized_queue").exists()


def test_a_table_that_cannot_be_set_aside_says_so(tmp_path: Path) -> None:
    QueueTable(tmp_path / "log", "l").append(rows_of(1, 2))
    (tmp_path / "attic").write_text("a file")
    with pytest.raises(StorageError):
        set_aside(tmp_path / "log", 1)
    assert positions(tmp_path / "log") == [1, 2]


def test_a_directory_without_delta_log_entries_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "synchronized_queue").write_text("a file")
    with pytest.raises(StorageError):
        QueueTable(tmp_path, "l")


def test_reports_are_kept_as_tables(tmp_path: Path) -> None:
    state = TableState(version=4, signature=TableSignature(rows=2, lane0=1, lane1=2), schema="abc")
    report = WorkerReport(
        worker_id="w",
        node_id="a",
        log_id="l",
        epoch=1,
        position=9,
        chain_hash="00",
        tables={"orders": state, "cities": state},
        reported_at=1_700_000_000_000_000,
    )
    tables = HistoryTables(tmp_path, "i")
    tables.append_reports([report])
    tables.append_reports([])
    HistoryTables(tmp_path, "i").append_reports([report])

    def read(name: str) -> list[dict[str, Any]]:
        table = DeltaTable(tmp_path / name)
        found = QueryBuilder().register("t", table).execute("SELECT * FROM t")
        rows: list[dict[str, Any]] = pa.table(found).to_pylist()
        return rows

    signatures = read("signatures")
    assert len(signatures) == 4
    assert {row["signature"] for row in signatures} == {state.signature.to_text()}
    assert {row["table"] for row in signatures} == {"orders", "cities"}


def test_the_schemas_stay_with_what_every_reader_knows() -> None:
    for schema in LOG_TABLES.values():
        for field in schema:
            assert not (pa.types.is_timestamp(field.type) and field.type.tz is None)
            assert json.dumps(field.name) == f'"{field.name}"'
