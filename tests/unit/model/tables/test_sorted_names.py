"""Names of tables in order: new ones come in by steps, and each is found after its neighbour."""

from __future__ import annotations

import random

from sparktxlog.model.tables.sorted_names import STEP, SortedNames
from sparktxlog.model.tables.table import Column, TableDefinition, Tables


def table(name: str) -> TableDefinition:
    return TableDefinition(name=name, columns=(Column(name="id", type="bigint"),))


def tables_of(*names: str) -> tuple[Tables, dict[str, TableDefinition]]:
    kept = {name.lower(): table(name) for name in names}
    return Tables(kept), kept


def test_names_are_in_the_order_of_their_full_names() -> None:
    names = SortedNames()
    tables, kept = tables_of("b", "Bronze.z", "a", "gold.A")
    assert names.catch_up(tables)
    assert names.after("", 10) == ["bronze.z", "default.a", "default.b", "gold.a"]
    assert names.after("default.a", 1) == ["default.b"]
    assert names.after("default.aa", 9) == ["default.b", "gold.a"]  # a name that no table has
    assert names.after("gold.a", 9) == []
    kept["aa"] = table("aa")
    kept["b"] = kept["b"].dropped()  # its name stays
    assert names.catch_up(tables)
    assert names.after("default.a", 9) == ["default.aa", "default.b", "gold.a"]


def test_a_step_takes_in_a_bounded_number_of_new_names() -> None:
    numbers = list(range(2 * STEP + 1))
    random.Random(7).shuffle(numbers)
    tables, _ = tables_of(*(f"t{number:05d}" for number in numbers))
    names = SortedNames()
    assert [names.catch_up(tables) for _ in range(3)] == [False, False, True]
    assert names.after("", 9_999) == [f"default.t{number:05d}" for number in sorted(numbers)]


def test_names_of_another_log_are_read_from_the_start() -> None:
    names = SortedNames()
    names.catch_up(tables_of("a", "b")[0])
    names.catch_up(tables_of("c")[0])
    assert names.after("", 9) == ["default.c"]
