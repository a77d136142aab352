"""Spans along a transaction's way, as a collector of OpenTelemetry gets them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.service.local_nodes import cluster, config_of
from tests.support.span_collector import FoundSpan, span_collector

from sparktxlog import Client, tracing
from sparktxlog.errors import MissingDependencyError, TxLogError
from sparktxlog.runtime.node import build_node

_PARENT = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


def trace_of(transaction: str) -> str:
    return transaction.replace("-", "")


def commit(url: str, *, as_child: bool) -> str:
    """Commit a row, in a span of the caller's or in none; return the transaction's id."""
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

    ids = (int(text, 16) for text in _PARENT)
    span = NonRecordingSpan(SpanContext(*ids, is_remote=False, trace_flags=TraceFlags(1)))

    def work() -> str:
        with Client(url) as client, client.transaction(level="ordered") as t:
            t.append("orders", [{"id": 1}])
        assert t.receipt.transaction_id is not None
        return t.receipt.transaction_id

    if not as_child:
        return work()
    with use_span(span):
        return work()


def prepare(url: str) -> None:
    with Client(url) as client:
        client.create_table("orders", "id bigint", keys=["id"])


def refuse(url: str) -> str:
    """Submit what the node refuses; return the error's code."""
    with Client(url) as client, pytest.raises(TxLogError) as caught:
        client.append("orders", [{"id": "no number"}])
    return caught.value.code


def test_spans_of_a_transaction_at_two_nodes(tmp_path: Path) -> None:
    async def main(url: str) -> tuple[str, str]:
        async with cluster(tmp_path, "AB", tracing_endpoint=url) as nodes:
            at = nodes["A"].config.master_url
            await asyncio.to_thread(prepare, at)
            plain = await asyncio.to_thread(commit, at, as_child=False)
            child = await asyncio.to_thread(commit, at, as_child=True)
            for node in nodes.values():
                await node.published(node.base.ordered.value, 30)
            return plain, child

    with span_collector() as collector:
        plain, child = asyncio.run(main(collector.url))
    for transaction in (plain, child):
        trace = [one for one in collector.spans if one.trace_id == trace_of(transaction)]
        (root,) = [one for one in trace if not one.parent]
        steps = {(one.name, one.attributes["sparktxlog.node"]): one for one in trace}
        wanted = {("run", "A"), ("accept", "A"), ("post", "A"), ("acquire", "A"), ("order", "A")}
        wanted |= {("publish", "A"), ("receive", "B"), ("order", "B"), ("publish", "B")}
        wanted |= {("commit", "A")} if transaction == plain else set()
        assert set(steps) == {(f"sparktxlog {name}", node) for name, node in wanted}
        assert all(one.parent == root.span_id for one in trace if one is not root)
        assert all(0 <= one.seconds < 30 for one in trace)
        assert root.name == "sparktxlog run" and root.service == "sparktxlog-node"
        said = {name.removeprefix("sparktxlog."): v for name, v in root.attributes.items()}
        assert said["transaction"] == transaction and said["tables"] == ["orders"]
        assert said["outcome"] == "committed" and said["epoch"] == 1 and said["transactions"] == 1
        assert said["position"] == steps["sparktxlog order", "B"].attributes["sparktxlog.position"]
        assert steps["sparktxlog post", "A"].attributes["sparktxlog.peer"] == "B"
        assert steps["sparktxlog receive", "B"].attributes["sparktxlog.origin"] == "A"
    of_client: list[FoundSpan] = [one for one in collector.spans if one.trace_id == _PARENT[0]]
    (request,) = of_client
    assert request.name == "sparktxlog commit" and request.parent == _PARENT[1]
    (root,) = [o for o in collector.named("sparktxlog run") if o.trace_id == trace_of(child)]
    assert request.links == ((root.trace_id, root.span_id),)
    assert root.links == ((request.trace_id, request.span_id),)
    assert request.attributes["sparktxlog.level"] == "ordered"


def test_what_is_not_asked_for_is_not_traced(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            assert nodes["A"].base.traces is None

    asyncio.run(main())


def test_a_collector_that_does_not_answer_delays_nothing(tmp_path: Path) -> None:
    async def main(url: str) -> float:
        async with cluster(tmp_path, "A", tracing_endpoint=url) as nodes:
            at = nodes["A"].config.master_url
            await asyncio.to_thread(prepare, at)
            began = time.monotonic()
            await asyncio.to_thread(commit, at, as_child=False)
            assert time.monotonic() - began < tracing._TIMEOUT_S
            began = time.monotonic()
        return time.monotonic() - began

    with span_collector() as collector:
        url = collector.url
    assert asyncio.run(main(url)) < 10


def test_the_setting_without_the_extra_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace", None)

    async def main() -> None:
        build_node(config_of(tmp_path, "A", {"A": 7070}, tracing_endpoint="http://127.0.0.1:9"))

    with pytest.raises(MissingDependencyError, match="tracing-endpoint") as caught:
        asyncio.run(main())
    assert "sparktxlog[otel]" in caught.value.hint
