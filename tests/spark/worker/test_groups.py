"""Workers of two sites apply the tables of their groups, and none is behind or different (V04)."""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.adopting.sites import TwoSites, two_sites

from sparktxlog import Client
from sparktxlog.api.writing.group_definitions import create_group
from sparktxlog.errors import NotHeldHereError
from sparktxlog.http.link import Http
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.verify.comparing import compare_sites


def _many_transactions(spark: SparkSession, sites: TwoSites) -> list[tuple[int, str]]:
    """Submit runs whose rows for a group are in one file each; return what is read at B."""
    with Client(sites.nodes["A"].url) as client:
        known = str(uuid.uuid4())
        client.append("orders", [{"id": 1, "name": "one"}], transaction_id=known)
        rows = {"id": [2, 5, 5, 6], "name": ["two", "five", "again", "six"]}
        client.submit_many("orders", pa.table(rows), kind="upsert")
        client.submit_many("orders", pa.table({"id": [3, 9]}), kind="delete_keys")
        client.submit_many("orders", pa.table({"id": [4, 8], "name": ["four", "gone"]}))
        client.delete_where("orders", "id = 8")
    # Of a run with the id of another transaction the rest takes effect.
    rows_by_id = [(7, "x", 1, str(uuid.uuid4())), (1, "twice", 2, known)]
    frame = spark.createDataFrame(rows_by_id, "id long, name string, t int, uuid string")
    batch = sites.a.batch()
    batch.append("orders", frame, transaction="t", transaction_ids="uuid")
    assert [one.code for one in batch.commit().rejections] == ["id-taken"]
    sites.b.after(sites.a.position())
    found = sites.b.table("orders").orderBy("id").collect()
    return [(row.id, row.name) for row in found]


def test_each_site_applies_what_it_holds(spark: SparkSession, tmp_path: Path) -> None:
    """V04: a row that A accepts for group eu is read at B, and nowhere else."""
    with two_sites(spark, tmp_path) as sites:
        create_group(Http(sites.nodes["A"].url), "eu", ["B"])
        sites.a.create_table("orders", "id bigint not null, name string", ["id"], group="eu")
        sites.a.create_table("plain", "id bigint")
        sites.a.append(
            "orders", spark.createDataFrame([(1, "a"), (2, "b")], "id long, name string")
        )
        sites.a.append("plain", spark.createDataFrame([(1,)], "id long"))
        # What the client sends with its request is put into a file by the node.
        with Client(sites.nodes["A"].url) as client:
            client.upsert("orders", [{"id": 2, "name": "B"}, {"id": 3, "name": "c"}])
            client.delete_where("orders", "id = 1")
        sites.b.after(sites.a.position())
        found = sites.b.table("orders").orderBy("id").collect()
        assert [tuple(row) for row in found] == [(2, "B"), (3, "c")]
        found = _many_transactions(spark, sites)
        assert found == [(1, "one"), (2, "two"), (4, "four"), (5, "again"), (6, "six"), (7, "x")]
        with pytest.raises(NotHeldHereError, match="its group has sites B"):
            sites.a.table("orders").collect()
        assert len(set(sites.signatures("plain"))) == 1
        assert sites.signatures("orders")[0] == "none" != sites.signatures("orders")[1]
        for node in sites.nodes.values():
            assert {one["verdict"] for one in node.status()["replicas"]} == {"IN_SYNC"}
        comparison = compare_sites(HttpLogSource(sites.nodes["A"].url))
        assert comparison.equal and comparison.complete
