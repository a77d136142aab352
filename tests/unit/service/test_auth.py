"""The tokens of clients and operators."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.requests import Request

from sparktxlog.errors import ForbiddenError, StorageError, UnauthorizedError
from sparktxlog.runtime.tokens.worker_token import make_worker_token, worker_token_file
from sparktxlog.service.auth import Tokens


def request(*headers: tuple[bytes, bytes]) -> Request:
    return Request({"type": "http", "headers": list(headers)})


def showing(token: bytes) -> Request:
    return request((b"authorization", b"Bearer " + token))


def test_without_a_token_everybody_may() -> None:
    Tokens(None, None).check_client(request())
    Tokens(None, None).check_admin(request())


@pytest.mark.parametrize("value", [b"Bearer s3", b"bearer s3", b"BEARER  s3 "])
def test_the_right_token(value: bytes) -> None:
    Tokens("s3", None).check_client(request((b"authorization", value)))
    Tokens("s3", None).check_admin(request((b"authorization", value)))
    Tokens(None, "s3").check_admin(request((b"authorization", value)))


@pytest.mark.parametrize("value", [b"", b"Bearer", b"Bearer x", b"Basic s3", b"s3", b"Bearer s3x"])
def test_another_token(value: bytes) -> None:
    shown = request((b"authorization", value))
    with pytest.raises(UnauthorizedError) as caught:
        Tokens("s3", None).check_client(shown)
    assert caught.value.definite and caught.value.http_status == 401
    assert "s3" not in str(caught.value)
    for tokens in (Tokens("s3", None), Tokens("c2", "s3"), Tokens(None, "s3")):
        with pytest.raises(UnauthorizedError) as caught:
            tokens.check_admin(shown)
        assert caught.value.definite and caught.value.http_status == 401
        assert "s3" not in str(caught.value)


def test_no_token() -> None:
    with pytest.raises(UnauthorizedError, match="requires a client token"):
        Tokens("s3", None).check_client(request())
    with pytest.raises(
        UnauthorizedError, match=r"requires the admin token.*SPARKTXLOG_ADMIN_TOKEN"
    ):
        Tokens("s3", "a1").check_admin(request())


def test_the_admin_token_is_good_for_both_and_the_client_token_for_one() -> None:
    tokens = Tokens("c2", "a1")
    tokens.check_client(showing(b"a1"))
    tokens.check_admin(showing(b"a1"))
    tokens.check_client(showing(b"c2"))
    with pytest.raises(
        ForbiddenError, match=r"only operators may do this.*admin-token-file"
    ) as caught:
        tokens.check_admin(showing(b"c2"))
    assert (caught.value.http_status, caught.value.definite) == (403, True)
    assert caught.value.fields == {"setting": "admin-token"}


def test_a_client_does_not_speak_for_a_worker() -> None:
    tokens = Tokens("c2", "a1", "w3", Path("/data/a/worker.token"))
    for shown in (b"w3", b"a1"):
        tokens.check_worker(showing(shown))
    with pytest.raises(ForbiddenError, match=r"with the token in /data/a/worker\.token"):
        tokens.check_worker(showing(b"c2"))
    for request_ in (request(), showing(b"w4")):
        with pytest.raises(UnauthorizedError, match=r"worker\.token"):
            tokens.check_worker(request_)
    # A worker asks what clients ask.  It submits nothing, and changes nothing.
    for shown in (b"w3", b"c2", b"a1"):
        tokens.check_reader(showing(shown))
    with pytest.raises(ForbiddenError, match="only clients may submit"):
        tokens.check_client(showing(b"w3"))
    with pytest.raises(UnauthorizedError):
        tokens.check_admin(showing(b"w3"))
    # Where clients show nothing, nobody does.
    Tokens(None, "a1").check_worker(request())


def test_the_workers_token_is_the_users_own_and_stays(tmp_path: Path) -> None:
    token = make_worker_token(tmp_path)
    file = worker_token_file(tmp_path)
    assert len(token) >= 32 and file.stat().st_mode & 0o777 == 0o600
    assert make_worker_token(tmp_path) == token == file.read_text().strip()
    file.unlink()
    assert make_worker_token(tmp_path) != token
    with pytest.raises(StorageError):
        make_worker_token(tmp_path / "gone")
