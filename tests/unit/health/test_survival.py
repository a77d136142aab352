"""Who holds what, and what the loss of a site would mean: each case with its sentence."""

from __future__ import annotations

from typing import Any

import pytest

from sparktxlog.health.survival import KnownSites, Site, lacks, survivals, worst_loss
from sparktxlog.model.answers import Survival
from sparktxlog.model.site_data import SiteData

ALL = {"A": 10, "B": 5}
WHOLE = SiteData(rows_after=0)


def site(name: str, data: SiteData | None = WHOLE, replica: int | None = None) -> Site:
    return Site(name=name, transactions=ALL, data=data, replica=replica, position=15)


def began_at(position: int) -> SiteData:
    """Return the data of a site that began with a summary, or whose log was shortened."""
    return SiteData(rows_after=position)


def losses(
    *sites: Site, any_rows: bool = True, tables: str = "", grouped: dict[str, str] | None = None
) -> Any:
    names = [one.name for one in sites]
    found = survivals(
        KnownSites(
            position=15,
            ordered=ALL,
            sites=sites,
            voters={name: ([n for n in names if n != name], True) for name in names},
            any_rows=any_rows,
            commit_tables={f"uuid-{name}": name for name in tables},
            grouped=grouped or {},
        )
    )
    return {one["site"]: one for one in found}


def test_the_last_site_with_the_rows_cannot_be_lost() -> None:
    """B and C lost their disks one after the other: they began with summaries of the queue."""
    found = losses(site("A"), site("B", began_at(9)), site("C", began_at(12)))
    assert [one["survives"] for one in found.values()] == [False, True, True]
    text = found["A"]["sentence"]
    assert text.startswith("Loss of A: NO: no other site that answers has all rows"), text
    assert (found["A"]["held_by"], found["B"]["rows_held_by"]) == ([], ["A"])


@pytest.mark.parametrize(
    ("replica", "has"), [(None, False), (0, False), (8, False), (9, True), (15, True)]
)
def test_a_replica_that_leads_on_to_the_log_has_the_rows(replica: int | None, has: bool) -> None:
    found = losses(site("A"), site("B", began_at(9), replica), site("C", began_at(12), 11))
    assert found["A"]["survives"] is has
    assert found["A"]["rows_held_by"] == (["B"] if has else [])


def test_without_rows_none_are_missed() -> None:
    found = losses(site("A"), site("B", began_at(9)), any_rows=False)
    assert found["A"]["survives"] and found["A"]["rows_held_by"] == ["B"]


def test_who_is_silent_or_says_nothing_has_no_data() -> None:
    found = losses(site("A"), site("B", None, 15), site("C", None))
    assert not found["A"]["survives"] and found["B"]["survives"]
    assert "all 15 ordered positions are stored at B and C" in found["A"]["sentence"]


@pytest.mark.parametrize(
    ("at_b", "at_c", "lost"),
    [
        ((), (), []),
        (("uuid-t",), (), []),
        (("uuid-t",), ("uuid-u",), []),
        (("uuid-t",), ("uuid-t", "uuid-u"), ["t"]),
    ],
)
def test_commit_tables_are_where_all_versions_are(
    at_b: tuple[str, ...], at_c: tuple[str, ...], lost: list[str]
) -> None:
    sites = (
        site("A"),
        site("B", SiteData.of(0, at_b)),
        site("C", SiteData.of(0, at_c)),
    )
    found = losses(*sites, tables="tuv")["A"]
    assert (found["tables_only_there"], found["survives"]) == (lost, not lost)
    if lost:
        assert "has all of 1 commit tables: t;" in found["sentence"]


def test_of_a_site_with_more_than_it_names_no_table_counts() -> None:
    data = SiteData.of(0, [f"uuid-{number}" for number in range(101)])
    assert (data.lacks, len(data.lacking), data.has_table("uuid-v")) == (101, 100, False)
    found = losses(site("A"), site("B", data), tables="tuvwx")["A"]
    assert found["tables_only_there"] == list("tuvwx")
    assert "t, u, v and 2 more" in found["sentence"]


@pytest.mark.parametrize(("ends_at", "survives"), [(13, False), (14, True), (15, True)])
def test_a_summary_after_what_others_have_ordered_holds_no_rows_between(
    ends_at: int, survives: bool
) -> None:
    """B still fetches the last runs of A; C has a new disk, and knows of them by its summary."""
    late = Site(name="B", transactions={"A": 8, "B": 5}, data=WHOLE, position=ends_at)
    found = losses(site("A"), late, site("C", began_at(14)), site("D", began_at(15)))
    assert found["A"]["survives"] is survives and found["B"]["survives"]
    if not survives:
        assert "2 of 15 ordered positions are only at A" in found["A"]["sentence"]
    # A log that begins where another one ends leads on from there.
    chain = losses(site("A"), late, site("C", began_at(ends_at)), site("D", began_at(15)))
    assert chain["A"]["survives"]


def test_what_is_accepted_at_one_site_only_is_lost_with_it() -> None:
    ahead = Site(name="B", transactions={**ALL, "B": 7}, data=WHOLE)
    found = losses(site("A"), ahead)
    assert found["A"]["survives"] and not found["B"]["survives"]
    assert found["B"]["accepted_only_there"] == 2
    assert "2 accepted transactions are only at B" in found["B"]["sentence"]


def test_the_last_site_of_a_group_cannot_be_lost() -> None:
    """P41: others have the order, and no rows of its tables; one that is silent counts for none."""
    found = losses(
        site("A"), site("B"), site("C", None), grouped={"t": "B", "u": "BC", "v": "AB", "w": "C"}
    )
    assert {name: one["grouped_only_there"] for name, one in found.items()} == {
        "A": [],
        "B": ["t", "u"],
        "C": ["w"],
    }
    assert found["A"]["survives"] and not found["B"]["survives"]
    said = "no other site of their groups answers for 2 tables: t, u"
    assert said in found["B"]["sentence"] and worst_loss([found["B"]])[2] == [said]


def test_what_a_site_lacks_is_said_with_the_way_out() -> None:
    assert lacks(site("B"), True) == []
    assert lacks(site("B", began_at(9)), False) == []
    (rows,) = lacks(site("B", began_at(9), 7), True)
    assert "up to position 9 are missing" in rows and "a replica at 7" in rows
    assert "its worker has to copy one" in rows
    assert lacks(site("B", SiteData.of(0, ["x"])), True) == ["1 commit tables are not whole"]
    assert lacks(site("B", None), True) == ["it does not know the log yet"]


def test_who_knows_of_most_losses_is_believed() -> None:
    knows, ignorant = (
        losses(site("A"), other)["A"] for other in (site("B", began_at(9)), site("B"))
    )
    assert worst_loss([ignorant, knows])[2] == worst_loss([knows])[2] != []
    assert worst_loss([ignorant]) == (0, 15, [])
    older = {name: ignorant[name] for name in Survival.__annotations__ if "there" in name}
    del older["tables_only_there"]
    assert worst_loss([{**older, "site": "A", "ordered": 15}]) == (0, 15, [])
    assert worst_loss([]) == (0, 0, [])
