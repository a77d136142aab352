"""The examples of docs/api.md and docs/python.md, word for word, against one node."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.architecture.source_tree import ROOT
from tests.spark.api.nodes import RunningNode

from sparktxlog.api.connect import TxLog

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


def _run(page: str, names: dict[str, Any]) -> None:
    """Run the examples of a page in turn; a failure names its line.

    An example that shows an error has to raise it.
    """
    text = (ROOT / page).read_text()
    for block in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        first = text.count("\n", 0, block.start(1))
        tree = ast.parse("\n" * first + block[1])
        for statement in tree.body:
            if isinstance(statement, ast.Try):
                statement.orelse = ast.parse("raise AssertionError('nothing was raised')").body
        exec(compile(tree, page, "exec"), names)


@pytest.fixture
def own_schema(spark: SparkSession) -> Iterator[None]:
    yield
    spark.sql("DROP SCHEMA IF EXISTS txlog CASCADE")


@pytest.mark.thorough
def test_the_part_about_spark_runs(
    spark: SparkSession, node: RunningNode, tmp_path: Path, own_schema: None
) -> None:
    incoming, checkpoint = tmp_path / "incoming", tmp_path / "checkpoint"
    frame = spark.sql("SELECT 9L AS id, 'eve' customer, 9.0D amount, date'2026-01-09' day")
    frame.write.parquet(incoming.as_uri())
    names: dict[str, Any] = {
        "spark": spark,
        "url": node.url,
        "folder": incoming.as_uri(),
        "checkpoint": checkpoint.as_uri(),
    }
    _run("docs/api.md", names)
    log: TxLog = names["log"]
    assert {row["id"] for row in log.table("orders").collect()} == {1, 2, 9}
    log.close()


@pytest.mark.thorough
def test_the_part_without_spark_runs(
    spark: SparkSession, node: RunningNode, log: TxLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Somebody applies what clients commit; here it is this session, when the page waits for it.
    from sparktxlog.api.client import Client

    asked = Client.snapshot

    def applied(client: Client, *given: Any, **named: Any) -> dict[str, Any]:
        log.apply()
        return asked(client, *given, **named)

    monkeypatch.setattr(Client, "snapshot", applied)
    _run("docs/python.md", {"url": node.url})
