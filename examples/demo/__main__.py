"""Run the demo: `python -m examples.demo --scale 0.1 --keep`, in the root of a clone.

Exit codes: 0 all sites are equal, 1 a process failed, 2 wrong arguments, 4 the sites differ.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.demo.catalog_story import CONNECTOR_VARIABLE, run_catalog_demo
from examples.demo.flight_files import AIRPORTS
from examples.demo.story import FOLLOWERS, run_demo

from sparktxlog.errors import TxLogError
from sparktxlog.model.ids import local_path

_DIFFERENT = 4


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    made = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="Run three sites on this machine with real flights, cut one off, reconnect "
        "it, compare.  With --kill also kill a node in the middle: the others go on, and it "
        "rejoins after a restart.  With --store s3 the tables lie in a bucket, and a node and a "
        "worker are killed.  With --catalog the sites write one table by ordinary SQL, and "
        "have one history of it.",
    )
    add = made.add_argument
    add("--scale", type=float, default=0.05, help="part of the year 2013, 1 = all flights")
    add("--keep", action="store_true", help="leave the nodes running")
    add("--kill", metavar="SITE", help="kill this site's node and start it again")
    add("--kill-worker", metavar="SITE", help="kill this site's worker in the middle of a batch")
    add(
        "--store",
        choices=("s3",),
        help="keep the sites' tables in a bucket of this machine, a prefix for each site; without "
        "--catalog a node and a worker are killed, too, by default those of the last two sites",
    )
    add("--witness", action="store_true", help="two sites and a witness instead of three sites")
    add("--followers", type=int, default=0, metavar="N", help="nodes that follow, up to 3")
    add("--feed", metavar="DIR", help="keep the log there; in the end a new cluster is made of it")
    add("--catalog", action="store_true", help="Spark's own INSERT and MERGE on one commit table")
    add(
        "--connector",
        metavar="JARS",
        default=os.environ.get(CONNECTOR_VARIABLE, ""),
        help="Unity Catalog's connector for Spark, for --catalog; several with commas; default: "
        f"the variable {CONNECTOR_VARIABLE}",
    )
    add("--dir", metavar="DIR", help="directory of the sites; default: a new one")
    add("--json", action="store_true", help="end with one line of JSON on stdout")
    found = made.parse_args(argv)
    sites = _sites(found)
    if not 0.001 <= found.scale <= 1:
        made.error(f"--scale {found.scale:g} is not within 0.001 … 1")
    if not 0 <= found.followers <= len(FOLLOWERS):
        made.error(f"--followers {found.followers} is not within 0 … {len(FOLLOWERS)}")
    if found.catalog and (found.followers or found.feed):
        made.error("--catalog goes without --followers and --feed")
    if found.catalog and (found.kill or found.kill_worker or found.witness):
        made.error("--catalog goes without --kill, --kill-worker and --witness")
    for option, site in (("--kill", found.kill), ("--kill-worker", found.kill_worker)):
        if site and site not in sites:
            made.error(f"{option} {site!r} is not a site; sites: {', '.join(sites)}")
    if found.store and not found.catalog:
        found.kill = found.kill or sites[-2]
        found.kill_worker = found.kill_worker or sites[-1]
    return found


def _sites(arguments: argparse.Namespace) -> tuple[str, ...]:
    return tuple(AIRPORTS)[:2] if arguments.witness else tuple(AIRPORTS)


def _passed(arguments: argparse.Namespace) -> bool:
    a = arguments
    directory = None if a.dir is None else Path(local_path(a.dir))
    if a.catalog:
        return run_catalog_demo(
            scale=a.scale,
            keep=a.keep,
            directory=directory,
            as_json=a.json,
            connector=a.connector,
            in_buckets=a.store is not None,
        )
    return run_demo(
        sites=_sites(a),
        scale=a.scale,
        keep=a.keep,
        directory=directory,
        as_json=a.json,
        kill=a.kill,
        kill_worker=a.kill_worker,
        in_buckets=a.store is not None,
        followers=a.followers,
        feed=None if a.feed is None else Path(local_path(a.feed)).absolute(),
    )


def main(argv: Sequence[str]) -> int:
    """Run the demo; return its exit code."""
    arguments = _arguments(argv)
    try:
        return 0 if _passed(arguments) else _DIFFERENT
    except TxLogError as error:
        if arguments.json:
            print(json.dumps(error.to_problem()))
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
