"""Values in queries: what is taken, what is refused, and with which fields."""

from __future__ import annotations

from typing import Any

import pytest

from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.answers import LONGEST_WAIT_S
from sparktxlog.service.routing.query import Query, seconds, whole

LIMIT = whole("limit", "Entries.", 100, low=1, high=1000)


@pytest.mark.parametrize(
    ("query", "given", "value"),
    [
        (LIMIT, None, 100),
        (LIMIT, "1", 1),
        (LIMIT, "1000", 1000),
        (whole("position", "", -1, low=-1), "-1", -1),
        (whole("position", ""), str((1 << 62) - 1), (1 << 62) - 1),
        (seconds("timeout", "", 30.0), None, 30.0),
        (seconds("timeout", "", 30.0), "0.5", 0.5),
        (seconds("timeout", "", 30.0), "300", LONGEST_WAIT_S),
        (Query("worker", ""), None, None),
        (Query("worker", ""), "", None),
        (Query("kind", "", "append"), "upsert", "upsert"),
    ],
)
def test_what_is_taken(query: Query, given: str | None, value: Any) -> None:
    assert query.read(given) == value


@pytest.mark.parametrize(
    ("query", "given"),
    [
        *((LIMIT, text) for text in ("", "0", "1001", "1.0", "+1", " 1", "1e2", "1_0", "9" * 20)),
        *((seconds("t", "", 1.0), text) for text in ("", "-1", "300.1", "nan", "inf", "x")),
        *((Query("table", "", required=True), text) for text in (None, "")),
        (whole("offset", "", required=True), None),
        (whole("position", ""), str(1 << 62)),
    ],
)
def test_what_is_refused(query: Query, given: str | None) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        query.read(given)
    assert refused.value.fields == {"field": query.name, "value": given}


def test_schemas_have_the_bounds() -> None:
    assert LIMIT.schema == {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}
    assert Query("worker", "").schema == {"type": "string"}
