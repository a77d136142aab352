"""Plain twins of commit tables: their versions, their files, and commits that were made on them."""

from __future__ import annotations

import errno
import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.delta_writer import FEATURES, SCHEMA, StagedTable, info_of, lines_of

from sparktxlog.delta.checkpoints import forget_taken, newest_of_twin, take_checkpoint
from sparktxlog.delta.commit_contents import read_commit_file
from sparktxlog.delta.log_files import newest_commit
from sparktxlog.errors import CorruptLogError, DiskFullError, StorageError
from sparktxlog.model.tables.commit_table import REPLACES_NOTHING, commit_file_name
from sparktxlog.storage.commit_tables import twin as module
from sparktxlog.storage.commit_tables.twin import (
    add_unchanged_version,
    extend_plain_twin,
    make_plain_twin,
    own_version,
    stage_twin_commit,
    with_feature,
    withdraw_twin_commit,
)

PROTOCOL: dict[str, Any] = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": FEATURES,
    "writerFeatures": [*FEATURES, "inCommitTimestamp"],
}


@pytest.fixture
def table(tmp_path: Path) -> StagedTable:
    """A table whose version 0 holds a row file."""
    directory = tmp_path / "tables" / str(uuid.uuid4())
    metadata = {"schemaString": json.dumps(SCHEMA), "configuration": {"a": "b"}}
    made = StagedTable(directory.name, directory, f"file:{directory}", metadata, PROTOCOL)
    directory.mkdir(parents=True)
    made.write_first(made.add())
    return made


def publish(table: StagedTable, version: int, *actions: dict[str, Any]) -> None:
    table.published(version).write_bytes(lines_of(info_of(version + 1), *actions))


def metadata_in(file: Path) -> dict[str, Any]:
    actions = map(json.loads, file.read_bytes().splitlines())
    found: dict[str, Any] = next(action["metaData"] for action in actions if "metaData" in action)
    return found


def removal(add: dict[str, Any]) -> dict[str, Any]:
    return {"remove": {"path": add["add"]["path"], "dataChange": False}}


def test_a_twin_is_the_table_without_the_feature(table: StagedTable, tmp_path: Path) -> None:
    added, twin = table.add(b"more"), tmp_path / "twin"
    publish(table, 1, added)
    make_plain_twin(table.directory, 1, twin)
    assert newest_commit(twin) == 1
    content = read_commit_file((twin / "_delta_log" / f"{0:020}.json").read_bytes())
    of_table = read_commit_file(table.published(0).read_bytes())
    assert content.protocol is not None
    assert set(content.protocol.reader_features) == {*FEATURES} - {"catalogManaged"}
    assert set(content.protocol.writer_features) == {*FEATURES, "inCommitTimestamp"} - {
        "catalogManaged"
    }
    assert (content.metadata, content.timestamp, content.files) == (
        of_table.metadata,
        of_table.timestamp,
        of_table.files,
    )
    for path in (added["add"]["path"], "_delta_log/00000000000000000001.json"):
        assert (twin / path).samefile(table.directory / path)
    with pytest.raises(StorageError):
        make_plain_twin(table.directory, 1, twin)


def test_a_twin_follows_its_table(table: StagedTable, tmp_path: Path) -> None:
    twin = tmp_path / "twin"
    make_plain_twin(table.directory, 0, twin)
    first, second = table.add(), table.add()
    # VACUUM may remove a file and its directory.
    (table.directory / first["add"]["path"]).unlink()
    first["add"]["path"] = f"p=1/{first['add']['path']}"
    publish(table, 1, first)
    publish(table, 2, second, removal(first))
    extend_plain_twin(table.directory, 2, twin)
    assert newest_commit(twin) == 2
    assert not (twin / first["add"]["path"]).exists()
    publish(table, 3, table.add())
    added = read_commit_file(table.published(3).read_bytes()).files[0].path
    (table.directory / added).unlink()
    with pytest.raises(CorruptLogError, match="version 3 needs it"):
        extend_plain_twin(table.directory, 3, twin)
    assert newest_commit(twin) == 2


