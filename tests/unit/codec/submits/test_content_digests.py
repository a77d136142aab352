"""What the content of a transaction is known by: the same for the same rows, in whatever form."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparktxlog.codec.containers.assembly import assemble_run
from sparktxlog.codec.containers.runs import RunLimits, validate_run
from sparktxlog.codec.submits.content_digests import ContentDigests, differing
from sparktxlog.codec.submits.transactions import (
    PreparedOperation,
    PreparedTransaction,
    StagedCommitRequest,
)
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.commit_table import CommitKind, CommitOperation
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.conditions import Condition
from sparktxlog.model.transactions.operation import Mark, OperationKind, StagedFile

_TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False]),
    "tinyint": (pa.int8(), [0, -1, 127]),
    "bigint": (pa.int64(), [0, -1, 1 << 62, (1 << 62) + 1]),
    "double": (pa.float64(), [0.5, -1e300, float("inf"), float("nan"), 0.0]),
    "decimal": (pa.decimal128(38, 2), [Decimal("1.50"), Decimal("-1.50"), Decimal(10**34)]),
    "string": (pa.string(), ["", "\0", "a", "b", "ab", "ba", "a" * 8, "a" * 9, "é" * 40]),
    "binary": (pa.binary(), [b"", b"\0", b"\0\0", b"\xff" * 17, b"\xff" * 16 + b"\x7f"]),
    "date": (pa.date32(), [date(1, 1, 1), date(2024, 2, 29)]),
    "timestamp": (pa.timestamp("us", "UTC"), [datetime(2024, 1, 1, 0, 0, 0, 1, UTC)]),
    "array": (pa.list_(pa.int64()), [[], [0], [None], [0, 1], [1, 0], [0, None]]),
    "nested": (pa.list_(pa.list_(pa.string())), [[], [[]], [["a"], ["b"]], [["a", "b"]]]),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        [{"a": 1, "b": None}, {"a": None, "b": "1"}, {"a": None, "b": None}],
    ),
    "map": (pa.map_(pa.string(), pa.int64()), [[], [("a", 1)], [("a", 2)], [("b", 1)]]),
}


def _digest(*operations: PreparedOperation, **more: Any) -> bytes:
    one = PreparedTransaction(transaction_id=bytes(16), operations=operations, **more)
    return assemble_run([one], 0)[0].content_digests


def _rows(table: pa.Table, kind: OperationKind = OperationKind.APPEND) -> PreparedOperation:
    return PreparedOperation(table="t", kind=kind, rows=table)


@pytest.mark.parametrize("name", _TYPES)
def test_each_value_of_each_type_counts_and_its_place_in_memory_does_not(name: str) -> None:
    kind, values = _TYPES[name]
    column = pa.array([*values, None], kind)
    alone = [_digest(_rows(pa.table({"c": column.slice(at, 1)}))) for at in range(len(column))]
    assert len(set(alone)) == len(column)
    # In a run, cut from something longer, and in several chunks.
    n = len(column)
    longer = pa.chunked_array([column.slice(1), column.slice(0, 1), column])
    for table in (pa.table({"c": column}), pa.table({"c": longer}).slice(n)):
        digests = ContentDigests(n)
        places = np.arange(n, dtype=np.int32)
        digests.add_rows("t", "append", table, places, np.zeros(n, np.int32))
        assert digests.to_bytes() == b"".join(alone)
    # In whatever order, and each as often as it is there.
    chance = random.Random(1)
    several = pa.table({"c": pa.concat_arrays([column, column])})
    order = chance.sample(range(2 * n), 2 * n)
    assert _digest(_rows(several)) == _digest(_rows(several.take(order)))
    assert _digest(_rows(several)) != _digest(_rows(several.slice(1)))


def test_what_is_the_same_in_another_form() -> None:
    table = pa.table({"a": pa.array([1, 2], pa.int32()), "b": ["x", None]})
    same = _digest(_rows(table))
    wider = table.set_column(0, "a", table["a"].cast(pa.int64()))
    assert _digest(_rows(wider)) == same, "a widened column"
    added = table.append_column("c", pa.nulls(2, pa.string()))
    assert _digest(_rows(added)) == same, "a column that the table got since"
    assert _digest(_rows(table.select(["b", "a"]))) == same
    assert _digest(_rows(pa.table({"a": [2, 1], "b": ["x", None]}))) != same
    zeros = [_digest(_rows(pa.table({"a": [zero]}))) for zero in (0.0, -0.0)]
    assert zeros[0] == zeros[1], "they are one value"
    entries = [[("a", 1), ("b", 2)], [("b", 2), ("a", 1)]]
    maps = [pa.table({"m": pa.array([one], pa.map_(pa.string(), pa.int64()))}) for one in entries]
    assert _digest(_rows(maps[0])) == _digest(_rows(maps[1]))
    # A job that runs again has read later, and waits for other things.
    more = {"condition": Condition(read_position=7, reads=("t",)), "valid_until": 5, "session": "s"}
    assert _digest(_rows(table), **more) == same


def test_staged_rows_count_by_their_claim_or_else_by_their_files() -> None:
    claim = TableSignature(rows=2, lane0=1 << 63, lane1=5)
    files = [
        StagedFile(path=f"p/{n}", size_bytes=n, rows=2 - n % 2, digest=f"{n:064x}")
        for n in range(1, 4)
    ]
    plain = PreparedOperation(table="t", kind=OperationKind.APPEND)
    claimed = _digest(replace(plain, files=tuple(files[:2]), claim=claim))
    assert claimed == _digest(replace(plain, files=tuple(files[2:]), claim=claim))
    assert claimed == _digest(replace(plain, rows=pa.table({"a": [1, 2]}), claim=claim))
    assert claimed != _digest(replace(plain, files=tuple(files[:2]), claim=claim + claim))
    unclaimed = _digest(replace(plain, files=tuple(files)))
    assert unclaimed == _digest(replace(plain, files=tuple(files[::-1])))
    assert unclaimed != _digest(replace(plain, files=tuple(files[:2])))
    # Claimed and unclaimed rows of one table and kind, in one run.
    both = (_rows(pa.table({"a": [1]})), replace(plain, rows=pa.table({"a": [1]}), claim=claim))
    transactions = [
        PreparedTransaction(transaction_id=bytes([n]) * 16, operations=(one,))
        for n, one in enumerate(both)
    ]
    found = assemble_run(transactions, 0)[0].content_digests
    assert found == b"".join(map(_digest, both))


def test_all_that_an_operation_says_counts() -> None:
    rows = _rows(pa.table({"a": [1]}))
    definition = TableDefinition(name="t", columns=(Column(name="a", type="bigint"),))
    create = PreparedOperation(table="t", kind=OperationKind.CREATE_TABLE, definition=definition)
    alter = PreparedOperation(
        table="t", kind=OperationKind.ALTER_TABLE, change=TableChange(rename=(("a", "b"),))
    )
    where = PreparedOperation(table="t", kind=OperationKind.DELETE_WHERE, predicate="a = 1")
    uuid = "00000000-0000-4000-8000-000000000001"
    staged = StagedCommitRequest(
        table_id=uuid, proposed_version=3, timestamp=9, file_name="x.json", file_size=1
    )
    commit = CommitOperation(kind=CommitKind.COMMIT, uuid=uuid, version=3, timestamp=9)
    mark = Mark(transaction_id=b"x" * 16, participant="p", yes=True)
    different = [
        _digest(),
        _digest(rows),
        _digest(rows, rows),
        _digest(replace(rows, table="u")),
        _digest(replace(rows, kind=OperationKind.OVERWRITE)),
        _digest(rows, where),
        _digest(where, rows),
        _digest(where),
        _digest(replace(where, predicate="a = 2")),
        _digest(create),
        _digest(replace(create, definition=replace(definition, keys=("a",)))),
        _digest(replace(create, definition=replace(definition, comment="c"))),
        _digest(alter),
        _digest(replace(alter, change=TableChange(rename=(("a", "c"),)))),
        _digest(replace(alter, change=TableChange(add=(Column(name="c", type="int"),)))),
        _digest(rows, participants=("p",)),
        _digest(rows, participants=("p", "q")),
        _digest(mark=mark),
        _digest(mark=replace(mark, yes=False)),
        _digest(mark=replace(mark, participant="q")),
        _digest(mark=replace(mark, transaction_id=bytes(16))),
        _digest(rows, commits=(commit,)),
        _digest(commits=(commit,)),
        _digest(commits=(replace(commit, version=4),)),
        _digest(commits=(replace(commit, timestamp=10),)),
    ]
    assert len(set(different)) == len(different)
    assert bytes(8) not in different
    assert _digest(commits=(commit,)) == _digest(staged_commits=(staged,))
    assert _digest(create, rows, where) == _digest(rows, where), "it is there when it comes again"
    # What follows from the tables that are there.
    later = replace(definition, schema_version=4, first_version=4, properties=(("a", "b"),))
    assert _digest(replace(create, definition=later)) == _digest(create)
    assert _digest(replace(rows, schema_version=9)) == _digest(rows)


def test_a_run_of_a_client_has_the_digests_of_single_transactions() -> None:
    definition = TableDefinition(name="t", columns=(Column(name="a", type="bigint"),))
    transactions = [
        PreparedTransaction(
            transaction_id=n.to_bytes(16, "big"),
            operations=tuple(_rows(pa.table({"a": [n, at]})) for at in range(1 + n % 3)),
        )
        for n in range(50)
    ]
    manifest, payload = assemble_run(transactions, 0)
    lied = replace(manifest, content_digests=b"")
    assert validate_run(payload, {"t": definition}, RunLimits()) == manifest != lied
    alone = [assemble_run([one], 0)[0].content_digests for one in transactions]
    assert manifest.content_digests == b"".join(alone)


def test_what_is_not_known_does_not_differ() -> None:
    one, other = b"1" * 8, b"2" * 8
    assert differing(one + one, one + other) == [1]
    assert differing(one + bytes(8), other + other) == [0]
    assert differing(b"", one) == differing(one, b"") == differing(b"", b"") == []


def test_the_bytes_stay_the_same() -> None:
    """Nodes of different releases compare them."""
    table = pa.table({"a": [1, 2], "s": ["x" * 20, None], "l": [[1.5], []]})
    where = PreparedOperation(table="t", kind=OperationKind.DELETE_WHERE, predicate="a = 1")
    change = TableChange(add=(Column(name="c", type="int"),))
    alter = PreparedOperation(table="t", kind=OperationKind.ALTER_TABLE, change=change)
    assert _digest(_rows(table)).hex() == "0c2a3606e02e5a53"
    assert _digest(where, alter).hex() == "d024039d294c4784"
