"""What three nodes make of each other's replicas, by their real `Replicas` and `choose_donors`.

B lost an update.  Each node hears reports in an order of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.known_replicas import base_of, hash_at, report

from sparktxlog.catchup.comparison import Cause
from sparktxlog.catchup.donors import Candidate, choose_donors
from sparktxlog.errors import NotFoundError
from sparktxlog.model.report import Recount, RecountedTable, ReplicaVerdict, WorkerReport
from sparktxlog.model.transactions.receipt import Appliers
from sparktxlog.runtime.replicas.judged_replicas import RECOUNT_AFTER_US, Replicas
from sparktxlog.runtime.replicas.own_replica import HISTORY
from sparktxlog.storage.interfaces import PutValue, Write

IN_SYNC, DIVERGED = ReplicaVerdict.IN_SYNC, ReplicaVerdict.DIVERGED
GOOD, LOST = 5, 4


class Node:
    """One node's view, with what it keeps over a restart."""

    def __init__(self, name: str, **settings: Any) -> None:
        self.name = name
        self.saved: dict[str, bytes] = {}
        self.settings = settings
        self.restart()

    def restart(self) -> None:
        settings = {"position": 100_000} | self.settings
        self.base = base_of(self.name, hash_at, saved=self.saved, **settings)
        self.replicas = Replicas(self.base)

    def keep(self, writes: Iterable[Write]) -> None:
        for write in writes:
            assert isinstance(write, PutValue)
            self.saved[write.name] = write.value

    def hear(self, *reports: WorkerReport, now: int = 1) -> list[str]:
        """Take in reports; return whose verdict they turned, besides those of the reporters."""
        turned = []
        for one in reports:
            self.keep(self.replicas.accept(one, now)[2])
            found = self.replicas.turned()
            self.keep(found.writes)
            turned += [state.report.node_id for state in found.states]
        return turned

    def verdicts(self) -> str:
        """Return the sites by verdict: `AC in_sync B diverged`, contested ones marked by `?`."""
        found: dict[str, str] = {}
        for state in self.replicas.states():
            verdict = state.comparison.verdict.value.lower() + "?" * state.contested
            found[verdict] = found.get(verdict, "") + state.report.node_id
        return " ".join(f"{sites} {verdict}" for verdict, sites in sorted(found.items())[::-1])

    def donors(self, named: str = "") -> list[str]:
        """Return whom this node's own worker may copy from, its replica being worth nothing."""
        candidates = [
            Candidate(
                node_id=s.report.node_id,
                worker_id=s.report.worker_id,
                linked=True,
                alive=True,
                verdict=s.comparison.verdict,
                position=s.report.position,
                contested=s.contested,
            )
            for s in self.replicas.states()
        ]
        return choose_donors(self.name, 0, candidates, 3, named)

    def reason(self, site: str) -> str:
        (state,) = (s for s in self.replicas.states() if s.report.node_id == site)
        return state.comparison.reason


def at(position: int, site: str, **changes: Any) -> WorkerReport:
    """Return a report; B's says what is left after it lost an update."""
    return replace(report(position, site, rows=LOST if site == "B" else GOOD), **changes)


def of_all(position: int, order: str) -> list[WorkerReport]:
    return [at(position, site) for site in order]


SETTLED = "AC in_sync B diverged"


def test_each_node_heard_its_own_worker_first_and_all_agree_in_the_end() -> None:
    for name, order in (("A", "ABC"), ("B", "BAC"), ("C", "CBA")):
        node = Node(name)
        node.hear(*of_all(10, order))
        assert node.verdicts() == SETTLED, name
    b = Node("B")
    # B's own node does not plan before a majority speaks, and then from those who are right.
    b.hear(at(10, "B"))
    assert b.verdicts() == "B in_sync"
    b.hear(at(10, "A"))
    assert b.verdicts() == "AB in_sync?" and b.donors() == []
    b.hear(at(10, "C"))
    assert b.donors() == ["A", "C"]


