"""A replica that holds what the log gave up is copied: from fork to equal replicas (P28)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.e2e.test_quarantine import QUICK, fork, gave_way, kept, shows
from tests.spark.copying.test_states import Sites
from tests.support.node_processes import wait_until

from sparktxlog.worker.copy.copy_terms import CopyOptions

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(600)]


@pytest.fixture
def sites(tmp_path: Path, spark: SparkSession) -> Iterator[Sites]:
    sites = Sites(tmp_path, spark, QUICK)
    try:
        sites.start()
        yield sites
    finally:
        sites.cluster.stop()


def test_what_a_fork_applied_is_kept_and_its_replica_copied(sites: Sites) -> None:
    a, b = sites.a, sites.b
    common = sites.commit()
    lost = [str(uuid.uuid4()) for _ in range(3)]
    fork(sites.cluster, lost)
    assert sites.work(a, at_least=common + 3).verdict == "IN_SYNC"
    assert sites.work(b, at_least=common + len(lost)).verdict == "IN_SYNC"
    assert sites.rows(a.lake) == [1, 100, 101, 102]
    assert sites.rows(b.lake) == [1, 200, 201, 202]

    b.stop()
    assert gave_way(b, a)["common"] == common
    b.start()
    wait_until(lambda: shows(a, "AB") and shows(b, "AB"), what="B joins what A went on with")
    sites.commit()
    sites.apply_at_a()
    sites.await_plan(b, "copy")
    assert b.replica("B")["verdict"] == "DIVERGED"
    sites.check(sites.work(b, copies=CopyOptions()), "commit")
    assert sites.rows(b.lake) == [1, 2, 100, 101, 102]
    assert [row["transaction_id"] for row in kept(b)] == lost, "for people to submit again"
