"""A DAG for test_airflow.py, which copies it to Airflow's folder: a commit, waiting, jobs."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from airflow.sdk import DAG
from sparktxlog_airflow.position_sensor import PositionSensor
from sparktxlog_airflow.site_operators import (
    CommitRowsOperator,
    SparkJobOperator,
    table_asset,
)

#: With a spark-submit.sh whose jobs end in the three ways.
HOME = os.environ["SPARKTXLOG_TEST_HOME"]
START = datetime(2026, 1, 1, tzinfo=UTC)

with DAG("orders", schedule=None, start_date=START, catchup=False):
    commit = CommitRowsOperator(
        task_id="commit", table="t", rows=[{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
    )
    # Another process applies it meanwhile: the sensor is deferred.
    seen = PositionSensor(
        task_id="seen", position="{{ ti.xcom_pull('commit')['position'] }}", poke_interval=0.5
    )
    polled = PositionSensor(task_id="polled", position=1, deferrable=False)
    equal = PositionSensor(task_id="equal")
    job = SparkJobOperator(task_id="job", job="apply", home=HOME, tables=["t"])
    lagging = SparkJobOperator(task_id="lagging", job="verify", home=HOME)
    broken = SparkJobOperator(task_id="broken", job="maintain", home=HOME)
    commit >> seen >> polled >> equal >> job >> [lagging, broken]

# What Airflow starts when the table changes.
with DAG("orders_changed", schedule=[table_asset("t")], start_date=START, catchup=False):
    PositionSensor(task_id="equal")
