"""Tables change between real nodes: everywhere alike, and who came too late is told so (P33)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.service.local_nodes import cluster, until
from tests.support.node_processes import HttpProblem, call

from sparktxlog import Client
from sparktxlog.errors import (
    ColumnInUseError,
    InvalidRequestError,
    NameTakenError,
    SchemaMismatchError,
    StaleSchemaError,
    UnknownTableError,
)
from sparktxlog.runtime.node import Node


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
    with pytest.raises(SchemaMismatchError, match="lacks the column 'note'"):
        a.append("t", [{"id": 3, "v": "z"}])
    with pytest.raises(InvalidRequestError, match="another operation on it"), a.transaction() as t:
        t.alter_table("t", add={"n": "int"})
        t.append("t", [{"id": 3, "v": "z", "note": None}])
    assert a.table("t").schema_version == 3