def test_a_fault_that_is_heard_first_does_not_spread() -> None:
    a = Node("A")
    assert a.hear(at(10, "B")) == []
    # One other opinion: nobody can say who is right, nobody lends, and nobody is blamed.
    assert a.hear(at(10, "A")) == ["B"]
    assert a.verdicts() == "AB in_sync?" and a.donors() == []
    for said in ("at position 10 table 't'", "has signature 5:", "site B has 4:", "--donor"):
        assert said in a.reason("A")
    assert sorted(a.hear(at(10, "C"))) == ["A", "B"]
    assert a.verdicts() == SETTLED and a.donors() == ["C"]
    assert "most sites (A, C) have 5:" in a.reason("B")


def test_a_fault_is_found_even_if_the_site_has_gone_on_meanwhile() -> None:
    a = Node("A")
    a.hear(at(10, "B"), at(20, "B"), at(30, "B"))
    assert a.verdicts() == "B in_sync"
    a.hear(at(10, "A"), at(10, "C"))
    assert a.verdicts() == SETTLED
    # It is still wrong where nobody else has reported, and where only one other has.
    a.hear(at(40, "B"), at(40, "A"))
    assert a.verdicts() == SETTLED
    a.hear(at(40, "B", reported_at=7))
    assert a.verdicts() == SETTLED


def test_a_copy_or_a_lost_lake_makes_another_replica_of_it() -> None:
    for name in "ABC":
        node = Node(name)
        node.hear(*of_all(10, "BAC"), *of_all(20, "BAC"))
        assert node.verdicts() == SETTLED
        repaired = replace(report(20, "B", rows=GOOD), copied_from="A@20/1")
        node.hear(repaired)
        assert node.verdicts() == "ABC in_sync"
        # Nothing that it said before counts against it or against anybody.
        node.hear(replace(report(30, "B", rows=GOOD), copied_from="A@20/1"))
        node.hear(at(30, "A"), at(30, "C"))
        assert node.verdicts() == "ABC in_sync"

    node = Node("B")
    node.hear(*of_all(10, "BAC"))
    node.hear(replace(report(0, "B"), worker_id="new", chain_hash="", tables={}))
    assert node.verdicts() == "AC in_sync B empty" and node.donors() == ["A", "C"]
    node.hear(replace(report(10, "B", rows=GOOD), worker_id="new"))
    assert node.verdicts() == "ABC in_sync"


def test_two_sites_contest_each_other_until_one_is_another() -> None:
    b = Node("B")
    for position in (10, 20):
        for site in "AB":
            b.hear(report(position, site, rows=position))
    b.hear(*of_all(30, "BA"), at(40, "B"))
    assert b.verdicts() == "AB in_sync?"
    assert (b.donors(), b.donors("A"), b.donors("C")) == ([], ["A"], [])
    # Each has applied what it has; equal they were up to 20 only.
    assert [b.replicas.applied(Appliers(sites)) for sites in (1, 2, 3)] == [40, 20, 0]
    # Somebody who has nothing yet cannot take either of them.
    c = Node("C")
    c.hear(*of_all(30, "AB"), replace(report(0, "C"), chain_hash="", tables={}))
    assert c.donors() == []
    b.hear(replace(report(30, "B", rows=GOOD), copied_from="A@30/1"))
    assert b.verdicts() == "AB in_sync" and b.replicas.applied(Appliers(2)) == 30


def test_a_late_majority_turns_the_verdict_whoever_was_first() -> None:
    a = Node("A")
    a.hear(at(10, "A"))
    assert a.replicas.snapshot(None) is not None
    # A is the one that is wrong here: two others say so.
    a.hear(report(10, "B", rows=7))
    assert a.verdicts() == "AB in_sync?"
    assert sorted(a.hear(report(10, "C", rows=7))) == ["A", "B"]
    assert a.verdicts() == "BC in_sync A diverged"
    assert a.replicas.applied(Appliers()) == 0
    # C corrects itself: it had said what it had not.
    turned = a.hear(replace(report(10, "C", rows=GOOD), copied_from="D@10/1"))
    assert a.verdicts() == "AC in_sync B diverged" and sorted(turned) == ["A", "B"]
    assert a.replicas.applied(Appliers()) == 10


