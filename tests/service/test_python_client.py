"""The catalog's API by PyPI's `unitycatalog-client`: what it knows of it, with its own checks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.service.test_catalog_api import Caller, catalog
from tests.service.test_catalog_of_rows import apply, make
from tests.support.python_client import Call, call_all

TOKEN = "a token of this log's clients"


def call(method: str, *given: Any, **named: Any) -> Call:
    return method, given, named


async def ask(caller: Caller, *calls: Call, token: str = TOKEN) -> list[Any]:
    return await asyncio.to_thread(call_all, caller.node.config.master_url, token, calls)


def test_schemas_and_tables_by_the_python_client(tmp_path: Path) -> None:
    shop = {"model": "CreateSchema", "name": "shop", "catalog_name": "tx"}

    async def main() -> None:
        async with catalog(tmp_path) as caller:
            table = await caller.create("t")
            await caller.create("u")
            await make(caller.node, "orders")
            apply(caller.node, "orders")
            page = {"max_results": 2}
            found = await ask(
                caller,
                call("MetastoresApi.summary"),
                call("SchemasApi.create_schema", shop),
                call("SchemasApi.create_schema", shop),
                call("SchemasApi.list_schemas", "tx", max_results=1),
                call("SchemasApi.list_schemas", "tx", page_token="default"),
                call("SchemasApi.get_schema", "tx.shop"),
                call("SchemasApi.get_schema", "tx.nope"),
                call("TablesApi.list_tables", "tx", "default", **page),
                call("TablesApi.list_tables", "tx", "default", page_token="t", **page),
                call("TablesApi.list_tables", "tx", "nope"),
                call("TablesApi.get_table", "tx.default.orders", True, True),
                call("TablesApi.get_table", "tx.default.t"),
                call("TablesApi.get_table", "tx.default.nope"),
                call("TablesApi.delete_table", "tx.default.orders"),
                call("TablesApi.delete_table", "tx.default.t"),
                call("TablesApi.get_table", "tx.default.t"),
                call("SchemasApi.delete_schema", "tx.default", force=True),
                call("SchemasApi.delete_schema", "tx.shop"),
            )
            metastore, made, again, first, second, got, missing, *tables = found
            assert len(metastore["metastore_id"]) == 36
            assert made == got and made["full_name"] == "tx.shop"
            assert again == ["ApiException", 409, "SCHEMA_ALREADY_EXISTS"]
            for answer, name in ((first, "default"), (second, "shop")):
                assert [one["name"] for one in answer["schemas"]] == [name]
            assert (first["next_page_token"], second.get("next_page_token")) == ("default", None)
            assert missing == ["NotFoundException", 404, "SCHEMA_NOT_FOUND"]
            one, two, *tables = tables
            assert [entry["name"] for entry in one["tables"]] == ["orders", "t"]
            assert [entry["name"] for entry in two["tables"]] == ["u"]
            assert (one["next_page_token"], two.get("next_page_token")) == ("t", None)
            unknown, orders, loaded, nowhere, read_only, dropped, gone, used, removed = tables
            assert unknown == ["NotFoundException", 404, "SCHEMA_NOT_FOUND"]
            assert (orders["table_type"], orders["data_source_format"]) == ("EXTERNAL", "DELTA")
            assert loaded["table_type"] == "MANAGED"
            assert loaded["table_id"] == table.table_id
            assert loaded["storage_location"] == table.location
            assert nowhere == gone == ["NotFoundException", 404, "TABLE_NOT_FOUND"]
            assert read_only == ["ForbiddenException", 403, "PERMISSION_DENIED"]
            assert dropped == removed == {}
            assert used == ["ApiException", 409, "FAILED_PRECONDITION"]

    asyncio.run(main())


def test_catalogs_columns_credentials_and_a_schema_with_its_tables(tmp_path: Path) -> None:
    made = {"model": "CreateSchema", "name": "ci", "catalog_name": "tx", "comment": "of a run"}
    of_table = "TemporaryCredentialsApi.generate_temporary_table_credentials"

    async def main() -> None:
        async with catalog(tmp_path) as caller:
            table = await caller.create("t")
            await make(caller.node, "orders")
            apply(caller.node, "orders")
            of_model = {"model": "GenerateTemporaryTableCredential", "table_id": table.table_id}
            catalogs, one, rows, shown, may_write, schema, again, dropped, gone = await ask(
                caller,
                call("CatalogsApi.list_catalogs"),
                call("CatalogsApi.get_catalog", "sales"),
                call("TablesApi.get_table", "tx.default.orders"),
                call("TablesApi.get_table", "tx.default.t"),
                call(of_table, of_model | {"operation": "READ_WRITE"}),
                call("SchemasApi.create_schema", made),
                call("SchemasApi.get_schema", "tx.ci"),
                call("SchemasApi.delete_schema", "tx.ci", force=True),
                call("SchemasApi.get_schema", "tx.ci"),
            )
            assert [entry["name"] for entry in catalogs["catalogs"]] == ["tx"]
            assert (one["name"], one["id"]) == ("sales", catalogs["catalogs"][0]["id"])
            columns = [(c["name"], c["type_name"], c["nullable"]) for c in rows["columns"]]
            assert columns == [
                ("id", "LONG", False),
                ("v", "STRING", True),
            ]
            assert [c["type_text"] for c in shown["columns"]] == ["bigint", "array<string>"]
            assert shown["columns"][1]["comment"] == "many"
            assert may_write == {"url": table.location}
            assert schema["comment"] == again["comment"] == "of a run"
            assert (dropped, gone[1:]) == ({}, [404, "SCHEMA_NOT_FOUND"])
            ids = [shown["table_id"], rows["table_id"]]
            found = await ask(
                caller,
                *(
                    call(of_table, of_model | {"table_id": one, "operation": operation})
                    for one in ids
                    for operation in ("READ", "READ_WRITE", "UNKNOWN_TABLE_OPERATION")
                ),
            )
            wrong = ["BadRequestException", 400, "INVALID_ARGUMENT"]
            assert found[:3] == [{"url": table.location}, {"url": table.location}, wrong]
            assert found[3] == {"url": rows["storage_location"]}
            assert found[4:] == [["ForbiddenException", 403, "PERMISSION_DENIED"], wrong]

    asyncio.run(main())


def test_what_it_is_refused(tmp_path: Path) -> None:
    """What the node does not serve is told as such, and nothing without the token."""
    staging = {"model": "CreateStagingTable", "name": "t", "schema_name": "s", "catalog_name": "c"}
    credential = {"model": "GenerateTemporaryTableCredential", "table_id": "x", "operation": "READ"}

    async def main() -> None:
        async with catalog(tmp_path, client_token=TOKEN) as caller:
            found = await ask(
                caller,
                call("SchemasApi.list_schemas", "tx"),
                call("FunctionsApi.list_functions", "tx", "default"),
                call("TablesApi.create_staging_table", staging),
                call("TemporaryCredentialsApi.generate_temporary_table_credentials", credential),
            )
            assert [one["name"] for one in found[0]["schemas"]] == ["default"]
            assert [answer[1:] for answer in found[1:]] == [
                [404, "ENDPOINT_NOT_FOUND"],
                [404, "ENDPOINT_NOT_FOUND"],
                [404, "TABLE_NOT_FOUND"],
            ]
            (refused,) = await ask(caller, call("SchemasApi.list_schemas", "tx"), token="wrong")
            assert refused == ["UnauthorizedException", 401, "UNAUTHENTICATED"]

    asyncio.run(main())
