"""Workers of followers have tables of their own, and no commit waits for them (P38).

F follows the members from the beginning of the log on; G joins later, and follows F.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.followers import follower
from tests.support.node_processes import (
    MANUAL,
    TABLE,
    HttpProblem,
    NodeProcess,
    append,
    call,
    free_ports,
    wait_until,
)

from sparktxlog import Client, connect
from sparktxlog.errors import ExpiredError, FollowerError
from sparktxlog.worker.copy.copy_terms import CopyOptions
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory
from sparktxlog.worker.verify.verify import recount_tables

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Sites:
    """Members A and B, and followers F and G; G has no place yet, and is not started."""

    a: NodeProcess
    b: NodeProcess
    f: NodeProcess
    g: NodeProcess

    def add_g(self) -> None:
        """Give G a place in a log that runs, and start it."""
        body = {"id": "G", "url": self.g.url, "follower": True}
        view = call(f"{self.a.url}/v1/peers?timeout=20", body)
        assert view["members"] == ["A", "B"]
        self.g.start()
        self.g.wait_ready()


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    ports = dict(zip("ABFG", free_ports(4), strict=True))

    def node(name: str, peers: str, *settings: str) -> NodeProcess:
        others = {peer: ports[peer] for peer in peers if peer != name}
        return NodeProcess(tmp_path, name, ports[name], others, (MANUAL, *settings), followers="FG")

    made = Sites(
        node("A", "ABF"),
        node("B", "ABF"),
        node("F", "ABF"),
        node("G", "ABF", 'follow = ["F"]'),
    )
    with ExitStack() as running:
        for one in (made.a, made.b, made.f):
            running.callback(one.stop)
            one.start()
        for one in (made.a, made.b, made.f):
            one.wait_ready()
            wait_until(lambda one=one: all(peer["linked"] for peer in one.status()["peers"]))
        running.callback(lambda: made.g.process is None or made.g.stop())
        made.a.commit(TABLE)
        yield made


def _once(spark: SparkSession, node: NodeProcess, at_least: int) -> int:
    """Let a node's worker apply what it can; return its position."""
    with (
        closing(HttpLogSource(node.url)) as source,
        closing(ReplicaDirectory(node.lake)) as directory,
    ):
        worker = Applier(spark, source, directory, copies=CopyOptions())
        return worker.run_once(at_least, timeout_s=60).position


def _signature(node: NodeProcess, position: int) -> str:
    replica = node.hear("", position)
    assert replica["verdict"] == "IN_SYNC"
    found: str = replica["tables"]["t"]["signature"]
    return found


def test_followers_have_the_tables_of_the_members(spark: SparkSession, sites: Sites) -> None:
    """F replays all of the log; G, which joined later, copies a replica; then both follow."""
    a, b, f, g = sites.a, sites.b, sites.f, sites.g
    last = [node.commit(append(n))["position"] for n, node in enumerate((a, b, a))][-1]
    sites.add_g()
    wait_until(lambda: g.status()["published"] == last, what="G is at the end")
    # G begins with a summary of the queue: it has no rows from before, and nobody has any yet.
    assert g.status()["kept_after"] == last and f.status()["kept_after"] == 0
    with pytest.raises(ExpiredError, match="all replicas are empty; first run a worker") as caught:
        _once(spark, g, last)
    assert caught.value.definite and caught.value.fields["position"] == 0
    assert _once(spark, f, last) == last, "it needs no other replica"
    g.hear("F", last)
    with follower(spark, f), follower(spark, g):
        g.hear("", last)
        assert g.replica()["last_transfer"]["donors"] == ["F"]
        with Client(a.url) as client:
            client.append("t", [{"id": number, "v": "more"} for number in range(10, 20)])
        with Client(b.url) as client:
            client.delete_where("t", "id = 1")
            last = client.append("t", [{"id": 30, "v": "last"}]).position
        found = {node.name: _signature(node, last) for node in (f, g)}
    assert g.status()["following"]["upstream"] == "F"
    assert _once(spark, a, last) == last
    assert set(found.values()) == {_signature(a, last)}, found
    for node in (a, f, g):
        assert recount_tables(spark, node.lake) == {}
        assert {one["verdict"] for one in node.status()["replicas"] if one["worker_id"]} == {
            "IN_SYNC"
        }


def test_no_commit_waits_for_a_follower_or_is_taken_by_one(
    spark: SparkSession, sites: Sites
) -> None:
    """Its position is shown at the members, and never counts for `applied(k)`."""
    a, b, f = sites.a, sites.b, sites.f
    with follower(spark, a), follower(spark, f):
        last = a.commit(append(1), "applied", 60)["position"]
        f.hear("", last)
        shown = a.hear("F", last)
        assert (shown["verdict"], shown["behind"]) == ("IN_SYNC", 0)
        receipt_id = str(uuid.uuid4())
        last = a.commit(append(2, receipt_id))["position"]
        a.hear("", last)
        a.hear("F", last)
        receipt = a.commit(append(2, receipt_id), "applied(2)", 2)
        assert (receipt["level"], receipt["late"]) == ("ordered", True), "B has not applied it"
        with pytest.raises(HttpProblem) as caught:
            a.commit(append(3), "applied(3)", 3)
        assert caught.value.document["title"] == "invalid-request", "there are two members"
        with follower(spark, b):
            b.hear("", last)
            assert a.commit(append(4), "applied(2)", 60)["level"] == "applied"
        _writes_are_refused(spark, sites)


def _writes_are_refused(spark: SparkSession, sites: Sites) -> None:
    f, members = sites.f, [sites.a.url, sites.b.url]
    before = sites.a.status()["position"]
    with pytest.raises(HttpProblem) as caught:
        f.commit(append(5))
    answer: dict[str, Any] = caught.value.document
    assert (caught.value.status, answer["title"]) == (503, "follower")
    assert answer["definite"] and answer["fields"]["members"] == members
    f.hear("", before)
    with closing(connect(spark.newSession(), f.url)) as log:
        assert log.table("t").count() == log.table("t", at_least=before).count() > 0
        with pytest.raises(FollowerError) as refused:
            log.append("t", spark.createDataFrame([(6, "x")], "id bigint, v string"))
        assert refused.value.definite and refused.value.fields["members"] == members
        with pytest.raises(FollowerError):
            log.create_table("u", "id bigint")
    assert sites.a.status()["position"] == before
