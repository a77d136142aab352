"""Files of expired positions and files that nobody names are removed, and no others."""

from __future__ import annotations

import errno
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
import structlog
from tests.support.storage_samples import (
    TemporaryJournal,
    entries_of,
    parquet_bytes,
    run_of,
    staged_of,
)

from sparktxlog.errors import InvariantViolation, PayloadStoreError
from sparktxlog.files import arrivals, last_use
from sparktxlog.model.transactions.operation import Block, OperationKind
from sparktxlog.storage.interfaces import (
    AppendQueue,
    ExpireLog,
    MarkPublished,
    Segment,
    TableEffect,
)
from sparktxlog.storage.log_tables.log_schemas import SYNCHRONIZED_QUEUE
from sparktxlog.storage.log_tables.log_table import LogTable
from sparktxlog.storage.log_tables.queue_table import QueueTable
from sparktxlog.storage.payloads import payload_expiry
from sparktxlog.storage.payloads.local_store import LocalPayloadStore
from sparktxlog.storage.payloads.payload_expiry import PayloadExpiry, named_files, size_of

DAY_S = 86_400.0


@pytest.fixture
def store(tmp_path: Path) -> LocalPayloadStore:
    return LocalPayloadStore(tmp_path / "payloads")


def put(store: LocalPayloadStore, relative: str, *, age_s: float = 0) -> Path:
    """Lay a file into the store, of an age."""
    path = store.root / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(parquet_bytes())
    at = time.time() - age_s
    for one in (path, *path.parents):
        if one == store.root:
            break
        os.utime(one, (at, at))
    return path


def journal_with(*paths: str) -> TemporaryJournal:
    """Return a journal whose runs name a file each: published and expired, published, ordered,
    waiting."""
    journal = TemporaryJournal()
    files = [staged_of(path, parquet_bytes()) for path in paths]
    runs = [
        run_of(
            seq=1 + i, blocks=[Block(table="t", kind=OperationKind.APPEND, txs=(0,), files=(file,))]
        )
        for i, file in enumerate(files)
    ]
    entries = entries_of(runs[:3])
    journal.write([*runs, AppendQueue(entries=entries, ordered_at=1)])
    for position, file in enumerate(files[:2], start=1):
        segment = Segment(
            first=position,
            last=position,
            from_hash="",
            transactions=1,
            rejected=0,
            epoch=1,
            to_hash=entries[position - 1].chain_hash.hex(),
            effects=(
                TableEffect(table="t", kind="append", first=position, last=position, files=(file,)),
            ),
        )
        journal.write([MarkPublished(position=position, version=1, segment=segment)])
    journal.write([ExpireLog(position=1, chain_hash=entries[0].chain_hash)])
    return journal


NAMES = [f"tx{i}/t/part-0.parquet" for i in range(4)]


def test_what_unexpired_and_waiting_transactions_name() -> None:
    assert named_files(journal_with(*NAMES), 1) == set(NAMES[1:])


def test_a_placed_file_outlives_the_name_in_the_payload_store(
    store: LocalPayloadStore, tmp_path: Path
) -> None:
    source = put(store, NAMES[0])
    other = put(store, "tx0/u/part-0.parquet")
    placed = tmp_path / "lake.parquet"
    os.link(source, placed)
    expiry = PayloadExpiry(store)
    assert expiry.remove([NAMES[0]]) == 1
    assert placed.read_bytes() == parquet_bytes()
    assert other.exists()
    assert not source.parent.exists(), "an empty directory goes too"
    assert expiry.remove([NAMES[0]]) == 0, "doing it again is harmless"
    assert expiry.remove(["tx0/u/part-0.parquet"]) == 1
    assert not (store.root / "tx0").exists()


