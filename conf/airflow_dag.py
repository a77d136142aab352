"""Airflow 3: sparktxlog's Spark jobs of one site, each a task; docs/jobs.md says more.

Copy it to the DAGs folder, and make a connection `sparktxlog_default` to the site's node.
Airflow's worker runs on a machine of the site, with `sparktxlog-airflow` in its environment, and
programs in /opt/sparktxlog.  A job with exit code 3 ("lagging": something was left for the next
run) skips its task instead of failing it.  A worker that follows the log should run under systemd
or the like.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG
from sparktxlog_airflow.position_sensor import PositionSensor
from sparktxlog_airflow.site_operators import SparkJobOperator


def job(name: str, *arguments: str) -> SparkJobOperator:
    """Return a task that runs one of the jobs."""
    return SparkJobOperator(task_id=name, job=name, arguments=arguments)


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

with dag("sparktxlog_verify", "Wait for all sites, count every row, compare", "47 3 * * 0"):
    PositionSensor(task_id="all_in_sync", timeout=3600) >> job("verify", "--compare")

with dag("sparktxlog_replicate", "Copy a donor's replica, when asked to", None):
    job("replicate", "--parts", "8")
