"""Leases of a donor: rights to read pinned files for some time.

Every request renews a lease, and a lease does not end during a request.  A timer ends expired
leases.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from sparktxlog.errors import (
    LeaseGoneError,
    NotFoundError,
    UnauthorizedError,
    UnknownTableError,
)
from sparktxlog.files.pins import Pinned
from sparktxlog.model.copying import Lease

_log = structlog.get_logger("sparktxlog.donor")


@dataclass(slots=True, kw_only=True, eq=False)
class PinnedLease:
    """A lease and its pins."""

    lease: Lease
    #: Table → path → pinned file.
    files: dict[str, dict[str, Pinned]]
    #: Monotonic seconds at which it ends if it is not used before.
    deadline: float
    #: Requests under way; a lease in use does not expire.
    users: int = 0

    def file(self, table: str, path: str) -> Pinned:
        """Return a pinned file; only listed files can be named, so no path leads elsewhere."""
        files = self.files.get(table)
        if files is None:
            raise UnknownTableError(
                f"the lease has no table {table[:140]!r}", field="table", value=table[:140]
            )
        found = files.get(path)
        if found is None:
            raise NotFoundError(
                f"the lease has no file {path[:300]!r} in table {table!r}",
                hint="The lease lists all files.",
                field="path",
                value=path[:300],
            )
        return found


class Leases:
    """All present leases; belongs to the event loop.

    Args:
        on_end: Called with the id of a lease that was released or has expired.
        on_count: Called with their number when it changes.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        on_end: Callable[[str], object],
        on_count: Callable[[int], object],
    ) -> None:
        self._clock = clock
        self._on_end = on_end
        self._on_count = on_count
        self._leases: dict[str, PinnedLease] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, lease_id: str) -> bool:
        return lease_id in self._leases

    def add(self, lease: Lease, pinned: Mapping[str, tuple[Pinned, ...]]) -> None:
        """Add a new lease; its time begins."""
        self._leases[lease.lease_id] = PinnedLease(
            lease=lease,
            files={table: {file.path: file for file in files} for table, files in pinned.items()},
            deadline=self._clock() + lease.lease_s,
        )
        self._on_count(len(self._leases))
        self._set_timer()

    def find(self, lease_id: str, token: str) -> PinnedLease:
        """Return a lease and renew it.

        Raises:
            LeaseGoneError: Released, expired, or of an earlier start (definite).
            UnauthorizedError: Not the lease's token (definite).
        """
        self.expire()
        held = self._leases.get(lease_id)
        if held is None:
            raise lease_gone()
        if not hmac.compare_digest(held.lease.token.encode(), token.encode()):
            raise UnauthorizedError(
                "the token is not this lease's", hint="Send 'Authorization: Bearer <token>'."
            )
        held.deadline = self._clock() + held.lease.lease_s
        return held

    @contextmanager
    def using(self, lease_id: str, token: str) -> Iterator[PinnedLease]:
        """Hold a lease while a request is under way, and renew it at its end."""
        held = self.find(lease_id, token)
        held.users += 1
        try:
            yield held
        finally:
            held.users -= 1
            held.deadline = self._clock() + held.lease.lease_s

    def expire(self) -> list[str]:
        """End the leases whose time is over; return them."""
        now = self._clock()
        over = [
            name for name, held in self._leases.items() if not held.users and held.deadline <= now
        ]
        for name in over:
            self.end(name, "expired")
        return over

    def end(self, lease_id: str, why: str) -> None:
        """End a present held."""
        held = self._leases.pop(lease_id)
        self._on_count(len(self._leases))
        _log.info("lease ended", lease=lease_id, why=why, position=held.lease.position)
        self._on_end(lease_id)

    def close(self) -> None:
        """Forget all leases without calls."""
        if self._timer is not None:
            self._timer.cancel()
        self._leases.clear()

    def _set_timer(self) -> None:
        """Check again when the first lease may be over."""
        if self._timer is None and self._leases:
            first = min(self._leases.values(), key=lambda held: held.deadline)
            # A lease in use may be past its time: it is checked again a lease later.
            left_s = first.deadline - self._clock()
            self._timer = asyncio.get_running_loop().call_later(
                left_s if left_s > 0 else first.lease.lease_s, self._on_timer
            )

    def _on_timer(self) -> None:
        self._timer = None
        self.expire()
        self._set_timer()


def lease_gone() -> LeaseGoneError:
    """Return the error of a lease that no longer exists."""
    return LeaseGoneError(
        "this lease was released, has expired, or is of an earlier start of the donor",
        hint="Ask the own node for a new ticket; fetched files stay valid.",
    )
