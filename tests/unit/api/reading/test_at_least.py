"""What a reader waits for, as positions of a log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from sparktxlog.api.reading.at_least import LeastPosition, come_after, least_position
from sparktxlog.api.writing.arrow_batches import BatchReceipt
from sparktxlog.api.writing.rows_to_transactions import GroupedReceipt
from sparktxlog.errors import InvalidRequestError, LocalProtocolError
from sparktxlog.model.transactions.receipt import Level, Receipt


def ordered(position: int, n: int = 1) -> Receipt:
    return Receipt(
        transaction_id="x" if n == 1 else None,
        n=n,
        level=Level.ORDERED,
        position=position,
        log_id="l",
    )


def test_the_last_transaction_of_a_receipt_is_waited_for() -> None:
    assert least_position(None) == least_position(0) == LeastPosition()
    assert least_position(7) == LeastPosition(position=7)
    assert least_position(ordered(7)) == LeastPosition(position=7, log_id="l")
    assert least_position(ordered(7, n=3)) == LeastPosition(position=9, log_id="l")
    runs = (ordered(20, n=5), ordered(7, n=2))
    grouped = GroupedReceipt(transactions=7, rows=7, runs=runs, mapping=pa.table({}))
    for batch in (BatchReceipt(receipts=runs, ids=b""), grouped):
        assert least_position(batch) == LeastPosition(position=24, log_id="l")


def test_without_rows_there_is_nothing_to_wait_for() -> None:
    assert least_position(Receipt.of_nothing(Level.ORDERED)) == LeastPosition()
    assert least_position(BatchReceipt(receipts=(), ids=b"")) == LeastPosition()


def test_what_has_no_position_yet_is_told() -> None:
    accepted = Receipt(transaction_id="x", n=1, level=Level.ACCEPTED)
    batch = BatchReceipt(receipts=(ordered(3), accepted), ids=b"")
    for receipt in (accepted, batch):
        with pytest.raises(LocalProtocolError, match="receipt of x has no position") as caught:
            least_position(receipt)
        assert "log.find" in caught.value.hint and caught.value.definite


@pytest.mark.parametrize("given", ["own ", {"position": 3}, 3.5])
def test_other_values_are_refused(given: Any) -> None:
    with pytest.raises(InvalidRequestError, match="expected a position or a receipt"):
        least_position(given)


def test_what_comes_after_a_receipt_is_asked_of_its_log() -> None:
    """A bare position is believed; of a receipt a node says whether it is of its log."""
    asked: list[Any] = []
    link: Any = SimpleNamespace(
        get=lambda path, **query: asked.append((path, query)),
        after=lambda position: asked.append(position),
    )
    come_after(link, 7)
    come_after(link, ordered(7, n=3))
    assert asked == [7, ("/v1/published", {"at_least": 9, "log_id": "l"}), 9]
