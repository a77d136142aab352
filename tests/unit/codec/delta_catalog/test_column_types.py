"""Types of columns in Delta's JSON and in the catalog's: each becomes the other, and back."""

from __future__ import annotations

from typing import Any

import pytest

from sparktxlog.codec.delta_catalog.column_types import to_api_type, to_delta_type
from sparktxlog.errors import InvalidRequestError


def field(name: str, kind: Any) -> dict[str, Any]:
    #: Metadata may have keys of any name, also those of types.
    return {"name": name, "type": kind, "nullable": True, "metadata": {"elementType": {"x": 1}}}


DELTA = {
    "type": "struct",
    "fields": [
        field("keyType", "decimal(10,2)"),
        field(
            "m",
            {
                "type": "map",
                "keyType": "string",
                "valueType": {
                    "type": "array",
                    "elementType": {"type": "struct", "fields": [field("x", "long")]},
                    "containsNull": False,
                },
                "valueContainsNull": True,
            },
        ),
    ],
}
API = {
    "type": "struct",
    "fields": [
        field("keyType", "decimal(10,2)"),
        field(
            "m",
            {
                "type": "map",
                "key-type": "string",
                "value-type": {
                    "type": "array",
                    "element-type": {"type": "struct", "fields": [field("x", "long")]},
                    "contains-null": False,
                },
                "value-contains-null": True,
            },
        ),
    ],
}


def test_each_becomes_the_other() -> None:
    assert to_api_type(DELTA) == API
    assert to_delta_type(API) == DELTA
    assert to_delta_type("long") == to_api_type("long") == "long"


def deep(levels: int) -> Any:
    found: Any = "long"
    for _ in range(levels):
        found = {"type": "array", "element-type": found, "contains-null": True}
    return found


def test_what_is_no_type_is_refused() -> None:
    assert to_delta_type(deep(99))
    wrongs: tuple[object, ...] = (None, 3, [], deep(200), {"type": "struct", "fields": [1]})
    for wrong in wrongs:
        with pytest.raises(InvalidRequestError) as refused:
            to_delta_type(wrong)
        assert refused.value.fields["field"] == "columns"
