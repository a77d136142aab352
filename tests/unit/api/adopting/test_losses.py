"""What a table says of itself is kept, refused, or named as left behind."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import types as T

from sparktxlog.api.adopting.losses import left_behind, obstacles_of
from sparktxlog.delta.log_state import LogState


def log(
    *features: str, domains: dict[str, str] | None = None, writers: tuple[str, ...] = (), **of: str
) -> LogState:
    return LogState(
        version=3,
        protocol={"readerFeatures": [], "writerFeatures": list(features)},
        metadata={"configuration": {name.replace("__", "."): of[name] for name in of}},
        domains=domains or {},
        transactions=dict.fromkeys(writers, 1),
    )


def column(kind: T.DataType | str = "string", *, nullable: bool = True, **metadata: Any) -> Any:
    named = {name.replace("__", "."): value for name, value in metadata.items()}
    return T.StructType().add("c", kind, nullable, named)


PLAIN = column()
TWICE = "a stream that goes on may write its last batch twice"


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (column(), []),
        (column(nullable=False, comment="kept", delta__columnMapping__id=3), []),
        (column("long", CURRENT_DEFAULT="7", EXISTS_DEFAULT="7"), ["the default of column 'c'"]),
        (column(ml_attr={"type": "nominal"}), ["metadata 'ml_attr' of column 'c'"]),
        (column(delta__newThing="1"), ["metadata 'delta.newThing' of column 'c'"]),
        (
            column(T.ArrayType(column(comment="lost"))),
            ["the comment of column 'c.element.c'"],
        ),
        (
            column(T.MapType(T.StringType(), T.LongType(), False)),
            ["that fields, elements or values inside column 'c' take no NULL"],
        ),
        (
            column(T.ArrayType(column("integer", nullable=False))),
            ["that fields, elements or values inside column 'c' take no NULL"],
        ),
    ],
)
def test_metadata_of_columns(columns: T.StructType, said: list[str]) -> None:
    assert left_behind(log(), columns, ()) == said
    assert obstacles_of(log(), columns) == []


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (
            {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"},
            (
                "is char(5): nobody would check its length, or fill it with blanks (ALTER TABLE … "
                "ALTER COLUMN c TYPE string)"
            ),
        ),
        (
            {"__CHAR_VARCHAR_TYPE_STRING": "struct<a:varchar(3),b:int>"},
            (
                "is struct<a:varchar(3),b:int>: nobody would check its length (ALTER TABLE … ALTER "
                "COLUMN c TYPE struct<a:string,b:int>)"
            ),
        ),
        ({"delta.identity.start": 1, "delta.identity.step": 1}, "is an identity column, "),
        ({"delta.generationExpression": "1"}, "is generated, "),
        ({"delta.invariants": "{}"}, "has an invariant, "),
    ],
)
def test_what_the_log_would_not_check_is_refused(metadata: dict[str, Any], said: str) -> None:
    for columns, path in (
        (T.StructType().add("c", "string", True, metadata), "c"),
        (column(T.StructType().add("d", "string", True, metadata)), "c.d"),
    ):
        (found,) = obstacles_of(log(), columns)
        assert found.startswith(f"column '{path}' {said}".replace("COLUMN c", f"COLUMN {path}"))
        assert left_behind(log(), columns, ()) == []


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (log("appendOnly", delta__appendOnly="false", team="sales"), []),
        (log(delta__minReaderVersion="2", delta__feature__x="supported"), []),
        (log(delta__appendOnly="true"), ["that it is append-only"]),
        (
            log("deletionVectors", delta__enableDeletionVectors="true"),
            ["that deletes are written as deletion vectors"],
        ),
        (log("clustering"), []),
        (
            log("clustering", domains={"delta.clustering": '{"clusteringColumns":[["a","b"]]}'}),
            ["its clustering"],
        ),
        (log(domains={"mine": "{}", "delta.rowTracking": "{}"}), ["the metadata of domain 'mine'"]),
        (
            log(writers=("e", "b", "c", "a", "d")),
            [f"how far a, b, c and 2 more came ({TWICE})"],
        ),
    ],
)
def test_properties_domains_and_writers(table: LogState, said: list[str]) -> None:
    assert left_behind(table, PLAIN, ()) == said
    assert obstacles_of(table, PLAIN) == []


def test_a_false_that_is_no_default_is_named() -> None:
    (said,) = left_behind(log(delta__enableFullRetentionRollback="false"), PLAIN, ())
    assert said.startswith("property delta.enableFullRetentionRollback")


def test_features_that_nobody_knows_are_refused() -> None:
    found = obstacles_of(log("ofTomorrow", "variantType", delta__constraints__small="v < 1"), PLAIN)
    unknown, variant, constraint = found
    start = "it has feature '{}', which row tables do not have: "
    assert unknown.startswith(f"{start.format('ofTomorrow')}nobody knows what it asks of writers (")
    assert variant.startswith(f"{start.format('variantType')}row tables have no columns of type")
    assert constraint.startswith("it has the constraint 'small', which the log would not check (")
