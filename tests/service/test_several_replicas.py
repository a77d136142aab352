"""Several replicas of one site: listed, lent within the site, read by name, forgotten.

Real nodes; the test plays the workers.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tests.service.local_nodes import cluster, until
from tests.service.test_replica_routes import CHUNK, SETTINGS, create
from tests.service.test_staged_files import create as create_of
from tests.support.replica_lakes import append_rows, report_of, write_state

from sparktxlog import Client
from sparktxlog.codec.wire import Envelope
from sparktxlog.errors import (
    BusyError,
    InvalidRequestError,
    LocalProtocolError,
    NotAppliedError,
    NotFoundError,
)
from sparktxlog.files.selection import select_files
from sparktxlog.files.tasks import FileTask
from sparktxlog.files.workspace import CopyWorkspace
from sparktxlog.http.link import Http
from sparktxlog.model.replicas import MOST_REPLICAS
from sparktxlog.model.report import OwnReport, WorkerReport
from sparktxlog.model.transactions.receipt import Appliers, Level
from sparktxlog.runtime.node import Node
from sparktxlog.worker.replica.source import HttpLogSource

IDS, ROW = (uuid.UUID(int=1), uuid.UUID(int=2)), {"id": 1, "v": "x"}


async def report(
    node: Node, name: str, lake: Path, only: tuple[str, ...] = (), **more: Any
) -> OwnReport:
    """Make a lake with the table, and report it as the worker of that name would."""
    worker = f"{name} of {node.config.node_id}"
    await until(lambda: "t" in node.tables() and node.base.published.value)
    version = 0
    if not (lake / "t").exists():
        version = await asyncio.to_thread(append_rows, lake / "t", 10_000, seed=1)
    found = report_of(node.status(), version, worker)
    write_state(lake, worker, found.position)
    said = {one.name: getattr(found, one.name) for one in fields(WorkerReport)}
    said |= {"name": name, "only": only, "lake": str(lake), "runs_on": f"host of {name}"} | more
    return OwnReport(**said)


def lines(node: Node) -> list[tuple[str, str, str]]:
    return [(one["node_id"], one["name"], one["verdict"]) for one in node.status()["replicas"]]


def test_replicas_of_a_site_are_listed_read_lent_and_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB", **SETTINGS) as nodes:
            a, b = nodes["A"], nodes["B"]
            await create(a)
            main = await report(a, "main", a.config.lake_dir)
            other = tmp_path / "reports"
            assert (await a.all_replicas.take_report(main))["verdict"] == "IN_SYNC"
            found = await report(a, "reports", other, follows=True)
            assert (await a.all_replicas.take_report(found))["verdict"] == "IN_SYNC"
            both = [("A", "main", "IN_SYNC"), ("A", "reports", "IN_SYNC")]
            assert lines(a) == both
            await until(lambda: lines(b) == both)
            await check_views(a)
            await check_copies(a, b, other)
            # A lake or a name that is another worker's.
            with closing(HttpLogSource(a.config.master_url)) as source:
                for wrong, match in (
                    (replace(found, name="twin"), r"replica 'reports'.*host of reports"),
                    (replace(found, lake=str(tmp_path / "x")), r"has the lake .*host of reports"),
                ):
                    with pytest.raises(InvalidRequestError, match=match):
                        await asyncio.to_thread(source.report, wrong)
            assert lines(a)[:2] == both
            await check_forgetting(a, b, found)

    asyncio.run(main())


async def check_views(node: Node) -> None:
    client = Client(node.config.master_url)
    rows = (await asyncio.to_thread(client.view, "workers")).to_pylist()
    assert [(row["name"], row["only"]) for row in rows] == [("main", []), ("reports", [])]
    rows = (await asyncio.to_thread(client.view, "signatures")).to_pylist()
    assert [(row["name"], row["table"]) for row in rows] == [("main", "t"), ("reports", "t")]
    shown = await asyncio.to_thread(client.snapshot, None, replica="reports")
    assert shown["replica"] == "reports" and "/reports/t" in shown["tables"]["t"]["uri"]
    shown = await asyncio.to_thread(client.snapshot)
    assert (shown["replica"], shown["others"]) == ("main", ["reports"])
    with pytest.raises(NotFoundError, match="no replica 'x'") as failure:
        await asyncio.to_thread(client.snapshot, None, replica="x")
    assert "main, reports" in str(failure.value.hint)


async def check_copies(a: Node, b: Node, other: Path) -> None:
    """Copies go from worker to worker within the site, without a network; B may name either."""
    ticket = await a.order_copy("reports of A", forced=True)
    assert ticket.lease.replica == ticket.decision.donor == "A"
    ticket = await a.order_copy("main of A", forced=True)
    lease = ticket.lease
    assert lease.replica == "A/reports" and Path(lease.pins).is_relative_to(other)
    (offered,) = lease.tables
    tasks = [FileTask.of("t", one) for one in offered.files]
    space = CopyWorkspace(a.config.lake_dir, "copy")
    for path in (a.config.lake_dir / "t").glob("*.parquet"):
        path.unlink()  # nothing of it is in the own lake
    wanted = await asyncio.to_thread(select_files, space, lease, tasks)
    # Data files are linked; those of the log are fetched, as writers write into some of them.
    left = {work.task.path for work in wanted.works}
    assert all(path.startswith("_delta_log/") for path in left)
    (data,) = (one for one in offered.files if one.path.endswith(".parquet"))
    assert data.path not in left and data.size_bytes > CHUNK // 8
    assert space.staged("t", data.path).samefile(other / "t" / data.path)
    a.donor.release(lease.lease_id, lease.token)
    write_state(b.config.lake_dir, "main of B", 0)
    b.all_replicas.accept_report(
        replace(report_of(b.status(), 0, "main of B"), position=0, chain_hash="", tables={})
    )
    ticket = await b.order_copy("main of B", forced=True, donor="A/reports")
    assert (ticket.lease.replica, ticket.lease.pins) == ("A/reports", "")


async def check_forgetting(a: Node, b: Node, found: OwnReport) -> None:
    with pytest.raises(InvalidRequestError, match="runs"):
        await a.all_replicas.forget("reports")
    await a.all_replicas.take_report(replace(found, follows=False))
    assert {one.replica for one in a.log.holders.all()} == {"A", "A/reports", "B"}
    await until(lambda: len(b.log.holders.all()) == 3)
    await a.all_replicas.forget("reports")
    assert {one.replica for one in a.log.holders.all()} == {"A", "B"}
    await until(lambda: {one.replica for one in b.log.holders.all()} == {"A", "B"})
    await until(lambda: [one[:2] for one in lines(b)] == [("A", "main"), ("B", "main")])
    assert [one[:2] for one in lines(a)] == [("A", "main"), ("B", "main")]


def test_a_ninth_replica_of_a_peer_is_left_out_and_its_site_is_heard(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB", **SETTINGS) as nodes:
            a, b = nodes["A"], nodes["B"]
            await create(a)
            found = await report(a, "r0", tmp_path / "r0")
            for number in range(MOST_REPLICAS - 1):
                name = f"r{number}"
                one = replace(found, name=name, worker_id=name, lake=str(tmp_path / name))
                await a.all_replicas.take_report(one)
            ninth = replace(found, name="z", worker_id="z", lake=str(tmp_path / "z"))
            held = dict(a.base.state.values)
            with pytest.raises(InvalidRequestError, match="at most 8"):
                await a.all_replicas.take_report(ninth)
            assert a.base.state.values == held and "z" not in a.replicas.lakes
            await a.all_replicas.take_report(await report(a, "main", a.config.lake_dir))
            await until(lambda: len(lines(b)) == MOST_REPLICAS)
            # A peer of another release may have more.
            post = await b.peering.on_envelope(
                "A", Envelope(replicas=(*a.replicas.names(), "z"), reports=(ninth.for_peers(),)), {}
            )
            assert post.post is None and len(lines(b)) == MOST_REPLICAS
            assert [one["code"] for one in b.status()["warnings"]] == ["replicas-not-known"]
            await a.submit(create_of("u"), level=Level.ORDERED, timeout=30)
            await until(lambda: "u" in b.tables())

    asyncio.run(main())


def test_a_replica_with_a_set_lends_to_nobody_that_holds_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "A", **SETTINGS) as nodes:
            a = nodes["A"]
            await create(a)
            await a.all_replicas.take_report(await report(a, "gold", tmp_path / "g", ("gold.*",)))
            same = await report(a, "same", tmp_path / "s", ("default.t",))
            await a.all_replicas.take_report(same)
            behind = await report(a, "main", a.config.lake_dir)
            await a.all_replicas.take_report(replace(behind, position=0, chain_hash="", tables={}))
            # `same` has all tables that there are; `gold` has none of them.
            ticket = await a.order_copy("main of A", forced=True)
            assert ticket.lease.replica == "A/same"
            with pytest.raises(LocalProtocolError, match="no copy") as failure:
                await a.order_copy("main of A", forced=True, donor="A/gold")
            assert failure.value.fields["plan"] == "stop"
            assert a.replicas.readable("t")[0] == "same"
            codes = {one["code"] for one in a.status()["warnings"]}
            assert "pattern-matches-nothing" in codes and "tables-not-held" not in codes
            # What it has need not be waited for, though the site has not applied it.
            shown = await a.snapshot(None, same.position, 60.0, table="t")
            assert shown["replica"] == "same"
            # A reader that waits for one replica hears of its report.
            waits = asyncio.create_task(a.snapshot(None, behind.position, 60.0, replica="main"))
            await asyncio.sleep(0)
            await a.all_replicas.take_report(behind)
            assert (await waits)["replica"] == "main"
            with pytest.raises(NotAppliedError, match="'gold' has applied position"):
                await a.snapshot(None, behind.position + 1, 0.0, replica="gold")

    asyncio.run(main())


def test_applied_k_counts_sites_and_not_replicas(
    tmp_path: Path,
) -> None:
    """By the API and over HTTP: two replicas of one site are one site."""

    async def main() -> None:
        async with cluster(tmp_path, "AB", **SETTINGS) as nodes:
            a, b = nodes["A"], nodes["B"]
            await create(a)
            append = {"operations": [{"kind": "append", "table": "t", "rows": [ROW]}]}

            def commit() -> tuple[str, bool]:
                with Client(a.config.master_url, timeout=0.5, level="applied(2)") as client:
                    said = client.append("t", [ROW], transaction_id=IDS[0])
                return "" if said.level is None else said.level.value, said.late

            def post() -> tuple[str, bool]:
                body = append | {"transaction_id": str(IDS[1])}
                query = "level=applied(2)&timeout=0.5"
                with closing(Http(a.config.master_url)) as http:
                    said = json.loads(
                        http.request(
                            "POST", f"/v1/transactions?{query}", body=json.dumps(body).encode()
                        )
                    )
                return said["level"], said["late"]

            for identity in IDS[:2]:
                # Ordered before: half a second is for the wait alone.
                with Client(a.config.master_url) as client:
                    await asyncio.to_thread(client.append, "t", [ROW], transaction_id=identity)
            for ask in (commit, post):
                assert (await asyncio.to_thread(ask))[1] is True
            end = a.base.ordered.value
            await until(lambda: a.base.published.value == b.base.published.value == end)
            for name, lake in (("main", a.config.lake_dir), ("reports", tmp_path / "reports")):
                await a.all_replicas.take_report(await report(a, name, lake))
            assert a.replicas.applied(Appliers()) == end and a.replicas.applied(Appliers(2)) == 0
            for ask in (commit, post):
                assert (await asyncio.to_thread(ask))[1] is True, "that is one site"
            await b.all_replicas.take_report(await report(b, "main", b.config.lake_dir))
            await until(lambda: a.replicas.applied(Appliers(2)) == end)
            for ask in (commit, post):
                assert await asyncio.to_thread(ask) == ("applied", False)

    asyncio.run(main())


def test_a_reader_waits_for_what_a_replica_with_a_set_has(tmp_path: Path) -> None:
    """The only replica of a site holds some tables: the site never has applied all of them."""

    async def main() -> None:
        async with cluster(tmp_path, "A", **SETTINGS) as nodes:
            a = nodes["A"]
            await create(a)
            only = await report(a, "main", a.config.lake_dir, ("default.t", "gold.*"))
            await a.submit(create_of("u"), level=Level.ORDERED, timeout=30)
            await until(lambda: a.base.published.value > only.position)
            await a.all_replicas.take_report(only)
            begun = monotonic()
            shown = await a.snapshot(None, only.position, 60.0, table="t")
            assert (shown["position"], monotonic() - begun < 10) == (only.position, True)
            # One that waits for more hears that the node stops.
            waits = asyncio.create_task(a.snapshot(None, only.position + 9, 60.0, table="t"))
            await asyncio.sleep(0)
            a.begin_stop()
            with pytest.raises(BusyError, match="stopping") as refused:
                await asyncio.wait_for(waits, 10)
            assert refused.value.definite and refused.value.retryable

    asyncio.run(main())