def test_a_long_log_begins_with_its_checkpoint(table: StagedTable, tmp_path: Path) -> None:
    first = read_commit_file(table.published(0).read_bytes()).files[0]
    gone, added, later = table.add(), table.add(), table.add()
    publish(table, 1, gone)
    publish(table, 2, added, removal(gone))
    checkpoint(table, 2, {"path": first.path, "size": first.size}, added["add"])
    publish(table, 3, later)
    table.published(0).unlink()  # Delta cleans logs up
    twin = tmp_path / "twin"
    make_plain_twin(table.directory, 3, twin)
    assert {path.name for path in twin.glob("*.parquet")} == {
        first.path,
        added["add"]["path"],
        later["add"]["path"],
    }
    log = twin / "_delta_log"
    assert sorted(path.name[:20] for path in log.glob("0*")) == [f"{n:020}" for n in (2, 2, 3)]
    found = newest_of_twin(twin, 9)
    assert found is not None
    assert [
        (twin / one).samefile(table.directory / "_delta_log/_sidecars/x") for one in found.sidecars
    ]
    said = found.read_top().decode()
    assert "inCommitTimestamp" in said and "catalogManaged" not in said
    assert json.loads((log / "_last_checkpoint").read_text()) == {"version": 2, "size": 4}
    publish(table, 4, table.add())
    extend_plain_twin(table.directory, 4, twin)
    # And a checkpoint of the twin is one of the table.  Of those only the last two stay.
    tops = "_delta_log/*.checkpoint.*.json"
    of_delta = {*table.directory.glob(tops)}
    for _ in range(3):
        take_checkpoint(found, table.directory, with_feature)
        taken = newest_of_twin(table.directory, 9)
    assert taken is not None
    forget_taken(table.directory)
    assert len([*table.directory.glob(tops)]) == 3
    assert of_delta < {*table.directory.glob(tops)}


def checkpoint(table: StagedTable, version: int, *adds: dict[str, Any]) -> None:
    """Write a checkpoint as Delta does, the removed files left out."""
    log = table.directory / "_delta_log"
    (log / "_sidecars").mkdir()
    rows = [{"add": {**add, "partitionValues": None}} for add in adds]
    pq.write_table(pa.Table.from_pylist(rows), log / "_sidecars" / "x")
    lines = lines_of({"sidecar": {"path": "x"}}, {"protocol": PROTOCOL})
    (log / f"{version:020}.checkpoint.{uuid.uuid4()}.json").write_bytes(lines)


def test_a_twin_that_was_written_to_follows_no_more(table: StagedTable, tmp_path: Path) -> None:
    twin = tmp_path / "twin"
    make_plain_twin(table.directory, 0, twin)
    (twin / "_delta_log" / f"{1:020}.json").write_bytes(lines_of(info_of(2)))
    publish(table, 1, table.add())
    with pytest.raises(CorruptLogError, match="somebody wrote there"):
        extend_plain_twin(table.directory, 1, twin)


