"""Schedules a fetch: which chunk is next, from which donor, and which files are complete.

All threads of a fetch share it; every method takes the one lock and returns soon, except `take` and
`take_whole`, which wait.

    missing ──take──► in flight ──placed──► … ──all placed──► whole ──proved──► finished
       ▲                  │ failed                refuted         │ strand
       └──────────────────┴───────────────────────────┘           └► nobody can prove it

A fetch is over when all files are finished, when it is halted, or when nothing moves any more:
then `error` says why.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sparktxlog.errors import (
    DamagedChunkError,
    FileChangedError,
    LeaseGoneError,
    TransportError,
    TxLogError,
    UnauthorizedError,
)
from sparktxlog.worker.copy.fetch.tasks import FileTask, chunk_count

_logger = logging.getLogger(__name__)

#: Times that a file whose chunks were right one by one is fetched as a whole.
_ROUNDS = 2


@dataclass(slots=True, kw_only=True, eq=False)
class FileWork:
    """A file that is being fetched, or a part of it; picklable."""

    task: FileTask
    chunk_bytes: int
    #: Chunks that no thread fetches yet, descending: the last element is taken first.
    missing: list[int]
    #: Chunk → binary SHA-256, for chunks whose bytes are in place.
    digests: dict[int, bytes] = field(default_factory=dict)
    in_flight: int = 0
    #: Indexes of the donors that have exactly this file.
    donors: set[int] = field(default_factory=lambda: {0})
    #: The first donor's tree digest, hexadecimal, once it is known.
    expected: str | None = None
    rounds: int = 1

    @classmethod
    def whole(cls, task: FileTask, chunk_bytes: int) -> FileWork:
        """Return the work on a file without present chunks."""
        missing = list(reversed(range(chunk_count(task.size_bytes, chunk_bytes))))
        return cls(task=task, chunk_bytes=chunk_bytes, missing=missing)

    def length(self, chunk: int) -> int:
        """Return the bytes of a chunk."""
        return min(self.chunk_bytes, self.task.size_bytes - chunk * self.chunk_bytes)

    @property
    def missing_bytes(self) -> int:
        """Bytes of the chunks that no thread fetches yet."""
        return sum(map(self.length, self.missing))

    def keep(self, found: Mapping[int, bytes]) -> None:
        """Note chunks that are already in place: chunk → binary SHA-256."""
        self.digests |= found
        self.missing = [chunk for chunk in self.missing if chunk not in found]


@dataclass(slots=True, kw_only=True)
class DonorState:
    """State of a donor in the schedule."""

    node_id: str
    #: Files that it may serve, in order; may include files that it can no longer serve.
    ready: deque[FileWork] = field(default_factory=deque)
    in_flight: int = 0
    #: Why it was given up, None while it is in use.
    error: TxLogError | None = None


class Schedule:
    """The state of one fetch.

    Args:
        files: What is to be fetched.
        node_ids: Nodes of the donors, the first one's digests decide.
        matching: Times that `matching_over` will be called, after calls of `match`.
        proving: False = a file is finished when its chunks are in place.
    """

    def __init__(
        self,
        files: Sequence[FileWork],
        node_ids: Sequence[str],
        *,
        matching: int = 0,
        proving: bool = True,
    ) -> None:
        self._donors = [DonorState(node_id=node_id) for node_id in node_ids]
        #: Bytes put in place, uncompressed and as sent.
        self.fetched_bytes = 0
        self.wire_bytes = 0
        #: Why the fetch cannot go on.
        self.error: TxLogError | None = None
        self._changed = threading.Condition()
        self._unfinished = len(files)
        self._whole = deque[FileWork]()
        #: Files that `take_whole` gave out.
        self._in_proof = 0
        self._matching = matching
        self._proving = proving
        self._halted = False
        for file in files:
            if file.missing:
                for donor in sorted(file.donors):
                    self._donors[donor].ready.append(file)
            else:
                self._note_whole(file)

    @property
    def over(self) -> bool:
        """Whether nothing more will be taken."""
        return self._halted or self.error is not None or not self._unfinished

    def wait_over(self, timeout_s: float) -> bool:
        """Wait until the fetch is over, or for some seconds; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self.over, timeout_s)

    def halt(self) -> None:
        """Stop: nothing more is taken."""
        with self._changed:
            self._halted = True
            self._changed.notify_all()

    def fail(self, error: TxLogError) -> None:
        """Stop with an error; the first one counts."""
        with self._changed:
            if self.error is None:
                self.error = error
            self._changed.notify_all()

    # -- chunks ------------------------------------------------------------------------------------

    def take(self) -> tuple[int, FileWork, int] | None:
        """Wait for a chunk to fetch: donor, file, number; None when the fetch is over."""
        with self._changed:
            while not self.over:
                donor = self._free_donor()
                if donor is not None:
                    file = self._donors[donor].ready[0]
                    self._donors[donor].in_flight += 1
                    file.in_flight += 1
                    return donor, file, file.missing.pop()
                if self._stuck():
                    self.fail(self._no_donor_left())
                    break
                self._changed.wait()
            return None

    def _free_donor(self) -> int | None:
        """Return the donor with the fewest requests under way that can serve a file.

        A faster donor often has fewer, so it gets more chunks.
        """
        best = None
        for index, donor in enumerate(self._donors):
            if donor.error is not None:
                continue
            ready = donor.ready
            while ready and not (ready[0].missing and index in ready[0].donors):
                ready.popleft()
            if ready and (best is None or donor.in_flight < self._donors[best].in_flight):
                best = index
        return best

    def _stuck(self) -> bool:
        busy = any(donor.in_flight for donor in self._donors)
        return not (busy or self._whole or self._in_proof or self._matching)

    def placed(self, donor: int, file: FileWork, chunk: int, digest: bytes, wire: int) -> None:
        """Note that a chunk's bytes are in place.

        Args:
            digest: Binary SHA-256 of the plain bytes.
            wire: Bytes as sent.
        """
        with self._changed:
            self._donors[donor].in_flight -= 1
            file.in_flight -= 1
            file.digests[chunk] = digest
            self.fetched_bytes += file.length(chunk)
            self.wire_bytes += wire
            if not file.missing and not file.in_flight:
                self._note_whole(file)
                self._changed.notify_all()

    def _note_whole(self, file: FileWork) -> None:
        if self._proving:
            self._whole.append(file)
        else:
            self._unfinished -= 1

    def failed(self, donor: int, file: FileWork, chunk: int, error: TxLogError) -> None:
        """Return a chunk that was not fetched, for another donor.

        Args:
            error: FileChangedError = the donor lacks this file, which is the end if no other has
                it; any other = the donor is given up.
        """
        with self._changed:
            self._donors[donor].in_flight -= 1
            file.in_flight -= 1
            file.missing.append(chunk)
            if not isinstance(error, FileChangedError):
                self.drop(donor, error)
            else:
                file.donors.discard(donor)
                if not self._usable(file):
                    self.fail(error)
            self._offer(file)

    def _offer(self, file: FileWork) -> None:
        for index in self._usable(file):
            self._donors[index].ready.appendleft(file)
        self._changed.notify_all()

    def _usable(self, file: FileWork) -> set[int]:
        return {index for index in file.donors if self._donors[index].error is None}

    # -- donors ------------------------------------------------------------------------------------

    def drop(self, donor: int, error: TxLogError) -> None:
        """Give up a donor; its requests under way may still succeed."""
        with self._changed:
            state = self._donors[donor]
            # The end of a fetch cancels requests; that is not the donor's fault.
            if state.error is None and not self.over:
                _logger.info("donor %s is given up: %s", state.node_id, error.message)
                state.error = error
                state.ready.clear()
                self._changed.notify_all()

    def in_use(self, donor: int) -> bool:
        """Return whether a donor was not given up."""
        return self._donors[donor].error is None

    def match(self, donor: int, file: FileWork) -> None:
        """Note that another donor has exactly this file."""
        with self._changed:
            if self.in_use(donor) and donor not in file.donors:
                file.donors.add(donor)
                self._donors[donor].ready.append(file)
                self._changed.notify_all()

    def matching_over(self) -> None:
        """Note that one caller of `match` is done."""
        with self._changed:
            self._matching -= 1
            self._changed.notify_all()

    def _no_donor_left(self) -> TxLogError:
        errors = {d.node_id: d.error for d in self._donors if d.error is not None}
        if len(self._donors) == 1 and errors:
            return next(iter(errors.values()))
        kinds = {type(error) for error in errors.values()}
        if kinds in ({LeaseGoneError}, {UnauthorizedError}):
            return next(iter(errors.values()))
        reasons = "; ".join(f"{node}: {error.message}" for node, error in errors.items())
        return TransportError(
            f"no donor is left for {self._unfinished:,} files: {reasons}",
            hint="Ask the own node for a new ticket; what is fetched is kept and used again.",
            donors=sorted(errors),
            files=self._unfinished,
        )

    # -- whole files -------------------------------------------------------------------------------

    def take_whole(self, limit: int) -> list[FileWork] | None:
        """Wait for files whose chunks are all in place; None when the fetch is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._whole or self.over)
            if self.over:
                return None
            taken = [self._whole.popleft() for _ in range(min(limit, len(self._whole)))]
            self._in_proof += len(taken)
            return taken

    def proved(self, file: FileWork) -> None:
        """Note that a file equals the donor's, is durable, and in its place."""
        with self._changed:
            self._in_proof -= 1
            self._unfinished -= 1
            self._changed.notify_all()

    def strand(self, file: FileWork) -> None:
        """Note that no donor is left that could prove a file."""
        with self._changed:
            self._in_proof -= 1
            self._changed.notify_all()

    def refuted(self, file: FileWork) -> None:
        """Fetch a file again whose chunks do not match the donor's file; fail the second time.

        That happens if chunks of an earlier attempt belong to another file with this name.
        """
        with self._changed:
            self._in_proof -= 1
            if file.rounds == _ROUNDS:
                self.fail(
                    DamagedChunkError(
                        f"table {file.task.table!r}: {file.task.path} is not what its donor says, "
                        f"fetched {file.rounds} times",
                        hint="Copy from another site, and look at the donor's disk and memory.",
                        table=file.task.table,
                        path=file.task.path,
                    )
                )
                return
            file.rounds += 1
            file.missing = sorted(file.digests, reverse=True)
            file.digests.clear()
            # Its digest decides, so it is asked first.
            file.donors = self._usable(file) & {0} or file.donors
            self._offer(file)
