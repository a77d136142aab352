"""Spans of runs: which are made, what they say, and that nodes agree on their ids and sampling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.run_headers import header
from tests.support.span_collector import use_opentelemetry

from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.operation import RunFacts, Touch
from sparktxlog.protocol.messages.actions import TellAccepted, TellOrdered, TellRejected
from sparktxlog.protocol.messages.events import PayloadArrived, PostReceived, RunSubmitted
from sparktxlog.protocol.messages.posts import MergeBase, Post, QueueEntry, Rejection
from sparktxlog.runtime.run_traces import GivenIds, RunTraces

FIRST, SECOND = bytes(range(1, 17)), bytes(range(17, 33))
FACTS = RunFacts(
    n=2, ids=FIRST + SECOND, touches=(Touch(table="orders", schema_version=1, txs=(0, 1)),)
)
RUN = header(1, 100, n=2, origin="A")


class Traced:
    """The traces of one node, and its spans by name."""

    def __init__(self, node_id: str, sampler: Any = None) -> None:
        use_opentelemetry()
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        ids: Any = GivenIds()
        provider = TracerProvider(sampler=sampler, id_generator=ids, shutdown_on_exit=False)
        self._kept = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.traces = RunTraces(node_id, provider, ids)

    def spans(self) -> dict[str, Any]:
        return {
            span.name.removeprefix("sparktxlog "): span for span in self._kept.get_finished_spans()
        }


def submitted(ticket: int = 1) -> RunSubmitted:
    return RunSubmitted(
        ticket=ticket, digest=RUN.digest, size_bytes=10, staged_bytes=0, facts=FACTS
    )


def entry(*rejected: int, code: str = "conflict") -> QueueEntry:
    return QueueEntry(
        position=7,
        header=RUN,
        previous_hash=bytes(32),
        chain_hash=bytes(32),
        rejections=tuple(Rejection(index=i, code=code, text="no") for i in rejected),
    )


def carried_out(at: Traced, *rejected: int) -> None:
    """Take the run through a node that its clients use."""
    at.traces.saw([submitted()])
    at.traces.follow(TellAccepted(ticket=1, header=RUN), ["B"])
    at.traces.follow(TellOrdered(entries=(entry(*rejected),)), ["B"])
    at.traces.published(8)


@pytest.mark.parametrize(
    ("rejected", "outcome"), [((), "committed"), ((1,), "partly rejected"), ((0, 1), "rejected")]
)
def test_a_run_says_what_became_of_it(rejected: tuple[int, ...], outcome: str) -> None:
    at = Traced("A")
    carried_out(at, *rejected)
    root = at.spans()["run"]
    assert root.attributes["sparktxlog.outcome"] == outcome
    assert root.attributes["sparktxlog.run"] == "A/1/1"
    assert root.context.trace_id == int.from_bytes(FIRST) and root.parent is None
    assert set(at.spans()) == {"run", "accept", "order", "publish"}


def test_a_prepared_transaction_is_not_told_as_rejected() -> None:
    at = Traced("A")
    at.traces.saw([submitted()])
    at.traces.follow(TellAccepted(ticket=1, header=RUN), [])
    at.traces.follow(TellOrdered(entries=(entry(0, code="prepared"),)), [])
    at.traces.published(8)
    assert at.spans()["run"].attributes["sparktxlog.outcome"] == "prepared"


def test_a_peer_adds_to_the_trace_of_the_origin() -> None:
    at, peer = Traced("A"), Traced("B")
    carried_out(at)
    peer.traces.saw([PayloadArrived(header=RUN, facts=FACTS)])
    peer.traces.held(RUN)
    peer.traces.follow(TellOrdered(entries=(entry(),)), ["A"])
    peer.traces.published(7)  # not all of it
    assert set(peer.spans()) == {"receive", "order"}
    peer.traces.published(8)
    assert set(peer.spans()) == {"receive", "order", "publish"}
    root = at.spans()["run"].context
    for span in peer.spans().values():
        assert (span.parent.trace_id, span.parent.span_id) == (root.trace_id, root.span_id)


def test_a_post_ends_when_the_peer_holds_the_run() -> None:
    at, base = Traced("A"), MergeBase()
    at.traces.saw([submitted()])
    at.traces.follow(TellAccepted(ticket=1, header=RUN), ["B"])
    post = Post(log_id="l", epoch=1, sender=NodeId("B"), round=1, base=base, counter=1, last_seq=0)
    for held, found in ((1, False), (2, True)):
        at.traces.saw([PostReceived(post=replace(post, acquired={"A": held}))])
        assert ("post" in at.spans()) is found


def test_a_refused_run_has_a_failed_root() -> None:
    at = Traced("A")
    at.traces.saw([submitted()])
    at.traces.follow(TellRejected(ticket=1, code="busy", text="too much"), [])
    root = at.spans()["run"]
    assert not root.status.is_ok and root.status.description == "busy: too much"


def test_all_nodes_keep_the_same_traces() -> None:
    use_opentelemetry()
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    least = int.from_bytes(FIRST[8:]) / 2**64
    for ratio, kept in ((least * 0.99, False), (least * 1.01, True)):
        at, peer = (
            Traced("A", ParentBasedTraceIdRatio(ratio)),
            Traced("B", ParentBasedTraceIdRatio(ratio)),
        )
        carried_out(at)
        peer.traces.saw([PayloadArrived(header=RUN, facts=FACTS)])
        peer.traces.held(RUN)
        assert (bool(at.spans()), bool(peer.spans())) == (kept, kept)