def test_a_majority_against_the_own_replica_outlives_a_restart() -> None:
    b = Node("B")
    b.hear(*of_all(10, "BAC"))
    assert b.verdicts() == SETTLED
    b.restart()
    assert b.verdicts() == "B diverged"
    # The others have gone on, and say nothing of that position any more.
    b.hear(at(20, "A"), at(20, "C"))
    assert b.verdicts() == SETTLED and b.donors() == ["A", "C"]
    b.hear(replace(report(20, "B", rows=GOOD), copied_from="A@20/1"))
    b.restart()
    assert b.verdicts() == "B in_sync"


def test_after_a_restart_the_own_reports_are_one_opinion_and_no_truth() -> None:
    for faulty in "AB":
        node = Node(faulty)
        node.hear(at(10, faulty), at(20, faulty))
        node.restart()
        assert node.verdicts() == f"{faulty} in_sync"
        node.hear(*of_all(20, "BAC".replace(faulty, "")))
        assert node.verdicts() == SETTLED


def test_a_verdict_stays_when_its_position_is_long_past() -> None:
    b = Node("B")
    b.hear(*of_all(10, "BAC"))
    for batch in range(2, HISTORY + 100):
        b.hear(at(10 * batch, "A"), at(10 * batch, "C"))
    b.hear(at(10, "B", reported_at=1))
    assert b.verdicts() == SETTLED
    assert len(b.replicas._opinions) <= HISTORY + 3
    # A position that nobody remembers convicts nobody.
    late = Node("A")
    for batch in range(1, HISTORY + 100):
        late.hear(at(10 * batch, "A"), at(10 * batch, "C"))
    late.hear(at(10, "B"))
    assert late.verdicts() == "ABC in_sync"


def test_who_left_the_cluster_contests_nobody() -> None:
    members = dict.fromkeys("BC", SimpleNamespace(up=True))
    a = Node("A", links=members)
    a.hear(*of_all(10, "AB"))
    assert a.verdicts() == "AB in_sync?"
    del members["B"]
    a.hear(at(10, "A", reported_at=1))
    assert a.verdicts() == "AB in_sync"
    assert a.replicas.applied(Appliers()) == 10


def test_another_log_id_or_history_has_no_opinion() -> None:
    a = Node("A")
    a.hear(at(10, "A"), at(10, "B", log_id="forced"), at(10, "C", chain_hash="ff"))
    assert a.verdicts() == "A in_sync B foreign C diverged"
    a.hear(at(10, "C", irreparable="half a copy"))
    assert a.verdicts().startswith("AC in_sync")
    assert len(a.replicas._opinions.at(10)) == 1


def test_what_comes_before_the_own_queue_counts_once_the_queue_is_there() -> None:
    a = Node("A", position=5)
    a.hear(*of_all(10, "BC"))
    assert a.verdicts() == "BC ahead"
    a.base.ordered.value = a.base.published.value = 10
    for told, heard_at in a.replicas.overtaken():
        a.hear(told, now=heard_at)
    a.hear(at(10, "A"))
    assert a.verdicts() == SETTLED


# -- recounts --------------------------------------------------------------------------------------


def counted(site: str, position: int, rows: int, **changes: Any) -> Recount:
    told = replace(at(position, site), **changes)
    recorded = told.tables["t"].signature.to_text()
    found = replace(told.tables["t"].signature, rows=rows).to_text()
    return Recount(
        worker_id=told.worker_id,
        node_id=site,
        copied_from=told.copied_from,
        position=position,
        tables={"t": RecountedTable(version=position, recorded=recorded, counted=found)},
    )


