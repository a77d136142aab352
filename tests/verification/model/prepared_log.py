"""A small model of prepared transactions: the rules of P35, and designs that were rejected.

A log is a list of words, one transaction each; the first stands at position 1.  A design says what
is known of each transaction once a log was folded.  All logs of a few words are made, so a design
that breaks a promise has its shortest history here (docs/decisions/0046-prepared-transactions.md).
There is one table, `t`, and one prepared transaction, `X`, of the participants `a` and `b`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import NamedTuple

PARTICIPANTS = frozenset("ab")


class Word(NamedTuple):
    """One transaction of the log."""

    name: str
    #: `write` and `change` the table, `prepare` a write to it; `yes` or `no` to the prepared one.
    kind: str
    #: Who says yes or no.
    by: str = ""
    #: What it writes rests on the table as it was there; None = on nothing.
    read: int | None = None


class Outcome(NamedTuple):
    """What everybody may be told of a transaction."""

    #: `committed`, or why it is not.
    code: str
    #: Position where it takes effect, or where it was found that it does not; 0 = not said.
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One of the nodes that fold a log; they must not differ in what they tell."""

    #: How far its clock is ahead of log time.
    ahead: int = 0
    #: It began with a summary at this position.
    joined: int = 0
    #: Words that it took and that are not ordered yet.
    waiting: tuple[Word, ...] = ()


Outcomes = dict[str, Outcome]


@dataclass(slots=True)
class _Fold:
    """What is known at a position."""

    end: int = 0
    known: Outcomes = field(default_factory=dict)
    written: int = 0
    changed: bool = False
    #: The undecided one, where it stands, and who said YES.
    held: Word | None = None
    ordered: int = 0
    said: tuple[str, ...] = ()


class Design:
    """The rules as they were decided.  Log time is the position.

    Args:
        until: Log time after which `X` takes no effect.
    """

    def __init__(self, until: int) -> None:
        self.until = until

    def outcomes(self, log: Sequence[Word], site: Site = Site()) -> Outcomes:
        """Return what a site knows of each transaction; of an undecided one it knows nothing."""
        fold = _Fold()
        for word in log:
            if fold.end == site.joined:
                fold = self.summary(fold)
            fold.end += 1
            self.pass_time(fold, site)
            self.take(fold, word)
        return fold.known

    def summary(self, fold: _Fold) -> _Fold:
        """Return what a node that joins is given."""
        return replace(fold)

    def pass_time(self, fold: _Fold, site: Site) -> None:
        """Decide what has expired before the word that is taken next."""
        if fold.held is not None and fold.end > self.until:
            self.decide(fold, "expired-transaction")

    def take(self, fold: _Fold, word: Word) -> None:
        """Take in the next word."""
        if word.kind in ("yes", "no"):
            self.mark(fold, word)
        elif word.kind == "prepare" and fold.end > self.until:
            fold.known[word.name] = Outcome("expired-transaction", fold.end)
        elif code := self.misfit(fold, word):
            fold.known[word.name] = Outcome(code, fold.end)
        elif word.kind != "prepare":
            self.commit(fold, word)
        else:
            fold.held, fold.ordered = word, fold.end

    def mark(self, fold: _Fold, word: Word) -> None:
        """Let a participant say YES or NO."""
        if fold.held is None or not self.is_participant(word):
            return
        if word.kind == "no":
            self.decide(fold, "rolled-back")
            return
        fold.said += (word.by,)
        if self.is_complete(fold):
            self.complete(fold)

    def is_participant(self, word: Word) -> bool:
        """Return whether a mark counts."""
        return word.by in PARTICIPANTS

    def is_complete(self, fold: _Fold) -> bool:
        """Return whether all said YES."""
        return set(fold.said) == PARTICIPANTS

    def complete(self, fold: _Fold) -> None:
        """Judge the prepared one where it would take effect."""
        assert fold.held is not None
        self.decide(fold, self.misfit(fold, fold.held))

    def decide(self, fold: _Fold, code: str) -> None:
        """Commit the prepared one here, or say why not."""
        assert fold.held is not None
        if code:
            fold.known[fold.held.name] = Outcome(code, fold.end)
        else:
            self.commit(fold, fold.held)
        fold.held, fold.said = None, ()

    def misfit(self, fold: _Fold, word: Word) -> str:
        """Return why a transaction takes no effect at this position, empty = it does."""
        if fold.changed:
            return "stale-schema"
        return "conflict" if word.read is not None and fold.written > word.read else ""

    def commit(self, fold: _Fold, word: Word) -> None:
        """Let a transaction take effect at this position."""
        fold.known[word.name] = Outcome("committed", fold.end)
        fold.written = fold.end
        fold.changed |= word.kind == "change"


