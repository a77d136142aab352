"""What is submitted under a known id is compared with what the log has under it."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from sparktxlog.codec.containers.assembly import assemble_run
from sparktxlog.codec.submits.known_contents import Content
from sparktxlog.codec.submits.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.errors import IdTakenError
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.model.transactions.receipt import Level, Receipt, ReceiptRejection

_IDS = [bytes([n]) * 16 for n in range(3)]
_LOST = ReceiptRejection(index=2, code="conflict", text="lost")


def _of(transaction_id: bytes, value: int) -> PreparedTransaction:
    rows = PreparedOperation(table="t", kind=OperationKind.APPEND, rows=pa.table({"id": [value]}))
    return PreparedTransaction(transaction_id=transaction_id, operations=(rows,))


def _receipt(n: int = 1, *rejections: ReceiptRejection) -> Receipt:
    return Receipt(transaction_id=None, n=n, level=Level.ORDERED, position=5, rejections=rejections)


def _held(*values: int) -> bytes:
    return b"".join(assemble_run([_of(_IDS[0], v)], 0)[0].content_digests for v in values)


def test_a_single_one_with_other_content_is_refused() -> None:
    own, receipt = Content(_of(_IDS[0], 1)), _receipt()
    for held in (_held(1), bytes(8), b""):
        assert own.judged(receipt, held, 5) is receipt
    with pytest.raises(IdTakenError, match="stands at position 5") as taken:
        own.judged(receipt, _held(2), 5)
    assert taken.value.definite and taken.value.fields["position"] == 5
    with pytest.raises(IdTakenError, match="under way"):
        own.check(Content(_of(_IDS[0], 2)))
    own.check(Content(_of(_IDS[0], 1)))
    for whatever in (Content(_of(_IDS[0], 1), first_wins=True), Content(_IDS[0])):
        assert whatever.judged(receipt, _held(2), 5) is receipt
        whatever.check(Content(_of(_IDS[0], 2)))


def test_of_a_run_those_are_rejected() -> None:
    manifest, _ = assemble_run([_of(one, n) for n, one in enumerate(_IDS)], 0)
    own, receipt = Content(manifest), _receipt(3, _LOST)
    assert own.judged(receipt, _held(0, 1, 2), 5) is receipt
    told = own.judged(receipt, _held(7, 1, 2), 5)
    assert told.rejections[1] == _LOST
    assert (told.rejections[0].index, told.rejections[0].code) == (0, "id-taken")
    assert "position 5" in told.rejections[0].text
    assert "position 6" in own.judged(receipt, _held(0, 7, 2), 5).rejections[0].text
    told = own.judged(receipt, _held(0, 7, 7), None)
    assert [one.index for one in told.rejections] == [1, 2]


def test_of_a_run_with_ids_of_other_runs_each_is_compared_with_its_first_one() -> None:
    manifest, _ = assemble_run([_of(one, n) for n, one in enumerate(_IDS)], 0)
    repeats = [
        ReceiptRejection(index=index, code="duplicate-transaction", text="") for index in (0, 1)
    ]
    receipt = _receipt(3, *repeats, _LOST)
    places = {_IDS[0]: 2, _IDS[1]: 3}
    held = {2: _held(0), 3: _held(7)}
    told = Content(manifest).with_taken_ids(receipt, places.get, lambda at: held[at])
    assert [one.code for one in told.rejections] == [
        "duplicate-transaction",
        "id-taken",
        "conflict",
    ]
    unknown = Content(replace(manifest, content_digests=b""))
    assert unknown.with_taken_ids(receipt, places.get, lambda at: held[at]) == receipt
    assert Content(manifest).with_taken_ids(receipt, lambda _: None, lambda at: held[at]) == receipt
