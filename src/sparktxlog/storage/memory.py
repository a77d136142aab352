"""Memory twins of the front and the payload store, for tests and the simulator.

They keep the same promises as the durable forms, behind the same test suites, and outlive a
simulated crash: give the same object to the next incarnation of the node.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import assert_never

import pyarrow as pa
import pyarrow.parquet as pq

from sparktxlog.codec.payload import read_manifest
from sparktxlog.errors import (
    ExpiredError,
    InvariantViolation,
    ManifestMismatchError,
    PayloadStoreError,
)
from sparktxlog.model.ids import check_relative_path
from sparktxlog.model.operation import RunFacts, StagedFile
from sparktxlog.model.table import TableDefinition
from sparktxlog.protocol.words.balloting import BallotState
from sparktxlog.protocol.words.messages import MergeBase, QueueEntry, RunHeader
from sparktxlog.protocol.words.recovery import RecoveredAnnouncement, RecoveredRun, RecoveredState
from sparktxlog.protocol.words.view import View
from sparktxlog.storage.interfaces import (
    AppendQueue,
    DropAnnouncement,
    DropExpired,
    ExpireLog,
    ForgetPayloads,
    JournalState,
    LogExtent,
    MarkPublished,
    OlderIdsFound,
    PutAnnouncement,
    PutBallot,
    PutReservation,
    PutRestamp,
    PutRun,
    PutValue,
    PutView,
    QueueSnapshot,
    ResetJournal,
    Segment,
    SegmentCut,
    ShrinkJournal,
    StoredEntry,
    Write,
)
from sparktxlog.storage.journal.epoch_changes import (
    check_own,
    check_restamp,
    check_snapshot,
    newer_view,
)
from sparktxlog.storage.journal.forgetting import held_bytes_of
from sparktxlog.storage.journal.log_expiry import cut_of, published_hash
from sparktxlog.storage.journal.waiting_ids import RunKey, WaitingIds, run_key


class MemoryFront:
    """`Journal` without a disk."""

    def __init__(self, *, id_window: int = 1_000_000) -> None:
        self._id_window = id_window
        self._reserved = 0
        self._incoming: dict[RunKey, tuple[RunHeader, bytes, RunFacts]] = {}
        self._payloads: dict[RunKey, bytes] = {}
        self._announced: dict[bytes, PutAnnouncement] = {}
        self._withdrawn: dict[bytes, tuple[str, str]] = {}
        self._queue: list[StoredEntry] = []
        #: Run ends, parallel to the queue.
        self._starts: list[int] = []
        self._tables: list[tuple[int, TableDefinition]] = []
        self._segments: list[Segment] = []
        self._watermarks: dict[str, int] = {}
        self._published = 0
        self._published_version = -1
        self._forgotten = 0
        self._pruned = 0
        self._kept_after = 0
        self._values: dict[str, bytes] = {}
        self._waiting = WaitingIds()
        self._view: View | None = None
        self._ballot: BallotState | None = None
        self._incarnation = 1
        self._resets = 0
        #: Ids before the first queue entry, as a snapshot brought them.
        self._recent: list[tuple[int, bytes]] = []

    def load(self, id_window: int) -> JournalState:
        """Read the state at start."""
        self._id_window = id_window
        base = MergeBase()
        base_key = (0, 0, "", 0)
        if self._queue:
            entry = self._queue[-1].entry
            base = MergeBase(
                position=entry.end,
                chain_hash=entry.chain_hash,
                origin=entry.header.origin,
                seq=entry.header.last,
            )
            base_key = entry.header.key
        core = RecoveredState(
            base=base,
            base_key=base_key,
            reserved=self._reserved,
            watermarks=dict(self._watermarks),
            incoming=[
                RecoveredRun(header=header, facts=facts)
                for header, _, facts in self._incoming.values()
            ],
            announcements=[_recovered(item) for item in self._announced.values()],
            tables=[table for _, table in sorted(self._tables, key=lambda t: (t[0], t[1].name))],
            view=self._view,
            ballot=self._ballot,
            recent_ids=self._recent_ids(base.position - id_window, base.position + 1),
            repeats=[
                (stored.entry.position + rejection.index, rejection.first)
                for stored in self._queue
                for rejection in stored.entry.rejections
                if rejection.first is not None and stored.entry.position > base.position - id_window
            ],
        )
        return JournalState(
            core=core,
            incarnation=self._incarnation,
            published=self._published,
            published_version=self._published_version,
            kept_after=self._kept_after,
            values=dict(self._values),
        )

    def _recent_ids(self, after: int, before: int) -> list[tuple[int, bytes]]:
        """Return the ids behind `after`, of runs that start before `before`."""
        queued = [(stored.entry.position, stored.ids) for stored in self._queue]
        return [
            (first, ids)
            for first, ids in (*self._recent, *queued)
            if first < before and first + len(ids) // 16 - 1 > after
        ]

    def write(self, writes: Sequence[Write]) -> None:
        """Carry out all writes, or none."""
        before = self._image()
        try:
            for write in writes:
                self._carry_out(write)
        except BaseException:
            self._restore(before)
            raise

    def _image(self) -> dict[str, object]:
        return {
            name: value.copy() if isinstance(value, (list, dict)) else value
            for name, value in vars(self).items()
            if name != "_waiting"
        }

    def _restore(self, image: dict[str, object]) -> None:
        vars(self).update(image)
        self._waiting = WaitingIds()
        for header, ids, _ in self._incoming.values():
            self._waiting.add(header, ids)

    def _carry_out(self, write: Write) -> None:
        match write:
            case PutRun():
                self._put_run(write)
            case AppendQueue():
                self._append_queue(write)
            case PutReservation():
                self._reserved = write.counter
            case PutAnnouncement() | DropAnnouncement():
                self._keep_announcement(write)
            case PutBallot():
                self._ballot = write.state
            case PutView():
                self._view, self._incarnation = write.view, write.incarnation
                self._drop_incoming(write.node_id, write.incarnation, 0)
            case PutRestamp():
                self._restamp(write.header)
            case ResetJournal():
                self._reset(write)
            case MarkPublished():
                self._mark_published(write)
            case ForgetPayloads():
                self._forget(write)
            case ExpireLog():
                self._expire(write)
            case DropExpired():
                gone = min(write.position, self._kept_after)
                self._segments = [s for s in self._segments if s.last > gone]
            case ShrinkJournal():
                pass
            case PutValue():
                self._values[write.name] = write.value
            case _:
                assert_never(write)

    def _keep_announcement(self, write: PutAnnouncement | DropAnnouncement) -> None:
        if isinstance(write, PutAnnouncement):
            self._announced.setdefault(write.digest, write)
            return
        gone = self._announced.pop(write.digest, None)
        ids = b"" if gone is None else read_manifest(gone.payload).ids
        for at in range(0, len(ids), 16):
            self._withdrawn[ids[at : at + 16]] = (write.code, write.text)

    def find_withdrawn(self, transaction_id: bytes) -> tuple[str, str] | None:
        """Return code and text of what a transaction was rejected for that never got a stamp."""
        return self._withdrawn.get(transaction_id)

    def _put_run(self, write: PutRun) -> None:
        header = write.header
        manifest = read_manifest(write.payload)
        if manifest.n != header.n:
            raise InvariantViolation(f"run {header.origin}/{header.seq}: counts differ")
        key = run_key(header)
        held = self._incoming.get(key)
        if held is not None and header.voids(held[0]):
            self._waiting.remove(held[0], held[1])
        elif held is not None:
            if held[0].digest != header.digest:
                raise InvariantViolation(f"two runs {key} of different content")
            if header.epoch > held[0].epoch:
                self._restamp(header)
            return
        self._incoming[key] = (header, manifest.ids, RunFacts.of(manifest))
        self._payloads[key] = write.payload
        self._announced.pop(header.digest, None)
        self._waiting.add(header, manifest.ids)

    def _restamp(self, header: RunHeader) -> None:
        held = self._incoming.get(run_key(header))
        check_restamp(header, None if held is None else held[0].digest)
        assert held is not None
        self._incoming[run_key(header)] = (header, held[1], held[2])
        self._waiting.add(header, held[1])

    def _drop_incoming(self, node_id: str, incarnation: int, upto: int) -> None:
        """Drop all incoming runs but those of one node and incarnation behind `upto`."""
        for key, (header, ids, _) in list(self._incoming.items()):
            if key[:2] != (node_id, incarnation) or header.seq <= upto:
                self._waiting.remove(header, ids)
                del self._incoming[key], self._payloads[key]

    def _reset(self, write: ResetJournal) -> None:
        snapshot, position = write.snapshot, write.snapshot.position
        check_snapshot(snapshot)
        check_own(write, self._incarnation, self._watermarks.get(write.node_id, 0))
        if write.incarnation is not None:
            self._incarnation = write.incarnation
        upto = snapshot.watermarks.get(write.node_id, 0)
        self._drop_incoming(write.node_id, self._incarnation, upto)
        self._payloads = {key: self._payloads[key] for key in self._incoming}
        self._queue = [] if snapshot.last is None else [snapshot.last]
        self._starts = [stored.entry.position for stored in self._queue]
        self._watermarks = dict(snapshot.watermarks)
        self._tables = list(snapshot.tables)
        self._recent = list(snapshot.recent_ids)
        self._segments = []
        self._published = self._forgotten = self._kept_after = position
        self._pruned = self._starts[0] - 1 if self._starts else 0
        self._published_version = -1
        self._view = newer_view(self._view, snapshot.view)
        self._resets += 1

    def _append_queue(self, write: AppendQueue) -> None:
        for entry in write.entries:
            self._check_next(entry)
            held = self._incoming.pop(run_key(entry.header), None)
            if held is None or held[0].digest != entry.header.digest:
                raise InvariantViolation(
                    f"run {run_key(entry.header)} does not stand in the incoming queue"
                )
            self._waiting.remove(held[0], held[1])
            self._queue.append(StoredEntry(entry=entry, ids=held[1], ordered_at=write.ordered_at))
            self._starts.append(entry.position)
            self._watermarks[entry.header.origin] = entry.header.last
        self._tables.extend(write.tables)

    def _check_next(self, entry: QueueEntry) -> None:
        end = self._queue[-1].entry.end if self._queue else 0
        chain_hash = self._queue[-1].entry.chain_hash if self._queue else bytes(32)
        if entry.position != end + 1 or entry.previous_hash != chain_hash:
            raise InvariantViolation(f"entry at {entry.position} does not follow {end}")

    def _mark_published(self, write: MarkPublished) -> None:
        end = self._queue[-1].entry.end if self._queue else 0
        if not self._published <= write.position <= end:
            raise InvariantViolation(f"published position {write.position} is outside the queue")
        self._published = write.position
        self._published_version = write.version
        self._segments = [s for s in self._segments if s.last != write.segment.last]
        self._segments.append(write.segment)

    def _forget(self, write: ForgetPayloads) -> None:
        limit = min(write.position, self._published)
        spare = limit if write.spare_after is None else write.spare_after
        held = [stored for stored in self._queue if stored.entry.end > self._forgotten]
        excess = sum(held_bytes_of(stored.entry.header) for stored in held) - write.spare_bytes
        for stored in held:
            if stored.entry.end > limit or (stored.entry.end > spare and excess <= 0):
                break
            self._payloads.pop(run_key(stored.entry.header), None)
            self._forgotten = stored.entry.end
            excess -= held_bytes_of(stored.entry.header)
        horizon = min(self._forgotten, self._published - max(self._id_window, 1))
        self._recent = [
            (first, ids) for first, ids in self._recent if first + len(ids) // 16 - 1 > horizon
        ]
        while self._queue and self._queue[0].entry.end <= horizon:
            self._pruned = self._queue[0].entry.end
            del self._queue[0], self._starts[0]

    def _expire(self, write: ExpireLog) -> None:
        if write.position <= self._kept_after:
            return
        ends = {segment.last: segment.to_hash for segment in self._segments}
        if ends.get(write.position) != write.chain_hash.hex():
            raise InvariantViolation(f"no segment ends at {write.position} with that hash")
        self._kept_after = write.position

    def read_payload(self, origin: str, incarnation: int, seq: int) -> bytes | None:
        """Return the payload container of the run that starts at `seq`, None if not held."""
        return self._payloads.get((origin, incarnation, seq))

    def read_announced(self, digest: bytes) -> bytes | None:
        """Return the payload container of an own unstamped run."""
        held = self._announced.get(digest)
        return None if held is None else held.payload

    def read_queue(self, after: int, limit_runs: int, *, payloads: bool) -> list[StoredEntry]:
        """Return queue entries that start after position `after`, ascending."""
        kept_after = max(self._pruned, self._kept_after)
        if after < kept_after:
            raise ExpiredError(f"expired up to {kept_after}", after=after, kept_after=kept_after)
        first = bisect_right(self._starts, after)
        found = self._queue[first : first + limit_runs]
        if not payloads:
            return found
        return [
            replace(stored, payload=self._payloads.get(run_key(stored.entry.header)))
            for stored in found
        ]

    def read_entry_at(self, position: int) -> StoredEntry | None:
        """Return the entry that holds `position`, without payload."""
        index = bisect_right(self._starts, position) - 1
        if index < 0 or self._queue[index].entry.end < position:
            return None
        return self._queue[index]

    def read_hash_at(self, position: int) -> bytes | None:
        """Return the chain hash at a run end, None if no run ends at `position`."""
        if position == 0:
            return bytes(32)
        held = self.read_entry_at(position)
        if held is not None:
            return held.entry.chain_hash if held.entry.end == position else None
        behind = self.read_entry_at(position + 1)
        if behind is not None:
            return behind.entry.previous_hash
        holding = next((one for one in self._segments if one.last >= position), None)
        return published_hash(holding, position, max(self._pruned, self._kept_after))

    def read_segments(self, after: int, limit: int) -> list[Segment]:
        """Return published segments that end after position `after`, ascending."""
        if after < self._kept_after:
            raise ExpiredError(
                f"expired up to {self._kept_after}", after=after, kept_after=self._kept_after
            )
        return [segment for segment in self._segments if segment.last > after][:limit]

    def read_extent(self) -> LogExtent:
        """Return what of the log is kept, and how large it is."""
        return LogExtent(
            kept_after=self._kept_after,
            files_bytes=sum(segment.files_bytes for segment in self._segments),
            live_bytes=self.size_bytes(),
            resets=self._resets,
        )

    def read_cuts(self, after: int, limit: int) -> list[SegmentCut]:
        """Return places behind position `after` where the log may be cut, ascending."""
        return [cut_of(segment) for segment in self._segments if segment.last > after][:limit]

    def read_expired(self, limit: int) -> list[Segment]:
        """Return expired segments that `DropExpired` has not named yet, ascending."""
        return [segment for segment in self._segments if segment.last <= self._kept_after][:limit]

    def read_snapshot(self) -> QueueSnapshot:
        """Return the queue at the end of what is published."""
        position = self._published
        if not position:
            return QueueSnapshot(view=self._view)
        last = self.read_entry_at(position)
        if last is None or last.entry.end != position:
            raise ExpiredError(f"the run that ends at {position} is gone", kept_after=position)
        watermarks = dict(self._watermarks)
        for stored in reversed(self._queue[bisect_right(self._starts, position) :]):
            watermarks[stored.entry.header.origin] = stored.entry.header.seq - 1
        return QueueSnapshot(
            last=last,
            watermarks={origin: seq for origin, seq in watermarks.items() if seq},
            tables=tuple(
                sorted(
                    ((at, table) for at, table in self._tables if at <= position),
                    key=lambda item: (item[0], item[1].name),
                )
            ),
            recent_ids=tuple(self._recent_ids(position - self._id_window, last.entry.position)),
            view=self._view,
        )

    def read_created(self, first: int, last: int) -> set[tuple[int, str]]:
        """Return position and name of the tables created from position `first` to `last`."""
        return {(at, table.name) for at, table in self._tables if first <= at <= last}

    def read_waiting_payloads(self) -> list[bytes]:
        """Return the payload containers of unpublished runs that may name staged files."""
        waiting = [held.payload for held in self._announced.values()]
        keys = [key for key, (header, _, _) in self._incoming.items() if header.staged_bytes]
        keys += [
            run_key(stored.entry.header)
            for stored in self._queue
            if stored.entry.end > self._published and stored.entry.header.staged_bytes
        ]
        return waiting + [self._payloads[key] for key in keys if key in self._payloads]

    def find_transaction(self, transaction_id: bytes) -> tuple[RunHeader, int] | None:
        """Return header and index of a transaction that waits in the incoming queue."""
        return self._waiting.find(transaction_id)

    @property
    def filed_ids(self) -> int:
        """Last position whose id is filed: none."""
        return 0

    def older_ids(self, ids: bytes) -> OlderIdsFound:
        """Look ids up among those of old positions: nothing is filed."""
        return OlderIdsFound()

    def size_bytes(self) -> int:
        """Bytes of the payloads held."""
        return sum(len(payload) for payload in self._payloads.values())

    def close(self) -> None:
        """Keep everything: the next incarnation of the node reads it."""


def _recovered(item: PutAnnouncement) -> RecoveredAnnouncement:
    manifest = read_manifest(item.payload)
    return RecoveredAnnouncement(
        ticket=item.ticket,
        digest=item.digest,
        size_bytes=len(item.payload),
        staged_bytes=manifest.staged_bytes,
        facts=RunFacts.of(manifest),
        session=item.session,
    )


class MemoryPayloadStore:
    """`PayloadStore` without a disk; `put` stands for what a submitter or publisher writes."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._partial: dict[str, bytearray] = {}

    def put(self, relative: str, content: bytes) -> None:
        """Lay a file into the store, unchecked, as a submitter does."""
        self._files[check_relative_path(relative)] = content

    def content(self, relative: str) -> bytes:
        """Return the bytes of a file."""
        return self._files[relative]

    def path(self, relative: str) -> str:
        """Return a name that stands for the file."""
        return f"memory:/{check_relative_path(relative)}"

    def write_file(self, relative: str, content: bytes | memoryview) -> None:
        """Keep a file that the publisher made."""
        self._files[check_relative_path(relative)] = bytes(content)

    def sync(self, relatives: Iterable[str]) -> None:
        """Nothing to do: memory has no disk."""

    def verify(self, file: StagedFile) -> None:
        """Check existence, size, digest and rows."""
        content = self._files.get(check_relative_path(file.path))
        if content is None:
            raise PayloadStoreError(f"no file {file.path!r} in the payload store", path=file.path)
        _check_content(file, content)

    def has(self, file: StagedFile) -> bool:
        """Return whether the file stands here with its size."""
        return len(self._files.get(check_relative_path(file.path), b"")) == file.size_bytes

    def receive(self, file: StagedFile, chunks: Iterable[bytes], offset: int = 0) -> None:
        """Keep a file fetched from a peer; resumes at offset."""
        partial = self._partial.setdefault(check_relative_path(file.path), bytearray())
        if offset > len(partial):
            raise PayloadStoreError(f"{file.path!r} cannot resume at {offset}", path=file.path)
        del partial[offset:]
        for chunk in chunks:
            partial += chunk
        content = bytes(partial)
        del self._partial[file.path]
        _check_content(file, content)
        self._files[file.path] = content

    def received_bytes(self, file: StagedFile) -> int:
        """Return how much of a broken-off transfer is here."""
        return len(self._partial.get(check_relative_path(file.path), b""))


def _check_content(file: StagedFile, content: bytes) -> None:
    if len(content) != file.size_bytes:
        raise ManifestMismatchError(f"{file.path!r} has {len(content)} bytes", path=file.path)
    if hashlib.sha256(content).hexdigest() != file.digest:
        raise ManifestMismatchError(f"{file.path!r} has another digest", path=file.path)
    try:
        rows = pq.ParquetFile(pa.BufferReader(content)).metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise ManifestMismatchError(f"{file.path!r} is no Parquet file", path=file.path) from error
    if rows != file.rows:
        raise ManifestMismatchError(f"{file.path!r} has {rows} rows", path=file.path)
