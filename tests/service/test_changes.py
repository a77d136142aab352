"""Tables change between real nodes: everywhere alike, and who came too late is told so (P33)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from tests.service.local_nodes import cluster, until
from tests.support.node_processes import HttpProblem, call, run_payload

from sparktxlog import Client
from sparktxlog.api.staging.executor_uploads import UploadTarget
from sparktxlog.api.staging.parquet_parts import FileStage
from sparktxlog.api.staging.staged_append import StagedAppend, folder_of
from sparktxlog.api.streams.writer import StagedPart, TxLogStreamWriter, batch_transaction_id
from sparktxlog.api.writing.group_definitions import create_group
from sparktxlog.errors import (
    ColumnInUseError,
    InvalidRequestError,
    NameTakenError,
    SchemaMismatchError,
    StaleSchemaError,
    UnknownTableError,
)
from sparktxlog.http.link import Http
from sparktxlog.runtime.node import Node

Row = dict[str, Any]
Append = Callable[[Client, list[Row]], Any]


def _append_made_for(client: Client, rows: list[Row]) -> Any:
    """Append rows that are made for the table as the client was told of it."""
    with client.transaction() as t:
        t.expect_schema("t", client.table("t", fresh=False).schema_version)
        t.append("t", rows)
    return t.receipt


def _append_each(client: Client, rows: list[Row]) -> Any:
    return client.submit_many("t", pa.Table.from_pylist(rows))


@pytest.mark.parametrize("append", [_append_made_for, _append_each])
def test_the_own_node_knows_of_the_change_and_the_writer_does_not(
    tmp_path: Path, append: Append
) -> None:
    """Who says for which schema the rows were made is told that it is stale, and repeats."""

    def work(url: str) -> None:
        with Client(url) as client, Client(url) as other:
            client.create_table("t", {"id": "bigint", "v": "string"})
            append(client, [{"id": 1, "v": "x"}])
            changed = other.alter_table("t", add={"note": "string"})
            seen: list[StaleSchemaError] = []

            @client.retry(attempts=3)
            def commit() -> None:
                columns = [c.name for c in client.table("t", fresh=bool(seen)).columns]
                try:
                    append(client, [dict.fromkeys(columns) | {"id": 2}])
                except StaleSchemaError as error:
                    seen.append(error)
                    raise

            commit()
            (told,) = seen
            assert told.definite and "version 2 here, the transaction was made for 1" in str(told)
            assert told.fields["table"] == "t" and told.fields["winner"] == changed.position
            assert (told.fields["schema_version"], told.fields["made_for"]) == (2, 1)
            # It never got a position; at the same version a mismatch is one.
            assert client.info()["position"] == (changed.position or 0) + 1
            with pytest.raises(SchemaMismatchError):
                append(client, [{"id": 3}])

    asyncio.run(_with_node(tmp_path, work))


def test_files_of_a_task_are_for_the_schema_that_it_was_started_with(tmp_path: Path) -> None:
    """The data source reads a definition once for all tasks of a write."""

    def work(url: str) -> None:
        with Client(url) as client:
            client.create_table("t", {"id": "bigint", "v": "string"})
            definition = client.table("t")
            changed = client.alter_table("t", add={"note": "string"})
            root, identity = Path(client.info()["payload_root"]), uuid4().bytes
            append = StagedAppend(
                options={"url": url},
                definition=definition,
                home=UploadTarget(url=url, token=None, ca_file=None),
                root=root,
                transaction_id=identity,
                folder=folder_of(identity, "t", "first"),
            )
            append.make_folder()
            stage = FileStage(root, append.folder, "part", definition)
            stage.write(pa.record_batch({"id": [1], "v": ["x"]}))
            with pytest.raises(StaleSchemaError, match="made for 1") as caught:
                append.commit(stage.close())
            assert caught.value.fields["winner"] == changed.position
            assert not (root / append.folder).exists()

    asyncio.run(_with_node(tmp_path, work))


def test_a_batch_of_a_stream_that_was_rejected_goes_on_under_its_next_id(tmp_path: Path) -> None:
    """Its id stays rejected; a query that is started again loses no batch and writes it once."""

    def work(url: str) -> None:
        with Client(url) as client:
            client.create_table("t", {"id": "bigint"})
            root = Path(client.info()["payload_root"])
            rejected = str(batch_transaction_id("query", 3))
            opened = f"{url}/v1/open-transactions"
            call(opened, {"transaction_id": rejected})
            row = {"kind": "append", "table": "t", "rows": [{"id": 1}]}
            call(f"{opened}/{rejected}/operations", {"operations": [row]})
            client.alter_table("t", add={"v": "string"})
            with pytest.raises(HttpProblem, match="stale-schema"):
                call(f"{opened}/{rejected}/commit", {})

            def run(attempt: str) -> None:
                definition, identity = client.table("t"), UUID(rejected).bytes
                append = StagedAppend(
                    options={"url": url},
                    definition=definition,
                    home=UploadTarget(url=url, token=None, ca_file=None),
                    root=root,
                    transaction_id=identity,
                    folder=folder_of(identity, "t", attempt),
                    session="query",
                )
                append.make_folder()
                stage = FileStage(root, append.folder, "part", definition)
                stage.write(pa.record_batch({"id": [1], "v": ["x"]}))
                part = StagedPart(append, "query", stage.close())
                TxLogStreamWriter({"url": url}, definition, url, str(root)).commit([part], 3)

            before = client.info()["position"]
            run("first")
            # Spark repeats the last batch of a query that it starts again.
            run("second")
            assert client.info()["position"] == before + 1
            receipt = client.receipt(str(batch_transaction_id("query", 3, 1)))
            assert (receipt.outcome, receipt.position) == ("committed", before + 1)
            assert not (root / rejected).exists()

    asyncio.run(_with_node(tmp_path, work))


async def _with_node(tmp_path: Path, work: Callable[[str], None]) -> None:
    async with cluster(tmp_path, "A") as nodes:
        await asyncio.to_thread(work, nodes["A"].config.master_url)


@pytest.mark.parametrize("group", [None, "here"])
def test_a_repeat_is_the_first_one_although_the_table_changed(
    tmp_path: Path, group: str | None
) -> None:
    """An id has one answer, though its content does not fit any more; in a group, too."""

    def work(url: str) -> None:
        with Client(url) as client:
            if group is not None:
                create_group(Http(url), group, ["A"], 1)
            made = client.create_table("t", {"id": "bigint", "v": "string"}, group=group)
            assert made.position is not None
            row = {"kind": "append", "table": "t", "rows": [{"id": 1, "v": "x"}]}
            change = {"kind": "alter_table", "table": "t", "add": [{"name": "n", "type": "int"}]}
            single, altering = (
                {"transaction_id": str(UUID(int=number)), "operations": [operation]}
                for number, operation in ((7, row | {"schema_version": 1}), (8, change))
            )
            run = run_payload(3, 1)

            def submit() -> list[dict[str, Any]]:
                return [
                    call(f"{url}/v1/transactions", single),
                    call(f"{url}/v1/runs", raw=run),
                    call(f"{url}/v1/transactions", altering),
                ]

            first = submit()
            expected = [made.position + after for after in (1, 2, 5)]
            assert [receipt["position"] for receipt in first] == expected
            again = submit()
            assert [receipt["position"] for receipt in again] == expected
            assert [receipt["outcome"] for receipt in again] == ["committed", None, "committed"]
            # Others with the same content are told what they are.
            for body in (single, altering):
                body["transaction_id"] = str(UUID(int=9))
            refused: list[tuple[str, Any, bytes | None, str]] = [
                ("transactions", single, None, "stale-schema"),
                ("transactions", altering, None, "name-taken"),
                ("runs", None, run_payload(3, 2), "stale-schema"),
            ]
            for path, body, raw, code in refused:
                with pytest.raises(HttpProblem) as caught:
                    call(f"{url}/v1/{path}", body, raw=raw)
                assert caught.value.document["title"] == code

    asyncio.run(_with_node(tmp_path, work))


async def _reached(nodes: dict[str, Node], position: int) -> None:
    await until(lambda: all(n.info()["position"] >= position for n in nodes.values()))


def test_who_was_made_for_the_old_schema_is_rejected_at_every_site(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a, b = nodes.values()
            await asyncio.to_thread(_work, a.config.master_url, b.config.master_url)
            await _reached(nodes, 9)
            tables = [node.tables()["t"] for node in (a, b)]
            assert tables[0] == tables[1]
            assert (tables[0].schema_version, tables[0].keys) == (4, ("number",))
            for node in (a, b):
                runs = await asyncio.to_thread(call, f"{node.config.master_url}/v1/queue")
                assert [run["position"] for run in runs if run["rejected"]] == [4], runs

    asyncio.run(main())


def _work(at_a: str, at_b: str) -> None:
    with Client(at_a) as a, Client(at_b) as b:
        a.create_table("t", {"id": "bigint", "v": "string"})
        b.after(a.append("t", [{"id": 1, "v": "x"}]))
        # B checks the rows now, and submits them after the table changed.
        opened = call(f"{at_b}/v1/open-transactions", {})
        path = f"{at_b}/v1/open-transactions/{opened['transaction_id']}"
        rows = [{"id": 2, "v": "y"}]
        call(f"{path}/operations", {"operations": [{"kind": "append", "table": "t", "rows": rows}]})
        changed = a.alter_table("t", add={"note": "string"})
        b.after(changed)
        assert b.table("t").schema_version == 2
        with pytest.raises(HttpProblem) as caught:
            call(f"{path}/commit", {})
        problem = caught.value.document
        assert (problem["title"], problem["definite"]) == ("stale-schema", True)
        assert "has schema version 2, the transaction was made for 1" in problem["detail"]
        fields = problem["fields"]
        assert (fields["table"], fields["winner"], fields["position"]) == ("t", changed.position, 4)
        opened = call(f"{at_b}/v1/open-transactions", {})
        path = f"{at_b}/v1/open-transactions/{opened['transaction_id']}/operations"
        late = {"kind": "append", "table": "t", "rows": rows, "schema_version": 1}
        with pytest.raises(HttpProblem, match="stale-schema") as caught:
            call(path, {"operations": [late]})
        assert caught.value.document["fields"]["winner"] == changed.position
        tried: list[str] = []

        @b.retry
        def commit() -> None:
            tried.append("")
            if len(tried) == 1:
                raise StaleSchemaError("as it would be told", transaction_id="1")
            b.append("t", [{"id": 2, "v": "y", "note": None}])

        commit()
        a.after(b.alter_table("t", keys=["id"]))
        _refused(a)
        _renamed(a)


def _renamed(a: Client) -> None:
    """Rows have the names that users see; who creates the table as it is now gets it."""
    a.alter_table("t", rename={"id": "number"}, drop=["v"])
    assert [(c.name, c.stored) for c in a.table("t").columns] == [("number", "id"), ("note",) * 2]
    a.upsert("t", [{"number": 3, "note": None}])
    with a.transaction() as t:
        t.create_table("t", {"number": "bigint", "note": "string"}, keys=["number"])
        t.append("t", [{"number": 4, "note": "new"}])
    with pytest.raises(SchemaMismatchError, match="another definition"):
        a.create_table("t", {"id": "bigint", "v": "string"})
    assert a.table("t").schema_version == 4


def _refused(a: Client) -> None:
    cases: list[tuple[type[Exception], str, Any]] = [
        (NameTakenError, "t", {"add": {"NOTE": "int"}}),
        (SchemaMismatchError, "t", {"add": {"n": "integer2"}}),
        (SchemaMismatchError, "t", {"add": {"f": "double"}, "keys": ["f"]}),
        (UnknownTableError, "nowhere", {"add": {"n": "int"}}),
        (InvalidRequestError, "t", {}),
        (InvalidRequestError, "t", {"keys": "id"}),
        (InvalidRequestError, "t", {"drop": "v"}),
        (ColumnInUseError, "t", {"drop": ["id"]}),
        (NameTakenError, "t", {"rename": {"id": "V"}}),
    ]
    for error, table, change in cases:
        with pytest.raises(error):
            a.alter_table(table, **change)
    with pytest.raises(SchemaMismatchError, match="has column 'note', row 0 has not"):
        a.append("t", [{"id": 3, "v": "z"}])
    with pytest.raises(InvalidRequestError, match="another operation on it"), a.transaction() as t:
        t.alter_table("t", add={"n": "int"})
        t.append("t", [{"id": 3, "v": "z", "note": None}])
    assert a.table("t").schema_version == 3
