"""Recount the signatures of the site's replica by full scan, and compare it with other sites.

./spark-submit.sh jobs/verify.py --url http://127.0.0.1:7070 [--table NAME …] [--compare] [--json]

--compare also says since which position sites differ, by what they reported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

from sparktxlog.api import job
from sparktxlog.worker.comparing import compare_sites, conclusions
from sparktxlog.worker.findings import comparison_lines, recount_lines
from sparktxlog.worker.histories import read_peer_urls
from sparktxlog.worker.verify import verify_replica


def main(argv: Sequence[str]) -> int:
    parser = job.parser("Recount a replica's tables by full scan, and compare sites.")
    parser.add_argument("--table", action="append", default=[], help="only this one; repeatable")
    parser.add_argument("--compare", action="store_true", help="find where sites began to differ")
    parser.add_argument("--peer-url", action="append", default=[], metavar="NAME=URL")
    return job.run_job(parser.parse_args(argv), verify)


def verify(context: job.JobContext) -> tuple[int, dict[str, Any]]:
    with closing(context.open_source()) as source:
        lake = context.arguments.lake or source.info().lake_root
        peers = read_peer_urls(context.arguments.peer_url)
        compared = compare_sites(source, peers) if context.arguments.compare else None
        found = verify_replica(context.spark, source, lake, context.arguments.table)
    lines, result = recount_lines(found), {"sound": found.sound, **asdict(found)}
    if compared is not None:
        said = conclusions(compared, found)
        lines += comparison_lines(compared, said)
        result["comparison"] = {"equal": compared.equal, **asdict(compared), "conclusions": said}
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sound = found.sound and (compared is None or compared.equal)
    return (job.OK if sound else job.DIVERGED), result


if __name__ == "__main__":
    job.main(main)
