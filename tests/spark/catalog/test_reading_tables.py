"""docs/reading-tables.md: which reader sees what of a table; the page has what this test found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.architecture.source_tree import ROOT
from tests.spark.api.nodes import RunningNode
from tests.spark.catalog.conftest import TOKEN, plain_tables_node
from tests.support.node_processes import wait_until
from tests.support.other_readers import packages, read_all

import sparktxlog
from sparktxlog.api.connect import TxLog
from sparktxlog.storage.commit_tables.plain_twin import twin_version
from sparktxlog.worker.apply.steps import TableSteps

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

PAGE = ROOT / "docs" / "reading-tables.md"
BEGIN, END = "<!-- matrix: begin -->\n", "<!-- matrix: end -->\n"
KINDS = (
    "row table",
    "row table, deletion vectors",
    "commit table by path",
    "its plain table",
    "its plain table, deletion vectors",
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node that keeps plain tables, too."""
    packages()  # or the test is skipped
    with plain_tables_node(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture(scope="module")
def log(spark: SparkSession, node: RunningNode) -> Iterator[TxLog]:
    with sparktxlog.connect(spark, node.url, token=TOKEN, apply="inline") as connected:
        yield connected


def _ids(frame: Callable[[], DataFrame]) -> list[int] | str:
    try:
        return sorted(row[0] for row in frame().select("id").collect())
    except (PySparkException, Py4JError) as error:
        return str(error)


def _by_path(spark: SparkSession, path: Path) -> Callable[[], DataFrame]:
    return lambda: spark.read.format("delta").load(path.as_uri())


def _row_tables(spark: SparkSession, log: TxLog, lake: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Make row tables with and without deletion vectors, and read them by Spark."""
    found = []
    for name, marked in (("plain", False), ("marked", True)):
        log.create_table(name, "id bigint, v string", keys=["id"], deletion_vectors=marked)
        log.append(name, spark.range(9).select("id", F.lit("old").alias("v")).coalesce(1))
        log.delete_keys(name, spark.range(3))
    log.apply()
    sparktxlog.register(spark, log)
    for name in ("plain", "marked"):
        ways: dict[str, Callable[[], DataFrame]] = {
            "`log.table`, `log.snapshot`": lambda n=name: log.table(n),
            '`format("txlog").load`': lambda n=name: spark.read.format("txlog").load(n),
            "SQL: `txlog.orders`": lambda n=name: spark.table(f"txlog.{n}"),
            "SQL: `tx.default.orders`": lambda n=name: spark.table(f"tx.default.{n}"),
            "Spark by path": _by_path(spark, lake / name),
        }
        found.append((lake / name, {way: _ids(read) for way, read in ways.items()}))
    return found


def _commit_tables(tx: SparkSession, plain: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Make a commit table, with and without a deletion vector, and read it by Spark."""
    found: list[tuple[Path, dict[str, Any]]] = []
    for name, statements in (
        ("whole", ["INSERT INTO {t} SELECT id FROM range(3, 9)"]),
        ("holed", ["INSERT INTO {t} SELECT id FROM range(9)", "DELETE FROM {t} WHERE id < 3"]),
    ):
        table = f"tx.default.{name}"
        tx.sql(f"CREATE TABLE {table} (id BIGINT) USING delta")
        for statement in statements:
            tx.sql(statement.format(t=table))
        path = plain / "default" / name
        last = len(statements)
        wait_until(lambda p=path, n=last: twin_version(p) == n, what="the plain table")
        way = {"SQL: `tx.default.orders`": _ids(lambda t=table: tx.table(t))}
        if name == "whole":
            uri = tx.sql(f"DESCRIBE DETAIL {table}").first()["location"]  # type: ignore[index]
            itself = Path(uri.removeprefix("file:"))
            found.append((itself, way | {"Spark by path": _ids(_by_path(tx, itself))}))
        found.append((path, {"Spark by path": _ids(_by_path(tx, path))}))
    return found


def _cell(found: list[int] | str | None) -> str:
    if found is None:
        return ""
    if isinstance(found, str):
        return "refused"
    return "reads" if found == list(range(3, 9)) else "**wrong**"


def _matrix(columns: list[dict[str, Any]]) -> str:
    lines = [f"| reader | {' | '.join(KINDS)} |", "|---" * (len(KINDS) + 1) + "|"]
    for reader in dict.fromkeys(name for column in columns for name in column):
        cells = " | ".join(_cell(column.get(reader)) for column in columns)
        lines.append(f"| {reader} | {cells} |")
    return "\n".join(lines) + "\n"


@pytest.mark.thorough
def test_the_page_says_what_each_reader_reads(
    tx: SparkSession, log: TxLog, node: RunningNode
) -> None:
    made = _row_tables(tx, log, node.directory / "data" / "lake")
    made += _commit_tables(tx, node.directory / "plain")
    others = read_all([path for path, _ in made])
    columns = [by_spark | other for (_, by_spark), other in zip(made, others, strict=True)]
    found = _matrix(columns)
    page = PAGE.read_text()
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    if os.environ.get("WRITE_PAGES"):
        PAGE.write_text(f"{head}{BEGIN}{found}{END}{tail}")
    errors = {k: v for column in columns for k, v in column.items() if isinstance(v, str)}
    assert f"{BEGIN}{found}{END}" in PAGE.read_text(), f"{found}\n{errors}"
    assert "wrong" not in found


def test_who_reads_during_a_batch_sees_all_of_it_or_single_tables(
    spark: SparkSession, log: TxLog, node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker stands between the commits of two tables, which one transaction wrote."""
    lake = node.directory / "data" / "lake"
    for name in ("first", "second"):
        log.create_table(name, "id bigint")
        log.append(name, [{"id": 0}])
    sparktxlog.register(spark, log)
    seen: dict[str, list[int]] = {}
    run_step = TableSteps.run_step

    def read() -> None:
        snapshot = log.snapshot(at_least=None)
        for way, table in (
            ("snapshot", snapshot.table),
            ("log.table", lambda n: log.table(n, at_least=None)),
            ("load", spark.read.format("txlog").load),
            ("view", lambda n: spark.table(f"txlog.{n}")),
        ):
            seen[way] = [table(name).count() for name in ("first", "second")]
        for found in read_all([lake / "first", lake / "second"]):
            for reader, ids in found.items():
                seen.setdefault(reader, []).append(len(ids))

    def between(steps: TableSteps, *given: Any, **named: Any) -> None:
        run_step(steps, *given, **named)
        if not seen:
            read()

    monkeypatch.setattr(TableSteps, "run_step", between)
    with log.transaction() as t:
        t.append("first", [{"id": 1}])
        t.append("second", [{"id": 1}])
    assert seen, "the worker did not stand between the tables"
    by_position = {"snapshot", "log.table", "load"}
    assert [seen[way] for way in by_position] == [[1, 1]] * len(by_position)
    others = {way: sorted(counts) for way, counts in seen.items() if way not in by_position}
    assert len(others) == 6 and all(counts == [1, 2] for counts in others.values()), others
    assert log.table("second").count() == 2
