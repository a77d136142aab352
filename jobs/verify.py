"""Recount the signatures of the site's replica by full scan, and compare it with other sites.

./spark-submit.sh jobs/verify.py --url http://127.0.0.1:7070 [--table NAME …] [--compare] [--json]

--compare also says since which position sites differ, by what they reported.  Only one full scan
at a time runs on a lake; the same as `sparktxlog verify`, with --recount where it compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

from sparktxlog.api.jobs import job
from sparktxlog.api.jobs.progress_lines import say
from sparktxlog.worker.verify.comparing import compare_sites, comparison_lines, conclusions
from sparktxlog.worker.verify.histories import read_peer_urls
from sparktxlog.worker.verify.single_flight import VERIFICATION, single_flight
from sparktxlog.worker.verify.verify import recount_lines, verify_replica


def main(argv: Sequence[str]) -> int:
    parser = job.parser("Recount a replica's tables by full scan, and compare sites.")
    parser.add_argument("--table", action="append", default=[], help="only this one; repeatable")
    parser.add_argument("--compare", action="store_true", help="find where sites began to differ")
    parser.add_argument("--since", type=int, default=0, metavar="POSITION",
                        help="with --compare: position up to which all are equal")  # fmt: skip
    parser.add_argument("--peer-url", action="append", default=[], metavar="NAME=URL",
                        help="with --compare: where a site's node is reached")  # fmt: skip
    arguments = parser.parse_args(argv)
    if not arguments.compare and (arguments.since or arguments.peer_url):
        parser.error("--since and --peer-url belong to --compare")
    return job.run_job(arguments, verify)


def verify(context: job.JobContext) -> tuple[int, dict[str, Any]]:
    a, compared = context.arguments, None
    with closing(context.open_source()) as source:
        lake = a.lake or source.info().lake_root
        peers = read_peer_urls(a.peer_url)
        with single_flight(lake, VERIFICATION):
            if a.compare:
                compared = compare_sites(source, peers, since=a.since)
            found = verify_replica(context.spark, source, lake, a.table)
    lines, result = recount_lines(found), {"sound": found.sound, **asdict(found)}
    if compared is not None:
        said = conclusions(compared, found)
        lines += comparison_lines(compared, said)
        result["comparison"] = compared.to_document(said)
    say("\n".join(lines))
    if not found.sound or (compared is not None and not compared.equal):
        return job.DIVERGED, result
    return (job.OK if compared is None or compared.complete else job.LAGGING), result


if __name__ == "__main__":
    job.main(main)
