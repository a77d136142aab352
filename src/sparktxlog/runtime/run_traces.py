"""Spans along a transaction's way at this node: accepted, held by peers, ordered, published.

A run's trace has the id of its first transaction as trace id, so all nodes add to one trace and
send each other nothing for it.  The span id of its root follows from that id, too.  Each step
becomes a span once it is over: until then only times are kept.

A client's request is a span in the client's own trace if it sent a `traceparent`, with a link to
the run; else it is part of the run's trace.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import time_ns
from typing import TYPE_CHECKING, Any

from sparktxlog.config import NodeConfig
from sparktxlog.errors import TxLogError
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.model.transactions.receipt import Level, Receipt
from sparktxlog.protocol.messages.actions import (
    Action,
    TellAccepted,
    TellAcquired,
    TellOrdered,
    TellRejected,
)
from sparktxlog.protocol.messages.events import Event, PayloadArrived, PostReceived, RunSubmitted
from sparktxlog.protocol.messages.posts import Post, QueueEntry, RunHeader
from sparktxlog.runtime.commit.receipts import PREPARED
from sparktxlog.storage.journal.waiting_ids import RunKey, run_key
from sparktxlog.tracing import SCOPE, span_provider

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link, Span, SpanContext

#: Most runs that are followed at a time; then the oldest is left out.
_MOST_RUNS = 4_096
#: Most tables, and clients' spans, that a span names.
_MOST_NAMED = 32

#: Headers `traceparent` and `tracestate` of the request that is answered.
_of_client: ContextVar[Mapping[str, str] | None] = ContextVar("_of_client", default=None)


@dataclass(slots=True, eq=False)
class _FollowedRun:
    """A run on its way; times in nanoseconds since 1970, 0 = not yet."""

    first_id: bytes
    n: int
    tables: tuple[str, ...]
    began: int
    #: Of its root span, which peers name as parent too.
    context: Context
    header: RunHeader | None = None
    durable: int = 0
    acquired: int = 0
    ordered: int = 0
    entry: QueueEntry | None = None
    #: Spans of clients that submitted it.
    links: list[Link] = field(default_factory=list)


class GivenIds:
    """Gives random ids, and to the root of a run's trace those that follow from its transaction."""

    def __init__(self) -> None:
        self.given: SpanContext | None = None

    def generate_trace_id(self) -> int:
        """Return the id of a trace that begins."""
        return random.getrandbits(128) or 1 if self.given is None else self.given.trace_id

    def generate_span_id(self) -> int:
        """Return the id of a span."""
        return random.getrandbits(64) or 1 if self.given is None else self.given.span_id

    def is_trace_id_random(self) -> bool:
        """Return whether all bits of trace ids are random: those of transactions may not be."""
        return False


