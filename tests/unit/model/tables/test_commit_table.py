"""Values of commit tables: what can be committed, and what exists at a position (P36)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparktxlog.errors import InvalidNameError, InvalidRequestError
from sparktxlog.model.tables.commit_table import (
    CommitKind,
    CommitOperation,
    CommitTable,
    CommitTables,
    check_commit_table_name,
)

UUID = "0a0b0c0d-0000-4000-8000-000000000001"
OTHER = "0a0b0c0d-0000-4000-8000-000000000002"
CREATE = CommitOperation(kind=CommitKind.CREATE, uuid=UUID, name="shop.orders", timestamp=5)
COMMIT = CommitOperation(kind=CommitKind.COMMIT, uuid=UUID, version=1, timestamp=6)
DROP = CommitOperation(kind=CommitKind.DROP, uuid=UUID)
RENAME = CommitOperation(kind=CommitKind.RENAME, uuid=UUID, name="shop.sold")
TABLE = CommitTable(
    uuid=UUID, name="shop.Orders", version=3, timestamp=5, transaction_id=b"x" * 16, position=9
)


@pytest.mark.parametrize("commit", [CREATE, COMMIT, DROP, RENAME, replace(CREATE, version=7)])
def test_what_can_be_committed(commit: CommitOperation) -> None:
    assert commit.checked() is commit


@pytest.mark.parametrize(
    ("commit", "problem"),
    [
        (replace(COMMIT, uuid=UUID.upper()), "not the UUID"),
        (replace(COMMIT, uuid=UUID.replace("-", "")), "not the UUID"),
        (replace(COMMIT, uuid=UUID + "\n"), "not the UUID"),
        (replace(COMMIT, name="shop.orders"), "only a commit that creates"),
        (replace(DROP, name="shop.orders"), "only a commit that creates"),
        (replace(CREATE, name="orders"), "cannot name a commit table"),
        (replace(CREATE, name=""), "cannot name a commit table"),
        (replace(CREATE, name="a.b.c"), "cannot name a table"),
        (replace(COMMIT, version=0), "version 0 comes with"),
        (replace(COMMIT, version=-1), "from 0 on"),
        (replace(CREATE, version=-1), "from 0 on"),
        (replace(COMMIT, version=1 << 62), "from 0 on"),
        (replace(COMMIT, timestamp=-1), "from 0 on"),
        (replace(COMMIT, timestamp=1 << 62), "from 0 on"),
        (replace(DROP, version=1), "a drop has neither"),
        (replace(DROP, timestamp=1), "a drop has neither"),
        (replace(RENAME, version=1), "a rename has neither"),
        (replace(RENAME, name=""), "cannot name a commit table"),
    ],
)
def test_what_cannot_be_committed(commit: CommitOperation, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        commit.checked()


@pytest.mark.parametrize("name", ["orders", ".orders", "shop.", "shop.or-ders", "1.a", "a.b.c"])
def test_a_name_has_two_parts(name: str) -> None:
    with pytest.raises(InvalidNameError):
        check_commit_table_name(name)
    assert check_commit_table_name("shop.orders") == "shop.orders"


def test_the_tables_that_exist_are_found_by_uuid_and_name() -> None:
    gone = replace(TABLE, uuid=OTHER, name="a.a", is_dropped=True)
    by_uuid, uuids = {UUID: TABLE, OTHER: gone}, {"shop.orders": UUID}
    tables = CommitTables(by_uuid, uuids, {})
    assert dict(tables) == {UUID: TABLE}
    assert (len(tables), tables.get(OTHER), OTHER in tables) == (1, None, False)
    assert tables.named("SHOP.orders") is TABLE
    assert tables.named("a.a") is None
    by_uuid["n"], uuids["a.b"] = replace(TABLE, uuid="n", name="a.b"), "n"
    assert list(tables) == ["n", UUID], "by name, as it grows"
