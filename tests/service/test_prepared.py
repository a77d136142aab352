"""Prepared transactions between real nodes: who marks, what is decided, and who is told (P35)."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.service.local_nodes import cluster, config_of, serving, until
from tests.support.command_line import invoke
from tests.support.node_processes import HttpProblem, call

from sparktxlog import Client
from sparktxlog.codec.submits.mark_requests import mark_id
from sparktxlog.errors import (
    InvalidRequestError,
    NotParticipantError,
    NotPreparedError,
    RolledBackError,
)
from sparktxlog.model.transactions.operation import Mark
from sparktxlog.runtime import node_status
from sparktxlog.runtime.commit import acceptance
from sparktxlog.runtime.node import Node

X, Y, Z = (f"00000000-0000-4000-8000-00000000000{number}" for number in range(3))
CREATE = {"kind": "create_table", "table": "t", "columns": [{"name": "id", "type": "bigint"}]}


def _append(*ids: int) -> dict[str, Any]:
    return {"kind": "append", "table": "t", "rows": [{"id": one} for one in ids]}


def _commit(url: str, *operations: dict[str, Any], **more: Any) -> Any:
    return call(f"{url}/v1/transactions", {"operations": list(operations), **more})


def _prepare(url: str, *participants: str, one: str = X, valid_s: float = 600, **more: Any) -> Any:
    """Prepare a transaction that appends two rows."""
    body = {"transaction_id": one, "participants": participants, **more}
    until_us = int((time.time() + valid_s) * 1_000_000)
    return _commit(url, _append(7, 8), valid_until=until_us, **body)


def _mark(url: str, participant: str, *, yes: bool = True, one: str = X, query: str = "") -> Any:
    body = {"participant": participant, "yes": yes}
    return call(f"{url}/v1/transactions/{one}/marks{query}", body)


def _found(url: str, one: str = X, wait_s: float = 0) -> Any:
    return call(f"{url}/v1/transactions/{one}?timeout={wait_s}")


def _refused(work: Callable[[], Any]) -> tuple[str, bool]:
    with pytest.raises(HttpProblem) as refused:
        work()
    return refused.value.document["title"], refused.value.document["definite"]


def _effects(segments: list[Any]) -> set[tuple[str, int]]:
    """Return kinds and positions, as far as there are no more than two of one kind."""
    effects = [one for found in segments for one in found.effects]
    return {(one.kind, position) for one in effects for position in (one.first, one.last)}


def test_participants_at_two_sites_decide(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a, b = (nodes[name].config.master_url for name in "AB")
            await asyncio.to_thread(_story, a, b)
            for node in nodes.values():
                await until(lambda node=node: node.base.published.value >= 5)
                _, segments = await node.segments(0, 0, 99)
                assert _effects(segments) == {("create_table", 1), ("append", 3), ("append", 5)}

    def _story(a: str, b: str) -> None:
        _commit(a, CREATE)
        told = _prepare(a, "p", "q")
        assert (told["outcome"], told["position"], told["prepared_at"]) == ("prepared", 2, 2)
        assert told["rejections"] == []
        (listed,) = call(f"{a}/v1/prepared")
        assert (listed["transaction_id"], listed["missing"]) == (X, ["p", "q"])
        assert listed["origin"] == "A"
        assert _commit(b, _append(1))["position"] == 3, "nobody waits"
        assert _mark(b, "p", query="?after=2")["outcome"] == "committed"
        again = _mark(a, "p")
        assert (again["position"], again["outcome"]) == (4, "committed"), "it is a repeat"
        assert _found(b)["outcome"] == "prepared"
        assert _mark(a, "q")["position"] == 5
        for url in (a, b):
            told = _found(url, wait_s=60)
            assert (told["outcome"], told["position"], told["prepared_at"]) == ("committed", 5, 2)
            assert call(f"{url}/v1/prepared") == []
        assert _prepare(b, "p", "q") | {"rows": None} == _found(b)
        with pytest.raises(HttpProblem) as refused:
            _mark(b, "q", yes=False)
        assert refused.value.document["fields"]["outcome"] == "committed"

    asyncio.run(main())


def test_clients_prepare_mark_and_ask(tmp_path: Path) -> None:
    """Also where a node of theirs is gone: a mark may be said again anywhere."""

    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a, b = (nodes[name].config.master_url for name in "AB")
            await asyncio.to_thread(_by_clients, a, ["http://127.0.0.1:9", b])

    def _by_clients(a: str, others: list[str]) -> None:
        until = datetime.now(UTC) + timedelta(minutes=10)
        with Client(a) as first, Client(others) as second:
            first.create_table("t", {"id": "bigint"})
            with first.transaction(participants=["p", "q"], valid_until=until) as t:
                t.append("t", [{"id": 1}])
            assert (t.receipt.outcome, t.receipt.prepared_at) == ("prepared", 2)
            second.after(t.receipt)
            for _ in range(2):
                assert second.mark(t.id, "p", yes=True).position == 3
            assert second.decision(t.id, timeout=0.1).outcome == "prepared"
            first.mark(t.id, "q", yes=True)
            told = second.decision(t.id)
            assert (told.outcome, told.position, told.prepared_at) == ("committed", 4, 2)
            with pytest.raises(NotPreparedError) as refused:
                first.mark(t.id, "q", yes=False)
            assert refused.value.fields["outcome"] == "committed"
            with first.transaction(participants=["p"], valid_until=until) as t:
                t.append("t", [{"id": 2}])
            with pytest.raises(NotParticipantError):
                first.mark(t.id, "q", yes=True)
            first.mark(t.id, "p", yes=False)
            with pytest.raises(RolledBackError, match="participant 'p' said NO"):
                first.decision(t.id)
            with pytest.raises(InvalidRequestError):
                first.transaction(participants=["p", "p"])

    asyncio.run(main())


def test_a_no_is_told_to_who_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            url = nodes["A"].config.master_url
            await asyncio.to_thread(_commit, url, CREATE)
            await asyncio.to_thread(_prepare, url, "p", "q")
            waits = asyncio.create_task(asyncio.to_thread(_found, url, wait_s=60))
            await asyncio.to_thread(_mark, url, "p")
            await asyncio.to_thread(_mark, url, "p", yes=False)
            told = await waits
            assert (told["outcome"], told["position"]) == ("rejected", 4)
            assert [one["code"] for one in told["rejections"]] == ["rolled-back"]

    asyncio.run(main())


def test_what_cannot_be_prepared_or_marked_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            await asyncio.to_thread(_refusals, nodes["A"].config.master_url)

    def _refusals(url: str) -> None:
        _commit(url, CREATE)
        bad = ("invalid-request", True)
        assert _refused(lambda: _commit(url, _append(1), participants=["p"])) == bad
        for names in ([], ["p", "p"], ["a b"], [f"p{n}" for n in range(17)]):
            assert _refused(lambda names=names: _prepare(url, *names)) == bad
        assert _refused(lambda: _prepare(url, "p", session="s")) == bad
        other = {**CREATE, "table": "u"}
        until_us = int((time.time() + 60) * 1_000_000)
        more = {"participants": ["p"], "valid_until": until_us}
        assert _refused(lambda: _commit(url, other, **more)) == bad
        assert _refused(lambda: _mark(url, "p")) == ("not-prepared", True)
        _prepare(url, "p")
        assert _refused(lambda: _mark(url, "q")) == ("not-a-participant", True)
        assert _refused(lambda: _mark(url, "a b")) == bad
        # Somebody took its id: it would be "committed", and nothing marked.
        mark = mark_id(Mark(transaction_id=uuid.UUID(X).bytes, participant="p", yes=True))
        _commit(url, _append(), transaction_id=str(uuid.UUID(bytes=mark)))
        assert _refused(lambda: _mark(url, "p")) == ("id-taken", True)
        assert [one["position"] for one in call(f"{url}/v1/prepared")] == [2]

    asyncio.run(main())


def test_a_full_log_refuses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = config_of(tmp_path, "A", {"A": listener.getsockname()[1]})
            async with serving(config, listener.dup()):
                url = config.master_url
                await asyncio.to_thread(_commit, url, CREATE)
                refused = await asyncio.to_thread(_refused, lambda: _prepare(url, "p"))
                assert refused == ("too-many-prepared", True)

    monkeypatch.setattr(acceptance, "MOST_UNDECIDED", 0)
    asyncio.run(main())


def test_marks_of_a_synchronous_one_are_synchronous(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P34: so its decision survives what its rows survive."""

    async def main() -> None:
        async with cluster(tmp_path, "AB", synchro_quorum="2") as nodes:
            a, b = nodes.values()
            await asyncio.to_thread(_commit, a.config.master_url, CREATE)
            await asyncio.to_thread(_prepare, a.config.master_url, "p", is_sync=True)
            await until(lambda: b.base.master.undecided)
            assert [one.holders for one in b.base.master.undecided] == [2]
            holders, submit = [], b.core.cycle.submit_single

            def spied(transaction: Any, acceptance: Any, needed: int, *more: Any) -> Any:
                holders.append(needed)
                return submit(transaction, acceptance, needed, *more)

            monkeypatch.setattr(b.core.cycle, "submit_single", spied)
            await asyncio.to_thread(_mark, b.config.master_url, "p")
            assert holders == [2]

    asyncio.run(main())


