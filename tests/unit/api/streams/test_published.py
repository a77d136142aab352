"""The planner's view of a node: whose offsets it takes, and what it does if the node is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.segments import segment

from sparktxlog.api.streams.positions import LogOffset
from sparktxlog.api.streams.published import StreamedLog
from sparktxlog.errors import (
    ExpiredError,
    ForeignLogError,
    PositionNotReachedError,
    UnreachableError,
)


class Site:
    """A node with ten published positions, in segments of some length."""

    def __init__(self, name: str, root: Path, *, length: int = 5) -> None:
        self.url = f"http://{name}:7070"
        self.name, self.root, self.length = name, root, length
        self.log_id, self.ancestors = "log-2", ["log-1"]
        self.published, self.kept_after = 10, 0
        self.is_down = False

    def get(self, path: str, **query: Any) -> Any:
        if self.is_down:
            raise UnreachableError(f"no node answers at {self.url}")
        match path:
            case "/v1/info":
                return {
                    "node_id": self.name,
                    "log_id": self.log_id,
                    "published": self.published,
                    "kept_after": self.kept_after,
                    "payload_root": str(self.root),
                    "log_root": str(self.root / "log"),
                }
            case "/v1/published":
                return {"position": self.published}
            case "/v1/epochs":
                return {"ancestors": [{"log_id": name, "epoch": 1} for name in self.ancestors]}
        assert path == "/v1/worker/segments"
        return self._segments(query["after"])

    def _segments(self, after: int) -> dict[str, Any]:
        if after < self.kept_after:
            raise ExpiredError(f"the log begins after position {self.kept_after}")
        ends = [*range(self.length, self.published, self.length), self.published]
        pieces = zip([0, *ends], ends, strict=False)
        found = [segment(first + 1, last) for first, last in pieces if last > after]
        # Two at a time, so that a range takes several pages.
        return {"position": self.published, "log_id": self.log_id, "epoch": 1} | {
            "segments": found[:2]
        }


class Log(StreamedLog):
    """Sites in their order, the first one that answers is chosen; run ends are those of fives."""

    def __init__(self, *sites: Site, timeout_s: float = 0.0) -> None:
        super().__init__({"url": "http://nowhere:1"}, timeout_s)
        self.sites = sites

    def _node(self) -> Any:
        if self._home is None:
            for site in self.sites:
                if not site.is_down:
                    self._home = (site, site.get("/v1/info"))  # type: ignore[assignment]
                    self._known.clear()
                    break
            else:
                raise UnreachableError("no node answers")
        return self._home

    def queue_files(self, after: int, upto: int) -> list[str]:
        return []  # the queue table has lost what is before the log's first position


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site("A", tmp_path)


def test_offsets_of_this_log_are_taken(site: Site) -> None:
    log = Log(site)
    made = log.offset(5)
    assert made == LogOffset("log-2", 5, "h5")
    log.check(made)
    Log(site).check(made)
    Log(site).check(LogOffset("log-1", 5, "h5"))  # before `force`, both branches had it
    Log(site).check(LogOffset("log-2", 3, "h5"))  # inside a segment that is no row any more
    Log(site).check(LogOffset("log-1", 0, ""))


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        (LogOffset("other", 5, "h5"), "another log"),
        (LogOffset("other", 0, ""), "another log"),
        (LogOffset("log-2", 5, "x5"), "another branch"),
        (LogOffset("log-1", 5, "x5"), "another branch"),
        # What cannot be compared is taken of this log only, not of one that it left.
        (LogOffset("log-1", 3, "h3"), "another branch"),
    ],
)
def test_offsets_of_other_logs_are_refused(site: Site, offset: LogOffset, words: str) -> None:
    with pytest.raises(ForeignLogError, match=words):
        Log(site).check(offset)


def test_a_site_that_lags_behind_the_stream_is_waited_for(site: Site) -> None:
    with pytest.raises(PositionNotReachedError, match="up to position 11, A has published up to"):
        Log(site).check(LogOffset("log-2", 11, "h11"))
    with pytest.raises(PositionNotReachedError):
        Log(site).whole(0, 11)  # no gap, whoever asks


def test_a_pruned_beginning_says_how_to_go_on(site: Site) -> None:
    site.kept_after = 5
    log = Log(site)
    assert log.offset(5).chain_hash == "h5"
    with pytest.raises(ExpiredError, match="startingPosition"):
        log.whole(2, 10)


def test_a_range_is_read_as_one_node_cut_it(tmp_path: Path) -> None:
    a, b = Site("A", tmp_path, length=2), Site("B", tmp_path, length=3)
    log = Log(a, b, timeout_s=5)
    pages = log.segments(0, 10)
    assert [next(pages).last for _ in range(2)] == [2, 4]
    known = log.offset(4)
    assert known in log._known
    a.is_down = True
    assert [piece.last for piece in pages] == [6, 9, 10]  # those of B overlap those of A
    assert known not in log._known  # B is asked itself
    a.is_down, log._home = False, None
    whole = log.whole

    def lost(after: int) -> Any:
        a.is_down = after > 0 or a.is_down
        return StreamedLog._tail(log, after)

    log._tail = lost  # type: ignore[method-assign]
    assert [piece.last for piece in whole(0, 10)] == [3, 6, 9, 10]


def test_a_lost_last_node_is_an_error(site: Site) -> None:
    site.is_down = True
    with pytest.raises(UnreachableError):
        Log(site).info()
