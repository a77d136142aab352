"""What a task uploads, where its executor does not see the node's payload store."""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparktxlog.api.staging import executor_uploads, staged_append, uploaded_rows
from sparktxlog.api.staging.executor_uploads import UploadTarget
from sparktxlog.api.staging.staged_append import StagedAppend
from sparktxlog.errors import ConfigError, InvalidRowsError, TransportError
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import OperationKind, StagedFile

TOKEN = "a token that nobody may see"
TARGET = UploadTarget(url="http://a:1", token=TOKEN, ca_file="/ca.pem")
DEFINITION = TableDefinition(
    name="t",
    columns=(
        Column(name="id", type="bigint", nullable=False),
        Column(name="p", type="string"),
    ),
    keys=("id",),
    partition_by=("p",),
)


class Node:
    """Takes uploads into a directory, or fails as it is told."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.failure: Exception | None = None
        self.made_with: list[tuple[Any, ...]] = []
        self.may_take = threading.Event()
        self.may_take.set()
        self.spools: list[Path] = []

    def link(self, url: str, token: str | None, ca_file: str | None) -> Node:
        """Stand for `UploadLink`."""
        self.made_with.append((url, token, ca_file))
        return self

    def upload(self, path: Path, file: StagedFile, table: str) -> None:
        """Take a file."""
        self.may_take.wait()
        self.spools.append(path.parents[len(Path(file.path).parts) - 1])
        if self.failure is not None:
            raise self.failure
        data = path.read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file.size_bytes, file.digest)
        assert table == "t"
        target = self.store / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def close(self) -> None:
        """Close nothing."""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    found = Node(tmp_path / "store")
    monkeypatch.setattr(executor_uploads, "UploadLink", found.link)
    monkeypatch.setattr(executor_uploads, "attempt_name", lambda: "part-00003-7")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "local"))
    (tmp_path / "local").mkdir()
    yield found
    assert os.listdir(tmp_path / "local") == []  # whatever happened


def batch(first: int, n: int = 100) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"p": [f"p{i % 3}" for i in range(n)], "id": pa.array(range(first, first + n), pa.int64())}
    )


def test_rows_are_uploaded_by_partition_under_the_name_of_the_attempt(node: Node) -> None:
    files = TARGET.upload([batch(0), batch(100)], "tx/0-t-x", DEFINITION)
    assert node.made_with == [("http://a:1", TOKEN, "/ca.pem")]
    assert {(file.partition or {})["p"] for file in files} == {"p0", "p1", "p2"}
    ids: list[int] = []
    for file in files:
        stored = pq.ParquetFile(node.store / file.path).read()
        assert (stored.num_rows, stored.column_names) == (file.rows, ["id"])
        assert file.path.startswith(f"tx/0-t-x/p={(file.partition or {})['p']}/part-00003-7-")
        ids += stored["id"].to_pylist()
    assert sorted(ids) == list(range(200))


def test_keys_to_delete_lie_together(node: Node) -> None:
    keys = pa.RecordBatch.from_pydict({"id": pa.array([1, 2], pa.int64())})
    (file,) = TARGET.upload([keys], "tx/0-t", DEFINITION, OperationKind.DELETE_KEYS, checks=False)
    assert (file.rows, file.partition) == (2, None)


def test_no_rows_are_no_files(node: Node) -> None:
    assert TARGET.upload([], "tx/0-t", DEFINITION) == []
    assert not node.store.exists()


def test_a_task_waits_for_the_node_and_keeps_little(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the node takes nothing, no more batches are asked for than a few files hold."""
    monkeypatch.setattr(uploaded_rows, "_FILE_BYTES", 1)
    monkeypatch.setattr("sparktxlog.api.staging.parquet_parts._WAITING_BYTES", 1)
    node.may_take.clear()
    taken: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(50):
            taken.append(number)
            yield batch(100 * number)

    found: list[StagedFile] = []
    task = threading.Thread(
        target=lambda: found.extend(TARGET.upload(batches(), "tx/0-t", DEFINITION))
    )
    task.start()
    task.join(0.5)  # it would be through by now
    assert task.is_alive() and len(taken) <= 3
    node.may_take.set()
    task.join()
    assert sum(file.rows for file in found) == 5_000
    assert len({file.path for file in found}) == len(found) == 150


def test_what_fails_ends_the_task_and_leaves_no_local_file(node: Node) -> None:
    node.failure = TransportError("the node is gone")
    with pytest.raises(TransportError, match="gone"):
        TARGET.upload([batch(0)], "tx/0-t", DEFINITION)
    broken = pa.RecordBatch.from_pydict({"p": ["a"], "id": pa.array([None], pa.int64())})
    with pytest.raises(InvalidRowsError):
        TARGET.upload([broken], "tx/0-t", DEFINITION)


def test_the_token_is_in_no_text_and_reaches_the_task() -> None:
    assert TOKEN not in repr(TARGET) + str(TARGET) + f"{TARGET}"
    assert pickle.loads(pickle.dumps(TARGET)) == TARGET


def appended(root: Path, **options: str) -> StagedAppend:
    return StagedAppend(
        options={"url": "http://a:1", **options},
        definition=DEFINITION,
        home=TARGET,
        root=root,
        transaction_id=b"x" * 16,
        folder="78787878-7878-7878-7878-787878787878/0-t-a",
    )


@pytest.mark.parametrize(
    ("staging", "sees_store", "uploads"),
    [("auto", True, False), ("auto", False, True), ("http", True, True), ("shared", True, False)],
)
def test_a_task_of_the_data_source_uploads_what_it_cannot_write(
    node: Node,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    staging: str,
    sees_store: bool,
    uploads: bool,
) -> None:
    monkeypatch.setattr(staged_append, "attempt_name", lambda: "part-00003-7")
    root = tmp_path / "payloads"
    if sees_store:
        root.mkdir()
    append = appended(root, staging=staging)
    append.make_folder()
    files = append.write([batch(0)])
    assert sum(file.rows for file in files) == 100
    stored = node.store if uploads else root
    assert all((stored / file.path).is_file() for file in files)
    assert root.exists() == sees_store
    if uploads:
        # Nothing of it is here, so there is nothing to move or to remove.
        moved, same = append.under(b"y" * 16, files)
        assert (moved.transaction_id, same) == (b"y" * 16, files)
        append.abort()
    assert all((stored / file.path).is_file() for file in files)


def test_a_way_of_staging_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="'ftp'"):
        staged_append.check_level({"staging": "ftp"})
