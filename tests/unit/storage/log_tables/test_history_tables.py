"""`log/epochs`: rows as remembered, each once for its journal, expired by whole files."""

from __future__ import annotations

import errno
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from sparktxlog.errors import StorageError
from sparktxlog.files.stores import disk
from sparktxlog.model.epoch import EpochRecord, QueueEnd, RosterSeat
from sparktxlog.storage.log_tables.history_tables import HistoryTables
from sparktxlog.storage.log_tables.log_schemas import EPOCHS
from sparktxlog.storage.log_tables.log_table import LogTable

SEAT = RosterSeat(id="A", url="http://a,http://a2", weight=2, witness=False, incarnation=3)
WITNESS = RosterSeat(id="W", url="http://w", weight=1, witness=True, incarnation=1)


LAG_ROW = {"node_id": "A", "worker_id": "w", "position": 1, "transactions": 2}


def epoch_of(number: int, known: bool = True) -> tuple[int, EpochRecord]:
    return number, EpochRecord(
        log_id="l",
        epoch=number + 4,
        members=("A",),
        quorum=1,
        quorum_rule="default",
        roster=(SEAT, WITNESS),
        begins_after=QueueEnd(position=9, chain_hash="ab"),
        joined=() if known else None,
        left=("B",) if known else None,
        changed=("W",) if known else None,
        phase="NORMAL",
        taken_up_at=number * 1_000_000,
    )


def rows_of(root: Path) -> list[dict[str, Any]]:
    found = QueryBuilder().register("t", DeltaTable(root / "epochs"))
    answer = found.execute("SELECT * FROM t ORDER BY taken_up_at")
    rows: list[dict[str, Any]] = pa.table(answer).to_pylist()
    return rows


def test_a_row_says_what_is_remembered(tmp_path: Path) -> None:
    HistoryTables(tmp_path, "i").append_epochs([epoch_of(1, known=False), epoch_of(2)])
    first, second = rows_of(tmp_path)
    assert list(first) == EPOCHS.names
    assert (first["joined"], first["left"], first["changed"]) == (None, None, None)
    wanted = msgspec.json.decode(msgspec.json.encode(epoch_of(2)[1]))
    assert second == wanted | {"taken_up_at": datetime.fromtimestamp(2, UTC)}


def test_the_table_knows_which_epochs_of_a_journal_it_holds(tmp_path: Path) -> None:
    table = HistoryTables(tmp_path, "i")
    assert table.last_epoch == 0
    table.append_epochs([epoch_of(1), epoch_of(2)])
    assert table.last_epoch == HistoryTables(tmp_path, "i").last_epoch == 2
    # A journal that was made anew counts from 1 again; its rows follow those of the former one.
    other = HistoryTables(tmp_path, "j")
    assert other.last_epoch == 0
    other.append_epochs([epoch_of(1)])
    assert (other.last_epoch, HistoryTables(tmp_path, "i").last_epoch) == (1, 2)
    assert len(rows_of(tmp_path)) == 3


def test_what_is_expired_is_known_as_written(tmp_path: Path) -> None:
    table = HistoryTables(tmp_path, "i")
    for number in (1, 2, 3):
        table.append_epochs([epoch_of(number)])
    table.append_rows("lag", [LAG_ROW | {"sampled_at": at * 1_000_000} for at in (1, 2)])
    table.append_rows("lag", [LAG_ROW | {"sampled_at": 3_000_000}])
    table.expire(datetime.fromtimestamp(2, UTC), datetime.fromtimestamp(1, UTC))
    assert DeltaTable(tmp_path / "lag").to_pyarrow_table().num_rows == 3
    assert [row["epoch"] for row in rows_of(tmp_path)] == [7]
    assert table.last_epoch == HistoryTables(tmp_path, "i").last_epoch == 3
    table.expire(datetime.fromtimestamp(3, UTC), datetime.fromtimestamp(2, UTC))
    (row,) = DeltaTable(tmp_path / "lag").to_pyarrow_table().to_pylist()
    assert (row["sampled_at"], row["table"]) == (datetime.fromtimestamp(3, UTC), None)
    assert rows_of(tmp_path) == []
    assert HistoryTables(tmp_path, "i").last_epoch == 3


def test_the_number_outlives_merges_and_checkpoints(tmp_path: Path) -> None:
    commits = 130
    table = HistoryTables(tmp_path, "i")
    for number in range(1, commits + 1):
        table.append_epochs([epoch_of(number)])
    again = HistoryTables(tmp_path, "i")
    assert again.last_epoch == commits
    assert [row["epoch"] for row in rows_of(tmp_path)] == list(range(5, commits + 5))


@pytest.mark.parametrize("committed", [False, True])
def test_rows_of_an_attempt_that_failed_are_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    table, rows = HistoryTables(tmp_path, "i"), [LAG_ROW | {"sampled_at": 1_000_000}]
    table.append_rows("lag", rows)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the disk failed")

    broken: tuple[Any, str] = (LogTable, "_write_file")
    if committed:
        broken = (disk, "sync_parents")
    with monkeypatch.context() as patched:
        patched.setattr(*broken, fail)
        with pytest.raises((StorageError, OSError)):
            table.append_rows("lag", rows)
    table.append_rows("lag", rows)
    assert DeltaTable(tmp_path / "lag").to_pyarrow_table().num_rows == 2


@pytest.mark.parametrize(("every", "made"), [(100, []), (4, [4, 8])])
def test_v54_checkpoints_come_at_the_interval_of_the_node(
    tmp_path: Path, every: int, made: list[int]
) -> None:
    """Each node has its own, in commits: `log-checkpoint-interval`."""
    table = HistoryTables(tmp_path, "i", checkpoint_every=every)
    for number in range(1, 9):
        table.append_epochs([epoch_of(number)])
    found = (tmp_path / "epochs" / "_delta_log").glob("*.checkpoint.parquet")
    assert sorted(int(path.name[:20]) for path in found) == made
    assert HistoryTables(tmp_path, "i").last_epoch == 8