class RunTraces:
    """Follows the runs of a node; belongs to the event loop.

    Args:
        provider: Takes the spans; its sampler decides by a run's trace id, the same at all nodes
            with the same sampler.
        ids: Those of its spans.
    """

    def __init__(self, node_id: str, provider: TracerProvider, ids: GivenIds) -> None:
        self._node_id = node_id
        self._provider = provider
        self._sampler = provider.sampler
        self._tracer = provider.get_tracer(SCOPE)
        self._ids = ids
        #: Runs that the core did not answer yet, by ticket; and all others, which stay for a while.
        self._submitted: OrderedDict[int, _FollowedRun] = OrderedDict()
        self._runs: OrderedDict[RunKey, _FollowedRun] = OrderedDict()
        #: Peer → own runs that it does not hold yet, ascending by sequence number.
        self._awaited: dict[str, deque[_FollowedRun]] = {}
        #: Ordered and not published, ascending by position.
        self._unpublished: deque[_FollowedRun] = deque(maxlen=_MOST_RUNS)

    @classmethod
    def of(cls, config: NodeConfig) -> RunTraces | None:
        """Return the traces of a node; None = the settings ask for none.

        Raises:
            MissingDependencyError: The setting asks, and the extra is not installed (definite).
        """
        ids = GivenIds()
        provider = span_provider(
            "sparktxlog-node", config.node_id, config.tracing_endpoint, id_generator=ids
        )
        return None if provider is None else cls(config.node_id, provider, ids)

    def close(self) -> None:
        """Send what is left; takes seconds if the collector does not answer."""
        self._provider.shutdown()

    # -- what the node reports ---------------------------------------------------------------------

    def saw(self, events: Iterable[Event]) -> None:
        """Follow the events that were passed to the core."""
        for event in events:
            match event:
                case RunSubmitted():
                    if (run := self._begin(event.facts)) is not None:
                        _put(self._submitted, event.ticket, run)
                case PayloadArrived() if run_key(event.header) not in self._runs:
                    if (run := self._begin(event.facts)) is not None:
                        run.header = event.header
                        _put(self._runs, run_key(event.header), run)
                case PostReceived():
                    self._held_by_peer(event.post)

    def follow(self, action: Action, peers: Iterable[str]) -> None:
        """Follow what the core said of runs, after it is durable."""
        match action:
            case TellAccepted(header=RunHeader() as header):
                if (run := self._submitted.pop(action.ticket, None)) is not None:
                    self._accepted(run, header, peers)
            case TellAcquired():
                if (run := self._runs.get(run_key(action.header))) is not None:
                    run.acquired = time_ns()
                    self._emit(run, "acquire", run.durable, run.acquired)
            case TellOrdered():
                for entry in action.entries:
                    if (run := self._runs.get(run_key(entry.header))) is not None:
                        self._ordered(run, entry)
            case TellRejected():
                if (run := self._submitted.pop(action.ticket, None)) is not None:
                    self._end(run, time_ns(), "refused", f"{action.code}: {action.text}")

    def held(self, header: RunHeader) -> None:
        """Note that a peer's run is durable here."""
        if (run := self._runs.get(run_key(header))) is not None:
            run.durable = time_ns()
            self._emit(run, "receive", run.began, run.durable, origin=header.origin)

    def published(self, position: int) -> None:
        """Note that the queue is published up to a position."""
        now = time_ns()
        while self._unpublished:
            run = self._unpublished[0]
            assert run.entry is not None and run.header is not None, "it is ordered"
            if run.entry.end > position:
                return
            self._unpublished.popleft()
            self._emit(run, "publish", run.ordered, now)
            if run.header.origin == self._node_id:
                self._end(run, now, _outcome(run.entry))

    # -- requests ----------------------------------------------------------------------------------

    def note_client(self, headers: Mapping[str, str]) -> None:
        """Note which span the request that is answered belongs to, by its headers."""
        found = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        _of_client.set(found)

    async def commit(
        self, first_id: bytes, tables: Sequence[str], level: Level, work: Awaitable[Receipt]
    ) -> Receipt:
        """Await a submit, and make its span; errors as `work`."""
        began = time_ns()
        try:
            receipt = await work
        except TxLogError as error:
            self._answered(first_id, tables, level, began, None, error)
            raise
        self._answered(first_id, tables, level, began, receipt, None)
        return receipt

    def _answered(
        self,
        first_id: bytes,
        tables: Sequence[str],
        level: Level,
        began: int,
        receipt: Receipt | None,
        error: TxLogError | None,
    ) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import Link, SpanKind, get_current_span
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        run = self._run_of(receipt)
        context = TraceContextTextMapPropagator().extract(_of_client.get() or {}, Context())
        is_of_client = get_current_span(context).get_span_context().is_valid
        links = []
        if run is not None and is_of_client:
            links.append(Link(get_current_span(run.context).get_span_context()))
        elif run is not None:
            context = run.context
        said: dict[str, Any] = {
            "transaction": transaction_id_to_text(first_id),
            "tables": _names(tables),
            "asked_level": level.value,
        }
        if run is not None and run.header is not None:
            said["epoch"] = run.header.epoch
        if receipt is not None:
            said |= {
                "level": receipt.level and receipt.level.value,
                "position": receipt.position,
                "transactions": receipt.n,
                "outcome": receipt.outcome,
            }
        elif error is not None:
            said["outcome"] = error.code
        span = self._tracer.start_span(
            f"{SCOPE} commit",
            context=context,
            kind=SpanKind.SERVER,
            attributes=self._attributes(said),
            links=links,
            start_time=began,
        )
        if error is not None:
            _fail(span, str(error))
        if is_of_client and run is not None and len(run.links) < _MOST_NAMED:
            run.links.append(Link(span.get_span_context()))
        span.end()

    def _run_of(self, receipt: Receipt | None) -> _FollowedRun | None:
        if receipt is None or receipt.run is None:
            return None
        found = receipt.run
        return self._runs.get((found.origin, found.incarnation, found.seq))

    # -- runs --------------------------------------------------------------------------------------

    def _begin(self, facts: RunFacts) -> _FollowedRun | None:
        """Begin to follow a run; None = the sampler does not want it."""
        from opentelemetry.context import Context
        from opentelemetry.trace import NonRecordingSpan, set_span_in_context

        first_id = facts.ids[:16]
        root = _root_of(first_id)
        decided = self._sampler.should_sample(Context(), root.trace_id, f"{SCOPE} run")
        if not decided.decision.is_sampled() or not root.is_valid:
            return None
        return _FollowedRun(
            first_id=first_id,
            n=facts.n,
            tables=_names(
                [touch.table for touch in facts.touches]
                + [definition.name for _, definition in facts.creates]
                + [operation.name or operation.uuid for _, operation in facts.commits]
            ),
            began=time_ns(),
            context=set_span_in_context(NonRecordingSpan(root), Context()),
        )

    def _accepted(self, run: _FollowedRun, header: RunHeader, peers: Iterable[str]) -> None:
        run.header, run.durable = header, time_ns()
        _put(self._runs, run_key(header), run)
        self._emit(run, "accept", run.began, run.durable)
        for peer in peers:
            awaited = self._awaited.setdefault(peer, deque(maxlen=_MOST_RUNS))
            awaited.append(run)

    def _held_by_peer(self, post: Post) -> None:
        """End the posts of the runs that a peer now says it holds."""
        awaited = self._awaited.get(post.sender)
        held = post.acquired.get(self._node_id, 0)
        while awaited and (header := awaited[0].header) is not None and header.last <= held:
            run = awaited.popleft()
            self._emit(run, "post", run.durable, time_ns(), peer=post.sender)

    def _ordered(self, run: _FollowedRun, entry: QueueEntry) -> None:
        run.header, run.entry, run.ordered = entry.header, entry, time_ns()
        began = run.acquired or run.durable or run.began
        self._emit(run, "order", began, run.ordered, outcome=_outcome(entry))
        self._unpublished.append(run)

    def _emit(self, run: _FollowedRun, step: str, began: int, ended: int, **more: Any) -> None:
        """Make the span of one step of a run."""
        span = self._tracer.start_span(
            f"{SCOPE} {step}",
            context=run.context,
            attributes=self._attributes(_said(run) | more),
            start_time=began,
        )
        span.end(ended)

    def _end(self, run: _FollowedRun, ended: int, outcome: str, error: str = "") -> None:
        """Make the root of a run's trace, at its origin."""
        from opentelemetry.context import Context
        from opentelemetry.trace import get_current_span

        self._ids.given = get_current_span(run.context).get_span_context()
        span = self._tracer.start_span(
            f"{SCOPE} run",
            context=Context(),
            attributes=self._attributes(_said(run) | {"outcome": outcome}),
            links=run.links,
            start_time=run.began,
        )
        self._ids.given = None
        if error:
            _fail(span, error)
        span.end(ended)

    def _attributes(self, said: Mapping[str, Any]) -> dict[str, Any]:
        named = {f"{SCOPE}.{key}": value for key, value in said.items() if value is not None}
        return {f"{SCOPE}.node": self._node_id, **named}