# -- rejected designs ------------------------------------------------------------------------------


class EffectWhereOrdered(Design):
    """What was prepared takes effect at its own position, once all said YES."""

    def outcomes(self, log: Sequence[Word], site: Site = Site()) -> Outcomes:
        """Return the outcomes as if an undecided one was not there."""
        plain = [word._replace(kind="write") if word.kind == "prepare" else word for word in log]
        decided = super().outcomes(log, site)
        committed = {name for name, found in decided.items() if found.code == "committed"}
        prepared = {word.name for word in log if word.kind == "prepare"}
        absent = prepared - committed
        kept = [word._replace(kind="none") if word.name in absent else word for word in plain]
        found = _Replay(self.until).outcomes(kept, site)
        return found | {name: decided[name] for name in absent & decided.keys()}


class _Replay(Design):
    def take(self, fold: _Fold, word: Word) -> None:
        """Pass over what is not there."""
        if word.kind != "none":
            super().take(fold, word)


class OthersWait(Design):
    """What comes after an undecided one is told nothing until that is decided."""

    def outcomes(self, log: Sequence[Word], site: Site = Site()) -> Outcomes:
        """Return what is known up to the undecided one."""
        found = super().outcomes(log, site)
        places = [at for at, w in enumerate(log) if w.kind == "prepare" and w.name not in found]
        return super().outcomes(log[: places[0]], site) if places else found


class JudgedWhereOrdered(Design):
    """What fits where it was ordered takes effect, whatever happened since."""

    def complete(self, fold: _Fold) -> None:
        """Commit without another look."""
        self.decide(fold, "")


class MarksCounted(Design):
    """As many marks suffice as there are participants."""

    def is_complete(self, fold: _Fold) -> bool:
        """Return whether there are enough."""
        return len(fold.said) == len(PARTICIPANTS)


class AnybodyMarks(Design):
    """Nobody looks who says NO."""

    def is_participant(self, word: Word) -> bool:
        """Let everybody speak."""
        return True


class NoUndoes(Design):
    """A participant may say NO after the last YES."""

    def mark(self, fold: _Fold, word: Word) -> None:
        """Let the newest word count."""
        decided = fold.known.get("X", Outcome("", 0))
        if word.kind == "no" and decided.code == "committed" and self.is_participant(word):
            fold.known["X"] = Outcome("rolled-back", fold.end)
        super().mark(fold, word)


class OwnClock(Design):
    """A site rejects what expired by its own clock."""

    def pass_time(self, fold: _Fold, site: Site) -> None:
        """Ask the site's clock."""
        if fold.held is not None and fold.end + site.ahead > self.until:
            self.decide(fold, "expired-transaction")


class ToldAtOnce(Design):
    """Who says NO is told at once that it is rolled back, before the NO is ordered."""

    def outcomes(self, log: Sequence[Word], site: Site = Site()) -> Outcomes:
        """Return what is known, and what is hoped."""
        found = super().outcomes(log, site)
        prepared = [w.name for w in log if w.kind == "prepare" and w.name not in found]
        if prepared and any(w.kind == "no" and w.by in PARTICIPANTS for w in site.waiting):
            found[prepared[0]] = Outcome("rolled-back", 0)
        return found


class SummaryWithoutMarks(Design):
    """A node that joins is told what is undecided, and not who said YES."""

    def summary(self, fold: _Fold) -> _Fold:
        """Forget the marks."""
        return replace(fold, said=())


class SummaryWithoutUndecided(Design):
    """A node that joins is told what took effect, as before there were prepared ones."""

    def summary(self, fold: _Fold) -> _Fold:
        """Forget the undecided one."""
        return replace(fold, held=None, said=())


class LateYesCounts(Design):
    """Time is looked at after a word, so the last YES may come too late."""

    def pass_time(self, fold: _Fold, site: Site) -> None:
        """Decide what has expired before the former word."""
        if fold.held is not None and fold.end - 1 > self.until:
            self.decide(fold, "expired-transaction")


# -- promises --------------------------------------------------------------------------------------


