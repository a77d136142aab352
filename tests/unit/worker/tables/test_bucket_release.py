"""A commit table in a bucket is given back: its log, cleaned up or not, and its files."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.delta_writer import SCHEMA, StagedTable, info_of, lines_of

from sparktxlog.delta.live_files import live_files
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import CorruptLogError, InvalidRequestError
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.worker.tables.bucket_release import BucketRelease

FEATURES = ["catalogManaged", "deletionVectors", "v2Checkpoint", "vacuumProtocolCheck"]
PROTOCOL = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": FEATURES,
    "writerFeatures": [*FEATURES, "inCommitTimestamp"],
}
PROPERTIES = {"delta.enableInCommitTimestamps": "true", "delta.checkpointPolicy": "v2"}


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path)


@pytest.fixture
def table(tmp_path: Path) -> StagedTable:
    """A table of three versions; the last one lacks what the first one had."""
    directory = tmp_path / "site-a" / str(uuid.uuid4())
    metadata = {"schemaString": json.dumps(SCHEMA), "configuration": PROPERTIES}
    made = StagedTable(directory.name, directory, "", metadata, PROTOCOL)
    directory.mkdir(parents=True)
    made.write_first(first := made.add(b"first"))
    made.published(1).write_bytes(lines_of(info_of(2), made.add(b"second")))
    removal = {"remove": {"path": first["add"]["path"], "dataChange": True}}
    made.published(2).write_bytes(lines_of(info_of(3), removal))
    return made


@pytest.fixture
def release(store: DiskStore, table: StagedTable) -> BucketRelease:
    return BucketRelease(store, f"site-a/{table.table_id}", "back/orders")


def names(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*.*")}


def test_it_comes_with_all_versions(
    release: BucketRelease, table: StagedTable, tmp_path: Path
) -> None:
    assert release.newest() == 2
    assert release.bring(1, keep_features=True) is None
    # More was committed until the drop; the log is written again, by the features of all of it.
    assert release.bring(2, keep_features=False) == ("inCommitTimestamp",)
    back = tmp_path / "back" / "orders"
    assert names(back) == names(table.directory)
    assert {file.path for file in live_files(back).data} == {
        file.path for file in live_files(table.directory).data
    }
    state = LogState.read(back)
    assert state.configuration == {"delta.enableInCommitTimestamps": "true"}
    assert LogState.read(back, 0).adds.keys() == LogState.read(table.directory, 0).adds.keys()


def test_a_log_that_was_cleaned_begins_with_a_classic_checkpoint(
    release: BucketRelease, table: StagedTable, tmp_path: Path
) -> None:
    said: list[dict[str, Any]] = [
        {"checkpointMetadata": {"version": 1}},
        {"protocol": PROTOCOL},
        {"metaData": table.metadata | {"partitionColumns": [], "id": "x"}},
        {"sidecar": {"path": "x.parquet", "sizeInBytes": 1, "modificationTime": 1}},
    ]
    sidecars = table.directory / "_delta_log" / "_sidecars"
    sidecars.mkdir()
    rows = [
        {"add": add | {"partitionValues": None}}
        for add in LogState.read(table.directory, 1).adds.values()
    ]
    pq.write_table(pa.Table.from_pylist(rows), sidecars / "x.parquet")
    top = table.directory / "_delta_log" / f"{1:020}.checkpoint.{uuid.uuid4()}.json"
    top.write_bytes(lines_of(*said))
    table.published(0).unlink()
    release.bring(2, keep_features=False)
    back = tmp_path / "back" / "orders"
    log = {path.name for path in (back / "_delta_log").iterdir() if path.is_file()}
    assert f"{1:020}.checkpoint.parquet" in log and f"{0:020}.json" not in log
    assert {file.path for file in live_files(back).data} == {
        file.path for file in live_files(table.directory).data
    }
    top.unlink()
    with pytest.raises(CorruptLogError, match="is missing"):
        release.bring(2, keep_features=False)


def test_a_file_that_is_missing_is_said_before_anything_is_there(
    release: BucketRelease, table: StagedTable, store: DiskStore
) -> None:
    gone, needed = (
        next(path for path in table.directory.glob("*.parquet") if path.read_bytes() == content)
        for content in (b"first", b"second")
    )
    needed.rename(needed.with_suffix(".lost"))
    with pytest.raises(CorruptLogError, match=f"{needed.name} is missing, and version 2 needs"):
        release.bring(2, keep_features=False)
    assert not [*store.list("back")]
    needed.with_suffix(".lost").rename(needed)
    gone.unlink()  # a vacuum took it
    release.bring(2, keep_features=False)
    assert f"back/orders/{needed.name}" in {one.key for one in store.list("back")}


def test_it_goes_to_its_own_bucket_only() -> None:
    for path in ("/data/orders", "s3://other/orders", "s3://lake", "gs://lake/orders"):
        with pytest.raises(InvalidRequestError, match="is no prefix in the bucket") as refused:
            BucketRelease.of("s3://lake/site-a/x", path)
        assert "s3://lake/…" in (refused.value.hint or "")


@pytest.mark.parametrize("root", ["s3://lake/site-a", "s3://lake"])
@pytest.mark.parametrize("below", ["{0}/back", "{1}", "{1}/back", ".commits/back"])
def test_it_does_not_go_where_upkeep_removes_it(root: str, below: str) -> None:
    """Below the table itself, or another one, it would be what no version names."""
    table, other = str(uuid.uuid4()), str(uuid.uuid4())
    path = f"{root.replace('s3:', 's3a:')}/{below.format(table, other)}"
    with pytest.raises(InvalidRequestError, match="is in a commit table") as refused:
        BucketRelease.of(f"{root}/{table}", path)
    assert refused.value.definite and refused.value.fields["value"] == path
