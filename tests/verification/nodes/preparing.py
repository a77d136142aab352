"""Clients that prepare transactions, and participants that say YES or NO at whatever node (P35).

They draw from chance of their own; the rest of a history is what it is without them.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.verification.nodes.virtual import EPOCH_NS

from sparktxlog.codec.submits.mark_requests import MarkRequest, marking
from sparktxlog.codec.submits.transactions import PreparedTransaction

#: Part of the appends that are prepared, and chances that a participant is silent, or says NO.
_PREPARED, _SILENT, _NO = 0.2, 0.15, 0.1
_NAMES = ("p", "q", "r")
#: How long one is valid, and when its participants speak, seconds.
_VALID_S = (5.0, 20.0, 60.0)
_SPEAKS_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparing:
    """Who has to say YES to a transaction, and by when."""

    participants: tuple[str, ...] = ()
    #: Microseconds since 1970 UTC.
    valid_until: int | None = None


class Participants:
    """Draw who prepares, and what participants say.

    Args:
        story: Names the seed.
    """

    def __init__(self, story: str) -> None:
        self._random = Random(f"{story}:prepared")

    def draw(self, now_s: float) -> Preparing:
        """Return whether a transaction is prepared.

        Args:
            now_s: Time of the history, seconds.
        """
        random = self._random
        if random.random() >= _PREPARED:
            return Preparing()
        names = tuple(random.sample(_NAMES, random.randrange(1, 4)))
        valid_us = int((now_s + random.choice(_VALID_S)) * 1_000_000)
        return Preparing(participants=names, valid_until=EPOCH_NS // 1_000 + valid_us)

    def marks(
        self, identity: bytes, preparing: Preparing
    ) -> list[tuple[float, PreparedTransaction]]:
        """Return what participants say of a prepared transaction, and after how many seconds."""
        random = self._random
        return [
            (
                random.random() * _SPEAKS_S,
                marking(identity, MarkRequest(participant=name, yes=random.random() >= _NO)),
            )
            for name in preparing.participants
            if random.random() >= _SILENT
        ]
