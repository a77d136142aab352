"""What the job `commit` says of its receipt."""

from __future__ import annotations

from dataclasses import asdict

from sparktxlog.api.jobs.ingest import Ingest, describe
from sparktxlog.model.transactions.receipt import Level, Receipt

RECEIPT = Receipt(transaction_id="x", n=1, level=Level.ORDERED, position=1234, outcome="committed")


def said(receipt: Receipt, **change: object) -> str:
    result = {"transactions": receipt.n, **asdict(receipt), **change}
    return describe(Ingest(table="t", source="s", level="applied"), result)


def test_a_batch_is_told_in_a_sentence() -> None:
    wanted = Ingest(table="t", source="in.csv", transaction_column="day")
    runs = [{"level": Level.ORDERED, "position": 7}, {"level": Level.ORDERED, "position": 9}]
    result = {"transactions": 2_000, "rows": 3_000, "runs": runs, "late": False, "rejections": [1]}
    assert describe(wanted, result) == (
        "append of in.csv to t: 2,000 transactions of 3,000 rows, ordered from position 7 on; "
        "1 rejected"
    )


def test_a_late_level_is_named() -> None:
    text = "append of s to t: transaction x is ordered at position 1,234"
    assert said(RECEIPT) == text
    assert said(RECEIPT, late=True) == f"{text}; applied is late"


def test_no_rows_are_named() -> None:
    text = "append of s to t: no rows, so nothing was submitted"
    assert said(Receipt.of_nothing(Level.APPLIED)) == text
