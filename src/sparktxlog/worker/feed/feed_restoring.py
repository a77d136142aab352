"""Row tables at a position, on an empty host: an image, then the log of the feed.

    image → lake → pages → files of some segments, staged → one batch of the ordinary applier → …

The applier does what a site's worker does, in larger batches: nobody compares sites here.  Each
batch is journaled in the lake, so a restore that was killed goes on there; and a lake that stands
at a position goes on to a later one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sparktxlog.codec.run_chain import RunEnd
from sparktxlog.errors import (
    ApplyError,
    DivergedError,
    NotFoundError,
)
from sparktxlog.files.fetch import Progress
from sparktxlog.model.ids import LARGEST
from sparktxlog.storage.interfaces import Segment
from sparktxlog.worker.apply.cutting import Cut
from sparktxlog.worker.apply.worker_session import applier_session
from sparktxlog.worker.backup.restoring import check_room, restore_replica
from sparktxlog.worker.feed.feed_lakes import restored_before
from sparktxlog.worker.feed.feed_page import ReportedSignatures
from sparktxlog.worker.feed.feed_points import FeedRoute, proof_of
from sparktxlog.worker.feed.feed_store import FeedStore
from sparktxlog.worker.feed.shipped_files import fetch_files
from sparktxlog.worker.replica.batch_watch import BatchWatch
from sparktxlog.worker.replica.bucket_replica import open_replica
from sparktxlog.worker.replica.driver_lock import lock_by_driver
from sparktxlog.worker.replica.local_replica import Replica
from sparktxlog.worker.replica.source import LogTail, NodeInfo
from sparktxlog.worker.replica.state import (
    ReplicaState,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What a batch has at most, unless its only segment has more.
_SEGMENTS, _POSITIONS, _BYTES = 2_000, 300_000, 4 << 30
#: Below the worker's own directory: files of the batch under way.
_STAGED = "feed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRestored:
    """What a restore did."""

    state: ReplicaState
    #: Transactions that were replayed, and in how many batches.
    transactions: int = 0
    batches: int = 0
    #: The position at which a site's signatures were compared, 0 = the feed has none near it.
    proven_at: int = 0


def restore_rows(
    spark: SparkSession,
    feed: FeedStore,
    route: FeedRoute,
    lake: str | Path,
    *,
    force_clean: bool = False,
    tell: Progress = lambda done, total: None,
    replayed: Callable[[int, int], None] = lambda position, end: None,
) -> FeedRestored:
    """Make the row tables of a position in a new lake, or bring a restored one there.

    Args:
        force_clean: Remove what an interrupted restore of an image left.
        tell: As in `restore_replica`, for the image.
        replayed: Called after each batch with its end and the end of the restore.

    Raises:
        InvalidRequestError: The lake is that of a site, stands after the position, or is not empty
            (definite).
        DivergedError: The feed does not continue the lake (definite).
        CorruptLogError: A page, or a file that one names, is missing or damaged.  The lake stands
            at an earlier position, at which its tables are whole.
        TxLogError: As `restore_replica`, and as a worker that cannot apply a batch.
    """
    state = restored_before(feed, route, lake)
    if state is None:
        check_room(lake, force_clean=force_clean)
        if route.image is not None:
            restore_replica(feed.images, route.image, lake, force_clean=force_clean, tell=tell)
    with (
        tempfile.TemporaryDirectory(prefix="sparktxlog-restore-") as here,
        closing(open_replica(lake, here)) as directory,
    ):
        directory.on_close(lock_by_driver(spark, directory.own / "lock.driver"))
        staged = directory.own / _STAGED
        info = NodeInfo(
            node_id="",
            log_id=feed.identity().log_id,
            payload_root=str(staged),
            lake_root=str(lake),
            signature_interval=LARGEST,
        )
        replica = Replica(applier_session(spark), directory, info, BatchWatch())
        proof, begin, batches = proof_of(feed, route.target), replica.state.position, 0
        pending, proven_at = replica.state.pending, 0
        stops = [route.target] if proof is None else [proof[0], route.target]
        if pending is not None:  # it ends where it was begun to end
            stops = [stop for stop in stops if stop.position >= pending.last]
        try:
            for stop in stops:
                replay = _Replay(feed, stop, replica, staged)
                while replica.state.position < stop.position:
                    replay.batch()
                    replayed(replica.state.position, route.target.position)
                batches += replay.batches
                if proof is not None and proof[1].position == replica.state.position:
                    _compare(replica.state, proof[1])
                    proven_at = replica.state.position
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    return FeedRestored(
        state=replica.state,
        transactions=replica.state.position - begin,
        batches=batches,
        proven_at=proven_at,
    )


def _compare(state: ReplicaState, proof: ReportedSignatures) -> None:
    """Compare a replica with what a site reported at its position.

    Raises:
        DivergedError: They differ.
    """
    if state.diverged:
        return  # a table that stands still is named by the result
    found = {name: table.signature.to_text() for name, table in state.tables.items()}
    for name in sorted({*found, *proof.tables}):
        ours, theirs = found.get(name, "no such table"), proof.tables.get(name, "no such table")
        if ours != theirs:
            raise DivergedError(
                f"at position {proof.position:,} the restored table {name!r} has the signature "
                f"{ours}, and site {proof.node_id} reported {theirs}",
                hint="Restore from another image (--image), or to an earlier position.",
                table=name,
                position=proof.position,
            )


class _Replay:
    """The pages after a replica's position, a batch at a time.

    Args:
        staged: Directory in which the files of a batch are staged.
    """

    def __init__(self, feed: FeedStore, target: RunEnd, replica: Replica, staged: Path) -> None:
        self._feed, self._target, self._replica, self._staged = feed, target, replica, staged
        self._segments = self._ahead()
        #: The segment that comes next, and those of the batch that was applied last.
        self._kept: Segment | None = None
        self.batches = 0

    def batch(self) -> None:
        """Apply the next batch; errors as `restore_rows`."""
        segments = self._window()
        tail = LogTail(
            position=segments[-1].last,
            log_id=self._feed.identity().log_id,
            epoch=segments[-1].epoch,
            segments=tuple(segments),
        )
        if segments[-1].last > self._target.position:
            tail = tail.cut_at(_cut_of(self._target))
        while self._replica.state.position < tail.position:
            self._apply(tail)
            rest = [one for one in tail.segments if one.last > self._replica.state.position]
            tail = replace(tail, segments=tuple(rest))
        shutil.rmtree(self._staged, ignore_errors=True)

    def _apply(self, tail: LogTail) -> None:
        state = self._replica.state
        if tail.segments[0].first <= state.position:
            # Nodes cut segments in other places: the replica stands inside of one.
            here = Cut(position=state.position, chain_hash=state.chain_hash, epoch=state.epoch)
            self._replica.state = replace(state, cut=here)
        try:
            self._replica.apply_batch(tail)
        except DivergedError:
            raise
        except ApplyError:
            # As a worker: a table that fails again stands still, and the others go on.
            self._replica.apply_batch(tail)
        self.batches += 1

    def _window(self) -> list[Segment]:
        """Return the segments of the next batch, whose files are staged then."""
        found, size_bytes = list[Segment](), 0
        while (segment := self._next()) is not None:
            size_bytes += segment.files_bytes
            follows = not found or segment.first == found[-1].last + 1
            too_long = found and (
                len(found) == _SEGMENTS
                or size_bytes > _BYTES
                or segment.last - found[0].first >= _POSITIONS
            )
            if not follows or too_long:
                self._kept = segment
                break
            found.append(segment)
        if not found:
            position = self._replica.state.position
            raise NotFoundError(
                f"the feed in {self._feed.url} has a hole after position {position:,}, and does "
                f"not lead to {self._target.position:,}",
                hint="`sparktxlog feed verify` names all holes.  Restore to that position, or from "
                "a later image.",
                position=position,
            )
        files = {
            file.path: (file, self._staged / file.path, effect.first)
            for segment in found
            for effect in segment.effects
            for file in effect.files
            if effect.first <= self._target.position
        }
        self._staged.mkdir(parents=True, exist_ok=True)
        fetch_files(self._feed, list(files.values()))
        return found

    def _next(self) -> Segment | None:
        kept, self._kept = self._kept, None
        return kept if kept is not None else next(self._segments, None)

    def _ahead(self) -> Iterator[Segment]:
        """Yield the segments after the replica's position, up to the target.

        Raises:
            DivergedError: They do not continue the replica (definite).
        """
        state = self._replica.state
        begun = state.position == 0
        position = state.position
        for page in self._feed.pages(position):
            if not begun:
                here = page.from_hash if page.first == position + 1 else ""
                end = page.end_at(position)
                if state.chain_hash != (here or (end.chain_hash if end is not None else "")):
                    raise DivergedError(
                        f"the feed in {self._feed.url} has another chain hash at position "
                        f"{position:,} than the lake",
                        hint="The lake is of another history of the log: restore into a new one.",
                        position=position,
                    )
                begun = True
            for segment in page.segments:
                if segment.first > self._target.position:
                    return
                if segment.last > position:
                    yield segment
                    position = segment.last
            if page.last >= self._target.position:
                return


def _cut_of(end: RunEnd) -> Cut:
    return Cut(position=end.position, chain_hash=end.chain_hash, epoch=end.epoch)
