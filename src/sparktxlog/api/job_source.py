"""The log as a job that ends sees it: it tells how far the replay is, and may end at a position."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from sparktxlog.errors import InvalidRequestError
from sparktxlog.worker.apply.cutting import Cut
from sparktxlog.worker.replica.source import HttpLogSource, NodeInfo, Tail
from sparktxlog.worker.replica.state import read_state

_logger = logging.getLogger(__name__)


class JobSource(HttpLogSource):
    """A node's log for one run of a job.

    Args:
        url, token: As of `HttpLogSource`.
        cut: Where the log ends for this job, None = where it does.
    """

    def __init__(self, url: str, token: str | None, cut: Cut | None = None) -> None:
        super().__init__(url, token)
        self._cut = cut
        #: Positions at which the replay began, and that was told last; -1 = none yet.
        self._began = self._told = -1

    def info(self) -> NodeInfo:
        """Return what the worker shares with the node, whose log may end at a cut."""
        info = super().info()
        if self._cut is None:
            return info
        end = self._cut.position
        return replace(info, position=min(info.position, end), published=min(info.published, end))

    def segments(self, after: int, *, wait_s: float, limit: int = 500) -> Tail:
        """Return segments after a position, up to the cut; the worker has applied up to there."""
        if self._cut is None:
            tail = super().segments(after, wait_s=wait_s, limit=limit)
        else:
            wait_s = 0.0 if after >= self._cut.position else wait_s
            tail = super().segments(after, wait_s=wait_s, limit=limit).cut_at(self._cut)
        self._tell(after, tail.position)
        return tail

    def _tell(self, position: int, end: int) -> None:
        if self._began < 0 and position < end:
            self._began = position
        if self._began < 0 or position == self._told:
            return
        self._told = position
        _logger.info(
            "position %s of %s is applied", f"{position:,}", f"{end:,}",
            extra={"done": position - self._began, "total": end - self._began},
        )  # fmt: skip


def refuse_beyond(lake: str | Path, cut: Cut) -> None:
    """Refuse a replica that cannot stop at a cut any more.

    Raises:
        InvalidRequestError: It is behind the cut already (definite).
    """
    state = read_state(lake)
    if state is None:
        return
    applied = state.pending.last if state.pending is not None else state.position
    if applied > cut.position:
        begun = "begun a batch up to" if state.pending is not None else "applied"
        raise InvalidRequestError(
            f"the replica in {lake} has {begun} position {applied} already, which lies behind "
            f"{cut.position}",
            hint="Move the lake away, restore an image of before in its place, and repeat this.",
            position=cut.position,
            applied=applied,
        )
