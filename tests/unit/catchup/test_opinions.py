"""Who is right where sites differ: majorities, contests, and what is held of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparktxlog.catchup.opinions import Dissent, Opinion, Opinions, majority


def opinion(site: str, position: int, replica: str = "1", **signatures: str) -> Opinion:
    return Opinion(
        site=site,
        replica=replica,
        position=position,
        chain_hash=f"h{position}",
        signatures=signatures,
    )


def held(*opinions: Opinion, limit: int = 100) -> Opinions:
    made = Opinions(limit)
    for one in opinions:
        made.add(one)
    return made


def sound(sites: str) -> dict[str, str]:
    return dict.fromkeys(sites, "1")


@pytest.mark.parametrize(
    ("says", "truth"),
    [
        ("", None),
        ("x", None),
        ("xx", None),
        ("xy", None),
        ("xxx", "x"),
        ("xxy", "x"),
        ("yxy", "y"),
        ("xyz", None),
        ("xxyy", None),
        ("xxyz", None),
        ("xxxy", "x"),
        ("xxyyz", None),
        ("xxxyz", "x"),
    ],
)
def test_a_majority_is_more_than_half_of_three_or_more(says: str, truth: str | None) -> None:
    assert majority({str(number): said for number, said in enumerate(says)}) == truth


def test_who_differs_from_most_is_convicted_table_by_table() -> None:
    found = held(
        opinion("A", 10, t="1", u="1"),
        opinion("B", 10, t="2", u="1"),
        opinion("C", 10, t="1", u="3"),
    )
    assert found.conviction("A", "1", 10) is None
    assert found.conviction("B", "1", 10) == Dissent(
        position=10, tables=("t",), signature="2", others={"A": "1", "C": "1"}
    )
    convicted = found.conviction("C", "1", 10)
    assert convicted is not None
    assert (convicted.tables, convicted.others) == (("u",), {"A": "1", "B": "1"})
    assert found.contest("A", "1", 10, sound("A")) is None


def test_a_table_that_most_lack_or_have_convicts_as_well() -> None:
    found = held(opinion("A", 10, t="1"), opinion("B", 10), opinion("C", 10, t="1", u="2"))
    missing, more = found.conviction("B", "1", 10), found.conviction("C", "1", 10)
    assert missing is not None and more is not None
    assert (missing.tables, missing.signature) == (("t",), "")
    assert (more.tables, more.others) == (("u",), {"A": "", "B": ""})


def test_two_sites_contest_each_other_and_say_where_they_were_equal() -> None:
    found = held(
        *(opinion(site, 10, t="1") for site in "AB"),
        *(opinion(site, 20, t="2") for site in "AB"),
        opinion("A", 30, t="3"),
        opinion("B", 30, t="9"),
        opinion("A", 40, t="4"),
    )
    for site, other, mine, theirs in (("A", "B", "3", "9"), ("B", "A", "9", "3")):
        assert found.conviction(site, "1", 40) is None
        assert found.contest(site, "1", 40, sound("AB")) == Dissent(
            position=30, tables=("t",), signature=mine, others={other: theirs}, equal_to=20
        )
    # One that is known to be wrong, is gone, or was replaced contests nobody.
    assert found.contest("A", "1", 40, sound("A")) is None
    assert found.contest("A", "1", 40, {"A": "1", "B": "2"}) is None
    # Equal again later: both were written anew.
    found.add(opinion("B", 40, t="4"))
    assert found.contest("A", "1", 40, sound("AB")) is None


def test_three_that_all_differ_contest_each_other() -> None:
    found = held(opinion("A", 10, t="1"), opinion("B", 10, t="2"), opinion("C", 10, t="3"))
    assert found.conviction("A", "1", 10) is None
    contest = found.contest("A", "1", 10, sound("ABC"))
    assert contest is not None and contest.others == {"B": "2", "C": "3"}


def test_a_conviction_holds_until_a_majority_or_a_copy_ends_it() -> None:
    found = held(opinion("A", 10, t="1"), opinion("B", 10, t="2"), opinion("C", 10, t="1"))
    # Further on it says something that nobody can compare, or one other site only.
    found.add(opinion("B", 20, t="3"))
    assert found.conviction("B", "1", 20) is not None
    found.add(opinion("A", 20, t="3"))
    assert found.conviction("B", "1", 20) is not None
    found.add(opinion("C", 20, t="3"))
    assert found.conviction("B", "1", 20) is None
    # The files were put back to where it was convicted.
    assert found.conviction("B", "1", 15) is not None
    # A copy is another replica.
    assert found.conviction("B", "2", 20) is None


def test_a_table_without_majority_is_judged_by_the_newest_one_it_had() -> None:
    found = held(
        *(opinion(site, 10, t=text, u="1") for site, text in zip("ABC", "121", strict=True)),
        *(opinion(site, 20, t=text, u="2") for site, text in zip("ABC", "567", strict=True)),
    )
    convicted = found.conviction("B", "1", 20)
    assert convicted is not None and (convicted.position, convicted.tables) == (10, ("t",))
    assert found.conviction("A", "1", 20) is None


def test_a_late_majority_may_be_that_of_the_one_heard_first() -> None:
    found = held(opinion("B", 10, t="2"), opinion("A", 10, t="1"))
    assert found.contest("A", "1", 10, sound("AB")) is not None
    found.add(opinion("C", 10, t="2"))
    assert found.conviction("A", "1", 10) is not None
    assert found.conviction("B", "1", 10) is None


def test_a_site_may_correct_what_it_said() -> None:
    found = held(opinion("A", 10, t="1"), opinion("B", 10, t="2"), opinion("C", 10, t="1"))
    assert not found.add(opinion("B", 10, t="2"))
    assert found.add(opinion("B", 10, "2", t="1"))
    assert found.conviction("B", "2", 10) is None
    assert len(found.at(10)) == 3


def test_opinions_on_another_history_are_not_compared() -> None:
    found = held(opinion("A", 10, t="1"), opinion("C", 10, t="1"))
    found.add(Opinion(site="B", replica="1", position=10, chain_hash="x", signatures={"t": "2"}))
    for site in "ABC":
        assert found.conviction(site, "1", 10) is None
        assert found.contest(site, "1", 10, sound("ABC")) is None


def test_old_positions_go_unless_a_verdict_stands_on_them() -> None:
    pinned: set[int] = {20}
    found = Opinions(3, lambda: pinned)
    for position in (10, 20, 30, 40, 50, 60):
        for site in "ABC":
            found.add(opinion(site, position, t="2" if site == "B" and position == 20 else "1"))
    assert [position for position in range(100) if found.at(position)] == [20, 50, 60]
    assert found.conviction("B", "1", 20) is not None
    pinned.clear()
    found.add(opinion("A", 70, t="1"))
    assert len(found) == 3 and found.at(20) == []
    assert found.conviction("B", "1", 20) is None


def test_what_sites_agree_on_is_held_once() -> None:
    found = held(opinion("A", 10, t="1"), opinion("B", 10, t="1"), opinion("C", 10, t="2"))
    one, other, differing = found.at(10)
    assert one.signatures is other.signatures
    assert differing.signatures == {"t": "2"}


def copied(site: str, position: int, donor: str, at: int, **signatures: str) -> Opinion:
    one = opinion(site, position, f"from {donor}", **signatures)
    return Opinion(
        site=one.site,
        replica=one.replica,
        position=position,
        chain_hash=one.chain_hash,
        signatures=signatures,
        donor=donor,
        copied_at=at,
    )


def test_a_copied_fault_does_not_outvote_the_site_that_is_right() -> None:
    # B lost an update, and C copied it before anybody else had said a word.
    found = held(opinion("B", 10, t="bad"), copied("C", 10, "B", 10, t="bad"))
    found.add(opinion("A", 10, t="good"))
    replicas = {"A": "1", "B": "1", "C": "from B"}
    for site, replica in replicas.items():
        assert found.conviction(site, replica, 10) is None
        contest = found.contest(site, replica, 10, replicas)
        assert contest is not None and contest.position == 10
    # A fourth site brings three voices: who copied is as wrong as its donor.
    found.add(opinion("D", 10, t="good"))
    assert found.conviction("A", "1", 10) is None
    for site in "BC":
        assert found.conviction(site, replicas[site], 10) is not None


def test_a_copy_that_a_third_site_agreed_with_is_a_voice_of_its_own() -> None:
    found = held(opinion("A", 10, t="1"), copied("B", 10, "A", 10, t="1"), opinion("C", 10, t="1"))
    found.add(opinion("A", 20, t="2"))
    found.add(copied("B", 20, "A", 10, t="2"))
    found.add(opinion("C", 20, t="bad"))
    assert found.conviction("C", "1", 20) is not None
    assert found.conviction("B", "from A", 20) is None
    # Agreement with another echo of the same donor says nothing.
    echoes = held(
        opinion("A", 10, t="1"),
        copied("B", 10, "A", 10, t="1"),
        copied("D", 10, "A", 10, t="1"),
        opinion("A", 20, t="2"),
        copied("B", 20, "A", 10, t="2"),
        copied("D", 20, "A", 10, t="2"),
        opinion("C", 20, t="3"),
    )
    assert echoes.conviction("C", "1", 20) is None


def test_a_difference_is_shown_as_it_began() -> None:
    told = [
        *(opinion(site, 10, t="1", u="1") for site in "ABC"),
        *(opinion(site, 20, t="2", u="2") for site in "AB"),
        opinion("C", 20, t="9", u="2"),
        opinion("B", 25, t="2", u="2"),  # C did not report there
        *(opinion(site, 30, t="3", u="3") for site in "AB"),
        opinion("C", 30, t="8", u="7"),
    ]
    found = held(*told)
    dissent = found.conviction("C", "1", 30)
    assert dissent is not None and (dissent.position, dissent.tables) == (30, ("t", "u"))
    began = found.began("C", "1", "t", dissent)
    assert (began.equal_to, began.position, began.tables) == (10, 20, ("t",))
    assert (began.signature, began.others) == ("9", {"A": "2", "B": "2"})
    began = found.began("C", "1", "u", dissent)
    assert (began.equal_to, began.position, began.signature) == (20, 30, "7")
    # What came before the first report in common was never compared.
    found = held(*(one for one in told if one.position > 10))
    dissent = found.conviction("C", "1", 30)
    assert dissent is not None
    assert found.began("C", "1", "t", dissent).equal_to == 0


# -- several replicas of a site ---------------------------------------------------------


def test_a_site_is_one_voice_however_many_replicas_it_has() -> None:
    """Two replicas of A share machines and files: they do not outvote B."""
    found = held(
        opinion("A", 10, t="1"),
        opinion("A/x", 10, t="1"),
        opinion("A/y", 10, t="1"),
        opinion("B", 10, t="2"),
    )
    both = {"A": "1", "A/x": "1", "A/y": "1", "B": "1"}
    assert found.conviction("B", "1", 10) is None
    contest = found.contest("B", "1", 10, both)
    assert contest is not None and set(contest.others) == {"A", "A/x", "A/y"}
    found.add(opinion("C", 10, t="1"))
    convicted = found.conviction("B", "1", 10)
    assert convicted is not None and set(convicted.others) == {"A", "A/x", "A/y", "C"}


def test_one_of_a_sites_replicas_is_convicted_by_the_other_sites() -> None:
    found = held(
        opinion("A", 10, t="1"),
        opinion("A/x", 10, t="2"),
        opinion("B", 10, t="1"),
        opinion("C", 10, t="1"),
    )
    convicted = found.conviction("A/x", "1", 10)
    assert convicted is not None and convicted.signature == "2"
    for right in ("A", "B", "C"):
        assert found.conviction(right, "1", 10) is None
    # A contradicts itself, and is no voice on B: two sites are no majority.
    assert found.contest("B", "1", 10, {"A": "1", "B": "1", "C": "1"}) is None


def test_replicas_of_one_site_that_differ_are_contested() -> None:
    found = held(opinion("A", 10, t="1"), opinion("A/x", 10, t="1"))
    alike = {"A": "1", "A/x": "1"}
    assert found.contest("A", "1", 10, alike) is None
    found.add(opinion("A", 20, t="1"))
    found.add(opinion("A/x", 20, t="3"))
    contest = found.contest("A/x", "1", 20, alike)
    assert contest is not None
    assert (contest.position, contest.others, contest.equal_to) == (20, {"A": "1"}, 10)


def test_replicas_are_compared_in_the_tables_that_both_hold() -> None:
    part = replace(opinion("A/x", 10, **{"b.t": "2"}), only=("b.*",))
    found = held(opinion("A", 10, t="1", **{"b.t": "2"}), part)
    sites = {"A": "1", "A/x": "1"}
    assert found.contest("A", "1", 10, sites) is None, "that A/x has no t says nothing of t"
    assert found.contest("A/x", "1", 10, sites) is None
    found.add(replace(part, signatures={"b.t": "3"}))
    contest = found.contest("A/x", "1", 10, sites)
    assert contest is not None and contest.tables == ("b.t",)
    found.add(replace(part, signatures={}))
    assert found.contest("A/x", "1", 10, sites) is None, "it has nothing to compare yet"
    for site in "BC":
        found.add(opinion(site, 10, t="1", **{"b.t": "2"}))
    found.add(replace(part, signatures={"b.other": "2"}))
    convicted = found.conviction("A/x", "1", 10)
    assert convicted is not None and convicted.tables == ("b.other", "b.t")


def test_replicas_with_nothing_in_common_hide_no_contest() -> None:
    part = replace(opinion("A/x", 20, **{"b.t": "2"}), only=("b.*",))
    found = held(opinion("A", 10, t="1"), opinion("B", 10, t="2"), opinion("A", 20, t="1"), part)
    contest = found.contest("A", "1", 20, {"A": "1", "A/x": "1", "B": "1"})
    assert contest is not None and contest.position == 10


def test_a_copy_within_a_site_is_no_echo_and_adds_no_voice() -> None:
    copied = replace(opinion("A/x", 20, t="1"), donor="A", copied_at=10)
    found = held(opinion("A", 20, t="1"), copied, opinion("B", 20, t="2"), opinion("C", 20, t="2"))
    for wrong in ("A", "A/x"):
        convicted = found.conviction(wrong, "1", 20)
        assert convicted is not None and set(convicted.others) == {"B", "C"}
    # Of another site it is one: B repeats A's replica.
    echo = replace(opinion("B", 30, t="1"), donor="A/x", copied_at=20)
    found = held(opinion("A/x", 30, t="1"), echo, opinion("C", 30, t="2"))
    assert found.conviction("C", "1", 30) is None


def test_sites_are_compared_in_the_tables_that_they_hold() -> None:
    """P41: a site that holds none of a table's rows is neither wrong nor a voice."""
    at = {"t": "BCD"}
    found = Opinions(100, may_have=lambda replica, table: replica in at.get(table, "ABCD"))
    for one in (
        opinion("A", 10, u="1"),
        opinion("B", 10, t="1", u="1"),
        opinion("C", 10, t="1", u="1"),
        opinion("D", 10, t="2", u="1"),
    ):
        found.add(one)
    assert found.conviction("A", "1", 10) is None and found.conviction("B", "1", 10) is None
    convicted = found.conviction("D", "1", 10)
    assert convicted is not None and convicted.others == {"B": "1", "C": "1"}
