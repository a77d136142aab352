"""Routes for operators who look after a node, and the audit of all their acts."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request

from sparktxlog.errors import TxLogError
from sparktxlog.model.answers import AuditEntry
from sparktxlog.runtime.audit_trail import DONE
from sparktxlog.runtime.node import Node
from sparktxlog.service.declared_route import Role, Route, get
from sparktxlog.service.endpoints import Handler, RouteHandlers
from sparktxlog.service.query import whole

#: Seconds that an answer waits for its entry: a full disk must not hold back who makes room.
_PATIENCE_S = 1.0

ADMINISTRATION = (
    get(
        "/v1/audit",
        "audit",
        "Who changed what at this node, newest first",
        list[AuditEntry],
        whole("limit", "Entries at most.", 100, low=1, high=1000),
        at_witness=True,
        before_log=True,
    ),
)


class AdministrationRoutes(RouteHandlers):
    """One method per route."""

    def __init__(self, node: Node) -> None:
        self.audit = node.audit.latest


def audited(route: Route, handler: Handler, node: Node) -> Handler:
    """Return a route's handler; an operator's act gets its entry in the audit.

    The entry is durable before what the act writes.  Acts that the access check refuses are no
    acts: strangers must not push entries out.
    """
    if route.role is not Role.ADMIN:
        return handler
    trail = node.audit

    @functools.wraps(handler)
    async def run(**values: Any) -> Any:
        number = trail.begin(route.name, _detail(route, values, node))
        outcome = "unknown: an error that nobody foresaw"
        try:
            found = handler(**values)
            if inspect.isawaitable(found):
                found = await found
            outcome = DONE
        except TxLogError as error:
            outcome = f"[{error.code}] {error.message}"
            raise
        except asyncio.CancelledError:
            outcome = "unknown: the node stopped, or the caller went away"
            raise
        finally:
            durable = asyncio.Event()
            trail.end(number, outcome, durable.set)
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
