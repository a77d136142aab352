"""docs/reading-tables.md: which reader sees what of a table; the page has what this test found.

A cell says what a reader does with a table: `reads` all rows, whole, and finds by each column what
is there; else which columns or filters are wrong.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.architecture.source_tree import ROOT
from tests.spark.api.nodes import RunningNode
from tests.spark.catalog.conftest import TOKEN, reader_tables_node
from tests.support.node_processes import wait_until
from tests.support.other_readers import SOUGHT, Found, found_by, packages, read_all

import sparktxlog
from sparktxlog.api.connect import TxLog
from sparktxlog.delta.log_files import newest_commit
from sparktxlog.worker.apply.steps import TableSteps

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

PAGE = ROOT / "docs" / "reading-tables.md"
BEGIN, END = "<!-- {name}: begin -->\n", "<!-- {name}: end -->\n"

_AT = datetime(2026, 1, 1, 12, 30, 0, 123456, UTC)
_PLACES = ("a b/%", None, "x=1", "a b/%", None, "x=1", "a b/%", "x=1", "x=1")
SCHEMA = "id {id}, s string, p string, flag boolean, f double, d decimal(10,2), at timestamp"
#: What is sought in `f` is in a file that has a NaN, too, so that it has no bounds.
ROWS = [
    {
        "id": number,
        "p": _PLACES[number],
        "flag": number % 2 == 0,
        "f": float("nan") if number == 8 else number / 2 - 1,
        "d": Decimal(number - 10) / 100,
        "at": _AT.replace(hour=number + 7),
        "s": "same" if number > 6 else f"row {number}",
    }
    for number in range(9)
]
LEFT = ROWS[3:]

#: Row table → how it differs; all but the first three are partitioned by `p`.
ROW_TABLES: dict[str, dict[str, Any]] = {
    "row table": {},
    "widened": {"before": {"widen": {"id": "bigint"}}},
    "clustered": {"cluster_by": ["id"]},
    "partitioned": {"partition_by": ["p"]},
    "after upserts": {"partition_by": ["p"], "extra": ROWS[:3]},
    "deletion vectors": {"partition_by": ["p"], "extra": ROWS[:3], "deletion_vectors": True},
    "renamed column": {"partition_by": ["p"], "after": {"rename": {"s": "t"}}},
    "renamed partition column": {"partition_by": ["p"], "after": {"rename": {"p": "q"}}},
}
_MAPPED = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
#: Commit table → what follows its columns, and whether rows are deleted from its files.
COMMIT_TABLES = {
    "whole": ("PARTITIONED BY (p)", False),
    "holed": ("PARTITIONED BY (p)", True),
    "mapped": (f"PARTITIONED BY (p) {_MAPPED}", False),
}
_FILTERS = "deltalake with `filters=`"
#: Where a reader is wrong without a word, (reader, table), by matrix: the page says why.
EXPLAINED = {
    "row tables": {
        *((_FILTERS, one) for one in ("row table", "clustered", "partitioned", "after upserts")),
        ("polars", "deletion vectors"),
        ("DuckDB", "renamed column"),
    },
    "commit tables": {
        *((_FILTERS, one) for one in ("reader table", "released")),
        ("polars", "reader table, deletion vectors"),
        ("polars", "released, deletion vectors"),
        ("DuckDB", "reader table, two names of a column"),
        ("DuckDB", "released, two names of a column"),
    },
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node that keeps reader tables, too."""
    packages()  # or the test is skipped
    with reader_tables_node(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture(scope="module")
def log(spark: SparkSession, node: RunningNode) -> Iterator[TxLog]:
    with sparktxlog.connect(spark, node.url, token=TOKEN, apply="inline") as connected:
        yield connected


def _by_spark(frame: Callable[[], DataFrame], *, seeks: bool = False) -> Found:
    found = found_by(lambda: [row.asDict() for row in frame().collect()])
    if seeks and found.get("rows"):
        read, names = frame(), SOUGHT.keys() & found["rows"][0].keys()
        # One query: each part has its own filter, which Spark takes to the files.
        parts = [
            read.where(F.col(name) == F.lit(SOUGHT[name])).select(F.lit(name), "id")
            for name in names
        ]
        ids = [tuple(row) for row in reduce(DataFrame.union, parts).collect()]
        found["filters"] = {
            name: sorted(number for column, number in ids if column == name) for name in names
        }
    return found


def _by_path(spark: SparkSession, path: Path) -> Callable[[], DataFrame]:
    return lambda: spark.read.format("delta").load(path.as_uri())


class Matrix:
    """What readers found: table → reader → what."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Found]] = {}
        self.paths: dict[str, Path] = {}

    def add(self, table: str, path: Path, by_spark: Mapping[str, Found]) -> None:
        self.paths[table] = path
        self.found[table] = dict(by_spark)

    def read_by_others(self) -> None:
        for table, others in zip(self.paths, read_all([*self.paths.values()]), strict=True):
            self.found[table] |= others

    def to_text(self) -> str:
        lines = [f"| reader | {' | '.join(self.found)} |", "|---" * (len(self.found) + 1) + "|"]
        for reader in dict.fromkeys(name for one in self.found.values() for name in one):
            cells = " | ".join(_cell(one.get(reader)) for one in self.found.values())
            lines.append(f"| {reader} | {cells} |")
        return "\n".join(lines) + "\n"

    def wrong(self) -> set[tuple[str, str]]:
        """Return where a reader shows other rows or values, without an error."""
        return {
            (reader, table)
            for table, one in self.found.items()
            for reader, found in one.items()
            if "**" in _cell(found)
        }

    def errors(self) -> list[str]:
        """Return why cells are not `reads`."""
        return [
            f"{table}: {reader}: {str(found)[:700]}"
            for table, one in self.found.items()
            for reader, found in one.items()
            if _cell(found) != "reads"
        ]


def _expected(columns: Mapping[str, Any]) -> Found:
    renamed = {old: new for old, new in (("s", "t"), ("p", "q")) if new in columns}
    rows = [{renamed.get(name, name): value for name, value in row.items()} for row in LEFT]

    def ids(name: str, value: Any) -> list[int]:
        return [row["id"] for row in rows if row[name] == value]

    return found_by(lambda: rows, ids)


def _cell(found: Found | None) -> str:
    """Return what a page says of what a reader found."""
    if found is None:
        return ""
    if "error" in found:
        return "refused"
    first = found["rows"][0] if found["rows"] else {}
    expected = _expected(first)
    if [row["id"] for row in found["rows"]] != [row["id"] for row in expected["rows"]]:
        return "**wrong rows**"
    wrong = [
        f"wrong `{name}`"
        for name in expected["rows"][0]
        if [row.get(name) for row in found["rows"]] != [row[name] for row in expected["rows"]]
    ]
    sought = found.get("filters", {})
    for name in (one for one in SOUGHT if one in sought):
        assert not isinstance(sought[name], str), f"no filter on {name}: {sought[name]}"
    missed = [
        f"`{one}`" for one in SOUGHT if sought.get(one, []) != expected["filters"].get(one, [])
    ]
    wrong += [f"misses {', '.join(missed)}"] if missed and sought else []
    return f"**{'; '.join(wrong)}**" if wrong else "reads"


def _make_row_tables(log: TxLog) -> None:
    for number, wanted in enumerate(ROW_TABLES.values()):
        name, options = f"t{number}", dict(wanted)
        before, after = options.pop("before", None), options.pop("after", None)
        extra = options.pop("extra", None)
        kind = "int" if before else "bigint"
        log.create_table(name, SCHEMA.format(id=kind), keys=["id"], **options)
        halves = LEFT[:3], LEFT[3:]
        if before:
            log.append(name, halves[0])
            log.alter_table(name, **before)
        elif extra:
            old = {} if "deletion_vectors" in options else {"s": "old"}
            log.append(name, _frame(log, extra + [row | old for row in halves[0]]))
            log.apply()
            if "deletion_vectors" not in options:
                log.upsert(name, halves[0])
            log.delete_keys(name, [{"id": row["id"]} for row in extra])
        else:
            log.append(name, _frame(log, halves[0]))
        log.append(name, halves[1])
        if after:
            log.alter_table(name, **after)
    log.apply()


def _frame(log: TxLog, rows: list[dict[str, Any]]) -> DataFrame:
    return log.site.spark.createDataFrame(rows, SCHEMA.format(id="bigint")).coalesce(1)


@pytest.mark.thorough
@pytest.mark.timeout(1500)
def test_the_page_says_what_each_reader_reads_of_row_tables(
    tx: SparkSession, log: TxLog, node: RunningNode, tmp_path: Path
) -> None:
    _make_row_tables(log)
    sparktxlog.register(tx, log)
    matrix, lake = Matrix(), node.directory / "data" / "lake"
    for number, kind in enumerate(ROW_TABLES):
        name = f"t{number}"
        ways: dict[str, Callable[[], DataFrame]] = {
            "`log.table`, `log.snapshot`": lambda n=name: log.table(n),
            '`format("txlog").load`': lambda n=name: tx.read.format("txlog").load(n),
            "SQL: `txlog.orders`": lambda n=name: tx.table(f"txlog.{n}"),
            "SQL: `tx.default.orders`": lambda n=name: tx.table(f"tx.default.{n}"),
            "Spark by path": _by_path(tx, lake / name),
        }
        by_spark = {
            way: _by_spark(read, seeks=way == "Spark by path") for way, read in ways.items()
        }
        matrix.add(kind, lake / name, by_spark)
        protocol = DeltaTable(lake / name).protocol()
        # deltalake reads NULL in all columns of tables with reader version 2.
        assert protocol.min_reader_version in (1, 3), kind
    matrix.read_by_others()
    _compare_page("row tables", matrix)
    # A released table is what it was.
    released = Matrix()
    for number, kind in enumerate(ROW_TABLES):
        if kind in ("partitioned", "deletion vectors"):
            path = tmp_path / f"t{number}"
            log.release_table(f"t{number}", str(path))
            released.add(kind, path, {"Spark by path": _by_spark(_by_path(tx, path), seeks=True)})
    released.read_by_others()
    for kind, found in released.found.items():
        cells = {reader: _cell(one) for reader, one in found.items()}
        assert cells == {reader: _cell(matrix.found[kind][reader]) for reader in cells}


@pytest.mark.thorough
@pytest.mark.timeout(1500)
def test_the_page_says_what_each_reader_reads_of_commit_tables(
    tx: SparkSession, log: TxLog, node: RunningNode, tmp_path: Path
) -> None:
    matrix, plain = Matrix(), node.directory / "plain"
    for name, (clause, holed) in COMMIT_TABLES.items():
        table, path = f"tx.default.{name}", plain / "default" / name
        tx.sql(f"CREATE TABLE {table} ({SCHEMA.format(id='bigint')}) USING delta {clause}")
        _frame(log, ROWS if holed else LEFT).writeTo(table).append()
        if holed:
            tx.sql(f"DELETE FROM {table} WHERE id < 3")
        last = 2 if holed else 1
        wait_until(lambda p=path, n=last: newest_commit(p) == n, what="the reader table")
        way = {"SQL: `tx.default.orders`": _by_spark(lambda t=table: tx.table(t))}
        if name == "whole":
            uri = tx.sql(f"DESCRIBE DETAIL {table}").first()["location"]  # type: ignore[index]
            itself = Path(uri.removeprefix("file:"))
            by_path = {"Spark by path": _by_spark(_by_path(tx, itself))}
            matrix.add("commit table by path", itself, way | by_path)
        title = {"whole": "", "holed": ", deletion vectors", "mapped": ", two names of a column"}[
            name
        ]
        matrix.add(
            f"reader table{title}",
            path,
            {"Spark by path": _by_spark(_by_path(tx, path), seeks=True)},
        )
        for keep in (False, True) if name == "whole" else (False,):
            back = tmp_path / f"{name}-{keep}"
            log.release_table(f"default.{name}", str(back), keep_features=keep)
            found = {"Spark by path": _by_spark(_by_path(tx, back), seeks=True)}
            kept = ", `--keep-features`" if keep else ""
            matrix.add(f"released{title}{kept}", back, found)
            assert DeltaTable(back).protocol().min_reader_version in (1, 3)
    matrix.read_by_others()
    _compare_page("commit tables", matrix)


def _compare_page(name: str, matrix: Matrix) -> None:
    found, page = matrix.to_text(), PAGE.read_text()
    begin, end = BEGIN.format(name=name), END.format(name=name)
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(end)
    if os.environ.get("WRITE_PAGES"):
        PAGE.write_text(f"{head}{begin}{found}{end}{tail}")
    assert f"{begin}{found}{end}" in PAGE.read_text(), "\n".join([found, *matrix.errors()])
    assert matrix.wrong() == EXPLAINED[name], "\n".join(matrix.errors())


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
            for reader, one in found.items():
                seen.setdefault(reader, []).append(len(one["rows"]))

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
    assert len(others) == 7 and all(counts == [1, 2] for counts in others.values()), others
    assert log.table("second").count() == 2
