"""The predicate of `replace_partitions`: of inline rows and of staged files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from sparktxlog.api.writing.replaced_partitions import partitions_predicate
from sparktxlog.codec.arrow import arrow_schema
from sparktxlog.codec.predicate import normalise
from sparktxlog.codec.submits.transactions import PreparedOperation
from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import OperationKind, StagedFile

PARTS = TableDefinition(
    name="parts",
    columns=tuple(
        Column(name=name, type=kind)
        for name, kind in {
            "id": "int",
            "p": "string",
            "at": "timestamp",
            "local": "timestamp_ntz",
            "n": "decimal(5,2)",
            "day": "date",
            "b": "boolean",
        }.items()
    ),
    partition_by=("p", "at", "local", "n", "day", "b"),
)
TEXTS = {
    "p": "it's",
    "at": "2024-01-01 00:00:00.5",
    "local": "2024-01-01 00:00:00.5",
    "n": "-1.50",
    "day": "0001-01-01",
    "b": "true",
}


def _operation(**values: object) -> PreparedOperation:
    return PreparedOperation(table="parts", kind=OperationKind.APPEND, **values)  # type: ignore[arg-type]


def _staged(*partitions: Mapping[str, str | None]) -> PreparedOperation:
    files = tuple(
        StagedFile(path="f", size_bytes=1, rows=1, digest="d", partition={**one})
        for one in partitions
    )
    return _operation(files=files)


def test_inline_and_staged_rows_name_the_same_partitions() -> None:
    half = datetime(2024, 1, 1, 0, 0, 0, 500_000)
    values = {
        "id": 1,
        "p": "it's",
        "at": half.replace(tzinfo=UTC),
        "local": half,
        "n": Decimal("-1.50"),
        "day": date(1, 1, 1),
        "b": True,
    }
    rows = pa.Table.from_pylist([values, values, {"id": 2}], arrow_schema(PARTS))
    inline = partitions_predicate(PARTS, _operation(rows=rows))
    staged = partitions_predicate(PARTS, _staged(TEXTS, dict.fromkeys(TEXTS), TEXTS))
    schema = arrow_schema(PARTS)
    assert normalise(inline, schema) == normalise(staged, schema)
    assert inline.count(" OR ") == 1 and inline.count("IS NULL") == 6


def test_files_have_the_first_names_of_columns() -> None:
    renamed = TableChange(rename=(("p", "q"),)).applied_to(PARTS)
    assert renamed.in_files(["q"]) == ("p",)
    found = partitions_predicate(renamed, _staged(TEXTS | {"p": ""}))
    assert "`q` IS NULL" in normalise(found, arrow_schema(renamed)) or "q IS NULL" in found


def test_too_many_partitions_are_refused() -> None:
    table = replace(PARTS, partition_by=("p",))
    rows = [{"p": str(number)} for number in range(901)]
    given = pa.Table.from_pylist(rows, arrow_schema(table))
    normalise(partitions_predicate(table, _operation(rows=given.slice(1))), arrow_schema(table))
    with pytest.raises(InvalidRequestError, match="901 partitions"):
        partitions_predicate(table, _operation(rows=given))
