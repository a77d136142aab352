"""Rows that are kept as Python has them: the same tables, and nothing that would be refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sparktxlog.codec.containers.assembly import assemble_run
from sparktxlog.codec.containers.payload import split_payload
from sparktxlog.codec.rows import rows_to_arrow
from sparktxlog.codec.submits.plain_rows import MOST_ROWS, PlainRows, plain_rows, table_of
from sparktxlog.codec.submits.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.codec.submits.validation import row_schema
from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import OperationKind

APPEND, UPSERT, DELETE = OperationKind.APPEND, OperationKind.UPSERT, OperationKind.DELETE_KEYS
TYPES = {
    "b": "boolean",
    "t": "tinyint",
    "l": "bigint",
    "f": "float",
    "d": "double",
    "s": "string",
    "day": "date",
    "at": "timestamp",
    "n": "timestamp_ntz",
}


def table(keys: tuple[str, ...] = (), /, **types: str) -> TableDefinition:
    columns = tuple(Column(name=name, type=kind) for name, kind in types.items())
    return TableDefinition(name="events", columns=columns, keys=keys)


EVENTS = table(**TYPES)
FULL = {
    "b": True,
    "t": -128,
    "l": "9223372036854775807",
    "f": "NaN",
    "d": 12,
    "s": "Zürich 😀",
    "day": "0001-01-01",
    "at": "2024-01-31T10:00:00.123456+01:00",
    "n": "9999-12-31T23:59:59.999999",
}
EMPTY = dict.fromkeys(FULL)


def test_values_become_the_same_table_as_by_the_general_way() -> None:
    batches = [[FULL], [EMPTY, FULL | {"s": ""}], [EMPTY]]
    found = [plain_rows(EVENTS, APPEND, rows) for rows in batches]
    schema = row_schema(EVENTS, APPEND)
    wanted = [rows_to_arrow("events", rows, schema) for rows in batches]
    assert [one.num_rows for one in found if one is not None] == [1, 2, 1]
    together = table_of([one for one in found if one is not None])
    assert together.schema == schema
    # As bytes, because NaN does not equal itself.
    assert together.combine_chunks().to_batches()[0].serialize() == (
        pa.concat_tables(wanted).combine_chunks().to_batches()[0].serialize()
    )


def test_tables_among_plain_rows_keep_their_place() -> None:
    ids = table(l="bigint")
    schema = row_schema(ids, APPEND)

    def plain(value: int) -> PlainRows:
        found = plain_rows(ids, APPEND, [{"l": value}])
        assert found is not None
        return found

    between = rows_to_arrow("events", [{"l": 3}], schema)
    parts = [plain(1), plain(2), between, plain(4)]
    assert table_of(parts)["l"].to_pylist() == [1, 2, 3, 4]
    assert table_of([between]) is between


def test_a_run_is_the_same_whatever_its_rows_were_kept_as() -> None:
    rows = [{**FULL, "l": number} for number in range(3)]
    schema = row_schema(EVENTS, APPEND)

    def run(*kept: Any) -> tuple[bytes, list[bytes]]:
        transactions = [
            PreparedTransaction(
                transaction_id=bytes([number]) * 16,
                operations=(PreparedOperation(table="events", kind=APPEND, rows=one),),
            )
            for number, one in enumerate(kept)
        ]
        manifest, payload = assemble_run(transactions, 7)
        return manifest.content_digests, [bytes(one) for one in split_payload(payload)[1]]

    plain = [plain_rows(EVENTS, APPEND, [row]) for row in rows]
    as_table = rows_to_arrow("events", rows, schema)
    assert None not in plain
    assert run(*plain) == run(*(as_table.slice(place, 1).combine_chunks() for place in range(3)))


@pytest.mark.parametrize(
    "change",
    [
        *({"t": value} for value in (128, 1.0, True, "x", [1])),
        *({"l": value} for value in (1 << 63, "9223372036854775808")),
        *({"f": value} for value in (1e39, (1 << 24) + 1, "Inf")),
        *({"s": value} for value in (1, "\ud800", b"x")),
        *({"day": value} for value in ("2024-02-30", "10000-01-01", 5)),
        {"at": "2024-01-31T10:00:00"},
        {"n": "2024-01-31T10:00:00Z"},
        {"b": 1},
        {"more": 1},
    ],
    ids=str,
)
def test_what_is_refused_is_left_to_the_general_way(change: dict[str, Any]) -> None:
    assert plain_rows(EVENTS, APPEND, [FULL | change]) is None


def test_other_rows_are_left_to_the_general_way() -> None:
    keyed = table(("l",), l="bigint", s="string")
    row = {"l": 1, "s": "x"}
    assert plain_rows(keyed, UPSERT, [row]) is not None
    assert plain_rows(keyed, UPSERT, [row, row]) is None  # equal keys are refused
    assert plain_rows(keyed, UPSERT, [{"l": None, "s": "x"}]) is None
    assert plain_rows(keyed, DELETE, [{"l": 1}, {"l": 2}]) is not None
    assert plain_rows(keyed, APPEND, []) is None
    assert plain_rows(keyed, APPEND, [row] * MOST_ROWS) is not None
    assert plain_rows(keyed, APPEND, [row] * (MOST_ROWS + 1)) is None
    assert plain_rows(keyed, APPEND, [{"l": 1}]) is None
    assert plain_rows(keyed, APPEND, ["no object"]) is None
    for other in ("decimal(4,2)", "binary", "array<int>", "struct<a:int>", "map<string,int>"):
        assert plain_rows(table(x=other), APPEND, [{"x": None}]) is None, other
    split = TableDefinition(name="p", columns=keyed.columns, partition_by=("s",))
    assert plain_rows(split, APPEND, [row]) is None  # texts of partitions are looked at
    with pytest.raises(InvalidRequestError, match="needs keys"):
        plain_rows(EVENTS, UPSERT, [FULL])


def test_a_changed_table_has_another_plan() -> None:
    assert plain_rows(table(l="bigint"), APPEND, [{"l": 1}]) is not None
    assert plain_rows(table(l="string"), APPEND, [{"l": 1}]) is None
