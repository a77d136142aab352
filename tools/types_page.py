"""Every type of Spark and what becomes of it in a row table; written to docs/types.md.

`tools/reference.py` (make docs) writes the page, a test compares it.
`tests/spark/api/test_types.py`
sends each value of `SIMPLE` through every way of a row, and tries each type that is refused.
"""

from __future__ import annotations

import json
from typing import Any

from sparktxlog.codec.arrow import arrow_type
from sparktxlog.codec.refused_types import REFUSED_TYPES
from sparktxlog.codec.validation import check_definition
from sparktxlog.errors import SchemaMismatchError
from sparktxlog.model.table import Column, TableDefinition

_FLOATS = [0.0, -0.0, -1.5, "NaN", "Infinity", "-Infinity"]
_MOMENTS = (
    "0001-01-01T00:00:00",
    "1582-10-10T12:00:00.000001",
    "1969-12-31T23:59:59.999999",
    "2024-03-31T02:30:00.5",
    "9999-12-31T23:59:59.999999",
)

#: Type that is not nested → values as JSON, which a test sends through every way of a row.
SIMPLE: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": [-128, 0, 127],
    "smallint": [-32768, 0, 32767],
    "int": [-(1 << 31), 0, (1 << 31) - 1],
    "bigint": [str(-(1 << 63)), 0, str((1 << 63) - 1)],
    "float": [*_FLOATS, 3.4028234663852886e38, 1.401298464324817e-45],
    "double": [*_FLOATS, 1.7976931348623157e308, 5e-324],
    "decimal(10,2)": ["0.01", "-99999999.99", "1.50"],
    "decimal(38,0)": ["9" * 38, "-" + "9" * 38, "0"],
    "decimal(38,38)": ["0." + "9" * 38, "-0." + "0" * 37 + "1", "0"],
    "string": ["", "a", " b ", "ä\x00\n😀", "NULL", "__HIVE_DEFAULT_PARTITION__"],
    "binary": ["", "AP8=", "YQ=="],
    "date": ["0001-01-01", "1582-10-10", "1970-01-01", "9999-12-31"],
    "timestamp": [f"{moment}Z" for moment in _MOMENTS],
    "timestamp_ntz": list(_MOMENTS),
}
_ALL = ",".join(f"f{number}:{kind}" for number, kind in enumerate(SIMPLE))

#: Nested types, which hold all others; values follow from those of `SIMPLE`.
NESTED: dict[str, str] = {
    "array<t>": f"array<struct<{_ALL}>>",
    "struct<a:t>": f"struct<{_ALL}>",
    "map<k,v>": f"map<string,struct<{_ALL}>>",
}

_JSON = {
    "bigint": "number, or string of digits",
    "float": 'number, `"NaN"`, `"Infinity"`, `"-Infinity"`',
    "binary": "base64",
    "array<t>": "array",
    "struct<a:t>": "object",
    "map<k,v>": "array of `[key, value]`; an object where keys are strings",
}

_HEAD = """# Types of columns

{note}

What a column of a row table may be, and what becomes of other types of Spark. A commit table
([catalog](catalog.md)) holds whatever Delta holds.

A type that is *kept* passes every way unchanged: `create_table` from Spark, Python or HTTP, rows
as JSON, as Arrow, small DataFrames and staged ones, the signature and MERGE.
`tests/spark/api/test_types.py` sends the extreme values of each type, and NULL at every level of
the nested ones, that way; `tests/spark/copying/test_jobs.py` copies them to another site, and
compares both.

## Kept

| type | Arrow | JSON | key | partition |
|---|---|---|---|---|
"""

_MIDDLE = """
`t`, `k` and `v` are any kept types, to 32 levels. Aliases are taken: `long`, `integer`, `short`,
`byte`, `real`, `numeric`, `dec`, `timestamp_ltz`.

- **`-0.0` and `NaN`** stay as they are. To a signature, as to SQL's `=`, `-0.0` is `0.0`, and every
  NaN is the same.
- **Dates and times** are from year 1 to 9999, before 1582 too in the calendar of today (proleptic
  Gregorian).
- **Strings** are UTF-8, also empty, with NUL characters, or of 16 MB: large ones are staged.
- **`decimal`** has 38 digits at most. A value with more digits than its column is refused, never
  rounded.
- **NOT NULL** is kept for columns. Inside nested types it is not: elements and fields take NULL.
  Keys of maps never do.
- **What Spark keeps beside a type** is not taken: defaults, identities, generated columns, and
  comments of fields inside nested types. Comments of columns are kept.

## Refused

`create_table`, and `alter_table` for a new column, refuse these at once (`schema-mismatch`), also
inside a nested type, with the reason and the way out:

| type | reason | way out |
|---|---|---|
"""

_TAIL = """
Rows with such a column are refused by the type of the table's column, with the cast that fits.
Texts with a collation are taken into a `string`: the value is the same. [Rows](rows.md) says
what rows must be like.
"""


def types_page(note: str) -> str:
    """Return docs/types.md, from the code that takes and refuses types."""
    kept = [_kept_line(kind, kind) for kind in SIMPLE if not kind.startswith("decimal")]
    kept.insert(7, _kept_line("decimal(p,s)", "decimal(10,2)", arrow="decimal128(p, s)"))
    kept += [_kept_line(name, "array<int>", arrow=name[:-1].partition("<")[0]) for name in NESTED]
    refused = (
        f"| `{one.example}` | {one.reason} | {one.way_out} |\n" for one in REFUSED_TYPES.values()
    )
    head = _HEAD.format(note=note)
    return head + "".join(kept) + _MIDDLE + "".join(refused) + _TAIL


def _kept_line(name: str, kind: str, arrow: str = "") -> str:
    shown = _JSON.get(name) or _JSON["float"] if name == "double" else _JSON.get(name)
    if shown is None:
        shown = f"`{json.dumps(SIMPLE[kind][-1])}`"
    marks = ["yes" if _may_be(role, kind) else "" for role in ("keys", "partition_by")]
    arrow = arrow or str(arrow_type(kind))
    return f"| `{name}` | `{arrow}` | {shown} | {marks[0]} | {marks[1]} |\n"


def _may_be(role: str, kind: str) -> bool:
    columns = (Column(name="a", type=kind), Column(name="b", type="int"))
    try:
        check_definition(TableDefinition(name="t", columns=columns, **{role: ("a",)}))
    except SchemaMismatchError:
        return False
    return True
