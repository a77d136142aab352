"""The demo from beginning to end: commit, cut, restore, perhaps kill, apply, recount, compare."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from examples.demo.children import DemoError
from examples.demo.demo_nodes import SUSPECT_TIMEOUT_S, Cluster
from examples.demo.demo_report import DemoResult
from examples.demo.flight_files import AIRPORTS
from examples.demo.narration import Narration, run_story
from examples.demo.off_site import OffSite
from examples.demo.sites import Sites
from rich.console import Console

from sparktxlog.delta.log_files import newest_commit
from sparktxlog.errors import ObjectMissingError
from sparktxlog.files.stores.part import PartOfStore
from sparktxlog.files.stores.store import Store
from sparktxlog.model.status_words import awaited_text
from sparktxlog.worker.replica.bucket_replica import STATE
from sparktxlog.worker.replica.state import decoded_state

#: The witness of a demo with two sites.
WITNESS = "W"
#: Followers: as many of them as are asked for.
FOLLOWERS = ("F", "G", "H")
#: Seconds to wait for queues to be equal, and for a node that was killed.
_SETTLE_TIMEOUT_S = 300.0
_GO_ON_TIMEOUT_S = 120.0
_RETURN_TIMEOUT_S = 180.0
#: Its commits say that a worker is in the middle of a batch: the first of four tables, by name.
_WATCHED = "aircraft_position"


class Story(Narration):
    """One run of the demo."""

    def __init__(
        self,
        directory: Path,
        console: Console,
        *,
        sites: tuple[str, ...],
        scale: float,
        kill: str | None,
        kill_worker: str | None,
        in_buckets: bool,
        followers: int = 0,
        feed: Path | None = None,
    ) -> None:
        witness = WITNESS if len(sites) == 2 else ""
        names = FOLLOWERS[:followers]
        cluster = Cluster(directory, sites, witness, in_buckets=in_buckets, followers=names)
        self.victim, self.victim_at_work = kill, kill_worker
        #: In how many parts the change stream is committed: together, while a site is cut off,
        #: while a node is dead, and the rest.
        self.parts = 4 if kill else 3
        #: Site → transactions of its change stream.
        self.totals: dict[str, int] = {}
        self.result = DemoResult(
            sites=sites,
            cut_site=sites[-1],
            witness=witness or None,
            scale=scale,
            directory=str(directory),
        )
        super().__init__(directory, console, cluster, Sites(cluster, scale), self.result)
        self.off_site = OffSite(cluster, self.sites, feed, self.result, self.line)

    def run(self) -> None:
        """Run all parts of the demo."""
        self.begin()
        self.commit_together()
        self.commit_while_cut()
        self.heal()
        if self.victim:
            self.kill(self.victim)
        self.commit_the_rest()
        if self.victim_at_work:
            self.kill_worker(self.victim_at_work)
        self.apply()
        self.compare()
        if self.off_site:
            self.heading("Followers and the feed are compared with the sites")
            with self.console.status("following, restoring"):
                self.off_site.compare()

    def begin(self) -> None:
        """Start nodes and Spark, and give each site its own part of the source."""
        self.heading(
            "Two nodes, a witness and two Spark jobs start, each in its own directory"
            if self.cluster.witness
            else "Three nodes and three Spark jobs start, each in its own directory"
        )
        for site, found in self.start().items():
            self.totals[site] = found["transactions"]
            self.line(
                f"site {site} ({AIRPORTS[site]}): {found['changes']:,} changes of flights in "
                f"{found['transactions']:,} transactions, node {self.cluster.url(site)}"
            )
        self.off_site.start()

    def commit_together(self) -> None:
        """All sites commit; every commit waits until it is ordered."""
        self.heading("All sites commit at level [bold]ordered[/bold]")
        first = self.cluster.sites[0]
        self._count({first: self.sites.ask(first, "create")})
        # The other sites' nodes know the tables only once they have ordered their creation too.
        self.cluster.wait_until_equal(_SETTLE_TIMEOUT_S)
        self._count(self.sites.ask_all("bulk"))
        self._commit_part(0, dict.fromkeys(self.cluster.sites, "ordered"))

    def commit_while_cut(self) -> None:
        """One site is cut off; it commits alone, the others acquire from each other.

        With two sites, neither has a third node that could hold its data.
        """
        cluster, cut = self.cluster, self.result.cut_site
        alone = len(cluster.sites) == 2
        before = cluster.wait_until_equal(_SETTLE_TIMEOUT_S)
        self.heading(f"Site {cut} is cut off from the others")
        cluster.cut(cut)
        levels = {s: "accepted" if alone or s == cut else "acquired" for s in cluster.sites}
        for site, level in levels.items():
            self.line(f"site {site} commits at level [bold]{level}[/bold]")
        self.result.during_cut = self._commit_part(1, levels)
        for site in cluster.sites:
            cluster.wait_until(
                partial(self._waits_for, site), f"site {site} to name the missing node"
            )
        found = {site: cluster.status(site) for site in cluster.sites}
        waiting = {site: int(status["incoming_transactions"]) for site, status in found.items()}
        self.line(f"waiting to be ordered: {_by_site(waiting)}; positions stand still")
        after = {site: int(status["position"]) for site, status in found.items()}
        if max(after.values()) > max(before.values()):
            raise DemoError(f"a transaction was ordered without site {cut}: {before} → {after}")

    def _waits_for(self, site: str) -> bool:
        """Show which nodes a node waits for; False: none yet."""
        waiting = self.cluster.status(site)["waiting_for"]
        if waiting:
            self.result.awaited[site] = sorted({str(item["peer"]) for item in waiting})
            self.line(f"node {site} waits for {'; '.join(map(awaited_text, waiting))}")
        return bool(waiting)

    def heal(self) -> None:
        """Restore the links; all waiting transactions are ordered."""
        self.heading("The link is restored")
        started = monotonic()
        self.cluster.heal()
        with self.console.status("ordering the waiting transactions"):
            positions = self.cluster.wait_until_equal(_SETTLE_TIMEOUT_S)
        self.line(f"all queues end at {_by_site(positions)}, {monotonic() - started:.1f} s later")

    # -- a node is killed and rejoins -----------------------------------------------------------

    def kill(self, victim: str) -> None:
        """Kill a node while all sites commit; the others go on, and it rejoins.

        The victim's job then submits at other nodes.  A flight's changes depend on each other, so
        the job commits at `acquired`: when its node dies, another node has every transaction with
        a receipt, and orders it before what the job submits there.  Transactions that only the
        dead node had accepted would be ordered when it returns, after later ones.
        """
        cluster, part, halves = self.cluster, 2, 2 * self.parts
        others = [site for site in cluster.sites if site != victim]
        self.heading(
            "The nodes are restarted with [bold]eviction = auto[/bold], "
            f"suspect-timeout = {SUSPECT_TIMEOUT_S} s"
        )
        with self.console.status("restarting"):
            cluster.restart_evicting()
        self.heading(
            f"Site {victim} commits at level [bold]acquired[/bold]; in the middle its node is "
            "killed (SIGKILL)"
        )
        self.commit({victim: (2 * part, halves, "acquired")})
        before = cluster.status(others[0])
        killed_at = monotonic()
        cluster.kill_node(victim)
        self.line(f"node {victim} is dead; all jobs go on, that of site {victim} elsewhere")
        work = dict.fromkeys(others, (part, self.parts, "ordered"))
        work[victim] = (2 * part + 1, halves, "ordered")

        def goes_on() -> bool:
            now = cluster.status(others[0])
            return bool(now["epoch"] > before["epoch"] and now["position"] > before["position"])

        with ThreadPoolExecutor(1, thread_name_prefix="demo-commit") as pool:
            committing = pool.submit(self.commit, work)
            cluster.wait_until(
                lambda: committing.done() or goes_on(),
                f"the others to go on without {victim}",
                _GO_ON_TIMEOUT_S,
            )
            self.result.evicted_s = monotonic() - killed_at
            committing.result()
        self.line(f"{self.result.evicted_s:.1f} s after the kill the next transaction was ordered")
        self._show_epochs(others)
        self._bring_back(victim)

    def _bring_back(self, victim: str) -> None:
        self.heading(f"Node {victim} is started again and rejoins")
        started, cluster = monotonic(), self.cluster
        cluster.start_node(victim)
        with self.console.status("rejoining"):
            cluster.wait_until(
                cluster.is_whole, f"node {victim} to be a member again", _RETURN_TIMEOUT_S
            )
        self.result.rejoined_s = monotonic() - started
        self.result.killed = victim
        self.line(f"{self.result.rejoined_s:.1f} s after the start")
        positions = cluster.wait_until_equal(_RETURN_TIMEOUT_S)
        self._show_epochs(cluster.sites)
        self.line(f"all queues end at {_by_site(positions)}")

    def _show_epochs(self, sites: list[str] | tuple[str, ...]) -> None:
        for site in sites:
            status = self.cluster.status(site)
            self.line(
                f"node {site}: epoch {status['epoch']}, members {' '.join(status['members'])}, "
                f"on duty {status['duty']}"
            )

    # -- the end --------------------------------------------------------------------------------

    def commit_the_rest(self) -> None:
        """All sites commit the last part."""
        self.heading("All sites commit the rest at level [bold]ordered[/bold]")
        if self.off_site:
            self.off_site.kill()
            names = " and ".join(self.result.killed_off_site)
            self.line(f"meanwhile {names} is killed (SIGKILL); nobody waits for it")
        self._commit_part(self.parts - 1, dict.fromkeys(self.cluster.sites, "ordered"))
        self.result.positions = self.cluster.wait_until_equal(_SETTLE_TIMEOUT_S)
        if self.off_site:
            self.off_site.bring_back()
        self.result.epochs = {
            site: int(self.cluster.status(site)["epoch"]) for site in self.cluster.sites
        }

    def _commit_part(self, part: int, levels: dict[str, str]) -> dict[str, int]:
        return self.commit({site: (part, self.parts, level) for site, level in levels.items()})

    def commit(self, work: dict[str, tuple[int, int, str]]) -> dict[str, int]:
        """Let sites commit at the same time; return how many transactions each committed.

        Args:
            work: Site → which part of how many of its change stream, and at which level.
        """
        commands: dict[str, dict[str, Any]] = {
            site: {"part": part, "parts": parts, "level": level}
            for site, (part, parts, level) in work.items()
        }
        with self.console.status("committing"):
            answers = self.sites.ask_all("commit", commands)
        self._count(answers)
        for site, answer in answers.items():
            self.line(
                f"site {site}: {answer['transactions']:,} transactions, {answer['rows']:,} rows, "
                f"{answer['seconds']:.1f} s"
            )
        return {site: int(answer["transactions"]) for site, answer in answers.items()}

    def _count(self, answers: dict[str, dict[str, Any]]) -> None:
        for site, answer in answers.items():
            self.result.transactions[site] += answer["transactions"]
            self.result.rows[site] += answer["rows"]
            self.result.commit_seconds[site] += answer["seconds"]

    def kill_worker(self, victim: str) -> None:
        """Kill a site's worker after a commit that its state lacks yet, and start it again."""
        self.heading(
            f"The worker of site {victim} is killed in the middle of a batch (SIGKILL), and "
            "started again"
        )
        cluster, sites = self.cluster, self.sites
        end = self.result.positions[victim]
        lake = cluster.store_at(cluster.lake(victim))
        with ThreadPoolExecutor(1, thread_name_prefix="demo-apply") as pool:
            applying = pool.submit(sites.ask, victim, "apply", at_least=end)
            with self.console.status("applying"):
                cluster.wait_until(
                    lambda: applying.done() or commits_of_batch(lake) > 0,
                    f"site {victim} to apply a batch",
                    _GO_ON_TIMEOUT_S,
                )
            sites.kill(victim)
        self.result.killed_worker = victim
        commits = commits_of_batch(lake)
        self.line(
            f"Delta commits of table {_WATCHED} that the worker had not noted yet: {commits}; it "
            "must not make them again"
            if commits
            else "it was between two batches: it had noted all that it did"
        )
        sites.restart(victim)

    def apply(self) -> None:
        """Bring all replicas to the end of the queue, then recount them."""
        self.heading("Workers apply the queue to the Delta tables of each site")
        result = self.result
        commands = {site: {"at_least": end} for site, end in result.positions.items()}
        with self.console.status("applying"):
            answers = self.sites.ask_all("apply", commands)
        for site, answer in answers.items():
            result.applied[site] = answer["position"]
            result.apply_seconds[site] = answer["seconds"]
            if self.cluster.bucket is not None:
                asked = {"node": self.cluster.bucket_requests(site), "worker": answer["requests"]}
                result.bucket_requests[site] = asked
            self.line(
                f"site {site}: position {answer['position']:,} in {answer['batches']} batches, "
                f"{answer['seconds']:.1f} s {answer['verdict']} "
                + "; ".join(answer["diverged"].values())
            )
        self.heading("Signatures are recounted by full scan")
        with self.console.status("scanning"):
            counted = self.sites.ask_all("verify")
        result.signatures = {site: found["signatures"] for site, found in counted.items()}
        for site, found in counted.items():
            for finding in found["unsound"]:
                self.line(f"site {site}: {finding}")

    def compare(self) -> None:
        """Compare with plain Spark over the source, which never saw the log."""
        self.heading("The tables are compared with plain Spark over the source")
        first = self.cluster.sites[0]
        with self.console.status("comparing"):
            found = self.sites.ask(
                first,
                "compare",
                lakes={site: self.cluster.lake(site) for site in self.cluster.sites},
                queue=f"{self.cluster.info(first)['log_root']}/synchronized_queue",
                source=str(self.directory / "nycflights13"),
            )
        result = self.result
        result.differences = found["differences"]
        result.expected_rows = found["rows"]
        result.keys_written_by_several_sites = found["shared_keys"]
        result.received_bytes = self.cluster.received_bytes()
        result.files_shared_between_sites = self.cluster.shared_files()
        self.line(
            f"{result.keys_written_by_several_sites:,} aircraft were written by several sites; "
            f"{result.files_shared_between_sites} files are shared between sites"
        )


