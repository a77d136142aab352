"""Upkeep of commit tables: plain twins, on which Delta does what it refuses to do to the tables."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.spark.api.nodes import RunningNode
from tests.spark.catalog.conftest import TOKEN, catalogs
from tests.support.delta_writer import path_of

from sparktxlog.codec.delta_catalog.catalog_requests import update_of
from sparktxlog.storage.commit_tables.plain_twin import make_plain_twin, stage_twin_commit

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


@pytest.fixture(scope="module")
def tx(spark: SparkSession, node: RunningNode, plugin_classes: Path) -> Iterator[SparkSession]:
    """The session, with the catalog `tx`."""
    with catalogs(spark, node, plugin_classes, tx=TOKEN):
        yield spark


def asked(node: RunningNode, name: str, body: bytes | None = None) -> Any:
    """Return what the node says of a table, or of a commit to it."""
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    request = urllib.request.Request(node.url + path_of(name), body, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def place_of(found: dict[str, Any]) -> Path:
    return Path(found["metadata"]["location"].removeprefix("file:"))


def rows(session: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in session.sql(query).collect())


def test_a_commit_on_a_twin_becomes_one_of_the_table(
    tx: SparkSession, node: RunningNode, tmp_path: Path
) -> None:
    tx.sql("CREATE TABLE tx.default.w (id BIGINT, v STRING) USING delta")
    tx.sql("INSERT INTO tx.default.w VALUES (1, 'a'), (2, 'b')")
    tx.sql("DELETE FROM tx.default.w WHERE id = 2")
    found = asked(node, "w")
    version, table, twin = found["latest-table-version"], place_of(found), tmp_path / "twin"
    make_plain_twin(table, version, twin)
    tx.sql(f"INSERT INTO delta.`{twin}` VALUES (3, 'on the twin')")
    assert rows(tx, "SELECT id FROM tx.default.w") == [(1,)]
    staged = stage_twin_commit(table, twin, version + 1)
    request = update_of(found["metadata"]["table-uuid"], staged.proposed)
    answer = asked(node, "w", msgspec.json.encode(request))
    assert answer["latest-table-version"] == version + 1
    tx.sql("INSERT INTO tx.default.w VALUES (4, 'after')")
    expected = [(1, "a"), (3, "on the twin"), (4, "after")]
    assert rows(tx, "SELECT * FROM tx.default.w") == expected
    versions = tx.sql("DESCRIBE HISTORY tx.default.w").collect()
    assert [row.version for row in versions] == [*range(version + 2, -1, -1)]
