"""Airflow's tasks: rows are committed over HTTP, jobs are run by `spark-submit.sh`.

Both tell Airflow's assets of tables what happened, with the position as an extra of the event.
"""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from airflow.sdk import Asset, BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from sparktxlog.errors import InvalidRequestError
from sparktxlog.health.site_progress import CLUSTER, schema_and_table, table_uri
from sparktxlog.http.tokens import TOKEN_VARIABLE
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog_airflow.site_hook import DEFAULT_CONNECTION, TxLogHook, url_of

#: Names of `jobs/*.py`.
JOBS = (
    "adopt", "apply", "catch_up", "commit", "follow", "maintain", "repair", "replicate",
    "switch_site", "verify",
)  # fmt: skip
#: Exit code of a job that left something for its next run.
_LAGGING = 3
#: Of the ids of transactions: a task that is tried again commits the same transaction.
_NAMESPACE = uuid.UUID("5fa0b0c5-7c59-5d0c-9f10-2f5d1d2f6f6e")


def table_asset(table: str, cluster: str = CLUSTER) -> Asset:
    """Return the asset of a table; a DAG with `schedule=[table_asset("orders")]` follows it."""
    return Asset(name=".".join((cluster, *schema_and_table(table))), uri=table_uri(table, cluster))


def _tell_assets(
    context: Mapping[str, Any], tables: Iterable[Asset], extra: dict[str, Any]
) -> None:
    for asset in tables:
        context["outlet_events"][asset].extra = extra


class CommitRowsOperator(BaseOperator):
    """Commits rows to a table as one transaction, and returns its receipt.

    Args:
        rows: A list of dicts, such as the result of another task.
        kind: `append`, `upsert`, `delete_keys` or another operation that takes rows.
        level: How far it must get: `accepted`, `acquired`, `ordered`, `applied`.
        transaction_id: A UUID; default: made of the task's run, so that a repeat is the same
            transaction.
    """

    template_fields = ("rows", "transaction_id", "txlog_conn_id")

    def __init__(
        self,
        *,
        table: str,
        rows: Any,
        kind: str = "append",
        level: str = "ordered",
        transaction_id: str | None = None,
        cluster: str = CLUSTER,
        txlog_conn_id: str = DEFAULT_CONNECTION,
        **kwargs: Any,
    ) -> None:
        self.asset = table_asset(table, cluster)
        super().__init__(**kwargs | {"outlets": [*kwargs.get("outlets", ()), self.asset]})
        self.table = table
        self.rows = rows
        self.kind = kind
        self.level = level
        self.transaction_id = transaction_id
        self.txlog_conn_id = txlog_conn_id

    def execute(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Commit."""
        ti = context["ti"]
        attempt = f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}"
        identity = self.transaction_id or str(uuid.uuid5(_NAMESPACE, attempt))
        with (
            TxLogHook(self.txlog_conn_id).get_conn() as client,
            client.transaction(transaction_id=identity, level=self.level) as t,
        ):
            t.add(OperationKind(self.kind), self.table, self.rows)
        receipt = t.receipt
        told = {"position": receipt.position, "transaction_id": receipt.transaction_id}
        _tell_assets(context, [self.asset], told)
        found: dict[str, Any] = json.loads(json.dumps(asdict(receipt), default=str))
        return found


class SparkJobOperator(BaseOperator):
    """Runs one of `jobs/*.py` on the machine of the Airflow worker, and returns its line of JSON.

    A job that left something for its next run (exit code 3) skips the task.

    Args:
        job: One of `JOBS`.
        arguments: Further arguments of the job.
        home: Where `spark-submit.sh` is.
        tables: Tables whose assets get an event, with the position that the job reached.
    """

    template_fields = ("arguments", "txlog_conn_id")

    def __init__(
        self,
        *,
        job: str,
        arguments: Sequence[str] = (),
        home: str = "/opt/sparktxlog",
        tables: Sequence[str] = (),
        cluster: str = CLUSTER,
        txlog_conn_id: str = DEFAULT_CONNECTION,
        **kwargs: Any,
    ) -> None:
        self.assets = [table_asset(table, cluster) for table in tables]
        super().__init__(**kwargs | {"outlets": [*kwargs.get("outlets", ()), *self.assets]})
        if job not in JOBS:
            known = ", ".join(JOBS)
            raise InvalidRequestError(f"there is no job {job!r}", hint=f"Name one of: {known}.")
        self.job = job
        self.arguments = list(arguments)
        self.home = home
        self.txlog_conn_id = txlog_conn_id
        self._process: subprocess.Popen[str] | None = None

    def execute(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Run the job; what it writes to stderr is in the task's log."""
        connection = TxLogHook(self.txlog_conn_id).get_connection(self.txlog_conn_id)
        command = [f"{self.home}/spark-submit.sh", f"jobs/{self.job}.py", *self.arguments]
        command += ["--url", url_of(connection), "--json"]
        environ = dict(os.environ)
        if connection.password:
            environ[TOKEN_VARIABLE] = connection.password
        if ca_file := connection.extra_dejson.get("ca_file"):
            command += ["--ca-file", ca_file]
        with subprocess.Popen(
            command, cwd=self.home, env=environ, stdout=subprocess.PIPE, text=True
        ) as self._process:
            printed, _ = self._process.communicate()
        code = self._process.returncode
        lines = printed.strip().splitlines()
        result: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        if code == _LAGGING:
            raise AirflowSkipException(f"{self.job} left something for its next run: {result}")
        if code:
            raise AirflowException(f"{self.job} ended with exit code {code}: {result}")
        _tell_assets(context, self.assets, {"position": result.get("position")})
        return result

    def on_kill(self) -> None:
        """End the job: a worker ends its batch first."""
        if self._process is not None:
            self._process.terminate()
