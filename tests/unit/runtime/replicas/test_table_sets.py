"""Which tables no replica of a site holds, and which patterns match none."""

from __future__ import annotations

from tests.support.known_replicas import report
from tests.support.named_replicas import BRONZE, GOLD, Known, named, table, tables


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


def test_donors_that_lack_tables() -> None:
    known = Known("bronze.a", "gold.b")
    lacks = known.replicas.sets.lacks
    assert not lacks((), ()) and not lacks((), BRONZE) and not lacks(BRONZE, BRONZE)
    assert lacks(BRONZE, ()) and lacks(BRONZE, GOLD) and lacks(BRONZE, ("*.*",))
    assert not lacks(BRONZE, ("bronze.a",)) and not lacks((*BRONZE, *GOLD), ())
