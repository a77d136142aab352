"""`sparktxlog verify`: what jobs/verify.py does, in a Spark session of its own if one is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sparktxlog.cli.options import require_spark
from sparktxlog.cli.output import ExitCode
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.verify.comparing import SiteComparison, compare_sites, conclusions
from sparktxlog.worker.verify.findings import comparison_lines
from sparktxlog.worker.verify.single_flight import VERIFICATION, single_flight

if TYPE_CHECKING:
    from sparktxlog.worker.verify.verify import Verification


def run_verification(
    url: str, tables: Sequence[str], *, token: str | None
) -> tuple[dict[str, Any], ExitCode]:
    """Recount the replica of a node; return the findings and the exit code.

    Raises:
        TransportError: The node cannot be reached.
        NotAppliedError: No worker has applied anything there yet (definite).
    """
    found = _recount(url, tables, token)
    return findings_of(found), ExitCode.IN_SYNC if found.sound else ExitCode.DIVERGED


def run_comparison(
    url: str,
    tables: Sequence[str],
    *,
    peers: Mapping[str, str],
    since: int,
    recount: bool,
    token: str | None,
) -> tuple[dict[str, Any], ExitCode]:
    """Compare all sites by their recorded signatures, without Spark unless a recount is wanted.

    Args:
        peers: Site → URL, over what the node knows.
        since: Position up to which all are known equal.
        recount: Recount the own replica too, and say whose record its rows contradict.

    Raises:
        TransportError: The node cannot be reached.
    """
    with closing(HttpLogSource(url, token)) as source:
        compared = compare_sites(source, peers, since=since)
    counted = _recount(url, tables, token) if recount else None
    report = comparison_of(compared, counted)
    if not compared.equal or (counted is not None and not counted.sound):
        return report, ExitCode.DIVERGED
    return report, ExitCode.IN_SYNC if compared.complete else ExitCode.LAGGING


def comparison_of(compared: SiteComparison, counted: Verification | None) -> dict[str, Any]:
    """Return a comparison as the command prints it; `lines` is the text for people."""
    said = conclusions(compared, counted)
    report = compared.to_document(said)
    if counted is not None:
        report["recount"] = findings_of(counted)
    return report | {"lines": comparison_lines(compared, said)}


def findings_of(found: Verification) -> dict[str, Any]:
    """Return a verification as the command prints it."""
    return {
        "node_id": found.node_id,
        "position": found.position,
        "sound": found.sound,
        "verdict": found.verdict,
        "plan": found.plan,
        "compared_sites": list(found.compared_sites),
        "tables": {table.table: asdict(table) | {"sound": table.sound} for table in found.tables},
    }


def _recount(url: str, tables: Sequence[str], token: str | None) -> Verification:
    with closing(HttpLogSource(url, token)) as source:
        # An absent node is told before Spark takes its seconds to start.
        lake = source.info().lake_root
        require_spark()
        from sparktxlog.api.progress import start_logging
        from sparktxlog.api.session import build_session
        from sparktxlog.worker.verify.verify import verify_replica

        start_logging()
        with single_flight(lake, VERIFICATION):
            spark = build_session("local[*]", app_name="sparktxlog-verify")
            try:
                return verify_replica(spark, source, lake, tables)
            finally:
                spark.stop()
