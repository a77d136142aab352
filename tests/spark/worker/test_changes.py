"""Tables change at one position, at every site, and old positions stay readable as they were."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.support.node_processes import Cluster, NodeProcess, running

from sparktxlog import Client, connect
from sparktxlog.api.connect import TxLog
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory, ReplicaTable, read_state
from sparktxlog.worker.verify.verify import recount

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(600)]


def apply(spark: SparkSession, node: NodeProcess) -> int:
    """Have a site's worker apply what is ordered; return the replica's position."""
    with (
        closing(HttpLogSource(node.url)) as source,
        closing(ReplicaDirectory(node.lake)) as directory,
    ):
        return Applier(spark, source, directory).run_once(timeout_s=60).position


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted((row.asDict() for row in frame.collect()), key=lambda row: row["id"])


def recorded(node: NodeProcess) -> dict[str, ReplicaTable]:
    state = read_state(node.lake)
    assert state is not None and state.pending is None
    return state.tables


def check(spark: SparkSession, nodes: list[NodeProcess]) -> None:
    """All replicas have the same tables, and a full scan counts what their states say."""
    first = recorded(nodes[0])
    for node in nodes:
        state, held = read_state(node.lake), recorded(node)
        assert state is not None
        assert {name: (t.definition, t.signature) for name, t in held.items()} == {
            name: (t.definition, t.signature) for name, t in first.items()
        }
        found = recount(spark, node.lake, state, node.name, list(held))
        assert all(table.sound for table in found.tables.values()), found


def test_a_column_is_added_at_one_position(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    with running(Cluster(tmp_path, "AB")) as cluster, ExitStack() as stack:
        a, b = cluster.nodes.values()
        log: TxLog = stack.enter_context(closing(connect(session, a.url)))
        client = stack.enter_context(Client(b.url))
        log.create_table("orders", "id bigint, item string", keys=["id"])
        first = log.append(
            "orders", session.createDataFrame([(1, "a"), (2, "b")], "id long, item string")
        )
        assert apply(spark, b) == first.position
        client.after(first)
        client.append("orders", [{"id": 3, "item": "c"}])
        changed = log.alter_table("orders", add={"note": "string", "rank": ("int", "1 is best")})
        new = "id long, item string, note string, rank int"
        log.upsert("orders", session.createDataFrame([(2, "B", "n", 1)], new))
        client.after(changed)
        client.append("orders", [{"id": 4, "item": "d", "note": None, "rank": 4}])
        last = log.append("orders", session.createDataFrame([(5, "e", "m", 5)], new))
        # B was there before the change, A takes all of it in one batch.
        for node in (a, b):
            apply(spark, node)
        check(spark, [a, b])
        after = [
            {"id": 1, "item": "a", "note": None, "rank": None},
            {"id": 2, "item": "B", "note": "n", "rank": 1},
            {"id": 3, "item": "c", "note": None, "rank": None},
            {"id": 4, "item": "d", "note": None, "rank": 4},
            {"id": 5, "item": "e", "note": "m", "rank": 5},
        ]
        there = stack.enter_context(closing(connect(session, b.url)))
        for reader in (log, there):
            found = reader.table("orders", at_least=last)
            assert rows(found) == after
            assert found.schema["rank"].metadata == {"comment": "1 is best"}
        old = there.snapshot(first.position).table("orders")
        assert rows(old) == [{"id": 1, "item": "a"}, {"id": 2, "item": "b"}]
        told = client.table("orders")
        assert (told.schema_version, told.last_write) == (2, last.position)
