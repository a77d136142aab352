"""Places where clients put files before the log has them, and the token that asked for each.

A place is the directory of a commit table that is to be created, by its UUID, or that of a
transaction's uploads, by its id.  Only the token that asked for it may write there, and make it a
part of the log; operators may look.  A program that may write the file system directly needs no
node for that.

The journal keeps the owners, so that a restart frees no place.  There are `MOST` of them; then the
token that has most loses one, so that no token can free those of others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from sparktxlog.errors import DiskFullError, ForbiddenError
from sparktxlog.runtime.audit_trail import ANYBODY, OPERATOR, asks
from sparktxlog.runtime.commit.executor import Executor
from sparktxlog.storage.interfaces import PutValue
from sparktxlog.storage.journal.value_ring import ring_values

MOST = 8_192
_PREFIX = "place-owner:"


class PlaceOwners:
    """The owners; belongs to the event loop.

    Args:
        saved: Named values of the journal.
        executor: Makes changes durable.
    """

    def __init__(self, saved: Mapping[str, bytes], executor: Executor) -> None:
        self._executor = executor
        #: Place → its number among the named values, and its owner.
        self._owned: dict[str, tuple[int, str]] = {}
        for number, value in ring_values(_PREFIX, saved):
            place, owner = msgspec.msgpack.decode(value, type=tuple[str, str])
            self._owned[place] = (number, owner)
        taken = {number for number, _ in self._owned.values()}
        self._free = [number for number in range(MOST) if number not in taken]

    async def take(self, place: str) -> None:
        """Give a place to the requester, durably; without tokens it is anybody's.

        Raises:
            ForbiddenError: It is another token's (definite).
            DiskFullError: That cannot be written (definite).
        """
        self.check(place)
        caller = asks.get()
        if place in self._owned or caller == ANYBODY:
            return
        if self._executor.disk_full:
            raise DiskFullError(
                "the node's disk is full: whose a place is cannot be written",
                hint="Free space; then the node continues: docs/monitoring.md (A full disk).",
            )
        if not self._free:
            largest = Counter(owner for _, owner in self._owned.values()).most_common(1)[0][0]
            lost = next(one for one, (_, owner) in self._owned.items() if owner == largest)
            self._free.append(self._owned.pop(lost)[0])
        number = self._free.pop()
        self._owned[place] = (number, caller)
        await self._put(number, msgspec.msgpack.encode((place, caller)))

    async def release(self, place: str) -> None:
        """Forget a place: the log has what is in it, or it is gone."""
        number, _ = self._owned.pop(place, (-1, ""))
        if number >= 0:
            self._free.append(number)
            await self._put(number, b"")

    def check(self, place: str, *, writes: bool = True) -> None:
        """Let the requester use a place, or raise.

        Args:
            writes: It puts something there, or makes the log name it.

        Raises:
            ForbiddenError: It is another token's (definite).
        """
        owner, caller = self._owned.get(place, (0, ""))[1], asks.get()
        if owner in ("", caller) or (caller == OPERATOR and not writes):
            return
        raise _of_another(place)

    def check_own(self, place: str) -> None:
        """Let the requester use a place that it asked for; without tokens that is anybody.

        A place that is nobody's (any more) is refused, too.

        Raises:
            ForbiddenError: It did not (definite).
        """
        caller = asks.get()
        if self._owned.get(place, (0, ANYBODY))[1] != caller:
            raise _of_another(place)

    async def _put(self, number: int, value: bytes) -> None:
        await self._executor.write([PutValue(name=f"{_PREFIX}{number}", value=value)])


def _of_another(place: str) -> ForbiddenError:
    return ForbiddenError(
        f"{place[:80]} was asked for with another token",
        hint="Go on with the token that began, or begin again with your own: ask for another "
        "staging table, or stage under another transaction id.  Operators may look.",
        place=place[:80],
    )
