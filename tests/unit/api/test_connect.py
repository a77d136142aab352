"""A connected log without Spark: what its own worker's failures make of a commit."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from sparktxlog.api.connect import TxLog, connect
from sparktxlog.api.site_session import SiteSession
from sparktxlog.api.staging.frame_staging import StagingPlace, inline_rows
from sparktxlog.codec.submits.requests import decode_request
from sparktxlog.codec.submits.transactions import (
    PreparedOperation,
    PreparedTransaction,
    Rollback,
    Session,
)
from sparktxlog.errors import (
    ApplyError,
    CommitStateUnknownError,
    CommittedNotAppliedError,
    InvalidRequestError,
    LocalProtocolError,
    NotAppliedError,
    NotFoundError,
    TransportError,
    TxLogError,
    UnknownTableError,
)
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.model.transactions.receipt import Level, Receipt

#: What a node asks itself before it shows tables: position, log, seconds.
Asked = list[tuple[int, str | None, float]]
IDS = StructType([StructField("id", LongType())])


class Link:
    """A node that orders everything at position 7."""

    def __init__(self) -> None:
        self.submitted: list[bytes] = []
        self.failures: list[TxLogError] = []
        #: Greatest position that it told of.
        self.position = 0

    def table(self, name: str) -> TableDefinition:
        if name != "t":
            raise UnknownTableError(name)
        return TableDefinition(name="t", columns=(Column(name="id", type="bigint"),))

    def after(self, position: int) -> None:
        self.position = max(self.position, position)

    def get(self, path: str) -> dict[str, int]:
        return {"position": 7}

    def receipt(self, transaction_id: str, timeout_s: float | None = None) -> Receipt:
        raise NotFoundError("never seen")

    def known(self, transaction_id: bytes, level: str, timeout_s: float) -> None:
        return None

    def find(self, transaction_id: bytes) -> None:
        return None

    def commit(self, body: bytes, *_: Any, **__: Any) -> Receipt:
        self.submitted.append(body)
        if self.failures:
            raise self.failures.pop(0)
        return Receipt(
            transaction_id="x", n=1, level=Level.ORDERED, position=7, outcome="committed"
        )


class Worker:
    """A worker that fails, or applies all that is asked for."""

    def __init__(self, failure: Exception | None) -> None:
        self.failure = failure
        self.asked: list[tuple[int, float]] = []

    def apply(self, at_least: int, timeout_s: float, tables: object = None) -> None:
        self.asked.append((at_least, timeout_s))
        if self.failure is not None:
            raise self.failure


def connected(tmp_path: Path, failure: Exception | None = None) -> tuple[TxLog, Worker]:
    """Return a log at a node of script, and its worker."""
    home: Any = SimpleNamespace(url="http://a")
    site = SiteSession(
        cast(Any, None),
        cast(Any, Link()),
        home,
        StagingPlace(root=tmp_path, inline_limit_bytes=1),
        session=Session("s"),
        timeout_s=5,
    )
    worker = Worker(failure)
    site.worker = cast(Any, worker)
    return TxLog(site), worker


@pytest.mark.parametrize(
    "failure",
    [ApplyError("tables stand still: x"), TransportError("gone"), RuntimeError("a bug of Spark")],
)
def test_what_is_ordered_and_not_applied_here_is_no_definite_failure(
    tmp_path: Path, failure: Exception
) -> None:
    log, _ = connected(tmp_path, failure)
    with pytest.raises(CommittedNotAppliedError, match="committed at position 7") as caught:
        log.create_table("t", IDS)
    assert not caught.value.definite and "not applied here" in caught.value.message
    assert str(failure.args[0]) in caught.value.message
    assert caught.value.receipt.position == caught.value.fields["position"] == 7
    assert caught.value.fields["transaction_id"] == "x"
    assert caught.value.__cause__ is failure


def test_the_receipt_stays_with_the_transaction_and_its_files_stay(tmp_path: Path) -> None:
    log, _ = connected(tmp_path, ApplyError("no"))
    t = log.transaction()
    staged = tmp_path / t.id / "0-t"
    staged.mkdir(parents=True)
    t._staging._written.append(staged)
    t.create_table("t", IDS)
    with pytest.raises(CommittedNotAppliedError):
        t.commit()
    assert t.receipt.position == 7
    assert staged.is_dir()


def test_what_was_applied_here_says_so(tmp_path: Path) -> None:
    log, worker = connected(tmp_path)
    assert log.create_table("t", IDS).level is Level.APPLIED
    assert log.create_table("u", IDS, level="accepted").level is Level.ORDERED
    ((position, left),) = worker.asked
    assert position == 7 and 4 < left <= 5


def test_what_is_not_applied_here_in_time_is_late(tmp_path: Path) -> None:
    log, _ = connected(tmp_path, NotAppliedError("stands at 6"))
    receipt = log.create_table("t", IDS)
    assert (receipt.level, receipt.late, receipt.position) == (Level.ORDERED, True, 7)


def plain(tmp_path: Path, *failures: TxLogError) -> tuple[TxLog, Link]:
    """Return a log without a worker, and its node that fails so often."""
    log, _ = connected(tmp_path)
    log.site.worker = None
    link = cast(Link, log.site.link)
    link.failures = list(failures)
    return log, link


def test_commit_submits_and_before_there_is_no_receipt(tmp_path: Path) -> None:
    log, link = plain(tmp_path)
    t = log.transaction()
    t.create_table("t", IDS)
    with pytest.raises(LocalProtocolError, match="no receipt") as caught:
        _ = t.receipt
    assert "commit()" in caught.value.hint and not link.submitted
    assert t.commit() == t.receipt == t.commit()
    assert t.receipt.position == 7 and len(link.submitted) == 1
    with pytest.raises(LocalProtocolError, match="no more operations"):
        t.create_table("u", IDS)


def test_commit_in_a_with_block_submits_once(tmp_path: Path) -> None:
    log, link = plain(tmp_path)
    with log.transaction() as t:
        t.create_table("t", IDS)
        t.commit()
    assert len(link.submitted) == 1


def test_commit_after_an_unknown_outcome_is_the_same_transaction(tmp_path: Path) -> None:
    log, link = plain(tmp_path, CommitStateUnknownError("late"))
    with log.transaction() as t:
        t.create_table("t", IDS)
        with pytest.raises(CommitStateUnknownError):
            t.commit()
        with pytest.raises(LocalProtocolError, match="no receipt"):
            _ = t.receipt
    assert t.receipt.position == 7
    first, second = link.submitted
    assert first == second


def test_no_rows_are_submitted_under_a_given_id_only(tmp_path: Path) -> None:
    log, link = plain(tmp_path)
    definition = TableDefinition(name="t", columns=(Column(name="id", type="bigint"),))
    nothing = inline_rows(definition, OperationKind.APPEND, pa.table({"id": pa.array([], "int64")}))
    t = log.transaction(level="acquired")
    t._operations.append(nothing)
    receipt = t.commit()
    assert receipt == Receipt.of_nothing(Level.ACQUIRED)
    assert (receipt.rows, receipt.n, link.submitted) == (0, 0, [])
    empties = inline_rows(definition, OperationKind.OVERWRITE, nothing.rows)
    for operation, given in ((nothing, uuid.uuid4()), (empties, None)):
        t = log.transaction(transaction_id=given)
        t._operations.append(operation)
        assert t.commit().position == 7
    assert len(link.submitted) == 2


def test_what_was_refused_is_built_anew(tmp_path: Path) -> None:
    log, link = plain(tmp_path, UnknownTableError("no such table"))
    t = log.transaction()
    t.create_table("t", IDS)
    with pytest.raises(UnknownTableError):
        t.commit()
    with pytest.raises(InvalidRequestError, match="no operation") as caught:
        t.commit()
    assert "built again" in caught.value.hint and len(link.submitted) == 1


def reading(tmp_path: Path, applied: int) -> tuple[TxLog, Worker, Asked]:
    """Return a log whose site has applied up to a position, its worker, and what was asked."""
    log, worker = connected(tmp_path)
    asked: Asked = []

    def get(path: str, **query: Any) -> dict[str, Any]:
        asked.append((query["at_least"], query["log_id"], query["timeout_s"]))
        if max(applied, *(position for position, _ in worker.asked), 0) < query["at_least"]:
            raise NotAppliedError("not yet", applied=applied)
        return {"position": query["position"] or applied, "chain_hash": "ab", "tables": {}}

    cast(Any, log.site.home).get = get
    return log, worker, asked


def test_a_session_reads_what_it_committed_saw_and_was_told_of(tmp_path: Path) -> None:
    log, _, asked = reading(tmp_path, applied=9)
    log.site.worker = None
    log.snapshot(position=3)
    log.snapshot(position=2)
    log.create_table("t", IDS)
    log.snapshot(at_least=None)
    log.snapshot()
    cast(Link, log.site.link).after(12)
    with pytest.raises(NotAppliedError):
        log.snapshot()
    assert asked == [(n, None, 5) for n in (0, 0, 0, 9, 12)]
    # What it saw comes before what it commits next, at whatever node.
    assert cast(Link, log.site.link).position == 12


def test_a_session_never_sees_less_than_before(tmp_path: Path) -> None:
    """Monotonic reads: a replica that was restored to an earlier position is waited for."""
    log, _, asked = reading(tmp_path, applied=9)
    log.site.worker = None
    assert log.snapshot().position == 9
    restored, _, _ = reading(tmp_path, applied=4)
    cast(Any, log.site.home).get = restored.site.home.get
    with pytest.raises(NotAppliedError, match="position 9 is not applied here yet"):
        log.snapshot()
    assert log.snapshot(at_least=None).position == 4
    assert asked == [(0, None, 5)]


def test_a_receipt_names_its_log(tmp_path: Path) -> None:
    log, _, asked = reading(tmp_path, applied=9)
    receipt = Receipt(transaction_id="x", n=3, level=Level.ORDERED, position=7, log_id="l")
    log.snapshot(at_least=receipt)
    assert asked == [(9, "l", 0.0)]
    with pytest.raises(LocalProtocolError, match="no position"):
        log.table("t", at_least=replace(receipt, position=None))
    assert len(asked) == 1


def test_an_inline_worker_applies_what_a_reader_waits_for(tmp_path: Path) -> None:
    log, worker, asked = reading(tmp_path, applied=3)
    log.snapshot(at_least=3)
    assert not worker.asked
    log.snapshot(at_least=4)
    assert worker.asked == [(4, 5)]
    assert asked == [(3, None, 0.0), (4, None, 0.0), (4, None, 5)]


def test_a_wrong_name_is_refused_before_any_wait(tmp_path: Path) -> None:
    log, _, asked = reading(tmp_path, applied=3)
    log.site.worker, log.site.last_position = None, 99
    with pytest.raises(UnknownTableError):
        log.table("nope")
    assert not asked
    with pytest.raises(NotAppliedError, match=r"position 99 .* applied 3") as caught:
        log.table("t")
    assert "at_least=None" in caught.value.hint
    assert "status --url" in caught.value.hint  # a worker may run, and be late


@pytest.mark.parametrize("rollback", ["session", "transaction"])
def test_a_session_says_whether_its_transactions_rest_on_each_other(
    tmp_path: Path, rollback: Rollback
) -> None:
    log, _ = connected(tmp_path)
    log.site.session = Session("s", rollback)
    deletes = PreparedOperation(table="t", kind=OperationKind.DELETE_WHERE, predicate="id = 1")
    one = PreparedTransaction(transaction_id=bytes(16), operations=(deletes,))
    log.site.submit(one, "ordered", 5, False)
    log.site.submit(replace(one, participants=("p",)), "ordered", 5, False)
    bodies = [decode_request(body) for body in cast(Link, log.site.link).submitted]
    assert [(body.session, body.rollback) for body in bodies] == [
        ("s", rollback),
        (None, "session"),
    ]
    with pytest.raises(InvalidRequestError, match="rollback='none' is unknown"):
        connect(cast(Any, None), "http://a", rollback=cast(Any, "none"))
