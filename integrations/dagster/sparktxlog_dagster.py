"""Dagster: a resource for the node of a site, and the check that replicas are equal."""

from __future__ import annotations

from typing import Any

from dagster import (
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetKey,
    ConfigurableResource,
    asset_check,
)

from sparktxlog import Client, Receipt
from sparktxlog.health.site_progress import CLUSTER, progress_of, schema_and_table

#: The name under which `Definitions(resources=…)` must have the resource for the check.
RESOURCE = "txlog"


class TxLogResource(ConfigurableResource):
    """The node of a site; with several URLs, separated by commas, nodes that stand in for it."""

    url: str = "http://127.0.0.1:7070"
    #: Default: the variable `SPARKTXLOG_CLIENT_TOKEN`, else the token that a local node noted.
    token: str = ""
    #: PEM file with the authority of the nodes' certificates.
    ca_file: str = ""

    def client(self) -> Client:
        """Return a client, which the caller closes."""
        return Client(self.url, token=self.token or None, ca_file=self.ca_file or None)


def table_key(table: str, cluster: str = CLUSTER) -> AssetKey:
    """Return the key of a table, the same at all sites: cluster, schema, table."""
    return AssetKey([cluster, *schema_and_table(table)])


def receipt_metadata(receipt: Receipt) -> dict[str, Any]:
    """Return what `MaterializeResult(metadata=…)` says of a commit."""
    said = {"position": receipt.position, "transaction_id": receipt.transaction_id}
    said |= {"rows": receipt.rows, "log": receipt.log_id}
    return {name: value for name, value in said.items() if value is not None}


def replicas_equal_check(
    table: str, *, cluster: str = CLUSTER, blocking: bool = False
) -> AssetChecksDefinition:
    """Return the check that all replicas have applied the whole log and are equal.

    It says this of all tables of the log, as a status does.  If a replica is only behind, the check
    fails with severity WARN; if one differs, with ERROR.

    Args:
        blocking: Assets that depend on the table do not run if the check fails with ERROR.
    """

    @asset_check(asset=table_key(table, cluster), name="replicas_are_equal", blocking=blocking)
    def replicas_are_equal(txlog: TxLogResource) -> AssetCheckResult:
        with txlog.client() as client:
            found = progress_of(client.status(), None)
        return AssetCheckResult(
            passed=not (found.waits_for or found.differs),
            severity=AssetCheckSeverity.ERROR if found.differs else AssetCheckSeverity.WARN,
            description=found.differs or found.waits_for or "all replicas are equal",
            metadata={"position": found.position, "applied_here": found.applied},
        )

    return replicas_are_equal
