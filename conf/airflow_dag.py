"""Airflow: sparktxlog's Spark jobs of one site, each a task.  For Airflow 2.7 or newer;
Airflow 3 has `BashOperator` in `airflow.providers.standard.operators.bash`.

Copy it to the DAGs folder and adapt `HOME` and `URL`.  Jobs end with a line of JSON; exit code 3
("lagging": something was left for the next run) skips the task instead of failing it.  A worker
that follows the log should run under systemd or the like: conf/sparktxlog-apply.service.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow import DAG
from airflow.operators.bash import BashOperator

HOME = "/opt/sparktxlog"
URL = "http://127.0.0.1:7070"


def job(name: str, arguments: str = "") -> BashOperator:
    """Return a task that runs one of the jobs."""
    return BashOperator(
        task_id=name,
        cwd=HOME,
        bash_command=f"./spark-submit.sh jobs/{name}.py --url {URL} --json {arguments}",
        skip_on_exit_code=3,
        append_env=True,
    )


def dag(name: str, description: str, schedule: str | None) -> DAG:
    """Return a DAG of this site; a second run at the same time would find the lake locked."""
    return DAG(
        dag_id=name,
        description=description,
        schedule=schedule,
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        default_args={"retries": 2, "retry_delay": timedelta(minutes=5)},
    )


with dag("sparktxlog", "Apply the log, then maintain log and tables", "17 2 * * *"):
    job("apply", "--once") >> job("maintain")

with dag("sparktxlog_catch_up", "Replay or copy, as the node plans", "*/10 * * * *"):
    job("catch_up")

with dag("sparktxlog_verify", "Count every row, compare all sites", "47 3 * * 0"):
    job("verify", "--compare")

with dag("sparktxlog_replicate", "Copy a donor's replica, when asked to", None):
    job("replicate", "--parts 8")
