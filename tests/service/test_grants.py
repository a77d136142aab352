"""A client with a grant at every route that writes: what it may not write is refused."""

from __future__ import annotations

import asyncio
import json
import socket
import uuid
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp
import numpy as np
import pyarrow as pa
from tests.service.local_nodes import config_of, serving
from tests.service.test_access import OPERATORS_ACTS, SCHEMA, SENT_BY_CLIENTS
from tests.support.delta_writer import API, DELTA, StagedTable, path_of
from tests.support.storage_samples import parquet_bytes, staged_of

from sparktxlog.codec.containers.assembly import assemble_rows
from sparktxlog.codec.containers.sections import write_section
from sparktxlog.files.stores.credentials.aws_signature import S3Keys
from sparktxlog.files.stores.credentials.vending import VendedKeys
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.runtime.node import Node

CLIENT, OWN = "a token of the clients", "a token of the reports"
ADMIN = "a token of the operators"
ID = "00000000-0000-0000-0000-000000000001"
RUN, ARROW = "application/vnd.sparktxlog.run", "application/vnd.apache.arrow.stream"
#: They write nothing: what a commit writes was checked when it was added.
WRITE_NOTHING = {
    "POST /v1/open-transactions",
    "POST /v1/open-transactions/{id}/commit",
    "DELETE /v1/open-transactions/{id}",
    f"POST {SCHEMA}/tables/{{table}}/metrics",
}


class Caller:
    """Sends requests with a token."""

    def __init__(self, node: Node, session: aiohttp.ClientSession, token: str) -> None:
        self._url = node.config.master_url
        self._session = session
        self._token = {"authorization": f"Bearer {token}"}

    async def __call__(
        self, method: str, path: str, body: Any = None, kind: str = "application/json"
    ) -> tuple[int, Any]:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = self._token | ({} if body is None else {"content-type": kind})
        url = self._url + path
        async with self._session.request(method, url, data=data, headers=headers) as response:
            text = await response.read()
            return response.status, json.loads(text) if text else None

    async def good(self, method: str, path: str, body: Any = None, kind: str = "") -> Any:
        status, document = await self(method, path, body, kind or "application/json")
        assert status in (200, 204), (path, document)
        return document

    async def table(self, name: str, schema: str) -> StagedTable:
        """Create a commit table."""
        staging = path_of(schema=schema).replace("/tables", "/staging-tables")
        table = StagedTable.of(await self.good("POST", staging, {"name": name}))
        table.write_first()
        await self.good("POST", path_of(schema=schema), table.creation(name))
        return table


def create(table: str) -> dict[str, Any]:
    columns = [{"name": "id", "type": "bigint"}]
    return {"operations": [{"kind": "create_table", "table": table, "columns": columns}]}


def append(*tables: str) -> dict[str, Any]:
    rows = [{"id": 1}]
    return {"operations": [{"kind": "append", "table": name, "rows": rows} for name in tables]}


