"""An id belongs to its content: another one under it is refused, wherever and whenever it comes."""

from __future__ import annotations

import asyncio
import base64
import socket
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pyarrow as pa
import pytest
from tests.service.local_nodes import cluster, config_of, serving, until

from sparktxlog import Client
from sparktxlog.codec.containers.assembly import assemble_rows
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.runtime.node import Node

_WINDOW = 1_000
_COLUMNS = [{"name": "id", "type": "bigint"}, {"name": "n", "type": "double"}]
_CREATE = {"kind": "create_table", "table": "t", "columns": _COLUMNS}
_Answer = tuple[int, dict[str, Any]]


def _rows(*ids: int, kind: str = "append") -> dict[str, Any]:
    return {"kind": kind, "table": "t", "rows": [{"id": one, "n": one / 3} for one in ids]}


class _Caller:
    """Submits over HTTP."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def __call__(
        self, node: Node, name: str, *operations: Any, query: str = "", level: str = "ordered"
    ) -> _Answer:
        body = {"transaction_id": name, "operations": operations}
        return await self.post(node, f"/v1/transactions?timeout=60&level={level}{query}", json=body)

    async def post(self, node: Node, path: str, **more: Any) -> _Answer:
        async with self._session.post(f"{node.config.master_url}{path}", **more) as response:
            return response.status, await response.json()


@asynccontextmanager
async def _calling() -> AsyncIterator[_Caller]:
    async with aiohttp.ClientSession() as session:
        yield _Caller(session)


def _names(count: int) -> list[str]:
    return [str(uuid.uuid4()) for _ in range(count)]


def _check_taken(answer: _Answer, name: str, position: int | None) -> None:
    status, problem = answer
    assert (status, problem["title"], problem["definite"]) == (409, "id-taken", True), problem
    fields = problem["fields"]
    assert (fields["transaction_id"], fields["position"]) == (name, position)
    assert "another id" in problem["hint"] and "first_wins" in problem["hint"]


def test_other_content_under_an_id_is_refused_at_every_node_and_the_same_is_a_repeat(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as nodes, _calling() as submit:
            a, b = nodes["A"], nodes["B"]
            (created, one, other) = _names(3)
            assert (await submit(a, created, _CREATE))[0] == 200
            await until(lambda: "t" in b.tables())
            _, first = await submit(a, one, _rows(1, 2))
            position = first["position"]
            await until(lambda: b.info()["position"] >= position)
            arrow = pa.table({"id": pa.array([2, 1], pa.int64()), "n": [2 / 3, 1 / 3]})
            text = base64.b64encode(_stream(arrow)).decode()
            for node in (a, b):
                # In another order, and in another form.
                for again in (_rows(2, 1), {"kind": "append", "table": "t", "arrow": text}):
                    status, receipt = await submit(node, one, again)
                    assert (status, receipt["position"]) == (200, position)
                for content in (
                    _rows(1, 3),
                    _rows(1),
                    _rows(1, 2, 2),
                    _rows(1, 2, kind="overwrite"),
                    {"kind": "delete_where", "table": "t", "predicate": "id = 1"},
                    {**_CREATE, "table": "u"},
                ):
                    _check_taken(await submit(node, one, content), one, position)
                both = [_rows(1), _rows(2)]
                _check_taken(await submit(node, one, *both), one, position)
                status, receipt = await submit(node, one, _rows(9), query="&first_wins=1")
                assert (status, receipt["position"]) == (200, position)
                _check_taken(await submit(node, created, {**_CREATE, "keys": ["id"]}), created, 1)
                _check_taken(
                    await submit.post(
                        node,
                        f"/v1/tables/t/rows?transaction_id={one}",
                        data=_stream(arrow.slice(1)),
                        headers={"content-type": "application/vnd.apache.arrow.stream"},
                    ),
                    one,
                    position,
                )
            # Of a transaction that was opened, too.
            _, opened = await submit.post(b, "/v1/open-transactions", json={"transaction_id": one})
            path = f"/v1/open-transactions/{opened['transaction_id']}"
            await submit.post(b, f"{path}/operations", json={"operations": [_rows(7)]})
            _check_taken(await submit.post(b, f"{path}/commit"), one, position)
            # It ended, and somebody else has its id by then.
            other_path = path.replace(one, other)
            await submit.post(b, "/v1/open-transactions", json={"transaction_id": other})
            await submit.post(b, f"{other_path}/operations", json={"operations": [_rows(9)]})
            b.open_transactions.close()
            assert (await submit.post(b, f"{other_path}/commit"))[0] == 404
            assert (await submit(b, other, _rows(8)))[1]["position"] == position + 1
            _check_taken(await submit.post(b, f"{other_path}/commit"), other, position + 1)
            # Who took whatever is first may ask again.
            status, receipt = await submit.post(b, f"{other_path}/commit?first_wins=1")
            assert (status, receipt["position"]) == (200, position + 1)

    asyncio.run(main())


def test_of_two_contents_at_once_one_is_ordered_and_the_other_is_told(tmp_path: Path) -> None:
    """Neither node knows the other's transaction when it accepts its own."""

    async def main() -> None:
        async with cluster(tmp_path) as nodes, _calling() as submit:
            a = nodes["A"]
            assert (await submit(a, _names(1)[0], _CREATE))[0] == 200
            await until(lambda: all("t" in node.tables() for node in nodes.values()))
            names = _names(12)
            pairs = await asyncio.gather(
                *(
                    asyncio.gather(submit(a, name, _rows(1)), submit(nodes["B"], name, _rows(2)))
                    for name in names
                )
            )
            for name, answers in zip(names, pairs, strict=True):
                assert sorted(status for status, _ in answers) == [200, 409], answers
                (lost,) = [answer for answer in answers if answer[0] == 409]
                (won,) = [answer for _, answer in answers if answer.get("outcome")]
                assert won["outcome"] == "committed"
                # Before the order, it may not be known where the first will stand.
                at = lost[1]["fields"]["position"]
                _check_taken(lost, name, None if at is None else won["position"])
            # At one node: the second one comes while the first one waits to become a run.
            for name in _names(3):
                answers = await asyncio.gather(*(submit(a, name, _rows(n)) for n in (1, 2, 1)))
                assert sorted(status for status, _ in answers) == [200, 200, 409], answers

    asyncio.run(main())


