"""Late stamping (protocol P1a): own runs that wait for their stamp, and announced ones of peers.

A run with many staged bytes is announced unstamped; it has no timestamp and no sequence number,
so it delays no other run.  Its origin stamps it when the acquisition quorum holds the files, or,
after the stage timeout, when it has checked that its own files are complete.  Runs of one session
are stamped in submit order, so a small run after a bulk run of its session waits here too.

A synchronous run waits here while there are fewer members than it needs holders, and is withdrawn
if it has no stamp in time (P34).  It never had one, so no node can order it.  The later runs of
its session wait here too, so none of them had one: those that may rest on it are withdrawn with it.
Synchronous runs, and those that they hold up in their sessions, have a part of the bounds (P3b), so
they take no room from others.

A run of a group waits here until as many of the group's sites hold its files as it needs, and is
withdrawn as a synchronous one is if they do not in time (P41).  So what is stamped waits for no
group, and a group whose sites are gone stops alone.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterable

from sparktxlog.errors import GroupAwayError, SynchroTimeoutError
from sparktxlog.model.tables.groups import CopiesNeeded, missing_text
from sparktxlog.protocol.messages.events import RunSubmitted, earliest
from sparktxlog.protocol.messages.posts import Announcement
from sparktxlog.protocol.messages.recovery import RecoveredAnnouncement

#: Most announcements of peers that are remembered; then the oldest are forgotten (P3b).
_MAX_FOREIGN = 1_024
#: Files of a run of a group that need more than a moment to be fetched.
_LARGE_BYTES = 8 << 20


class Unstamped:
    """An own run that was accepted and waits for its stamp."""

    __slots__ = (
        "check_at", "checked", "copies", "held_up", "holders", "may_end", "next_at", "patience_us",
        "pause_us", "ready", "submit", "submitted_at",
    )  # fmt: skip

    def __init__(self, submit: RunSubmitted, since: int, now: int, timeout_us: int, *, late: bool):
        self.submit = submit
        self.submitted_at = since
        #: So many members it waits for; of an ordinary run 0 (P34).
        self.holders = holders_awaited(submit)
        #: Copies that its groups need (P41).
        self.copies: tuple[CopiesNeeded, ...] = submit.facts.copies
        #: Whether it is withdrawn if it waits too long: it surely never had a stamp.
        self.may_end = _waits_for_members(submit)
        #: Whether it counts among the runs that wait for members.
        self.held_up = False
        #: A synchronous run may wait so much longer than others, for its files; one of a group only
        #: for large ones.
        is_small = self.copies and submit.staged_bytes < _LARGE_BYTES
        self.patience_us = timeout_us if late and not is_small else 0
        #: False: the quorum does not hold its files yet, and they were not found complete here.
        self.ready = not late
        #: When to have its files checked (again), and whether a check was requested.
        self.check_at = now + timeout_us
        self.checked = False
        #: When to repeat the announcement, and the pause after that (doubles).
        self.next_at = now
        self.pause_us = 0


class Staging:
    """Own unstamped runs, first in first out per session."""

    __slots__ = (
        "_lines", "_overdue_at", "_synchro_timeout_us", "_synchronous_in", "_timeout_us",
        "held_up_bytes", "held_up_runs", "payload_bytes", "runs",
    )  # fmt: skip

    def __init__(self, timeout_us: int, synchro_timeout_us: int) -> None:
        self._timeout_us = timeout_us
        self._synchro_timeout_us = synchro_timeout_us
        #: When to look for synchronous runs that waited too long; None = there are none.
        self._overdue_at: int | None = None
        #: By ticket, in submit order.
        self.runs: dict[int, Unstamped] = {}
        #: Per session: its unstamped runs; only the first may be stamped.
        self._lines: dict[str, deque[Unstamped]] = {}
        self.payload_bytes = 0
        #: Per session: how many synchronous runs it has here.
        self._synchronous_in: Counter[str] = Counter()
        #: Synchronous runs and those that they hold up; part of `runs` and `payload_bytes`.
        self.held_up_runs = self.held_up_bytes = 0

    def must_wait(self, session: str | None) -> bool:
        """Return whether a run of that session waits for its stamp."""
        return session is not None and session in self._lines

    def is_held_up(self, submit: RunSubmitted) -> bool:
        """Return whether a run waits for members here: it is synchronous, or comes after one."""
        return _waits_for_members(submit) or submit.session in self._synchronous_in

    def add(self, submit: RunSubmitted, now: int, wall: int, *, late: bool) -> None:
        """Add an own run that cannot be stamped at once.

        Args:
            wall: Wall clock: a synchronous run may have waited before a restart.
        """
        since = now
        if _waits_for_members(submit):
            since -= max(0, wall - (submit.submitted_at or 0))
        run = Unstamped(submit, since, now, self._timeout_us, late=late)
        self.runs[submit.ticket] = run
        self.payload_bytes += submit.size_bytes
        if self.is_held_up(submit):
            run.held_up = True
            self.held_up_runs += 1
            self.held_up_bytes += submit.size_bytes
        if submit.session is not None:
            self._lines.setdefault(submit.session, deque()).append(run)
            if run.may_end:
                self._synchronous_in[submit.session] += 1
        if run.may_end:
            self._overdue_at = earliest((self._overdue_at, self._gives_up_at(run)))

    def _gives_up_at(self, run: Unstamped) -> int:
        return run.submitted_at + run.patience_us + self._synchro_timeout_us

    def set_synchro_timeout(self, timeout_us: int, now: int) -> None:
        """Let synchronous runs wait longer or less long, those that wait already too."""
        self._synchro_timeout_us = timeout_us
        self._overdue_at = now if self._may_end() else None

    def synchronous(self) -> list[Unstamped]:
        """Return the synchronous runs that wait for their stamp, in submit order."""
        return [run for run in self.runs.values() if run.holders]

    def _may_end(self) -> list[Unstamped]:
        return [run for run in self.runs.values() if run.may_end]

    def give_up(self, now: int) -> list[RunSubmitted]:
        """Remove and return runs that waited too long for members (P34) or their group (P41)."""
        if self._overdue_at is None or now < self._overdue_at:
            return []
        waiting = self._may_end()
        overdue = [run for run in waiting if now >= self._gives_up_at(run)]
        for run in overdue:
            self._remove(run)
        left = (self._gives_up_at(run) for run in waiting if now < self._gives_up_at(run))
        self._overdue_at = min(left, default=None)
        return [run.submit for run in overdue]

    def withdraw(self, digest: bytes) -> list[RunSubmitted]:
        """Remove and return the runs of a digest: their files are lost."""
        found = [run for run in self.runs.values() if run.submit.digest == digest]
        for run in found:
            self._remove(run)
        return [run.submit for run in found]

    def take_followers(self, withdrawn: RunSubmitted) -> list[RunSubmitted]:
        """Remove and return the later runs of a session that rest on one that was withdrawn (P34).

        None of them may have had a stamp under an earlier incarnation, or that one may as well.
        """
        line = self._lines.get(withdrawn.session, ()) if withdrawn.session is not None else ()
        followers = [run for run in line if run.submit.rests_on(withdrawn)]
        for run in followers:
            self._remove(run)
        return [run.submit for run in followers]

    def may_have_a_stamp(self, digest: bytes) -> bool:
        """Return whether a run of a digest was accepted under an earlier incarnation."""
        found = (run.submit for run in self.runs.values() if run.submit.digest == digest)
        return any(submit.submitted_at is None for submit in found)

    def digest_of(self, transaction_id: bytes) -> bytes | None:
        """Return the digest of the unstamped run that has a transaction, None if none has."""
        for run in self.runs.values():
            ids = run.submit.facts.ids
            if any(ids[at : at + 16] == transaction_id for at in range(0, len(ids), 16)):
                return run.submit.digest
        return None

    def awaited(self) -> Iterable[Unstamped]:
        """Return the runs whose files the quorum does not hold yet, in submit order."""
        return (run for run in self.runs.values() if not run.ready)

    def take_overdue(self, now: int) -> list[bytes]:
        """Return the digests of runs that have waited long enough, once in each stage timeout."""
        overdue = [run for run in self.awaited() if now >= run.check_at]
        for run in overdue:
            run.checked, run.check_at = True, now + self._timeout_us
        return [run.submit.digest for run in overdue]

    def found_whole(self, digest: bytes) -> bool:
        """Allow runs that waited long enough to be stamped; return whether there are any."""
        awaited = [run for run in self.awaited() if run.checked and not run.copies]
        found = [run for run in awaited if run.submit.digest == digest]
        for run in found:
            run.ready = True
        return bool(found)

    def take_ready(self, members: int) -> list[RunSubmitted]:
        """Remove and return the runs that may be stamped now, in order.

        Args:
            members: Of the present view: a run that needs more holders goes on waiting (P34).
        """
        taken: list[RunSubmitted] = []
        for run in list(self.runs.values()):
            if run.holders <= members:
                self._take(run, taken)
        return taken

    def _take(self, run: Unstamped, taken: list[RunSubmitted]) -> None:
        submit = run.submit
        line = self._lines.get(submit.session) if submit.session is not None else None
        if line is not None and line[0] is not run:
            return
        if not run.ready:
            return
        self._remove(run)
        taken.append(submit)

    def _remove(self, run: Unstamped) -> None:
        submit = run.submit
        del self.runs[submit.ticket]
        self.payload_bytes -= submit.size_bytes
        if run.held_up:
            self.held_up_runs -= 1
            self.held_up_bytes -= submit.size_bytes
        if submit.session is None:
            return
        line = self._lines[submit.session]
        line.remove(run)
        if not line:
            del self._lines[submit.session]
        if run.may_end:
            self._synchronous_in[submit.session] -= 1
            if not self._synchronous_in[submit.session]:
                del self._synchronous_in[submit.session]

    def take_unannounced(self, now: int, least_us: int, most_us: int) -> list[RunSubmitted]:
        """Return the runs to announce (again) now; their pause doubles within the bounds.

        **When to call:** as a member.
        """
        due: list[RunSubmitted] = []
        for run in self.awaited():
            if run.next_at <= now:
                run.pause_us = min(max(2 * run.pause_us, least_us), most_us)
                run.next_at = now + run.pause_us
                due.append(run.submit)
                if run.copies and not run.may_end:
                    self._take_up(run, now)
        return due

    def _take_up(self, run: Unstamped, now: int) -> None:
        """Let a run of a group that an earlier incarnation accepted end, too (P41).

        It may have had a stamp there.  A member's queue has all that was ordered of those, so from
        now on nobody orders it but this node.
        """
        run.may_end, run.submitted_at = True, now
        if run.submit.session is not None:
            self._synchronous_in[run.submit.session] += 1
        self._overdue_at = earliest((self._overdue_at, self._gives_up_at(run)))

    def next_deadline(self) -> int | None:
        """Return the next stage timeout or repetition, None if nothing waits."""
        return min((min(run.check_at, run.next_at) for run in self.awaited()), default=None)

    @property
    def overdue_at(self) -> int | None:
        """When to `give_up`, None = never."""
        return self._overdue_at


class _Coming:
    __slots__ = ("announcement", "failures", "fetching", "held_at", "next_at")

    def __init__(self, announcement: Announcement, now: int) -> None:
        self.announcement = announcement
        self.failures = 0
        self.fetching = False
        #: Shell's time since when its files are durable here, None = not yet.
        self.held_at: int | None = None
        self.next_at = now


class Prefetching:
    """Announced runs of peers: those whose files are held here, and those to fetch now."""

    __slots__ = ("_coming", "_keep_us", "_limit", "_retry_us")

    def __init__(self, *, limit: int, retry_us: int, keep_us: int) -> None:
        self._limit = limit
        #: Held files are reported for so long; if their run still waits, it is announced again.
        self._keep_us = keep_us
        self._retry_us = retry_us
        self._coming: OrderedDict[bytes, _Coming] = OrderedDict()

    @property
    def held(self) -> tuple[bytes, ...]:
        """Return the digests of announced runs whose files are durable here, sorted."""
        if not self._coming:
            return ()
        return tuple(sorted(d for d, coming in self._coming.items() if coming.held_at is not None))

    def announce(self, announcement: Announcement, now: int) -> None:
        """Add a peer's announcement; repetitions change nothing."""
        if announcement.digest not in self._coming:
            self._coming[announcement.digest] = _Coming(announcement, now)
            if len(self._coming) > _MAX_FOREIGN:
                self._coming.popitem(last=False)

    def holds(self, digest: bytes, now: int) -> bool:
        """Note that the files are durable here; return whether that is news."""
        coming = self._coming.get(digest)
        if coming is None or coming.held_at is not None:
            return False
        coming.held_at, coming.fetching = now, False
        return True

    def failed(self, digest: bytes, now: int) -> None:
        """Plan the next attempt of a prefetch that failed."""
        coming = self._coming.get(digest)
        if coming is not None and coming.fetching:
            coming.fetching = False
            coming.next_at = now + self._retry_us * min(1 << coming.failures, 64)
            coming.failures += 1

    def forget(self, digest: bytes) -> None:
        """Drop a run that has its stamp and is durable here."""
        self._coming.pop(digest, None)

    def start(self, now: int) -> list[Announcement]:
        """Return the runs whose files to fetch now."""
        if not self._coming:
            return []
        # Its origin may have stamped it before the announcement came; only this removes those.
        for digest, old in list(self._coming.items()):
            if old.held_at is not None and now >= old.held_at + self._keep_us:
                del self._coming[digest]
        free = self._limit - sum(coming.fetching for coming in self._coming.values())
        started: list[Announcement] = []
        for coming in self._coming.values():
            if free <= len(started):
                break
            waiting = coming.held_at is None and not coming.fetching
            if waiting and coming.next_at <= now:
                coming.fetching = True
                started.append(coming.announcement)
        return started

    def next_deadline(self) -> int | None:
        """Return when the next prefetch may start, None if none waits or all slots are busy."""
        if not self._coming:
            return None
        waiting = [c.next_at for c in self._coming.values() if c.held_at is None and not c.fetching]
        busy = sum(coming.fetching for coming in self._coming.values())
        return min(waiting) if waiting and busy < self._limit else None


