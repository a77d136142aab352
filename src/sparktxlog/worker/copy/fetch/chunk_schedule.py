"""Which chunk is fetched next, from which donor, and what becomes of files whose chunks are here.

Shared by all threads of a fetch; every method takes the one lock and returns soon, but `take` and
`take_whole`, which wait.

    missing ──take──► in flight ──placed──► … ──all placed──► whole ──proved──► finished
       ▲                  │ put_back, drop        refuted         │ strand
       └──────────────────┴───────────────────────────┘           └► nobody can prove it

A fetch is over when all files are finished, when it is halted, or when nothing moves any more:
then `error` says why.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sparktxlog.errors import (
    DamagedChunkError,
    LeaseGoneError,
    TransportError,
    TxLogError,
    UnauthorizedError,
)
from sparktxlog.worker.copy.fetch.part_writer import PartWriter
from sparktxlog.worker.copy.fetch.tasks import FileTask, chunk_count

#: Times that a file whose chunks were right one by one is fetched as a whole.
_ROUNDS = 2


@dataclass(slots=True, kw_only=True, eq=False)
class FileWork:
    """A file that is being fetched."""

    task: FileTask
    #: Binary SHA-256 per chunk, None where its bytes are not in place.
    digests: list[bytes | None]
    #: Chunks nobody fetches yet, descending: the end is taken first.
    missing: list[int]
    #: Chunks of this fetch whose bytes are not in place.
    left: int
    #: Indexes of the donors that have this very file.
    donors: set[int]
    #: The first donor's tree digest, hexadecimal, once it is known.
    expected: str | None = None
    rounds: int = 1
    #: Of the `.part` file, while chunks are written.
    writer: PartWriter | None = None

    @classmethod
    def of(
        cls, task: FileTask, chunk_bytes: int, here: dict[int, bytes], donors: Iterable[int]
    ) -> FileWork:
        """Return the work on a file of which some chunks are here."""
        count = chunk_count(task.size_bytes, chunk_bytes)
        missing = [number for number in reversed(range(count)) if number not in here]
        return cls(
            task=task,
            digests=[here.get(number) for number in range(count)],
            missing=missing,
            left=len(missing),
            donors=set(donors),
        )


@dataclass(slots=True, kw_only=True)
class DonorState:
    """What the schedule knows of a donor."""

    node_id: str
    #: Files it may give, first one first; may name files it cannot give any more.
    ready: deque[FileWork] = field(default_factory=deque)
    in_flight: int = 0
    plain_bytes: int = 0
    #: Why it was given up, None while it is in use.
    error: TxLogError | None = None


class Schedule:
    """The state of one fetch.

    Args:
        files: What is to be fetched.
        node_ids: Nodes of the donors, the first one's digests decide.
        matching: True = `match` will be called, and `matching_over` in the end.
    """

    def __init__(
        self, files: Sequence[FileWork], node_ids: Sequence[str], *, matching: bool = False
    ) -> None:
        self.donors = [DonorState(node_id=node_id) for node_id in node_ids]
        self.wire_bytes = 0
        self.chunks = 0
        #: Why the fetch cannot go on.
        self.error: TxLogError | None = None
        self._changed = threading.Condition()
        self._unfinished = len(files)
        self._whole = deque(file for file in files if not file.left)
        self._proving = 0
        self._matching = matching
        self._halted = False
        for file in files:
            if file.left:
                for donor in sorted(file.donors):
                    self.donors[donor].ready.append(file)

    @property
    def over(self) -> bool:
        """Whether nothing more will be taken."""
        return self._halted or self.error is not None or not self._unfinished

    @property
    def finished(self) -> bool:
        """Whether all files are."""
        return not self._unfinished

    @property
    def plain_bytes(self) -> int:
        """Bytes put in place, plain."""
        return sum(donor.plain_bytes for donor in self.donors)

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
            self._fail(error)

    def _fail(self, error: TxLogError) -> None:
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
                    file = self.donors[donor].ready[0]
                    self.donors[donor].in_flight += 1
                    return donor, file, file.missing.pop()
                if self._stuck():
                    self._fail(self._no_donor_left())
                    break
                self._changed.wait()
            return None

    def _free_donor(self) -> int | None:
        """Return the donor with the fewest requests under way that has something to give.

        A faster donor is more often the one with fewer, and so gets more chunks.
        """
        best = None
        for index, donor in enumerate(self.donors):
            if donor.error is not None:
                continue
            ready = donor.ready
            while ready and not (ready[0].missing and index in ready[0].donors):
                ready.popleft()
            if ready and (best is None or donor.in_flight < self.donors[best].in_flight):
                best = index
        return best

    def _stuck(self) -> bool:
        busy = any(donor.in_flight for donor in self.donors)
        return not (busy or self._whole or self._proving or self._matching)

    def placed(
        self, donor: int, file: FileWork, number: int, digest: bytes, sizes: tuple[int, int]
    ) -> bool:
        """Note that a chunk's bytes are in place; return whether the file is whole now.

        Args:
            sizes: Bytes of the chunk, plain and as they travelled.

        **After calling**: if it is, close its writer, then `hand_over`.
        """
        with self._changed:
            state = self.donors[donor]
            state.in_flight -= 1
            state.plain_bytes += sizes[0]
            self.wire_bytes += sizes[1]
            self.chunks += 1
            file.digests[number] = digest
            file.left -= 1
            if file.left:
                return False
            self._proving += 1
            return True

    def hand_over(self, file: FileWork) -> None:
        """Offer a whole file to `take_whole`."""
        with self._changed:
            self._proving -= 1
            self._whole.append(file)
            self._changed.notify_all()

    def put_back(self, donor: int, file: FileWork, number: int) -> None:
        """Give a chunk back that was not fetched: another donor, or nobody, will."""
        with self._changed:
            self.donors[donor].in_flight -= 1
            file.missing.append(number)
            self._offer(file)

    def _offer(self, file: FileWork) -> None:
        for index in self._usable(file):
            self.donors[index].ready.appendleft(file)
        self._changed.notify_all()

    def _usable(self, file: FileWork) -> set[int]:
        return {index for index in file.donors if self.donors[index].error is None}

    # -- donors ------------------------------------------------------------------------------------

    def drop(self, donor: int, error: TxLogError) -> None:
        """Give a donor up; what it has under way may still come."""
        with self._changed:
            state = self.donors[donor]
            if state.error is None:
                state.error = error
            state.ready.clear()
            self._changed.notify_all()

    def lacks(self, donor: int, file: FileWork, error: TxLogError) -> None:
        """Note that a donor has a file no more; the end if no other has it."""
        with self._changed:
            file.donors.discard(donor)
            if not self._usable(file):
                self._fail(error)

    def in_use(self, donor: int) -> bool:
        """Return whether a donor was not given up."""
        return self.donors[donor].error is None

    def match(self, donor: int, file: FileWork) -> None:
        """Note that another donor has this very file."""
        with self._changed:
            if self.in_use(donor) and donor not in file.donors:
                file.donors.add(donor)
                self.donors[donor].ready.append(file)
                self._changed.notify_all()

    def matching_over(self) -> None:
        """Note that no `match` will follow."""
        with self._changed:
            self._matching = False
            self._changed.notify_all()

    def _no_donor_left(self) -> TxLogError:
        errors = {d.node_id: d.error for d in self.donors if d.error is not None}
        if len(self.donors) == 1 and errors:
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
            self._proving += len(taken)
            return taken

    def proved(self, files: Sequence[FileWork]) -> None:
        """Note that files are what the donor has, durable, and in their place."""
        with self._changed:
            self._proving -= len(files)
            self._unfinished -= len(files)
            self._changed.notify_all()

    def strand(self, files: Sequence[FileWork]) -> None:
        """Note that nobody is left who could prove these files."""
        with self._changed:
            self._proving -= len(files)
            self._changed.notify_all()

    def refuted(self, file: FileWork) -> None:
        """Fetch a file again whose chunks do not make the donor's file; the end the second time.

        That happens when chunks of an earlier attempt are of another file of this name.
        """
        with self._changed:
            self._proving -= 1
            if file.rounds == _ROUNDS:
                self._fail(
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
            file.missing = list(reversed(range(len(file.digests))))
            file.left = len(file.missing)
            file.digests = [None] * file.left
            # Its digest is the measure, so it is asked first.
            file.donors = self._usable(file) & {0} or file.donors
            self._offer(file)