def test_only_old_files_that_no_transaction_names_are_removed(store: LocalPayloadStore) -> None:
    for name in NAMES:
        put(store, name, age_s=9 * DAY_S)
    put(store, "orphan/t/part-0.parquet", age_s=9 * DAY_S)
    put(store, "young/t/part-0.parquet", age_s=5 * DAY_S)
    put(store, "growing/t/part-0.parquet", age_s=9 * DAY_S)
    put(store, "growing/t/part-1.parquet")
    put(store, "inline/1-9/t.parquet", age_s=9 * DAY_S)
    put(store, ".incoming/dead", age_s=9 * DAY_S)
    put(store, ".incoming/live")
    expiry = PayloadExpiry(store)
    # tx0 is expired, and so is named by nobody; its own removal did not get so far.
    assert expiry.remove_unnamed(journal_with(*NAMES), 1, 7 * DAY_S) == 3
    left = sorted(entry.name for entry in store.root.iterdir())
    assert left == [".incoming", "growing", "inline", "tx1", "tx2", "tx3", "young"]
    assert [p.name for p in (store.root / ".incoming").iterdir()] == ["live"]
    assert expiry.remove_unnamed(journal_with(*NAMES), 1, 7 * DAY_S) == 0


def test_what_cannot_be_moved_away_keeps_no_others(
    store: LocalPayloadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that the executors of another user made, and nobody else may write to."""
    theirs, ours = put(store, "a/1", age_s=2 * DAY_S), put(store, "b/1", age_s=2 * DAY_S)
    rename = Path.rename

    def refused(self: Path, target: Path) -> Path:
        if theirs.parent == self:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refused)
    with structlog.testing.capture_logs() as logs:
        assert PayloadExpiry(store).remove_unnamed(journal_with(*NAMES), 1, DAY_S) == 1
    assert theirs.exists() and not ours.exists()
    (said,) = [one for one in logs if one["log_level"] == "warning"]
    assert "Permission denied" in said["reason"]


def test_files_of_a_submit_under_way_are_left_alone(store: LocalPayloadStore) -> None:
    put(store, "tx9/t/part-0.parquet", age_s=9 * DAY_S)
    store.verify(staged_of("tx9/t/part-0.parquet", parquet_bytes()))
    assert PayloadExpiry(store).remove_unnamed(TemporaryJournal(), 0, 7 * DAY_S) == 0


def test_each_submit_of_a_file_counts(
    store: LocalPayloadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that found the file verified long ago, and so did not read it."""
    put(store, "tx9/t/part-0.parquet", age_s=9 * DAY_S)
    file, now = staged_of("tx9/t/part-0.parquet", parquet_bytes()), time.monotonic()
    for module in (arrivals, last_use):
        monkeypatch.setattr(module, "monotonic", lambda: now)
    store.verify(file)
    now += DAY_S
    store.verify(file)
    assert PayloadExpiry(store).remove_unnamed(TemporaryJournal(), 0, 7 * DAY_S) == 0
    now += DAY_S
    assert PayloadExpiry(store).remove_unnamed(TemporaryJournal(), 0, 7 * DAY_S) == 1


def test_a_file_that_is_removed_while_a_submit_reads_it_is_not_held(
    store: LocalPayloadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "tx9/t/part-0.parquet", age_s=9 * DAY_S)

    def removed(*_: object) -> None:
        assert PayloadExpiry(store).remove_unnamed(TemporaryJournal(), 0, 7 * DAY_S) == 1

    monkeypatch.setattr(arrivals, "sync_parents", removed)
    with pytest.raises(PayloadStoreError, match="no file"):
        store.verify(staged_of("tx9/t/part-0.parquet", parquet_bytes()))


def test_what_a_killed_removal_left_goes_with_the_next_one(store: LocalPayloadStore) -> None:
    path = put(store, "tx9/t/part-0.parquet", age_s=9 * DAY_S)
    away = store.take_away("tx9", 3_600)
    assert away is not None and not path.exists()
    assert PayloadExpiry(store).remove_unnamed(TemporaryJournal(), 0, 7 * DAY_S) == 1
    assert not away.exists()
    assert store.take_away("tx9", 3_600) is None


def test_a_transfer_that_ends_meanwhile_is_no_failure(
    store: LocalPayloadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, ".incoming/dead", age_s=9 * DAY_S)
    put(store, ".incoming/live")
    listed = payload_expiry._entries

    def ended(directory: Path) -> list[os.DirEntry[str]]:
        found = listed(directory)
        if directory.name == ".incoming":
            (directory / "live").unlink()  # it has its place now
        return found

    monkeypatch.setattr(payload_expiry, "_entries", ended)
    assert PayloadExpiry(store).remove_unnamed(TemporaryJournal(), 0, 7 * DAY_S) == 1


def test_inline_files_go_by_the_positions_in_their_names(store: LocalPayloadStore) -> None:
    for name in ("1-50", "1-70", "71-100", "71-130", "other"):
        put(store, f"inline/{name}/t.parquet")
    assert PayloadExpiry(store).remove_inline(100) == 3
    assert sorted(p.name for p in (store.root / "inline").iterdir()) == ["71-130", "other"]


def test_size_counts_all_files_below(store: LocalPayloadStore) -> None:
    put(store, "a/b/c")
    put(store, "d")
    assert size_of(store.root) >= 2 * len(parquet_bytes())
    assert size_of(store.root, without=("a", "d", ".incoming")) == 0
    assert size_of(store.root / "nothing") == 0


# -- tables of the log -----------------------------------------------------------------------------

SCHEMA = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)
START = datetime(2026, 1, 1, tzinfo=UTC)


