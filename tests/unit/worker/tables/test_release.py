"""A row table is dropped only if this site's worker has what it is given back with."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sparktxlog.errors import InvalidRequestError, NotAppliedError
from sparktxlog.model.tables.table_kind import TableDescription, TableKind
from sparktxlog.model.transactions.receipt import Receipt
from sparktxlog.worker.tables.release import release

ROWS = TableDescription(name="orders", kind=TableKind.ROW_TABLE, last_write=7, position=9)
COMMITS = TableDescription(name="shop.orders", kind=TableKind.COMMIT_TABLE)
INFO: dict[str, Any] = {"lake_root": "/lake", "lake_url": None}
NODE: Any = Mock(get=lambda _: INFO)


def no_drop(name: str) -> Receipt:
    raise AssertionError(f"{name} is dropped")


def test_nothing_is_dropped_while_the_worker_is_behind(tmp_path: Path) -> None:
    asked: list[int | Receipt] = []

    def behind(seen: int | Receipt) -> None:
        asked.append(seen)
        raise NotAppliedError("not yet")

    with pytest.raises(NotAppliedError):
        release(ROWS, NODE, str(tmp_path / "back"), drop_rows=no_drop, applied=behind)
    assert asked == [7]


def test_a_row_table_of_a_directory_gets_no_url() -> None:
    with pytest.raises(InvalidRequestError, match="lies in a directory"):
        release(ROWS, NODE, "s3://bucket/back", drop_rows=no_drop, applied=print)


@pytest.mark.parametrize("table", [ROWS, COMMITS])
def test_a_directory_that_exists_is_refused(tmp_path: Path, table: TableDescription) -> None:
    with pytest.raises(InvalidRequestError, match="exists already"):
        release(table, NODE, str(tmp_path), drop_rows=no_drop, applied=print)


def test_a_commit_table_needs_a_directory() -> None:
    with pytest.raises(InvalidRequestError, match=r"for commit table 'shop\.orders'"):
        release(COMMITS, NODE, None, drop_rows=no_drop, applied=print)