def test_on_another_file_system_files_are_copied(
    table: StagedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = os.link

    def link(source: Path, target: Path) -> None:
        if table.directory in Path(source).parents:
            raise OSError("another file system")
        linked(source, target)

    monkeypatch.setattr(os, "link", link)
    publish(table, 1, table.add(b"rows"))
    make_plain_twin(table.directory, 1, tmp_path / "twin")
    path = read_commit_file(table.published(1).read_bytes()).files[0].path
    copy = tmp_path / "twin" / path
    assert copy.read_bytes() == b"rows"
    assert not copy.samefile(table.directory / path)
    extend_plain_twin(table.directory, 1, tmp_path / "twin")


def test_a_version_without_changes_comes_after_the_one_that_was_read(
    table: StagedTable, tmp_path: Path
) -> None:
    twin, ahead = tmp_path / "twin", time.time_ns() // 1_000_000 + 3_600_000
    table.published(1).write_bytes(lines_of(info_of(ahead), table.add()))
    make_plain_twin(table.directory, 1, twin, history=False)
    add_unchanged_version(twin)
    staged = stage_twin_commit(table.directory, twin, 2)
    assert (staged.proposed.version, staged.proposed.timestamp) == (2, ahead + 1)
    assert (staged.content.files, staged.content.metadata) == ((), None)


def test_a_commit_of_a_twin_is_staged_in_the_table(table: StagedTable, tmp_path: Path) -> None:
    twin = tmp_path / "twin"
    make_plain_twin(table.directory, 0, twin)
    on_twin = StagedTable("twin", twin, f"file:{twin}")
    plain: dict[str, Any] = {
        key: [one for one in value if one != "catalogManaged"] if isinstance(value, list) else value
        for key, value in PROTOCOL.items()
    }
    plain["writerFeatures"].append("clustering")
    raw = lines_of(info_of(5), on_twin.add(b"compact"), {"protocol": plain})
    on_twin.published(1).write_bytes(raw)
    found = stage_twin_commit(table.directory, twin, 1)
    assert stage_twin_commit(table.directory, twin, 1) == found
    proposed = found.proposed
    staged = table.staged(proposed.file_name).read_bytes()
    assert (proposed.version, proposed.timestamp, proposed.file_size) == (1, 5, len(staged))
    assert proposed.transaction_id
    (file,) = found.content.files
    assert (table.directory / file.path).read_bytes() == b"compact"
    # The feature is back, and nothing else is changed.
    content = read_commit_file(staged)
    assert content.protocol is not None
    assert set(content.protocol.writer_features) == {*PROTOCOL["writerFeatures"], "clustering"}
    assert staged.splitlines()[:2] == raw.splitlines()[:2]
    assert not table.published(1).exists()
    with pytest.raises(CorruptLogError, match="no version 2"):
        stage_twin_commit(table.directory, twin, 2)


def test_a_commit_that_is_withdrawn_takes_no_file_along_that_the_table_has(
    table: StagedTable, tmp_path: Path
) -> None:
    """Statistics and marks of rows are given to files that are there, by adding them again."""
    lives, twin = table.add(b"lives"), tmp_path / "twin"
    publish(table, 1, lives)
    make_plain_twin(table.directory, 1, twin)
    on_twin = StagedTable("twin", twin, f"file:{twin}")
    added = on_twin.add(b"of the commit")
    on_twin.published(2).write_bytes(lines_of(info_of(5), lives, added))
    commit = stage_twin_commit(table.directory, twin, 2)
    withdraw_twin_commit(table.directory, commit)
    assert (table.directory / lives["add"]["path"]).read_bytes() == b"lives"
    assert not (table.directory / added["add"]["path"]).exists()
    assert not table.staged(commit.proposed.file_name).exists()


def test_a_commit_that_cannot_be_staged_leaves_no_file(
    table: StagedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives, twin = table.add(b"lives"), tmp_path / "twin"
    publish(table, 1, lives)
    make_plain_twin(table.directory, 1, twin)
    on_twin = StagedTable("twin", twin, f"file:{twin}")
    first, second = on_twin.add(b"one"), on_twin.add(b"two")
    on_twin.published(2).write_bytes(lines_of(info_of(5), lives, first, second))
    before = {path for path in table.directory.rglob("*") if path.is_file()}
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def failing(path: Path, content: bytes) -> None:
        path.write_bytes(content[:9])
        raise full

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_durably", failing)
        with pytest.raises(DiskFullError):
            stage_twin_commit(table.directory, twin, 2)
    assert {path for path in table.directory.rglob("*") if path.is_file()} == before
    commit = stage_twin_commit(table.directory, twin, 2)
    assert set(commit.brought) == {one["add"]["path"] for one in (first, second)}


@pytest.mark.parametrize("is_shortened", [False, True])
def test_what_guards_the_twin_of_a_transaction_never_comes_into_the_table(
    table: StagedTable, tmp_path: Path, is_shortened: bool
) -> None:
    """CREATE OR REPLACE TABLE by path compares the columns' metadata, and does nothing if equal."""
    if is_shortened:
        top = table.directory / "_delta_log" / f"{0:020}.checkpoint.{uuid.uuid4()}.json"
        top.write_bytes(lines_of({"metaData": table.metadata}, {"protocol": PROTOCOL}))
    twin = tmp_path / "twin"
    make_plain_twin(table.directory, 0, twin, history=False, guarded=True)
    files = [*(twin / "_delta_log").glob("0*.json")]
    assert len(files) == 1 + is_shortened
    for file in files:
        columns = json.loads(metadata_in(file)["schemaString"])["fields"]
        assert all(REPLACES_NOTHING in column["metadata"].values() for column in columns)
    # Statements keep what they do not change.
    schema = json.loads(metadata_in(files[0])["schemaString"])
    schema["fields"].append({"name": "größe", "type": "long", "nullable": True, "metadata": {}})
    changed = {"schemaString": json.dumps(schema), "configuration": {"a": "b"}}
    (twin / "_delta_log" / f"{1:020}.json").write_bytes(lines_of(info_of(2), {"metaData": changed}))
    staged = stage_twin_commit(table.directory, twin, 1)
    found = metadata_in(table.staged(staged.proposed.file_name))
    after = {**SCHEMA, "fields": [*SCHEMA["fields"], schema["fields"][-1]]}
    assert json.loads(found["schemaString"]) == after
    # A twin for upkeep, of which other programs read the versions, has none.
    make_plain_twin(table.directory, 0, tmp_path / "other")
    assert metadata_in(tmp_path / "other" / commit_file_name(0)) == table.metadata


def test_a_twin_for_upkeep_has_the_versions_of_its_table(
    table: StagedTable, tmp_path: Path
) -> None:
    """Only what users write on is guarded: else every version would be the twin's own."""
    for number, guarded in enumerate((False, True)):
        twin = tmp_path / f"twin-{number}"
        make_plain_twin(table.directory, 0, twin, history=False, guarded=guarded)
        assert own_version(table.directory, twin) == (0 if guarded else None)
