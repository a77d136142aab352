"""The rehearsals, on a scratch cluster of real nodes with relays between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING

from sparktxlog import Client
from sparktxlog.cli.demo.demo_nodes import Cluster
from sparktxlog.cli.drill.drill_report import DrillReport, Rehearsal
from sparktxlog.cli.drill.drill_writers import COLUMNS, TABLE, Told, Writer
from sparktxlog.errors import NotFoundError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds of writing before a fault, and after it is over.
_CALM_S = 1.5
#: Seconds for a node to come back, or for all to be equal.
_RETURN_S = 90.0


class Drill:
    """One drill; nothing outside its directory is touched.

    Args:
        directory: An empty directory.
        sites: Names of the sites; the last one is lost, and cut.
        suspect_timeout_s: That of the cluster whose loss is rehearsed.
        tell: Takes lines of progress.
    """

    def __init__(
        self,
        directory: Path,
        sites: Sequence[str],
        suspect_timeout_s: float,
        tell: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._tell = tell
        self._victim = sites[-1]
        self._cluster = Cluster(directory, sites, suspect_timeout_s=suspect_timeout_s)
        self._writers: list[Writer] = []
        self._report = DrillReport(
            began_at=time.time_ns() // 1000,
            sites=list(sites),
            suspect_timeout_s=suspect_timeout_s,
        )
        self._begun = monotonic()

    def run(self, spark: Callable[[], SparkSession] | None) -> DrillReport:
        """Run all rehearsals.

        Args:
            spark: Starts Spark, for the restore and the proof by signatures; None = leave them out.
        """
        report, cluster = self._report, self._cluster
        with ExitStack() as stack:
            stack.callback(cluster.stop)
            self._tell(f"Starting scratch nodes {', '.join(report.sites)}")
            cluster.start()
            cluster.wait_until(cluster.is_whole, "all nodes to be linked")
            with Client(cluster.url(report.sites[0])) as client:
                client.create_table(TABLE, COLUMNS, keys=["id"])
            self._start_writers(stack)
            report.rehearsals.append(self._lose_site())
            report.rehearsals.append(self._cut_links())
            for writer in self._writers:
                writer.end()
            cluster.wait_until_equal(_RETURN_S)
            if spark is not None:
                self._prove(spark())
            self._count_lost()
        report.seconds = monotonic() - self._begun
        return report

    def _start_writers(self, stack: ExitStack) -> None:
        for site in self._report.sites:
            others = [other for other in self._report.sites if other != site]
            writer = Writer(site, [self._cluster.url(name) for name in (site, *others)])
            self._writers.append(writer)
            writer.start()
            stack.callback(writer.end)
        self._write_on()

    def _lose_site(self) -> Rehearsal:
        """Kill a node; its writer fails over; start it again."""
        victim, cluster = self._victim, self._cluster
        self._tell(f"Killing the node of site {victim}; its writer fails over")
        return self._rehearse(
            "site-lost",
            f"The node of site {victim} was killed while all sites wrote, and came back.",
            lambda: cluster.kill_node(victim),
            (f"Starting the node of site {victim} again", lambda: cluster.start_node(victim)),
        )

    def _cut_links(self) -> Rehearsal:
        """Cut all links of a site, and restore them; its writer fails over."""
        victim, cluster = self._victim, self._cluster
        self._tell(f"Cutting site {victim} off from the others")
        return self._rehearse(
            "link-cut",
            f"All links of site {victim} were cut while all sites wrote, and restored later.",
            lambda: cluster.cut(victim),
            ("Restoring the links", cluster.heal),
        )

    def _rehearse(
        self,
        name: str,
        what: str,
        harm: Callable[[], None],
        repair: tuple[str, Callable[[], None]],
    ) -> Rehearsal:
        """Do harm, wait until all writers go on, and repair; measure both."""
        begun = monotonic()
        harm()
        self._write_on()
        pauses = self._pauses(begun)
        self._tell(repair[0])
        return_s = self._come_back(repair[1])
        return Rehearsal(name=name, what=what, pause_s=pauses, return_s=return_s)

    def _write_on(self) -> None:
        """Return when every writer has committed again, and a moment later."""
        # A commit that was under way before a fault may end after it: the second one counts.
        wanted = {writer.site: len(writer.told) + 2 for writer in self._writers}

        def went_on() -> bool:
            return all(len(writer.told) >= wanted[writer.site] for writer in self._writers)

        self._cluster.wait_until(went_on, "all writers to commit", _RETURN_S)
        Event().wait(_CALM_S)

    def _pauses(self, begun: float) -> dict[str, float]:
        now = monotonic()
        return {w.site: round(w.longest_gap_s(begun, now), 2) for w in self._writers}

    def _come_back(self, repair: Callable[[], None]) -> float:
        begun = monotonic()
        repair()
        self._cluster.wait_until(self._cluster.is_whole, "the site to come back", _RETURN_S)
        return round(monotonic() - begun, 2)

    def _count_lost(self) -> None:
        """Ask every site for every commit that a writer was told."""
        told = [one for writer in self._writers for one in writer.told]
        self._tell(f"Asking all sites for {len(told):,} commits")
        lost = {site: self._missing(site, told) for site in self._report.sites}
        problems = [
            f"site {site} does not know {len(ids):,} commits as they were told, such as {ids[0]}"
            for site, ids in lost.items()
            if ids
        ]
        unknown = sum(not definite for writer in self._writers for _, definite in writer.failed)
        if unknown:
            self._tell(f"{unknown:,} commits ended as unknown: their writers must ask again")
        for one in self._report.rehearsals:
            one.lost, one.told = len({id_ for ids in lost.values() for id_ in ids}), len(told)
            one.problems += problems

    def _missing(self, site: str, told: Sequence[Told]) -> list[str]:
        missing = []
        with Client(self._cluster.url(site)) as client:
            for one in told:
                try:
                    found = client.receipt(one.transaction_id).position
                except NotFoundError:
                    found = None
                if found != one.position:
                    missing.append(one.transaction_id)
        return missing

    def _prove(self, spark: SparkSession) -> None:
        """Apply the queue at every site, compare signatures, and restore a backup of one."""
        import sparktxlog
        from sparktxlog.worker.backup.image_store import ImageStore
        from sparktxlog.worker.backup.imaging import back_up_replica
        from sparktxlog.worker.backup.restoring import restore_replica
        from sparktxlog.worker.verify.verify import recount_tables

        found = {}
        for site in self._report.sites:
            self._tell(f"Applying the queue at site {site}")
            log = sparktxlog.connect(spark, self._cluster.url(site), apply="inline")
            log.apply(_RETURN_S)
            found[site] = str(log.site.home.get("/v1/snapshot")["tables"][TABLE]["signature"])
        self._report.signatures = found
        self._tell("Restoring a backup")
        begun = monotonic()
        store = ImageStore(self._directory / "backup")
        lake = self._cluster.site_directory(self._report.sites[0]) / "lake"
        done = back_up_replica(lake, store, name="drill", site=self._report.sites[0])
        restored = self._directory / "restored"
        restore_replica(store, done.image, restored)
        wrong = recount_tables(spark, restored)
        self._report.rehearsals.append(
            Rehearsal(
                name="restore",
                what="A backup of a replica was taken, restored beside it, and its rows counted.",
                pause_s={self._report.sites[0]: round(monotonic() - begun, 2)},
                problems=[
                    f"table {name}: {a} recorded, {b} counted" for name, (a, b) in wrong.items()
                ],
            )
        )
