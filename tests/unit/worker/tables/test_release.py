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


@pytest.mark.parametrize(
    ("place", "root"),
    [
        ("data/payloads/back", "data/payloads"),
        ("data/lake/../lake/back", "data/lake"),
        ("link/back", "data/tables"),
        ("data/log/back", "data/log"),
        ("s3://bucket/rows/orders", "s3://bucket/rows"),
        ("s3a://bucket/staged/x", "s3://bucket/staged"),
        ("s3://bucket/named/x", "s3://bucket/named"),
    ],
)
@pytest.mark.parametrize("table", [ROWS, COMMITS])
def test_nothing_is_given_back_among_the_files_of_the_site(
    tmp_path: Path, table: TableDescription, place: str, root: str
) -> None:
    """The node would remove it after a while, or a table that is made later would take it."""
    (tmp_path / "data" / "tables").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "data" / "tables")
    info = {
        "payload_root": str(tmp_path / "data/payloads"),
        "lake_root": str(tmp_path / "data/lake"),
        "commit_table_root": str(tmp_path / "data/tables"),
        "log_root": str(tmp_path / "data/log"),
        "lake_url": "s3://bucket/rows",
        "payload_url": "s3://bucket/staged",
        "replica_lakes": {"named": "s3://bucket/named"},
    }
    node: Any = Mock(get=lambda _: info)
    given = place if "://" in place else str(tmp_path / place)
    wanted = root if "://" in root else str(tmp_path / root)
    with pytest.raises(InvalidRequestError, match=f"is in {wanted}, where files of") as caught:
        release(table, node, given, drop_rows=no_drop, applied=print)
    assert caught.value.definite and caught.value.fields["field"] == "path"
