"""Requests to the catalog whose outcome is not known are repeated, until somebody ends that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from threading import Event, Thread
from typing import Any

import msgspec
import pytest

from sparktxlog.errors import (
    BusyError,
    LocalProtocolError,
    ShareUsedUpError,
    SlowRequestError,
    StagedCommitError,
    TransportError,
    TxLogError,
    UnauthorizedError,
    UnknownTableError,
    UnreachableError,
    VersionConflictError,
)
from sparktxlog.http import catalog_link as module
from sparktxlog.http.catalog_link import CatalogLink
from sparktxlog.http.link import Http

URL = "http://127.0.0.1:9"


class Update(msgspec.Struct):
    """Stands for a request: only its bytes count."""

    number: int = 7


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[bytes]]:
    """Let requests fail with the given errors, one after the other; return their bodies."""

    def script(*failures: TxLogError, asked: Event | None = None) -> list[bytes]:
        left, bodies = list(failures), list[bytes]()

        def request(link: CatalogLink, method: str, path: str, **more: Any) -> bytes:
            bodies.append(more["body"])
            if asked is not None:
                asked.set()
            if left:
                raise left.pop(0)
            return b"{}"

        monkeypatch.setattr(CatalogLink, "request", request)
        monkeypatch.setattr(CatalogLink, "_decoded", lambda link, answer, kind: answer)
        return bodies

    return script


def commit(link: CatalogLink, timeout_s: float = 600.0) -> object:
    return link.commit("s.t", Update(), timeout_s=timeout_s)  # type: ignore[arg-type]


def test_the_same_request_is_sent_until_its_outcome_is_known(
    answers: Callable[..., list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.01)
    with closing(CatalogLink(URL)) as link:
        bodies = answers(TransportError("broke"), TransportError("broke"))
        assert commit(link) == b"{}"
        assert bodies == [b'{"number":7}'] * 3
        bodies = answers(TransportError("broke"), VersionConflictError("lost"))
        with pytest.raises(VersionConflictError):
            commit(link)
        assert len(bodies) == 2
        answers(TransportError("broke"))
        with pytest.raises(TransportError):
            commit(link, 0.0)


@pytest.mark.parametrize(
    "later",
    [
        UnreachableError("restarts"),
        BusyError("starts"),
        UnauthorizedError("new token"),
        LocalProtocolError("halted"),
        SlowRequestError("no body"),
    ],
)
def test_what_may_have_happened_is_not_refused_by_a_node_that_is_away(
    answers: Callable[..., list[bytes]], monkeypatch: pytest.MonkeyPatch, later: TxLogError
) -> None:
    """A definite error would make `adopt` remove the files of a table that was made."""
    monkeypatch.setattr(module, "_PAUSE_S", 0.01)
    with closing(CatalogLink(URL)) as link:
        bodies = answers(TransportError("broke"), later, later)
        assert commit(link) == b"{}"
        assert len(bodies) == 4
        answers(TransportError("broke"), *[later] * 1_000)
        with pytest.raises(TransportError, match="broke") as caught:
            commit(link, 0.1)
        assert not caught.value.definite
        bodies = answers(later)
        with pytest.raises(type(later)):  # nothing was taken before
            commit(link)
        assert len(bodies) == 1


@pytest.mark.parametrize(
    "later",
    [
        UnknownTableError("renamed since"),
        ShareUsedUpError("by the first attempt"),
        StagedCommitError("its file went to its place"),
    ],
)
def test_a_refusal_of_the_repeat_alone_leaves_the_outcome_unknown(
    answers: Callable[..., list[bytes]], monkeypatch: pytest.MonkeyPatch, later: TxLogError
) -> None:
    """A definite error would let upkeep remove the files of a version that was made."""
    monkeypatch.setattr(module, "_PAUSE_S", 0.01)
    with closing(CatalogLink(URL)) as link:
        bodies = answers(TransportError("broke"), later)
        with pytest.raises(TransportError, match="broke") as caught:
            commit(link)
        assert not caught.value.definite and len(bodies) == 2
        answers(later)
        with pytest.raises(type(later)):
            commit(link)


@pytest.mark.parametrize("is_second", [True, False])
def test_a_link_that_is_closed_ends_the_pause(
    answers: Callable[..., list[bytes]], monkeypatch: pytest.MonkeyPatch, is_second: bool
) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 60.0)
    asked, failed = Event(), list[TxLogError]()
    bodies = answers(*[TransportError("broke")] * 9, asked=asked)
    home = Http(URL)
    link = CatalogLink.to_same_node(home) if is_second else CatalogLink(URL)

    def work() -> None:
        try:
            commit(link)
        except TransportError as error:
            failed.append(error)

    thread = Thread(target=work, daemon=True)
    thread.start()
    assert asked.wait(10)
    (home if is_second else link).close()
    thread.join(10)
    assert len(failed) == len(bodies) == 1
