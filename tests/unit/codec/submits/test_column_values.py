"""Days and times outside the years 1 to 9999, and maps that have a key twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.arrow_types import UserType

from sparktxlog.codec.submits.column_values import (
    check_column_values,
    has_looked_at,
    has_null_key,
)
from sparktxlog.errors import InvalidRowsError

NAN = float("nan")
TEXTS, NUMBERS = pa.map_(pa.string(), pa.int32()), pa.map_(pa.float32(), pa.int32())
FIELDS = pa.map_(pa.struct([("a", pa.int32()), ("b", pa.float64())]), pa.int32())
LISTS = pa.map_(pa.list_(pa.int32()), pa.int32())
INSIDE = pa.map_(pa.int32(), pa.struct([("m", pa.list_(TEXTS))]))


def refused(column: pa.Array | pa.ChunkedArray) -> dict[str, Any]:
    with pytest.raises(InvalidRowsError) as caught:
        check(column)
    assert caught.value.definite and caught.value.hint
    fields = caught.value.fields
    assert (fields["table"], fields["column"]) == ("t", "c")
    assert f"row {fields['row']} has" in caught.value.message and "'c'" in caught.value.message
    return fields


def check(column: pa.Array | pa.ChunkedArray) -> None:
    whole = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    check_column_values("t", "c", whole)


@pytest.mark.parametrize(
    ("kind", "good", "wrong", "key"),
    [
        (TEXTS, [("a", 1), ("b", 1)], [("a", 1), ("b", 2), ("a", 3)], "'a'"),
        (NUMBERS, [(0.0, 1), (1.0, 1)], [(0.0, 1), (-0.0, 1)], "-0.0"),
        (NUMBERS, [(NAN, 1), (1.0, 1)], [(NAN, 1), (NAN, 1)], "nan"),
        (NUMBERS, [(0.5, 1), (0.25, 1)], [(0.1, 1), (0.10000000149, 1)], "0.10000000149011612"),
        (
            FIELDS,
            [({"a": 0, "b": 1.0}, 1), ({"a": None, "b": 1.0}, 1)],
            [({"a": 0, "b": 0.0}, 1), ({"a": 0, "b": -0.0}, 1)],
            "{'a': 0, 'b': -0.0}",
        ),
        (LISTS, [([1], 1), ([], 1), ([1, 1], 1)], [([1], 1), ([1], 1)], "[1]"),
        (
            INSIDE,
            [(1, {"m": [[("a", 1)], [("a", 1)], None]}), (2, {"m": [[("a", 1)]]})],
            [(1, {"m": [[("a", 1)], [("b", 1), ("b", 1)]]})],
            "'b'",
        ),
    ],
)
def test_a_map_that_has_a_key_twice(kind: pa.DataType, good: Any, wrong: Any, key: str) -> None:
    check(pa.array([good, None, [], good, good], kind))
    fields = refused(pa.array([good, None, [], wrong, good, wrong], kind))
    assert (fields["row"], fields["value"]) == (3, key)
    check(pa.array([wrong, good, None, wrong], kind).slice(1, 2))


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        (pa.decimal32(5, 1), 1, 2),
        (pa.decimal64(12, 1), 1, 2),
        (pa.decimal256(50, 1), 1, 2),
        (pa.float16(), np.float16(0), np.float16(1)),
        (pa.binary_view(), b"a", b"b"),
    ],
)
def test_keys_of_types_that_arrow_seldom_compares(
    kind: pa.DataType, first: Any, second: Any
) -> None:
    maps = pa.map_(pa.struct([("k", kind)]), pa.int32())
    check(pa.array([[({"k": first}, 1), ({"k": second}, 1), ({"k": None}, 1)]], maps))
    assert refused(pa.array([[], [({"k": first}, 1), ({"k": first}, 2)]], maps))["row"] == 1


def test_keys_that_stand_in_a_dictionary() -> None:
    def maps(*values: str) -> pa.Array:
        keys = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(values))
        return pa.MapArray.from_arrays(pa.array([0, 2], pa.int32()), keys, pa.array([1, 2]))

    check(maps("a", "b"))
    assert refused(maps("a", "a"))["value"] == "'a'"


def test_null_in_a_dictionary_of_keys_is_found() -> None:
    def keys(*words: str | None) -> pa.Array:
        return pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(words, pa.string()))

    one = pa.array([0, 1], pa.int32())
    for words, found in ((("a", "b"), False), (("a", None), True)):  # the second is no key
        values = keys("a", None)
        maps = pa.MapArray.from_arrays(one, keys(*words), values)
        assert has_null_key(maps) is found
        deep = pa.StructArray.from_arrays([pa.array([1]), maps], ["n", "m"])
        below = pa.MapArray.from_arrays(one, pa.array(["x"]), deep)
        assert has_null_key(pa.ListArray.from_arrays(one, below)) is found
        assert has_null_key(pa.FixedSizeListArray.from_arrays(below, 1)) is found
        assert has_null_key(pa.DictionaryArray.from_arrays(pa.array([0]), maps)) is found
        assert not has_null_key(values)


def test_entries_below_null_are_none() -> None:
    entries = pa.array(["a", "a"]), pa.array([1, 2], pa.int32())
    is_null = pa.array([True, False])
    check(pa.MapArray.from_arrays(pa.array([0, 2, 2], pa.int32()), *entries, mask=is_null))
    refused(pa.MapArray.from_arrays(pa.array([0, 2, 2], pa.int32()), *entries))


@pytest.mark.parametrize(
    ("kind", "per_day"),
    [
        (pa.date32(), 1),
        (pa.timestamp("s"), 86_400),
        (pa.timestamp("ms", "UTC"), 86_400 * 10**3),
        (pa.timestamp("us", "UTC"), 86_400 * 10**6),
        (pa.timestamp("us"), 86_400 * 10**6),
    ],
)
def test_days_and_times_are_of_the_years_1_to_9999(kind: pa.DataType, per_day: int) -> None:
    whole = pa.int32() if kind == pa.date32() else pa.int64()
    first, last = -719_162 * per_day, 2_932_897 * per_day - 1

    def array(*numbers: int | None) -> pa.Array:
        return pa.array(numbers, whole).view(kind)

    check(array(first, None, last))
    check(array(None))
    far = 2**31 - 1 if per_day == 1 else 2**62
    for wrong in (first - 1, last + 1, -far, far):
        fields = refused(pa.chunked_array([array(0, 1), array(), array(2, wrong, wrong)]))
        assert (fields["row"], fields["value"]) == (3, wrong)
        items = pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), array(0, 1, wrong))
        assert refused(items)["row"] == 1
        below = pa.StructArray.from_arrays([array(0, wrong)], ["x"], mask=pa.array([False, True]))
        check(below)  # values below a NULL are none
        assert refused(pa.StructArray.from_arrays([array(0, wrong)], ["x"]))["row"] == 1
        assert refused(array(0, wrong).dictionary_encode())["row"] == 1


def test_a_first_fault_is_the_first_row_of_many() -> None:
    days = [0] * 70_000
    days[40_000] = days[65_000] = 5_000_000
    column = pa.chunked_array(
        [pa.array(days[at : at + 999], pa.int32()) for at in range(0, 70_000, 999)]
    )
    assert refused(column.cast(pa.date32()))["row"] == 40_000


def test_other_columns_are_not_looked_at() -> None:
    plain = pa.struct([("n", pa.int64()), ("s", pa.list_(pa.string())), ("d", pa.decimal128(5, 2))])
    assert not has_looked_at(plain)
    assert has_looked_at(pa.list_(pa.struct([("n", pa.int64()), ("at", pa.date32())])))
    assert not has_looked_at(UserType())  # has no hash


def test_a_staged_file_is_named() -> None:
    column = pa.chunked_array([pa.array([5_000_000], pa.int32()).cast(pa.date32())])
    with pytest.raises(InvalidRowsError, match=r"row 7 of .x/a\.parquet. has a time") as caught:
        check_column_values("t", "c", column, before=7, path="x/a.parquet")
    assert (caught.value.fields["row"], caught.value.fields["path"]) == (7, "x/a.parquet")
