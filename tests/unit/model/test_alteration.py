"""Changes of tables: what comes out, and what is refused (P33)."""

from __future__ import annotations

import pytest

from sparktxlog.errors import (
    ColumnInUseError,
    CommitRejectedError,
    InvalidRequestError,
    NameTakenError,
    SchemaMismatchError,
    UnknownColumnError,
)
from sparktxlog.model.alteration import AddedColumn, TableChange
from sparktxlog.model.table import Column, TableDefinition

TABLE = TableDefinition(
    name="t",
    columns=(
        Column(name="id", type="int", nullable=False),
        Column(name="day", type="date"),
        Column(name="a", type="string"),
        Column(name="b", type="string"),
    ),
    keys=("id",),
    partition_by=("day",),
    schema_version=4,
)


def added(name: str) -> AddedColumn:
    return AddedColumn(name=name, type="string", comment="why")


def test_all_of_a_change_happens_at_once() -> None:
    change = TableChange(
        add=(added("c"),),
        rename=(("a", "b"), ("id", "number"), ("day", "on")),
        drop=("b",),
        widen=(("id", "bigint"),),
    )
    with pytest.raises(InvalidRequestError, match="'id' is changed twice"):
        change.applied_to(TABLE)
    change = TableChange(
        add=(added("c"),), rename=(("a", "b"), ("id", "number"), ("day", "on")), drop=("b",)
    )
    found = change.applied_to(TABLE)
    assert found == TableDefinition(
        name="t",
        columns=(
            Column(name="number", type="int", nullable=False),
            Column(name="on", type="date"),
            Column(name="b", type="string"),
            Column(name="c", type="string"),
        ),
        keys=("number",),
        partition_by=("on",),
        schema_version=5,
    )
    assert change.rewrites and not TableChange(add=(added("c"),), keys=()).rewrites


def test_types_and_keys() -> None:
    found = TableChange(widen=(("id", "bigint"),)).applied_to(TABLE)
    assert found.columns[0] == Column(name="id", type="bigint", nullable=False)
    assert TableChange(keys=()).applied_to(TABLE).keys == ()
    new = TableChange(add=(added("c"),), keys=("c", "a"), drop=("id",)).applied_to(TABLE)
    assert (new.keys, [column.name for column in new.columns]) == (
        ("c", "a"),
        ["day", "a", "b", "c"],
    )


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (TableChange(), InvalidRequestError, "changes nothing"),
        (TableChange(drop=("x",)), UnknownColumnError, "no column 'x'"),
        (TableChange(rename=(("x", "y"),)), UnknownColumnError, "no column 'x'"),
        (TableChange(widen=(("x", "int"),)), UnknownColumnError, "no column 'x'"),
        (TableChange(keys=("x",)), UnknownColumnError, "no column 'x'"),
        (TableChange(drop=("a",), keys=("a",)), UnknownColumnError, "no column 'a'"),
        (TableChange(drop=("id",)), ColumnInUseError, "'id' is a key column"),
        (TableChange(drop=("day",)), ColumnInUseError, "'day' is a partition column"),
        (TableChange(add=(added("A"),)), NameTakenError, "'A' already"),
        (TableChange(rename=(("a", "B"),)), NameTakenError, "a column 'b' already"),
        (TableChange(add=(added("c"), added("C"))), NameTakenError, "'C' already"),
        (TableChange(drop=("a",), rename=(("a", "c"),)), InvalidRequestError, "changed twice"),
        (TableChange(keys=(), drop=("id", "a", "b")), SchemaMismatchError, "every column"),
    ],
)
def test_what_is_refused(change: TableChange, error: type[CommitRejectedError], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        change.applied_to(TABLE)
    assert caught.value.fields["table"] == "t"
    assert caught.value.hint or error is SchemaMismatchError
