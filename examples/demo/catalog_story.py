"""The demo of the catalog: Spark's own INSERT and MERGE at three sites on one commit table."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import Any

from examples.demo.catalog_report import CatalogResult, history_of, staged_commits
from examples.demo.children import DemoError
from examples.demo.demo_nodes import Cluster
from examples.demo.flight_files import AIRPORTS
from examples.demo.narration import Narration, run_story
from examples.demo.sites import Sites
from rich.console import Console

from sparktxlog.api.session import SPARK_RELEASE
from sparktxlog.api.spark_jars import known_jars
from sparktxlog.delta.log_files import has_commit
from sparktxlog.files.stores.store import Store
from sparktxlog.http.catalog_link import CatalogLink
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.storage.commit_tables.directory_tables import directory_of

#: Paths of the connector's JARs, comma separated.
CONNECTOR_VARIABLE = "SPARKTXLOG_CONNECTOR"
#: How the file of Unity Catalog's connector for Spark begins.
_OFFICIAL = "unitycatalog-spark"
_NAME = "default.flights"
_SETTLE_TIMEOUT_S = 300.0
#: Seconds until all sites' Spark has written its files, and waits for a version.
_WRITE_TIMEOUT_S = 240.0
#: In how many parts the flights are inserted and merged: together, and around the cut.
_PARTS = 2


class CatalogStory(Narration):
    """One run of the demo of the catalog."""

    def __init__(
        self,
        directory: Path,
        console: Console,
        *,
        scale: float,
        connector: str,
        in_buckets: bool,
    ) -> None:
        cluster = Cluster(directory, tuple(AIRPORTS), in_buckets=in_buckets)
        self.result = CatalogResult(
            sites=cluster.sites, connector=connector, scale=scale, directory=str(directory)
        )
        sites = Sites(cluster, scale, job="catalog_job", connector=connector)
        super().__init__(directory, console, cluster, sites, self.result)

    def run(self) -> None:
        """Run all parts of the demo."""
        self.begin()
        self.write_together()
        self.write_while_cut()
        self.compare()

    def begin(self) -> None:
        """Start nodes and Spark; one site creates the table, and all see it."""
        self.heading("Three nodes and three Spark sessions start, each in its own directory")
        names = [Path(jar.removeprefix("file://")).name for jar in self.result.connector.split(",")]
        known = any(name.startswith(_OFFICIAL) for name in names)
        kind = "Unity Catalog's connector" if known else "a small plugin in the connector's place"
        self.line(f"Spark's catalog is the site's node, by {kind}: {', '.join(names)}")
        for site, found in self.start().items():
            self.line(f"site {site} ({AIRPORTS[site]}): {found['rows']:,} flights")
        first = self.cluster.sites[0]
        self.heading(f"Site {first}: CREATE TABLE tx.default.flights … PARTITIONED BY (origin)")
        with self.console.status("creating"):
            self.sites.ask(first, "create")
            self.cluster.wait_until_equal(_SETTLE_TIMEOUT_S)

    def write_together(self) -> None:
        """All sites write at the same moment: one commit wins, the others are made again."""
        self.heading("All sites at once: INSERT INTO tx.default.flights …, then MERGE INTO …")
        for do, text in (("announce", "INSERT"), ("report", "MERGE")):
            before = self._staged()
            with self.console.status(text):
                answers = self._all(do, 0)
            lost = self._staged() - before - len(answers)
            seconds = max(answer["seconds"] for answer in answers.values())
            self.line(
                f"{text} at {len(answers)} sites: {seconds:.1f} s; commits that lost against "
                f"another one, and that Delta made again: {lost}"
            )

    def write_while_cut(self) -> None:
        """A site is cut off: its INSERT and those of the others wait, and none fails."""
        cluster, cut = self.cluster, self.cluster.sites[-1]
        before = cluster.wait_until_equal(_SETTLE_TIMEOUT_S)
        self.heading(f"Site {cut} is cut off from the others; all sites INSERT")
        cluster.cut(cut)
        started = monotonic()
        with ThreadPoolExecutor(1, thread_name_prefix="demo-insert") as pool:
            inserting = pool.submit(self._all, "announce", 1)
            try:
                with self.console.status("waiting"):
                    cluster.wait_until(
                        lambda: inserting.done() or all(map(self._waits, cluster.sites)),
                        "the commits of all sites to wait",
                        _WRITE_TIMEOUT_S,
                    )
                after = {site: int(cluster.status(site)["position"]) for site in cluster.sites}
                if inserting.done() or max(after.values()) > max(before.values()):
                    raise DemoError(f"a commit was ordered without site {cut}: {before} → {after}")
                self.line("every INSERT waits for its version; nothing fails")
                self.result.waited_s = monotonic() - started
                self.heading("The link is restored")
            finally:
                # Also after a failure: what waits would wait for ever.
                healed = monotonic()
                cluster.heal()
            with self.console.status("ordering"):
                inserting.result()
        self.line(f"all INSERTs are done {monotonic() - healed:.1f} s later")
        self.heading("All sites at once: MERGE INTO tx.default.flights …")
        with self.console.status("MERGE"):
            self._all("report", 1)

    def _waits(self, site: str) -> bool:
        return bool(self.cluster.status(site)["incoming_transactions"])

    def _all(self, do: str, part: int) -> dict[str, dict[str, Any]]:
        command = {"part": part, "parts": _PARTS}
        return self.sites.ask_all(do, dict.fromkeys(self.cluster.sites, command))

    def _tables(self) -> dict[str, Store]:
        """Return where the sites have the table, each at its newest version."""
        found = {}
        for site in self.cluster.sites:
            with closing(CatalogLink(self.cluster.url(site))) as link:
                location = link.load(_NAME).metadata.location
            if self.cluster.bucket is None:
                location = str(directory_of(location))
            found[site] = self.cluster.store_at(location)
        return found

    def _staged(self) -> int:
        found = map(staged_commits, self._tables().values())
        return sum(len(one) for commits in found for one in commits.values())

    def compare(self) -> None:
        """Compare the histories of all sites, and the rows with plain Spark over the source."""
        self.heading("The histories of all sites are compared, and the rows with the source")
        cluster, result = self.cluster, self.result
        cluster.wait_until_equal(_SETTLE_TIMEOUT_S)
        tables = self._tables()
        result.histories = {site: history_of(table) for site, table in tables.items()}
        for site, table in tables.items():
            staged = staged_commits(table)
            result.staged[site] = sum(map(len, staged.values()))
            for version, commits in staged.items():
                if has_commit(table, version) and table.read(commit_file_name(version)) in commits:
                    result.committed_at[version] = site
            if cluster.bucket is not None:
                result.bucket_requests[site] = cluster.bucket_requests(site)
        sources = [str(cluster.site_directory(site) / "source") for site in cluster.sites]
        asked = {"sources": sources, "begun": list(range(_PARTS)), "parts": _PARTS}
        with self.console.status("comparing"):
            found = self.sites.ask_all("compare", dict.fromkeys(cluster.sites, asked))
        result.rows = {site: answer["rows"] for site, answer in found.items()}
        result.differences = {site: answer["different"] for site, answer in found.items()}
        result.expected_rows = found[cluster.sites[0]]["expected"]
        self.line(
            f"commits that became versions: {len(result.committed_at)}; that lost, and that Delta "
            f"made again: {result.made_again}"
        )


def run_catalog_demo(
    *,
    scale: float,
    keep: bool,
    directory: Path | None,
    as_json: bool,
    connector: str,
    in_buckets: bool,
) -> bool:
    """Run the demo of the catalog; return whether it passed, as `run_demo` does.

    Args:
        scale: Part of the year 2013, 0 … 1.
        keep: Leave the nodes running.
        directory: Parent of the sites' directories; None = a new temporary one.
        as_json: Print a line of JSON at the end, and all else to stderr.
        connector: JARs of Unity Catalog's connector for Spark, with commas; empty = it is among
            Delta's.
        in_buckets: The sites' tables lie in a bucket of this machine.

    Raises:
        DemoError: There is no connector, or a process failed; the hint names its log.
        MissingDependencyError: There is no store of buckets (definite).
    """
    given = [jar.strip() for jar in connector.split(",") if jar.strip()]
    missing = [jar for jar in given if not Path(jar.removeprefix("file://")).is_file()]
    if missing:
        raise DemoError(f"there is no connector {missing[0]}", hint="Name its JAR, or its JARs.")
    jars = [str(Path(jar.removeprefix("file://")).absolute()) for jar in given]
    if not jars:
        jars = [jar for jar in known_jars(SPARK_RELEASE).split(",") if _OFFICIAL in jar]
    if not jars:
        raise DemoError(
            "Spark needs Unity Catalog's connector to write to a catalog, and none is given",
            hint="Name its JARs with --connector, or run `make demo DEMO_ARGS=--catalog`, which "
            "compiles the small plugin of the tests if there is a Java compiler.",
        )

    def made(root: Path, console: Console) -> CatalogStory:
        return CatalogStory(
            root, console, scale=scale, connector=",".join(jars), in_buckets=in_buckets
        )

    return run_story(made, keep=keep, directory=directory, as_json=as_json)