def test_it_is_known_as_long_as_the_receipt_and_after_a_restart(tmp_path: Path) -> None:
    one, early = _names(2)

    async def compared(node: Node, submit: _Caller) -> None:
        for name, position in ((early, 2), (one, 3)):
            _, receipt = await submit(node, name, _rows(position))
            assert receipt.get("position") == position, receipt
            _check_taken(await submit(node, name, _rows(7)), name, position)

    async def main() -> None:
        async with cluster(tmp_path, "A", id_window=_WINDOW) as nodes, _calling() as submit:
            a = nodes["A"]
            await submit(a, _names(1)[0], _CREATE)
            await submit(a, early, _rows(2))
            await submit(a, one, _rows(3))
            await compared(a, submit)
            with Client(a.config.master_url) as client:
                many = {
                    "id": pa.array(range(3 * _WINDOW)),
                    "n": pa.nulls(3 * _WINDOW, pa.float64()),
                }
                await asyncio.to_thread(
                    client.submit_many, "t", pa.table(many), run_transactions=100
                )
            await until(lambda: a.base.journal.filed_ids > 3)
            await compared(a, submit)
        async with cluster(tmp_path, "A", id_window=_WINDOW) as nodes, _calling() as submit:
            await compared(nodes["A"], submit)

    asyncio.run(main())


def test_a_repeat_that_does_not_fit_any_more_is_compared_by_the_tables_of_then(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes, _calling() as submit:
            a, (made, one, grown, gone) = nodes["A"], _names(4)
            add = {"kind": "alter_table", "table": "t", "add": [{"name": "x", "type": "int"}]}
            assert (await submit(a, made, _CREATE, _rows(1)))[1]["position"] == 1
            assert (await submit(a, one, _rows(1)))[1]["position"] == 2
            assert (await submit(a, grown, add))[1]["position"] == 3
            for name, position, same in ((made, 1, (_CREATE, _rows(1))), (one, 2, (_rows(1),))):
                assert (await submit(a, name, *same))[1].get("position") == position
                _check_taken(await submit(a, name, *same[:-1], _rows(2)), name, position)
            assert (await submit(a, grown, add))[1].get("position") == 3
            other = {**add, "add": [{"name": "x", "type": "bigint"}]}
            _check_taken(await submit(a, grown, other), grown, 3)
            assert (await submit(a, gone, {"kind": "drop_table", "table": "t"}))[0] == 200
            assert (await submit(a, one, _rows(1)))[1].get("position") == 2
            _check_taken(await submit(a, one, _rows(2), level="accepted"), one, 2)
            # What did not fit then, either, is no repeat.
            status, problem = await submit(a, one, {**_rows(1), "table": "nowhere"})
            assert (status, problem["title"]) == (404, "unknown-table")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("narrow", "wide", "value", "other"),
    [
        ("int", "double", 5, 6),
        ("int", "decimal(12,2)", 5, 6),
        ("float", "double", 0.1, 0.2),
        ("decimal(5,2)", "decimal(10,4)", "1.25", "1.26"),
    ],
)
def test_a_repeat_after_a_column_became_wider_is_one(
    tmp_path: Path, narrow: str, wide: str, value: Any, other: Any
) -> None:
    def rows(value: Any) -> dict[str, Any]:
        return {"kind": "append", "table": "t", "rows": [{"x": value}]}

    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes, _calling() as submit:
            a, (made, one, wider) = nodes["A"], _names(3)
            create = {**_CREATE, "columns": [{"name": "x", "type": narrow}]}
            assert (await submit(a, made, create))[0] == 200
            assert (await submit(a, one, rows(value)))[1]["position"] == 2
            widen = {"kind": "alter_table", "table": "t", "widen": {"x": wide}}
            assert (await submit(a, wider, widen))[0] == 200
            status, receipt = await submit(a, one, rows(value))
            assert (status, receipt.get("position")) == (200, 2), receipt
            _check_taken(await submit(a, one, rows(other)), one, 2)
            if narrow == "int":
                _, receipt = await submit.post(
                    a,
                    f"/v1/tables/t/rows?transaction_id={one}",
                    data=_stream(pa.table({"x": pa.array([value], pa.int32())})),
                    headers={"content-type": "application/vnd.apache.arrow.stream"},
                )
                assert receipt.get("position") == 2, receipt

    asyncio.run(main())


