"""Feeds, images and removals in a random order, each killed at some write: what stays is whole.

The log, its node and its files are small stand-ins; what feeds, restores and removes is real.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.support.feed_pages import IDENTITY, ORDERED_US, SmallLog
from tests.support.image_lake import Lake

from sparktxlog.codec.run_chain import KeptRun
from sparktxlog.errors import ExpiredError, NotFoundError
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.worker.backup.imaging import back_up_replica
from sparktxlog.worker.feed import shipping
from sparktxlog.worker.feed.feed_checks import check_feed
from sparktxlog.worker.feed.feed_points import route_to, target_of
from sparktxlog.worker.feed.feed_pruning import Retention, prune
from sparktxlog.worker.feed.feed_store import FeedStore
from sparktxlog.worker.feed.shipping import feed
from sparktxlog.worker.replica.source import LogTail, NodeInfo

_DAY_US, _RUN_US = 86_400_000_000, 1_000_000


class KilledError(BaseException):
    """Stands for SIGKILL: nothing between may handle it."""


class Source:
    """Answers as a node that has published a log; the present one of `SmallLog`."""

    log: SmallLog
    kept_after = 0
    url = "http://node"

    def __init__(self, _: str) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        """End it."""

    def info(self) -> NodeInfo:
        """Return what a worker knows first."""
        end = self.log.end.position
        return NodeInfo(
            node_id="A",
            log_id="l",
            payload_root=str(self.log.payloads),
            lake_root="/nowhere",
            signature_interval=1,
            position=end,
            published=end,
        )

    def segments(self, after: int, *, wait_s: float, limit: int, whole: bool) -> LogTail:
        """Return what follows a position."""
        assert whole, "a feed has all rows, or it says so"
        if after < self.kept_after:
            raise ExpiredError("gone")
        found = [one for page in self.log.pages for one in page.segments if one.last > after]
        end = self.log.end.position
        return LogTail(position=end, log_id="l", epoch=1, segments=tuple(found[:limit]))

    def document(self, path: str, **query: Any) -> Any:
        """Answer a question."""
        end = self.log.end.position
        if path == "/v1/info":
            return {
                "cluster": "c",
                "kept_after": self.kept_after,
                "phase": "NORMAL",
                "restricted": None,
                "position": end,
            }
        if path == "/v1/queue":
            return [one for one in self._runs() if one["position"] > query["after"]]
        if path == "/v1/signatures":
            return {"node_id": "A", "replicas": [], "signatures": []}
        assert path == "/v1/worker/commits"
        return {"upto": query["upto"], "versions": [], "tables": []}

    def _runs(self) -> Iterator[dict[str, Any]]:
        position = 1
        for page in self.log.pages:
            for run in page.runs:
                yield {name: getattr(run, name) for name in KeptRun.__dataclass_fields__} | {
                    "position": position
                }
                position += run.n


class Story:
    """One history of a feed; all by chance from the seed."""

    def __init__(self, seed: int, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random, self.root, self._patch = Random(seed), root, monkeypatch
        (root / "payloads").mkdir()
        self.log = Source.log = SmallLog(root / "payloads")
        Source.kept_after = 0
        self.place = FeedStore(root / "feed")
        self.images = 0
        self.kills = 0

    # -- what happens ------------------------------------------------------------------------------

    def grow(self) -> None:
        """Order some runs."""
        for _ in range(self.random.randrange(1, 4)):
            self.log.page(self.random.randrange(1, 4))

    def ship(self) -> None:
        """Feed what is there; it may be killed."""
        with self._killed():
            feed(self.place, ["http://node"], threading.Event(), once=True)

    def back_up(self) -> None:
        """Make an image at the end of a page, or of what was ordered."""
        if not self.log.pages:
            return
        page = self.random.choice(self.log.pages[-6:])
        self.images += 1
        lake = Lake(self.root / f"lake {self.images}")
        lake.append((1, "x"))
        lake.position = page.last - 1
        lake.record(chain_hash=page.to_hash)
        back_up_replica(lake.path, self.place.images, name=f"i{self.images}")

    def shorten(self) -> None:
        """Let the node forget the beginning of its log."""
        if self.log.pages:
            Source.kept_after = max(Source.kept_after, self.random.choice(self.log.pages).last)

    def remove(self) -> None:
        """Remove the beginning of the feed; what is younger can be restored as before."""
        if self.place.store.find("feed.json") is None:
            return
        before = self.restorable()
        runs = self.log.end.position // 3
        wanted = self.random.randrange(0, runs + 2)
        now_us = ORDERED_US + runs * _RUN_US + _DAY_US
        days = 1 + wanted * _RUN_US / _DAY_US
        try:
            with self._killed(), self.place.writing() as writer:
                prune(self.place, writer, Retention(days=days), now_us)
        finally:
            limit = 3 * max(0, runs - wanted)
            lost = {one for one in before - self.restorable() if one > limit + 3}
            assert not lost, (lost, limit)

    @contextmanager
    def _killed(self) -> Iterator[None]:
        """Kill the process before, or after, one of its next writes; often it ends before."""
        left = self.random.randrange(1, 12)
        after = self.random.random() < 0.5
        with self._patch.context() as patched:
            for name in ("create", "replace", "remove"):
                patched.setattr(DiskStore, name, self._counted(getattr(DiskStore, name), after))
            self._left = left
            try:
                yield
            except KilledError:
                self.kills += 1
            except ExpiredError:  # a new image has to come
                pass

    def _counted(self, work: Callable[..., Any], after: bool) -> Callable[..., Any]:
        def write(*arguments: Any, **more: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not after:
                raise KilledError
            done = work(*arguments, **more)
            if self._left == 0:
                raise KilledError
            return done

        return write

    # -- what must hold ----------------------------------------------------------------------------

    def restorable(self) -> set[int]:
        """Return the ends of runs that an image, or the beginning, leads to."""
        found = set()
        for page in self.log.pages:
            for end in page.ends:
                try:
                    target = target_of(self.place, str(end.position))
                    route = route_to(self.place, target)
                except NotFoundError:
                    continue
                at = route.begins_after
                for one in self.place.pages(at):
                    at = one.last
                if at >= end.position:
                    found.add(end.position)
                    assert target.chain_hash == end.chain_hash
        return found

    def check(self) -> None:
        """See that nothing of the feed is damaged, and that its end can be restored."""
        if self.place.store.find("feed.json") is None:
            return
        assert check_feed(self.place).damaged == []
        last = self.place.last_page()
        if last is not None:
            assert last.last in self.restorable()


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 12))]
)
def test_what_stays_of_a_feed_is_whole(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "HttpLogSource", Source)
    monkeypatch.setattr(shipping, "_SEGMENTS", 2)  # small pages
    story = Story(seed, tmp_path, monkeypatch)
    kinds = [story.grow, story.ship, story.ship, story.back_up, story.shorten, story.remove]
    weights = [6, 4, 4, 4, 0.4, 4]
    for _ in range(30):
        story.random.choices(kinds, weights)[0]()
        story.check()
    story.grow()
    story.back_up()
    feed(story.place, ["http://node"], threading.Event(), once=True)
    story.check()
    last = story.place.last_page()
    assert last is not None and last.last == story.log.end.position
    assert last.log_id == IDENTITY.log_id


def test_a_feed_that_goes_on_from_an_image_lacks_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log was shortened, an image leads over the hole, and nothing is ordered after it."""
    monkeypatch.setattr(shipping, "HttpLogSource", Source)
    story = Story(0, tmp_path, monkeypatch)

    def ship() -> None:
        feed(story.place, ["http://node"], threading.Event(), once=True)
        assert check_feed(story.place).damaged == []

    story.log.page(2)
    ship()
    fed = story.place.last_page()
    page = story.log.page(2)
    Source.kept_after = page.last
    lake = Lake(tmp_path / "lake")
    lake.append((1, "x"))
    lake.position = page.last - 1
    lake.record(chain_hash=page.to_hash)
    back_up_replica(lake.path, story.place.images, name="i1")
    ship()
    assert story.place.last_page() == fed
    story.log.page(1)
    ship()
    last = story.place.last_page()
    assert last is not None and (last.begins_at, last.last) == ("i1", story.log.end.position)
