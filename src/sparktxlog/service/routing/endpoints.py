"""Makes the endpoint that the application calls from a declared route and its handler.

An endpoint checks the caller's role, reads the query, reads and decodes the body, runs the handler
and encodes its answer, in this order.  Any error becomes a problem document.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable
from traceback import clear_frames
from typing import Any, Protocol

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from sparktxlog.codec.problems import encode_problem
from sparktxlog.errors import BusyError, InternalError, InvalidRequestError, TxLogError
from sparktxlog.service.connections.bodies import Bodies, check_parts
from sparktxlog.service.connections.places import PROVE, Proof
from sparktxlog.service.routing.declared_route import JSON, Role, Route

_log = logging.getLogger("sparktxlog.service")

_encode_json = msgspec.json.Encoder().encode
_JSON_TYPE = (b"content-type", JSON.encode())

#: What the application calls.
Endpoint = Callable[[Request], Awaitable[Response]]
#: Its parameters name the values that it takes (see `Route`); returns the answer or a response.
Handler = Callable[..., Any]


class Note(Protocol):
    """Notes how a request ended, for the audit."""

    def __call__(self, request: Request, error: BaseException | None, *, began: bool) -> None:
        """Take what was raised, None = nothing, and whether the handler was called."""


class RouteHandlers:
    """Handlers of some routes: a method or another callable with the name of each route.

    `routes` describes what they do, take and answer.
    """


class Door:
    """Access check, body reader and encoding for some roles; this one: JSON.

    Args:
        check: Raises unless the caller has the route's role; returns values for the handler.
        bodies: Reads what they send.
    """

    def __init__(self, check: Callable[[Request, Route], dict[str, Any]], bodies: Bodies) -> None:
        self.check = check
        self._bodies = bodies

    async def admit(self, request: Request, route: Route) -> dict[str, Any]:
        """Check that the caller has the route's role; return values for the handler.

        Raises:
            UnauthorizedError: It does not; nothing happened (definite).
            BusyError: It does, and clients have no place left; nothing happened (definite).
        """
        found = self.check(request, route)
        if route.role is not Role.ANYBODY:
            take_place(request, Proof.CLIENT)
        return found

    async def read_body(self, request: Request, route: Route, admitted: dict[str, Any]) -> Any:
        """Return the body, decoded; `admitted` is what `admit` returned."""
        body = await self._bodies.read(request, route.body_bytes)
        check_parts(body)
        try:
            return msgspec.json.decode(body, type=route.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequestError(
                f"the body cannot be read: {error}", hint=f"See {route.key} at /docs of the node."
            ) from error

    def encode(self, answer: Any) -> bytes:
        """Return the bytes of an answer."""
        return _encode_json(answer)

    def refuse(self, request: Request, error: TxLogError) -> Response:
        """Return the answer for an error: a problem document."""
        return problem_response(self.as_known(error))

    def as_known(self, error: TxLogError) -> TxLogError:
        """Return what the node may say: another error where it might not know enough."""
        return error

    def failed(self, error: TxLogError) -> Response:
        """Return the answer for a bug of the node."""
        return problem_response(error)


def address_of(request: Request) -> str:
    """Return the address that a request comes from, empty = unknown."""
    client = request.scope.get("client")
    return str(client[0]) if client else ""


def take_place(request: Request, proof: Proof) -> None:
    """Give a request's connection the place that its caller has a right to.

    Raises:
        BusyError: None is left, or its token has its share; nothing happened (definite).
    """
    found = request.scope.get("extensions", {}).get(PROVE)
    if found is not None and not found["prove"](proof):
        raise BusyError("too many connections are open")


def endpoint(route: Route, handler: Handler, door: Door, note: Note) -> Endpoint:
    """Return the endpoint of a route.

    Raises:
        TypeError: The handler's parameters are not the values that the route declares.
    """
    wanted = _wanted(route, handler)
    queries = [(q, q.name.replace("-", "_")) for q in route.query]
    queries = [(query, name) for query, name in queries if name in wanted]
    takes_body, takes_request = "body" in wanted, "request" in wanted

    async def answer(request: Request) -> Response:
        began = False
        try:
            values = await door.admit(request, route)
            if request.scope.get("query_string"):
                route.check_names(name for name, _ in request.query_params.multi_items())
            if route.hot:
                began = True
                found = await handler(request)
            else:
                values |= request.path_params
                for query, name in queries:
                    values[name] = query.read(request.query_params.get(query.name))
                if takes_body:
                    values["body"] = await door.read_body(request, route, values)
                if takes_request:
                    values["request"] = request
                began = True
                found = handler(**{name: values[value] for value, name in wanted.items()})
                if inspect.isawaitable(found):
                    found = await found
            response = _response(route, door, found)
            note(request, None, began=began)
            return response
        except BaseException as error:  # noqa: BLE001 - an error of the node is answered too
            note(request, error, began=began)
            response = _failure(request, door, error)
            _forget(error)
            return response

    return answer


def _forget(error: BaseException) -> None:
    """Let go of what was on the way of an error, such as a body of 30 MiB.

    An error and the variables of the functions that it passed hold each other; the collector looks
    for that seldom, because it counts objects, and these are few and large.
    """
    passed: BaseException | None = error
    while passed is not None:
        clear_frames(passed.__traceback__)
        passed = passed.__cause__ or passed.__context__


def _response(route: Route, door: Door, found: Any) -> Response:
    if isinstance(found, Response):
        return found
    if found is None:
        return Response(status_code=204)
    body = found if isinstance(found, bytes) else door.encode(found)
    return Response(body, media_type=route.answer_type)


def _failure(request: Request, door: Door, error: BaseException) -> Response:
    """Return the answer for an error, or raise what is none of a request."""
    if isinstance(error, TxLogError):
        return door.refuse(request, error)
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)
    if not isinstance(error, Exception):
        raise error
    # A bug.  The handler may have done part of its work, so the outcome is unknown.
    _log.error("a request failed: %s %s", request.method, request.url.path, exc_info=error)
    failure = InternalError(
        "an unexpected error in the node; its log has the details",
        hint="The request may have taken effect: ask for the transaction id.",
    )
    return door.failed(failure)


def _wanted(route: Route, handler: Handler) -> dict[str, str]:
    """Return name of a value → parameter of the handler.

    `id_` takes `id`; a parameter that the route does not declare takes the body.
    """
    parameters = [
        parameter.name
        for parameter in inspect.signature(handler).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    wanted = {name.rstrip("_"): name for name in parameters}
    of_query = {query.name.replace("-", "_") for query in route.query}
    declared = set(re.findall(r"{(\w+)", route.path)) | of_query
    proved = {Role.PEER: {"sender"}, Role.LEASE: {"token"}}.get(route.role, set())
    others = set(wanted) - declared - proved - {"body", "request"}
    if route.body is not None:
        if len(others) == 1 and "body" not in wanted:
            wanted["body"] = wanted.pop(others.pop())
        declared |= {"body"}
    if set(wanted) - declared - proved - {"request"} or (
        declared - set(wanted) and "request" not in wanted
    ):
        raise TypeError(f"{route.key} declares {sorted(declared)}, its handler takes {parameters}")
    return wanted


def problem_response(error: TxLogError, status: int | None = None) -> Response:
    """Return an error as a problem document, by default with the status of its class."""
    status = error.http_status if status is None else status
    headers = {}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.retryable and status in (429, 503):
        headers["retry-after"] = "1"
    return Response(
        encode_problem(error, status), status, headers, media_type="application/problem+json"
    )


class _Json(Response):
    """An answer in JSON; made without the general headers of `Response`, for each post has one."""

    def __init__(self, body: bytes) -> None:
        self.status_code, self.background = 200, None
        self.body = body
        self.raw_headers = [(b"content-length", b"%d" % len(body)), _JSON_TYPE]


def json_response(value: object) -> Response:
    """Return a value as JSON; dataclasses and enums too."""
    return _Json(_encode_json(value))
