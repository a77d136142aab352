"""Lists in pages: all of them."""

from __future__ import annotations

from typing import Any

import pytest

from sparktxlog.errors import InvalidRequestError
from sparktxlog.http.list_pages import PAGE, read_pages


class Server:
    """A node with some tables."""

    def __init__(self, number: int) -> None:
        self.names = [f"t{one:05d}" for one in range(number)]
        self.asked: list[dict[str, Any]] = []

    def get(
        self, path: str, after_name: str | None = None, limit: int | None = None, **query: Any
    ) -> list[dict[str, Any]]:
        assert path == "/v1/tables"
        self.asked.append({"after_name": after_name, "limit": limit, **query})
        found = [name for name in self.names if name > (after_name or "")]
        return [{"name": name} for name in found[:limit]]


@pytest.mark.parametrize(
    ("number", "requests"), [(0, 1), (1, 1), (PAGE - 1, 1), (PAGE, 2), (2 * PAGE + 1, 3)]
)
def test_pages_are_read_to_the_end(number: int, requests: int) -> None:
    server = Server(number)
    found = read_pages(server.get, "/v1/tables", after=7)
    assert [table["name"] for table in found] == server.names
    assert len(server.asked) == requests
    assert {one["after"] for one in server.asked} == {7}


def test_other_refusals_are_passed_on() -> None:
    def refuse(path: str, **query: Any) -> None:
        raise InvalidRequestError("after is 'x'", field="after")

    with pytest.raises(InvalidRequestError, match="after is 'x'"):
        list(read_pages(refuse, "/v1/tables", after="x"))
