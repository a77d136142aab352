"""Problem documents as errors, and what a submit makes of a broken link."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from sparktxlog import errors
from sparktxlog.api.nodes import committed
from sparktxlog.codec.problems import ERROR_CLASSES, error_of
from sparktxlog.errors import (
    CommitRejectedError,
    InvalidRequestError,
    JournalLostError,
    OtherQueueError,
    TransportError,
    TxLogError,
    UnknownKindError,
    UnknownTableError,
)
from sparktxlog.http.link import Http
from sparktxlog.model.transactions.receipt import Level, Receipt, ReceiptRejection

#: They have the code of their base, and never leave a node.
INNER = {JournalLostError, OtherQueueError, UnknownKindError}
ALL = sorted(
    (kind for kind in vars(errors).values() if isinstance(kind, type) and kind is not TxLogError),
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", [kind for kind in ALL if issubclass(kind, TxLogError)])
def test_every_error_comes_back_in_its_class(kind: type[TxLogError]) -> None:
    sent = kind("what is wrong", hint="do this", table="t", row=3)
    body = msgspec.json.encode(sent.to_problem())
    found = error_of(body, sent.http_status, "http://x")
    assert type(found) is ERROR_CLASSES[kind.code]
    assert type(found) is kind or kind in INNER
    assert str(found) == str(sent)
    assert found.fields == {"table": "t", "row": 3}
    if type(found) is kind:
        assert found.definite == sent.definite


def test_codes_of_newer_nodes_keep_what_they_mean() -> None:
    document = UnknownTableError("x").to_problem() | {"title": "new-code"}
    found = error_of(msgspec.json.encode(document), 422, "http://x")
    assert type(found) is CommitRejectedError and found.fields["code"] == "new-code"
    document["definite"] = False
    found = error_of(msgspec.json.encode(document), 500, "http://x")
    assert type(found) is TransportError and not found.definite


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"title": "x"}', b"\xff"])
def test_answers_of_something_else(body: bytes) -> None:
    found = error_of(body, 502, "http://x")
    assert type(found) is TransportError and found.fields["status"] == 502


@pytest.mark.parametrize("url", ["", "localhost:7070", "ftp://x", "http://", "http://x:99999"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(InvalidRequestError):
        Http(url)


def test_a_rejected_outcome_is_an_error_of_its_class() -> None:
    receipt = Receipt(
        transaction_id="x",
        n=1,
        level=Level.ORDERED,
        position=7,
        outcome="rejected",
        rejections=(ReceiptRejection(index=0, code="unknown-table", text="no table 't'"),),
    )
    with pytest.raises(UnknownTableError) as caught:
        committed(receipt)
    assert caught.value.fields["position"] == 7
    # Of an old one the node keeps that it was rejected, and not why.
    with pytest.raises(CommitRejectedError, match="why is no longer kept") as caught_later:
        committed(replace(receipt, rejections=()))
    assert caught_later.value.definite and caught_later.value.fields["position"] == 7
