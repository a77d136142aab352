"""The rehearsals, on a scratch cluster of real nodes with relays between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

from examples.demo.demo_nodes import Cluster
from pyspark.sql import SparkSession
from tests.verification.rehearsal.drill_writers import COLUMNS, TABLE, Ordered, Writer

import sparktxlog
from sparktxlog import Client
from sparktxlog.errors import NotFoundError
from sparktxlog.worker.backup.disk_images import DiskImages
from sparktxlog.worker.backup.imaging import back_up_replica
from sparktxlog.worker.backup.restoring import restore_replica
from sparktxlog.worker.verify.verify import recount_tables

#: Seconds of writing before a fault, and after it is over.
_CALM_S = 1.5
#: Seconds for a node to come back, or for all to be equal.
_RETURN_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """One thing that went wrong on purpose."""

    #: Recovery time objective: the longest time without a commit of a writer, by site, seconds.
    pause_s: dict[str, float]
    #: Seconds from the repair until all sites were equal again.
    return_s: float


@dataclass(slots=True, kw_only=True)
class Found:
    """What the rehearsals found."""

    rehearsals: list[Rehearsal] = field(default_factory=list)
    #: Commits that writers know to be ordered.
    ordered: int = 0
    #: Recovery point objective: site → those of them that it does not know at their position.
    lost: dict[str, list[str]] = field(default_factory=dict)
    #: Site → signature of the table.
    signatures: dict[str, str] = field(default_factory=dict)
    #: Table of the restored backup → signatures recorded and counted, where they differ.
    wrong: dict[str, Any] = field(default_factory=dict)


class Rehearsals:
    """All rehearsals; nothing outside the directory is touched.

    Args:
        directory: An empty directory.
        sites: Names of the sites; the last one is lost, and cut.
        suspect_timeout_s: Seconds after which the others go on without a silent node.
    """

    def __init__(self, directory: Path, sites: Sequence[str], suspect_timeout_s: float) -> None:
        self._directory = directory
        self._sites = tuple(sites)
        self._cluster = Cluster(directory, sites, suspect_timeout_s=suspect_timeout_s)
        self._writers: list[Writer] = []
        self._found = Found()

    def run(self, spark: SparkSession) -> Found:
        """Lose a site, cut its links, count what is lost, compare replicas, restore a backup."""
        cluster, victim = self._cluster, self._sites[-1]
        with ExitStack() as stack:
            stack.callback(cluster.stop)
            cluster.start()
            cluster.wait_until(cluster.is_whole, "all nodes to be linked")
            with Client(cluster.url(self._sites[0])) as client:
                client.create_table(TABLE, COLUMNS, keys=["id"])
            self._start_writers(stack)
            self._rehearse(lambda: cluster.kill_node(victim), lambda: cluster.start_node(victim))
            self._rehearse(lambda: cluster.cut(victim), cluster.heal)
            for writer in self._writers:
                writer.end()
            cluster.wait_until_equal(_RETURN_S)
            self._count_lost()
            self._compare(spark)
            self._restore(spark)
        return self._found

    def _start_writers(self, stack: ExitStack) -> None:
        for site in self._sites:
            others = [other for other in self._sites if other != site]
            writer = Writer(site, [self._cluster.url(name) for name in (site, *others)])
            self._writers.append(writer)
            writer.start()
            stack.callback(writer.end)
        self._write_on()

    def _rehearse(self, harm: Callable[[], None], repair: Callable[[], None]) -> None:
        """Do harm, wait until all writers go on, and repair; measure both."""
        begun = monotonic()
        harm()
        self._write_on()
        pauses = self._pauses(begun)
        self._found.rehearsals.append(Rehearsal(pause_s=pauses, return_s=self._come_back(repair)))

    def _write_on(self) -> None:
        """Return when every writer has committed again, and a moment later."""
        # A commit that was under way before a fault may end after it: the second one counts.
        wanted = {writer.site: len(writer.ordered) + 2 for writer in self._writers}

        def went_on() -> bool:
            return all(len(writer.ordered) >= wanted[writer.site] for writer in self._writers)

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
        """Ask every site for every commit that a writer knows to be ordered."""
        ordered = [one for writer in self._writers for one in writer.ordered]
        self._found.ordered = len(ordered)
        self._found.lost = {site: self._missing(site, ordered) for site in self._sites}

    def _missing(self, site: str, ordered: Sequence[Ordered]) -> list[str]:
        missing = []
        with Client(self._cluster.url(site)) as client:
            for one in ordered:
                try:
                    found = client.receipt(one.transaction_id).position
                except NotFoundError:
                    found = None
                if found != one.position:
                    missing.append(one.transaction_id)
        return missing

    def _compare(self, spark: SparkSession) -> None:
        """Apply the queue at every site, and note the signatures."""
        for site in self._sites:
            with sparktxlog.connect(spark, self._cluster.url(site), apply="inline") as log:
                log.apply(_RETURN_S)
            with Client(self._cluster.url(site)) as client:
                signature = client.snapshot()["tables"][TABLE]["signature"]
            self._found.signatures[site] = str(signature)

    def _restore(self, spark: SparkSession) -> None:
        """Restore a backup of a replica into another directory, and count its rows."""
        site, restored = self._sites[0], self._directory / "restored"
        store = DiskImages(self._directory / "backup")
        lake = self._cluster.site_directory(site) / "lake"
        done = back_up_replica(lake, store, name="drill", site=site)
        restore_replica(store, done.image, restored)
        self._found.wrong = recount_tables(spark, restored)
