"""Runs in the environment that has Airflow: `python airflow_run.py URL TOKEN` prints what it found.

It asks Airflow for the provider, then runs a DAG, as `airflow dags test` does, against real nodes.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def _provider() -> dict[str, Any]:
    from airflow.providers_manager import ProvidersManager

    # It checks what the provider says of itself by its schema, and leaves out what does not fit.
    manager = ProvidersManager()
    form = manager.field_behaviours["sparktxlog"]
    return {"version": manager.providers["sparktxlog-airflow"].version, "form": form["relabeling"]}


def _run(folder: str) -> dict[str, Any]:
    from airflow.dag_processing.dagbag import DagBag

    run = DagBag(folder).dags["orders"].test()
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        events = [
            (event.asset.uri, event.source_task_id, event.extra)
            for event in session.scalars(select(AssetEvent).order_by(AssetEvent.id))
        ]
        states = {ti.task_id: str(ti.state) for ti in run.get_task_instances(session=session)}
        results = {
            ti.task_id: ti.xcom_pull(task_ids=ti.task_id, session=session)
            for ti in run.get_task_instances(session=session)
        }
    return {"events": events, "states": states, "results": results}


def _example(path: str) -> dict[str, Any]:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(path)
    return {"dags": sorted(bag.dag_ids), "errors": dict(bag.import_errors)}


def _main(url: str, token: str, folder: str, example: str) -> None:
    connection = {"conn_type": "sparktxlog", "host": url, "password": token}
    os.environ["AIRFLOW_CONN_SPARKTXLOG_DEFAULT"] = json.dumps(connection)
    from sparktxlog_airflow.site_hook import TxLogHook

    found = {"provider": _provider(), "test": TxLogHook().test_connection()}
    found |= {"run": _run(folder), "example": _example(example)}
    print("\n" + json.dumps(found, default=str), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
