"""Airflow 3: a provider with a connection, operators and a deferrable sensor.

This module itself imports nothing of Airflow: it is what Airflow finds first, by the entry point
`apache_airflow_provider`.
"""

from __future__ import annotations

from typing import Any

import sparktxlog
from sparktxlog.health.site_progress import SCHEME

_HERE = "sparktxlog_airflow"


def get_provider_info() -> dict[str, Any]:
    """Return what Airflow asks of a provider; its schema is `provider_info.schema.json`."""
    name = "sparktxlog"
    return {
        "package-name": "sparktxlog-airflow",
        "name": name,
        "description": "A replicated transaction log over Delta tables, of several writing sites.",
        "versions": [sparktxlog.__version__],
        "integrations": [{"integration-name": name, "tags": ["service"]}],
        "hooks": [{"integration-name": name, "python-modules": [f"{_HERE}.site_hook"]}],
        "operators": [{"integration-name": name, "python-modules": [f"{_HERE}.site_operators"]}],
        "sensors": [{"integration-name": name, "python-modules": [f"{_HERE}.position_sensor"]}],
        "triggers": [{"integration-name": name, "python-modules": [f"{_HERE}.position_sensor"]}],
        "connection-types": [
            {
                "connection-type": SCHEME,
                "hook-class-name": f"{_HERE}.site_hook.TxLogHook",
                "hook-name": "sparktxlog node",
                "ui-field-behaviour": {
                    "hidden-fields": ["login"],
                    "relabeling": {"password": "Client token", "schema": "http or https"},
                    "placeholders": {"host": "a name, or URLs with commas", "port": "7070"},
                },
            }
        ],
    }
