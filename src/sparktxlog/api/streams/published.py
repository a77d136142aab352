"""The published log of one site, as the planner of a stream reads it.

The planner is a Python process next to Spark's driver.  It asks one node, and reads that node's
queue table from disk.  If the node is lost, it goes on with another one of those that it was given.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow.compute as pc
from pyarrow.dataset import dataset

from sparktxlog.api.staging.shared_store import check_directory
from sparktxlog.api.staging.staged_append import nodes_of
from sparktxlog.api.streams.positions import LogOffset
from sparktxlog.codec.state_views import KEPT
from sparktxlog.delta.log_files import newest_commit
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import (
    ExpiredError,
    ForeignLogError,
    NotAppliedError,
    NotOfferedError,
    PositionNotReachedError,
    TransportError,
)
from sparktxlog.http.link import Http
from sparktxlog.model.answers import LONGEST_WAIT_S
from sparktxlog.model.tables.groups import not_held
from sparktxlog.storage.interfaces import Segment, TableEffect
from sparktxlog.worker.replica.source import LogTail

T = TypeVar("T")

QUEUE = KEPT["queue"].directory
#: Segments asked for at once.
_PAGE = 200
#: Pause between two attempts to find a node, seconds.
_PAUSE_S = 0.2
#: Offsets that are known to be of the node's log; more are looked up again.
_MOST_KNOWN = 100
#: Seconds that a node has to answer in addition to its wait.
_ANSWER_S = 15.0


def log_table(log_root: str, directory: str = QUEUE) -> Path:
    """Return the directory of a table of the log, the queue if no other is named.

    Raises:
        NotAppliedError: Nothing is published, or the directory is not visible here (definite).
    """
    root = Path(log_root) / directory
    if newest_commit(root) < 0:
        raise NotAppliedError(f"nothing is written yet in {root}", hint="Commit something first.")
    return root


class StreamedLog:
    """The published log at the node that answers.

    Args:
        options: Those of the data source; they name the nodes.
        timeout_s: Seconds to look for a node that answers, and to wait for a position.
    """

    def __init__(self, options: Mapping[str, str], timeout_s: float) -> None:
        self._nodes = nodes_of(options)
        self._timeout_s = timeout_s
        self._home: tuple[Http, dict[str, Any]] | None = None
        self._known: set[LogOffset] = set()
        #: Tables whose rows the node's site does not hold → the sites that do.
        self._elsewhere: dict[str, tuple[str, ...]] = {}

    def _at_home(self, work: Callable[[Http], T]) -> T:
        """Do something at the node, or at another one if it does not answer."""
        deadline, pause = time.monotonic() + self._timeout_s, threading.Event()
        while True:
            try:
                return work(self._node()[0])
            except TransportError:
                self._home = None
                if time.monotonic() >= deadline:
                    raise
            pause.wait(_PAUSE_S)

    def _node(self) -> tuple[Http, dict[str, Any]]:
        if self._home is None:
            found = self._nodes.choose()
            if (place := found[1].get("payload_url")) is not None:
                raise NotOfferedError(
                    f"streams of the log are not offered where its files lie in a bucket: {place}",
                    hint="Read the tables themselves, as streams of Delta, or ask a site whose "
                    "payload store is a directory.",
                    url=place,
                )
            check_directory(Path(found[1]["payload_root"]), found[0].url)
            self._home = found
            self._known.clear()
            self._elsewhere.clear()
        return self._home

    def info(self) -> dict[str, Any]:
        """Return the node's `/v1/info`, as it is now."""
        return dict(self._at_home(lambda link: link.get("/v1/info")))

    @property
    def payload_root(self) -> Path:
        """The payload store of the node that was asked last."""
        return Path(self._node()[1]["payload_root"])

    def published(self, at_least: int, wait_s: float) -> int:
        """Return the end of what is published, waiting up to `wait_s` seconds for a position."""
        wait_s = min(wait_s, LONGEST_WAIT_S)
        found = self._at_home(
            lambda link: link.get(
                "/v1/published", at_least=at_least, timeout=wait_s, timeout_s=wait_s + _ANSWER_S
            )
        )
        return int(found["position"])

    def segments(self, after: int, upto: int) -> Iterator[Segment]:
        """Yield the segments with positions after one and up to another one, ascending.

        `payload_root` has the files of a segment until the next one is taken.

        Raises:
            ExpiredError: The log does not hold what follows `after` any more (definite).
            PositionNotReachedError: The node has not published `upto` (definite).
        """
        while after < upto:
            found = [s for s in self._tail(after).segments if s.first <= upto]
            if not found:
                raise PositionNotReachedError(
                    f"{self._node()[0].url} has published up to {after}, and not {upto}",
                    after=upto,
                    position=after,
                )
            yield from found
            after = found[-1].last

    def whole(self, after: int, upto: int) -> list[Segment]:
        """Return the segments of a range as one node cut them; errors as `segments`."""
        while True:
            home = self._node()
            found = list(self.segments(after, upto))
            if self._home is home:
                return found

    def _tail(self, after: int) -> LogTail:
        def ask(link: Http) -> Any:
            return link.get("/v1/worker/segments", after=after, limit=_PAGE)

        try:
            tail = msgspec.convert(self._at_home(ask), LogTail)
            self._elsewhere.update(tail.elsewhere)
            return tail
        except ExpiredError as error:
            raise expired(after) from error

    def check_held(self, effects: Iterable[TableEffect]) -> None:
        """Refuse effects whose rows are not at the node's site (P41).

        Raises:
            NotHeldHereError: It names the sites that have them (definite).
        """
        for effect in effects:
            if (sites := self._elsewhere.get(effect.table)) is not None:
                raise not_held(effect.table, sites)

    # -- the queue table ---------------------------------------------------------------------------

    def queue_files(self, after: int, upto: int) -> list[str]:
        """Return the files of the queue table with positions after one and up to another one."""
        queue = log_table(str(self._node()[1]["log_root"]))
        files = LogState.read(queue).files_between("position", after, upto)
        return [str(queue / path) for path in files]

    def chain_hash(self, position: int) -> str:
        """Return the chain hash of the run that holds a position, empty if it is not known."""
        if not position:
            return ""
        files = self.queue_files(position - 1, position)
        if files:
            place = pc.field("position") == position
            found = dataset(files).to_table(columns=["chain_hash"], filter=place)
            if found.num_rows:
                return str(found["chain_hash"][0])
        # The log begins after it: then it is the end of a run.
        following = self._tail(position).segments
        return following[0].from_hash if following and following[0].first == position + 1 else ""

    # -- offsets -----------------------------------------------------------------------------------

    def offset(self, position: int) -> LogOffset:
        """Return the offset of a published position."""
        made = LogOffset(str(self.info()["log_id"]), position, self.chain_hash(position))
        self._remember(made)
        return made

    def check(self, offset: LogOffset) -> None:
        """Check that an offset is of this node's log, and wait until the node has reached it.

        Raises:
            ForeignLogError: It is of another log, or of another branch of this one (definite).
            PositionNotReachedError: The node has not reached it in time (definite).
        """
        if self._home is not None and offset in self._known:
            return
        info = self.info()
        ours = offset.log_id == info["log_id"]
        if not ours and offset.log_id not in self._ancestors():
            raise _foreign(offset, info, "is of another log")
        end = int(info["published"])
        if end < offset.position:
            end = self.published(offset.position, self._timeout_s)
        if end < offset.position:
            raise PositionNotReachedError(
                f"the stream has read up to position {offset.position}, {info['node_id']} has "
                f"published up to {end}",
                hint="Start the query again when the site has caught up. If its log was restored "
                "or cut, give the query a new checkpoint.",
                position=offset.position,
            )
        found = self.chain_hash(offset.position)
        differs = bool(found and offset.chain_hash and found != offset.chain_hash)
        # Of the log before a fork, only what both branches share belongs to this one.
        if differs or not (ours or found or not offset.position):
            raise _foreign(offset, info, "is of another branch of the log")
        self._remember(offset)

    def _ancestors(self) -> set[str]:
        found = self._at_home(lambda link: link.get("/v1/epochs"))
        return {str(one["log_id"]) for one in found["ancestors"]}

    def _remember(self, offset: LogOffset) -> None:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known.add(offset)


def expired(after: int) -> ExpiredError:
    """Return the error of a stream whose next transaction was pruned."""
    return ExpiredError(
        f"the log does not hold what follows position {after} any more",
        hint="Read log.snapshot() once, and start with a new checkpoint and startingPosition = "
        "its position + 1; startingPosition = 'earliest' goes on with a gap.",
        position=after,
    )


def _foreign(offset: LogOffset, info: Mapping[str, Any], what: str) -> ForeignLogError:
    return ForeignLogError(
        f"the checkpoint's offset, position {offset.position} of {offset.log_id}, {what} than "
        f"that of {info['node_id']}, {info['log_id']}",
        hint="Start the query at a site of its log, or give it a new checkpoint.",
        position=offset.position,
        log_id=offset.log_id,
    )
