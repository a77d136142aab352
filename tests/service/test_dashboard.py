"""The dashboard of real nodes: pages and twins, tokens, alarms, news, and a browser."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import socket
import tomllib
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.service.local_nodes import cluster, config_of, serving, until
from tests.service.test_catalog_api import Caller
from tests.support.command_line import invoke
from tests.support.delta_writer import path_of
from tests.support.replica_lakes import report_of

from sparktxlog import Client
from sparktxlog.errors import UnknownTableError
from sparktxlog.health.cluster_status import ClusterStatus
from sparktxlog.health.site_progress import progress_of
from sparktxlog.runtime.node import Node
from sparktxlog.service.dashboard import dashboard_views

TOKEN = "a token of the clients"
PAGES = ("overview", "history", "queue", "rounds", "tables", "transfers", "epochs", "acts")
STATIC = resources.files("sparktxlog.service.dashboard") / "static"


class Reader:
    """Asks a node as a browser does."""

    def __init__(self, node: Node, token: str | None = None) -> None:
        self.root = node.config.master_url
        self._headers = {}
        if token is not None:
            shown = base64.b64encode(f"anybody:{token}".encode()).decode()
            self._headers["authorization"] = f"Basic {shown}"

    async def get(self, path: str) -> tuple[int, str, dict[str, str]]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(self.root + path, headers=self._headers, allow_redirects=False) as answer,
        ):
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return answer.status, await answer.text(), headers

    async def json(self, path: str) -> Any:
        status, text, headers = await self.get(path)
        assert (status, headers["content-type"]) == (200, "application/json"), text
        return json.loads(text)


def commit(node: Node, token: str | None = None) -> str:
    """Commit a table and two rows; return the id of the last transaction."""
    with Client(node.config.master_url, token=token) as client:
        client.create_table("bronze.b", "id bigint", keys=["id"])
        client.append("bronze.b", [{"id": 1}])
        return str(client.append("bronze.b", [{"id": 2}]).transaction_id)


async def _assert_a_site_without_worker_is_no_calm_page(node: Node, reader: Reader) -> None:
    """Page, status, exit code and readiness say one thing; readiness is about the node alone."""
    await until(lambda: node.status()["published"] == node.status()["position"])
    view = await reader.json("/dashboard/overview.json")
    status = ClusterStatus(node.status())
    assert view["verdict"] == status.verdict.to_document()
    assert (view["state"], view["verdict"]["code"]) == ("lagging", "no-worker")
    assert f"apply --follow --url {node.config.master_url}" in view["verdict"]["way_out"]
    assert {one["node_id"]: one["code"] for one in view["replicas"]} == {
        site: one.code for site, one in status.sites.items()
    }
    text = (await reader.get("/"))[1]
    assert "● In sync" not in text and "No worker has applied anything at site A" in text
    assert all(check.good for check in node.ready())


def test_a_cluster_of_commit_tables_needs_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lagged for ever once a worker had run, and schedulers waited for workers."""

    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes, aiohttp.ClientSession() as session:
            a, b = nodes["A"], nodes["B"]
            a.accept_report(replace(report_of(a.status(), 0), tables={}))
            assert ClusterStatus(a.status()).verdict.code == "empty-log"
            await Caller(a, session).create("plain")

            def placed(node: Node) -> bool:
                status = node.status()
                states = status["commit_tables"]["states"]
                return status["published"] > 0 and states["in-sync"] == 1

            await until(lambda: placed(a) and placed(b))
            for node in (a, b):
                status = node.status()
                shown = ClusterStatus(status)
                assert (shown.state, shown.verdict.code) == ("in sync", "no-rows")
                assert all(one["behind"] == 0 for one in status["replicas"])
                assert progress_of(shown, None).waits_for == ""
                assert progress_of(shown, status["position"]).waits_for == ""
                view = await Reader(node).json("/dashboard/overview.json")
                assert view["verdict"] == shown.verdict.to_document()
                assert "● In sync" in (await Reader(node).get("/"))[1]
                url = node.config.master_url
                code = await asyncio.to_thread(invoke, monkeypatch, "status", "--url", url)
                assert code == 0 and all(check.good for check in node.ready())
                metrics = node.base.metrics.text().decode()
                assert 'sparktxlog_state{state="in sync"} 1.0' in metrics
                assert 'code="no-rows",site="A"} 1.0' in metrics

    asyncio.run(main())


