"""The state of a table of plain files: the same from commits and from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from sparktxlog.delta.classic_checkpoints import write_classic
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