def table_of(directory: Path, files: int = 6) -> LogTable:
    """Return a table of files with ten positions and an hour each."""
    table = LogTable(directory, SCHEMA, app_id="x")
    for i in range(files):
        positions = list(range(10 * i + 1, 10 * i + 11))
        at = [START + timedelta(hours=i)] * 10
        rows = pa.table({"position": positions, "at": at}, schema=SCHEMA)
        table.append(rows, transaction=positions[-1])
    return table


def held(directory: Path) -> list[int]:
    from deltalake import DeltaTable

    rows = DeltaTable(directory).to_pyarrow_table()
    return sorted({(p - 1) // 10 for p in rows.column("position").to_pylist()})


def test_whole_files_below_the_horizon_are_removed_and_their_bytes_given_back(
    tmp_path: Path,
) -> None:
    table = table_of(tmp_path / "t")
    assert table.expire("position", 35) == 30
    assert held(tmp_path / "t") == [3, 4, 5]
    assert len(list((tmp_path / "t").glob("*.parquet"))) == 3
    assert table.expire("position", 35) == 0
    assert table.expire("at", START + timedelta(hours=3)) == 10
    assert held(tmp_path / "t") == [4, 5]
    assert table.transaction_version == 60
    # And the table goes on, also under a new handle.
    again = LogTable(tmp_path / "t", SCHEMA, app_id="x", safe_version=table.version)
    assert again.transaction_version == 60
    again.append(pa.table({"position": [61], "at": [START]}, schema=SCHEMA), transaction=61)
    assert held(tmp_path / "t") == [4, 5, 6]


def test_what_a_kill_before_the_vacuum_left_goes_with_the_next_expiry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(tmp_path / "t")
    with monkeypatch.context() as patch:
        patch.setattr(LogTable, "_vacuum", lambda *_: None)
        table.expire("position", 35)
    assert len(list((tmp_path / "t").glob("*.parquet"))) == 6
    again = LogTable(tmp_path / "t", SCHEMA, app_id="x")
    assert again.expire("position", 35) == 0
    assert len(list((tmp_path / "t").glob("*.parquet"))) == 3


def test_a_lost_queue_table_begins_behind_what_is_expired(tmp_path: Path) -> None:
    rows = pa.Table.from_pylist(
        [
            {
                "position": p,
                "run_seq": p,
                "run_n": 1,
                "epoch": 1,
                "timestamp": p,
                "origin": "a",
                "incarnation": 1,
                "sequence": p,
                "transaction_id": str(p),
                "outcome": "committed",
                "digest": "",
                "chain_hash": "",
                "ordered_at": START,
            }
            for p in (41, 42)
        ],
        SYNCHRONIZED_QUEUE,
    )
    with pytest.raises(InvariantViolation):
        QueueTable(tmp_path / "one", "l").append(rows)
    with pytest.raises(InvariantViolation):
        QueueTable(tmp_path / "two", "l", kept_after=39).append(rows)
    queue = QueueTable(tmp_path / "three", "l", kept_after=40)
    queue.append(rows)
    assert queue.position == 42
    assert queue.expire(42) == 2
    assert queue.position == 42
