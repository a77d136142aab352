"""How a receipt prints."""

from __future__ import annotations

from sparktxlog.model.transactions.receipt import Level, Receipt, ReceiptRejection

ID = "7d444840-9dc0-11d1-b245-5ffdce74fad2"


def test_a_receipt_prints_its_level_place_and_time() -> None:
    receipt = Receipt(
        transaction_id=ID,
        n=1,
        level=Level.ORDERED,
        position=1_234,
        outcome="rejected",
        rows=2,
        ordered_at=1_700_000_000_000_000,
        rejections=(ReceiptRejection(index=0, code="conflict", text="<lost>"),),
    )
    assert str(receipt) == (
        f"transaction {ID}, level ordered, position 1,234, outcome rejected, rows 2, "
        "ordered at 2023-11-14 22:13:20.000 UTC, rejected conflict: <lost>"
    )
    assert "&lt;lost&gt;" in receipt._repr_html_()
    late = Receipt(transaction_id=None, n=5_000, level=Level.ORDERED, late=True)
    assert str(late) == "run of 5,000 transactions, level ordered (late)"
