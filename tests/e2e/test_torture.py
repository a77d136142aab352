"""The short form of `make torture`: half a minute of faults, and every promise is on the disks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.verification.torture.__main__ import tortured
from tests.verification.torture.history import Act
from tests.verification.torture.judgement import Evidence, judge
from tests.verification.torture.list_append import ListTransaction, Seen
from tests.verification.torture.replicas import Replica
from tests.verification.torture.workloads import GUARDED, BulkHistory

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.slow]


def test_every_promise_is_kept_on_the_disks(tmp_path: Path) -> None:
    with tortured(tmp_path, 0.5, seed=1, enough=_enough) as evidence:
        assert list(judge(evidence)) == []
        assert sum(act.told == "ordered" for act in evidence.acts) > 50
        # The same history, with one anomaly for each checker: none of them is blind on real ones.
        says = _planted(evidence)
        found = list(judge(evidence))
    assert [begin for begin in says if not any(line.startswith(begin) for line in found)] == []


@pytest.mark.repeated
@pytest.mark.timeout(600)
def test_every_promise_is_kept_with_files_in_buckets(tmp_path: Path) -> None:
    """The bucket throttles, loses answers and is away; what it has is judged in the end."""
    with tortured(tmp_path, 1.0, seed=7, store="s3", faulty=0.03) as evidence:
        assert list(judge(evidence)) == []
        assert sum(act.told == "ordered" for act in evidence.acts) > 50
        assert evidence.faults["store_away"] > 0
        assert evidence.faults["store_away_at_start"] > 0
        # Each kind of fault befell some request, and the way was cut while there were some.
        faults = {"throttled", "lost", "failed", "cut", "delayed", "away"}
        assert faults <= evidence.requests.keys()


def _planted(evidence: Evidence) -> list[str]:
    """Plant anomalies in a history without any; return how the sentences about them begin."""
    bulk = evidence.bulk
    evidence.acts.append(Act("nowhere", 0.0, 1.0, "ordered", 1))
    # A lost update: a transaction did not see the last element of a list that it appended to.
    at, one, name = next(_guarded(bulk.lists))
    elements, length = one.reads[name]
    bulk.lists[at] = replace(one, reads={**one.reads, name: Seen(elements, length - 1)})
    # What certainly did not happen is there.
    at, one = _last(bulk.lists, "ordered")
    bulk.lists[at] = replace(one, told="refused")
    # A session goes back.
    at, one = _last(bulk.lists, "read")
    bulk.lists[at] = replace(one, read_position=0)
    read = max(bulk.set_reads, key=lambda read: read.seen.length)
    shown = tuple(read.seen.elements[1 : read.seen.length])
    bulk.set_reads.append(replace(read, seen=Seen(shown, len(shown))))
    moved = evidence.replicas[0].bank_reads
    account, balance = next(iter(moved[-1].balances.items()))
    moved.append(replace(moved[-1], balances={**moved[-1].balances, account: balance + 1}))
    # Somebody was told of a decision that nobody took.
    decided = next(one for one in bulk.prepared if one.answers)
    decided.answers.add(("committed", 1, ""))
    return [
        f"prepared: {decided.act.transaction_id} was told to be ",
        "nowhere was ordered, and is in no queue",
        "lists: G-single: ",
        "lists: aborted-write: ",
        f"session: {one.session} read position 0 in ",
        f"set: {read.node} lacks {read.seen.elements[0]} at or after its position ",
        f"bank: {moved[-1].node} at position {moved[-1].position}: the total is ",
    ]


def _enough(bulk: BulkHistory, replicas: Sequence[Replica]) -> bool:
    """Return whether there is all that is planted upon; a slow machine takes longer."""
    return (
        any(one.told == "read" for one in bulk.lists)
        and any(_guarded(bulk.lists))
        and any(one.answers for one in bulk.prepared)
        and any(read.seen.length for read in bulk.set_reads)
        and bool(replicas[0].bank_reads)
    )


def _guarded(lists: list[ListTransaction]) -> Iterator[tuple[int, ListTransaction, str]]:
    """Yield appends to a list that was not empty, and was read with a condition: place, name."""
    for at, one in enumerate(lists):
        for name in one.appends:
            if name in GUARDED and one.told == "ordered" and one.reads[name].length:
                yield at, one, name


def _last(lists: list[ListTransaction], told: str) -> tuple[int, ListTransaction]:
    """Return the last transaction of which so much was told, and its place."""
    return next((at, one) for at, one in reversed(list(enumerate(lists))) if one.told == told)
