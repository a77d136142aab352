"""Three sites, and one of them is wrong: the majority is never blamed, whoever was heard first.

Real nodes, real Spark.  B loses an update and reports success.  Each test begins with
all replicas IN_SYNC at the end of the log and equal, and leaves them so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.spark.followers import follower
from tests.support.node_processes import TABLE, NodeProcess, append, call, wait_until
from tests.support.site_links import LinkedCluster, ways_between

from sparktxlog.attic.attic import Attic
from sparktxlog.catchup.planner import OUT_OF_SYNC_FORCED
from sparktxlog.model.signature import TableSignature
from sparktxlog.worker.apply.steps import TableSteps
from sparktxlog.worker.copy.copy_terms import CopyOptions
from sparktxlog.worker.replica.applier import Applier, ApplyOutcome
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory, read_state
from sparktxlog.worker.verify.verify import verify_replica

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(1200)]

ALL_WAYS = ways_between("A", "BC") | ways_between("B", "C")


class Sites:
    """Three nodes whose replicas this process applies."""

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self.spark = spark
        self.cluster = LinkedCluster(directory, "ABC")
        self.a, self.b, self.c = self.cluster.nodes.values()
        self.number = 0

    def commit(self) -> int:
        """Have a row appended at A; return its position once all nodes have published it."""
        self.number += 1
        self.a.commit(append(self.number))
        return self.cluster.publish()

    def work(self, node: NodeProcess, at_least: int = 0, **options: Any) -> ApplyOutcome:
        """Run a node's worker until it holds what is published; it may copy if it is told to."""
        source = HttpLogSource(node.url)
        options.setdefault("copies", CopyOptions())
        with closing(source), closing(ReplicaDirectory(node.lake)) as directory:
            applier = Applier(self.spark, source, directory, **options)
            if options["copies"].forced:
                return applier.catch_up(30.0)
            return applier.run_once(at_least, 30.0 if at_least else 0.0)

    def rows(self, node: NodeProcess) -> list[int]:
        # By delta-rs, which keeps no table open: copies replace whole directories.
        table = DeltaTable(node.lake / "t").to_pyarrow_table()
        return sorted(table.column("id").to_pylist())

    def await_peace(self, position: int) -> None:
        """Wait until every node finds every replica IN_SYNC, uncontested and equal."""

        def equal() -> bool:
            for node in self.cluster.nodes.values():
                replicas = [node.replica(name) for name in "ABC"]
                tables = [r["tables"].get("t", {}).get("signature") for r in replicas]
                if (
                    None in tables
                    or len(set(tables)) != 1
                    or any(
                        (r["verdict"], r["contested"], r["position"])
                        != ("IN_SYNC", False, position)
                        for r in replicas
                    )
                ):
                    return False
            return True

        wait_until(equal, 240.0, f"all replicas are equal at {position} in all eyes")
        everybody = list(self.cluster.nodes.values())
        assert self.rows(everybody[0]) == self.rows(everybody[1]) == self.rows(everybody[2])

    def blamed(self, name: str) -> list[str]:
        """Return the lines in which some node judged a site's replica DIVERGED."""
        pattern = re.compile(rf"site={name}\b.*verdict=DIVERGED")
        return [
            line
            for node in self.cluster.nodes.values()
            for line in node.log_text().splitlines()
            if pattern.search(line)
        ]

    def check_spared(self) -> None:
        """A and C were never blamed for anything, never copied, and nothing of theirs moved."""
        for node in (self.a, self.c):
            assert self.blamed(node.name) == []
            assert "Replicating (out of sync" not in node.log_text()
            assert Attic.of_lake(node.lake).entries() == []
            state = read_state(node.lake)
            assert state is not None and state.copied_from == ""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Sites]:
    sites = Sites(tmp_path_factory.mktemp("majority"), spark)
    try:
        sites.cluster.start()
        sites.a.commit(TABLE)
        sites.commit()
        yield sites
    finally:
        sites.cluster.stop()