def test_it_expires_where_nobody_else_commits(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a, b = (nodes[name].config.master_url for name in "AB")
            await asyncio.to_thread(_commit, a, CREATE)
            await asyncio.to_thread(_prepare, a, "p", valid_s=1)
            for url in (a, b):
                told = await asyncio.to_thread(_found, url, wait_s=60)
                assert [one["code"] for one in told["rejections"]] == ["expired-transaction"]

    asyncio.run(main())


def test_undecided_ones_survive_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = config_of(tmp_path, "A", {"A": listener.getsockname()[1]})

            async def with_node(work: Callable[[str], Any]) -> Node:
                async with AsyncExitStack() as stack:
                    node = await stack.enter_async_context(serving(config, listener.dup()))
                    await asyncio.to_thread(work, config.master_url)
                return node

            await with_node(_first)
            await with_node(lambda url: _mark(url, "q"))
            await with_node(_last)

    def _first(url: str) -> None:
        _commit(url, CREATE)
        _prepare(url, "p", "q")
        _prepare(url, "p", one=Y)
        _mark(url, "p")

    def _last(url: str) -> None:
        told = _found(url)
        assert (told["outcome"], told["position"], told["prepared_at"]) == ("committed", 5, 2)
        (listed,) = call(f"{url}/v1/prepared")
        assert (listed["transaction_id"], listed["origin"]) == (Y, "A")

    asyncio.run(main())


def test_an_open_transaction_is_prepared_and_decided_by_an_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            await asyncio.to_thread(_story, nodes["A"].config.master_url)

    def _told(*arguments: str) -> Any:
        assert invoke(monkeypatch, "tx", *arguments, "--json") == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    def _story(url: str) -> None:
        _commit(url, CREATE)
        path, soon = f"{url}/v1/open-transactions", int((time.time() + 600) * 1_000_000)
        assert _refused(lambda: call(path, {"participants": ["p"]})) == ("invalid-request", True)
        other = f"{path}/{Z}"
        call(path, {"transaction_id": Z, "participants": ["p"], "valid_until": soon})
        call(f"{other}/operations", {"operations": [CREATE | {"table": "u"}]})
        assert _refused(lambda: call(f"{other}/commit", {})) == ("invalid-request", True)
        call(path, {"transaction_id": Y, "participants": ["p", "q"], "valid_until": soon})
        call(f"{path}/{Y}/operations", {"operations": [_append(1)]})
        assert call(f"{path}/{Y}/commit", {})["outcome"] == "prepared"
        _prepare(url, "p")
        monkeypatch.setenv("SPARKTXLOG_URL", url)
        listed = _told("prepared")
        assert [one["missing"] for one in listed] == [["p", "q"], ["p"]]
        for most in (1, 20):
            monkeypatch.setattr(node_status, "_MOST_LISTED", most)
            status = call(f"{url}/v1/status")
            assert (status["undecided"], status["prepared"]) == (2, listed[:most])
        assert _told("mark", X, "p", "--no")["rejections"][0]["code"] == "rolled-back"
        assert _told("mark", Y, "p", "--yes")["outcome"] == "prepared"
        last = _told("mark", Y, "q", "--yes")
        assert (last["outcome"], last["prepared_at"]) == ("committed", 2)
        assert _told("show", Y) == last
        assert _told("prepared") == []
        assert [one for run in call(f"{url}/v1/queue") for one in run["decided"]] == [
            {"index": 0, "transaction_id": X, "prepared_at": 3, "code": "rolled-back"},
            {"index": 0, "transaction_id": Y, "prepared_at": 2, "code": None},
        ]
        assert invoke(monkeypatch, "tx", "mark", Y, "q", "--no") == 1
        assert "[not-prepared]" in capsys.readouterr().err

    asyncio.run(main())