def _root_of(first_id: bytes) -> SpanContext:
    """Return the root of a run's trace, the same at every node."""
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(
        trace_id=int.from_bytes(first_id),
        span_id=int.from_bytes(first_id[8:]),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


def _said(run: _FollowedRun) -> dict[str, Any]:
    """Return the attributes of all spans of a run."""
    header, entry = run.header, run.entry
    return {
        "transaction": transaction_id_to_text(run.first_id),
        "transactions": run.n,
        "tables": run.tables,
        "epoch": None if header is None else header.epoch,
        "run": None if header is None else "/".join(map(str, run_key(header))),
        "position": None if entry is None else entry.position,
    }


def _outcome(entry: QueueEntry) -> str:
    """Return what became of a run: all of it, some of it or none of it took effect."""
    if any(one.code == PREPARED for one in entry.rejections):
        return PREPARED  # it is alone in its run
    rejected = len(entry.rejections)
    if not rejected:
        return "committed"
    return "rejected" if rejected == entry.header.n else "partly rejected"


def _fail(span: Span, text: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_status(StatusCode.ERROR, text)


def _names(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(found))[:_MOST_NAMED]


def _put(found: OrderedDict[Any, _FollowedRun], key: Any, run: _FollowedRun) -> None:
    """Remember a run, and forget the oldest one of too many."""
    found[key] = run
    if len(found) > _MOST_RUNS:
        found.popitem(last=False)
