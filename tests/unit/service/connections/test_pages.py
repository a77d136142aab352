"""What a page in a browser sends, and what programs send, told apart by headers."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from sparktxlog.errors import ForeignPageError, TxLogError, UnsupportedTypeError
from sparktxlog.service.connections.pages import PageGuard


def guard(listen: str = "127.0.0.1", url: str = "http://node-a.example:7070") -> PageGuard:
    config: Any = SimpleNamespace(listen=(listen, 7070), master_url=url)
    return PageGuard(config)


def request(**headers: str) -> Request:
    shown = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    return Request({"type": "http", "headers": shown})


@pytest.mark.parametrize(
    ("host", "good"),
    [
        ("127.0.0.1:7070", True),
        ("localhost", True),
        ("LOCALHOST:7070", True),
        ("[::1]:7070", True),
        ("10.0.0.1", True),
        ("node-a.example:7070", True),
        ("a.localhost:1", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example:7070", False),
        ("localhost.evil.example", False),
        ("[evil]:7070", False),
        ("a@b:c:d", False),
        ("evillocalhost", False),
        ("127.0.0.1:7070:1", False),
    ],
)
def test_names_that_a_node_on_loopback_answers_to(host: str, good: bool) -> None:
    allowed = nullcontext() if good else pytest.raises(ForeignPageError, match="not a name of this")
    with allowed:
        guard().check(request(host=host))
    guard("0.0.0.0").check(request(host=host))  # there clients show a token


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"host": "a:1", "origin": "http://a:1"}, None),
        ({"host": "a:1", "origin": "https://A:1"}, None),
        ({"host": "a:1", "origin": "http://a:2"}, ForeignPageError),
        ({"host": "a:1", "origin": "null"}, ForeignPageError),
        ({"host": "a:1", "origin": "http://[a"}, ForeignPageError),
        ({"host": "[a", "origin": "http://[a"}, ForeignPageError),
        ({"origin": "http://a"}, ForeignPageError),
        ({"content_length": "2"}, UnsupportedTypeError),
        ({"transfer_encoding": "chunked"}, UnsupportedTypeError),
        ({"content_length": "0"}, None),
        ({"content_length": "2", "content_type": "application/json; charset=utf-8"}, None),
        ({"content_length": "2", "content_type": "application/octet-stream"}, None),
        ({"content_length": "2", "content_type": "Text/Plain; x=y"}, UnsupportedTypeError),
        (
            {"content_length": "2", "content_type": "application/x-www-form-urlencoded"},
            UnsupportedTypeError,
        ),
        ({"content_length": "2", "content_type": "multipart/form-data; b"}, UnsupportedTypeError),
        ({}, None),
    ],
)
def test_origins_and_types(headers: dict[str, str], error: type[TxLogError] | None) -> None:
    with nullcontext() if error is None else pytest.raises(error):
        guard("0.0.0.0").check(request(**headers))
