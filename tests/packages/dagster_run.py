"""Runs in the environment that has Dagster: `python dagster_run.py URL` prints what it found."""

from __future__ import annotations

import json
import sys
from typing import Any

import dagster as dg
from sparktxlog_dagster import (
    TxLogResource,
    receipt_metadata,
    replicas_equal_check,
    table_key,
)

from sparktxlog.http.link import Http

KEY = table_key("t")


@dg.asset(key=KEY)
def rows(txlog: TxLogResource) -> dg.MaterializeResult:
    """Commit a row, which no worker applies."""
    with txlog.client() as client:
        receipt = client.append("t", [{"id": 3, "v": "dagster"}])
    # What is not published is told before what is not applied.
    Http(txlog.url).get("/v1/published", at_least=receipt.position, timeout=60, timeout_s=70)
    return dg.MaterializeResult(metadata=receipt_metadata(receipt))


def _run(defs: dg.Definitions, job: str, instance: dg.DagsterInstance) -> dict[str, Any]:
    result = defs.get_job_def(job).execute_in_process(instance=instance)
    (found,) = result.get_asset_check_evaluations()
    made = [event.materialization for event in result.get_asset_materialization_events()]
    return {
        "passed": found.passed,
        "severity": found.severity.value,
        "text": found.description,
        "made": [(one.asset_key.path, one.metadata["position"].value) for one in made],
    }


def _main(url: str) -> None:
    selections = {"check": dg.AssetSelection.checks_for_assets(rows), "all": "*"}
    defs = dg.Definitions(
        assets=[rows],
        asset_checks=[replicas_equal_check("t")],
        resources={"txlog": TxLogResource(url=url)},
        jobs=[dg.define_asset_job(name, selection=one) for name, one in selections.items()],
    )
    with dg.DagsterInstance.ephemeral() as instance:
        json.dump({job: _run(defs, job, instance) for job in selections}, sys.stdout)


if __name__ == "__main__":
    _main(*sys.argv[1:])
