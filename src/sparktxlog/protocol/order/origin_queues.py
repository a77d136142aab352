"""The incoming queue as one stream per origin (protocol P1b, P4, P5).

A stream holds the runs of one origin after its watermark in the synchronized queue, without gaps in
sequence numbers.  Three numbers describe it; they only grow:

    watermark <= acquired <= known

Headers up to `known` are held, headers and payloads up to `acquired` are durable, transactions up
to `watermark` are in the synchronized queue.  A pushed run that arrives before its predecessors, or
while the node is frozen, is kept durably outside the stream (`early`).  It joins the stream when
the gap closes, or when a tail or a flush names it.
"""

from __future__ import annotations

from collections import deque

from sparktxlog.errors import ContradictionError
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.messages.posts import RunHeader


class Run:
    """A run of the incoming queue."""

    __slots__ = (
        "facts", "header", "key", "last", "replaced", "seen_at", "settled", "unsure", "wanted",
    )  # fmt: skip

    def __init__(self, header: RunHeader, seen_at: int) -> None:
        self.header = header
        #: Order key (epoch, ts, origin, seq), identical everywhere.
        self.key = header.key
        self.last = header.last
        #: Shell's time when the header came, microseconds.
        self.seen_at = seen_at
        #: None until header and payload are durable here; then the facts for the tables.
        self.facts: RunFacts | None = None
        #: The durable run that it replaces, which stays on disk until this one is durable (P32).
        self.replaced: Run | None = None
        #: True: a peer with a longer queue has it there.
        self.settled = False
        #: True: its payload is fetched, or will be.
        self.wanted = False
        #: True: a fetch of its payload failed; its origin is to name it again (P10).
        self.unsure = False


class Stream:
    """Runs of one origin after its watermark."""

    __slots__ = (
        "_by_seq", "_last_ts", "acquired", "early", "known", "origin", "payload_bytes", "runs",
        "watermark",
    )  # fmt: skip

    def __init__(self, origin: str, watermark: int) -> None:
        self.origin = origin
        self.watermark = watermark
        self.acquired = watermark
        self.known = watermark
        #: Ascending by seq, gapless from `watermark + 1` to `known`.
        self.runs: deque[Run] = deque()
        #: Durable runs outside the stream, by first sequence number.
        self.early: dict[int, Run] = {}
        self.payload_bytes = 0
        self._by_seq: dict[int, Run] = {}
        self._last_ts = 0

    def get(self, seq: int) -> Run | None:
        """Return the run that starts at `seq`, None if it is not in the stream."""
        return self._by_seq.get(seq)

    def register(self, header: RunHeader, now: int) -> Run:
        """Append the header that continues the stream.

        Raises:
            ContradictionError: The origin's timestamps do not rise.
        """
        assert header.seq == self.known + 1
        if header.ts <= self._last_ts:
            raise ContradictionError(
                f"run {self.origin}:{header.seq} is stamped {header.ts}, not above {self._last_ts}",
                peer=self.origin,
                seq=header.seq,
            )
        run = self.early.pop(header.seq, None)
        if run is None:
            run = Run(header, now)
        else:
            same_run(run.header, header)
        self._last_ts = header.ts
        self.known = run.last
        self.runs.append(run)
        self._by_seq[header.seq] = run
        self.payload_bytes += header.size_bytes
        if run.facts is not None:
            self._advance()
        return run

    @property
    def sure(self) -> int:
        """Number up to which headers need not be sent again; posts report it as known (P10)."""
        lacked = self._by_seq.get(self.acquired + 1)
        if lacked is not None and lacked.unsure and not lacked.settled:
            return self.acquired
        return self.known

    @property
    def held_to(self) -> int:
        """End of the durable runs, including those outside the stream."""
        early = self._continuing()
        return early[-1].last if early else self.acquired

    def held(self) -> list[Run]:
        """Return the runs after the watermark up to `held_to`, ascending."""
        return self.acquired_runs() + self._continuing()

    def acquired_runs(self) -> list[Run]:
        """Return the runs after the watermark up to `acquired`, ascending."""
        return [run for run in self.runs if run.last <= self.acquired]

    def _continuing(self) -> list[Run]:
        """Return the runs outside the stream that continue the acquired ones."""
        found: list[Run] = []
        seq = self.acquired
        while seq >= self.known and (run := self.early.get(seq + 1)) is not None:
            found.append(run)
            seq = run.last
        return found

    def keep_early(self, header: RunHeader, facts: RunFacts, now: int) -> bool:
        """Keep a durable run outside the stream; return False if it was kept before."""
        present = self.early.get(header.seq)
        if present is not None:
            same_run(present.header, header)
            return False
        run = Run(header, now)
        run.facts = facts
        self.early[header.seq] = run
        return True

    def acquire(self, run: Run, facts: RunFacts) -> None:
        """Note that a run of the stream is durable here."""
        run.facts = facts
        self._advance()

    def replace(self, header: RunHeader, now: int) -> Run:
        """Replace the run of a number of the stream; one of both is void (P32)."""
        old, run = self._by_seq[header.seq], Run(header, now)
        run.replaced = old.replaced if old.facts is None else old
        self.runs[self.runs.index(old)] = self._by_seq[header.seq] = run
        self.payload_bytes += header.size_bytes - old.header.size_bytes
        self.acquired = min(self.acquired, header.seq - 1)
        return run

    def _advance(self) -> None:
        while (run := self._by_seq.get(self.acquired + 1)) is not None and run.facts is not None:
            self.acquired = run.last

    def pop(self) -> Run:
        """Remove the first run: it was appended to the synchronized queue."""
        run = self.runs.popleft()
        del self._by_seq[run.header.seq]
        self.watermark = run.last
        self.payload_bytes -= run.header.size_bytes
        return run

    def truncate(self, seq: int) -> None:
        """Forget the runs after `seq`, including those after a gap."""
        while self.runs and self.runs[-1].last > seq:
            run = self.runs.pop()
            del self._by_seq[run.header.seq]
            self.payload_bytes -= run.header.size_bytes
        self.early.clear()
        self.known = self.runs[-1].last if self.runs else self.watermark
        self.acquired = min(self.acquired, self.known)
        self._last_ts = self.runs[-1].header.ts if self.runs else 0

    def breaks_promise(self, counter: int, last_seq: int) -> RunHeader | None:
        """Return a held header that contradicts the promise (counter, last_seq) (P10)."""
        for run in reversed(self.runs):
            if run.header.seq <= last_seq:
                break
            if run.header.ts <= counter:
                return run.header
        for seq, run in self.early.items():
            if seq > last_seq and run.header.ts <= counter:
                return run.header
        return None


def same_run(mine: RunHeader, theirs: RunHeader) -> None:
    """Check that two headers of one sequence number are one run.

    Raises:
        ContradictionError: The origin gave the number twice (it lost its disk, or two nodes
            share its name).
    """
    if mine != theirs:
        raise ContradictionError(
            f"two runs are called {mine.origin}:{mine.seq}: "
            f"{mine.digest.hex()[:12]}@{mine.ts} and {theirs.digest.hex()[:12]}@{theirs.ts}",
            hint="One of two disks is a copy, or an older image, of the other. If a node stops for "
            "it, run `sparktxlog peer quarantine --config FILE --from URL --rejoin` there (URL of "
            "a member): what only that node has goes to quarantine, and it joins again.",
            peer=mine.origin,
            seq=mine.seq,
        )
