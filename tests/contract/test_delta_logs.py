"""A log says the same wherever it lies: by the path of a directory, in a store of one, in a bucket.

Which forms of logs there are is a matter of `tests/unit/delta`.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from tests.support import store_servers
from tests.support.faulty_way import Fault, faulty_way
from tests.support.store_servers import StoreServer
from tests.unit.delta.test_checkpoints import FILES, FORMS, write

from sparktxlog.delta.checkpoints import (
    forget_taken,
    last_checkpoint,
    newest_checkpoint,
    newest_of_twin,
    take_checkpoint,
)
from sparktxlog.delta.commit_files import commit_by_hand, commit_bytes, read_actions
from sparktxlog.delta.live_files import live_files, needed_files
from sparktxlog.delta.log_files import (
    TablePlace,
    commits_in,
    files_of_log,
    has_commit,
    has_log,
    last_number,
    names_in_log,
    newest_commit,
    newest_version,
    store_of,
)
from sparktxlog.delta.log_segments import read_version
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import CorruptLogError, StoreUnavailableError
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.files.stores.opening import store_at
from sparktxlog.model.tables.commit_table import commit_file_name

PLACES = ["directory", "disk", "seaweedfs"]
SCHEMA = '{"type":"struct","fields":[]}'
DEFINED = [
    {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
    {"metaData": {"id": "t", "schemaString": SCHEMA, "partitionColumns": []}},
]
INFO = {"operation": "WRITE"}


@pytest.fixture(params=PLACES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> TablePlace:
    path = tmp_path / "a table"
    if request.param == "directory":
        return path
    if request.param == "disk":
        return DiskStore(path)
    server: StoreServer = request.getfixturevalue("seaweedfs")
    return server.store(f"logs/{os.urandom(8).hex()}/a table")


def add(path: str) -> dict[str, object]:
    return {"add": {"path": path, "size": len(path), "partitionValues": {}, "dataChange": True}}


def commit(table: TablePlace, version: int, said: str = "mine") -> None:
    actions = [*(DEFINED if version == 0 else ()), add(f"p=%C3%BC/x{version}")]
    commit_by_hand(table, version, INFO, said, actions)


def test_versions_are_written_and_read(table: TablePlace) -> None:
    assert not has_log(table) and newest_commit(table) == newest_version(table, -1) == -1
    with pytest.raises(CorruptLogError, match="not a Delta table"):
        LogState.read(table)
    for version in range(3):
        commit(table, version)
    assert has_log(table) and commits_in(table) == [0, 1, 2]
    assert newest_version(table, 0) == newest_commit(table) == last_number(table) == 2
    assert has_commit(table, 2) and not has_commit(table, 3)
    assert sorted(names_in_log(table)) == sorted(
        commit_file_name(version).rpartition("/")[2] for version in range(3)
    )
    assert files_of_log(table, 1) == [commit_file_name(version) for version in range(2)]
    assert read_version(table).version == 2
    state = LogState.read(table, known=True)
    assert list(state.adds) == [f"p=ü/x{version}" for version in range(3)]
    assert live_files(table, 1).sizes == {f"p=ü/x{n}": 11 for n in range(2)}
    actions = read_actions(table, 1)
    assert actions is not None and actions[0]["commitInfo"]["userMetadata"] == "mine"
    with pytest.raises(CorruptLogError, match="has no version 3"):
        commit_bytes(table, 3)


def test_one_writer_gets_a_version(table: TablePlace) -> None:
    commit(table, 0)
    commit(table, 0)  # after an answer that was lost
    before = commit_bytes(table, 0)
    with pytest.raises(FileExistsError):
        commit(table, 0, "theirs")
    assert commit_bytes(table, 0) == before
    racers = 8
    ready = Barrier(racers)

    def race(number: int) -> bool:
        ready.wait()
        try:
            commit(table, 1, f"racer {number}")
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(racers) as threads:
        assert sum(threads.map(race, range(racers))) == 1
    assert commits_in(table) == [0, 1]


@pytest.mark.parametrize("form", FORMS)
def test_every_checkpoint_says_the_same(table: TablePlace, tmp_path: Path, form: str) -> None:
    made = tmp_path / "made here"
    write(made, form)
    store = store_of(table)
    for path in made.rglob("*"):
        if path.is_file():
            store.create(path.relative_to(made).as_posix(), path)
    found = newest_checkpoint(table, 5)
    assert found is not None and found.version == 4 and newest_checkpoint(table, 3) is None
    assert {path: one.size for path, one in live_files(table, 4).needed.items()} == FILES
    assert [one["path"] for one in found.removed_after(6)] == ["gone"]
    commit_by_hand(table, 5, INFO, "", [{"remove": {"path": "c"}}, add("d")])
    assert live_files(table).sizes == {"p=ü/a": 1, "b": 2, "d": 1}
    store.remove([(*found.sidecars, *found.tops)[0]])
    assert newest_checkpoint(table, 4) is None
    with pytest.raises(CorruptLogError, match="has no version 0"):
        live_files(table, 4)


def test_a_checkpoint_is_taken_and_forgotten(table: TablePlace, tmp_path: Path) -> None:
    twin = tmp_path / "twin"
    write(twin, "json")
    found = newest_of_twin(twin, 4)
    assert found is not None
    for number in range(4):
        take_checkpoint(found, table, lambda raw, number=number: raw + b'\n{"txn":{}}' * number)
    taken = newest_of_twin(table, 4)
    assert taken is not None and len(taken.sidecars) == 2
    assert last_checkpoint(table) == 4
    assert {path: one.size for path, one in live_files(table, 4).needed.items()} == FILES
    forget_taken(table)
    tops = [name for name in names_in_log(table) if name.endswith(".json")]
    assert len(tops) == 2


def test_where_the_log_cannot_be_read_all_data_files_count(table: TablePlace) -> None:
    commit(table, 0)
    store = store_of(table)
    store.create("p=1/x.parquet", b"12345")
    store.create("_hidden/y", b"1")
    commit_by_hand(table, 1, INFO, "", [{"protocol": {"minReaderVersion": 99}}])
    assert {path: file.size for path, file in needed_files(table, 1).items()} == {
        "p=1/x.parquet": 5
    }


def test_an_answer_that_is_lost_is_no_second_version(seaweedfs: StoreServer) -> None:
    """What the bucket has is compared: the commit was made, once."""
    lost = list[str]()

    def lose(method: str) -> Fault:
        if method != "PUT" or len(lost) == 2:
            return Fault.NONE
        lost.append(method)
        return Fault.LOST

    with faulty_way(seaweedfs.endpoint, lose) as way:
        table = seaweedfs.store(f"logs/{os.urandom(8).hex()}", endpoint=way.url)
        commit(table, 0)
        assert commits_in(table) == [0] and len(lost) == 2
        with pytest.raises(FileExistsError):
            commit(table, 0, "theirs")


def test_a_bucket_that_is_down_is_no_table_that_is_missing(seaweedfs: StoreServer) -> None:
    prefix = f"logs/{os.urandom(8).hex()}"
    table = seaweedfs.store(prefix)
    commit(table, 0)
    settings = seaweedfs.settings("http://127.0.0.1:9", patience_s=0.5)
    away = store_at(f"s3://{store_servers.BUCKET}/{prefix}", settings)
    for look in (has_log, newest_commit, LogState.read, lambda one: has_commit(one, 0)):
        with pytest.raises(StoreUnavailableError):
            look(away)
