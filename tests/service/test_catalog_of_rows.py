"""Row tables in the catalog's API: shown as external Delta tables, and changed only by the log."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.service.test_catalog_api import STAGING, Caller, catalog, told
from tests.support.delta_writer import API, DELTA, StagedTable, path_of
from tests.support.replica_lakes import report_of

from sparktxlog import Client
from sparktxlog.errors import NameTakenError
from sparktxlog.runtime.commit.acceptance import Submits
from sparktxlog.runtime.node import Node

TABLES = f"{API}/tables?catalog_name=tx&schema_name=default"
REFUSED = (403, "PermissionDeniedException")
GONE = (404, "NoSuchTableException")
TAKEN = (409, "AlreadyExistsException")


async def make(node: Node, name: str = "orders", *, keys: tuple[str, ...] = ("id",)) -> None:
    """Create a row table in the log."""

    def work() -> None:
        with Client(node.config.master_url) as client:
            client.create_table(name, {"id": "bigint not null", "v": "string"}, keys=list(keys))

    await asyncio.to_thread(work)


def apply(node: Node, name: str = "orders") -> Path:
    """Make the table's directory in the lake, as a worker would; return it."""
    path = node.config.lake_dir / name
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
    write_deltalake(path, pa.table({"id": [1], "v": ["a"]}, schema=columns))
    return path


async def names(caller: Caller) -> list[tuple[str, str]]:
    status, answer = await caller.ask("GET", TABLES)
    assert status == 200, answer
    return [(one["name"], one["table_type"]) for one in answer["tables"]]


def message(found: tuple[int, Any]) -> str:
    text: str = found[1]["error"]["message"]
    return text


def test_a_row_table_is_shown_once_it_is_applied(tmp_path: Path) -> None:
    async def main() -> None:
        async with catalog(tmp_path) as caller:
            await make(caller.node)
            before = await caller.ask("GET", path_of("orders"))
            assert told(before) == GONE
            position = caller.node.base.ordered.value
            assert f"position is {position}, and is not applied at this site" in message(before)
            assert "Run a worker" in message(before)
            assert await names(caller) == []
            path = apply(caller.node)
            status, loaded = await caller.ask("GET", path_of("ORDERS"))
            assert status == 200, loaded
            shown = loaded["metadata"]
            assert (shown["table-type"], shown["location"]) == ("EXTERNAL", f"file:{path}")
            assert [one["name"] for one in shown["columns"]["fields"]] == ["id", "v"]
            assert (loaded["latest-table-version"], loaded["commits"]) == (0, [])
            write_deltalake(path, pa.table({"id": [2], "v": ["b"]}), mode="append")
            status, later = await caller.ask("GET", path_of("orders"))
            assert (status, later["latest-table-version"]) == (200, 1)
            assert shown["properties"]["sparktxlog.keys"] == '["id"]'
            assert (await caller.ask("HEAD", path_of("orders")))[0] == 204
            await caller.create("a")
            assert await names(caller) == [("a", "MANAGED"), ("orders", "EXTERNAL")]
            status, listed = await caller.ask("GET", f"{API}/tables/tx.default.orders")
            assert (status, listed["table_id"]) == (200, shown["table-uuid"])
            assert listed["storage_location"] == shown["location"]

            def drop() -> None:
                with Client(caller.node.config.master_url) as client:
                    client.drop_table("orders")

            await asyncio.to_thread(drop)  # its directory is still there: no worker runs
            assert told(await caller.ask("GET", path_of("orders"))) == GONE
            await make(caller.node, keys=())
            status, loaded = await caller.ask("GET", path_of("orders"))
            assert loaded["metadata"]["table-uuid"] != shown["table-uuid"]
            assert "sparktxlog.keys" not in loaded["metadata"]["properties"]

    asyncio.run(main())


@pytest.mark.parametrize("applied", [True, False])
def test_a_row_table_is_not_changed_through_the_catalog(tmp_path: Path, applied: bool) -> None:
    async def main() -> None:
        async with catalog(tmp_path) as caller:
            table = await caller.create()
            await make(caller.node)
            if applied:
                apply(caller.node)
            update = table.update(table.stage(1, table.add()))
            for method, path, body in (
                ("POST", path_of("orders"), update),
                ("DELETE", path_of("Orders"), None),
                ("DELETE", f"{API}/tables/tx.default.orders", None),
                ("GET", f"{path_of('orders')}/credentials?operation=READ_WRITE", None),
            ):
                found = await caller.ask(method, path, body)
                assert told(found) == REFUSED, path
                assert "log.append" in message(found)
            for path, body in (
                (STAGING, {"name": "Orders"}),
                (path_of(), (await caller.stage("u")).creation("orders")),
            ):
                found = await caller.ask("POST", path, body)
                assert told(found) == TAKEN, path
                assert "'default.orders' is row table 'orders'" in message(found)
            # Only in this schema.
            await caller.ask("POST", f"{API}/schemas", {"name": "s", "catalog_name": "tx"})
            other = STAGING.replace("/default/", "/s/")
            assert (await caller.ask("POST", other, {"name": "orders"}))[0] == 200
            assert told(await caller.ask("GET", path_of("orders", "s"))) == GONE
            assert await caller.version() == 0

    asyncio.run(main())


