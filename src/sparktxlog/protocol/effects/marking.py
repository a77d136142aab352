"""Prepared transactions that are undecided, and the marks that decide them (protocol P35).

Part of the effects: what is known here follows from the queue alone, so every site decides
the same.  A run without marks costs one comparison.
"""

from __future__ import annotations

from collections.abc import Iterable

from sparktxlog.errors import (
    ExpiredTransactionError,
    NotParticipantError,
    NotPreparedError,
    RolledBackError,
    TooManyPreparedError,
)
from sparktxlog.model.ids import LARGEST, transaction_id_to_text
from sparktxlog.model.transactions.marks import (
    MOST_UNDECIDED,
    MOST_UNDECIDED_BYTES,
    Undecided,
    UndecidedChange,
)
from sparktxlog.model.transactions.operation import Mark
from sparktxlog.protocol.messages.posts import Rejection, Verdict


class Marking:
    """The undecided transactions at the end of the queue.

    Args:
        undecided: Those at the end of the queue.
    """

    __slots__ = ("_by_id", "_changed", "_earliest", "_fresh", "_size_bytes", "_verdicts")

    def __init__(self, undecided: Iterable[Undecided] = ()) -> None:
        #: By id, in the order of the queue.
        self._by_id: dict[bytes, Undecided] = {}
        self._size_bytes = 0
        #: The first time after which one of them takes no effect.
        self._earliest = LARGEST
        #: Ids that the present run changed, and what it decided.
        self._changed: dict[bytes, None] = {}
        self._verdicts: list[Verdict] = []
        self._fresh: list[UndecidedChange] = []
        for one in sorted(undecided, key=lambda one: one.position):
            self._put(one)

    @property
    def undecided(self) -> tuple[Undecided, ...]:
        """All of them, in the order of the queue."""
        return tuple(self._by_id.values())

    # -- within a run ------------------------------------------------------------------------------

    def pass_time(self, ts: int) -> None:
        """Reject what is not decided before a run with a later timestamp; call it first."""
        if ts <= self._earliest:
            return
        for one in self.undecided:
            if ts > one.valid_until:
                self.decide(one, 0, _expired(one))

    def admit(self, one: Undecided, index: int) -> Rejection:
        """Take in a prepared transaction that fits; return why it takes no effect there."""
        size_bytes = self._size_bytes + one.size_bytes
        if len(self._by_id) >= MOST_UNDECIDED or size_bytes > MOST_UNDECIDED_BYTES:
            return Rejection(
                index=index,
                code=TooManyPreparedError.code,
                text=f"{len(self._by_id):,} prepared transactions of {self._size_bytes:,} bytes "
                "are undecided already",
            )
        self._put(one)
        self._changed[one.transaction_id] = None
        text = f"it takes effect where the last of {_names(one.participants)} says YES"
        return Rejection(index=index, code="prepared", text=text)

    def take(self, mark: Mark, index: int) -> tuple[Rejection | None, Undecided | None]:
        """Take in the mark of the transaction at an index.

        Returns:
            Why it does not count; the transaction for which it was the last YES, **to be decided**.
        """
        one = self._by_id.get(mark.transaction_id)
        if one is None or mark.participant not in one.participants:
            return _no_mark(mark, one, index), None
        if not mark.yes:
            text = f"participant {mark.participant!r} said NO"
            self.decide(one, index, Rejection(index=index, code=RolledBackError.code, text=text))
            return None, None
        one = one.after_yes(mark.participant)
        self._by_id[one.transaction_id] = one
        self._changed[one.transaction_id] = None
        return None, None if one.missing else one

    def decide(self, one: Undecided, index: int, reason: Rejection | None) -> None:
        """Commit a transaction in the place of the mark at an index, or reject it."""
        del self._by_id[one.transaction_id]
        self._size_bytes -= one.size_bytes
        self._earliest = min((left.valid_until for left in self.undecided), default=LARGEST)
        self._changed[one.transaction_id] = None
        self._verdicts.append(
            Verdict(
                transaction_id=one.transaction_id,
                position=one.position,
                index=index,
                rejection=reason,
            )
        )

    def _put(self, one: Undecided) -> None:
        self._by_id[one.transaction_id] = one
        self._size_bytes += one.size_bytes
        self._earliest = min(self._earliest, one.valid_until)

    # -- after a run -------------------------------------------------------------------------------

    def end_run(self, end: int) -> tuple[Verdict, ...]:
        """Return what the run that ends at a position decided."""
        if not self._changed:
            return ()
        verdicts, self._verdicts = tuple(self._verdicts), []
        self._fresh += [(end, one, self._by_id.get(one)) for one in self._changed]
        self._changed = {}
        return verdicts

    def take_changes(self) -> tuple[UndecidedChange, ...]:
        """Return what changed since the last call, run by run."""
        fresh, self._fresh = tuple(self._fresh), []
        return fresh


def _expired(one: Undecided) -> Rejection:
    return Rejection(
        index=0,
        code=ExpiredTransactionError.code,
        text=f"{_names(one.missing)} said nothing before the time it was valid until",
    )


def _no_mark(mark: Mark, one: Undecided | None, index: int) -> Rejection:
    name = transaction_id_to_text(mark.transaction_id)
    if one is None:
        text = f"no transaction {name} is prepared and undecided at this position"
        return Rejection(index=index, code=NotPreparedError.code, text=text)
    text = f"transaction {name} waits for {_names(one.missing)}, not for {mark.participant!r}"
    return Rejection(index=index, code=NotParticipantError.code, text=text)


def _names(participants: tuple[str, ...]) -> str:
    return ", ".join(map(repr, participants))
