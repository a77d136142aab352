"""The state of a table of plain files: the same from commits and from a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from sparktxlog.delta.classic_checkpoints import write_classic
from sparktxlog.delta.commit_files import commit_by_hand
from sparktxlog.delta.log_files import commit_path
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import CorruptLogError


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of delta-rs: four files, of which the first was removed."""
    for number in range(4):
        rows = pa.table({"n": pa.array([number * 10, number * 10 + 9], pa.int64())})
        properties = CommitProperties(app_transactions=[Transaction("a", number + 5)])
        write_deltalake(tmp_path, rows, mode="append", commit_properties=properties)
    DeltaTable(tmp_path).delete("n < 10")
    return tmp_path


def test_it_is_what_delta_rs_reads(table: Path) -> None:
    state, found = LogState.read(table), DeltaTable(table)
    assert (state.version, state.transactions) == (found.version(), {"a": 8})
    columns = ("path", "num_records", "min.n", "max.n")
    read = pa.table(found.get_add_actions(flatten=True)).select(columns).to_pylist()
    ours = [(path, state.rows(path), *state.bounds(path, "n")) for path in state.adds]
    assert sorted(ours) == sorted(tuple(one.values()) for one in read)
    assert len(state.removed) == 1 and all(state.removed.values())


def test_a_checkpoint_says_the_same(table: Path) -> None:
    before = LogState.read(table)
    write_classic(table, cleans=False)
    for version in range(4):
        commit_path(table, version).unlink()
    after = LogState.read(table)
    assert (after.version, after.removed) == (4, before.removed)
    assert after.transactions == before.transactions and after.adds.keys() == before.adds.keys()
    assert {path: after.bounds(path, "n") for path in after.adds} == {
        path: before.bounds(path, "n") for path in before.adds
    }


@pytest.mark.parametrize(
    ("after", "upto", "found"), [(0, 100, 3), (19, 29, 1), (18, 20, 2), (39, 100, 0), (0, 9, 0)]
)
def test_files_between_two_values(table: Path, after: int, upto: int, found: int) -> None:
    state = LogState.read(table)
    assert len(state.files_between("n", after, upto)) == found
    for add in state.adds.values():
        del add["stats"]
    assert len(state.files_between("n", after, upto)) == 3  # they may have such rows


@pytest.mark.parametrize("line", ["5", '{"add":5}', '{"add":'])
def test_a_log_that_cannot_be_read_is_damage(table: Path, line: str) -> None:
    commit_path(table, 4).write_text(line)
    with pytest.raises(CorruptLogError, match="cannot be read"):
        LogState.read(table)


def test_a_checkpoint_says_all_that_commits_say(tmp_path: Path) -> None:
    rows = pa.table({"p": ["x", None, "ü /%"], "d": [{"a": 1}, None, {"a": None}]})
    write_deltalake(tmp_path, rows, partition_by=["p"], configuration={"delta.appendOnly": "false"})
    told = {"domainMetadata": {"domain": "mine", "configuration": "{}", "removed": False}}
    gone = {"domainMetadata": {"domain": "gone", "configuration": "{}", "removed": False}}
    tagged = {"add": {**one(tmp_path), "tags": {"a": "b", "c": None}, "dataChange": False}}
    again = {"domainMetadata": {"domain": "gone", "configuration": "", "removed": True}}
    commit(tmp_path, 1, tagged, told, gone)
    commit(tmp_path, 2, again)
    before = LogState.read(tmp_path)
    assert before.domains == {"mine": "{}"}
    assert before.configuration == {"delta.appendOnly": "false"}
    assert LogState.read(tmp_path, 1).domains == {"mine": "{}", "gone": "{}"}
    values = sorted(str(add["partitionValues"]) for add in before.adds.values())
    assert values == ["{'p': 'x'}", "{'p': 'ü /%'}", "{'p': None}"]
    assert before.names_in_files == {"p": "p", "d": "d"}
    write_classic(tmp_path, cleans=False)
    for version in range(2):
        commit_path(tmp_path, version).unlink()
    after = LogState.read(tmp_path)
    assert after == before
    light = LogState.read(tmp_path, files=False)
    assert light == replace(before, adds={}, removed={})


def test_a_file_with_another_deletion_vector_stays(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"n": [1, 2]}))
    add = one(tmp_path)
    vector = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
    actions = [{"add": add | {"deletionVector": vector}}, {"remove": {"path": add["path"]}}]
    for version, ordered in enumerate((actions, actions[::-1]), 1):
        commit(tmp_path, version, *ordered)
        (found,) = LogState.read(tmp_path).adds.values()
        assert found["deletionVector"] == vector


@pytest.mark.parametrize(
    ("parsed", "rows_found"),
    [
        ({"numRecords": 2, "minValues": {"n": 1}}, 2),
        ({"numRecords": None, "minValues": None}, 0),
        ({"minValues": {"n": 1}}, 0),
        (None, 0),
    ],
)
@pytest.mark.parametrize("has_text", [False, True])
def test_a_checkpoint_with_typed_statistics_says_how_many_rows(
    tmp_path: Path, parsed: dict[str, object] | None, rows_found: int, has_text: bool
) -> None:
    """Spark leaves the text out; other writers leave it empty."""
    write_deltalake(tmp_path, pa.table({"n": [1, 2]}))
    write_classic(tmp_path, cleans=False)
    (path,) = (tmp_path / "_delta_log").glob("*.checkpoint.parquet")
    rows = pq.read_table(path)
    actions = rows.to_pylist(maps_as_pydicts="strict")
    adds = [None if row["add"] is None else {**row["add"], "stats": None} for row in actions]
    kind = rows.schema.field("add").type
    others = [field for field in kind if has_text or field.name != "stats"]
    least, number = ("minValues", pa.struct([("n", pa.int64())])), ("numRecords", pa.int64())
    typed = pa.struct([least, *([number] if parsed is None or number[0] in parsed else [])])
    column = pa.array(
        [add and {**add, "stats_parsed": parsed} for add in adds],
        pa.struct([*others, pa.field("stats_parsed", typed)]),
    )
    pq.write_table(rows.set_column(rows.schema.get_field_index("add"), "add", column), path)
    state = LogState.read(tmp_path)
    (name,) = state.adds
    assert (state.rows(name), state.bounds(name, "n")) == (rows_found, (None, None))
    assert "stats_parsed" not in state.adds[name]
    assert ("stats" in state.adds[name]) == bool(rows_found)


@pytest.mark.parametrize("said", [b"{}", b'{"metaData": {}, "protocol": {}}'])
def test_a_log_that_defines_no_table_is_refused(table: Path, said: bytes) -> None:
    commit_path(table, 0).write_bytes(said)
    with pytest.raises(CorruptLogError, match="does not define it"):
        LogState.read(table)


@pytest.mark.parametrize(
    "line",
    [
        b'{"add": {"size": 1}}',
        b'{"add": {"path": 5}}',
        b'{"txn": {"a": 1}}',
        b'{"add": 5}',
        b"\xff",
        b"{",
    ],
)
def test_a_line_that_means_nothing_is_damage(table: Path, line: bytes) -> None:
    commit_path(table, 1).write_bytes(line)
    with pytest.raises(CorruptLogError, match="cannot be read"):
        LogState.read(table)


def one(table: Path) -> dict[str, Any]:
    """Return the `add` of one of the live files."""
    return min(LogState.read(table).adds.values(), key=str)


def commit(table: Path, version: int, *actions: dict[str, Any]) -> None:
    """Commit actions."""
    commit_by_hand(table, version, {"operation": "WRITE"}, "", actions)
