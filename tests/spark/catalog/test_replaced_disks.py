"""Three disks replaced one after the other, as docs/sites.md says word for word: nothing is lost.

Nodes are processes of their own, workers threads of the test; Spark writes a row table and a commit
table.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.architecture.source_tree import ROOT
from tests.spark.catalog.conftest import catalogs_at
from tests.spark.followers import follower
from tests.support.forked_nodes import run_command
from tests.support.node_processes import Cluster, NodeProcess, append, wait_until

from sparktxlog.api.connect import connect

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(600)]

SETTINGS = ("suspect-timeout = 2", "start-timeout = 4")
PAGE = (ROOT / "docs" / "sites.md").read_text()
STEPS = PAGE.split("### Replacing disks one after the other\n")[1].split("\n#")[0]
#: Where the page's commands go by default, and the node that its loop waits for.
DEFAULT_URL, DOCUMENTED_URL = "SPARKTXLOG_URL", "http://b.example.com:7070"


class Site:
    """A node and its worker, which are stopped and started together."""

    def __init__(self, node: NodeProcess, spark: SparkSession) -> None:
        self.node = node
        self.name = node.name
        self._spark = spark
        self._worker = ExitStack()

    def start_worker(self) -> None:
        self._worker.enter_context(follower(self._spark, self.node))

    def stop_worker(self) -> None:
        self._worker.close()
        # What a process would keep of its tables ends with it.
        self._spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def run(self, command: str) -> tuple[int, Any]:
        """Run a command of the page at this node; return its exit code, and its JSON."""
        name, *arguments = command.split()
        assert name == "sparktxlog"
        done = run_command(*arguments, "--json", **{DEFAULT_URL: self.node.url})
        return done.returncode, json.loads(done.stdout.splitlines()[-1])

    def wait_for_data(self) -> None:
        """Run the loop of the page for this node, until it ends."""
        (loop,) = re.findall(r"^ +(until curl .*; done)$", STEPS, re.MULTILINE)
        script = loop.replace(DOCUMENTED_URL, self.node.url)
        assert script != loop
        subprocess.run(["sh", "-c", script], check=True, timeout=180, capture_output=True)

    def readiness(self, question: str = "") -> int:
        """Return the HTTP status of `/readyz`."""
        try:
            with urllib.request.urlopen(f"{self.node.url}/readyz{question}", timeout=15) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code


@contextmanager
def three_sites(directory: Path, spark: SparkSession) -> Iterator[dict[str, Site]]:
    cluster = Cluster(directory, "ABC", settings=SETTINGS)
    sites = {name: Site(node, spark) for name, node in cluster.nodes.items()}
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start()
        for site in sites.values():
            site.start_worker()
            stack.callback(site.stop_worker)
        yield sites


def written_at(site: Site, number: int, session: SparkSession) -> None:
    """Write to all tables at a site."""
    with closing(connect(session, site.node.url)) as log:
        more = session.range(10 * number, 10 * number + 3).selectExpr("id", f"'{number}' AS v")
        log.append("t", more)
    site.node.commit(append(10 * number + 3))
    at = site.name.lower()
    session.sql(f"INSERT INTO {at}.shop.c VALUES ({number}, 'new')")
    session.sql(f"UPDATE {at}.shop.c SET v = 'old' WHERE id < {number}")


def settled(sites: dict[str, Site]) -> None:
    """Wait until all sites have all, and say so."""
    end = max(int(site.node.status()["position"]) for site in sites.values())
    for site in sites.values():
        for other in sites:
            site.node.hear(other, end)
    for site in sites.values():
        wait_until(lambda site=site: site.run("sparktxlog survival")[0] == 0, what="all survive")
        assert site.readiness("?data") == 200


def test_three_replaced_disks_lose_no_rows(
    spark: SparkSession, tmp_path: Path, connector: Path
) -> None:
    commands = re.findall(r"`(sparktxlog [^`]*)`", STEPS)
    assert commands[:4] == [
        "sparktxlog survival NODE",
        "sparktxlog status",
        "sparktxlog tables",
        "sparktxlog drill",
    ]
    survival, _, tables, drill = commands[:4]
    with three_sites(tmp_path, spark) as sites:
        places = {name.lower(): (site.node.url, "any") for name, site in sites.items()}
        with catalogs_at(spark, connector, places):
            with closing(connect(spark, sites["A"].node.url)) as log:
                log.create_table("t", "id bigint, v string")
            spark.sql("CREATE SCHEMA a.shop")
            spark.sql("CREATE TABLE a.shop.c (id BIGINT, v STRING) USING delta")
            written_at(sites["A"], 0, spark)
            settled(sites)
            for number, name in enumerate("BCA", start=1):
                site = sites[name]
                one, two = (other for other in sites.values() if other is not site)
                code, (said,) = one.run(survival.replace("NODE", name))
                assert (code, said["site"], said["survives"]) == (0, name, True)
                site.stop_worker()
                site.node.stop()
                shutil.rmtree(tmp_path / name)
                site.node.start()
                site.node.wait_ready()
                wait_until(lambda site=site: site.readiness() == 200, what=f"{name} is ready")
                # It is no copy yet: nobody may lose a second one.
                assert site.readiness("?data") == 503
                assert "site-not-whole" in {one["code"] for one in site.node.status()["warnings"]}
                two.node.stop()
                wait_until(
                    lambda one=one: one.run(f"sparktxlog survival {one.name}")[0] == 3,
                    what=f"the loss of {one.name} would be final",
                )
                assert one.run(drill)[0] == 3
                two.node.start()
                site.start_worker()
                site.wait_for_data()
                wait_until(lambda site=site: site.run(drill)[0] == 0, what="the drill passes")
                assert site.node.status()["kept_after"] > 0, "it began with a summary"
                written_at(site, number, spark)
                settled(sites)
            check(sites, spark, tables)


def check(sites: dict[str, Site], session: SparkSession, tables: str) -> None:
    """Check that each site has all that was written, the same at all."""
    rows = [(10 * n + k, "x" if k == 3 else str(n)) for n in range(4) for k in range(4)]
    commits = [(0, "old"), (1, "old"), (2, "old"), (3, "new")]
    for site in sites.values():
        found = DeltaTable(site.node.lake / "t").to_pyarrow_table().to_pylist()
        assert sorted(tuple(row.values()) for row in found) == rows, site.name
        frame = session.sql(f"SELECT * FROM {site.name.lower()}.shop.c")
        assert sorted(tuple(row) for row in frame.collect()) == commits, site.name
        code, listed = site.run(tables)
        assert code == 0 and {one["name"] for one in listed} >= {"t", "shop.c"}
    code, compared = sites["A"].run("sparktxlog verify --compare")
    assert (code, compared["equal"]) == (0, True)
