"""A commit that is called again: what a node may have of it is never called refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from sparktxlog.api.client import Client
from sparktxlog.api.nodes import Nodes
from sparktxlog.api.site_session import SiteSession
from sparktxlog.api.staging.frame_staging import StagingPlace
from sparktxlog.api.writing.batches_of_transactions import GroupedBatch
from sparktxlog.api.writing.transaction import SparkTransaction
from sparktxlog.codec.submits.transactions import Session
from sparktxlog.errors import (
    CommitStateUnknownError,
    NotFoundError,
    NotMemberError,
    StaleSchemaError,
    TransactionNotOpenError,
    TransportError,
    TxLogError,
    UnauthorizedError,
    UnreachableError,
)
from sparktxlog.http.link import Http
from sparktxlog.model.transactions.receipt import Level, Receipt

LOST, REFUSED = CommitStateUnknownError("no answer"), StaleSchemaError("the table changed")
TAKEN = Receipt(transaction_id="x", n=1, level=Level.ORDERED, position=9, outcome="committed")
IDS = StructType([StructField("id", LongType())])


class Link:
    """Ends each submit as its script says, and notes what each was told of earlier ones."""

    position, timeout_s = 0, 1.0

    def __init__(self) -> None:
        #: None: it is taken.
        self.script: list[BaseException | None] = []
        self.doubts: list[TxLogError | None] = []

    def commit(self, *_: Any, doubt: TxLogError | None, **__: Any) -> Receipt:
        self.doubts.append(doubt)
        end = self.script.pop(0) if self.script else None
        if end is not None:
            raise end
        return TAKEN

    submit = commit

    def get(self, path: str, **_: Any) -> Any:
        assert path == "/v1/info"
        return {"run_limit_transactions": 1, "run_limit_bytes": 1 << 20}


class Grouped:
    """Two runs of rows, the same ones each time."""

    waits, tables, n, ids = False, ("t",), 2, b"a" * 16 + b"b" * 16

    def runs(self, *_: Any) -> Any:
        for first in (b"a" * 16, b"b" * 16):
            yield SimpleNamespace(payload=b"run", transaction_id=first, first=0, n=1)


@pytest.fixture
def link() -> Link:
    return Link()


def of_a_client(link: Any, _: Path) -> Any:
    client = Client("http://127.0.0.1:1")
    client._link = link
    t = client.transaction()
    t.append("t", [{"id": 1}])
    return t


def of_spark(link: Any, root: Path) -> SparkTransaction:
    place = StagingPlace(root=root, inline_limit_bytes=1)
    nothing: Any = None
    home: Any = SimpleNamespace(url="http://a")
    site = SiteSession(nothing, link, home, place, session=Session("s"), timeout_s=1)
    t = SparkTransaction(site)
    t.create_table("t", IDS, deletion_vectors=False, properties={})
    staged = root / t.id / "0-t"
    staged.mkdir(parents=True)
    t._staging._written.append(staged)
    return t


def batch(link: Any, _: Path) -> GroupedBatch:
    site: Any = SimpleNamespace(link=link, timeout_s=1.0, session=Session("s"))
    site.asked_level, site.forget_definitions = str, list
    grouped: Any = Grouped()
    b = GroupedBatch(site)
    b._grouped = grouped
    return b


@pytest.mark.parametrize("begin", [of_a_client, of_spark, batch])
@pytest.mark.parametrize("end", [LOST, KeyboardInterrupt(), MemoryError()])
def test_a_call_that_did_not_hear_its_answer_leaves_a_doubt(
    begin: Callable[[Link, Path], Any], end: BaseException, link: Link, tmp_path: Path
) -> None:
    t = begin(link, tmp_path)
    for one in (end, UnreachableError("nobody")):
        link.script = [one]
        with pytest.raises(type(one)):
            t.commit()
    first, doubt = link.doubts
    assert first is None and doubt is not None and not doubt.definite
    assert doubt is LOST if end is LOST else "interrupted" in doubt.message


@pytest.mark.parametrize("begin", [of_a_client, batch])
def test_a_refusal_of_the_first_call_leaves_none(
    begin: Callable[[Link, Path], Any], link: Link, tmp_path: Path
) -> None:
    t = begin(link, tmp_path)
    for _ in range(2):
        link.script = [UnreachableError("nobody")]
        with pytest.raises(UnreachableError):
            t.commit()
    assert link.doubts == [None, None]


def test_staged_files_stay_if_a_repeat_after_an_interrupt_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    t = of_spark(Nodes(["http://a"], timeout_s=0.5), tmp_path)
    ends: list[BaseException] = [KeyboardInterrupt(), REFUSED]

    def submit_once(*_: Any, **__: Any) -> Receipt:
        raise ends[0]

    def receipt(*_: Any, **__: Any) -> Receipt:
        raise NotFoundError("never seen")

    monkeypatch.setattr(Http, "submit_once", submit_once)
    monkeypatch.setattr(Http, "receipt", receipt)
    for found in (KeyboardInterrupt, CommitStateUnknownError):
        with pytest.raises(found):
            t.commit()
        assert (tmp_path / t.id / "0-t").is_dir()
        del ends[0]


def test_each_run_of_a_batch_has_its_own_doubt(link: Link, tmp_path: Path) -> None:
    """The first one is accepted and the second one refused: only of that nothing happened."""
    b = batch(link, tmp_path)
    link.script = [None, REFUSED, None, REFUSED]
    for _ in range(2):
        with pytest.raises(StaleSchemaError) as caught:
            b.commit()
        assert caught.value.fields["accepted_transactions"] == 1
    first, other, again, refused = link.doubts
    assert (first, other, refused) == (None, None, None)
    assert again is not None and "accepted it" in again.message


@pytest.mark.parametrize("end", [TransportError("the answer was lost"), KeyboardInterrupt()])
@pytest.mark.parametrize(
    "silence",
    [
        UnreachableError("nobody"),
        UnauthorizedError("another token"),
        TransactionNotOpenError("not open", incarnation=2),
    ],
)
def test_silence_does_not_end_the_doubt_of_a_held_transaction(
    end: BaseException, silence: TxLogError, link: Link
) -> None:
    """Its node is away, does not look, or lost its disk; the others know nothing yet."""
    client = Client("http://127.0.0.1:1")
    client._link = nodes = link  # type: ignore[assignment]
    t = client.open_transaction(timeout=0.01)
    node: Any = SimpleNamespace()
    t._node, t._incarnation = node, 1
    nodes.find = Mock(side_effect=NotMemberError("joining"))  # type: ignore[attr-defined]
    for answer, found in (
        (silence, type(silence)),
        (end, (CommitStateUnknownError, KeyboardInterrupt)),
        (silence, CommitStateUnknownError),
    ):
        node.request = Mock(side_effect=answer)
        with pytest.raises(found):
            t.commit()
