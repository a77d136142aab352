"""The sink of a stream: its transaction ids, and what a commit or abort makes of the messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparktxlog.api.datasource import TxLogDataSource
from sparktxlog.api.spark_errors import errors_from_spark
from sparktxlog.api.staging.executor_uploads import UploadTarget
from sparktxlog.api.staging.staged_append import StagedAppend, folder_of
from sparktxlog.api.streams.writer import StagedPart, TxLogStreamWriter, batch_transaction_id
from sparktxlog.errors import InvalidRequestError, PayloadStoreError, UnreachableError
from sparktxlog.model.tables.table import Column, TableDefinition

#: Nothing listens there.
URL = "http://127.0.0.1:1"
HOME = UploadTarget(url=URL, token=None, ca_file=None)
QUERY = "86613262-4f3d-47d2-9655-31d02585361d"
DEFINITION = TableDefinition(name="t", columns=(Column(name="id", type="bigint"),))


def _part(root: Path, batch: int, attempt: str) -> StagedPart:
    identity = batch_transaction_id(QUERY, batch).bytes
    append = StagedAppend(
        options={"url": URL, "timeout": "1", "staging": "shared"},
        definition=DEFINITION,
        home=HOME,
        root=root,
        transaction_id=identity,
        folder=folder_of(identity, "t", attempt),
        session=QUERY,
    )
    append.make_folder()
    (root / append.folder / "part-0.parquet").write_bytes(b"rows")
    return StagedPart(append, QUERY, ())


def _writer(root: Path) -> TxLogStreamWriter:
    return TxLogStreamWriter({"url": URL, "staging": "shared"}, DEFINITION, HOME, str(root))


def test_the_transaction_id_follows_from_query_and_batch_for_ever() -> None:
    # A changed rule would append the batch that a running query repeats a second time.
    assert str(batch_transaction_id(QUERY, 7)) == "4d969713-417e-59dc-e52b-2c40f9bbd7b4"
    ids = {batch_transaction_id(query, n) for query in (QUERY, QUERY[::-1]) for n in (1, 11, 111)}
    assert len(ids) == 6


def test_a_batch_without_rows_or_tasks_asks_no_node(tmp_path: Path) -> None:
    writer = _writer(tmp_path)
    writer.commit([], 0)
    writer.commit([None], 0)
    writer.abort([None], 0)
    part = _part(tmp_path, 0, "a")
    writer.commit([None, part], 0)  # its tasks wrote no file
    assert list(tmp_path.iterdir()) == []


def test_an_abort_removes_only_what_this_attempt_wrote(tmp_path: Path) -> None:
    first, second = _part(tmp_path, 3, "a"), _part(tmp_path, 3, "b")
    _writer(tmp_path).abort([None, second], 3)
    assert not (tmp_path / second.append.folder).exists()
    assert (tmp_path / first.append.folder / "part-0.parquet").exists()


def test_an_abort_after_a_post_keeps_the_files(tmp_path: Path) -> None:
    part = _part(tmp_path, 3, "a")
    (tmp_path / part.append.folder / "_submitted").touch()  # the log may have accepted it
    _writer(tmp_path).abort([part], 3)
    assert (tmp_path / part.append.folder / "part-0.parquet").exists()


def test_messages_of_another_batch_are_refused(tmp_path: Path) -> None:
    part = _part(tmp_path, 3, "a")
    with pytest.raises(InvalidRequestError, match="another batch than 4"):
        _writer(tmp_path).commit([part], 4)
    assert list(tmp_path.iterdir()) == []


def test_no_directory_is_made_where_there_is_no_payload_store(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(PayloadStoreError):
        _writer(elsewhere)
    with pytest.raises(PayloadStoreError):
        _part(elsewhere, 0, "a")
    assert list(tmp_path.iterdir()) == []


def test_options_are_checked_before_a_node_is_asked() -> None:
    from pyspark.sql.types import LongType, StructType

    schema = StructType().add("id", LongType())

    def made(overwrite: bool = False, **options: str) -> None:
        TxLogDataSource({"url": URL, **options}).streamWriter(schema, overwrite)

    for overwrite, options, words in (
        (True, {"table": "t"}, "'complete'.*foreachBatch"),
        (False, {}, "no table"),
        (False, {"table": "t", "level": "soon"}, "soon"),
        (False, {"table": "t", "timeout": "never"}, "seconds"),
    ):
        with pytest.raises(InvalidRequestError, match=f"(?s){words}"):
            made(overwrite, **options)
    with pytest.raises(UnreachableError):
        made(table="t")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("requirement failed: txlog does not support Update mode. SQLSTATE", "foreachBatch"),
        ("Data source txlog does not support continuous processing.", "processingTime"),
        ("Writing into a view is not allowed. View: `txlog`.`t`.", "log.append"),  # Spark 4.1
    ],
)
def test_what_spark_refuses_gets_a_way_out(words: str, hint: str) -> None:
    found = errors_from_spark(Exception(words))
    assert isinstance(found, InvalidRequestError)
    assert hint in found.hint