@pytest.fixture
def sites(running: Sites) -> Sites:
    """All replicas are IN_SYNC at the end of the log."""
    position = running.cluster.publish()
    for node in running.cluster.nodes.values():
        assert running.work(node, position).verdict == "IN_SYNC"
    running.await_peace(position)
    return running


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lose the next step of whoever applies next: it is taken for done; filled once it was."""
    run_step, found = TableSteps.run_step, []

    def lose(self: TableSteps, batch: Any, step: Any, progress: Any, *rest: Any) -> None:
        found.append(step.kind)
        progress.done = step.number
        monkeypatch.setattr(TableSteps, "run_step", run_step)

    monkeypatch.setattr(TableSteps, "run_step", lose)
    return found


def test_a_faulty_site_that_is_heard_first_comes_back_and_blames_nobody(
    sites: Sites, lost: list[str]
) -> None:
    with follower(sites.spark, sites.b) as outcomes:
        position = sites.commit()
        for node in sites.cluster.nodes.values():
            # The fault is everywhere before anybody else has said a word.
            assert node.hear("B", position)["verdict"] == "IN_SYNC"
        assert len(lost) == 1
        assert sites.work(sites.a, position).verdict == "IN_SYNC"
        assert sites.a.replica("A")["contested"] or sites.a.replica("C")
        assert sites.work(sites.c, position).verdict == "IN_SYNC"
        sites.await_peace(position)
    (outcome,) = outcomes
    (copy,) = outcome.copies
    assert copy.donor in "AC" and outcome.verdict == "IN_SYNC"
    assert sites.blamed("B") and OUT_OF_SYNC_FORCED in sites.b.log_text()
    sites.check_spared()


def test_a_faulty_site_comes_back_though_every_node_heard_its_own_worker_first(
    sites: Sites, lost: list[str]
) -> None:
    position = sites.commit()
    sites.cluster.links.refuse(ALL_WAYS)
    wait_until(
        lambda: (
            not any(p["linked"] for n in sites.cluster.nodes.values() for p in n.status()["peers"])
        ),
        what="all links are cut",
    )
    for node in (sites.b, sites.a, sites.c):
        assert sites.work(node, position).verdict == "IN_SYNC"
    assert len(lost) == 1 and sites.rows(sites.b) != sites.rows(sites.a)
    sites.cluster.links.heal()
    wait_until(sites.cluster.all_linked, what="the links are back")
    with follower(sites.spark, sites.b) as outcomes:
        sites.await_peace(position)
    (copy,) = outcomes[0].copies
    assert copy.donor in "AC"
    sites.check_spared()


def test_two_sites_that_differ_wait_for_the_operator_who_names_the_donor(
    sites: Sites, lost: list[str]
) -> None:
    position = sites.commit()
    with follower(sites.spark, sites.b):
        sites.a.hear("B", position)
        assert len(lost) == 1
        assert sites.work(sites.a, position).verdict == "IN_SYNC"
        for node in (sites.a, sites.b):
            wait_until(lambda node=node: node.replica("A").get("contested"), what="contested")
            assert node.replica("B")["contested"]
        reason = sites.b.replica("B")["reason"]
        assert f"at position {position} table 't'" in reason and "site A has" in reason
        # It is asked to recount, and its rows are what it recorded: that settles nothing.
        told = f"{sites.b.url}/v1/worker/plan"
        assert call(told)["plan"] == "up-to-date"
        wait_until(
            lambda: re.search(r"\brecount .*wrong=\[\]", sites.b.log_text()),
            240.0,
            "B is recounted",
        )
        assert sites.b.replica("B")["verdict"] == "IN_SYNC"
    outcome = sites.work(sites.b, copies=CopyOptions(forced=True, donor="A"))
    assert [copy.donor for copy in outcome.copies] == ["A"]
    assert sites.work(sites.c, position).verdict == "IN_SYNC"
    sites.await_peace(position)
    sites.check_spared()


def test_two_sites_that_differ_are_told_apart_by_a_recount(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_step = TableSteps.run_step

    def lie(self: TableSteps, batch: Any, step: Any, progress: Any, *rest: Any) -> None:
        """Do the step, and report another signature."""
        run_step(self, batch, step, progress, *rest)
        progress.signature += TableSignature(rows=0, lane0=1, lane1=1)
        monkeypatch.setattr(TableSteps, "run_step", run_step)

    monkeypatch.setattr(TableSteps, "run_step", lie)
    with follower(sites.spark, sites.b) as outcomes:
        position = sites.commit()
        sites.a.hear("B", position)
        assert sites.work(sites.a, position).verdict == "IN_SYNC"
        wait_until(
            lambda: read_state(sites.b.lake).copied_from.startswith(f"A@{position}/"),
            240.0,
            "B has recounted itself and copied A",
        )
        assert sites.work(sites.c, position).verdict == "IN_SYNC"
        sites.await_peace(position)
    assert len(outcomes[0].copies) == 1
    assert "a recount of version" in "".join(sites.blamed("B"))
    sites.check_spared()


def test_what_verify_finds_wrong_is_repaired(sites: Sites) -> None:
    position = sites.cluster.publish()
    table = sites.b.lake / "t"
    name = Path(DeltaTable(table).file_uris()[0]).name
    rows = pq.read_table(table / name)
    (table / name).unlink()
    pq.write_table(
        rows.set_column(0, "id", [[n + 1_000 for n in rows["id"].to_pylist()]]), table / name
    )
    with closing(HttpLogSource(sites.b.url)) as source:
        found = verify_replica(sites.spark, source, sites.b.lake)
    assert not found.sound and (found.verdict, found.plan) == ("DIVERGED", "copy")
    for node in sites.cluster.nodes.values():
        wait_until(lambda node=node: node.replica("B")["verdict"] == "DIVERGED", what="told")
    # It survives a restart of the node, and ends with the copy.
    sites.b.stop()
    sites.b.start()
    sites.b.wait_ready()
    # Its node must hear again of somebody who can lend.
    plan = f"{sites.b.url}/v1/worker/plan"
    wait_until(lambda: call(plan)["plan"] == "copy", what="B is back, and knows a donor")
    outcome = sites.work(sites.b, position)
    assert (outcome.verdict, len(outcome.copies)) == ("IN_SYNC", 1)
    sites.await_peace(position)
    with closing(HttpLogSource(sites.b.url)) as source:
        assert verify_replica(sites.spark, source, sites.b.lake).sound
    sites.check_spared()
