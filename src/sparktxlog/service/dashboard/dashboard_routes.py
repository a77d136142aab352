"""Routes of the dashboard: pages, their `.json` twins, and the events that inform a page of news.

Pages are made here, and work without scripts.  With them a page replaces its own content when the
node says that something has changed.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from importlib import resources
from time import monotonic
from typing import Any
from urllib.parse import quote

import jinja2
import msgspec
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from sparktxlog.errors import InvalidRequestError, NotFoundError, TxLogError
from sparktxlog.model.answers import StatusAnswer
from sparktxlog.model.shown import time_text
from sparktxlog.runtime.node import Node
from sparktxlog.service.auth import take_password
from sparktxlog.service.connections.bodies import Bodies
from sparktxlog.service.dashboard.dashboard_views import CELLS, DRAWN, DashboardViews, View
from sparktxlog.service.dashboard.plots import FIELD, shown
from sparktxlog.service.routing.declared_route import HTML, Route
from sparktxlog.service.routing.endpoints import (
    Door,
    RouteHandlers,
    json_response,
    problem_response,
)
from sparktxlog.service.routing.routes import DASHBOARD

#: Seconds between two looks at whether something changed; seconds for which a page gets events,
#: before it must ask again and show its token again.
_LOOK_S = 1.0
TOLD_S = 300.0
#: What only counts or measures time; a change of nothing else is no news.
_NO_NEWS = ("wall", "round", "empty_rounds", "counter", "clock_distance_us", "log_bytes", "busy")
#: Pages of a witness, which keeps no data.
_OF_WITNESS = ("overview", "epochs")
_MEDIA = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_JSON = ".json"
_ID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
#: What a command begins with, and its box; the whole box copies it, keys use the button.
_PROGRAM = "sparktxlog "
_COMMAND = Markup(
    '<span class="command"><code>{}</code><button type="button" aria-label="Copy the command">'
    "Copy</button></span>"
)


class PageDoor(Door):
    """Door of people: the token may be the password of HTTP Basic, errors are pages.

    Args:
        check: That of clients.
        bodies: Pages have none.
        pages: Makes the page of an error.
    """

    def __init__(
        self, check: Callable[[Request, Route], dict[str, Any]], bodies: Bodies, pages: Pages
    ) -> None:
        super().__init__(check, bodies)
        self._pages = pages

    async def admit(self, request: Request, route: Route) -> dict[str, Any]:
        """Check that the caller may read; a browser shows the token as a password."""
        take_password(request)
        return await super().admit(request, route)

    def refuse(self, request: Request, error: TxLogError) -> Response:
        """Return the page of an error; of a twin its problem document."""
        if request.url.path.endswith(_JSON):
            return problem_response(error)
        response = self._pages.render("error", {"error": error}, {}, status=error.http_status)
        if error.http_status == 401:
            response.headers["www-authenticate"] = 'Basic realm="sparktxlog", charset="UTF-8"'
        return response


class Pages:
    """Templates and what they use: numbers and times in words, files with their digests."""

    def __init__(self) -> None:
        self._files = {
            item.name: item.read_bytes()
            for item in (resources.files(__package__) / "static").iterdir()
            if item.name.rpartition(".")[2] in _MEDIA
        }
        environment = jinja2.Environment(
            loader=jinja2.PackageLoader(__package__, "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters |= {"number": _number, "time": _time, "seconds": _seconds}
        environment.filters["bytes"] = partial(shown, unit="B")
        environment.filters["commands"] = _commands
        environment.globals |= {"static": self._static, "root": DASHBOARD, "cells": CELLS}
        environment.globals["field"] = FIELD
        self._environment = environment

    def render(self, name: str, view: View, frame: View, *, status: int = 200) -> Response:
        """Return a page."""
        template = self._environment.get_template(f"{name}.html")
        html = template.render(view=view, frame=frame, page=name)
        return Response(html, status, dict(_HEADERS), media_type=HTML)

    def file(self, name: str) -> Response:
        """Return a file of the pages.

        Raises:
            NotFoundError: There is none of this name (definite).
        """
        if name not in self._files:
            raise NotFoundError(f"the dashboard has no file {name[:80]!r}", path=name[:80])
        headers = {"cache-control": "public, max-age=31536000, immutable"}
        kind = _MEDIA[name.rpartition(".")[2]]
        return Response(self._files[name], headers=headers, media_type=kind)

    def _static(self, name: str) -> str:
        digest = hashlib.sha256(self._files[name]).hexdigest()
        return f"{DASHBOARD}/static/{name}?{digest[:12]}"


class DashboardRoutes(RouteHandlers):
    """One method per route."""

    def __init__(self, node: Node, pages: Pages) -> None:
        self._node, self._pages = node, pages
        self._views = DashboardViews(node)
        #: The second in which the latest digest of what pages show was made, and that digest.
        self._news: tuple[int, bytes] = (0, b"")

    async def start_page(self, request: Request) -> Response:
        return await self.dashboard_page(request, "overview")

    async def dashboard_page(self, request: Request, page: str) -> Response:
        after, find, table, span = (
            request.query_params.get(name, default)
            for name, default in (("after", ""), ("find", ""), ("table", ""), ("span", "hour"))
        )
        views: dict[str, Callable[[StatusAnswer], View | Awaitable[View]]] = {
            "overview": self._views.overview,
            "history": lambda _: self._views.history(span),
            "queue": lambda status: self._views.queue(status, _position(after)),
            "tables": lambda status: self._views.tables(status, after, find),
            "rounds": self._views.rounds,
            "transfers": self._views.transfers,
            "epochs": lambda _: self._views.epochs(),
            "acts": lambda status: self._views.acts(status, table),
        }
        name = page.removesuffix(_JSON)
        if name in views and name not in _OF_WITNESS and (config := self._node.config).is_witness:
            raise NotFoundError(
                f"node {config.node_id!r} is a witness, which only votes: it has no page {name!r}",
                hint=f"It has {' and '.join(_OF_WITNESS)}; ask another node for the rest.",
                path=page,
            )
        if name not in views:
            raise NotFoundError(
                f"the dashboard has no page {page[:80]!r}",
                hint=f"It has {', '.join(views)}, {DASHBOARD}/rounds/ID, "
                f"{DASHBOARD}/transactions/ID, {DASHBOARD}/tables/NAME.",
                path=page[:80],
            )
        status = self._node.status(tables=name == "tables")
        view = views[name](status)
        return self._answer(name, view if isinstance(view, dict) else await view, page, status)

    async def transaction_page(self, id_: str) -> Response:
        status = self._node.status()
        view = await self._views.transaction(status, id_.removesuffix(_JSON))
        return self._answer("transaction", view, id_, status)

    async def round_page(self, id_: str) -> Response:
        view = await self._views.round(_position(id_.removesuffix(_JSON)) or 0)
        return self._answer("round", view, id_, self._node.status())

    async def table_page(self, name: str) -> Response:
        twin = name.endswith(_JSON)
        # A table may be called json: its page comes first, and its twin has the ending twice.
        if twin and name.casefold() in self._node.tables():
            twin = False
        view = await self._views.table(name.removesuffix(_JSON) if twin else name)
        return self._answer("table", view, _JSON if twin else "", self._node.status())

    def _answer(self, name: str, view: View, asked: str, status: StatusAnswer) -> Response:
        frame = self._views.frame(status)
        if asked.endswith(_JSON):
            values = {name: value for name, value in view.items() if name != DRAWN}
            return json_response({**frame, **values})
        return self._pages.render(name, view, frame)

    def search_dashboard(self, q: str) -> Response:
        text = q.strip()
        quoted = quote(text, safe="")
        if _is_position(digits := text.replace(",", "")):
            where = f"queue?after={max(0, int(digits) - 1)}"
        elif _ID.fullmatch(text):
            where = f"transactions/{quoted}"
        elif self._views.names_part(text):
            where = f"tables?find={quoted}"
        else:
            where = f"tables/{quoted}"
        return RedirectResponse(f"{DASHBOARD}/{where}", 303)

    def dashboard_file(self, name: str) -> Response:
        return self._pages.file(name)

    def dashboard_events(self) -> Response:
        streams = self._node.base.budgets.event_streams
        holder = streams.take()
        return _Stream(self._events(), lambda: streams.give(holder))

    async def _events(self) -> AsyncIterator[bytes]:
        """Yield an event when something has changed, at most each `_LOOK_S`."""
        seen, ending, end = self._digest(), self._node.base.ending, monotonic() + TOLD_S
        yield b"retry: 2000\n\n"
        while not ending.is_set() and monotonic() < end:
            try:
                await asyncio.wait_for(ending.wait(), _LOOK_S)
            except TimeoutError:
                news = self._digest()
                # A comment shows that the connection is alive.
                yield b": nothing new\n\n" if news == seen else b"event: news\ndata:\n\n"
                seen = news

    def _digest(self) -> bytes:
        """Return a digest of what a page shows; all streams have that of one second in common."""
        second = int(monotonic() / _LOOK_S)
        if second != self._news[0]:
            self._news = second, self._new_digest()
        return self._news[1]

    def _new_digest(self) -> bytes:
        """Return a digest of what a page shows apart from counters and ages."""
        status: dict[str, Any] = {**self._node.status()}
        for name in _NO_NEWS:
            status.pop(name, None)
        for line in (*status["peers"], *status["replicas"]):
            for name in [name for name in line if name.endswith(("_s", "_us", "_at", "posts"))]:
                del line[name]
        shown = msgspec.json.encode([status.pop("peers"), status.pop("replicas"), status])
        return hashlib.sha256(shown).digest()


class _Stream(StreamingResponse):
    """Events for a page.

    Args:
        ended: Called when the page or the node ends it, also before its first event.
    """

    def __init__(self, events: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        super().__init__(events, headers=_HEADERS, media_type="text/event-stream")
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


def _position(text: str) -> int | None:
    if not text:
        return None
    if not _is_position(text):
        raise InvalidRequestError(
            f"after={text[:40]} is no position",
            hint="A position is a whole number.",
            field="after",
            value=text[:40],
        )
    return int(text)


def _is_position(text: str) -> bool:
    return text.isdecimal() and len(text) <= 18


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.1f} s" if value < 120 else f"{value / 60:,.1f} min"


def _time(micros: int | None) -> str:
    return time_text(micros) if micros else "–"


def _commands(text: str) -> Markup:
    """Return a text in which what is between backticks is code, and a command can be copied."""
    shown, after_box = Markup(), False
    for number, piece in enumerate(text.split("`")):
        is_command = number % 2 == 1 and piece.startswith(_PROGRAM)
        if is_command:
            shown += _COMMAND.format(piece)
        elif number % 2:
            shown += Markup("<code>{}</code>").format(piece)
        elif not (after_box and piece == "."):  # the box ends the sentence
            shown += Markup("{}").format(piece)
        after_box = is_command
    return shown