def test_what_a_reader_asks_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with catalog(tmp_path) as caller:
            await make(caller.node)
            apply(caller.node)
            status, loaded = await caller.ask("GET", path_of("orders"))
            assert status == 200, loaded
            found = await caller.ask("GET", f"{path_of('orders')}/credentials?operation=READ")
            assert found == (200, {"storage-credentials": []})
            body = {"table-id": loaded["metadata"]["table-uuid"]}
            assert (await caller.ask("POST", f"{path_of('orders')}/metrics", body))[0] == 204
            body = {"table-id": str(uuid.uuid4())}
            assert (await caller.ask("POST", f"{path_of('orders')}/metrics", body))[0] == 400

    asyncio.run(main())


def test_a_commit_table_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that a session knows stays the same table when another site makes a row table."""

    async def main() -> None:
        async with catalog(tmp_path) as caller:
            table = await caller.create("orders")
            with pytest.raises(NameTakenError, match=r"'default\.orders' is a commit table"):
                await make(caller.node)
            # A node of another site takes it as long as it does not know of the commit table: then
            # the order decides.
            monkeypatch.setattr(Submits, "_check_may_create", lambda *_: None)
            with pytest.raises(NameTakenError, match=r"'default\.orders' has this name"):
                await make(caller.node)
            status, loaded = await caller.ask("GET", path_of("orders"))
            assert (status, loaded["metadata"]["table-uuid"]) == (200, table.table_id)
            assert await names(caller) == [("orders", "MANAGED")]
            commit = table.update(table.stage(1, table.add()))
            assert (await caller.commit(commit, "orders"))[0] == 200
            # To create it again is to repeat it.
            assert (await caller.ask("POST", path_of(), table.creation("orders")))[0] == 200
            assert (await caller.ask("DELETE", path_of("orders")))[0] == 204
            await make(caller.node)
            apply(caller.node)
            assert await names(caller) == [("orders", "EXTERNAL")]

    asyncio.run(main())


def test_row_tables_of_other_schemas(tmp_path: Path) -> None:
    """`bronze.orders` is that name everywhere; the schema comes and goes with its tables."""

    async def main() -> None:
        async with catalog(tmp_path) as caller:
            node, schemas = caller.node, f"{API}/schemas?catalog_name=tx"
            await make(node)
            await make(node, "default.Orders")  # the same one
            await make(node, "bronze.orders")
            await make(node, "bronze.bronze")
            assert sorted(node.tables()) == ["bronze.bronze", "bronze.orders", "orders"]
            assert node.row_tables.named("default", "bronze.orders") is None
            apply(node)
            path = apply(node, "bronze.orders")
            status, found = await caller.ask("GET", schemas)
            assert [one["name"] for one in found["schemas"]] == ["bronze", "default"], status
            status, loaded = await caller.ask("GET", path_of("ORDERS", "Bronze"))
            assert (status, loaded["metadata"]["location"]) == (200, f"file:{path}")
            status, listed = await caller.ask("GET", TABLES.replace("=default", "=bronze"))
            assert [(one["schema_name"], one["name"]) for one in listed["tables"]] == [
                ("bronze", "orders")  # the other one is not applied yet
            ]
            assert await names(caller) == [("orders", "EXTERNAL")]
            found = await caller.ask("DELETE", path_of("orders", "bronze"))
            assert told(found) == REFUSED and "bronze.orders is a row table" in message(found)
            # Names are taken across kinds, both ways.
            staging = STAGING.replace("/default/", "/bronze/")
            assert told(await caller.ask("POST", staging, {"name": "Orders"})) == TAKEN
            await caller.ask("POST", f"{API}/schemas", {"name": "silver", "catalog_name": "tx"})
            staging = STAGING.replace("/default/", "/silver/")
            status, answer = await caller.ask("POST", staging, {"name": "events"})
            table = StagedTable.of(answer)
            table.write_first(table.add())
            body = table.creation("events")
            assert (await caller.ask("POST", path_of("", "silver"), body))[0] == 200
            with pytest.raises(NameTakenError, match=r"'silver\.events' is a commit table"):
                await make(node, "silver.events")
            assert (await caller.ask("DELETE", f"{API}/schemas/tx.bronze"))[0] == 409

            def drop() -> None:
                with Client(node.config.master_url) as client:
                    assert client.table("BRONZE.Orders").name == "bronze.orders"
                    client.append("Bronze.ORDERS", [{"id": 1, "v": "a"}])
                    client.submit_many("Bronze.Orders", pa.table({"id": [2], "v": ["b"]}))
                    assert client.table("bronze.orders").version == 2
                    for name in ("bronze.orders", "bronze.bronze"):
                        client.drop_table(name)

            await asyncio.to_thread(drop)
            assert sorted(node.tables()) == ["orders"]
            status, found = await caller.ask("GET", schemas)
            assert [one["name"] for one in found["schemas"]] == ["default", "silver"]

    asyncio.run(main())


def test_row_tables_are_shown_with_several_data_nodes(tmp_path: Path) -> None:
    async def main() -> None:
        async with catalog(tmp_path, "AB") as caller:
            target = f"{DELTA}/config?catalog=tx&protocol-versions=1.0"
            assert (await caller.ask("GET", target))[0] == 200
            await make(caller.node)
            apply(caller.node)
            assert (await caller.ask("GET", path_of("orders")))[0] == 200
            assert await names(caller) == [("orders", "EXTERNAL")]

    asyncio.run(main())


def test_a_table_that_cannot_be_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with catalog(tmp_path) as caller:
            await make(caller.node)
            first = apply(caller.node) / "_delta_log" / f"{0:020}.json"
            first.write_bytes(b"{")
            found = await caller.ask("GET", path_of("orders"))
            assert told(found)[0] == 500
            assert str(first.parents[1]) in message(found)
            await make(caller.node, "whole")
            apply(caller.node, "whole")
            assert await names(caller) == [("whole", "EXTERNAL")]

    asyncio.run(main())


def test_a_schema_with_a_row_table_is_dropped_by_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        async with catalog(tmp_path) as caller:
            await make(caller.node, "ci.orders")
            await caller.create("a", "ci")
            refused = await caller.ask("DELETE", f"{API}/schemas/tx.ci?force=true")
            assert told(refused) == REFUSED
            assert "log.drop_table" in message(refused)
            assert (await caller.ask("GET", path_of("a", "ci")))[0] == 200

    asyncio.run(main())


def test_a_catalog_that_names_a_replica_shows_it(tmp_path: Path) -> None:
    """Any other one shows the main one, and what only another has from that."""

    async def main() -> None:
        async with catalog(tmp_path) as caller:
            node, lakes = caller.node, {name: tmp_path / name for name in ("one", "two")}
            await make(node)
            await make(node, "parts")
            main = apply(node)
            position = node.base.ordered.value
            for name, lake in lakes.items():
                for table in ("orders", "parts")[: 2 if name == "two" else 1]:
                    write_deltalake(lake / table, pa.table({"id": [1]}))
                said = report_of(node.status() | {"position": position}, 0, name)
                body = msgspec.to_builtins(replace(said, name=name, tables={}))
                status, answer = await caller.ask(
                    "POST", "/v1/worker/reports", body | {"lake": str(lake)}
                )
                assert status == 200, answer

            async def shown(catalog_name: str, table: str) -> tuple[str, str, str]:
                path = path_of(table).replace("/tx/", f"/{catalog_name}/")
                status, loaded = await caller.ask("GET", path)
                assert status == 200, loaded
                found = loaded["metadata"]
                name = f"{API}/tables/{catalog_name}.default.{table}"
                status, listed = await caller.ask("GET", name)
                assert (status, listed["storage_location"]) == (200, found["location"])
                return (
                    found["location"],
                    found["properties"]["sparktxlog.replica"],
                    found["table-uuid"],
                )

            ids = set()
            for catalog_name, table, path, replica in (
                ("tx", "orders", main, "A"),
                ("tx@main", "orders", main, "A"),
                ("tx@one", "orders", lakes["one"] / "orders", "A/one"),
                ("any@two", "orders", lakes["two"] / "orders", "A/two"),
                ("tx", "parts", lakes["two"] / "parts", "A/two"),
            ):
                location, said_replica, uuid_of = await shown(catalog_name, table)
                assert (location, said_replica) == (f"file:{path}", replica)
                ids.add((table, uuid_of))
            assert len(ids) == 2, "a table has one id in all replicas"
            wrong = await caller.ask("GET", path_of("parts").replace("/tx/", "/tx@one/"))
            assert wrong[0] == 404 and "not applied in replica 'one'" in message(wrong)
            wrong = await caller.ask("GET", path_of("orders").replace("/tx/", "/tx@x/"))
            assert wrong[0] == 400 and "no replica 'x'" in message(wrong)
            status, answer = await caller.ask("GET", TABLES.replace("name=tx", "name=tx@one"))
            assert status == 200 and [one["name"] for one in answer["tables"]] == ["orders"]

    asyncio.run(main())