def test_a_node_with_smaller_limits_knows_a_repeat(tmp_path: Path) -> None:
    many = range(9_000)

    async def main() -> None:
        async with AsyncExitStack() as stack, _calling() as submit:
            doors = {name: socket.create_server(("127.0.0.1", 0)) for name in "AB"}
            ports = {name: door.getsockname()[1] for name, door in doors.items()}
            a, b = [
                await stack.enter_async_context(
                    serving(config_of(tmp_path, name, ports, run_limit_bytes=limit), doors[name])
                )
                for name, limit in (("A", 1 << 20), ("B", 65_536))
            ]
            await until(lambda: all(one.base.links[at].up for one, at in ((a, "B"), (b, "A"))))
            (made, one) = _names(2)
            assert (await submit(a, made, _CREATE))[0] == 200
            _, first = await submit(a, one, _rows(*many))
            await until(lambda: b.info()["position"] >= first["position"])
            status, receipt = await submit(b, one, _rows(*many))
            assert (status, receipt.get("position")) == (200, first["position"]), receipt
            for rows, expected in ((many, 200), (many[1:], 409)):
                arrow = pa.table({"id": rows, "n": [one / 3 for one in rows]})
                status, receipt = await submit.post(
                    b,
                    f"/v1/tables/t/rows?transaction_id={one}",
                    data=_stream(arrow),
                    headers={"content-type": "application/vnd.apache.arrow.stream"},
                )
                assert status == expected, receipt
            assert (await submit(b, _names(1)[0], _rows(*many)))[1]["title"] == "oversize"

    asyncio.run(main())


def test_of_a_run_those_with_other_content_are_named(tmp_path: Path) -> None:
    ids = [uuid.uuid4().bytes for _ in range(4)]

    def run(ids: Sequence[bytes], *values: int) -> bytes:
        rows = pa.table({"id": pa.array(values), "n": pa.nulls(len(values), pa.float64())})
        txs = np.arange(len(values), dtype=np.int32)
        return assemble_rows("t", OperationKind.APPEND, 1, rows, txs, b"".join(ids), 1)[1]

    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes, _calling() as submit:
            a = nodes["A"]
            await submit(a, _names(1)[0], _CREATE)

            async def told(payload: bytes, query: str = "") -> tuple[int, list[tuple[int, str]]]:
                status, receipt = await submit.post(a, f"/v1/runs{query}", data=payload)
                assert status == 200, receipt
                found = [(one["index"], one["code"]) for one in receipt["rejections"]]
                return receipt["position"], found

            assert await told(run(ids[:3], 1, 2, 3)) == (2, [])
            assert await told(run(ids[:3], 1, 2, 3)) == (2, [])
            assert await told(run(ids[:3], 1, 7, 3)) == (2, [(1, "id-taken")])
            assert await told(run(ids[:3], 1, 7, 3), "?first_wins=1") == (2, [])
            # In another run: the core finds the repeats where it is ordered.
            position, found = await told(run([ids[3], *ids[1:3]], 4, 7, 3))
            assert (position, found) == (5, [(1, "id-taken"), (2, "duplicate-transaction")])
            single = str(uuid.UUID(bytes=ids[0]))
            row = {"kind": "append", "table": "t", "rows": [{"id": 1, "n": None}]}
            assert (await submit(a, single, row))[1]["position"] == 2
            _check_taken(await submit(a, single, _rows(1)), single, 2)

    asyncio.run(main())


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(memoryview(sink.getvalue()))
