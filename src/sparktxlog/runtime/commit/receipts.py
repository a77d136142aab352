"""Receipts: which client waits for which transaction to reach which level.

A `Submission` follows one own run from submit until it is ordered; after that only clients that
wait for replicas keep it.  Nothing is kept per transaction of a larger run.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from sparktxlog import errors
from sparktxlog.errors import (
    BusyError,
    CommitRejectedError,
    CommitStateUnknownError,
    InvalidRequestError,
    TxLogError,
)
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.transactions.operation import DIGEST_BYTES
from sparktxlog.model.transactions.receipt import (
    LEVEL_RANK,
    Appliers,
    Level,
    Receipt,
    ReceiptRejection,
    RunId,
)
from sparktxlog.protocol.messages.posts import QueueEntry, Rejection, RunHeader, Verdict
from sparktxlog.storage.journal.waiting_ids import index_of

#: Outcome of a transaction that takes effect later, if ever (P35).
PREPARED = "prepared"
#: Seconds that an acquired run usually needs to be ordered; after that a member is missing.
ORDERING_S = 1.0
#: Ordered runs with fewer holders than they need that are remembered; then the oldest is forgotten.
_MOST_FEWER = 4_096


@dataclass(slots=True, eq=False)
class _Waiter:
    """One client that waits for the transaction at `index` of a run, or for the run (None)."""

    index: int | None
    level: Level
    future: asyncio.Future[Receipt]


@dataclass(slots=True, eq=False)
class Submission:
    """An own run that is not ordered yet; `reached` only rises."""

    ids: bytes
    #: Number of its transactions that are found by id: all singles, the first of a batch.
    indexed: int = 0
    header: RunHeader | None = None
    entry: QueueEntry | None = None
    ordered_at: int | None = None
    reached: Level | None = None
    waiters: list[_Waiter] = field(default_factory=list)
    #: Why it failed; that may be known before a client waits.
    failure: TxLogError | None = None
    #: How many members are to hold it before it is ordered; 0 = an ordinary run (P34).
    holders: int = 0
    #: It was ordered with fewer: so many are known to hold it.
    fewer: int | None = None
    #: See `RunManifest.content_digests`.
    digests: bytes = b""
    #: When it was submitted here, `monotonic` seconds; None = before this start.
    began_s: float | None = None

    @property
    def n(self) -> int:
        """Number of transactions."""
        return len(self.ids) // 16

    def held(self, index: int | None) -> bytes:
        """Return the digests of the contents of one transaction, or of the run (None)."""
        if index is None:
            return self.digests
        return self.digests[DIGEST_BYTES * index : DIGEST_BYTES * (index + 1)]

    def receipt(self, index: int | None) -> Receipt:
        """Return the state of one transaction, or of the run (None)."""
        found = make_receipt(
            self.ids, index, self.reached, self.header, self.entry, self.ordered_at
        )
        return found if self.fewer is None else replace(found, late=True, holders=self.fewer)


def make_receipt(
    ids: bytes,
    index: int | None,
    level: Level | None,
    header: RunHeader | None,
    entry: QueueEntry | None,
    ordered_at: int | None,
) -> Receipt:
    """Return the receipt of the transaction at `index` of a run, or of the whole run (None)."""
    n = len(ids) // 16
    single = index if index is not None else (0 if n == 1 else None)
    rejections = () if entry is None else entry.rejections
    if single is not None:
        rejections = tuple(r for r in rejections if r.index == single)
    refused = tuple(_rejection(r, 0 if single is not None else r.index) for r in rejections)
    outcome, prepared_at = None, None
    if single is not None and entry is not None:
        outcome = "rejected" if refused else "committed"
        if refused and refused[0].code == PREPARED:
            outcome, prepared_at, refused = PREPARED, entry.position + single, ()
    at = 16 * (single or 0)
    return Receipt(
        transaction_id=transaction_id_to_text(ids[at : at + 16]) if single is not None else None,
        n=n if single is None else 1,
        level=level,
        run=None
        if header is None
        else RunId(origin=header.origin, incarnation=header.incarnation, seq=header.seq),
        position=None if entry is None else entry.position + (single or 0),
        outcome=outcome,
        prepared_at=prepared_at,
        rejections=refused,
        ordered_at=ordered_at,
    )


def decided_receipt(receipt: Receipt, run: int, verdict: Verdict) -> Receipt:
    """Return the receipt of a prepared transaction once it is decided (P35).

    Args:
        run: Start of the run that decides it.
    """
    reason = verdict.rejection
    refused = () if reason is None else (_rejection(reason, 0),)
    return replace(
        receipt,
        position=run + verdict.index,
        outcome="rejected" if refused else "committed",
        rejections=refused,
    )


def _rejection(rejection: Rejection, index: int) -> ReceiptRejection:
    return ReceiptRejection(
        index=index,
        code=rejection.code,
        text=rejection.text,
        table=rejection.table,
        winner=rejection.winner,
        version=rejection.version,
        winner_id=None
        if rejection.winner_id is None
        else transaction_id_to_text(rejection.winner_id),
    )


#: Position, tiebreak, whether replicas got there, and whether a submit waits, not a reader.
_ReplicaWait = tuple[int, int, asyncio.Future[bool], bool]


def _unknown(ids: bytes, receipt: Receipt, level: Level, when: str) -> CommitStateUnknownError:
    """Return the error of a wait that ends before its level is reached."""
    first = receipt.transaction_id or transaction_id_to_text(ids[:16])
    return CommitStateUnknownError(
        f"transaction {first} has not reached {level.value!r} {when}",
        hint="It may still reach it: ask for its id before you submit it again.",
        transaction_id=first,
        reached=receipt.level.value if receipt.level else None,
        n=receipt.n,
        position=receipt.position,
    )


class Receipts:
    """All submissions that are not ordered yet, and all clients that wait.

    Args:
        applied: Returns the position that these sites have applied.
        passed: The same, with replicas in which tables stand still: waiting applies no more there;
            None = there are none.
        on_ordered: Called with the seconds that an own run took from its submit to its order.
        on_busy: Called when the first own run is submitted, and when the last one is ordered, or
            was acquired ORDERING_S ago: then a member is missing.
    """

    def __init__(
        self,
        applied: Callable[[Appliers], int],
        on_busy: Callable[[bool], None] = lambda busy: None,
        passed: Callable[[Appliers], int] | None = None,
        on_ordered: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._applied = applied
        self._on_ordered = on_ordered
        self._passed = applied if passed is None else passed
        self._on_busy = on_busy
        #: Own runs that count for `on_busy`.
        self._under_way: set[Submission] = set()
        self._by_ticket: dict[int, Submission] = {}
        #: By (origin, first sequence number).
        self._by_run: dict[tuple[str, int], Submission] = {}
        #: Ids of single transactions and first ids of larger runs.
        self._by_id: dict[bytes, tuple[Submission, int]] = {}
        #: Larger runs that are durable and wait for their stamp; the journal finds stamped ones.
        self._unstamped: set[Submission] = set()
        #: Least position first.
        self._replicas: dict[Appliers, list[_ReplicaWait]] = {}
        #: Position of a run that was ordered with fewer holders than it needs → how many (P34).
        self._fewer: dict[int, int] = {}
        self._tiebreak = itertools.count()
        self._expired = 0

    # -- submits -----------------------------------------------------------------------------------

    def open(
        self, ticket: int, ids: bytes, *, singles: bool, holders: int = 0, digests: bytes = b""
    ) -> Submission:
        """Follow a new own run.

        Args:
            singles: Each of its ids was submitted by itself.
            holders: See `RunManifest.holders`.
            digests: See `RunManifest.content_digests`.
        """
        submission = Submission(
            ids=ids,
            indexed=len(ids) // 16 if singles else 1,
            holders=holders,
            digests=digests,
            began_s=monotonic(),
        )
        self._by_ticket[ticket] = submission
        self._under_way.add(submission)
        if len(self._under_way) == 1:
            self._on_busy(True)
        for index in range(submission.indexed):
            self._by_id.setdefault(ids[16 * index : 16 * index + 16], (submission, index))
        return submission

    def adopt(
        self, header: RunHeader, ids: bytes, holders: int, digests: bytes = b""
    ) -> Submission:
        """Follow a durable run that was not submitted here since this start."""
        submission = self._by_run.get((header.origin, header.seq))
        if submission is None:
            submission = Submission(
                ids=ids, header=header, reached=Level.ACCEPTED, holders=holders, digests=digests
            )
            self._by_run[header.origin, header.seq] = submission
        return submission

    def pending(self, transaction_id: bytes) -> tuple[Submission, int] | None:
        """Return submission and index of a transaction that is not ordered yet."""
        found = self._by_id.get(transaction_id)
        if found is None:
            for submission in self._unstamped:
                if (index := index_of(transaction_id, submission.ids)) >= 0:
                    return submission, index
        return found

    def fewer_holders(self, position: int) -> int | None:
        """Return how many members held the run at a position at least, None = as many as it needs.

        It is known for own runs that were ordered since this start.
        """
        return self._fewer.get(position)

    def __len__(self) -> int:
        return len(self._by_ticket) + len(self._by_run)

    # -- waiting -----------------------------------------------------------------------------------

    async def wait(
        self,
        submission: Submission,
        index: int | None,
        level: Level,
        sites: Appliers,
        timeout_s: float,
    ) -> Receipt:
        """Return the receipt once the level is reached, or `late` if it is only ordered in time.

        Raises:
            CommitStateUnknownError: Neither reached in time nor ordered; fields
                `transaction_id`, `reached` (not definite).
            CommitRejectedError: The core refused the submit (definite).
        """
        if submission.failure is not None:
            raise submission.failure
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        future: asyncio.Future[Receipt] = loop.create_future()
        waiter = _Waiter(index=index, level=level, future=future)
        submission.waiters.append(waiter)
        self._settle(submission)
        timer = loop.call_later(timeout_s, self._expire, submission, waiter)
        try:
            receipt = await future
        finally:
            timer.cancel()
        if level is not Level.APPLIED or receipt.position is None:
            return receipt
        end, left_s = receipt.position + receipt.n - 1, deadline - loop.time()
        if await self.wait_applied(end, sites, left_s, of_submit=True):
            return replace(receipt, level=Level.APPLIED)
        return replace(receipt, late=True)

    @staticmethod
    def _expire(submission: Submission, waiter: _Waiter) -> None:
        if not waiter.future.done():
            submission.waiters.remove(waiter)
            receipt = submission.receipt(waiter.index)
            waiter.future.set_exception(_unknown(submission.ids, receipt, waiter.level, "in time"))

    async def wait_applied(
        self, position: int, sites: Appliers, timeout_s: float, *, of_submit: bool = False
    ) -> bool:
        """Wait until these sites applied a position; return whether they did in time.

        It ends at once where they have passed it, and tables stand still there.

        Args:
            of_submit: Whether a submit waits: it is answered as late if the node stops waiting.
        """
        if position <= self._passed(sites):
            return position <= self._applied(sites)
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        heap = self._replicas.setdefault(sites, [])
        heapq.heappush(heap, (position, next(self._tiebreak), future, of_submit))
        try:
            async with asyncio.timeout(max(timeout_s, 0)):
                return await future
        except TimeoutError:
            self._purge(sites)
            return False

    # -- events of the core ------------------------------------------------------------------------

    def accepted(self, ticket: int, header: RunHeader | None) -> None:
        """The submit is durable here; called again with the header once it is stamped (P1a)."""
        submission = self._by_ticket.get(ticket)
        if submission is None:
            return
        if header is not None:
            submission.header = header
            del self._by_ticket[ticket]
            self._by_run[header.origin, header.seq] = submission
            self._unstamped.discard(submission)
        elif submission.indexed < submission.n:
            self._unstamped.add(submission)
        submission.reached = submission.reached or Level.ACCEPTED
        self._settle(submission)

    def acquired(self, header: RunHeader) -> None:
        """The own run is durable at the acquisition quorum."""
        submission = self._by_run.get((header.origin, header.seq))
        if submission is not None and submission.reached is not Level.ORDERED:
            # From here on only few bytes are sent, and a copy must not delay them.
            asyncio.get_running_loop().call_later(ORDERING_S, self._arrived, submission)
            submission.header = header
            submission.reached = Level.ACQUIRED
            self._settle(submission)

    def ordered(self, entry: QueueEntry, at: int, holders: int) -> None:
        """A run has its position and outcome.

        Args:
            holders: So many members are known to hold it, or as many as it needs.
        """
        submission = self._by_run.pop((entry.header.origin, entry.header.seq), None)
        if submission is None:
            return
        self._arrived(submission)
        if submission.began_s is not None:
            self._on_ordered(monotonic() - submission.began_s)
        submission.header, submission.entry = entry.header, entry
        if holders < submission.holders:
            submission.fewer = self._fewer[entry.position] = holders
            if len(self._fewer) > _MOST_FEWER:
                del self._fewer[next(iter(self._fewer))]
        submission.ordered_at, submission.reached = at, Level.ORDERED
        self._settle(submission)
        self._drop_ids(submission)

    def rejected(self, ticket: int, code: str, text: str, rests_on: bytes = b"") -> None:
        """The core refused the submit; nothing happened.  See `TellRejected`."""
        submission = self._by_ticket.pop(ticket, None)
        if submission is not None:
            self._arrived(submission)
            self._drop_ids(submission)
            self._fail(submission, rejection_error(code, text, rests_on))

    def _arrived(self, submission: Submission) -> None:
        if submission in self._under_way:
            self._under_way.remove(submission)
            if not self._under_way:
                self._on_busy(False)

    def replicas_moved(self) -> None:
        """Replicas reported: answer clients that waited for it."""
        for sites, heap in self._replicas.items():
            applied, passed = self._applied(sites), self._passed(sites)
            while heap and heap[0][0] <= passed:
                position, _, future, _ = heapq.heappop(heap)
                if not future.done():
                    future.set_result(position <= applied)

    def close(self, error: TxLogError) -> None:
        """Fail all waits: the node stops."""
        for submission in (*self._by_ticket.values(), *self._by_run.values()):
            self._fail(submission, error)
        self._end_replica_waits()
        for heap in self._replicas.values():
            for _, _, future, _ in heap:
                if not future.done():
                    future.set_exception(error)

    def detach(self, reason: str) -> None:
        """End all waits, because this node takes no part any more.

        A client that waits for replicas gets a `late` receipt, if its transaction is ordered.

        The runs stay known, so a run that is stamped again, or ordered by the others, is found by
        its id.  The core definitely refuses submits that it has not answered yet.
        """
        for submission in (*self._by_ticket.values(), *self._by_run.values()):
            if submission.reached is None:
                continue
            self._arrived(submission)
            self._end_waits(submission, f"when {reason}")
        self._end_replica_waits()

    def _end_replica_waits(self) -> None:
        """Answer all submits that wait for replicas as late."""
        for heap in self._replicas.values():
            for _, _, future, of_submit in heap:
                if of_submit and not future.done():
                    future.set_result(False)

    def forget(self, is_dropped: Callable[[bytes], bool]) -> None:
        """End the waits for durable runs that a new view left out, and forget those runs (P20).

        They belong to other nodes, or to this node before it lost its disk.

        Args:
            is_dropped: Takes the first id of a run; returns whether it is no longer kept.
        """
        for key, submission in list(self._by_run.items()):
            if not is_dropped(submission.ids[:16]):
                continue
            del self._by_run[key]
            self._arrived(submission)
            self._drop_ids(submission)
            self._end_waits(submission, "before its origin was evicted; it may return with it")

    @staticmethod
    def _end_waits(submission: Submission, when: str) -> None:
        """Fail all waits for a run with an unknown outcome."""
        for waiter in submission.waiters:
            if not waiter.future.done():
                receipt = submission.receipt(waiter.index)
                waiter.future.set_exception(_unknown(submission.ids, receipt, waiter.level, when))
        submission.waiters.clear()

    def _purge(self, sites: Appliers) -> None:
        """Drop waits that timed out, once there are many: replicas may stand still for long."""
        heap = self._replicas.get(sites, [])
        self._expired += 1
        if self._expired > 64 and 2 * self._expired > len(heap):
            self._expired = 0
            self._replicas[sites] = [item for item in heap if not item[2].done()]
            heapq.heapify(self._replicas[sites])

    # -- inside ------------------------------------------------------------------------------------

    def _drop_ids(self, submission: Submission) -> None:
        self._unstamped.discard(submission)
        for index in range(submission.indexed):
            key = submission.ids[16 * index : 16 * index + 16]
            held = self._by_id.get(key)
            if held is not None and held[0] is submission:
                del self._by_id[key]

    def _settle(self, submission: Submission) -> None:
        reached = submission.reached
        if reached is None or not submission.waiters:
            return
        waiting = []
        for waiter in submission.waiters:
            if waiter.future.done():
                continue
            # Once it is ordered, a client that waits for replicas does so in `wait_applied`.
            if reached is Level.ORDERED or LEVEL_RANK[waiter.level] <= LEVEL_RANK[reached]:
                waiter.future.set_result(submission.receipt(waiter.index))
            else:
                waiting.append(waiter)
        submission.waiters = waiting

    def _fail(self, submission: Submission, error: TxLogError) -> None:
        submission.failure = error
        for waiter in submission.waiters:
            if not waiter.future.done():
                waiter.future.set_exception(error)
        submission.waiters.clear()


async def done_until(future: asyncio.Future[Any], deadline: float) -> bool:
    """Wait for a future that others wait for too; return whether it was done in time.

    Args:
        deadline: By the event loop's clock.
    """
    if future.done():
        return True
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()

    def wake(late: asyncio.Future[Any] | None = None) -> None:
        if not woken.done():
            woken.set_result(None)
        elif late is not None and not late.cancelled():
            late.exception()  # nobody may look at it later

    timer = loop.call_at(deadline, wake)
    future.add_done_callback(wake)
    try:
        await woken
    finally:
        timer.cancel()
    return future.done()


_REJECTIONS: dict[str, type[TxLogError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, CommitRejectedError)
}


def rejection_error(code: str, text: str, rests_on: bytes = b"") -> TxLogError:
    """Return the client's error for a refusal of the core."""
    kind = _REJECTIONS.get(code)
    if kind is None:
        kind = BusyError if code in ("busy", "clock-skew") else CommitRejectedError
    fields = {"rests_on": transaction_id_to_text(rests_on)} if rests_on else {}
    return kind(text, reason=code, **fields)


def check_sites(level: Level, sites: int, members: int) -> None:
    """Refuse a number of sites that can never be reached.

    Raises:
        InvalidRequestError: Not between 1 and the number of members (definite).
    """
    if level is Level.APPLIED and not 1 <= sites <= members:
        raise InvalidRequestError(
            f"level applied({sites}) cannot be reached with {members} members",
            hint=f"Ask for 1 to {members}.",
        )
