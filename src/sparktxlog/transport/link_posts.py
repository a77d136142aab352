"""Posts to one peer: a few are under way at once, and none waits for the answer to another one.

A newer post replaces one that still waits.  On a long line each answer is a round trip away: a post
that waited for it would cost a commit up to two delays more.  So posts may arrive in any order, and
an older one says nothing any more (P5); the numbers of envelopes order what comes with them.

The first post goes at once.  Each further one leaves a gap after the one before it, twice as long
for each that is under way: on a short line the answer is there first, so that what happens at the
same time shares a post.  On a slow line the bytes under way are bounded: newer posts wait there.

Reports and addresses have no order of their own: of these one envelope is under way at a time.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from sparktxlog.codec import wire
from sparktxlog.codec.report_changes import ReportSender
from sparktxlog.errors import RemoteProtocolError, TxLogError
from sparktxlog.model.report import WorkerReport
from sparktxlog.model.site_data import SiteData, SitePace
from sparktxlog.protocol.messages.posts import Post
from sparktxlog.transport.link_outbox import LinkOutbox, Traffic

_log = structlog.get_logger("sparktxlog.transport")

#: Most posts under way to one peer; a further one goes if those have at most so many bytes.
MOST_UNDER_WAY = 4
_BESIDE_BYTES = 256 << 10
#: Seconds that the second post leaves after the first one; twice as long for each further one.
_GAP_S = 0.001
#: Seconds that a request of the peer waits for the post that says what came with it.
_ANSWER_S = 0.05
#: Weight of the latest post in the smoothed round trip.
_ROUND_TRIP_WEIGHT = 0.2


class Line(Protocol):
    """The link that posts go over."""

    node_id: str
    up: bool
    #: How often it came up.
    ups: int
    traffic: Traffic

    async def send_post(self, body: bytes) -> tuple[bytes, bool]:
        """Send an envelope; return the answer, and whether it is proved to be the peer's."""

    def failed(self, error: TxLogError, ups: int) -> None:
        """Break the link after a failed request, unless it came up again meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What is said with each post.

    Args:
        hears: Returns the nodes that this one is linked to.
        data: Returns what this site holds of the data.
        pace: Returns how quick this node's disk is.
        replicas: Returns the names of this site's replicas.
    """

    hears: Callable[[], tuple[str, ...]]
    data: Callable[[], SiteData | None]
    pace: Callable[[], SitePace]
    replicas: Callable[[], tuple[str, ...] | None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Sent:
    """An envelope under way."""

    #: How many posts were taken before it.
    order: int
    post: Post | None
    #: Whole, and as they were sent.
    reports: Mapping[str, WorkerReport]
    shortened: Mapping[str, WorkerReport]
    addresses: wire.FoundAddresses | None
    body: bytes

    @property
    def has_more(self) -> bool:
        """Whether it has what is under way once at a time."""
        return bool(self.reports) or self.addresses is not None


class LinkPosts:
    """The posts of one link, and what goes with them; `posting` sends them while it is up.

    Args:
        line: The link.
        outbox: Has the runs that travel with a post.
        greeted: Set while the link is up.
        said: What is said with each post.
        on_answer: Called with the peer's answer to a post, if that is proved to be its answer.
    """

    def __init__(
        self,
        line: Line,
        outbox: LinkOutbox,
        greeted: asyncio.Event,
        said: Said,
        on_answer: Callable[[wire.PostAnswer], None],
    ) -> None:
        self._line = line
        self._outbox = outbox
        self._greeted = greeted
        self._said = said
        self._on_answer = on_answer
        #: Smoothed seconds from a post to its answer; None before the first.
        self.round_trip_s: float | None = None
        #: Latest changed report of each worker.
        self.reports: dict[str, WorkerReport] = {}
        #: Which addresses answer; None = already sent.
        self.addresses: wire.FoundAddresses | None = None
        #: The post that waits, and how many were taken before it.
        self._post: Post | None = None
        self._taken = 0
        #: True: what is said with a post is sent without one.
        self._tells = False
        self._sender = ReportSender()
        self.ready = asyncio.Event()
        self._under_way: set[_Sent] = set()
        #: When the last one left, by the loop's clock.
        self._left_at = 0.0
        #: Set when one of those under way was answered, or failed.
        self._answered = asyncio.Event()
        #: Set to the next post if a request of the peer waits for it.
        self._wanted: asyncio.Future[Post | None] | None = None
        self._number = 0

    # -- what is to be sent: never blocks ----------------------------------------------------------

    def post(self, post: Post) -> None:
        """Send a post soon; it replaces an older one that waits.

        If a request of the peer waits for it, it goes with the answer to that, unless a request of
        this node takes it and runs along.
        """
        wanted = self._wanted
        if wanted is not None and not wanted.done():
            rides = self._outbox.may_ride() and self._pause_s() <= 0
            wanted.set_result(None if rides else post)
            if not rides:
                self._taken += 1
                self._post = None  # an older one, if any
                return
        self._post = post
        self.ready.set()

    async def next_post(self) -> Post | None:
        """Return the next post for the peer, for an answer to it; None = none comes soon."""
        self.want_none()
        if not self._line.up:
            return None  # it need not hear what it cannot answer
        self._wanted = wanted = asyncio.get_running_loop().create_future()
        timer = wanted.get_loop().call_later(_ANSWER_S, self.want_none)
        try:
            post: Post | None = await wanted
            return post
        finally:
            timer.cancel()

    def want_none(self) -> None:
        """Let a request of the peer that waits for a post be answered without one."""
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)

    def report(self, reports: Iterable[WorkerReport]) -> None:
        """Send changed worker reports with the next post, or alone if none comes first."""
        for report in reports:
            self.reports[report.worker_id] = report
        self._tells = self._tells or not self.reports
        self.ready.set()

    def tell_addresses(self, found: wire.FoundAddresses) -> None:
        """Send which addresses of peers answer, with the next post or alone."""
        self.addresses = found
        self.ready.set()

    def tell(self) -> None:
        """Send what is said with each post, with the next one or alone."""
        self._tells = True
        self.ready.set()

    def take_runs(self) -> bool:
        """Return whether a post that waits goes at once, so that runs travel with it."""
        return self._post is not None and self._pause_s() <= 0

    def number(self) -> int:
        """Return the number of an envelope, or answer, that is made now; it rises."""
        self._number = max(self._number + 1, int(time.monotonic() * 1e6))
        return self._number

    def broke(self) -> None:
        """Note that the link broke: the peer may have forgotten what it kept of reports."""
        self.want_none()
        self._sender.forget()

    # -- sending -----------------------------------------------------------------------------------

    async def posting(self) -> None:
        """Send posts until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self.ready.wait()
                await self._greeted.wait()
                if (pause_s := self._pause_s()) > 0:
                    await self._next_answer(pause_s)
                    continue
                self.ready.clear()
                if (sent := self._take()) is not None:
                    self._left_at = asyncio.get_running_loop().time()
                    self._under_way.add(sent)
                    group.create_task(self._send(sent))

    def _pause_s(self) -> float:
        """Return the seconds until a further post may leave; infinite = after an answer."""
        count = len(self._under_way)
        if not count:
            return 0.0
        if count >= MOST_UNDER_WAY or sum(len(one.body) for one in self._under_way) > _BESIDE_BYTES:
            return math.inf
        gap_s = float(_GAP_S * 2 ** (count - 1))
        return self._left_at + gap_s - asyncio.get_running_loop().time()

    async def _next_answer(self, most_s: float) -> None:
        """Wait until a post is answered, at most so many seconds."""
        self._answered.clear()
        try:
            # `wait_for` of Python 3.11 loses a cancellation at the same time as the event.
            async with asyncio.timeout(most_s if most_s < math.inf else None):
                await self._answered.wait()
        except TimeoutError:
            return

    def _take(self) -> _Sent | None:
        """Take what is sent next; None = nothing is."""
        reports: dict[str, WorkerReport] = {}
        addresses, tells = None, self._tells
        if not any(one.has_more for one in self._under_way):
            reports, self.reports = self.reports, reports
            addresses, self.addresses = self.addresses, None
        post, self._post, self._tells = self._post, None, False
        if post is None and not reports and addresses is None and not tells:
            return None
        self._taken += post is not None
        shortened = {name: self._sender.shortened(report) for name, report in reports.items()}
        pushes = self._outbox.riding_pushes()
        body = wire.encode(
            wire.Envelope(
                post=post,
                reports=tuple(shortened.values()),
                hears=self._said.hears(),
                addresses=addresses,
                pushes=pushes,
                data=self._said.data(),
                pace=self._said.pace(),
                replicas=self._said.replicas(),
                number=self.number(),
            )
        )
        traffic = self._line.traffic
        traffic.posts += 1
        traffic.post_bytes_max = max(traffic.post_bytes_max, len(body) - len(pushes))
        return _Sent(
            order=self._taken,
            post=post,
            reports=reports,
            shortened=shortened,
            addresses=addresses,
            body=body,
        )

    async def _send(self, sent: _Sent) -> None:
        ups, began = self._line.ups, time.monotonic()
        try:
            body, sealed = await self._line.send_post(sent.body)
            answer = wire.decode(wire.PostAnswer, body) if body else wire.PostAnswer()
            if answer.post is None:  # else the peer's disk took a part of the time
                self._note_round_trip(time.monotonic() - began)
            elif sealed:
                self._on_answer(answer)
            for name, report in sent.reports.items():
                if not self._sender.answered(report, sent.shortened[name], answer.kept):
                    self.reports.setdefault(name, report)
        except RemoteProtocolError as error:
            _log.error("post refused", peer=self._line.node_id, error=str(error))
        except TxLogError as error:
            self._take_back(sent)
            self._line.failed(error, ups)
        finally:
            self._under_way.remove(sent)
            self._answered.set()
            if self.reports or self.addresses is not None:  # these may have waited for this one
                self.ready.set()

    def _take_back(self, sent: _Sent) -> None:
        """Let what did not arrive wait again, unless there is something newer."""
        if sent.post is not None and sent.order == self._taken and self._post is None:
            self._post = sent.post
            self.ready.set()
        self.reports = {**sent.reports, **self.reports}
        self.addresses = sent.addresses if self.addresses is None else self.addresses

    def _note_round_trip(self, seconds: float) -> None:
        known = seconds if self.round_trip_s is None else self.round_trip_s
        self.round_trip_s = known + _ROUND_TRIP_WEIGHT * (seconds - known)
