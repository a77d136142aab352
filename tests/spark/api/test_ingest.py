"""`jobs/commit.py` and what it does with inputs of all formats."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.spark.api.nodes import RunningNode
from tests.support.command_line import invoke, run_job

from sparktxlog.api.connect import TxLog
from sparktxlog.api.jobs.ingest import Ingest, ingest
from sparktxlog.errors import (
    InvalidRequestError,
    InvalidRowsError,
    SchemaMismatchError,
    UnknownTableError,
)
from sparktxlog.model.transactions.operation import OperationKind

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

ROOT = Path(__file__).resolve().parents[3]


def test_all_formats_reach_the_table(spark: SparkSession, log: TxLog, tmp_path: Path) -> None:
    log.create_table("items", "id bigint, price decimal(8,2), at timestamp", keys=["id"])
    (tmp_path / "a.csv").write_text("at,id,price\n2024-01-02T03:04:05Z,1,9.99\n,2,\n")
    (tmp_path / "a.json").write_text('{"id": 2, "price": "1.50", "at": "2024-05-06T00:00:00Z"}\n')
    typed = spark.sql("select 3L id, 2.5bd price, timestamp'2020-01-01' at")
    typed.write.parquet(str(tmp_path / "p"))
    typed.withColumn("id", typed["id"] + 1).write.format("delta").save(str(tmp_path / "d"))
    for name, form in (("a.csv", "csv"), ("a.json", "json"), ("p", "parquet"), ("d", "delta")):
        wanted = Ingest(
            table="items", source=str(tmp_path / name), format=form, kind=OperationKind.UPSERT
        )
        assert ingest(log, wanted)["outcome"] == "committed"
    empty = Ingest(table="items", source=str(tmp_path / "a.csv"), format="csv")
    (tmp_path / "a.csv").write_text("at,id,price\n")
    position = log.position()
    alone = ingest(log, empty)
    assert (alone["transactions"], alone["rows"], alone["position"]) == (0, 0, None)
    grouped = ingest(log, replace(empty, transaction_column="id"))
    assert (grouped["transactions"], grouped["late"], log.position()) == (0, False, position)
    rows = log.table("items", at_least="own").orderBy("id").collect()
    assert [(row["id"], str(row["price"])) for row in rows] == [
        (1, "9.99"),
        (2, "1.50"),
        (3, "2.50"),
        (4, "2.50"),
    ]


def test_a_table_is_created_from_the_input_and_split_into_transactions(
    spark: SparkSession, log: TxLog, tmp_path: Path
) -> None:
    path = str(tmp_path / "lines.csv")
    Path(path).write_text("day,count\n2024-01-01,1\n2024-01-02,2\n2024-01-01,3\n")
    with pytest.raises(UnknownTableError):
        ingest(log, Ingest(table="lines", source=path, format="csv"))
    result = ingest(
        log,
        Ingest(table="lines", source=path, format="csv", create=True, transaction_column="day"),
    )
    assert (result["transactions"], result["rows"], result["rejections"]) == (2, 3, [])
    assert log.site.definition("lines").column("day").type == "date"  # type: ignore[union-attr]
    assert log.table("lines", at_least="own").count() == 3


def test_a_table_is_created_with_its_first_rows_or_not_at_all(
    spark: SparkSession, log: TxLog, tmp_path: Path
) -> None:
    (tmp_path / "made.csv").write_text("id,n\n1,10\n2,20\n1,30\n")
    path, position = str(tmp_path / "made.csv"), log.position()
    wanted = Ingest(table="made", source=path, format="csv", create=True, keys=("id",))
    with pytest.raises(InvalidRowsError, match="repeats the key"):
        ingest(log, replace(wanted, kind=OperationKind.UPSERT))
    with pytest.raises(UnknownTableError):
        log.site.definition("made")
    assert ingest(log, wanted)["position"] == log.position() == position + 1
    assert log.table("made", at_least="own").count() == 3
    assert log.site.definition("made").keys == ("id",)


def test_inputs_that_do_not_fit_are_refused(
    spark: SparkSession, log: TxLog, tmp_path: Path
) -> None:
    log.create_table("whole", "id bigint")
    position = log.position()
    with pytest.raises(InvalidRequestError, match="cannot be read as parquet"):
        ingest(log, Ingest(table="whole", source=str(tmp_path / "nothing")))
    (tmp_path / "more.csv").write_text("id,colour\n1,red\n")
    with pytest.raises(SchemaMismatchError, match="colour"):
        ingest(log, Ingest(table="whole", source=str(tmp_path / "more.csv"), format="csv"))
    (tmp_path / "text.csv").write_text("id\nmany\n")
    with pytest.raises(PySparkException, match="CAST_INVALID_INPUT"):
        ingest(log, Ingest(table="whole", source=str(tmp_path / "text.csv"), format="csv"))
    assert log.position() == position


def _job(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run the job as a process; return its exit code, the JSON of its one line, and its stderr."""
    run = subprocess.run(
        [sys.executable, str(ROOT / "jobs" / "commit.py"), *arguments, "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        timeout=240,
        check=False,
    )
    assert len(run.stdout.splitlines()) <= 1, run.stdout
    return run.returncode, json.loads(run.stdout or "{}"), run.stderr


@pytest.mark.usefixtures("jobs_share_spark")
def test_the_job_commits_and_ends_with_one_json_line(
    log: TxLog,
    node: RunningNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Under spark-submit.sh it is as any job: tests/e2e/test_spark_submit.py."""
    log.create_table("jobbed", "id bigint")
    (tmp_path / "in.csv").write_text("id\n1\n2\n")
    arguments = ("--url", node.url, "--table", "jobbed", "--format", "csv", "--json")
    arguments += ("--input", str(tmp_path / "in.csv"))
    capfd.readouterr()
    assert run_job(monkeypatch, "commit", *arguments) == 0
    said = capfd.readouterr()
    (line,) = said.out.splitlines()
    result = json.loads(line)
    assert (result["outcome"], result["level"]) == ("committed", "ordered")
    told = f"to jobbed: transaction {result['transaction_id']} is ordered at position"
    assert told in said.err
    log.site.worker.apply(result["position"], 60)  # type: ignore[union-attr]
    assert log.table("jobbed").count() == 2
    # The command does the same.
    same = ("--transaction-id", result["transaction_id"])
    assert invoke(monkeypatch, "commit", *arguments, *same) == 0
    again = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert again["position"] == result["position"]


def test_the_job_says_what_is_wrong_before_spark_starts(tmp_path: Path) -> None:
    code, result, errors = _job(
        "--url", "http://127.0.0.1:9", "--table", "t", "--input", str(tmp_path)
    )
    assert code == 5, errors
    assert result["error"]["definite"] in (True, False)
    assert "127.0.0.1:9" in errors
    assert _job("--table", "t")[0] == 2
