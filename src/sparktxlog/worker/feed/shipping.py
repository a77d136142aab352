"""Follows a node, and stores what it publishes in a feed.

    segments (long poll) → headers of their runs → versions of commit tables → files → page

Files first, then the page that names them.  A page is small enough to be in memory: its files are
not, they go from the site's store to the feed's.  What was killed goes on after the last page, and
files that are there already cost a look.  If a node is away, the next one of those that were named
is asked; each must show the chain hash with which the feed ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from time import monotonic, time_ns

import msgspec

from sparktxlog.codec.run_chain import FIRST_HASH, KeptRun, RunEnd
from sparktxlog.errors import (
    ApplyError,
    DivergedError,
    ExpiredError,
    NotHeldHereError,
    RemoteProtocolError,
    TxLogError,
)
from sparktxlog.model.replicas import MAIN
from sparktxlog.model.report import ReplicaVerdict
from sparktxlog.model.tables.table_versions import NamedTable, OrderedVersion, OrderedVersions
from sparktxlog.storage.interfaces import Segment
from sparktxlog.worker.feed.feed_page import LOG_BEGINNING, FeedPage, ReportedSignatures
from sparktxlog.worker.feed.feed_store import FeedIdentity, FeedStore, FeedWriter, Seen
from sparktxlog.worker.feed.shipped_files import SiteFiles, ship_files
from sparktxlog.worker.lakes.site_roots import check_apart, roots_of
from sparktxlog.worker.replica.source import HttpLogSource, LogTail

_logger = logging.getLogger(__name__)

#: Seconds that a node may wait before it says that nothing is new.
POLL_S = 5.0
#: Least seconds between two pages; shortest and longest pause after a failure.
_BETWEEN_S, _PAUSE_S, _LONGEST_PAUSE_S = 1.0, 1.0, 15.0
#: What a page has at most, unless its only segment has more: segments, positions, bytes of files.
_SEGMENTS, _POSITIONS, _BYTES = 500, 50_000, 1 << 30
#: Runs, and versions, that are asked for at once.
_LISTED = 1_000
#: Reports that are asked for at once; one more or less proves nothing less.
_REPORTS = 100
#: Phases of a node without which nothing is ordered.
_ORDERS = ("NORMAL", "SUSPECT")
#: Seconds that a file may take to be where the node says: a commit table is placed meanwhile.
_PLACED_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedProgress:
    """What a run of a feed did, for people and programs."""

    #: Up to where the feed is whole, and what the node had published.
    position: int
    published: int
    node_id: str
    pages: int = 0
    transactions: int = 0
    #: Of the files that its pages name.
    size_bytes: int = 0


def feed(
    place: FeedStore,
    urls: Sequence[str],
    stop: threading.Event,
    *,
    once: bool = False,
    tell: Callable[[FeedProgress], None] = lambda progress: None,
    upkeep: Callable[[FeedWriter], None] = lambda writer: None,
) -> FeedProgress:
    """Store the log of a cluster until `stop` is set, or what is ordered now.

    Args:
        urls: Nodes of one cluster, the first one that answers is asked.
        once: End when the feed has what is ordered at the node when it is asked first; a failure
            of all nodes ends it, too.
        tell: Called after each page, and whenever the node was asked and had nothing new.
        upkeep: Called between two pages, such as `FeedUpkeep`.

    Raises:
        ExpiredError: The log between the end of the feed, or any image, and what a node keeps is
            gone (definite: the feed is as it was).
        ForeignLogError, DivergedError: The node has another log or history (definite).
        InvalidRequestError: The place is among the site's files, or not empty (definite).
        LockedError: Another process feeds there (definite).
        TxLogError: As the node and `FeedStore`.  What may be temporary is tried again, unless
            `once`, or no node has answered yet: then the names may be wrong.
    """
    pause_s, failed = _PAUSE_S, 0
    done = FeedProgress(position=0, published=0, node_id="")
    with place.writing() as writer:
        while True:
            url = urls[failed % len(urls)]
            try:
                with closing(HttpLogSource(url)) as source:
                    shipper = _Shipper(place, writer, source, done, tell)
                    shipper.upkeep = upkeep
                    try:
                        return shipper.run(stop, once=once)
                    finally:
                        if shipper.done.pages > done.pages:
                            failed, pause_s = failed % len(urls), _PAUSE_S
                        done = shipper.done
            except (TxLogError, OSError) as error:
                failed += 1
                gives_up = (once or not done.node_id) and failed >= len(urls)
                if stop.is_set() or gives_up or not _may_go_on(error):
                    raise
                _logger.warning("the feed from %s is tried again: %s", url, error)
            if failed % len(urls) == 0:
                stop.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _may_go_on(error: TxLogError | OSError) -> bool:
    """Return whether a failure may be over when the next node is asked, or this one again."""
    return isinstance(error, OSError) or error.retryable


class _Shipper:
    """One node, as long as it answers.

    Args:
        done: What was done before.
    """

    def __init__(
        self,
        place: FeedStore,
        writer: FeedWriter,
        source: HttpLogSource,
        done: FeedProgress,
        tell: Callable[[FeedProgress], None],
    ) -> None:
        self._place, self._writer, self._source = place, writer, source
        self.done, self._tell = done, tell
        self.upkeep: Callable[[FeedWriter], None] = lambda writer: None
        self._info = info = source.info()
        shown = source.document("/v1/info")
        check_apart(place.url, roots_of(shown), what="the feed")
        self._files = SiteFiles(info, source)
        writer.begin(FeedIdentity(log_id=info.log_id, cluster=str(shown["cluster"])))
        self._begins_at, self._end = self._where(int(shown["kept_after"]))
        #: The position of the last report that a page has, or will not have.
        self._reported = max(0, self._end.position - _POSITIONS)

    def run(self, stop: threading.Event, *, once: bool) -> FeedProgress:
        """Ship until `stop`, or what is ordered when it begins; errors as `feed`."""
        target = self._info.position if once else None
        self._say(self._info.published)
        while not stop.is_set():
            if target is not None and self._end.position >= target:
                break
            began = monotonic()
            self.upkeep(self._writer)
            tail = self._next_tail()
            if not tail.segments:
                self._say(tail.position)
                continue
            self._ship(tail)
            self._say(tail.position)
            if tail.position <= self._end.position and not once:
                stop.wait(_BETWEEN_S - (monotonic() - began))
        return self.done

    def _next_tail(self) -> LogTail:
        try:
            return self._segments()
        except ExpiredError:
            # It was shortened meanwhile: then an image must lead on.
            kept_after = int(self._source.document("/v1/info")["kept_after"])
            self._begins_at, self._end = self._where(kept_after)
            return self._segments()

    def _segments(self) -> LogTail:
        """Return what follows; a feed has the rows of all groups, or none at all (P41).

        Raises:
            NotHeldHereError: It names the sites that hold all, if there are any (definite).
        """
        at = self._end.position
        try:
            return self._source.segments(at, wait_s=POLL_S, limit=_SEGMENTS, whole=True)
        except NotHeldHereError as error:
            groups = self._source.document("/v1/groups")
            sites = [set(one["sites"]) for one in groups if one["tables"] or one["dropped"]]
            whole = sorted(set.intersection(*sites)) if sites else []
            error.hint = (
                f"A feed has the rows of all tables.  Feed it from a site that holds them: "
                f"{', '.join(whole)}."
                if whole
                else "A feed has the rows of all tables, and no site holds those of all groups: "
                "this log has no feed.  Back up each site, with `sparktxlog backup`."
            )
            raise

    def _say(self, published: int) -> None:
        position, node_id = self._end.position, self._info.node_id
        self.done = replace(self.done, position=position, published=published, node_id=node_id)
        at, is_end = now_us(), False
        if published == position:
            # One that is cut off does not know what the others order without it, and one without a
            # promise, such as a follower, never does.
            info = self._source.document("/v1/info")
            knows = info["phase"] in _ORDERS and info["restricted"] is None
            is_end = info["position"] == position and knows
        # A part that begins at an image has no page yet, so the feed has not reached its position.
        if self._begins_at in ("", LOG_BEGINNING):
            seen = Seen(
                at=at, node_id=node_id, position=position, published=published, is_end=is_end
            )
            self._writer.note(seen)
        self._tell(self.done)

    # -- where it begins, or goes on ---------------------------------------------------------------

    def _where(self, kept_after: int) -> tuple[str, RunEnd]:
        """Return where the next page begins a part, empty = it follows another one; and its place.

        Raises:
            ExpiredError: The log after the feed, and after all of its images, is gone (definite).
        """
        last = self._place.last_page()
        if last is not None and last.last >= kept_after:
            return "", last.end
        if last is None and kept_after == 0:
            return LOG_BEGINNING, RunEnd(position=0, chain_hash=FIRST_HASH, epoch=0)
        images = [
            image
            for image in self._place.bases()
            if kept_after <= image.position <= self._info.position
        ]
        if not images:
            raise self._hole(0 if last is None else last.last, kept_after)
        base = max(images, key=lambda image: (image.position, image.created_at))
        return base.name, RunEnd(
            position=base.position, chain_hash=base.chain_hash, epoch=base.epoch
        )

    def _hole(self, end: int, kept_after: int) -> ExpiredError:
        return ExpiredError(
            f"the log of node {self._info.node_id} begins after position {kept_after:,}, and the "
            f"feed in {self._place.url} ends at {end:,}: positions {end + 1:,} to {kept_after:,} "
            "would be a hole",
            hint=f"Back up a new image, from which the feed goes on: sparktxlog backup "
            f"{self._place.images.url} --url {self._source.url}",
            position=end,
            kept_after=kept_after,
        )

    # -- a page ------------------------------------------------------------------------------------

    def _ship(self, tail: LogTail) -> None:
        """Store the next page of what a node published.

        Raises:
            DivergedError: It does not continue the feed (definite: nothing was added).
        """
        if tail.log_id != self._info.log_id:
            self._writer.begin(FeedIdentity(log_id=tail.log_id, cluster=""))
        segments = _first_of(tail.segments, self._end.position)
        last = segments[-1].last
        runs = self._runs(last)
        versions, tables = self._commits(last)
        page = FeedPage(
            log_id=tail.log_id,
            first=self._end.position + 1,
            last=last,
            from_hash=self._end.chain_hash,
            to_hash=segments[-1].to_hash,
            epoch=segments[-1].epoch,
            begins_at=self._begins_at,
            node_id=self._info.node_id,
            made_at=now_us(),
            runs=runs,
            segments=segments,
            versions=versions,
            tables=tables,
            signatures=self._signatures(last),
        )
        if problem := page.problem():
            raise DivergedError(
                f"what node {self._info.node_id} has after position {self._end.position:,} does "
                f"not continue the feed in {self._place.url}: {problem}",
                hint="The node, or the image, is of another history of the log.  Feed a new place.",
                position=self._end.position,
            )
        size_bytes = self._ship_files(page)
        self._writer.add(page)
        self._begins_at, self._end = "", page.end
        if page.signatures:
            self._reported = page.signatures[-1].position
        self.done = replace(
            self.done,
            pages=self.done.pages + 1,
            transactions=self.done.transactions + page.last - page.first + 1,
            size_bytes=self.done.size_bytes + size_bytes,
        )

    def _signatures(self, last: int) -> tuple[ReportedSignatures, ...]:
        """Return what a worker of the site reported meanwhile, if it is in sync with all tables."""
        query = {"after": self._reported, "limit": _REPORTS}
        said = self._source.document("/v1/signatures", **query)
        whole = [
            one["name"]
            for one in said["replicas"]  # the main one first
            if one["verdict"] == ReplicaVerdict.IN_SYNC.value and not one["only"]
        ]
        if not whole:
            return ()
        if whole[0] != MAIN:
            said = self._source.document("/v1/signatures", **query, replica=whole[0])
        return tuple(
            ReportedSignatures(
                node_id=said["node_id"],
                position=one["position"],
                chain_hash=one["chain_hash"],
                tables=one["tables"],
            )
            for one in said["signatures"]
            if one["position"] <= last
        )

    def _ship_files(self, page: FeedPage) -> int:
        """Store the files of a page; one of a commit table may be placed only in a moment."""
        until = monotonic() + (_PLACED_S if page.versions else 0.0)
        while True:
            try:
                return ship_files(self._writer, self._files.of(page))
            except ApplyError:
                if monotonic() >= until:
                    raise
            self._source.closed.wait(_PAUSE_S)

    def _runs(self, last: int) -> tuple[KeptRun, ...]:
        """Return the runs after the feed's end up to a position that a run ends at."""
        found, position = list[KeptRun](), self._end.position
        while position < last:
            listed = self._source.document("/v1/queue", after=position, limit=_LISTED)
            if not listed:
                break
            for run in listed:
                if run["position"] > last:
                    return tuple(found)
                found.append(KeptRun.listed(run))
            position = listed[-1]["position"] + listed[-1]["n"] - 1
        return tuple(found)

    def _commits(self, last: int) -> tuple[tuple[OrderedVersion, ...], tuple[NamedTable, ...]]:
        """Return what the positions up to one did to commit tables."""
        versions, tables = list[OrderedVersion](), list[NamedTable]()
        position = self._end.position
        while position < last:
            answer = self._source.document(
                "/v1/worker/commits", after=position, upto=last, limit=_LISTED
            )
            found = msgspec.convert(answer, OrderedVersions)
            if found.upto <= position:
                raise RemoteProtocolError(
                    f"node {self._info.node_id} published up to {last:,}, and says nothing of "
                    f"commit tables after {position:,}",
                    hint="Node and feed must be of one release.",
                    position=position,
                )
            versions += found.versions
            tables += found.tables
            position = found.upto
        return tuple(versions), tuple(tables)


def _first_of(segments: Sequence[Segment], after: int) -> tuple[Segment, ...]:
    """Return as many of the first segments as a page takes, one at least."""
    found, size_bytes = list[Segment](), 0
    for segment in segments:
        size_bytes += segment.files_bytes
        if found and (size_bytes > _BYTES or segment.last - after > _POSITIONS):
            break
        found.append(segment)
    return tuple(found)


def now_us() -> int:
    """Return the wall clock, microseconds since 1970 UTC."""
    return time_ns() // 1000