def rows_of(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


def run_of(table: str) -> bytes:
    txs = np.arange(2, dtype=np.int32)
    ids = b"7" * 16 + b"8" * 16
    return assemble_rows(table, OperationKind.APPEND, 1, rows_of(1, 2), txs, ids, 1)[1]


def writes(
    row_table: str, schema: str, table: StagedTable
) -> dict[str, tuple[str, Any, str] | tuple[str, Any]]:
    """Return a request of each route that writes: to a row table, or in a schema."""
    inside, one = path_of(schema=schema), path_of("x", schema)
    several = rows_of(1, 2).append_column("__txlog_tx", pa.array([0, 1], pa.int64()))
    return {
        "POST /v1/transactions": ("/v1/transactions", append(row_table)),
        "POST /v1/transactions/{id}/marks": (
            f"/v1/transactions/{ID}/marks",
            {"participant": "reports", "yes": True},
        ),
        "PUT /v1/staged/{path:path}": (
            f"/v1/staged/{ID}/0-t/a.parquet?table={row_table}&size=9&rows=1&digest=0",
            b"PAR1",
            "application/octet-stream",
        ),
        "POST /v1/runs": ("/v1/runs", run_of(row_table), RUN),
        "POST /v1/tables/{table}/rows": (
            f"/v1/tables/{row_table}/rows",
            write_section(several),
            ARROW,
        ),
        "POST /v1/restore-points": ("/v1/restore-points", {"name": "before"}),
        "DELETE /v1/restore-points/{name}": ("/v1/restore-points/before", None),
        "PUT /v1/groups/{name}": ("/v1/groups/eu", {"sites": ["A"]}),
        "PATCH /v1/groups/{name}": ("/v1/groups/eu", {"copies": 1}),
        f"POST {API}/schemas": (f"{API}/schemas", {"name": f"{schema}2", "catalog_name": "tx"}),
        f"POST {API}/temporary-table-credentials": (
            f"{API}/temporary-table-credentials",
            {"table_id": table.table_id, "operation": "READ_WRITE"},
        ),
        f"DELETE {API}/schemas/{{full_name}}": (f"{API}/schemas/tx.{schema}", None),
        f"DELETE {API}/tables/{{full_name}}": (f"{API}/tables/tx.{schema}.x", None),
        f"POST {SCHEMA}/staging-tables": (
            inside.replace("/tables", "/staging-tables"),
            {"name": "y"},
        ),
        f"POST {SCHEMA}/tables": (inside, table.creation("y")),
        f"POST {SCHEMA}/tables/{{table}}": (one, table.update(table.stage(1))),
        f"DELETE {SCHEMA}/tables/{{table}}": (one, None),
        f"POST {SCHEMA}/tables/{{table}}/rename": (f"{one}/rename", {"new-name": "y"}),
    }


def is_forbidden(answer: tuple[int, Any]) -> bool:
    status, document = answer
    reasons = [one["reason"] for one in document.get("details", ())] if document else []
    code = document and (document.get("title") or (reasons or [""])[0])
    return (status, code) == (403, "forbidden")


async def keeps_its_transaction(own: Caller, other: Caller, path: str) -> None:
    """Nobody else sees, adds to, commits or rolls back what a client opened."""
    for method, target, body in (
        ("GET", path, None),
        ("POST", f"{path}/operations", append("orders")),
        ("POST", f"{path}/commit", None),
        ("DELETE", path, None),
    ):
        assert is_forbidden(await other(method, target, body)), target
    assert await other.good("GET", "/v1/open-transactions") == []
    assert len(await own.good("GET", "/v1/open-transactions")) == 1
    await own.good("DELETE", path)


async def reads_and_does_no_more(own: Caller) -> None:
    """It reads whatever clients read, and is neither a worker nor an operator."""
    await own.good("GET", f"{path_of('x', 'hr')}/credentials?operation=READ")
    await own.good("GET", path_of("x", "hr"))
    await own.good("GET", "/v1/tables/people")
    assert is_forbidden(await own("POST", "/v1/worker/reports", {}))
    for act in OPERATORS_ACTS:
        method, _, target = act.partition(" ")
        assert is_forbidden(await own(method, target.replace("{id}", "B"), {})), act


async def writes_what_is_granted(own: Caller) -> None:
    await own.good("POST", "/v1/transactions", append("orders"))
    await own.good("POST", "/v1/runs", run_of("orders"), RUN)
    await own.good("POST", "/v1/tables/orders/rows", write_section(rows_of(1)), ARROW)
    table = await own.table("x", "sales")
    await own.good("POST", path_of("x", "sales"), table.update(table.stage(1)))
    await own.good("POST", f"{path_of('x', 'sales')}/rename", {"new-name": "y"})
    await own.good("DELETE", path_of("y", "sales"))


def test_a_client_writes_what_its_grant_says(tmp_path: Path) -> None:
    token, grants = tmp_path / "reports", tmp_path / "grants.toml"
    token.write_text(OWN)
    token.chmod(0o600)
    grants.write_text(f'[reports]\ntoken-file = "{token}"\nwrite = ["sales.*", "orders"]\n')

    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        ports = {"A": listener.getsockname()[1]}
        more = {"client_token": CLIENT, "grants_file": str(grants)}
        config = config_of(tmp_path, "A", ports, **more)
        async with serving(config, listener) as node, aiohttp.ClientSession() as session:
            free, own = Caller(node, session, CLIENT), Caller(node, session, OWN)
            for name in ("orders", "people"):
                await free.good("POST", "/v1/transactions", create(name))
            for schema in ("hr", "sales"):
                await free.good("POST", f"{API}/schemas", {"name": schema, "catalog_name": "tx"})
            foreign = await free.table("x", "hr")

            asked = writes("people", "hr", foreign)
            opened = await own.good("POST", "/v1/open-transactions", {})
            path = f"/v1/open-transactions/{opened['transaction_id']}"
            key = "POST /v1/open-transactions/{id}/operations"
            asked[key] = (f"{path}/operations", append("people"))
            assert set(asked) == SENT_BY_CLIENTS - WRITE_NOTHING
            end = node.base.ordered.value
            answers = {
                key: await own(key.partition(" ")[0], *request) for key, request in asked.items()
            }
            assert {key: one for key, one in answers.items() if not is_forbidden(one)} == {}
            assert "client 'reports' may not write people" in answers[key][1]["detail"]
            # A single row goes another way, and so do several tables, of which one is not granted.
            rows = write_section(rows_of(1))
            assert is_forbidden(await own("POST", "/v1/tables/people/rows", rows, ARROW))
            both = append("orders", "people")
            assert is_forbidden(await own("POST", "/v1/transactions", both))
            for table_id in (foreign.table_id, str(uuid.uuid4())):
                staged = foreign.stage(1)
                said = {
                    "table_id": table_id,
                    "proposed_version": 1,
                    "timestamp": staged["timestamp"],
                    "file_name": staged["file-name"],
                    "file_size": staged["file-size"],
                }
                body = {"operations": [], "commits": [said]}
                assert is_forbidden(await own("POST", "/v1/transactions", body))
            credentials = f"{path_of('x', 'hr')}/credentials?operation="
            assert is_forbidden(await own("GET", f"{credentials}READ_WRITE"))
            assert node.base.ordered.value == end

            await keeps_its_transaction(own, free, path)
            await reads_and_does_no_more(own)
            await writes_what_is_granted(own)
            # All others write everything.
            await free.good("POST", "/v1/transactions", both)
            await free.good("POST", path_of("x", "hr"), foreign.update(foreign.stage(1)))

    asyncio.run(main())


def test_a_place_that_a_token_asked_for_is_no_other_tokens(tmp_path: Path) -> None:
    """Staged tables and uploads; to write them both tokens have a right."""
    token, grants = tmp_path / "reports", tmp_path / "grants.toml"
    token.touch(0o600)
    token.write_text(OWN)
    grants.write_text(f'[reports]\ntoken-file = "{token}"\nwrite = ["default.*", "orders"]\n')

    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        more = {"client_token": CLIENT, "admin_token": ADMIN, "grants_file": str(grants)}
        config = config_of(tmp_path, "A", {"A": listener.getsockname()[1]}, **more)
        async with serving(config, listener) as node, aiohttp.ClientSession() as session:
            own, *others = (Caller(node, session, shown) for shown in (OWN, CLIENT, ADMIN))
            await a_staged_table_is_of_who_asked(own, others)
            await an_upload_is_of_who_began_it(own, others)

    asyncio.run(main())


def test_credentials_of_a_place_are_no_way_round_a_grant(tmp_path: Path) -> None:
    """Its UUID is no secret, and the place stays when it is a table, and when that is dropped."""
    token, grants = tmp_path / "reports", tmp_path / "grants.toml"
    token.touch(0o600)
    token.write_text(OWN)
    grants.write_text(f'[reports]\ntoken-file = "{token}"\nwrite = ["default.*"]\n')
    given = VendedKeys(S3Keys("key", "secret", "token"), 10**13)

    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        more = {"client_token": CLIENT, "admin_token": ADMIN, "grants_file": str(grants)}
        config = config_of(tmp_path, "A", {"A": listener.getsockname()[1]}, **more)
        with patch("sparktxlog.runtime.commit_tables.commit_catalog.vendor_of") as vendor_of:
            vendor_of.return_value.give.return_value = given
            async with serving(config, listener) as node, aiohttp.ClientSession() as session:
                own, free, admin = (Caller(node, session, one) for one in (OWN, CLIENT, ADMIN))
                await free.good("POST", f"{API}/schemas", {"name": "hr", "catalog_name": "tx"})
                staging = path_of(schema="hr").replace("/tables", "/staging-tables")
                table = StagedTable.of(await free.good("POST", staging, {"name": "x"}))
                table.write_first()
                credentials = f"{DELTA}/staging-tables/{table.table_id}/credentials"
                for one in (own, admin):
                    assert is_forbidden(await one("GET", credentials))
                assert (await free.good("GET", credentials))["storage-credentials"]
                await free.good("POST", path_of(schema="hr"), table.creation("x"))
                assert is_forbidden(await own("GET", credentials))
                assert (await free.good("GET", credentials))["storage-credentials"]
                await free.good("DELETE", path_of("x", "hr"))
                for one in (own, free):
                    assert is_forbidden(await one("GET", credentials))

    asyncio.run(main())


async def a_staged_table_is_of_who_asked(own: Caller, others: list[Caller]) -> None:
    staging = path_of(schema="default").replace("/tables", "/staging-tables")
    table = StagedTable.of(await own.good("POST", staging, {"name": "x"}))
    table.write_first()
    credentials = f"{DELTA}/staging-tables/{table.location.rpartition('/')[2]}/credentials"
    await own.good("GET", credentials)
    client, operator = others
    assert is_forbidden(await client("GET", credentials))
    await operator.good("GET", credentials)
    for one in others:
        assert is_forbidden(await one("POST", path_of(schema="default"), table.creation("x")))
    await own.good("POST", path_of(schema="default"), table.creation("x"))
    # It is a table now, which others may write.
    await client.good("POST", path_of("x", "default"), table.update(table.stage(1)))


async def an_upload_is_of_who_began_it(own: Caller, others: list[Caller]) -> None:
    await own.good("POST", "/v1/transactions", create("orders"))
    content = parquet_bytes(pa.table({"id": pa.array([1, 2, 3], pa.int64())}))
    identity = str(uuid.uuid4())
    file = staged_of(f"{identity}/0-orders-x/part-0.parquet", content, rows=3)

    def target(path: str) -> str:
        query = f"table=orders&size={file.size_bytes}&rows=3&digest={file.digest}&offset=0"
        return f"/v1/staged/{path}?{query}"

    await own.good("PUT", target(file.path), content[:9], "application/octet-stream")
    names = {"path": file.path, "size_bytes": len(content), "rows": 3, "digest": file.digest}
    named = {"operations": [{"kind": "append", "table": "orders", "files": [names]}]}
    for one in others:
        for path in (file.path, file.path.replace("part-0", "part-1")):
            for body in (b"", content):  # to ask, and to write
                found = await one("PUT", target(path), body, "application/octet-stream")
                assert is_forbidden(found)
    whole = target(file.path).replace("offset=0", "offset=9")
    await own.good("PUT", whole, content[9:], "application/octet-stream")
    for one in others:
        single = named | {"transaction_id": identity}
        assert is_forbidden(await one("POST", "/v1/transactions", single))
        await one.good("POST", "/v1/open-transactions", {"transaction_id": identity})
        path = f"/v1/open-transactions/{identity}"
        await one.good("POST", f"{path}/operations", named)
        assert is_forbidden(await one("POST", f"{path}/commit"))
        await one.good("DELETE", path)
    assert (await own.good("POST", "/v1/transactions", single))["rows"] == 3
