"""A collector of OpenTelemetry on loopback: takes spans by OTLP over HTTP, and keeps them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

_INSTALLED = Path(__file__).parents[2] / ".venv" / "test-tracing"


def use_opentelemetry() -> Path:
    """Make the packages of the extra `otel` importable; return where they are, or skip the test.

    A skip fails a run with CI=true.
    """
    given = os.environ.get("SPARKTXLOG_TEST_TRACING")
    packages = Path(given) if given else _INSTALLED
    if not given and not (packages / ".installed").exists():
        pytest.skip("OpenTelemetry's SDK is not installed: make test does it")
    if str(packages) not in sys.path:
        sys.path.append(str(packages))
    return packages


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSpan:
    """A span as a collector got it; ids in hexadecimal, no parent = empty."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent: str
    seconds: float
    attributes: dict[str, Any]
    #: Trace and span id of each link.
    links: tuple[tuple[str, str], ...]
    failed: str


class SpanCollector(ThreadingHTTPServer):
    """Listens at a free port of loopback."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[FoundSpan] = []

    @property
    def url(self) -> str:
        """What `tracing-endpoint` takes."""
        return f"http://127.0.0.1:{self.server_port}"

    def named(self, name: str, node: str | None = None) -> list[FoundSpan]:
        """Return the spans with a name, of one node or of all."""
        return [
            one
            for one in self.spans
            if one.name == name and node in (None, one.attributes["sparktxlog.node"])
        ]

    def take(self, body: bytes) -> None:
        """Keep the spans of a request."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = {one.key: _value(one.value) for one in resource.resource.attributes}
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                self.spans.append(
                    FoundSpan(
                        name=span.name,
                        service=about["service.name"],
                        trace_id=span.trace_id.hex(),
                        span_id=span.span_id.hex(),
                        parent=span.parent_span_id.hex(),
                        seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                        attributes={one.key: _value(one.value) for one in span.attributes},
                        links=tuple((one.trace_id.hex(), one.span_id.hex()) for one in span.links),
                        failed=span.status.message if span.status.code == 2 else "",
                    )
                )


class _Handler(BaseHTTPRequestHandler):
    server: SpanCollector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        assert self.path == "/v1/traces"
        self.server.take(body)
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def span_collector() -> Iterator[SpanCollector]:
    """Run a collector; skip the test where OpenTelemetry is not installed."""
    use_opentelemetry()
    with SpanCollector() as collector:
        thread = threading.Thread(target=collector.serve_forever, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()
