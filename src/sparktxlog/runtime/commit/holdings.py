"""Payload containers in memory: until they are durable, then in a bounded cache.

Own payloads wait for the core's `PersistOwnRun` or `PersistAnnouncement`, those of peers for
`PersistForeignRun`.  Both are bounded before the core learns of them, so a payload that the core
asks for is always here.  Durable payloads stay in a cache of bounded size, to be pushed, fetched
by peers and published; others are read from the journal.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from sparktxlog.errors import InvariantViolation
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.storage.journal.waiting_ids import RunKey, run_key

_MAX_ENDS = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRun:
    """A submitted run that is not durable yet; payload None = read it from the journal."""

    digest: bytes
    payload: bytes | None
    session: str | None = None


class Holdings:
    """Payloads of runs by what they wait for.

    Args:
        foreign_limit_bytes: Bound of peers' payloads that wait for the core.
        cache_limit_bytes: Bound of the cache of durable payloads.
    """

    def __init__(self, *, foreign_limit_bytes: int, cache_limit_bytes: int) -> None:
        self._own: dict[int, OwnRun] = {}
        #: By (origin, incarnation, seq): one content may have been submitted at two nodes.
        self._foreign: dict[RunKey, bytes] = {}
        #: Those of them that the core wants kept and that are on their way to the disk.
        self._wanted: dict[RunKey, bytes] = {}
        self._foreign_bytes = 0
        self._foreign_limit = foreign_limit_bytes
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self._cache_bytes = 0
        self._cache_limit = cache_limit_bytes
        #: (run end, digest) of ordered runs, ascending; older ones have left the cache by size.
        self._ends: deque[tuple[int, bytes]] = deque(maxlen=_MAX_ENDS)

    # -- own runs ----------------------------------------------------------------------------------

    def put_own(self, ticket: int, run: OwnRun) -> None:
        """Keep an own run until it is durable."""
        self._own[ticket] = run

    def own(self, ticket: int) -> OwnRun:
        """Return an own run by its ticket."""
        try:
            return self._own[ticket]
        except KeyError:
            raise InvariantViolation(f"there is no submit with ticket {ticket}") from None

    def announced(self, ticket: int) -> None:
        """Drop the payload of a durable, unstamped run; the journal has it."""
        run = self.own(ticket)
        if run.payload is not None:
            self.cache(run.digest, run.payload)
        self._own[ticket] = OwnRun(digest=run.digest, payload=None, session=run.session)

    def own_persisted(self, ticket: int) -> None:
        """Move the payload of a durable, stamped run to the cache."""
        run = self._own.pop(ticket, None)
        if run is not None and run.payload is not None:
            self.cache(run.digest, run.payload)

    def own_rejected(self, ticket: int) -> None:
        """Forget a submit that the core refused; peers that want its run hear that it is gone."""
        run = self._own.pop(ticket, None)
        if run is not None:
            self._drop(run.digest)

    # -- runs of peers -----------------------------------------------------------------------------

    def put_foreign(self, header: RunHeader, payload: bytes) -> bool:
        """Keep a peer's verified payload for the core; False if there is no room for it."""
        key = run_key(header)
        if key in self._foreign or key in self._wanted:
            return True
        if self._foreign_bytes + len(payload) > self._foreign_limit and self._foreign:
            return False
        self._foreign[key] = payload
        self._foreign_bytes += len(payload)
        return True

    def foreign(self, header: RunHeader) -> bytes:
        """Return a peer's payload that the core asked to keep."""
        payload = self._wanted.get(run_key(header)) or self._cache.get(header.digest)
        if payload is None:
            raise InvariantViolation(f"the payload of run {run_key(header)} is missing")
        return payload

    def foreign_persisted(self, header: RunHeader) -> None:
        """Move the payload of a durable foreign run to the cache."""
        payload = self._wanted.pop(run_key(header), None)
        if payload is not None:
            self._foreign_bytes -= len(payload)
            self.cache(header.digest, payload)

    def foreign_wanted(self, header: RunHeader) -> None:
        """Note that the core asked to keep a payload."""
        payload = self._foreign.pop(run_key(header), None)
        if payload is not None:
            self._wanted[run_key(header)] = payload

    def foreign_refused(self, header: RunHeader) -> None:
        """Drop a payload that the core does not want."""
        payload = self._foreign.pop(run_key(header), None)
        if payload is not None:
            self._foreign_bytes -= len(payload)

    # -- cache -------------------------------------------------------------------------------------

    def cache(self, digest: bytes, payload: bytes) -> None:
        """Keep a durable payload for a while."""
        if digest in self._cache:
            self._cache.move_to_end(digest)
            return
        self._cache[digest] = payload
        self._cache_bytes += len(payload)
        while self._cache_bytes > self._cache_limit:
            self._cache_bytes -= len(self._cache.popitem(last=False)[1])

    def find(self, digest: bytes) -> bytes | None:
        """Return a durable payload if it is still in memory."""
        return self._cache.get(digest)

    def ordered(self, end: int, digest: bytes) -> None:
        """Note where a run ends in the queue, so that `release` finds its payload."""
        self._ends.append((end, digest))

    def release(self, position: int) -> None:
        """Drop payloads up to a position, because no node needs them."""
        while self._ends and self._ends[0][0] <= position:
            self._drop(self._ends.popleft()[1])

    def _drop(self, digest: bytes) -> None:
        self._cache_bytes -= len(self._cache.pop(digest, b""))

    def size_bytes(self) -> int:
        """Bytes held."""
        own = sum(len(run.payload or b"") for run in self._own.values())
        return own + self._foreign_bytes + self._cache_bytes
