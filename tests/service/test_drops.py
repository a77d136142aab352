"""Tables are dropped and created again between real nodes: everywhere alike (P33)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.service.local_nodes import cluster, until
from tests.support.node_processes import HttpProblem, call

from sparktxlog import Client
from sparktxlog.errors import (
    ConflictError,
    InvalidRequestError,
    SchemaMismatchError,
    UnknownTableError,
)


def test_a_drop_and_a_creation_are_everywhere_at_their_positions(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a, b = nodes.values()
            await asyncio.to_thread(_work, a.config.master_url, b.config.master_url)
            end = a.info()["position"]
            await until(lambda: all(node.info()["position"] >= end for node in nodes.values()))
            found = [dict(node.tables()) for node in nodes.values()]
            assert found[0] == found[1] and set(found[0]) == {"T"}
            assert (found[0]["T"].schema_version, found[0]["T"].first_version) == (5, 5)
            await until(lambda: all(n.info()["published"] >= end for n in nodes.values()))
            for node in nodes.values():
                _, segments = await node.segments(0, 0.0, 100)
                effects = [one for segment in segments for one in segment.effects]
                about = [
                    (one.table, one.kind, one.schema_version)
                    for one in effects
                    if one.kind != "append" and one.table != "u"
                ]
                assert about == [
                    ("t", "create_table", 1),
                    ("t", "drop_table", 1),
                    ("t", "create_table", 3),
                    ("t", "drop_table", 3),
                    ("T", "create_table", 5),
                ]
        # Nothing of it is forgotten by a start.
        async with cluster(tmp_path, "AB") as nodes:
            for node in nodes.values():
                assert dict(node.tables()) == found[0]

    asyncio.run(main())


def _work(at_a: str, at_b: str) -> None:
    with Client(at_a) as a, Client(at_b) as b:
        a.create_table("t", {"id": "bigint"})
        b.after(a.append("t", [{"id": 1}]))
        # B checks these now, and submits them after the drop.
        paths = [_opened(at_b, row) for row in ({"id": 2}, {"id": 3})]
        version, read = b.table("t").version, int(b.info()["position"])
        assert version is not None
        b.after(a.drop_table("t"))
        _refused(b, at_b)
        receipt = call(f"{paths[0]}/commit", {})
        assert receipt["outcome"] == "rejected"
        assert [one["code"] for one in receipt["rejections"]] == ["unknown-table"]
        # Another table, though it looks the same.
        again = b.create_table("t", {"id": "bigint"})
        a.after(again)
        with pytest.raises(HttpProblem) as stale:
            call(f"{paths[1]}/commit", {})
        problem = stale.value.document
        assert (problem["title"], problem["definite"]) == ("stale-schema", True)
        assert "has schema version 3, the transaction was made for 1" in problem["detail"]
        assert problem["fields"]["winner"] == again.position
        assert a.table("t").version == version + 2
        for expected in range(version + 2):
            with pytest.raises(ConflictError) as caught, a.transaction() as t:
                t.expect_version("t", expected)
                t.append("t", [{"id": 4}])
            assert caught.value.fields["winner"] == again.position
        with pytest.raises(ConflictError), a.transaction(isolation="serializable") as t:
            t.read_at(read, "t")
            t.append("t", [{"id": 4}])
        # As JSON; and a name in another case is the same name.
        dropping = {"operations": [{"kind": "drop_table", "table": "t"}]}
        b.after(int(call(f"{at_a}/v1/transactions", dropping)["position"]))
        with b.transaction() as t:
            t.create_table("T", {"id": "int"})
            t.append("T", [{"id": 5}])
        a.after(t.receipt)
        a.create_table("t", {"id": "int"})
        assert a.table("t").name == "T"
        with pytest.raises(SchemaMismatchError, match="'T' exists with another definition"):
            a.create_table("t", {"id": "bigint"})


def _opened(url: str, row: dict[str, int]) -> str:
    opened = call(f"{url}/v1/open-transactions", {})
    path = f"{url}/v1/open-transactions/{opened['transaction_id']}"
    append = {"kind": "append", "table": "t", "rows": [row]}
    call(f"{path}/operations", {"operations": [append]})
    return path


def _refused(b: Client, at_b: str) -> None:
    """There is no table; each way to use one says so, and nothing happened."""
    for attempt in (
        lambda: b.drop_table("t"),
        lambda: b.append("t", [{"id": 2}]),
        lambda: b.alter_table("t", add={"n": "int"}),
        lambda: b.table("t"),
    ):
        with pytest.raises(UnknownTableError) as caught:
            attempt()
        assert caught.value.definite
    with pytest.raises(UnknownTableError), b.transaction() as t:
        t.create_table("u", {"id": "bigint"})
        t.expect_version("t", 2)
    b.create_table("u", {"id": "bigint"})
    with pytest.raises(InvalidRequestError, match="another operation on it"), b.transaction() as t:
        t.append("u", [{"id": 1}])
        t.drop_table("u")
    operation = {"kind": "drop_table", "table": "u", "keys": ["id"]}
    with pytest.raises(HttpProblem) as refused:
        call(f"{at_b}/v1/transactions", {"operations": [operation]})
    assert "drop_table takes no 'keys'" in refused.value.document["detail"]
    b.drop_table("u")
