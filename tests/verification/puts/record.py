"""What writers asked of a bucket, and what they were told; what may be under each key after it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from sparktxlog.files.stores.store import Created

#: Of bytes under a key; None = there is nothing.
Digest = bytes | None


class Told(Enum):
    """What became of a write, as its caller was told."""

    DONE = "done"
    #: Something else is there already.
    LOST = "lost"
    #: An error that says that nothing happened.
    REFUSED = "refused"
    #: An error that does not know whether something happened.
    UNKNOWN = "unknown"


class Kind(Enum):
    """How a bucket may be unlike what its writers were told."""

    #: What was acknowledged is not there.
    MISSING = "lost"
    #: Two were told that theirs is there, or it is there again after its removal.
    DOUBLED = "doubled"
    #: Other bytes, those of a refused write, or a writer that was told the contrary.
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that must not be."""

    kind: Kind
    text: str


def digest_of(content: bytes) -> bytes:
    """Return what stands for bytes here."""
    return hashlib.sha256(content).digest()[:16]


@dataclass(slots=True)
class OwnKey:
    """A key that one writer uses, one call after the other: what may be there now."""

    may_be: frozenset[Digest] = frozenset((None,))
    #: What it was asked to take and certainly did not.
    refused: frozenset[bytes] = frozenset()

    @property
    def known(self) -> Digest:
        """What is there; None: nothing, or it is not known."""
        return next(iter(self.may_be)) if len(self.may_be) == 1 else None

    def created(self, content: bytes, found: Created) -> Iterator[Violation]:
        """Note the answer to a create, or to a copy."""
        if found is Created.NEW and None not in self.may_be:
            yield Violation(Kind.DOUBLED, "it was created where something was")
        if found is Created.EQUAL and content not in self.may_be:
            yield Violation(Kind.WRONG, "its bytes are called those that somebody put before")
        if found is Created.OTHER:
            others = self.may_be - {content, None}
            if not others:
                yield Violation(Kind.WRONG, "other bytes than its own are said to be there")
            self.may_be = others or self.may_be
        else:
            self.may_be = frozenset((content,))

    def written(self, content: Digest, told: Told, *, creates: bool = False) -> None:
        """Note what became of a write.

        Args:
            content: None = a removal.
            creates: It does nothing where something is.
        """
        if told is Told.DONE:
            self.may_be = frozenset((content,))
        elif told is Told.UNKNOWN and (not creates or None in self.may_be):
            self.may_be |= {content}
        elif told is Told.REFUSED and content is not None:
            self.refused |= {content}

    def seen(self, content: Digest) -> Iterator[Violation]:
        """Note what a reader finds, which is then known."""
        if content in self.may_be:
            self.may_be = frozenset((content,))
        elif content is None:
            yield Violation(Kind.MISSING, "nothing is there, and a write was acknowledged")
        elif content in self.refused:
            yield Violation(Kind.WRONG, "what was refused is there")
        elif None in self.may_be:
            yield Violation(Kind.DOUBLED, "something is there after its removal")
        else:
            yield Violation(Kind.WRONG, "other bytes are there than were put last")


@dataclass(slots=True)
class Raced:
    """A key that several writers create, each with bytes of its own."""

    told: dict[bytes, Told] = field(default_factory=dict)

    def judged(self, there: Digest) -> Iterator[Violation]:
        """Yield what is wrong, once nobody writes.

        Args:
            there: What a reader found.
        """
        won = [content for content, told in self.told.items() if told is Told.DONE]
        if len(won) > 1:
            yield Violation(Kind.DOUBLED, f"{len(won)} writers were told that they were first")
        if there is None:
            if won or Told.LOST in self.told.values():
                yield Violation(Kind.MISSING, "nothing is there, and somebody was first")
        elif there not in self.told:
            yield Violation(Kind.WRONG, "nobody's bytes are there")
        elif self.told[there] in (Told.LOST, Told.REFUSED):
            said = self.told[there].value
            yield Violation(Kind.WRONG, f"the bytes that are there were told: {said}")
        elif won and there not in won:
            yield Violation(Kind.WRONG, "another writer's bytes are there than that of the first")


@dataclass(slots=True)
class Counted:
    """A key whose bytes say a number, which each exchange raises by one; several writers."""

    #: (number, nonce) → what its writer was told.
    told: dict[tuple[int, str], Told] = field(default_factory=dict)
    #: What readers saw.
    seen: set[tuple[int, str]] = field(default_factory=set)

    def judged(self, there: tuple[int, str]) -> Iterator[Violation]:
        """Yield what is wrong, once nobody writes; 0 is where it began."""
        nonces: dict[int, set[str]] = {}
        for number, nonce in self.seen | {there}:
            if number:
                nonces.setdefault(number, set()).add(nonce)
                said = self.told.get((number, nonce))
                if said in (None, Told.REFUSED):
                    why = "nobody" if said is None else said.value
                    yield Violation(Kind.WRONG, f"number {number} is there, and was told: {why}")
        won = Counter[int]()
        for (number, nonce), told in self.told.items():
            if told is Told.DONE:
                won[number] += 1
                nonces.setdefault(number, set()).add(nonce)
        for number, count in won.items():
            if count > 1:
                yield Violation(Kind.DOUBLED, f"{count} writers exchanged for number {number}")
            if number > there[0]:
                yield Violation(Kind.MISSING, f"number {number} was exchanged, it is {there[0]}")
        for number, different in nonces.items():
            if len(different) > 1 and won[number] < 2:
                yield Violation(Kind.DOUBLED, f"number {number} was there from two writers")
        # Who lost may have had it for a moment: its answer was lost, and another one was quicker.
        perhaps = {number for (number, _), told in self.told.items() if told is not Told.REFUSED}
        for number in range(1, there[0] + 1):
            if number not in perhaps:
                yield Violation(Kind.WRONG, f"nobody exchanged for number {number}")


@dataclass(slots=True)
class Record:
    """What the writers of one process did."""

    own: dict[str, OwnKey] = field(default_factory=dict)
    raced: dict[str, Raced] = field(default_factory=dict)
    counted: dict[str, Counted] = field(default_factory=dict)
    #: (operation, what was told) → how often.
    count: Counter[tuple[str, str]] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    #: Faults that requests met.
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, other: Record) -> None:
        """Take what another process did; own keys differ."""
        self.own |= other.own
        for key, raced in other.raced.items():
            self.raced.setdefault(key, Raced()).told |= raced.told
        for key, counted in other.counted.items():
            into = self.counted.setdefault(key, Counted())
            into.told |= counted.told
            into.seen |= counted.seen
        self.count += other.count
        self.violations += other.violations
        self.faults += other.faults
