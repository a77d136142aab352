"""Airflow: sparktxlog's Spark jobs of one site, each a task.  For Airflow 2.7 or newer;
Airflow 3 has `BashOperator` in `airflow.providers.standard.operators.bash`.

Copy it to the DAGs folder and adapt `HOME` and `URL`.  Jobs end with a line of JSON; exit code 3
("lagging": something was left for the next run) skips the task instead of failing it.
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


with DAG(
    dag_id="sparktxlog",
    description="Apply the log, then maintain log and tables",
    schedule="17 2 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    # A second run of the same site would only find everything locked.
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=5)},
):
    job("apply", "--once") >> job("maintain")
