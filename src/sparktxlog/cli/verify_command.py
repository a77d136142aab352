"""`sparktxlog verify`: what jobs/verify.py does, in a Spark session of its own if one is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparktxlog.cli.root import (
    DEFAULT_URL,
    AsJson,
    ExitCode,
    Url,
    app,
    end,
    local_spark,
    print_json,
    print_rows,
)
from sparktxlog.errors import InvalidRequestError
from sparktxlog.http.tokens import client_token

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

    Returns the findings, `lines` of them for people, and the exit code.

    Args:
        peers: Site → URL, over what the node knows.
        since: Position up to which all are known equal.
        recount: Recount the own replica too, and say whose record its rows contradict.

    Raises:
        TransportError: The node cannot be reached.
    """
    from sparktxlog.worker.replica.source import HttpLogSource
    from sparktxlog.worker.verify.comparing import compare_sites, comparison_lines, conclusions

    with closing(HttpLogSource(url, token)) as source:
        compared = compare_sites(source, peers, since=since)
    counted = _recount(url, tables, token) if recount else None
    said = conclusions(compared, counted)
    report = compared.to_document(said)
    if counted is not None:
        report["recount"] = findings_of(counted)
    report["lines"] = comparison_lines(compared, said)
    if not compared.equal or (counted is not None and not counted.sound):
        return report, ExitCode.DIVERGED
    return report, ExitCode.IN_SYNC if compared.complete else ExitCode.LAGGING


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
    from sparktxlog.worker.replica.source import HttpLogSource
    from sparktxlog.worker.verify.single_flight import VERIFICATION, single_flight

    with closing(HttpLogSource(url, token)) as source:
        # A node that is away is reported before Spark takes its seconds to start.
        lake = source.info().lake_root
        with single_flight(lake, VERIFICATION), local_spark("verify") as spark:
            from sparktxlog.worker.verify.verify import verify_replica

            return verify_replica(spark, source, lake, tables)


@app.command(epilog="Example: sparktxlog verify --url http://127.0.0.1:7070")
def verify(
    url: Url = DEFAULT_URL,
    tables: Annotated[
        list[str] | None, typer.Option("--table", help="Table to recount; default: all.")
    ] = None,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Find where sites began to differ; needs no Spark."),
    ] = False,
    recount: Annotated[
        bool, typer.Option("--recount", help="With --compare: recount this site's rows too.")
    ] = False,
    since: Annotated[
        int, typer.Option(min=0, help="With --compare: position up to which all are equal.")
    ] = 0,
    peer_url: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=URL", help="With --compare: where a site's node is reached."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recount the replica's signatures by full scan, with Spark, and compare the sites.

    With --compare, say from which position and in which table sites differ, by what they reported.
    """
    token = client_token()
    if compare:
        from sparktxlog.worker.verify.histories import read_peer_urls

        peers = read_peer_urls(peer_url or [])
        report, code = run_comparison(
            url, tables or [], peers=peers, since=since, recount=recount, token=token
        )
        lines = report.pop("lines")
        if as_json:
            print_json(report)
        else:
            for line in lines:
                typer.echo(line)
            if "recount" in report:
                print_rows("rows counted", *_verify_rows(report["recount"]))
        end(code)
        return
    if recount or since or peer_url:
        raise InvalidRequestError(
            "--recount, --since and --peer-url belong to --compare", hint="Add --compare."
        )
    report, code = run_verification(url, tables or [], token=token)
    if as_json:
        print_json(report)
    else:
        others = ", ".join(report["compared_sites"]) or "no other site"
        title = f"site {report['node_id']} at position {report['position']:,}, against {others}"
        print_rows(title, *_verify_rows(report))
    end(code)


def _verify_rows(report: Mapping[str, Any]) -> tuple[tuple[str, ...], list[list[Any]]]:
    columns = ("table", "version", "rows:signature by full scan", "sound", "what differs")
    rows = []
    for name, found in sorted(report["tables"].items()):
        differing = [f"{site} has {text}" for site, text in found["differing_sites"].items()]
        causes = [*found["causes"], *differing]
        rows.append([name, found["version"], found["counted"], found["sound"], causes])
    return columns, rows