def broken_promise(design: Design, log: Sequence[Word]) -> str:
    """Return what a design breaks in a log, empty = nothing; shorter logs are looked at before."""
    found = design.outcomes(log)
    for promise in (_told_stays, _nothing_waits, _reads_hold, _all_or_nothing, _sites_agree):
        if broken := promise(design, log, found):
            return broken
    return ""


def _told_stays(design: Design, log: Sequence[Word], found: Outcomes) -> str:
    """I7: what was told before the last words came is told now."""
    for end in range(len(log)):
        site = Site(waiting=tuple(log[end:]))
        for name, told in design.outcomes(log[:end], site).items():
            now = found.get(name)
            if now != told and (told.place or (now is not None and now.code != told.code)):
                return f"told: {name} was {told}, and is {now}"
    return ""


def _nothing_waits(design: Design, log: Sequence[Word], found: Outcomes) -> str:
    """Whatever is not prepared has an outcome where it is ordered."""
    if log and log[-1].kind in ("write", "change") and log[-1].name not in found:
        return f"waits: {log[-1].name} has no outcome"
    return ""


def _reads_hold(design: Design, log: Sequence[Word], found: Outcomes) -> str:
    """P27, P33: what takes effect rests on what is there at that place."""
    words = {word.name: word for word in log}
    effects = sorted((o.place, name) for name, o in found.items() if o.code == "committed")
    for place, name in effects:
        read = words[name].read
        for at, other in effects:
            if at < place and words[other].kind == "change":
                return f"schema: {name} takes effect at {place} after a change at {at}"
            if read is not None and read < at < place:
                return f"read: {name} read at {read}, {other} wrote at {at}, before {place}"
    return ""


def _all_or_nothing(design: Design, log: Sequence[Word], found: Outcomes) -> str:
    """P35: all YES and no NO, in time, is a commit; and nothing else is."""
    for x, word in enumerate(log, start=1):
        if word.kind != "prepare":
            continue
        told = found.get(word.name)
        if told is not None and told.place <= x:
            continue  # decided where it was ordered, which the other promises judge
        end = len(log) if told is None else told.place
        said = [(at, w) for at, w in enumerate(log, start=1) if x < at <= end]
        yes = {w.by for at, w in said if w.kind == "yes" and at <= design.until}
        no = any(w.kind == "no" and w.by in PARTICIPANTS for _, w in said)
        ready, late = yes >= PARTICIPANTS and not no, end > design.until
        if told is None and (ready or late or no):
            return f"decided: {word.name} is undecided"
        if told is not None and told.code == "committed" and not ready:
            return f"decided: {word.name} is committed without all"
        codes = ("rolled-back", "expired-transaction")
        if told is not None and told.code in codes and (ready or not (no or late)):
            return f"decided: {word.name} is {told.code}"
    return ""


def _sites_agree(design: Design, log: Sequence[Word], found: Outcomes) -> str:
    """P25b: clocks, and where a node began, make no difference."""
    sites = [Site(ahead=1), *(Site(joined=at) for at in range(1, len(log)))]
    for site in sites:
        if (other := design.outcomes(log, site)) != found:
            return f"sites: {site} has {other}, others {found}"
    return ""


# -- all logs --------------------------------------------------------------------------------------

#: The prepared one: it rests on what it read, or on nothing.
PREPARED = (Word("X", "prepare", read=0), Word("X", "prepare"))
#: What else may stand in a log; each once.
WORDS = (
    Word("a-yes", "yes", "a"),
    Word("a-again", "yes", "a"),
    Word("b-yes", "yes", "b"),
    Word("b-no", "no", "b"),
    Word("stranger", "no", "s"),
    Word("write", "write"),
    Word("reader", "write", read=0),
    Word("change", "change"),
)
#: Longest log, and the log times after which the prepared one takes no effect.
LONGEST, UNTIL = 5, (3, 9)


def logs() -> Iterator[tuple[Word, ...]]:
    """Yield all logs with the prepared one, the short ones first."""
    for length in range(LONGEST):
        for others in permutations(WORDS, length):
            for place in range(length + 1):
                for prepared in PREPARED:
                    yield (*others[:place], prepared, *others[place:])


def shortest_counterexample(
    make: Callable[[int], Design], most: int = LONGEST
) -> tuple[list[str], str] | None:
    """Return the first log in which a design breaks a promise, and which; None = there is none."""
    for log in logs():
        if len(log) > most:
            break
        for until in UNTIL:
            if broken := broken_promise(make(until), log):
                return [word.name for word in log], broken
    return None