def test_an_operator_asks_a_worker_that_follows_for_a_recount() -> None:
    """The same table at the same position again, too; a scan that failed is not repeated."""
    b = Node("B")
    for nobody in ("main", "reports"):
        with pytest.raises(NotFoundError, match="no worker follows"):
            b.replicas.ask_recount(nobody, ["t"], 1)
    b.hear(replace(at(10, "B"), follows=True))
    with pytest.raises(NotFoundError, match="has no table 'u'"):
        b.replicas.ask_recount("main", ["t", "u"], 1)
    assert b.replicas.recount_due() == []
    sound = counted("B", 10, GOOD)
    for _ in range(2):
        assert b.replicas.ask_recount("main", ["t"], 1)[1] == ["t"]
        assert b.replicas.recount_due() == ["t"]
        b.keep(b.replicas.take_recount(sound))
        assert b.replicas.recount_due() == []
    assert b.replicas.counted_at("B", "t") == 10 and b.replicas.counted_at("A", "t") is None
    b.replicas.ask_recount("main", ["t"], 1)
    b.replicas.take_recount(replace(sound, tables={}))
    assert b.replicas.recount_due() == []
    silent = 2 + int(b.base.config.worker_dead_after * 1e6)
    with pytest.raises(NotFoundError, match="no worker follows"):
        b.replicas.ask_recount("main", ["t"], silent)


def test_replicas_that_differ_are_recounted_after_a_while_and_once() -> None:
    b = Node("B")
    b.hear(*of_all(10, "BA"), now=1_000)
    assert b.replicas.recount_due() == []
    b.hear(at(10, "B"), now=1_000 + RECOUNT_AFTER_US)
    assert b.replicas.recount_due() == ["t"]
    # It is right by itself: that settles nothing, and is not asked again.
    b.keep(b.replicas.take_recount(counted("B", 10, LOST)))
    assert b.replicas.recount_due() == []
    assert b.verdicts() == "AB in_sync?"
    b.hear(at(20, "B"))
    assert b.replicas.recount_due() == []


def test_a_recount_that_differs_convicts_and_clears_the_other_site() -> None:
    b, a = Node("B"), Node("A")
    for node in (a, b):
        node.hear(*of_all(10, "BA"))
        assert node.verdicts() == "AB in_sync?"
    b.keep(b.replicas.take_recount(counted("B", 10, GOOD)))
    b.hear(b.replicas.state("B").newest)
    assert b.verdicts() == "A in_sync B diverged" and b.donors() == ["A"]
    (state,) = (s for s in b.replicas.states() if s.report.node_id == "B")
    assert state.comparison.cause is Cause.RECOUNT
    assert "a recount of version 10 counts 5:" in state.comparison.reason
    # Its node passes it on like that, and A is free.
    a.hear(*b.replicas.latest_own(5))
    assert a.verdicts() == "A in_sync B diverged"
    # The next report of its worker does not know of it, nor does a restart make it forgotten.
    b.hear(at(20, "B"))
    assert b.verdicts() == "A in_sync B diverged"
    b.restart()
    assert b.verdicts() == "B diverged"
    b.hear(at(10, "A"))
    b.hear(replace(at(10, "B"), copied_from="A@10/2", tables=at(10, "A").tables))
    assert b.verdicts() == "AB in_sync"


def test_a_recount_of_another_replica_says_nothing_of_this_one() -> None:
    b = Node("B")
    b.hear(at(10, "B", copied_from="A@10/1"))
    b.keep(b.replicas.take_recount(counted("B", 10, GOOD, copied_from="A@10/0")))
    b.hear(b.replicas.state("B").newest)
    assert b.verdicts() == "B in_sync"


def test_a_later_recount_takes_an_earlier_one_back() -> None:
    b = Node("B")
    b.hear(at(10, "B"))
    for rows, verdicts in ((GOOD, "B diverged"), (LOST, "B in_sync")):
        b.keep(b.replicas.take_recount(counted("B", 10, rows)))
        b.hear(b.replicas.state("B").newest)
        assert b.verdicts() == verdicts
    b.restart()
    assert b.verdicts() == "B in_sync"


def test_files_that_are_missing_are_told_as_such() -> None:
    b = Node("B")
    b.hear(at(10, "B"))
    found = RecountedTable(version=10, recorded="4:0:0", counted="", cause="part-1 is missing")
    b.keep(b.replicas.take_recount(replace(counted("B", 10, 4), tables={"t": found, "x": found})))
    b.hear(b.replicas.state("B").newest)
    assert "cannot read all files of version 10, recorded is 4:0:0: part-1" in b.reason("B")
