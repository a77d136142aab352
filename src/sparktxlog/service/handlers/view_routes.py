"""`GET /v1/views/NAME`: a view of the state as JSON, Arrow or CSV."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv
from starlette.requests import Request
from starlette.responses import Response

from sparktxlog.codec.state_views import OF_THE_LOG
from sparktxlog.errors import InvalidRequestError
from sparktxlog.runtime.node import Node
from sparktxlog.runtime.view_rows import row_dicts
from sparktxlog.service.routing.declared_route import ARROW, CSV, JSON, get
from sparktxlog.service.routing.endpoints import RouteHandlers
from sparktxlog.service.routing.query import Query, whole

VIEWING = (
    get(
        "/v1/views/{view}",
        "view",
        "Rows of a view of the state, as JSON, Arrow or CSV",
        list[dict[str, Any]],
        Query("format", "json, arrow or csv; without it the header Accept says which.", ""),
        whole("after", "Of queue: after this position. Of lag: after this time, microseconds."),
        whole(
            "limit", "Rows at most; default: all, of queue and lag the last 1,000.", high=100_000
        ),
        other_types=(ARROW, CSV),
        at_witness=True,
        before_log=True,
        description="Views are masters, workers, incoming, queue and others: docs/views.md "
        "has all of them with their columns.",
    ),
)


class ViewRoutes(RouteHandlers):
    """One method per route."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def view(
        self, request: Request, view: str, format_: str, after: int | None, limit: int | None
    ) -> Response:
        kind = _media_type(format_, request.headers.get("accept", ""))
        if view in OF_THE_LOG:
            self._node.membership.joining.check_knows_log()
        table = await self._node.views.table(view, after=after, limit=limit)
        body = await self._node.base.run_blocking(_FORMATS[kind], table)
        return Response(body, media_type=kind)


def _media_type(name: str, accepted: str) -> str:
    """Return the media type that a request asks for; the query goes before the header."""
    if name:
        if name not in _NAMES:
            raise InvalidRequestError(
                f"format is {name[:40]!r}, expected one of {', '.join(_NAMES)}",
                field="format",
                value=name[:40],
            )
        return _NAMES[name]
    return next((kind for kind in (ARROW, CSV) if kind in accepted), JSON)


def _json(table: pa.Table) -> bytes:
    return msgspec.json.encode(row_dicts(table))


def _arrow(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _csv(table: pa.Table) -> bytes:
    """Return a table as CSV: lists, structs and maps as JSON."""
    rows = row_dicts(table) if any(pa.types.is_nested(kind) for kind in table.schema.types) else []
    for place, field in enumerate(table.schema):
        if pa.types.is_nested(field.type):
            values = [row[field.name] for row in rows]
            texts = [None if one is None else msgspec.json.encode(one).decode() for one in values]
            table = table.set_column(place, field.name, pa.array(texts, pa.string()))
    sink = io.BytesIO()
    pyarrow.csv.write_csv(table, sink)
    return sink.getvalue()


_NAMES = {"json": JSON, "arrow": ARROW, "csv": CSV}
_FORMATS: dict[str, Callable[[pa.Table], bytes]] = {JSON: _json, ARROW: _arrow, CSV: _csv}
