"""Prepared transactions, and what their participants say of them (protocol P35).

A prepared transaction is ordered, and takes no effect there.  It does where the last of its
participants says YES.  What they say are *marks*: transactions without operations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sparktxlog.model.transactions.conditions import Condition
from sparktxlog.model.transactions.operation import Touch

#: Most transactions that are undecided at a position, and bytes of their payload containers.  All
#: members must use the same: they belong to the wire version.
MOST_UNDECIDED = 1_024
MOST_UNDECIDED_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """A prepared transaction at a position where it is neither committed nor rejected."""

    transaction_id: bytes
    #: Where it is ordered.
    position: int
    #: Participants that have to say YES; distinct.
    participants: tuple[str, ...]
    #: Timestamp after which it takes no effect, microseconds since 1970 UTC.
    valid_until: int
    #: Tables that it would write to.
    touches: tuple[Touch, ...] = ()
    condition: Condition | None = None
    #: Participants that said YES, in the order of their marks.
    said: tuple[str, ...] = ()
    #: See `RunManifest.holders`; its marks need as many.
    holders: int = 0
    #: Of its payload container.
    size_bytes: int = 0
    #: Node that accepted it, for operators; empty = not known.
    origin: str = ""

    @property
    def missing(self) -> tuple[str, ...]:
        """Participants that said nothing yet."""
        return tuple(name for name in self.participants if name not in self.said)

    def after_yes(self, participant: str) -> Undecided:
        """Return it after a YES; a second one of the same participant changes nothing."""
        if participant in self.said:
            return self
        return replace(self, said=(*self.said, participant))


#: A prepared transaction after the run that ends at a position; None = it is decided.
UndecidedChange = tuple[int, bytes, Undecided | None]
