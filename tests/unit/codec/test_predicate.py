"""The language of `delete_where`."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparktxlog.codec.predicate import MAX_LENGTH, normalise
from sparktxlog.errors import InvalidRequestError

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("Name", pa.string()),
        ("active", pa.bool_()),
        ("price", pa.decimal128(10, 2)),
        ("huge", pa.decimal128(38, 0)),
        ("x", pa.float64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        ("we`ird.name", pa.int32()),
    ]
)


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("id = 3", "(`id` = 3)"),
        ("ID == 3", "(`id` = 3)"),
        ("id<>-3", "(`id` != -3)"),
        ("id <=> 3000000000", "(`id` <=> 3000000000L)"),
        ("id < 99999999999999999999", "(`id` < 99999999999999999999BD)"),
        ("price >= 1.50", "(`price` >= 1.50BD)"),
        ("x > 1e3", "(`x` > 1000.0D)"),
        ("x > -1.5E-10 or x = .5", "((`x` > -1.5e-10D) OR (`x` = 0.5BD))"),
        ("name = 'it''s'", "(`Name` = 'it\\'s')"),
        (r"name = 'a\\b\n'", "(`Name` = 'a\\\\b\\u000a')"),
        (r"name = '\u0041'", "(`Name` = 'A')"),
        ("`Name` in ('a', 'b')", "(`Name` IN ('a', 'b'))"),
        ("id not in (1,2)", "(`id` NOT IN (1, 2))"),
        ("id between 1 and 5 and active", "((`id` BETWEEN 1 AND 5) AND `active`)"),
        ("id NOT BETWEEN 1 AND 5", "(`id` NOT BETWEEN 1 AND 5)"),
        (r"name like 'a\%%'", r"(`Name` LIKE 'a\\%%')"),
        ("name not like 'a''%'", "(`Name` NOT LIKE 'a\\'%')"),
        ("name like '%'", "(`Name` LIKE '%')"),
        ("tags is not null", "(`tags` IS NOT NULL)"),
        ("NOT active", "(NOT `active`)"),
        ("not not (active or id = 1)", "(`active` OR (`id` = 1))"),
        ("true", "TRUE"),
        ("id=1 or id=2 and active", "((`id` = 1) OR ((`id` = 2) AND `active`))"),
        ("day = '2024-01-31'", "(`day` = DATE '2024-01-31')"),
        ("date '2024-01-31' < day", "(DATE '2024-01-31' < `day`)"),
        (
            "at >= '2024-01-31T10:00:00.5+01:00'",
            "(`at` >= TIMESTAMP_LTZ '2024-01-31 09:00:00.500000+00:00')",
        ),
        (
            "at < timestamp '2024-01-31 10:00:00'",
            "(`at` < TIMESTAMP_LTZ '2024-01-31 10:00:00+00:00')",
        ),
        ("at < TIMESTAMP '1970-01-01'", "(`at` < TIMESTAMP_LTZ '1970-01-01 00:00:00+00:00')"),
        ("local = '2024-01-31'", "(`local` = TIMESTAMP_NTZ '2024-01-31 00:00:00')"),
        ("local = '2024-01-31 10:00'", "(`local` = TIMESTAMP_NTZ '2024-01-31 10:00:00')"),
        ("raw = x'00ff'", "(`raw` = X'00FF')"),
        ("place.City = 'Bonn' and id > 5", "((`place`.`city` = 'Bonn') AND (`id` > 5))"),
        ("`we``ird.name` = 1", "(`we``ird.name` = 1)"),
    ],
)
def test_normal_form(given: str, normal: str) -> None:
    assert normalise(given, SCHEMA) == normal
    assert normalise(normal, SCHEMA) == normal


@pytest.mark.parametrize(
    ("given", "at", "text"),
    [
        ("idd = 3", 0, "no column 'idd'"),
        ("id = 'x'", 5, "bigint and string do not compare"),
        ("id = true", 5, "do not compare"),
        ("active > false", 9, "by order"),
        ("id", 2, "expected a comparison"),
        ("id =", 4, "a value is wanted"),
        ("id = 3 active", 7, "one word too much"),
        ("(id = 3", 7, ") is wanted"),
        ("id = NULL", 5, "no value equals NULL"),
        ("id = 3 + 1", 7, "one word too much"),
        ("id + 1 = 3", 3, "arithmetic"),
        ("id * 2 = 3", 3, "arithmetic"),
        ("rand() > 0.5", 0, "function 'rand' is not allowed"),
        ("at < now()", 5, "function 'now' is not allowed"),
        ("at < current_timestamp", 5, "no column 'current_timestamp'"),
        ("id = (select 1)", 5, "a value is wanted"),
        ("lower(name) = 'a'", 0, "function 'lower' is not allowed"),
        ("name = trim('a')", 7, "function 'trim' is not allowed"),
        ('name = "x"', 7, "ambiguous"),
        ("name = 'x", 7, "is not closed"),
        ("`name = 'x'", 0, "is not closed"),
        (r"name = '\q'", 8, "escape"),
        (r"name = '\ud800'", 8, "surrogate"),
        (r"name like 'a\\b%'", 10, "one % at its end"),
        ("name like 'a'", 10, "one % at its end"),
        ("name like '%a'", 10, "one % at its end"),
        ("name like 'a%b%'", 10, "one % at its end"),
        ("name like 'a%%'", 10, "one % at its end"),
        ("name like 'a_%'", 10, "one % at its end"),
        (r"name like 'a\%'", 10, "one % at its end"),
        ("id like 'a'", 0, "LIKE tests text"),
        ("name like name", 10, "LIKE takes a text literal"),
        ("name rlike 'a'", 5, "expected a comparison"),
        ("id in (1, id)", 10, "list of literals"),
        ("id in ()", 7, "a value is wanted"),
        ("huge = 0.5", 7, "no exact common type"),
        ("day = '2024-13-01'", 6, "no date"),
        ("at = '2024-01-01T00:00:00.1234567Z'", 5, "6 digits"),
        ("local = '2024-01-01T00:00:00Z'", 8, "has a zone"),
        ("interval '1' = 3", 0, "no type of a literal"),
        ("place.street = 'x'", 6, "no field"),
        ("tags = 'x'", 7, "do not compare"),
        ("id = 3; drop table t", 6, "not understood"),
        ("id = 3 -- x", 7, "one word too much"),
        ("id = 3x", 6, "ends with a digit"),
        ("id = 3.5L", 5, "not a bigint"),
        ("x = 1e999", 4, "beyond a double"),
        ("id = " + "9" * 39, 5, "38 digits"),
        ("(" * 200 + "active" + ")" * 200, 64, "deep"),
        ("and", 0, "a value is wanted"),
        ("id not 3", 7, "IN, BETWEEN or LIKE"),
        ("id is 3", 6, "NULL is wanted"),
    ],
)
def test_what_is_outside_the_language_is_refused_with_its_place(
    given: str, at: int, text: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        normalise(given, SCHEMA)
    assert text in str(caught.value)
    assert caught.value.fields["at"] == at
    assert f"character {at + 1}:" in str(caught.value)


def test_the_error_points_at_the_character() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        normalise("active and nmae = 'x'", SCHEMA)
    lines = caught.value.message.splitlines()
    assert lines[1][lines[2].index("^") :].startswith("nmae")
    assert caught.value.hint == "Did you mean 'Name'?"


@pytest.mark.parametrize("given", ["lower(name) = 'a'", "name like '%a'"])
def test_the_refusal_names_what_is_allowed(given: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        normalise(given, SCHEMA)
    assert "IN, BETWEEN, IS NULL, AND, OR, NOT and LIKE 'prefix%'" in caught.value.hint


@pytest.mark.parametrize("given", ["", "   ", "id = 1 or " * 7000 + "id = 1", None])
def test_empty_and_endless_predicates_are_refused(given: str) -> None:
    with pytest.raises(InvalidRequestError):
        normalise(given, SCHEMA)


def test_the_number_of_tests_is_bounded() -> None:
    text = " or ".join(["id = 1"] * 1001)
    assert len(text) < MAX_LENGTH
    with pytest.raises(InvalidRequestError, match="more than 1,000 tests"):
        normalise(text, SCHEMA)
    assert normalise(" or ".join(["id = 1"] * 1000), SCHEMA).count("OR") == 999


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("id in (" + "1," * 10_000 + "1)", "10,000 literals"),
        ("id = 0e99999999999999999999BD", "38 digits"),
        ("id = 1e-99999999999999999999BD", "38 digits"),
        ("id = 0." + "0" * 400, "400 characters"),
        ("at = '0001-01-01T00:00:00+14:00'", "is no timestamp"),
        ("at = timestamp '9999-12-31T23:00:00-14:00'", "is no timestamp"),
    ],
)
def test_what_would_take_long_or_overflow_is_refused(given: str, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text):
        normalise(given, SCHEMA)
