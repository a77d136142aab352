"""Groups of sites between real nodes: who holds what, what stops, what is refused (V04, V14)."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.service.local_nodes import cluster, config_of, serving, until
from tests.support.command_line import invoke
from tests.support.node_processes import call

from sparktxlog import Client
from sparktxlog.api.writing.group_definitions import alter_group, create_group
from sparktxlog.errors import (
    GroupAwayError,
    InvalidNameError,
    InvalidRequestError,
    NameTakenError,
    NotHeldHereError,
    TxLogError,
    UnknownGroupError,
)
from sparktxlog.http.link import Http
from sparktxlog.model.tables.groups import GROUPS, Group
from sparktxlog.model.transactions.operation import POSITION_COLUMN
from sparktxlog.runtime.node import Node
from sparktxlog.service.handlers.members import MemberRoutes
from sparktxlog.service.routing.request_bodies import ReplacePeer
from sparktxlog.worker.replica.source import HttpLogSource

Nodes = dict[str, Node]
_GROUPS = (("eu", "B", 1), ("us", "A,C", 2), ("all", "A,B,C", 3))


def _make(url: str) -> None:
    with Client(url) as client:
        for name, sites, copies in _GROUPS:
            create_group(Http(url), name, sites.split(","), copies)
            keys = ["id"] if name == "us" else []
            client.create_table(name, {"id": "bigint", "text": "string"}, keys, group=name)
        client.create_table("plain", {"id": "bigint", "text": "string"})


def _files(node: Node, table: str) -> list[str]:
    root = Path(node.payloads.root)
    return sorted(str(path.relative_to(root)) for path in root.rglob(f"*/{table}/*.parquet"))


async def _alike(nodes: Nodes) -> None:
    """Wait until all nodes have the same queue, and have published it."""
    last = max(node.base.ordered.value for node in nodes.values())
    await until(lambda: all(node.base.published.value >= last for node in nodes.values()))


def _with_groups(
    directory: Path, work: Callable[[Nodes], Awaitable[None]], **settings: Any
) -> None:
    async def main() -> None:
        async with cluster(directory, **settings) as nodes:
            await asyncio.to_thread(_make, nodes["A"].config.master_url)
            await _alike(nodes)
            await work(nodes)

    asyncio.run(main())


def _row(number: int) -> list[dict[str, Any]]:
    return [{"id": number, "text": "t"}]


def test_only_the_sites_of_a_group_get_its_rows(tmp_path: Path) -> None:
    """V04, V14: one, two and three copies; the order is one, and everywhere."""

    def write(url: str) -> list[int | None]:
        with Client(url) as client:
            told = [client.append("eu", _row(1)), client.upsert("us", _row(2))]
            told += [client.append("all", _row(3)), client.append("plain", _row(4))]
            with client.transaction() as over_both:
                over_both.append("eu", _row(5))
                over_both.upsert("us", _row(6))
            return [one.position for one in (*told, over_both.receipt)]

    async def work(nodes: Nodes) -> None:
        before = nodes["A"].base.ordered.value
        positions = await asyncio.to_thread(write, nodes["A"].config.master_url)
        assert positions == [*range(before + 1, before + 6)]
        await _alike(nodes)
        hashes = {node.queue(before, 9)[-1]["chain_hash"] for node in nodes.values()}
        assert len(hashes) == 1, "there is one order"
        # A has what it accepted for group eu until the log forgets it.
        assert [len(_files(nodes[name], "eu")) for name in "BC"] == [2, 0]
        assert [len(_files(nodes[name], "us")) for name in "ABC"] == [2, 0, 2]
        # Two copies of three were enough for nobody: all three hold it.
        assert [len(_files(nodes[name], "all")) for name in "ABC"] == [1, 1, 1]
        for name, held in (("A", {"us", "all"}), ("B", {"eu", "all"}), ("C", {"us", "all"})):
            source = HttpLogSource(nodes[name].config.master_url)
            tail = await asyncio.to_thread(source.segments, before, wait_s=0.0)
            tables = {effect.table for one in tail.segments for effect in one.effects}
            assert tables == held | {"plain"}
            with pytest.raises(NotHeldHereError, match=r"sites (A, C|B)"):
                await asyncio.to_thread(source.segments, before, wait_s=0.0, whole=True)

    _with_groups(tmp_path, work)


def _many(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "text": ["t"] * len(ids)})


def test_many_transactions_have_one_file(tmp_path: Path) -> None:
    """V04: of a run only the sites of a group get the rows; its transactions are those given."""

    def write(url: str) -> tuple[list[int | None], Any]:
        with Client(url) as client:
            first = client.submit_many("eu", _many(1, 2, 3, 4), session="s")
            again = client.submit_many("us", _many(1, 2, 2), kind="upsert")
            return [first.receipts[0].position, again.receipts[0].position], first

    async def work(nodes: Nodes) -> None:
        before = nodes["A"].base.ordered.value
        positions, told = await asyncio.to_thread(write, nodes["A"].config.master_url)
        assert positions == [before + 1, before + 5] and not told.rejections
        await _alike(nodes)
        assert [len(_files(nodes[name], "eu")) for name in "BC"] == [1, 0]
        assert [len(_files(nodes[name], "us")) for name in "ABC"] == [1, 0, 1]
        url = nodes["B"].config.master_url
        tail = await asyncio.to_thread(HttpLogSource(url).segments, before, wait_s=0.0)
        effects = [one for segment in tail.segments for one in segment.effects]
        (many,) = [one for one in effects if one.table == "eu" and one.run]
        assert (many.run, many.first, many.last) == (before + 1, before + 1, before + 4)
        rows = pq.read_table(nodes["B"].payloads.path(many.files[0].path)).to_pydict()
        assert rows[POSITION_COLUMN] == [0, 1, 2, 3] and rows["id"] == [1, 2, 3, 4]

    _with_groups(tmp_path, work)


def test_commits_in_the_background_travel_by_group(tmp_path: Path) -> None:
    """V04, V15: one that waits for a group takes none of another along."""

    def write(url: str) -> list[int | None]:
        with Client(url) as client, client.background() as later:
            pending = [
                later.append(("eu", "plain", "us")[number % 3], _row(number))
                for number in range(30)
            ]
            return [one.result(timeout=60).position for one in pending]

    async def work(nodes: Nodes) -> None:
        before = nodes["A"].base.ordered.value
        positions = await asyncio.to_thread(write, nodes["A"].config.master_url)
        assert positions == [*range(before + 1, before + 31)], "in the order of the calls"
        for run in nodes["A"].queue(before, 99):
            assert run["n"] == 1 or not run["staged_bytes"], "no run has rows for two groups"

    _with_groups(tmp_path, work)


def test_a_prepared_transaction_takes_effect_at_its_sites(tmp_path: Path) -> None:
    """V14: its rows are at the sites of its groups before anybody may say YES."""

    def prepare(url: str) -> str:
        until = datetime.now(UTC) + timedelta(minutes=10)
        with Client(url) as client:
            with client.transaction(participants=["p"], valid_until=until) as made:
                made.append("eu", _row(1))
                made.upsert("us", _row(2))
            assert made.receipt.outcome == "prepared"
            return made.id

    def decide(url: str, known: str) -> int | None:
        with Client(url) as client:
            client.mark(known, "p", yes=True)
            return client.decision(known, timeout=60).position

    async def work(nodes: Nodes) -> None:
        known = await asyncio.to_thread(prepare, nodes["A"].config.master_url)
        await _alike(nodes)
        assert [len(_files(nodes[name], "eu")) for name in "BC"] == [1, 0]
        assert [len(_files(nodes[name], "us")) for name in "ABC"] == [1, 0, 1]
        position = await asyncio.to_thread(decide, nodes["C"].config.master_url, known)
        assert position == nodes["C"].base.ordered.value
        await _alike(nodes)
        for name, held in (("A", {"us"}), ("B", {"eu"}), ("C", {"us"})):
            source = HttpLogSource(nodes[name].config.master_url)
            tail = await asyncio.to_thread(source.segments, position - 1, wait_s=0.0)
            found = [one for segment in tail.segments for one in segment.effects]
            assert {one.table for one in found if one.first == position} == held

    _with_groups(tmp_path, work)


def test_a_table_is_read_at_its_sites(tmp_path: Path) -> None:
    """V04: elsewhere the answer names them."""

    async def work(nodes: Nodes) -> None:
        with pytest.raises(NotHeldHereError, match="its group has sites A, C") as refused:
            nodes["B"].replicas.readable("us")
        assert refused.value.definite and refused.value.fields["sites"] == ["A", "C"]
        assert nodes["A"].replicas.readable("us") == ["main"]
        assert nodes["B"].replicas.readable("plain") == ["main"]

    _with_groups(tmp_path, work)


def test_a_group_that_is_away_stops_alone(tmp_path: Path) -> None:
    """V15: without its sites a group takes no writes; the others, and the order, go on."""

    def write(url: str, table: str, number: int) -> Any:
        with Client(url, timeout=60) as client:
            return client.append(table, _row(number))

    def refused(url: str) -> None:
        with pytest.raises(GroupAwayError, match="'eu' needs 1 of its 1 sites") as error:
            write(url, "eu", 1)
        assert error.value.definite and "missing: B" in str(error.value)
        with Client(url, timeout=60) as client:
            with pytest.raises(GroupAwayError, match="missing: B") as error:
                client.submit_many("eu", _many(1, 2), session="s")
            assert error.value.definite and error.value.fields["accepted_transactions"] == 0
            later = client.background()
            pending = [later.append(table, _row(9)) for table in ("plain", "eu", "plain", "us")]
            with pytest.raises(GroupAwayError, match="missing: B") as error:
                later.close()
            assert error.value.definite
            ends = [one.exception() for one in pending]
            assert [type(one) for one in ends] == [type(None), GroupAwayError, *[type(None)] * 2]
            positions = [one.result().position for one in pending if one.exception() is None]
            assert positions == sorted(positions)
        found = call(f"{url}/v1/groups")
        assert [(one["name"], one["away"], one["takes_writes"]) for one in found] == [
            ("all", ["B"], False),
            ("eu", ["B"], False),
            ("us", [], True),
        ]
        warned = [one for one in call(f"{url}/v1/status")["warnings"] if "group" in one["code"]]
        assert any("all of its sites are away (B)" in one["text"] for one in warned)

    async def main() -> None:
        listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in "ABC"}
        ports = {name: one.getsockname()[1] for name, one in listeners.items()}
        async with AsyncExitStack() as stack:
            nodes, stops = {}, {}
            for name in "ABC":
                config = config_of(tmp_path, name, ports, **_EVICTING)
                stops[name] = await stack.enter_async_context(AsyncExitStack())
                node = serving(config, listeners[name])
                nodes[name] = await stops[name].enter_async_context(node)
            a = nodes["A"]
            await until(lambda: all(a.base.master.heard(other) for other in "BC"))
            await asyncio.to_thread(_make, a.config.master_url)
            await _alike(nodes)
            await stops["B"].aclose()
            # It waits for B, which is missed therefore.
            await asyncio.to_thread(write, a.config.master_url, "plain", 1)
            await until(lambda: set(a.base.master.view.members) == {"A", "C"})
            waits = asyncio.create_task(asyncio.to_thread(refused, a.config.master_url))
            for table in ("us", "plain"):
                told = await asyncio.to_thread(write, a.config.master_url, table, 2)
                assert told.outcome == "committed"
            await waits

    asyncio.run(main())


_EVICTING: dict[str, Any] = {
    "eviction": "auto",
    "suspect_timeout": 1,
    "start_timeout": 3,
    "synchro_timeout": 1,
}


@contextmanager
def _refused(kind: type[TxLogError], text: str) -> Iterator[None]:
    with pytest.raises(kind, match=text) as error:
        yield
    assert error.value.definite


def test_what_cannot_be_is_refused_with_a_way_out(tmp_path: Path) -> None:
    def work(url: str) -> None:
        with Client(url) as client:
            for sites, copies, text in (
                ((), 1, "cannot have 0 sites"),
                (("A",), 2, "cannot have 2 copies: its sites are A"),
                (("A", "Z"), 1, "names site 'Z', which carries no data"),
            ):
                with _refused(InvalidRequestError, text):
                    create_group(Http(url), "new", sites, copies)
            with _refused(InvalidNameError, "cannot name a group"):
                create_group(Http(url), "n w", ("A",))
            with _refused(NameTakenError, "'eu' of sites B with 1 copies"):
                create_group(Http(url), "eu", ("A",))
            with _refused(InvalidRequestError, "changes nothing"):
                alter_group(Http(url), "eu")
            with _refused(UnknownGroupError, "no group 'none'"):
                alter_group(Http(url), "none", copies=1)
            with _refused(InvalidRequestError, "and keeps them"):
                value = Group(name="eu", sites=("A",)).to_value()
                client.alter_table(GROUPS, properties={"group.eu": value})
            with _refused(InvalidRequestError, "cannot be removed"):
                client.alter_table(GROUPS, properties={"group.eu": None})
            with _refused(InvalidRequestError, "says no group"):
                client.alter_table(GROUPS, properties={"group.eu": "[]"})
            with _refused(InvalidRequestError, "cannot be dropped"):
                client.drop_table(GROUPS)
            with _refused(UnknownGroupError, "no group 'none'"):
                client.create_table("t", {"id": "int"}, group="none")
            with _refused(InvalidRequestError, "stays in group 'eu'"):
                client.alter_table("eu", properties={"sparktxlog.group": "us"})
            with _refused(InvalidRequestError, "stays in no group"):
                client.alter_table("plain", properties={"sparktxlog.group": "us"})
            with _refused(InvalidRequestError, "the group has sites"):
                given = {"sparktxlog.group": "eu", "sparktxlog.sites": "A"}
                client.create_table("t", {"id": "int"}, properties=given)
            client.create_table("gone", {"id": "int"}, group="eu")
            client.drop_table("gone")
            with _refused(InvalidRequestError, "a dropped table of that name was in group 'eu'"):
                client.create_table("gone", {"id": "int"})
            with _refused(InvalidRequestError, "group 'us' has 2 sites, A, C"):
                client.append("us", _row(1), level="applied(3)")
            with _refused(InvalidRequestError, "group 'eu' has 1 sites, B"):
                client.submit_many("eu", _many(1, 2), level="applied(2)")

    async def on_nodes(nodes: Nodes) -> None:
        await asyncio.to_thread(work, nodes["A"].config.master_url)

    _with_groups(tmp_path, on_nodes)


def test_the_last_site_of_a_group_with_tables_stays(tmp_path: Path) -> None:
    """V15: nobody takes out by mistake what alone has some rows; what is in no table may go."""

    async def work(nodes: Nodes) -> None:
        url = nodes["A"].config.master_url
        members = MemberRoutes(nodes["A"])
        for act in (
            members.remove_peer("B", 30.0),
            members.replace_peer("B", 30.0, ReplacePeer(id="D", url="http://127.0.0.1:1")),
        ):
            with _refused(InvalidRequestError, "group 'eu' would be without sites: eu would be"):
                await act
        await asyncio.to_thread(_drop, url, "eu")
        line = next(one for one in nodes["A"].groups() if one["name"] == "eu")
        assert (line["tables"], line["dropped"]) == ([], ["eu"])
        await members.remove_peer("B", 60.0)
        await until(lambda: "B" not in nodes["A"].base.master.view.members)

    _with_groups(tmp_path, work)


def _drop(url: str, table: str) -> None:
    with Client(url) as client:
        client.drop_table(table)


def test_a_schema_belongs_to_a_group(tmp_path: Path) -> None:
    """V04: new tables of it do; a schema has one group, and copies may change."""

    def work(url: str) -> None:
        with Client(url) as client:
            alter_group(Http(url), "us", schemas=["Sales"])
            client.create_table("sales.orders", {"id": "bigint", "text": "string"})
            properties = dict(client.table("sales.orders").properties)
            assert properties == {"sparktxlog.group": "us", "sparktxlog.sites": "A,C"}
            client.create_table("sales.orders", {"id": "bigint", "text": "string"})
            assert client.append("sales.orders", _row(1)).outcome == "committed"
            with _refused(InvalidRequestError, "'sales' cannot belong to groups 'eu' and 'us'"):
                alter_group(Http(url), "eu", schemas=["sales"])
            assert alter_group(Http(url), "us", copies=1).copies == 1

    async def on_nodes(nodes: Nodes) -> None:
        await asyncio.to_thread(work, nodes["A"].config.master_url)

    _with_groups(tmp_path, on_nodes)


def test_a_repeat_is_known_and_other_content_is_refused(tmp_path: Path) -> None:
    def work(url: str) -> None:
        again: dict[str, Any] = {"transaction_id": "00000000-0000-4000-8000-000000000001"}
        with Client(url) as client:
            first = client.append("eu", _row(1), **again)
            assert client.append("eu", _row(1), **again).position == first.position
            with _refused(TxLogError, "00000000-0000-4000-8000-000000000001"):
                client.append("eu", _row(2), **again)

    async def on_nodes(nodes: Nodes) -> None:
        await asyncio.to_thread(work, nodes["C"].config.master_url)

    _with_groups(tmp_path, on_nodes)


def test_the_commands_make_change_and_show_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(url: str) -> None:
        def told(*arguments: str, code: int = 0) -> str:
            found = invoke(monkeypatch, *arguments, "--url", url)
            said = capsys.readouterr()
            assert found == code, said.err
            return said.out + said.err

        assert "B, C" in told("group", "create", "eu", "--sites", "B,C", "--copies", "2")
        assert "cannot have 0 sites" in told("group", "create", "none", code=2)
        told("table", "create", "t", "id bigint", "--group", "eu")
        assert "1 of 2 copies" in told("group", "alter", "eu", "--copies", "1")
        invoke(monkeypatch, "group", "list", "--json", "--url", url)
        (line,) = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (line["name"], line["copies"], line["tables"]) == ("eu", 1, ["t"])
        assert "Tables: t." in told("group", "show", "eu")
        assert "no group 'x'" in told("group", "show", "x", code=1)

    async def main() -> None:
        async with cluster(tmp_path) as nodes:
            await asyncio.to_thread(work, nodes["A"].config.master_url)

    asyncio.run(main())
