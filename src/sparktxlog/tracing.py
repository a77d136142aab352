"""OpenTelemetry: where spans go, and which span a request belongs to.

Nothing of it is imported unless it is asked for: by a setting, by the standard variables `OTEL_…`,
or by a program that traces itself.  docs/node-pages.md says what is traced.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sparktxlog.errors import MissingDependencyError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_log = logging.getLogger("sparktxlog")

#: The name of the instrumentation, and the prefix of its attributes.
SCOPE = "sparktxlog"
#: The standard variables that name a collector.
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_TIMEOUTS = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
#: Seconds for a request to the collector, and so for the end of a program whose collector is away;
#: OpenTelemetry's own default is 10.
_TIMEOUT_S = 3.0
_INSTALL = "Install the extra: pip install 'sparktxlog[otel]'."


def span_provider(
    service: str, instance: str, endpoint: str | None = None, id_generator: Any = None
) -> TracerProvider | None:
    """Return what sends spans to a collector, in a thread of its own; None = nobody asked for it.

    Args:
        service: `service.name`, unless `OTEL_SERVICE_NAME` names another one.
        endpoint: Base URL of the collector; default: what `OTEL_EXPORTER_OTLP_ENDPOINT` says.
        id_generator: Makes the ids of spans; default: random ones.

    Raises:
        MissingDependencyError: `endpoint` is given, and the extra is not installed (definite).
    """
    environ = os.environ
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if environ.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    if endpoint is None and not any(environ.get(name) for name in _ENDPOINTS):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        if endpoint is not None:
            raise MissingDependencyError(
                f"tracing-endpoint is {endpoint}, and OpenTelemetry cannot be imported: {error}",
                hint=_INSTALL,
            ) from error
        _log.warning("OTEL_… names a collector, but there are no traces: %s. %s", error, _INSTALL)
        return None
    known = {"service.name": service, "service.instance.id": instance}
    if environ.get("OTEL_SERVICE_NAME"):
        del known["service.name"]
    provider = TracerProvider(resource=Resource.create(known), id_generator=id_generator)
    exporter = OTLPSpanExporter(
        endpoint=None if endpoint is None else f"{endpoint}/v1/traces",
        timeout=None if any(environ.get(name) for name in _TIMEOUTS) else _TIMEOUT_S,
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def current_trace() -> dict[str, str]:
    """Return the headers that name the caller's current span (W3C), none without one."""
    if "opentelemetry.trace" not in sys.modules:
        return {}  # so there is no span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers)
    return headers


@contextmanager
def traced_step(name: str, attributes: Mapping[str, Any]) -> Iterator[None]:
    """Make a step a span of the program's own tracing, if it has any."""
    if "opentelemetry.trace" not in sys.modules:
        yield
        return
    from opentelemetry.trace import get_tracer

    named = {f"{SCOPE}.{key}": value for key, value in attributes.items()}
    with get_tracer(SCOPE).start_as_current_span(name, attributes=named):
        yield


@contextmanager
def traced_program(service: str, instance: str) -> Iterator[None]:
    """Trace a program of sparktxlog's own, such as a worker, if the variables ask for it."""
    provider = span_provider(service, instance)
    if provider is None:
        yield
        return
    from opentelemetry.trace import set_tracer_provider

    set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()