def commits_of_batch(lake: Store) -> int:
    """Return how many commits of an unfinished batch a table has, which the state lacks."""
    try:
        state = decoded_state(lake.read(STATE), lake.url_of(STATE))
    except ObjectMissingError:
        return 0
    if state.pending is None:
        return 0
    known = state.tables.get(_WATCHED)
    # Version 0 has no rows.
    newest = newest_commit(PartOfStore(lake, _WATCHED))
    return max(0, newest - (known.version if known else 0))


def _by_site(numbers: dict[str, int]) -> str:
    return ", ".join(f"{site} {number:,}" for site, number in sorted(numbers.items()))


def run_demo(
    *,
    sites: tuple[str, ...],
    scale: float,
    keep: bool,
    directory: Path | None,
    as_json: bool,
    kill: str | None,
    kill_worker: str | None,
    in_buckets: bool,
    followers: int = 0,
    feed: Path | None = None,
) -> bool:
    """Run the demo; return whether all sites are equal and no row differs from the source.

    Args:
        sites: Those that write; two have a third node that only votes.
        scale: Part of the year 2013, 0 … 1.
        keep: Leave the nodes running.
        directory: Parent of the sites' directories; None = a new temporary one.
        as_json: Print a line of JSON at the end, and all else to stderr.
        kill: Site whose node is killed and started again.
        kill_worker: Site whose worker is killed in the middle of a batch and started again.
        in_buckets: The sites' tables lie in a bucket of this machine.
        followers: How many nodes follow: the first one the sites, each other one that before it.
        feed: Directory of a feed of the log, None = there is none.

    Raises:
        DemoError: A process failed; the hint names its log.
        MissingDependencyError: There is no store of buckets (definite).
    """

    def made(root: Path, console: Console) -> Story:
        return Story(
            root,
            console,
            sites=sites,
            scale=scale,
            kill=kill,
            kill_worker=kill_worker,
            in_buckets=in_buckets,
            followers=followers,
            feed=feed,
        )

    return run_story(made, keep=keep, directory=directory, as_json=as_json)
