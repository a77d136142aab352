"""Every type of Spark and what becomes of it in a row table: two tables of docs/tables.md.

`tools/reference.py` (make docs) writes them, a test compares the page.
`tests/spark/api/test_types.py`
sends each value of `SIMPLE` through every way of a row, and tries each type that is refused.
"""

from __future__ import annotations

import json
from typing import Any

from sparktxlog.codec.arrow import arrow_type
from sparktxlog.codec.refused_types import REFUSED_TYPES
from sparktxlog.codec.submits.validation import check_definition
from sparktxlog.errors import SchemaMismatchError
from sparktxlog.model.tables.table import Column, TableDefinition

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
    "float": 'number, `"NaN"`, `"Infinity"`, `"-Infinity"`, or `{"$double": "NaN"}` and so on',
    "binary": 'base64, or `{"$base64": "…"}`',
    "array<t>": "array",
    "struct<a:t>": "object",
    "map<k,v>": "array of `[key, value]`; an object where keys are strings",
}

_KEPT = """| type | Arrow | JSON | key | partition |
|---|---|---|---|---|
"""
_REFUSED = """| type | reason | way out |
|---|---|---|
"""


def kept_types() -> str:
    """Return the table of types that are taken, from the code that takes them."""
    kept = [_kept_line(kind, kind) for kind in SIMPLE if not kind.startswith("decimal")]
    kept.insert(7, _kept_line("decimal(p,s)", "decimal(10,2)", arrow="decimal128(p, s)"))
    kept += [_kept_line(name, "array<int>", arrow=name[:-1].partition("<")[0]) for name in NESTED]
    return _KEPT + "".join(kept)


def refused_types() -> str:
    """Return the table of types that are refused, from the code that refuses them."""
    refused = (
        f"| `{one.example}` | {one.reason} | {one.way_out} |\n" for one in REFUSED_TYPES.values()
    )
    return _REFUSED + "".join(refused)


def _kept_line(name: str, kind: str, arrow: str = "") -> str:
    shown = _JSON.get(name) or _JSON["float"] if name == "double" else _JSON.get(name)
    if shown is None:
        shown = f"`{json.dumps(SIMPLE[kind][-1])}`"
    marks = ["yes" if _may_be(role, kind) else "" for role in ("keys", "partition_by")]
    arrow = arrow or str(arrow_type(kind))
    return f"| `{name}` | `{arrow}` | {shown} | {marks[0]} | {marks[1]} |\n"


def _may_be(role: str, kind: str) -> bool:
    columns = (Column(name="a", type=kind), Column(name="b", type="int"))
    names: dict[str, Any] = {role: ("a",)}
    try:
        check_definition(TableDefinition(name="t", columns=columns, **names))
    except SchemaMismatchError:
        return False
    return True
