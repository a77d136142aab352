"""Column types in Delta's JSON and in that of the catalog's API, which writes keys with hyphens.

Both say `"long"` or `"decimal(10,2)"` for a plain type, and an object for an array, a map or a
struct.  Names and metadata of fields are the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparktxlog.codec.lexer import quoted_name
from sparktxlog.errors import InvalidRequestError

#: Deepest nesting of a type.
_DEEPEST = 100
#: Deepest nesting of JSON in a request, a schema or a domain; half of what encoders can do, because
#: an answer has it inside of other values.
DEEPEST_JSON = 400
#: Key of Delta → key of the API, for keys that hold types and for others.
_TYPES = {"elementType": "element-type", "keyType": "key-type", "valueType": "value-type"}
_FLAGS = {"containsNull": "contains-null", "valueContainsNull": "value-contains-null"}
_TO_API = _TYPES | _FLAGS
_TO_DELTA = {theirs: ours for ours, theirs in _TO_API.items()}
#: Plain type of Delta → its name in DDL, where that is another one.
_DDL = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


def check_nesting(field: str, value: Any) -> None:
    """Check that decoded JSON is not nested so deeply that it cannot be compared or encoded.

    Raises:
        InvalidRequestError: It is (definite).
    """
    left = [value]
    for _ in range(DEEPEST_JSON):
        left = [
            inner
            for one in left
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not left:
            return
    raise InvalidRequestError(
        f"{field} is nested more than {DEEPEST_JSON} levels deep",
        hint="Give plain values, arrays and objects with fewer levels.",
        field=field,
        value=f"more than {DEEPEST_JSON} levels",
    )


def to_api_type(found: Any) -> Any:
    """Return a type of Delta's schema string as the API writes it."""
    return _renamed(found, _TO_API, _DEEPEST)


def to_delta_type(found: Any) -> Any:
    """Return a type of a request as Delta's schema string writes it.

    Raises:
        InvalidRequestError: It is no type, or nested too deeply (definite).
    """
    return _renamed(found, _TO_DELTA, _DEEPEST)


def to_ddl(kind: Any) -> str:
    """Return a type of Delta's schema string as DDL, also one that no row table has."""
    if isinstance(kind, str):
        return _DDL.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{to_ddl(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{to_ddl(kind['keyType'])},{to_ddl(kind['valueType'])}>"
    fields = (f"{quoted_name(one['name'])}:{to_ddl(one['type'])}" for one in kind["fields"])
    return f"struct<{','.join(fields)}>"


def _renamed(found: Any, names: Mapping[str, str], depth: int) -> Any:
    if isinstance(found, str):
        return found
    if not isinstance(found, dict) or not depth:
        raise InvalidRequestError(
            f"{str(found)[:80]!r} is no column type",
            hint="A type is a text or an object with the key 'type', 100 levels deep at most.",
            field="columns",
            value=str(found)[:80],
        )
    holds_types = {*_TYPES, *_TYPES.values()}
    renamed = {}
    for key, value in found.items():
        if key == "fields" and isinstance(value, list):
            value = [_field(one, names, depth) for one in value]
        elif key in holds_types:
            value = _renamed(value, names, depth - 1)
        renamed[names.get(key, key)] = value
    return renamed


def _field(field: Any, names: Mapping[str, str], depth: int) -> Any:
    if not isinstance(field, dict):
        return _renamed(field, names, 0)
    return field | {"type": _renamed(field.get("type"), names, depth - 1)}
