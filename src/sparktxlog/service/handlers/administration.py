"""Routes for operators that look after a node, and the audit: acts, refusals and their authors."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from sparktxlog.errors import BusyError, InvalidRequestError, TxLogError, UnauthorizedError
from sparktxlog.model.administration_answers import AuditEntry
from sparktxlog.runtime.audit_trail import DONE, NOBODY, RINGS, asks
from sparktxlog.runtime.node import Node
from sparktxlog.service.routing.declared_route import Role, Route, get
from sparktxlog.service.routing.endpoints import Handler, Note, RouteHandlers, address_of
from sparktxlog.service.routing.query import Query, whole

#: Seconds that an answer waits for its entry: a full disk must not hold back a request that makes
#: room.
_PATIENCE_S = 1.0

ADMINISTRATION = (
    get(
        "/v1/audit",
        "audit",
        "Who changed what at this node, and who was refused, newest first",
        list[AuditEntry],
        whole("limit", "Entries at most.", 100, low=1, high=1000),
        Query("whose", "Only entries about operators, clients or strangers; default: all."),
        at_witness=True,
        before_log=True,
    ),
)


class AdministrationRoutes(RouteHandlers):
    """One method per route."""

    def __init__(self, node: Node) -> None:
        self._trail = node.audit

    def audit(self, limit: int, whose: str | None) -> list[AuditEntry]:
        if whose and whose not in RINGS:
            raise InvalidRequestError(
                f"there are no entries about {whose[:40]!r}",
                hint=f"Entries are about {', '.join(RINGS)}.",
                field="whose",
                value=whose[:40],
            )
        return self._trail.latest(limit, whose or "")


def noting(route: Route, node: Node) -> Note:
    """Return what notes how a request of a route ended: acts, and refusals of all that is asked.

    An act of a handler for operators gets its entry from `audited`.
    """
    trail, proves = node.audit, route.role not in (Role.PEER, Role.LEASE, Role.ANYBODY)

    def note(request: Request, error: BaseException | None, *, began: bool) -> None:
        is_noted = route.is_act or isinstance(error, UnauthorizedError | BusyError)
        if not is_noted or (began and route.role is Role.ADMIN):
            return
        address = address_of(request)
        who = asks.get() if proves else route.role.value
        if isinstance(error, UnauthorizedError) and (error.http_status == 401 or not proves):
            who = NOBODY
        kind = error.code if isinstance(error, TxLogError) else type(error).__name__
        trail.count(who, address, route.name, kind, _outcome(error))

    return note


def _outcome(error: BaseException | None) -> str:
    """Return how an act ended, as its entry says it."""
    if isinstance(error, TxLogError):
        return f"[{error.code}] {error.message}"
    if isinstance(error, asyncio.CancelledError | ClientDisconnect):
        return "unknown: the node stopped, or the caller went away"
    return DONE if error is None else "unknown: an error that nobody foresaw"


def audited(route: Route, handler: Handler, node: Node) -> Handler:
    """Return a route's handler; an operator's act gets its entry in the audit.

    The entry is durable before what the act writes.  What is refused before that is noted by
    `noting`, where strangers push no entries out.
    """
    if route.role is not Role.ADMIN:
        return handler
    trail = node.audit

    @functools.wraps(handler)
    async def run(**values: Any) -> Any:
        number = trail.begin(route.name, _detail(route, values, node))
        durable = asyncio.Event()
        try:
            found = handler(**values)
            if inspect.isawaitable(found):
                found = await found
        except BaseException as error:
            trail.end(number, _outcome(error))
            raise
        trail.end(number, DONE, durable.set)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await durable.wait()
        except TimeoutError:
            pass  # it is written as soon as the disk has room
        return found

    return run


def _detail(route: Route, values: Mapping[str, Any], node: Node) -> str:
    """Return what an act is about, in one line."""
    if route.name == "change_settings":
        now, (asked,) = node.settings(), values.values()
        return ", ".join(
            f"{key}: {_text(now[key]['value']) if key in now else 'unknown'} → "
            + ("as configured" if value is None else _text(value))
            for key, value in asked.items()
        )
    given = {
        name.rstrip("_"): value
        for name, value in values.items()
        if name != "timeout" and not isinstance(value, Request)
    }
    return ", ".join(f"{name} {_text(value)}" for name, value in given.items())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
