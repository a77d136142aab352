"""Runs of a batch on their way: in order, the next one encoded meanwhile, errors with a count."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from sparktxlog.api.writing.arrow_batches import send_runs, transactions_of
from sparktxlog.api.writing.rows_to_transactions import EncodedRun
from sparktxlog.errors import CommitRejectedError, SchemaMismatchError
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.model.transactions.receipt import Level, Receipt


def _run(first: int, n: int = 2) -> EncodedRun:
    return EncodedRun(first=first, n=n, transaction_id=bytes(16), payload=b"")


def _receipt(run: EncodedRun) -> Receipt:
    return Receipt(transaction_id=str(run.first), n=run.n, level=Level.ACCEPTED)


@pytest.mark.parametrize("connections", [0, 1, 2, 9])
def test_receipts_are_in_the_order_of_the_runs(connections: int) -> None:
    runs = [_run(2 * k) for k in range(7)]
    receipts = send_runs(_receipt, runs, connections)
    assert [receipt.transaction_id for receipt in receipts] == [str(run.first) for run in runs]
    assert send_runs(_receipt, [], connections) == ()


def test_the_next_run_is_encoded_while_one_is_sent_and_waits_for_its_receipt() -> None:
    encoded, sent = threading.Event(), list[int]()

    def encode() -> Iterator[EncodedRun]:
        yield _run(0)
        encoded.set()
        yield _run(2)

    def send(run: EncodedRun) -> Receipt:
        assert encoded.wait(30)
        if run.first == 0:
            raise CommitRejectedError("no")
        sent.append(run.first)
        return _receipt(run)

    with pytest.raises(CommitRejectedError):
        send_runs(send, encode())
    assert sent == []


def test_two_connections_send_at_a_time() -> None:
    both = threading.Barrier(2, timeout=30)

    def send(run: EncodedRun) -> Receipt:
        both.wait()
        return _receipt(run)

    assert len(send_runs(send, [_run(0), _run(2)], 2)) == 2


def test_an_error_counts_what_is_accepted() -> None:
    def send(run: EncodedRun) -> Receipt:
        if run.first == 5:
            raise CommitRejectedError("no", hint="Mend it.")
        return _receipt(run)

    with pytest.raises(CommitRejectedError) as caught:
        send_runs(send, [_run(0, 5), _run(5), _run(7)])
    assert caught.value.fields["accepted_transactions"] == 5
    assert caught.value.hint == "Mend it. The first 5 transactions of the batch are accepted."


EVENTS = TableDefinition(name="events", columns=(Column(name="id", type="bigint"),))


def grouped(values: Any) -> list[int]:
    """Return the transaction of each row, where `values` group them."""
    rows = pa.table({"id": range(len(values)), "by": values})
    made = transactions_of(EVENTS, OperationKind.APPEND, rows, "by")
    assert len(made) == len(set(made.groups[0].txs.tolist()))
    found = zip(made.groups[0].rows["id"].to_pylist(), made.groups[0].txs.tolist(), strict=True)
    return [tx for _, tx in sorted(found)]


@pytest.mark.parametrize(
    ("codes", "dictionary", "wanted"),
    [
        ([0, 2, 0], ["a", "nobody has it", "c"], [0, 1, 0]),  # pandas: a filtered category
        ([2, 0, 1], ["a", "b", "a"], [0, 0, 1]),
        ([1, 0], [1, 2], [0, 1]),
    ],
)
def test_a_dictionary_groups_rows_by_its_values(
    codes: list[int], dictionary: list[Any], wanted: list[int]
) -> None:
    assert grouped(pa.DictionaryArray.from_arrays(codes, dictionary)) == wanted
    assert grouped(pa.array([dictionary[code] for code in codes])) == wanted


@pytest.mark.parametrize(
    "values",
    [
        pa.DictionaryArray.from_arrays([0, 1], ["a", None]),
        pa.array(["a", None]),
        pa.array([[1], [1]]),
        pa.array([{"a": 1}, {"a": 1}]),
    ],
)
def test_what_cannot_group_rows_is_refused(values: pa.Array) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        grouped(values)
    assert caught.value.definite and caught.value.fields["column"] == "by"
