"""Which tables no replica of a site holds, and which patterns match none."""

from __future__ import annotations

from typing import Any

from tests.support.known_replicas import report
from tests.support.named_replicas import BRONZE, GOLD, Known, named, table, tables

from sparktxlog.model.tables.table import Tables
from sparktxlog.runtime.replicas.table_sets import TableSets


def test_tables_that_no_replica_holds_and_patterns_that_match_none_are_said() -> None:
    known = Known("bronze.a", "gold.b", "gold.c", "sparktxlog_restore_points")
    known.take(named(10, "one", (*BRONZE, "silver.*")))

    def warned() -> dict[str, str]:
        return {one["code"]: one["text"] for one in known.replicas.warnings(2)}

    assert set(warned()) == {"pattern-matches-nothing", "tables-not-held"}
    assert "A/one holds silver.*" in warned()["pattern-matches-nothing"]
    assert "no replica of site A holds gold.b, gold.c:" in warned()["tables-not-held"]
    known.base.master.tables = tables("bronze.a", "silver.x")  # another history
    assert warned() == {}
    known.base.master.tables._by_lower["gold.z"] = table("gold.z")
    assert set(warned()) == {"tables-not-held"}
    known.base.master.tables._by_lower["gold.z"].is_dropped = True
    assert warned() == {}
    known.take(report(10))
    known.base.master.tables._by_lower["gold.z"].is_dropped = False
    assert warned() == {}, "the main replica holds all tables"


def test_new_names_alone_are_looked_at() -> None:
    """A site with a set of 100,000 tables is asked with each report, on the event loop."""
    looked = list[str]()

    class Counted(Tables):
        def alike(self, name: str) -> Any:
            looked.append(name)
            return super().alike(name)

        def names_since(self, known: int, most: int) -> list[str]:
            new = super().names_since(known, most)
            looked.extend(new)
            return new

    names = Counted({f"gold.t{n}": table(f"gold.t{n}") for n in range(1_000)})
    sets = TableSets(lambda: names)
    sought = (*BRONZE, "silver.*")
    assert sets.leave_out([sought]) and len(looked) == 1_001
    assert sets.idle_patterns(sought) == list(sought)
    looked.clear()
    assert sets.leave_out([sought]) and sets.lacks(sought, GOLD) and len(looked) <= 3
    for name in ("silver.x", "gold.z"):
        names._by_lower[name] = table(name)
    looked.clear()
    assert sets.leave_out([sought]) and looked == ["silver.x", "gold.z", "gold.t0"]
    assert sets.idle_patterns(sought) == list(BRONZE)
    assert sets.left_out([sought])[-2:] == ["gold.t999", "gold.z"]
    assert not sets.leave_out([sought, GOLD]) and not sets.leave_out([sought, ()])


def test_donors_that_lack_tables() -> None:
    known = Known("bronze.a", "gold.b")
    lacks = known.replicas.sets.lacks
    assert not lacks((), ()) and not lacks((), BRONZE) and not lacks(BRONZE, BRONZE)
    assert lacks(BRONZE, ()) and lacks(BRONZE, GOLD) and lacks(BRONZE, ("*.*",))
    assert not lacks(BRONZE, ("bronze.a",)) and not lacks((*BRONZE, *GOLD), ())


def test_a_replica_lacks_the_tables_of_groups_of_other_sites() -> None:
    """P41: it lends no copy to a site that holds them, and no site without them misses them."""
    known = Known("plain", "grouped")
    own = table("grouped")
    own.properties = (("sparktxlog.sites", "B,C"),)
    known.base.master.tables = Tables({"plain": table("plain"), "grouped": own})
    sets = known.replicas.sets
    assert sets.lacks((), (), at="A", site="B") and not sets.lacks((), (), at="A", site="A")
    assert not sets.lacks((), (), at="C", site="B")
    assert not sets.lacks((), ("plain",), at="A", site="B")
    assert sets.left_out([("default.plain",)], "A") == []
    assert sets.left_out([("default.plain",)], "B") == ["grouped"]
    assert [site for site in "ABCD" if sets.holds_all(site)] == ["B", "C"]
    assert (sets.sites("grouped"), sets.sites("plain")) == (("B", "C"), ())
