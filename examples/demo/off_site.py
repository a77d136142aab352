"""Followers and a feed in the demo: both are killed meanwhile, and in the end all is compared.

The feed ends in a new cluster: its tables are restored, a node of another log adopts them.
"""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from examples.demo.children import Child
from examples.demo.demo_nodes import Cluster, free_ports
from examples.demo.demo_report import DemoResult
from examples.demo.sites import Sites

from sparktxlog.worker.feed.feed_store import FeedStore

if TYPE_CHECKING:
    from collections.abc import Callable

#: Names of the child processes, in messages.
FEED, RESTORED = "feed", "R"
_CATCH_UP_S = 180.0


class OffSite:
    """What is outside of the sites: followers of the cluster, and a feed.

    Args:
        place: Directory of the feed, None = there is none.
        result: Gets what is found.
        line: Prints a detail.
    """

    def __init__(
        self,
        cluster: Cluster,
        sites: Sites,
        place: Path | None,
        result: DemoResult,
        line: Callable[[str], None],
    ) -> None:
        self._cluster, self._sites, self._place = cluster, sites, place
        self._result, self._line = result, line

    def __bool__(self) -> bool:
        return bool(self._cluster.followers) or self._place is not None

    def start(self) -> None:
        """Start the feed; followers start with the nodes."""
        if self._place is not None:
            self._place.mkdir(parents=True, exist_ok=True)
            urls = ",".join(map(self._cluster.url, self._cluster.sites))
            command = ["sparktxlog.cli", "feed", "run", "--to", str(self._place), "--url", urls]
            self._cluster.children[FEED] = Child(
                "the feed", self._cluster.directory / "feed.log", command
            )

    def kill(self) -> None:
        """Kill the feed and the first follower, which others may follow, with SIGKILL."""
        killed = [*self._cluster.followers[:1], *([FEED] if self._place is not None else [])]
        for name in killed:
            self._cluster.kill_node(name)
        self._result.killed_off_site = killed

    def bring_back(self) -> None:
        """Start again what was killed; each goes on where it was."""
        for name in self._cluster.followers[:1]:
            self._cluster.start_node(name)
        self.start()

    def compare(self) -> None:
        """Bring followers to the end and apply there; restore the feed into a new cluster."""
        end = max(self._result.positions.values())
        for name in self._cluster.followers:
            self._follow(name, end)
        if self._place is not None:
            self._restore(FeedStore(self._place), end)

    def _follow(self, name: str, end: int) -> None:
        """Wait until a follower is at the end, and apply and recount its own tables."""
        cluster, first = self._cluster, self._cluster.sites[0]

        def is_there() -> bool:
            found = cluster.status(name)
            return bool(found["position"] == found["published"] == end)

        cluster.wait_until(is_there, f"follower {name} to be at the end", _CATCH_UP_S)
        hashes = {cluster.status(one)["chain_hash"] for one in (first, name)}
        url = cluster.url(name)
        self._sites.ask(first, "apply", at_least=end, url=url)
        found = self._sites.ask(first, "verify", url=url)
        self._result.followers[name] = {
            "position": end,
            "upstream": cluster.status(name)["following"]["upstream"],
            "queue_equal": len(hashes) == 1,
            "signatures": found["signatures"],
            "unsound": found["unsound"],
        }
        self._line(f"follower {name}: position {end:,}, {len(found['signatures'])} tables")

    def _restore(self, feed: FeedStore, end: int) -> None:
        cluster, first = self._cluster, self._cluster.sites[0]

        def is_whole() -> bool:
            page = feed.last_page()
            return page is not None and page.last >= end

        started = monotonic()
        cluster.wait_until(is_whole, "the feed to have all", _CATCH_UP_S)
        waited_s = monotonic() - started
        cluster.children.pop(FEED).stop()
        url = self._new_cluster()
        lake = cluster.directory / "restored" / "from-feed"
        found = self._sites.ask(first, "restore", feed=feed.url, lake=str(lake), url=url)
        self._result.feed = {
            "place": feed.url,
            "position": end,
            "pages": len(feed.firsts()),
            "behind_s": round(waited_s, 1),
            "restore_s": round(found["seconds"], 1),
            "proven_at": found["proven_at"],
            "log_id": found["log_id"],
            "signatures": found["signatures"],
        }
        self._line(
            f"feed: {self._result.feed['pages']} pages up to position {end:,}, restored in "
            f"{found['seconds']:.1f} s; a new cluster {found['log_id']} has the tables"
        )

    def _new_cluster(self) -> str:
        """Start a node of a log of its own; return its URL."""
        (port,) = free_ports(1)
        url, root = f"http://127.0.0.1:{port}", self._cluster.directory / "restored"
        config = root / "node.toml"
        root.mkdir()
        config.write_text(
            f'node-id = "{RESTORED}"\nmaster-url = "{url}"\ncluster = "restored"\n'
            f"data-dir = {json.dumps(str(root / 'site'))}\n"
        )
        self._cluster.ports[RESTORED] = port
        command = ["sparktxlog.cli", "serve", "--config", str(config)]
        self._cluster.children[RESTORED] = Child("the new node", root / "node.log", command)
        self._cluster.wait_until(
            lambda: self._cluster.answers(RESTORED), "the new node to answer", _CATCH_UP_S
        )
        return url
