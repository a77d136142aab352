"""Verdicts on replicas (protocol S3) as a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from sparktxlog.catchup.comparison import Cause, LogView, compare, judge, recordable
from sparktxlog.catchup.opinions import Dissent
from sparktxlog.model.report import ReplicaVerdict, TableState, WorkerReport
from sparktxlog.model.signature import TableSignature

HASH = "ab" * 32


def table(rows: int = 1, diverged: str = "") -> TableState:
    return TableState(version=3, signature=TableSignature(rows=rows), schema="s", diverged=diverged)


REPORT = WorkerReport(
    worker_id="w",
    node_id="A",
    log_id="l",
    epoch=1,
    position=100,
    chain_hash=HASH,
    tables={"t": table(), "u": table(2)},
)
LOG = LogView(log_id="l", position=100, published=100, chain_hash=HASH)
SAME = {"t": table().signature.to_text(), "u": table(2).signature.to_text()}


@pytest.mark.parametrize(
    ("report", "log", "verdict", "cause", "reason"),
    [
        ({}, {}, "IN_SYNC", "none", "at position 100"),
        ({}, {"position": 150, "published": 130}, "IN_SYNC", "none", "30 transactions"),
        (
            {},
            {"position": 150, "published": 130, "kept_after": 110, "chain_hash": None},
            "IN_SYNC",
            "expired",
            "kept after 110",
        ),
        (
            {},
            {"position": 150, "published": 130, "chain_hash": None, "hash_known": False},
            "IN_SYNC",
            "none",
            "30 transactions",
        ),
        ({}, {"position": 150, "published": 130, "kept_after": 110}, "IN_SYNC", "expired", ""),
        ({"position": 0, "chain_hash": "0" * 64}, {"published": 7}, "EMPTY", "none", "7"),
        ({"position": 0, "chain_hash": ""}, {"published": 0, "position": 0}, "EMPTY", "none", ""),
        ({"position": 0, "chain_hash": ""}, {"kept_after": 5}, "EMPTY", "expired", "kept after"),
        ({"position": 101}, {}, "AHEAD", "beyond", "queue, 100"),
        ({"log_id": "other"}, {}, "FOREIGN", "log_id", "'other'"),
        ({"chain_hash": "cd" * 32}, {}, "DIVERGED", "hash", "another history"),
        ({}, {"chain_hash": None}, "DIVERGED", "no-run-end", "no run of this log ends"),
        (
            {"tables": {"t": table(diverged="foreign commit 4")}},
            {},
            "DIVERGED",
            "admitted",
            "foreign commit 4",
        ),
        (
            {"tables": {"t": table(diverged="counts 7")}},
            {"recounted": {"t"}},
            "DIVERGED",
            "recount",
            "counts 7",
        ),
        (
            {"tables": {"t": table(diverged="foreign commit 4")}},
            {"position": 150, "kept_after": 110, "chain_hash": None},
            "DIVERGED",
            "admitted",
            "foreign commit 4",
        ),
    ],
)
def test_verdicts(
    report: dict[str, Any], log: dict[str, Any], verdict: str, cause: str, reason: str
) -> None:
    comparison = compare(replace(REPORT, **report), replace(LOG, **log))
    assert (comparison.verdict, comparison.cause) == (ReplicaVerdict(verdict), Cause(cause))
    assert reason in comparison.reason


DISSENT = Dissent(
    position=90, tables=("t", "u"), signature="1:0:0", others={"A": "2:0:0", "C": "2:0:0"}
)


def test_a_majority_makes_a_known_replica_diverged_and_no_other_one() -> None:
    judged = judge(compare(REPORT, LOG), DISSENT, None)
    assert (judged.verdict, judged.cause) == (ReplicaVerdict.DIVERGED, Cause.SIGNATURE)
    assert judged.reason == (
        "at position 90 table 't' (and 1 more) has signature 1:0:0, most sites (A, C) have 2:0:0"
    )
    for other in ({"log_id": "other"}, {"position": 0}, {"position": 101}):
        told = compare(replace(REPORT, **other), LOG)
        assert judge(told, DISSENT, DISSENT) == told


def test_a_contested_replica_is_known_and_told_what_resolves_it() -> None:
    missing = replace(DISSENT, tables=("t",), signature="", others={"B": "2:0:0"})
    judged = judge(compare(REPORT, LOG), None, missing)
    assert (judged.verdict, judged.cause) == (ReplicaVerdict.IN_SYNC, Cause.CONTESTED)
    assert judged.contest == missing
    for said in (
        "position 90",
        "'t' is missing",
        "site B has 2:0:0",
        "verify --compare",
        "--force copy --donor",
    ):
        assert said in judged.reason
    expired = compare(REPORT, replace(LOG, kept_after=110, position=150))
    assert judge(expired, None, missing).cause is Cause.EXPIRED


def test_behind_counts_what_is_published_and_never_less_than_nothing() -> None:
    ahead_of_publishing = replace(LOG, position=150, published=90)
    assert compare(REPORT, ahead_of_publishing).behind == 0
    assert compare(REPORT, replace(LOG, position=150, published=130)).behind == 30


def test_an_opinion_is_the_report_of_a_success() -> None:
    assert recordable(REPORT) == SAME
    assert recordable(replace(REPORT, irreparable="a copy is not finished")) is None
    assert recordable(replace(REPORT, tables={"t": table(diverged="x")})) is None


def test_reports_of_older_workers_still_decode() -> None:
    new = {"pace", "irreparable", "copied_from"}
    values = msgspec.to_builtins(REPORT)
    old = {name: value for name, value in values.items() if name not in new}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=WorkerReport) == REPORT
