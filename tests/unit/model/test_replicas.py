"""Names of replicas, and the sets of tables that they hold."""

from __future__ import annotations

import pytest

from sparktxlog.errors import InvalidNameError, InvalidRequestError
from sparktxlog.model.replicas import (
    MAIN,
    MOST_PATTERNS,
    check_replica_name,
    holds,
    name_of,
    replica_id,
    site_of,
    table_set,
)


def test_a_replica_is_known_by_site_and_name_and_the_main_one_by_its_site() -> None:
    assert (replica_id("A"), replica_id("A", "reports")) == ("A", "A/reports")
    for site, name in (("A", MAIN), ("A-1", "reports")):
        known = replica_id(site, name)
        assert (site_of(known), name_of(known)) == (site, name)
    assert site_of("") == ""


@pytest.mark.parametrize("text", ["", "a/b", "-a", "a b", "ä", "x" * 65, "a\n"])
def test_what_cannot_name_a_replica(text: str) -> None:
    with pytest.raises(InvalidNameError) as failure:
        check_replica_name(text)
    assert failure.value.fields["field"] == "name" and failure.value.hint
    assert check_replica_name("reports-2_b") == "reports-2_b"


@pytest.mark.parametrize(
    ("patterns", "held", "other"),
    [
        (["bronze.*"], ["bronze.a", "Bronze.B"], ["a", "bronzed.a", "silver.bronze"]),
        (["orders"], ["orders", "ORDERS"], ["orders2", "sales.orders"]),
        (["default.o*"], ["orders", "o"], ["sales.orders", "p"]),
        (["*.ord??s"], ["orders", "sales.orders"], ["sales.order"]),
        (["a", "b.c"], ["a", "b.c"], ["c", "b.a"]),
        ([], ["a", "b.c"], []),
    ],
)
def test_which_tables_a_set_holds(patterns: list[str], held: list[str], other: list[str]) -> None:
    only = table_set(patterns)
    assert all(holds(only, name) for name in held)
    assert not any(holds(only, name) for name in other)


def test_a_set_is_the_same_however_it_is_written() -> None:
    assert table_set(["Orders", "b.*", "default.orders"]) == ("b.*", "default.orders")
    assert table_set(table_set(["t" * 120])) == table_set(["t" * 120]), "as nodes check it"


@pytest.mark.parametrize("pattern", ["", "*", "a.b.c", "a b", "[ab]", "b.", ".b", "x" * 129])
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(InvalidRequestError) as failure:
        table_set([pattern])
    assert failure.value.fields["field"] == "tables" and failure.value.hint
    with pytest.raises(InvalidRequestError, match="65 patterns"):
        table_set([f"t{number}" for number in range(MOST_PATTERNS + 1)])
