"""Twins of tables in a bucket: paths become URLs and back, and new files are copied."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.support.delta_writer import FEATURES, SCHEMA, StagedTable, info_of, lines_of

from sparktxlog.delta.checkpoints import newest_of_twin
from sparktxlog.delta.file_paths import vector_code, vector_path
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import CorruptLogError, StoreForbiddenError
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.files.stores.store import Created
from sparktxlog.storage.commit_tables.bucket_twin import BucketTwin, by_path, by_url, url_in_log
from sparktxlog.storage.commit_tables.twin import without_feature

ROOT = "s3://lake/site%20a/0b5d"
VECTOR = "ab^-aqEH.-t@S}K{vb[*k^"
PROTOCOL: dict[str, Any] = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": FEATURES,
    "writerFeatures": [*FEATURES, "inCommitTimestamp"],
}


def vector(kind: str, where: str) -> dict[str, Any]:
    return {"storageType": kind, "pathOrInlineDv": where, "offset": 1, "sizeInBytes": 3}


def test_paths_become_urls_and_back() -> None:
    path, stored = "p=a%2520b/x.parquet", vector("u", VECTOR)
    inline = vector("i", "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L")
    raw = lines_of(
        info_of(5),
        {"remove": {"path": path, "deletionVector": inline}},
        {"add": {"path": path, "size": 7, "deletionVector": stored}},
        {"cdc": {"path": "_change_data/y.parquet", "size": 1}},
    )
    (info, removed, added, changed) = map(json.loads, by_url(raw, ROOT).splitlines())
    assert removed["remove"] == {"path": f"{ROOT}/{path}", "deletionVector": inline}
    url = f"{ROOT}/{vector_path(VECTOR)}"
    assert added["add"]["deletionVector"] == vector("p", url)
    assert url == f"{ROOT}/ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert changed["cdc"]["path"] == f"{ROOT}/_change_data/y.parquet"
    there = [*map(json.loads, by_path(by_url(raw, ROOT), ROOT).splitlines())]
    assert there == [*map(json.loads, raw.splitlines())] and info == there[0]
    # What was written on the twin stays as it is.
    assert [*map(json.loads, by_path(raw, ROOT).splitlines())] == there
    with pytest.raises(CorruptLogError, match="which is not there"):
        by_path(lines_of({"add": {"path": "s3://lake/other/x"}}), ROOT)


def test_a_vector_without_a_directory_has_a_code_as_well() -> None:
    assert vector_code(vector_path(VECTOR[2:])) == VECTOR[2:]
    for name in ("x.parquet", "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff6-.bin"):
        with pytest.raises(CorruptLogError, match="no deletion vector"):
            vector_code(name)


def test_a_url_of_a_table_is_quoted_as_in_logs() -> None:
    assert url_in_log("s3://lake/site a/ü=1") == "s3://lake/site%20a/%C3%BC=1"
    assert url_in_log("abfss://c@x.dfs.core.windows.net/t") == "abfss://c@x.dfs.core.windows.net/t"


class Bucket(DiskStore):
    """A directory whose keys have URLs of a bucket."""

    def url_of(self, key: str) -> str:
        return f"s3://lake/a/{key}"


@pytest.fixture
def store(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path / "bucket")


@pytest.fixture
def table(store: Bucket, tmp_path: Path) -> StagedTable:
    """A table whose version 1 holds a row file with a deletion vector."""
    name = str(uuid.uuid4())
    directory = tmp_path / "bucket" / name
    metadata = {"schemaString": json.dumps(SCHEMA), "configuration": {"a": "b"}}
    made = StagedTable(name, directory, store.url_of(name), metadata, PROTOCOL)
    directory.mkdir(parents=True)
    made.write_first(made.add())
    add = made.add()
    add["add"]["deletionVector"] = vector("u", VECTOR)
    more = [{"txn": {"appId": "a", "version": 3}}, {"domainMetadata": domain("d", '{"n":1}')}]
    made.published(1).write_bytes(lines_of(info_of(2), add, *more))
    return made


def domain(name: str, said: str) -> dict[str, Any]:
    return {"domain": name, "configuration": said, "removed": False}


@pytest.fixture
def twin(store: Bucket, table: StagedTable) -> BucketTwin:
    made = BucketTwin(store, table.table_id, ".twins/x", without_feature)
    made.begin(LogState.read(table.directory), table.published(1).read_bytes())
    return made


def on(twin: BucketTwin, table: StagedTable) -> StagedTable:
    """Return the directory of a twin, where Delta writes."""
    directory = table.directory.parent / twin.key
    return StagedTable("twin", directory, twin.path)


def test_a_twin_says_all_that_the_table_does(twin: BucketTwin, table: StagedTable) -> None:
    directory = on(twin, table).directory
    checkpoint = newest_of_twin(directory, 9)
    assert checkpoint is not None and (checkpoint.version, twin.newest()) == (1, 1)
    said = LogState.read(directory)
    state = LogState.read(table.directory)
    assert {f"/a/{table.table_id}/{path}" for path in state.adds} == {
        path.removeprefix("s3://lake") for path in said.adds
    }
    assert said.metadata == state.metadata and said.features == state.features - {"catalogManaged"}
    assert (said.transactions, said.domains) == ({"a": 3}, {"d": '{"n":1}'})
    assert twin.own_version() is None


def test_a_twin_follows_until_it_has_a_version_of_its_own(
    twin: BucketTwin, table: StagedTable
) -> None:
    table.published(2).write_bytes(lines_of(info_of(3), table.add()))
    twin.follow()
    assert (twin.newest(), twin.own_version()) == (2, None)
    # Delta overwrote what the twin had got: it looked before that was there.
    on(twin, table).published(2).write_bytes(lines_of(info_of(4)))
    assert twin.own_version() == 2
    on(twin, table).published(3).write_bytes(lines_of(info_of(5)))
    table.published(3).write_bytes(lines_of(info_of(6), table.add()))
    with pytest.raises(CorruptLogError, match="somebody wrote there"):
        twin.follow()


def test_what_was_committed_on_a_twin_is_staged_in_the_table(
    twin: BucketTwin, table: StagedTable, store: Bucket
) -> None:
    here = on(twin, table)
    raw = (here.directory / "_delta_log" / f"{1:020}.json").read_bytes()
    lives = json.loads(raw.splitlines()[1])["add"]
    added = here.add(b"compact")
    removal = {"path": lives["path"], "deletionVector": lives["deletionVector"]}
    here.published(2).write_bytes(lines_of(info_of(5), {"remove": removal}, added))
    assert twin.own_version() == 2
    commit = twin.stage(2)
    assert twin.stage(2) == commit
    name = added["add"]["path"]
    assert commit.brought == (name,)
    assert (table.directory / name).read_bytes() == b"compact"
    _, removed, _ = map(
        json.loads, table.staged(commit.proposed.file_name).read_bytes().splitlines()
    )
    assert removed["remove"]["deletionVector"] == vector("u", VECTOR)
    assert removed["remove"]["path"] in LogState.read(table.directory).adds

    (here.directory / name).unlink()  # somebody removes it before it was copied
    (table.directory / name).unlink()
    with pytest.raises(CorruptLogError, match="is missing, and a commit adds it"):
        twin.stage(2)
    here.published(2).unlink()
    with pytest.raises(CorruptLogError, match="has no version 2"):
        twin.stage(2)
    (table.directory / name).write_bytes(b"of somebody else")
    (here.directory / name).write_bytes(b"compact")
    here.published(2).write_bytes(lines_of(info_of(5), added))
    with pytest.raises(CorruptLogError, match="another file than the commit adds"):
        twin.stage(2)
    twin.remove()
    assert not [*store.list(".twins")]


def test_a_commit_that_cannot_be_staged_leaves_no_object(
    twin: BucketTwin, table: StagedTable, store: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = on(twin, table)
    first, second = here.add(b"one"), here.add(b"two")
    here.published(2).write_bytes(lines_of(info_of(5), first, second))
    before = {found.key for found in store.list(table.table_id)}

    def refusing(key: str, content: bytes) -> Created:
        raise StoreForbiddenError("no more objects")

    with monkeypatch.context() as patch:
        patch.setattr(store, "create", refusing)
        with pytest.raises(StoreForbiddenError):
            twin.stage(2)
    assert {found.key for found in store.list(table.table_id)} == before
    # Of somebody else: it stays, and the other one goes.
    other = table.directory / second["add"]["path"]
    other.write_bytes(b"of somebody else")
    with pytest.raises(CorruptLogError, match="another file than the commit adds"):
        twin.stage(2)
    left = {found.key for found in store.list(table.table_id)} - before
    assert left == {f"{table.table_id}/{second['add']['path']}"}
    other.unlink()
    assert len(twin.stage(2).brought) == 2


def test_a_version_without_changes_is_one_of_the_table(
    twin: BucketTwin, table: StagedTable
) -> None:
    twin.add_unchanged_version()
    commit = twin.stage(2)
    assert (commit.proposed.version, commit.brought, commit.content.files) == (2, (), ())
