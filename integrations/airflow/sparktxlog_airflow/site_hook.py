"""Airflow's connection to the node of a site, of the type `sparktxlog`."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook

from sparktxlog import Client
from sparktxlog.errors import TxLogError
from sparktxlog.health.site_progress import SCHEME

DEFAULT_CONNECTION = "sparktxlog_default"


def url_of(connection: Any) -> str:
    """Return the node's URL, or several with commas, if the host has whole URLs."""
    host = str(connection.host or "127.0.0.1")
    if "://" in host:
        return host
    return f"{connection.schema or 'http'}://{host}:{connection.port or 7070}"


def client_of(connection: Any) -> Client:
    """Return a client of the node; the password is its token, and the extra may have `ca_file`."""
    return Client(
        url_of(connection),
        token=connection.password or None,
        ca_file=connection.extra_dejson.get("ca_file"),
    )


class TxLogHook(BaseHook):
    """Opens a `sparktxlog.Client` by a connection: host (name or URLs), port, password = token."""

    conn_name_attr = "txlog_conn_id"
    default_conn_name = DEFAULT_CONNECTION
    conn_type = SCHEME
    hook_name = "sparktxlog node"

    def __init__(self, txlog_conn_id: str = DEFAULT_CONNECTION) -> None:
        super().__init__()
        self.txlog_conn_id = txlog_conn_id

    def get_conn(self) -> Client:
        """Return a client, which the caller closes."""
        return client_of(self.get_connection(self.txlog_conn_id))

    def test_connection(self) -> tuple[bool, str]:
        """Say whether the node answers, and which one it is; for Airflow's button."""
        try:
            with self.get_conn() as client:
                info = client.info()
        except TxLogError as error:
            return False, str(error)
        return True, f"node {info['node_id']} of {info['log_id']}, position {info['position']:,}"
