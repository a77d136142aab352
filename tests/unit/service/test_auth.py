"""The client token."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from sparktxlog.errors import UnauthorizedError
from sparktxlog.service.auth import ClientAuth


def request(*headers: tuple[bytes, bytes]) -> Request:
    return Request({"type": "http", "headers": list(headers)})


def test_without_a_token_everybody_may() -> None:
    ClientAuth(None).check(request())


@pytest.mark.parametrize("value", [b"Bearer s3", b"bearer s3", b"BEARER  s3 "])
def test_the_right_token(value: bytes) -> None:
    ClientAuth("s3").check(request((b"authorization", value)))


@pytest.mark.parametrize("value", [b"", b"Bearer", b"Bearer x", b"Basic s3", b"s3", b"Bearer s3x"])
def test_another_token(value: bytes) -> None:
    with pytest.raises(UnauthorizedError) as caught:
        ClientAuth("s3").check(request((b"authorization", value)))
    assert caught.value.definite and caught.value.http_status == 401
    assert "s3" not in str(caught.value)


def test_no_token() -> None:
    with pytest.raises(UnauthorizedError, match="wants a client token"):
        ClientAuth("s3").check(request())
