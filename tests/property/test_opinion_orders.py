"""Whatever order three sites' reports come in, each node judges alike in the end (S3)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.known_replicas import base_of, report

from sparktxlog.catchup.donors import Candidate, choose_donors
from sparktxlog.model.report import ReplicaVerdict, WorkerReport
from sparktxlog.runtime.replicas.judged_replicas import Replicas

END = 60
GOOD, BAD = 1, 2


def hash_at(position: int) -> bytes | None:
    return position.to_bytes(32, "big")


def view(node: str) -> Replicas:
    return Replicas(base_of(node, hash_at, position=END))


@st.composite
def histories(draw: st.DrawFn) -> dict[str, list[WorkerReport]]:
    """Return what each site reports, in its order; one may be copied from another on the way."""
    found: dict[str, list[WorkerReport]] = {}
    for site in "ABC":
        positions = sorted(draw(st.sets(st.sampled_from([10, 20, 30, 40]), min_size=1)))
        copied = draw(st.sampled_from(["", *(other for other in "ABC" if other != site)]))
        since = draw(st.sampled_from(positions))
        found[site] = []
        for position in positions:
            made = report(position, site, rows=draw(st.sampled_from([GOOD, GOOD, BAD])))
            if copied and position >= since:
                made = replace(made, copied_from=f"{copied}@{since}/x")
            found[site].append(made)
    return found


@st.composite
def orders(draw: st.DrawFn, reports: dict[str, list[WorkerReport]]) -> list[WorkerReport]:
    """Return the reports in an order that keeps each site's own, some of them told twice."""
    turns = draw(st.permutations([site for site, told in reports.items() for _ in told]))
    waiting = {site: iter(told) for site, told in reports.items()}
    found = []
    for site in turns:
        one = next(waiting[site])
        found += [one] * draw(st.integers(1, 2))
    return found


def judged(node: str, order: list[WorkerReport]) -> list[tuple[str, str, bool, str]]:
    known = view(node)
    for one in order:
        known.accept(one, 1)
    return [
        (s.report.node_id, s.comparison.verdict.value, s.contested, s.comparison.reason)
        for s in known.states()
    ]


@settings(deadline=None, max_examples=200)
@given(st.data(), histories())
def test_the_order_of_reports_decides_nothing(
    data: st.DataObject, reports: dict[str, list[WorkerReport]]
) -> None:
    found = {str(judged(node, data.draw(orders(reports)))) for node in "ABC" for _ in range(2)}
    assert len(found) == 1


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_one_faulty_site_is_never_believed_and_nobody_else_is_blamed(data: st.DataObject) -> None:
    """B is wrong from some position on; A and C are right, and all report the end."""
    since = data.draw(st.sampled_from([10, 20, 30, 40]))
    reports = {}
    for site in "ABC":
        positions = sorted({40, *data.draw(st.sets(st.sampled_from([10, 20, 30])))})
        reports[site] = [
            report(p, site, rows=BAD if site == "B" and p >= since else GOOD) for p in positions
        ]
    node = data.draw(st.sampled_from("ABC"))
    known = view(node)
    for one in data.draw(orders(reports)):
        known.accept(one, 1)
        verdicts = {s.report.node_id: s.comparison.verdict for s in known.states()}
        assert verdicts.get("A") in (None, ReplicaVerdict.IN_SYNC)
        assert verdicts.get("C") in (None, ReplicaVerdict.IN_SYNC)
        _check_donors(known)
    assert verdicts["B"] is ReplicaVerdict.DIVERGED
    assert not any(s.contested for s in known.states())


def _check_donors(known: Replicas) -> None:
    """Whoever may lend differs from no other sound replica where both have reported last."""
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
        for s in known.states()
    ]
    donors = choose_donors("target", 0, candidates, 9)
    rows = {
        (s.report.position, s.report.tables["t"].signature.rows)
        for s in known.states()
        if s.report.node_id in donors
    }
    assert len({position for position, _ in rows}) == len(rows)