async def _assert_the_page_of_a_table(reader: Reader, id_: str) -> None:
    """It shows what wrote last, and how each site is."""
    view = await reader.json("/dashboard/tables/bronze.b.json")
    assert [(one["kind"], one["position"]) for one in view["writers"]] == [
        ("append", 3),
        ("append", 2),
        ("create_table", 1),
    ]
    assert view["writers"][0]["transaction_id"] == id_
    (at,) = view["at"]
    assert (at["site"], at["position"], at["has_all"]) == ("B", 3, True)
    assert [one["name"] for one in view["table"]["columns"]] == ["id"]
    text = (await reader.get("/dashboard/tables/bronze.b"))[1]
    assert "● has every write" in text and id_ in text


def test_pages_and_their_twins(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a, b = nodes["A"], nodes["B"]
            id_ = await asyncio.to_thread(commit, a)
            await until(lambda: b.status()["position"] == b.status()["published"] == 3)
            b.accept_report(report_of(b.status(), 3))
            await until(lambda: any(line["position"] == 3 for line in a.status()["replicas"]))
            reader = Reader(a)
            await _assert_a_site_without_worker_is_no_calm_page(a, reader)
            for page in ("/", *(f"/dashboard/{name}" for name in PAGES)):
                status, text, headers = await reader.get(page)
                assert (status, "<h" in text, "node A" in text) == (200, True, True), page
                assert "default-src" in headers["content-security-policy"]
            assert "bronze.b" in (await reader.get("/dashboard/tables"))[1]
            # What others wrote is never taken for a page's own marks.
            status, text, _ = await reader.get("/dashboard/%3Cb%3E")
            assert status == 404 and "&lt;b&gt;" in text and "<b>'" not in text

            view = await reader.json("/dashboard/overview.json")
            assert [(one["id"], one["state"]) for one in view["sites"]] == [
                ("A", "member"),
                ("B", "member"),
            ]
            assert view["links"][0]["state"] == "up" and view["waits"] == []
            (alarm,) = view["alarms"]
            assert alarm["text"].startswith("No worker has applied anything at site A")
            view = await reader.json("/dashboard/queue.json")
            assert [run["position"] for run in view["runs"]] == [3, 2, 1]
            assert view["runs"][0]["cells"] == {"A": "ordered", "B": "equal"}
            view = await reader.json("/dashboard/queue.json?after=1")
            assert [run["position"] for run in view["runs"]] == [3, 2]
            view = await reader.json("/dashboard/tables.json")
            assert (view["tables"][0]["version"], view["sites"]) == (2, ["B"])
            assert (await reader.json("/dashboard/epochs.json"))["epochs"][0]["epoch"] == 1
            view = await reader.json(f"/dashboard/transactions/{id_}.json")
            assert view["receipt"]["position"] == 3
            assert [one["applied"] for one in view["at"]] == [False, True]
            assert "has position 3" in (await reader.get(f"/dashboard/transactions/{id_}"))[1]
            strange = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
            assert "never saw" in (await reader.get(f"/dashboard/transactions/{strange}"))[1]

            await _assert_the_page_of_a_table(reader, id_)
            for what, where in (
                ("2", "queue?after=1"),
                (id_, f"transactions/{id_}"),
                ("bronze.b", "tables/bronze.b"),
                ("1,002", "queue?after=1001"),
                ("%E2%91%A0", "tables/%E2%91%A0"),  # ①, a digit that is no number
                ("9" * 5_000, f"tables/{'9' * 5_000}"),
            ):
                status, _, headers = await reader.get(f"/dashboard/search?q={what}")
                assert (status, headers["location"]) == (303, f"/dashboard/{where}")
            for path, wanted in (
                ("nothing", 404),
                ("queue?after=x", 400),
                ("queue?after=%E2%91%A0", 400),
                ("rounds/%E2%91%A0", 400),
                ("transactions/x", 400),
                ("tables/bronze.c", 404),
                ("tables/%20", 400),
                ("static/x.js", 404),
            ):
                assert (await reader.get(f"/dashboard/{path}"))[0] == wanted
            status, text, _ = await reader.get("/dashboard/queue.json?after=x")
            assert status == 400 and json.loads(text)["title"] == "invalid-request"

    asyncio.run(main())


def test_the_page_of_a_table_has_size_and_rows_and_says_when_it_was_dropped(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes, aiohttp.ClientSession() as session:
            a, b = nodes["A"], nodes["B"]
            await asyncio.to_thread(commit, a)
            reader = Reader(a)
            view = await reader.json("/dashboard/tables/bronze.b.json")
            assert (view["content"], view["content_problem"]) == (None, "")
            assert (
                "no version at this site yet" in (await reader.get("/dashboard/tables/bronze.b"))[1]
            )
            lake = a.config.lake_dir / "bronze.b"
            write_deltalake(lake, pa.table({"id": [1, 2], "<b>": ["<i>", None]}))
            content = (await reader.json("/dashboard/tables/Bronze.B.json"))["content"]
            assert (content["rows"], content["files"], content["version"]) == (2, 1, 0)
            assert content["sample"] == [["1", "<i>"], ["2", None]]
            text = (await reader.get("/dashboard/tables/bronze.b"))[1]
            assert "&lt;i&gt;" in text and "<i>" not in text and "NULL" in text
            # A new version is read, a known one from memory.
            write_deltalake(lake, pa.table({"id": [3], "<b>": ["x"]}), mode="append")
            content = (await reader.json("/dashboard/tables/bronze.b.json"))["content"]
            assert (content["rows"], content["version"]) == (3, 1)

            caller = Caller(a, session)
            await caller.create("plain", "default")
            await until(lambda: len(b.commit_tables()) == 1)
            await until(lambda: b.status()["commit_tables"]["states"]["in-sync"] == 1)
            await until(
                lambda: a.sites_data.has_commit_table(a.commit_tables()[0].uuid)["B"] is True
            )
            view = await reader.json("/dashboard/tables/plain.json")
            assert [(one["site"], one["whole"]) for one in view["placed"]] == [
                ("A", True),
                ("B", True),
            ]
            # The file of this table is no Parquet.
            assert view["content"]["size_bytes"] > 0
            assert "cannot be read" in view["content"]["left_out"]
            page = (await reader.get("/dashboard/tables/plain"))[1]
            assert f'href="{b.config.master_url}/dashboard/tables/default.plain"' in page

            def drop() -> None:
                with Client(a.config.master_url) as client:
                    client.drop_table("bronze.b")

            await asyncio.to_thread(drop)
            await caller.ask("DELETE", path_of("plain"))
            await until(lambda: not a.commit_tables())
            for name, at in (("bronze.b", 5), ("plain", 6)):
                status, text, _ = await reader.get(f"/dashboard/tables/{name}")
                assert status == 404 and f"was dropped at position {at}, at 20" in text, text
            with Client(a.config.master_url) as client, pytest.raises(UnknownTableError) as caught:
                await asyncio.to_thread(client.describe, "plain")
            assert caught.value.fields["dropped_at"] == 6

    asyncio.run(main())


def test_a_part_of_a_name_finds_tables_of_both_kinds(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes, aiohttp.ClientSession() as session:
            (a,) = nodes.values()

            def create() -> None:
                with Client(a.config.master_url) as client:
                    for name in ("orders", "bronze.orders_old", "people"):
                        client.create_table(name, "id bigint")

            await asyncio.to_thread(create)
            await Caller(a, session).create("my_orders")
            reader = Reader(a)
            for text, where in (
                ("RDERS", "tables?find=RDERS"),
                ("orders", "tables/orders"),
                ("default.orders", "tables/default.orders"),
                ("nothing", "tables/nothing"),
            ):
                _, _, headers = await reader.get(f"/dashboard/search?q={text}")
                assert headers["location"] == f"/dashboard/{where}"
            view = await reader.json("/dashboard/tables.json?find=RDERS")
            assert [one["name"] for one in view["tables"]] == ["bronze.orders_old", "orders"]
            found = view["commit_tables"]["tables"]
            assert [one["name"] for one in found] == ["default.my_orders"]
            # Pages of lists that are longer than one leave out none of either kind.
            monkey = pytest.MonkeyPatch()
            monkey.setattr(dashboard_views, "TABLES", 1)
            seen, after = set(), ""
            while after is not None:
                view = await reader.json(f"/dashboard/tables.json?after={after}")
                seen |= {one["name"] for one in view["tables"]}
                seen |= {one["name"] for one in view["commit_tables"]["tables"]}
                after = view["more_after"]
            monkey.undo()
            assert seen == {"bronze.orders_old", "orders", "people", "default.my_orders"}

    asyncio.run(main())


def test_acts_have_commands_and_requests(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes, aiohttp.ClientSession() as session:
            (a,) = nodes.values()
            await asyncio.to_thread(commit, a)
            await Caller(a, session).create("plain", "default")
            reader = Reader(a)
            asked = dict[str, list[str | None]]()
            for table in ("", "bronze.b", "plain"):
                view = await reader.json(f"/dashboard/acts.json?table={table}")
                asked[table] = [
                    one["request"] and one["request"]["path"]
                    for one in view["acts"][: -4 if table else None]
                ]
                for act in view["acts"]:
                    assert act["command"].startswith("sparktxlog ")
                    assert act["command"].endswith(f"--url {a.config.master_url}")
            check = "/v1/worker/commit-tables/check"
            assert asked == {
                "": ["/v1/settings", "/v1/worker/plan", "/v1/restore-points", None],
                "bronze.b": ["/v1/recounts", None],
                "plain": [check, check],
            }
            assert (await reader.get("/dashboard/acts?table=nothing"))[0] == 404

    asyncio.run(main())


def test_a_witness_shows_what_it_knows_and_names_those_who_know_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in "ABW"}
            ports = {name: listener.getsockname()[1] for name, listener in listeners.items()}
            nodes = {}
            for name, listener in listeners.items():
                roles = "roles" if name == "W" else "peer.2.roles"
                config = config_of(tmp_path, name, ports, **{roles: "witness"})
                nodes[name] = await stack.enter_async_context(serving(config, listener))
            await until(
                lambda: all(link.up for n in nodes.values() for link in n.base.links.values())
            )
            await asyncio.to_thread(commit, nodes["A"])
            reader = Reader(nodes["W"])
            status, page, _ = await reader.get("/")
            assert status == 200 and "In sync" not in page
            for untrue in ("Applied here", "No worker has reported", "no transaction waits"):
                assert untrue not in page
            for name in "AB":
                assert f'<a href="{nodes[name].config.master_url}/">{name}</a>' in page
            found = await reader.json("/dashboard/overview.json")
            assert "Without A: B and W would have a majority of the votes." in [
                one["sentence"] for one in found["survival"]
            ]
            states = {one["id"]: one["state"] for one in found["sites"]}
            assert states == {"A": "member", "B": "member", "W": "witness"}
            assert (await reader.get("/dashboard/epochs"))[0] == 200
            for name in ("history", "queue", "rounds", "tables", "transfers", "rounds/1"):
                status, page, _ = await reader.get(f"/dashboard/{name}")
                assert status == 404 and "sk another node" in page, name
            assert (await reader.get("/v1/views/survival"))[0] == 404
            losses = {one["site"]: one for one in nodes["A"].survivals()}
            assert (losses["B"]["voters"], losses["B"]["goes_on"]) == (["A", "W"], True)

    asyncio.run(main())


def test_a_token_is_the_password(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "A", client_token=TOKEN) as nodes:
            (a,) = nodes.values()
            status, text, headers = await Reader(a).get("/")
            assert status == 401 and headers["www-authenticate"].startswith("Basic realm=")
            assert "the password is the token" in text and "node A" not in text
            assert (await Reader(a, "another").get("/"))[0] == 401
            assert (await Reader(a, TOKEN).get("/"))[0] == 200
            # Only pages take it: a browser shows it to what another site's page asks for as well.
            assert (await Reader(a, TOKEN).get("/v1/status"))[0] == 401
            name = "htmx.min.js"
            status, text, headers = await Reader(a).get(f"/dashboard/static/{name}")
            assert status == 200 and "immutable" in headers["cache-control"]
            assert text == (STATIC / name).read_text()

    asyncio.run(main())


def test_scripts_are_what_their_authors_published() -> None:
    listed = tomllib.loads((STATIC / "vendored.toml").read_text())["script"]
    found = {item.name: item.read_bytes() for item in STATIC.iterdir()}
    assert {one["file"] for one in listed} == {name for name in found if name.endswith(".min.js")}
    for one in listed:
        assert hashlib.sha256(found[one["file"]]).hexdigest() == one["sha256"], one["file"]
    sent = sum(len(data) for name, data in found.items() if not name.endswith(".toml"))
    assert sent <= 100_000


def test_the_history_of_a_node_is_measured_and_drawn(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a = nodes["A"]
            reader = Reader(a)
            before = await reader.json("/dashboard/history.json")
            assert (before["span"], before["step_s"]) == ("hour", 10)
            await asyncio.to_thread(commit, a)
            await until(lambda: a.status()["published"] == 3)
            a.accept_report(report_of(a.status(), 3))

            def write() -> None:
                with Client(a.config.master_url) as client:
                    client.append("bronze.b", [{"id": 3}])

            await asyncio.to_thread(write)
            await until(lambda: a.status()["published"] == 4)
            await a.all_replicas.lag.sample([])
            a.history.sample()
            view = await reader.json("/dashboard/history.json")
            assert len(view["at"]) == len(before["at"]) + 1
            last = {name: values[-1] for name, values in view["series"].items()}
            assert last["ordered_per_s"] > 0 and last["sent_bytes_per_s.B"] > 0
            assert 0 < last["commit_p50_s"] <= last["commit_p99_s"]
            assert (last["lag.A"], last["lag.B"]) == (1, 4) and last["lag_s.A"] > 0
            assert last["disk_free_bytes"] > 0 and last["log_bytes"] > 0
            assert last["state"] == 1 and "drawn" not in view
            text = (await reader.get("/dashboard/history"))[1]
            for title in ("Ordered transactions", "Behind, in time", "Free on its disk"):
                assert f"<b>{title}</b>" in text
            assert text.count("<path ") >= 8
            # A minute of samples is one of the day, and the day keeps the highest lag.
            assert (await reader.json("/dashboard/history.json?span=day"))["at"] == []
            for _ in range(5):
                a.history.sample()
            day = await reader.json("/dashboard/history.json?span=day")
            assert [len(one) for one in (day["at"], day["series"]["lag.B"])] == [1, 1]
            assert day["series"]["lag.B"] == [4]
            assert (await reader.get("/dashboard/history?span=week"))[0] == 400

    asyncio.run(main())


def test_an_alarm_names_table_and_position(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            (a,) = nodes.values()
            await asyncio.to_thread(commit, a)
            await until(lambda: a.status()["published"] == 3)
            report = report_of(a.status(), 3)
            tables = {
                name: replace(one, diverged="version 7 was written by user ada")
                for name, one in report.tables.items()
            }
            a.accept_report(replace(report, tables=tables))
            view = await Reader(a).json("/dashboard/overview.json")
            assert view["state"] == "diverged"
            (alarm,) = [one for one in view["alarms"] if one["severity"] == "alarm"]
            assert f"table {next(iter(tables))!r}: version 7" in alarm["text"]
            text = (await Reader(a).get("/dashboard/queue"))[1]
            assert "✕ Diverged" in text and "● In sync" not in text

    asyncio.run(main())


def test_what_is_in_negotiation_says_what_it_waits_for(tmp_path: Path) -> None:
    async def main() -> None:
        listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in "AB"}
        ports = {name: one.getsockname()[1] for name, one in listeners.items()}
        async with serving(config_of(tmp_path, "A", ports), listeners["A"]) as a:
            async with serving(config_of(tmp_path, "B", ports), listeners["B"]):
                await asyncio.to_thread(commit, a)
            reader = Reader(a)

            def accept(table: str) -> None:
                with Client(a.config.master_url) as client:
                    client.create_table(table, "id bigint", level="accepted")

            await asyncio.to_thread(accept, "t")
            (run,) = (await reader.json("/dashboard/queue.json"))["incoming"]
            assert {(one["peer"], one["why"]) for one in run["waits"]} == {
                ("B", "promise"),
                ("B", "acquired"),
            }
            assert (await reader.json("/v1/incoming"))[0]["acquired"]
            text = (await reader.get("/dashboard/queue"))[1]
            assert "B: its timestamp counter" in text and "In negotiation" in text
            await until(lambda: a.waits.rounds(10))
            text = (await reader.get("/dashboard/rounds"))[1]
            assert "it lasts" in text and "B: its confirmation that it holds the data" in text
            (round_,) = (await reader.json("/dashboard/rounds.json"))["rounds"]
            assert (round_["held_up_by"], round_["position"]) == (["B"], 4)
            assert {(one["peer"], one["position"], one["ended_at"]) for one in round_["waits"]} == {
                ("B", 4, None)
            }
            again = socket.create_server(("127.0.0.1", ports["B"]))
            async with serving(config_of(tmp_path, "B", ports), again):
                await until(lambda: a.waits.rounds(1)[0]["ended_at"] is not None)
            await asyncio.to_thread(accept, "u")
            await until(lambda: len(a.waits.rounds(10)) == 2)
            newer, older = (one["round"] for one in a.waits.rounds(10))
            assert older == round_["round"]
            view = await reader.json(f"/dashboard/rounds/{older}.json")
            assert (view["older"], view["newer"]) == (None, newer)
            assert view["round"]["sentence"].startswith("Position 4 waited")
            text = (await reader.get(f"/dashboard/rounds/{older}"))[1]
            assert f"/dashboard/rounds/{newer}" in text and "It ended at" in text
            text = (await reader.get(f"/dashboard/rounds/{newer}"))[1]
            assert f"/dashboard/rounds/{older}" in text and "It lasts" in text
            assert (await reader.get("/dashboard/rounds/7"))[0] == 404
            assert (await reader.get("/dashboard/rounds/x"))[0] == 400
            kept, written = a.config, tmp_path / "A" / "log" / "rounds"
            await until(lambda: list(written.glob("*.parquet")))
        # What ended is kept: a link to it works after a restart.
        async with serving(kept, socket.create_server(("127.0.0.1", ports["A"]))) as a:
            assert [one["round"] for one in a.waits.rounds(10)] == [older]

    asyncio.run(main())


def test_news_are_told_and_end_with_the_node(tmp_path: Path) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            async with cluster(tmp_path, "A") as nodes:
                (a,) = nodes.values()
                stream = await session.get(f"{a.config.master_url}/dashboard/events")
                assert await stream.content.readline() == b"retry: 2000\n"
                await asyncio.to_thread(commit, a)
                while await stream.content.readline() != b"event: news\n":
                    pass
            # The node stopped without waiting for its reader.
            await stream.read()

    asyncio.run(main())