def holders_awaited(submit: RunSubmitted) -> int:
    """Return how many members a view must have before a run is stamped, 0 = any (P34)."""
    return 0 if submit.submitted_at is None else submit.facts.holders


def _waits_for_members(submit: RunSubmitted) -> bool:
    """Return whether a run that never had a stamp waits for members (P34), or its group (P41)."""
    return submit.submitted_at is not None and bool(submit.facts.holders or submit.facts.copies)


def is_late(submit: RunSubmitted, inline_limit_bytes: int, quorum: int) -> bool:
    """Return whether a run is stamped only when others hold its files (P1a, P41)."""
    if submit.facts.copies:
        return True
    return submit.staged_bytes > inline_limit_bytes and quorum > 1


def why_given_up(submit: RunSubmitted, holding: Collection[str], members: int) -> tuple[str, str]:
    """Return code and reason of a run that waited too long for its stamp.

    Args:
        holding: Members that hold its files durably.
        members: How many there are.
    """
    if text := missing_text(submit.facts.copies, holding):
        return GroupAwayError.code, text
    needed = submit.facts.holders
    if not needed:
        return (
            GroupAwayError.code,
            "the sites of its groups hold it, and it got no timestamp in time",
        )
    text = f"it needs {needed} holders, the log has {members} members"
    if needed <= members:
        text = f"it needs {needed} holders of {members} members, and got no timestamp in time"
    return SynchroTimeoutError.code, text


def files_are_held(run: Unstamped, holding: Collection[str], quorum: int) -> bool:
    """Return whether enough members hold a run's files: a quorum, or those of its groups.

    Args:
        holding: Members that hold them durably, this node included.
    """
    if run.copies:
        return not missing_text(run.copies, holding)
    return len(holding) >= quorum


def recovered_submit(waiting: RecoveredAnnouncement) -> RunSubmitted:
    """Return the submit event of a recovered announcement."""
    return RunSubmitted(
        ticket=waiting.ticket,
        digest=waiting.digest,
        size_bytes=waiting.size_bytes,
        staged_bytes=waiting.staged_bytes,
        facts=waiting.facts,
        session=waiting.session,
        submitted_at=waiting.submitted_at,
        stands_alone=waiting.stands_alone,
    )
