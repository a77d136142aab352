"""The demo's kill: a node dies in the middle of its work, the others go on, and it comes back.

The site's job goes on too: it has the other nodes' addresses and submits there.  A flight's changes
build upon each other, so the job commits at `acquired`: what it was told of is at another node when
its own dies, and is ordered before what it submits there.  Transactions that only the dead node had
accepted would be ordered when it returns, behind later ones.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from sparktxlog.cli.demo.demo_nodes import SUSPECT_TIMEOUT_S, Cluster

if TYPE_CHECKING:
    from sparktxlog.cli.demo.story import Story

_GO_ON_TIMEOUT_S = 120.0
_RETURN_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """What a node showed at the moment of the kill."""

    epoch: int
    position: int


class Killing:
    """One node is killed while all sites commit.

    Args:
        story: Where the rest is told.
        victim: The site whose node dies.
        part: The part of the change stream that is committed meanwhile.
        parts: In how many parts the change stream is committed.
    """

    def __init__(self, story: Story, victim: str, part: int, parts: int) -> None:
        self._story = story
        self._cluster: Cluster = story.cluster
        self._victim = victim
        self._part = part
        self._parts = parts
        self._others = [site for site in self._cluster.sites if site != victim]

    def run(self) -> None:
        """Kill, show that the others go on, start again, show that all is as before."""
        story, cluster, victim = self._story, self._cluster, self._victim
        reporter = story.reporter
        reporter.heading(
            "The nodes are restarted with [bold]eviction = auto[/bold], "
            f"suspect-timeout = {SUSPECT_TIMEOUT_S} s"
        )
        with reporter.waiting("restarting"):
            cluster.restart_evicting()
        reporter.heading(
            f"Site {victim} commits at level [bold]acquired[/bold]; in the middle its node is "
            "killed (SIGKILL)"
        )
        story.commit({victim: (2 * self._part, 2 * self._parts, "acquired")})
        status = cluster.status(self._others[0])
        mark = _Mark(epoch=int(status["epoch"]), position=int(status["position"]))
        killed_at = monotonic()
        cluster.kill_node(victim)
        reporter.line(f"node {victim} is dead; all jobs go on, that of site {victim} elsewhere")
        self._go_on(mark, killed_at)
        self._come_back()

    def _go_on(self, mark: _Mark, killed_at: float) -> None:
        """Commit at all sites, and note when the first is ordered without the victim."""
        story = self._story
        work = dict.fromkeys(self._others, (self._part, self._parts, "ordered"))
        work[self._victim] = (2 * self._part + 1, 2 * self._parts, "ordered")
        with ThreadPoolExecutor(1, thread_name_prefix="demo-commit") as pool:
            committing = pool.submit(story.commit, work)
            self._cluster.wait_until(
                lambda: committing.done() or self._is_ordered_behind(mark),
                f"the others to go on without {self._victim}",
                _GO_ON_TIMEOUT_S,
            )
            story.result.evicted_s = monotonic() - killed_at
            committing.result()
        story.reporter.line(
            f"{story.result.evicted_s:.1f} s after the kill the next transaction was ordered"
        )
        self._show_views(self._others)

    def _is_ordered_behind(self, mark: _Mark) -> bool:
        status = self._cluster.status(self._others[0])
        return int(status["epoch"]) > mark.epoch and int(status["position"]) > mark.position

    def _show_views(self, sites: list[str]) -> None:
        for site in sites:
            status = self._cluster.status(site)
            self._story.reporter.line(
                f"node {site}: epoch {status['epoch']}, members {' '.join(status['members'])}, "
                f"on duty {status['duty']}"
            )

    def _come_back(self) -> None:
        story, cluster, victim = self._story, self._cluster, self._victim
        story.reporter.heading(f"Node {victim} is started again, and rejoins by itself")
        started = monotonic()
        cluster.start_node(victim)
        with story.reporter.waiting("rejoining"):
            cluster.wait_until(
                cluster.is_whole, f"node {victim} to be a member again", _RETURN_TIMEOUT_S
            )
        story.result.rejoined_s = monotonic() - started
        story.result.killed = victim
        story.reporter.line(f"{story.result.rejoined_s:.1f} s after the start")
        positions = cluster.wait_until_equal(_RETURN_TIMEOUT_S)
        self._show_views(list(cluster.sites))
        shown = ", ".join(f"{site} {end:,}" for site, end in sorted(positions.items()))
        story.reporter.line(f"all queues stand at {shown}")
