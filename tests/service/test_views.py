"""`/v1/views` of real nodes: each view in each format, pages of the queue, refusals."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest
from tests.service.local_nodes import cluster, config_of, serving, until
from tests.service.test_dashboard import TOKEN, commit
from tests.support.replica_lakes import report_of

from sparktxlog import Client
from sparktxlog.codec.state_views import KEPT, VIEWS
from sparktxlog.errors import InvalidRequestError

NAMES = (*KEPT, *VIEWS)
ARROW = "application/vnd.apache.arrow.stream"


async def get(url: str, accept: str = "*/*", token: str = TOKEN) -> tuple[int, str, bytes]:
    """Return status, media type and body of an answer."""
    headers = {"accept": accept, "authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status, answer.content_type, await answer.read()


def test_each_view_is_read_as_json_arrow_and_csv(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB", client_token=TOKEN) as nodes:
            a, b = nodes["A"], nodes["B"]
            await asyncio.to_thread(commit, a, TOKEN)
            await until(lambda: b.status()["published"] == a.status()["published"] == 3)
            a.accept_report(report_of(a.status(), 3))
            root = f"{a.config.master_url}/v1/views"
            for name in NAMES:
                status, kind, body = await get(f"{root}/{name}")
                assert (status, kind) == (200, "application/json"), (name, body)
                rows = json.loads(body)
                status, kind, body = await get(f"{root}/{name}", accept=ARROW)
                assert (status, kind) == (200, ARROW), name
                table = pa.ipc.open_stream(body).read_all()
                assert table.num_rows == len(rows), name
                if name in VIEWS:
                    assert table.schema == VIEWS[name].schema
                status, kind, body = await get(f"{root}/{name}?format=csv")
                assert (status, kind) == (200, "text/csv"), name
                lines = list(csv.DictReader(io.StringIO(body.decode())))
                assert len(lines) == len(rows) and set(lines[0] if lines else ()) <= set(
                    table.schema.names
                )
                if rows:
                    assert set(rows[0]) == set(table.schema.names), name
            _, _, body = await get(f"{root}/masters?format=csv")
            (own, other) = csv.DictReader(io.StringIO(body.decode()))
            assert (own["node_id"], own["awaited"], other["acquired"]) == (
                "A",
                "[]",
                '{"A":3}',
            )
            assert (await get(f"{root}/masters", token="another"))[0] == 401
            for wrong in ("nothing", "masters?format=xml", "masters?after=1", "queue?limit=x"):
                assert (await get(f"{root}/{wrong}"))[0] == 400, wrong

            def client_reads() -> None:
                with Client(a.config.master_url, token=TOKEN) as client:
                    assert client.view("masters")["linked"].to_pylist() == [True, True]
                    with pytest.raises(InvalidRequestError, match="'nothing'"):
                        client.view("nothing")

            await asyncio.to_thread(client_reads)

    asyncio.run(main())


def test_the_queue_is_read_in_pages(tmp_path: Path) -> None:
    def pages(client: Client) -> tuple[list[int], Any]:
        found: list[int] = []
        while rows := client.view("queue", after=found[-1] if found else 0, limit=2).to_pylist():
            found += [row["position"] for row in rows]
        return found, client.view("queue", limit=2).to_pylist()

    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            (a,) = nodes.values()
            with Client(a.config.master_url) as client:
                assert (await asyncio.to_thread(client.view, "queue")).num_rows == 0
                for end in range(3, 12, 3):  # several files
                    await asyncio.to_thread(commit_more, client, end)
                    await until(lambda end=end: a.status()["published"] == end)
                positions, last = await asyncio.to_thread(pages, client)
            assert positions == list(range(1, 10))
            assert [row["position"] for row in last] == [8, 9]
            assert last[-1]["operations"][0]["table"] == "t"

    def commit_more(client: Client, end: int) -> None:
        if end == 3:
            client.create_table("t", "id bigint")
        for number in range(2 if end == 3 else 3):
            client.append("t", [{"id": number}])

    asyncio.run(main())


def test_the_lag_is_kept_until_a_replica_has_caught_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "A", lag_interval=86_400) as nodes:
            (a,) = nodes.values()
            await asyncio.to_thread(commit, a)
            await until(lambda: a.status()["published"] == 3)
            a.accept_report(report_of(a.status(), 3))
            with Client(a.config.master_url) as client:

                async def sampled(rows: int) -> list[dict[str, Any]]:
                    """Measure, and have it written with the next transaction."""
                    await a.all_replicas.lag.sample([])
                    await asyncio.to_thread(client.append, "bronze.b", [{"id": 9}])
                    end = a.status()["position"]
                    await until(lambda: a.status()["published"] == end)
                    found: list[dict[str, Any]] = []
                    async with asyncio.timeout(60):
                        while len(found) < rows:
                            table = await asyncio.to_thread(client.view, "lag")
                            found = table.to_pylist()
                    assert len(found) == rows
                    return found

                (whole,) = await sampled(1)  # the first look at a replica
                assert (whole["transactions"], whole["table"]) == (0, None)
                _, whole, part = await sampled(3)
                assert (whole["node_id"], whole["worker_id"], whole["position"]) == ("A", "w", 3)
                assert (whole["transactions"], whole["table"]) == (1, None)
                assert whole["size_bytes"] > 0 and whole["seconds"] >= 0
                assert (part["transactions"], part["table"]) == (1, "bronze.b")
                (worker,) = (await asyncio.to_thread(client.view, "workers")).to_pylist()
                assert worker["behind"] == 2
                a.accept_report(report_of(a.status(), 5))
                *_, last = await sampled(4)
                assert (last["transactions"], last["position"], last["table"]) == (0, 5, None)
                after = int(whole["sampled_at"].timestamp() * 1e6)
                later = await asyncio.to_thread(client.view, "lag", after=after)
                assert later.num_rows == 1

    asyncio.run(main())


def test_what_the_loss_of_a_site_would_mean(tmp_path: Path) -> None:
    def accept(url: str) -> None:
        with Client(url) as client:
            client.create_table("t", "id bigint", level="accepted")

    async def main() -> None:
        listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in "ABC"}
        ports = {name: one.getsockname()[1] for name, one in listeners.items()}

        def node(name: str) -> Any:
            return serving(config_of(tmp_path, name, ports), listeners[name])

        async with node("A") as a:
            async with node("B") as b, node("C"):
                await asyncio.to_thread(commit, a)
                await until(lambda: b.status()["position"] == 3)
                await until(lambda: all(peer["position"] == 3 for peer in a.status()["peers"]))
                found = {one["site"]: one for one in a.survivals()}
                for site, others in (("A", ["B", "C"]), ("B", ["A", "C"]), ("C", ["A", "B"])):
                    one = found[site]
                    assert one["survives"] and one["goes_on"], one
                    assert (one["held_by"], one["voters"]) == (others, others)
                    assert one["ordered_only_there"] == one["accepted_only_there"] == 0
                assert found["B"]["sentence"].startswith(
                    "Loss of B: yes, it would be survived: all 3 ordered positions are stored at "
                    "A and C; no accepted transaction that is known is only there; "
                )
            await asyncio.to_thread(accept, a.config.master_url)
            await until(lambda: not any(peer["linked"] for peer in a.status()["peers"]))
            found = {one["site"]: one for one in a.survivals()}
            assert found["A"]["accepted_only_there"] == 1
            assert found["A"]["ordered_only_there"] == 0 and not found["A"]["survives"]
            assert "Loss of A: NO: all 3 ordered" in found["A"]["sentence"]
            assert "1 accepted transactions are only at A" in found["A"]["sentence"]
            assert "(A) has no majority" in found["B"]["sentence"]

    asyncio.run(main())
