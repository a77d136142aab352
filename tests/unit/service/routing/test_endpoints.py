"""A handler takes what its route declares: another one is found when the node starts."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response

from sparktxlog.errors import ForbiddenError, InvalidRequestError
from sparktxlog.runtime.tokens.budgets import Budget
from sparktxlog.service.connections.bodies import Bodies
from sparktxlog.service.routing.declared_route import Role, Route
from sparktxlog.service.routing.endpoints import Door, Handler, endpoint
from sparktxlog.service.routing.query import whole
from sparktxlog.service.routing.routes import ROUTES

ROUTE = Route(
    method="POST",
    path="/v1/tables/{table}",
    role=Role.CLIENT,
    name="f",
    summary="",
    query=(whole("after", "", 7),),
    body=list[int],
    answer=list[int],
)


def call(handler: Handler, *, query: str = "", body: bytes = b"[1]", may: bool = True) -> Response:
    """Call the handler of `ROUTE`."""

    def check(request: Request, route: Route) -> dict[str, Any]:
        if not may:
            raise ForbiddenError("no")
        return {}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/tables/t",
        "path_params": {"table": "t"},
        "query_string": query.encode(),
        "headers": [],
    }

    async def main() -> Response:
        answer = endpoint(
            ROUTE,
            handler,
            Door(check, Bodies(100, Budget("bytes", 150, ""))),
            lambda *_, **__: None,
        )
        return await answer(Request(scope, receive))

    return asyncio.run(main())


def test_a_handler_gets_path_query_and_body() -> None:
    async def handler(table: str, after: int, body: list[int]) -> Any:
        return [table, after, *body]

    assert call(handler).body == b'["t",7,1]'
    assert call(handler, query="after=8").body == b'["t",8,1]'


@pytest.mark.parametrize(
    ("given", "status", "title"),
    [
        ({"may": False, "query": "after=x", "body": b"?"}, 403, "forbidden"),
        ({"query": "after=x", "body": b"?"}, 400, "invalid-request"),
        ({"query": "afer=8"}, 400, "invalid-request"),
        ({"body": b"?"}, 400, "invalid-request"),
        ({"body": b"[" + b"1," * 99 + b"1]"}, 413, "oversize"),
        ({}, 500, "internal"),
    ],
)
def test_errors_become_problem_documents(given: Any, status: int, title: str) -> None:
    def handler(table: str, after: int, body: list[int]) -> None:
        raise ZeroDivisionError

    found = call(handler, **given)
    problem = msgspec.json.decode(found.body)
    assert (found.status_code, problem["title"], problem["status"]) == (status, title, status)
    assert problem["definite"] is (status != 500)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.key)
def test_an_unknown_parameter_is_refused_with_the_names_that_there_are(route: Route) -> None:
    """Of each route of our own clients, and of probes; other programs may send more."""
    names = [query.name for query in route.query]
    route.check_names(names)
    if route.path.startswith(("/api/", "/dashboard", "/peer/", "/replica/")) or route.path == "/":
        route.check_names(["datas"])
        return
    with pytest.raises(InvalidRequestError, match="has no parameter 'datas'") as caught:
        route.check_names([*names, "datas"])
    assert caught.value.fields["field"] == "datas"
    assert all(name in caught.value.hint for name in names)


def test_a_parameter_that_is_given_twice_is_refused() -> None:
    """Only one of both would be answered."""
    found = call(lambda table, after, body: 1, query="after=1&after=2")
    problem = msgspec.json.decode(found.body)
    assert found.status_code == 400 and "takes one 'after', and 2 are given" in problem["detail"]


def test_no_answer_is_no_content() -> None:
    assert call(lambda table, after, body: None).status_code == 204


@pytest.mark.parametrize(
    "handler",
    [
        lambda table, after: None,
        lambda table, body: None,
        lambda after, body: None,
        lambda table, after, body, other: None,
        lambda table, after, body, sender: None,
    ],
)
def test_a_handler_of_another_form_is_refused(handler: Handler) -> None:
    with pytest.raises(TypeError, match=r"POST /v1/tables/.* declares"):
        call(handler)


def test_an_error_holds_no_body() -> None:
    """The collector comes seldom: what an error and a function hold of each other goes at once."""

    class Large:
        """As a body of 30 MiB."""

    left: list[weakref.ref[Large]] = []

    def handler(table: str, after: int | None, body: Any) -> None:
        large = Large()
        left.append(weakref.ref(large))
        try:
            raise ForbiddenError("no")
        except ForbiddenError as error:
            held = error
        raise InvalidRequestError("not so") from held

    gc.disable()
    try:
        assert call(handler).status_code == 400
        assert left[0]() is None
    finally:
        gc.enable()
