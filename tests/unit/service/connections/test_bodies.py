"""Rows in JSON: what passes takes no more memory than is said, whatever it looks like."""

from __future__ import annotations

import tracemalloc

import pyarrow as pa
import pytest

from sparktxlog.codec.containers.runs import RunLimits
from sparktxlog.codec.submits.requests import decode_request, prepare
from sparktxlog.errors import OversizeError, TxLogError
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.service.connections import bodies
from sparktxlog.service.connections.bodies import check_unfolding

COLUMNS = (Column(name="id", type="bigint"), Column(name="v", type="array<string>"))
TABLES = {"t": TableDefinition(name="t", columns=COLUMNS)}
LIMITS = RunLimits(transactions=1, size_bytes=64 << 20)
#: A tenth of the real limit: what rows take grows with their number.
LIMIT = bodies.ROWS_UNFOLDED_BYTES // 10


def body(rows: str) -> bytes:
    return ('{"operations":[{"kind":"append","table":"t","rows":[' + rows + "]}]}").encode()


def most(before: str, unit: str, after: str) -> bytes:
    """Return the transaction with as many repeats of a unit as pass the check."""
    each = bodies._unfolded(memoryview(unit.encode() * 100)) / 100
    made, beyond = (
        body(before + (unit * int(size / each)).rstrip(",") + after)
        for size in (LIMIT - 1_000, LIMIT + 1_000)
    )
    check_unfolding(made)
    with pytest.raises(OversizeError, match="Send the rows as Arrow"):
        check_unfolding(beyond)
    return made


@pytest.mark.parametrize(
    ("before", "unit", "after"),
    [
        ("", '{"id":1234567,"v":["some text"]},', ""),
        ("", '{"id":1234567,"v":null},', ""),
        ("", '{"id":1234567,"v":["\\ud83d\\ude00 and text"]},', ""),
        ('{"id":1,"v":[', '"ab",', "]}"),
        ('{"id":1,"v":[', '"a😀",', "]}"),
        ('{"id":1,"v":["', "x", '"]}'),
        ('{"id":1,"v":["😀', "x" * 99 + "é", '"]}'),
        ("", "{},", ""),
        ("", "[[]],", ""),
        ("", "0.5,", ""),
    ],
)
def test_rows_take_no_more_than_is_reckoned(
    monkeypatch: pytest.MonkeyPatch, before: str, unit: str, after: str
) -> None:
    monkeypatch.setattr(bodies, "ROWS_UNFOLDED_BYTES", LIMIT)
    monkeypatch.setattr(bodies, "_MAX_OBJECTS", 1_000)
    made = most(before, unit, after)
    prepare(decode_request(body('{"id":1,"v":[]}')), bytes(16), TABLES, LIMITS)
    arrow = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        try:
            prepared = prepare(decode_request(made), bytes(16), TABLES, LIMITS)
        except TxLogError:
            prepared = None
        peak = tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - arrow
    finally:
        tracemalloc.stop()
    del prepared
    assert peak < 1.1 * LIMIT


def test_what_cannot_be_read_is_left_to_who_says_why() -> None:
    for made in (b"[" * 300_000, b"\xff" * 300_000, b'{"operations":3}' + b" " * 300_000):
        check_unfolding(made)
        with pytest.raises(TxLogError, match="cannot be read"):
            decode_request(made)
