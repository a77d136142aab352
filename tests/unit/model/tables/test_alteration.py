"""Changes of tables: what comes out, and what is refused (P33)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparktxlog.errors import (
    ColumnInUseError,
    CommitRejectedError,
    InvalidRequestError,
    NameTakenError,
    SchemaMismatchError,
    UnknownColumnError,
)
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.table import Column, TableDefinition

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


def added(name: str) -> Column:
    return Column(name=name, type="string", comment="why")


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
            Column(name="number", type="int", nullable=False, stored="id"),
            Column(name="on", type="date", stored="day"),
            Column(name="b", type="string", stored="a"),
            Column(name="c", type="string", stored="__txlog_5_c", comment="why"),
        ),
        keys=("number",),
        partition_by=("on",),
        schema_version=5,
    )
    assert change.changes_hashes and not TableChange(add=(added("c"),), keys=()).changes_hashes


def test_names_in_files_stay_and_are_never_given_again() -> None:
    """The values of a dropped column are still in the files."""
    found = TableChange(add=(added("c"),)).applied_to(TABLE)
    assert not found.is_mapped
    assert found.in_files(["id", "c"]) == ("id", "c")
    change = TableChange(rename=(("id", "number"),))
    assert not change.changes_hashes
    found = change.applied_to(found)
    assert found.is_mapped
    assert found.in_files(["number", "c"]) == ("id", "c")
    for number in (7, 9):
        found = TableChange(drop=("c",)).applied_to(found)
        found = TableChange(add=(added("c"),)).applied_to(found)
        assert found.in_files(["number", "c"]) == ("id", f"__txlog_{number + 1}_c")
    swapped = TableChange(rename=(("a", "b"), ("b", "a"))).applied_to(TABLE)
    assert swapped.in_files(["a", "b"]) == ("b", "a")


def test_who_creates_a_table_needs_no_names_in_files() -> None:
    changed = TableChange(rename=(("a", "b"), ("b", "a"))).applied_to(TABLE)
    assert changed.columns != TABLE.columns and not changed.is_like(TABLE)
    back = TableChange(rename=(("a", "b"), ("b", "a"))).applied_to(changed)
    a, b = TABLE.columns[2:]
    same = replace(TABLE, columns=(*TABLE.columns[:2], b, a), schema_version=1)
    assert changed.is_like(same)
    assert back.is_like(TABLE) and back != TABLE
    assert not back.is_like(replace(TABLE, keys=()))
    assert not back.is_like(replace(TABLE, name="T"))


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
        (TableChange(comments=(("x", "no"),)), UnknownColumnError, "no column 'x'"),
        (TableChange(comments=(("a", "no"),), drop=("a",)), UnknownColumnError, "no column 'a'"),
        (TableChange(add=(added("A"),)), NameTakenError, "'A' already"),
        (TableChange(rename=(("a", "B"),)), NameTakenError, "a column 'b' already"),
        (TableChange(add=(added("c"), added("C"))), NameTakenError, "'C' already"),
        (TableChange(drop=("a",), rename=(("a", "c"),)), InvalidRequestError, "changed twice"),
        (TableChange(rename=(("a", "a"),)), InvalidRequestError, "renamed to itself"),
        (TableChange(keys=(), drop=("id", "a", "b")), SchemaMismatchError, "every column"),
    ],
)
def test_what_is_refused(change: TableChange, error: type[CommitRejectedError], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        change.applied_to(TABLE)
    assert caught.value.fields["table"] == "t"
    assert caught.value.hint or error is SchemaMismatchError


def test_comments_and_properties_are_changed_one_by_one() -> None:
    clustered = replace(
        TABLE,
        partition_by=(),
        cluster_by=("a",),
        comment="old",
        properties=(("gone", "1"), ("kept", "2")),
    )
    change = TableChange(
        rename=(("a", "c"),),
        comment="new",
        comments=(("a", "of a"), ("id", "")),
        properties=(("gone", None), ("delta.checkpointInterval", "20"), ("never", None)),
    )
    found = change.applied_to(clustered)
    assert (found.comment, found.cluster_by, found.schema_version) == ("new", ("c",), 5)
    assert [(column.name, column.comment) for column in found.columns] == [
        ("id", ""),
        ("day", ""),
        ("c", "of a"),
        ("b", ""),
    ]
    assert found.properties == (("delta.checkpointInterval", "20"), ("kept", "2"))
    # Comments are for people, so who creates the table again need not know them.
    assert found.is_like(replace(found, comment="", columns=found.columns))
    assert not found.is_like(clustered)
    with pytest.raises(ColumnInUseError, match="'c' is a clustering column"):
        TableChange(drop=("c",)).applied_to(found)
    assert found.named("u").properties == found.properties
    other = TableChange(drop=("c",), cluster_by=("b",))
    assert other.applied_to(found).cluster_by == ("b",)
    assert TableChange(cluster_by=()).applied_to(found).cluster_by == ()
    with pytest.raises(UnknownColumnError, match="no column 'c'"):
        TableChange(cluster_by=("c",), drop=("c",)).applied_to(found)
