"""What a version says of its table; forms of checkpoints: test_checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sparktxlog.delta.log_files import commit_path
from sparktxlog.delta.log_segments import read_version
from sparktxlog.errors import CorruptLogError, StorageError

ROWS = pa.table({"id": [1], "p": ["a"]})


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of three versions, the last of which has another schema."""
    more = ROWS.append_column("more", pa.array([1]))
    properties = {"delta.appendOnly": "true"}
    write_deltalake(tmp_path, ROWS, partition_by=["p"], description="d", configuration=properties)
    write_deltalake(tmp_path, ROWS, mode="append")
    write_deltalake(tmp_path, more, mode="append", schema_mode="merge")
    return tmp_path


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_version_is_as_delta_rs_says(table: Path, checkpoint: bool) -> None:
    if checkpoint:
        DeltaTable(table).create_checkpoint()
    for version in (None, 1, 2):
        found, handle = read_version(table, version), DeltaTable(table, version=version)
        said, protocol = handle.metadata(), handle.protocol()
        assert found.version == handle.version()
        assert found.metadata.columns == json.loads(handle.schema().to_json())
        assert (found.metadata.id, found.metadata.created_time) == (str(said.id), said.created_time)
        assert found.metadata.partition_columns == tuple(said.partition_columns) == ("p",)
        assert found.metadata.configuration == said.configuration == {"delta.appendOnly": "true"}
        assert found.metadata.description == said.description == "d"
        assert found.protocol.min_writer_version == protocol.min_writer_version
        assert found.protocol.writer_features == tuple(protocol.writer_features or ())


def test_what_is_no_version_is_refused(table: Path) -> None:
    with pytest.raises(CorruptLogError, match="has no version 3"):
        read_version(table, 3)
    with pytest.raises(CorruptLogError, match="not a Delta table"):
        read_version(table / "p=a")
    commit_path(table, 3).write_text('{"protocol":{"minReaderVersion":9,"minWriterVersion":9}}')
    with pytest.raises(StorageError, match="not known here"):
        read_version(table)
    for text in ("{", '{"protocol":{"minReaderVersion":"1"}}'):
        commit_path(table, 3).write_text(text)
        with pytest.raises(CorruptLogError, match="cannot be read"):
            read_version(table)
    commit_path(table / "p=a", 0).parent.mkdir()
    commit_path(table / "p=a", 0).write_text('{"add":{"path":"x","size":1}}')
    with pytest.raises(CorruptLogError, match="does not define it"):
        read_version(table / "p=a")
