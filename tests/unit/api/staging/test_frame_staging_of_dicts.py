"""Rows that are dicts, for a table whose columns the log does not know."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from sparktxlog.api.staging import frame_staging
from sparktxlog.api.staging.frame_staging import frame_of
from sparktxlog.errors import SchemaMismatchError


@pytest.fixture(autouse=True)
def arrow_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at what Spark would get."""
    monkeypatch.setattr(frame_staging, "arrow_frame", lambda spark, rows: rows.to_pylist())


def framed(rows: list[Any]) -> Any:
    return frame_of(cast(SparkSession, None), rows, "facts")


def test_rows_of_the_same_columns_are_taken_in_any_order_of_these() -> None:
    rows = [{"id": 1, "note": None}, {"note": "x", "id": None}]
    assert framed(rows) == rows
    assert framed([]) == []


@pytest.mark.parametrize(
    "rows",
    [
        [{"id": 1}, {"id": 2, "note": "lost"}],
        [{"id": 1, "note": "x"}, {"id": 2}],
        [{"id": 1}, (2,)],
    ],
)
def test_a_row_with_other_columns_is_refused(rows: list[Any]) -> None:
    with pytest.raises(SchemaMismatchError, match="row 1 has other columns") as caught:
        framed(rows)
    assert caught.value.fields == {"table": "facts", "row": 1} and caught.value.definite


@pytest.mark.parametrize("values", [(1, "x"), (object(),), (2**70,), ("\ud800",)])
def test_values_without_a_common_type_are_refused(values: tuple[Any, ...]) -> None:
    with pytest.raises(SchemaMismatchError, match="no common types") as caught:
        framed([{"id": value} for value in values])
    assert caught.value.fields["table"] == "facts" and caught.value.hint
