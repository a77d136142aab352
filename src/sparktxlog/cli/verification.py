"""`sparktxlog verify`: what jobs/verify.py does, in a Spark session of its own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

from sparktxlog.api.session import build_session
from sparktxlog.cli.output import ExitCode
from sparktxlog.worker.source import HttpLogSource
from sparktxlog.worker.verify import Verification, verify_replica


def run_verification(
    url: str, tables: Sequence[str], *, token: str | None
) -> tuple[dict[str, Any], ExitCode]:
    """Recount the replica of a node; return the findings and the exit code.

    Raises:
        TransportError: The node cannot be reached.
        NotAppliedError: No worker has applied anything there yet (definite).
    """
    with closing(HttpLogSource(url, token)) as source:
        # An absent node is told before Spark takes its seconds to start.
        lake = source.info().lake_root
        spark = build_session("local[*]", app_name="sparktxlog-verify")
        try:
            found = verify_replica(spark, source, lake, tables)
        finally:
            spark.stop()
    return findings_of(found), ExitCode.IN_SYNC if found.sound else ExitCode.DIVERGED


def findings_of(found: Verification) -> dict[str, Any]:
    """Return a verification as the command prints it."""
    return {
        "node_id": found.node_id,
        "position": found.position,
        "sound": found.sound,
        "compared_sites": list(found.compared_sites),
        "tables": {table.table: asdict(table) | {"sound": table.sound} for table in found.tables},
    }
