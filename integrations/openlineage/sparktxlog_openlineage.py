"""OpenLineage: which data went into a table of the log, and from the log into a site's tables.

`SPARKTXLOG_JOB_HOOK=sparktxlog_openlineage:watch_job` makes jobs and their
commands send events.  Where to is said as OpenLineage says it: `OPENLINEAGE_URL`, or a file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import (
    Dataset,
    InputDataset,
    Job,
    OutputDataset,
    Run,
    RunEvent,
    RunState,
)
from openlineage.client.facet_v2 import dataset_version_dataset, error_message_run
from openlineage.client.uuid import generate_new_uuid

import sparktxlog
from sparktxlog import Client, Receipt
from sparktxlog.health.site_progress import SCHEME, schema_and_table
from sparktxlog.model.ids import table_name

_PRODUCER = f"urn:sparktxlog:{sparktxlog.__version__}"
#: Jobs that bring a site's tables to a position of the log.
_APPLY = ("apply", "catch_up", "replicate", "repair")
#: Seconds that a job waits for its node because of its events.
_PATIENCE_S = 5.0
#: Exit codes of a job that did its work: 3 left something for its next run.
_DONE = (0, 3)


class LineageEvents:
    """Sends events about the tables of one log.

    Tables of the log have the namespace `sparktxlog://CLUSTER`, the same at all sites, and names
    `schema.table`; their version is a position.  Tables of a site are files.
    """

    def __init__(self, client: Client, to: OpenLineageClient | None = None) -> None:
        self._to = to or OpenLineageClient()
        self._info = client.info()
        self.namespace = f"{SCHEME}://{self._info['cluster']}"

    def table(self, table: str, position: int | None = None) -> Dataset:
        """Return a table of the log, as it is at a position."""
        return _dataset(self.namespace, ".".join(schema_and_table(table)), position)

    def replica(self, table: str, position: int | None = None) -> Dataset:
        """Return the Delta table of this site that a worker makes of it."""
        return _dataset("file", f"{self._info['lake_root']}/{table_name(table)}", position)

    def committed(
        self, job: str, tables: Iterable[str], receipt: Receipt, inputs: Iterable[Dataset] = ()
    ) -> None:
        """Say that a job committed to tables: one event after the commit, of a run that is done."""
        outputs = [self.table(table, receipt.position) for table in tables]
        self.send(RunState.COMPLETE, job, str(generate_new_uuid()), inputs, outputs)

    def send(
        self,
        state: RunState,
        job: str,
        run: str,
        inputs: Iterable[Dataset] = (),
        outputs: Iterable[Dataset] = (),
        *,
        error: str = "",
    ) -> None:
        """Send one event of a run; `run` is a UUID, the same for all events of the run."""
        said = error_message_run.ErrorMessageRunFacet(message=error, programmingLanguage="Python")
        self._to.emit(
            RunEvent(
                eventTime=datetime.now(UTC).isoformat(),
                producer=_PRODUCER,
                eventType=state,
                run=Run(runId=run, facets={"errorMessage": said} if error else {}),
                job=Job(namespace=f"{self.namespace}/{self._info['node_id']}", name=job),
                inputs=[InputDataset(one.namespace, one.name, facets=one.facets) for one in inputs],
                outputs=[
                    OutputDataset(one.namespace, one.name, facets=one.facets) for one in outputs
                ],
            )
        )


def watch_job(name: str, arguments: argparse.Namespace) -> Callable[[int, dict[str, Any]], None]:
    """Say that a job begins; return what says how it ended.  For `SPARKTXLOG_JOB_HOOK`."""
    run, ca_file = str(generate_new_uuid()), getattr(arguments, "ca_file", None)

    def node() -> Client:
        return Client(arguments.url, timeout=_PATIENCE_S, ca_file=ca_file)

    with node() as client:
        LineageEvents(client).send(RunState.START, name, run)

    def ended(code: int, result: dict[str, Any]) -> None:
        state = RunState.COMPLETE if code in _DONE else RunState.FAIL
        with node() as client:
            events, position = LineageEvents(client), result.get("position")
            inputs, outputs = [], []
            if name == "commit":
                inputs = [_dataset("file", arguments.input)]
                outputs = [events.table(arguments.table, position)]
            elif name in _APPLY:
                tables = [one.name for one in client.tables()]
                inputs = [events.table(table, position) for table in tables]
                outputs = [events.replica(table, position) for table in tables]
            error = (result.get("error") or {}).get("detail", "")
            events.send(state, name, run, inputs, outputs, error=error)

    return ended


def _dataset(namespace: str, name: str, position: int | None = None) -> Dataset:
    if position is None:
        return Dataset(namespace, name)
    version = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=str(position))
    return Dataset(namespace, name, facets={"version": version})
