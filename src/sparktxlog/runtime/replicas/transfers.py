"""Catch-ups of this site's replica: those under way, and the latest finished or failed ones.

The journal keeps the latest `HISTORY` in a ring of named values, so they survive a restart.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.copying import Decision, Transfer
from sparktxlog.storage.interfaces import Write
from sparktxlog.storage.journal.value_ring import ValueRing

#: Transfers that are kept.
HISTORY = 200
_PREFIX = "transfer:"
#: Most running copies; workers that end silently must not fill the memory.
_MAX_RUNNING = 64
_MAX_TEXT = 4_096
_MAX_DONORS = 64
_MAX_COUNT = 1 << 60
#: End of the year 9999, the last one that readers know; microseconds since 1970 UTC.
_MAX_AT = 253_402_300_799_000_000
_COUNTS = (
    "from_position to_position started_at finished_at estimated_s actual_s fetch_s size_bytes "
    "wire_bytes reused_bytes transactions"
).split()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCopy:
    """A copy whose ticket was given and whose end has not been reported."""

    copy_id: str
    worker_id: str
    decision: Decision
    donors: tuple[str, ...]
    #: Log time of the ticket, microseconds.
    started_at: int
    #: Least position of its leases, where the worker's replay begins; 0 = unknown.
    position: int = 0


def check_transfer(transfer: Transfer, node_id: str) -> None:
    """Refuse a transfer that is not of this site, or has numbers or texts out of bounds.

    Raises:
        InvalidRequestError: The message names field and value (definite).
    """
    if transfer.node_id != node_id:
        raise InvalidRequestError(
            f"the transfer is of site {transfer.node_id[:80]!r}, this is {node_id!r}",
            hint="Send it to the replica's own node.",
            field="node_id",
            value=transfer.node_id[:80],
        )
    for name in _COUNTS:
        value = getattr(transfer, name)
        limit = _MAX_AT if name.endswith("_at") else _MAX_COUNT
        if value is not None and not 0 <= value <= limit:
            raise InvalidRequestError(
                f"{name} is {str(value)[:40]}, expected 0 or more",
                field=name,
                value=str(value)[:40],
            )
    for name in ("transfer_id", "worker_id", "outcome", "reason"):
        if len(getattr(transfer, name)) > _MAX_TEXT or len(transfer.donors) > _MAX_DONORS:
            raise InvalidRequestError(
                f"{name} or the list of donors is too long",
                hint=f"At most {_MAX_TEXT:,} characters and {_MAX_DONORS} donors.",
                field=name,
            )


class Transfers:
    """Transfers known here."""

    def __init__(self, saved: Mapping[str, bytes]) -> None:
        self._ring = ValueRing[Transfer](_PREFIX, HISTORY, Transfer, saved)
        self._running: OrderedDict[str, RunningCopy] = OrderedDict()

    def started(self, copy: RunningCopy) -> None:
        """Note that a ticket was given; an older running copy of the worker is forgotten."""
        for other in [c for c in self._running.values() if c.worker_id == copy.worker_id]:
            del self._running[other.copy_id]
        self._running[copy.copy_id] = copy
        while len(self._running) > _MAX_RUNNING:
            self._running.popitem(last=False)

    def finished(self, transfer: Transfer) -> tuple[bool, list[Write]]:
        """Note the end of a catch-up; return whether it is new, and the writes that keep it."""
        self._running.pop(transfer.transfer_id, None)
        if any(one.transfer_id == transfer.transfer_id for one in self._ring.entries.values()):
            return False, []
        return True, [self._ring.add(transfer)[1]]

    def positions(self, since: int) -> tuple[int, ...]:
        """Return the positions of running copies whose tickets were given after a time."""
        return tuple(
            copy.position
            for copy in self._running.values()
            if copy.position and copy.started_at >= since
        )

    def latest(self, limit: int) -> list[Transfer]:
        """Return the latest transfers, oldest first."""
        return list(self._ring.entries.values())[-limit:]

    def of_worker(self, worker_id: str, now: int) -> dict[str, Any]:
        """Return a worker's last transfer and those under way, for status."""
        last = next((t for t in self._ring.newest_first() if t.worker_id == worker_id), None)
        return {
            "last_transfer": None if last is None else msgspec.to_builtins(last),
            "running_transfers": [
                {
                    "transfer_id": copy.copy_id,
                    "kind": copy.decision.plan,
                    "donors": list(copy.donors),
                    "started_at": copy.started_at,
                    "running_s": round(max(0, now - copy.started_at) / 1e6, 3),
                    "estimated_s": None
                    if copy.decision.copy is None
                    else round(copy.decision.copy.seconds, 3),
                }
                for copy in self._running.values()
                if copy.worker_id == worker_id
            ],
        }
