"""Writes runs that a node gives up, with all their rows, to `log/quarantine` (P28).

This happens in two cases: `peer quarantine` on a stopped node writes everything after the last
common position (`node_quarantine`); a node whose history can no longer be compared writes what a
summary would drop (`unverified_history`).  The name of each act follows from the runs, so a repeat
after a kill writes nothing twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sparktxlog.attic.attic import Attic, Entry, Kind
from sparktxlog.codec.containers.payload import read_manifest
from sparktxlog.errors import CorruptLogError, ExpiredError, ManifestMismatchError
from sparktxlog.files.durability import storing
from sparktxlog.model.ids import NodeId
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.protocol.messages.posts import QueueEntry, RunHeader
from sparktxlog.protocol.messages.recovery import RecoveredState
from sparktxlog.protocol.messages.view import View
from sparktxlog.storage.interfaces import JournalState, StoredEntry
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.storage.log_tables.quarantine_table import (
    GivenUp,
    Quarantine,
    QuarantineFiles,
)
from sparktxlog.storage.payloads.payload_store import PayloadStore

#: Runs of the queue that are read at once.
_READ_RUNS = 1_000
#: Bounds of one Delta commit.
_PAGE_RUNS = 256
_PAGE_TRANSACTIONS = 30_000
_PAGE_BYTES = 64 << 20


def waiting_runs(
    core: RecoveredState,
    own: NodeId,
    incarnation: int,
    epoch: int,
    wanted: Callable[[RunHeader], bool] = lambda header: True,
) -> Iterator[StoredEntry]:
    """Yield runs that were never ordered, without payloads, numbered after the queue's end.

    Args:
        own: This node, and its incarnation and epoch: unstamped runs are its own.
        wanted: Returns whether to include a run; unstamped ones have number 0.
    """
    end = core.base.position
    headers = [
        (run.header, run.facts.ids) for run in sorted(core.incoming, key=lambda run: run.header.key)
    ]
    for one in core.announcements:
        unstamped = RunHeader(
            epoch=epoch,
            ts=0,
            origin=own,
            incarnation=incarnation,
            seq=0,
            n=one.facts.n,
            digest=one.digest,
            size_bytes=one.size_bytes,
            staged_bytes=one.staged_bytes,
        )
        headers.append((unstamped, one.facts.ids))
    for header, ids in headers:
        if not wanted(header):
            continue
        entry = QueueEntry(
            position=end + 1, header=header, previous_hash=bytes(32), chain_hash=bytes(32)
        )
        yield StoredEntry(entry=entry, ids=ids, ordered_at=0)
        end = entry.end


def ordered_runs(journal: Journal, after: int, end: int) -> Iterator[StoredEntry]:
    """Yield the queue after a position, without payloads, including expired runs.

    Raises:
        CorruptLogError: The journal lacks a run of its queue.
    """
    while after < end:
        try:
            page = journal.read_queue(after, _READ_RUNS, payloads=False)
        except ExpiredError:
            stored = journal.read_entry_at(after + 1)
            page = [] if stored is None else [stored]
        if not page:
            raise CorruptLogError(f"the journal lacks position {after + 1} of its queue")
        yield from page
        after = page[-1].entry.end


def given_up(
    runs: Iterable[StoredEntry],
    end: int,
    own: NodeId,
    view: View,
    survives: Callable[[StoredEntry], bool],
) -> list[GivenUp]:
    """Return runs with the reasons why they are given up.

    Args:
        end: End of the queue; runs with later numbers were never ordered.
        own: This node.
        survives: Returns whether the other queue also has a run.
    """
    found = []
    for stored in runs:
        header = stored.entry.header
        waiting = "accepted" if header.origin == own else "acquired"
        found.append(
            GivenUp(
                stored=stored,
                why="ordered" if stored.entry.position <= end else waiting,
                log_id=log_id_of(view, header.epoch),
                survives=survives(stored),
            )
        )
    return found


def log_id_of(view: View, epoch: int) -> str:
    """Return the log id of a view in an epoch."""
    for log_id, last in view.ancestors:
        if epoch <= last:
            return log_id
    return view.log_id


def act_id(state: JournalState, waiting: Iterable[StoredEntry]) -> str:
    """Return the name of an act, which is the same as long as the runs are the same."""
    hashed = hashlib.sha256(state.values.get("instance", b""))
    hashed.update(state.core.base.chain_hash)
    for stored in waiting:
        hashed.update(stored.entry.header.digest)
    return hashed.hexdigest()[:12]


class Export:
    """Writes given-up runs page by page.

    **After calling** `write` finish its `entry` of the attic.
    """

    entry: Entry

    def __init__(
        self,
        journal: Journal,
        payloads: PayloadStore,
        data_dir: Path,
        tables: Sequence[TableDefinition],
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._journal = journal
        self._payloads = payloads
        self._data_dir = data_dir
        self._known = tables
        self._tell = tell

    def write(self, quarantine_id: str, runs: Sequence[GivenUp]) -> Quarantine:
        """Write runs, ascending by position, fsynced with their files; a repeat continues.

        Raises:
            CorruptLogError: The table of earlier acts is damaged.
            StorageError: Try again: nothing is written twice.
        """
        with storing(self._data_dir):
            self.entry = Attic.of_node(self._data_dir).begin(
                Kind.FORK, quarantine_id, "the node left a history that others do not have"
            )
        files = QuarantineFiles(self.entry.path, self._payloads)
        quarantine = Quarantine(
            self._data_dir / "log", quarantine_id, files, self._journal, self._tables(runs)
        )
        done, total = quarantine.position, sum(run.stored.entry.header.n for run in runs)
        left = [run for run in runs if run.stored.entry.end > done]
        kept = total - sum(run.stored.entry.header.n for run in left)
        for page in _pages(left):
            quarantine.append([self._with_payload(run) for run in page])
            kept += sum(run.stored.entry.header.n for run in page)
            self._tell(f"kept {kept:,} of {total:,} transactions")
        return quarantine

    def _with_payload(self, run: GivenUp) -> GivenUp:
        header = run.stored.entry.header
        if header.seq:
            payload = self._journal.read_payload(header.origin, header.incarnation, header.seq)
            if payload is None and header.n == 1:
                payload = self._journal.read_prepared(run.stored.ids)
        else:
            payload = self._journal.read_announced(header.digest)
        return replace(run, stored=replace(run.stored, payload=payload))

    def _tables(self, runs: Sequence[GivenUp]) -> Mapping[str, TableDefinition]:
        """Return the tables, with those that the unordered runs create."""
        tables = {table.name: table for table in self._known}
        for run in runs:
            payload = None if run.why == "ordered" else self._with_payload(run).stored.payload
            if payload is None:
                continue
            with suppress(ManifestMismatchError):  # the table says so in the place of its rows
                for block in read_manifest(payload).blocks:
                    if block.definition is not None:
                        tables.setdefault(block.table, block.definition)
        return tables


def _pages(runs: Sequence[GivenUp]) -> Iterator[list[GivenUp]]:
    page: list[GivenUp] = []
    transactions = size = 0
    for run in runs:
        header = run.stored.entry.header
        full = (
            len(page) >= _PAGE_RUNS
            or transactions + header.n > _PAGE_TRANSACTIONS
            or size + header.size_bytes > _PAGE_BYTES
        )
        if page and full:
            yield page
            page, transactions, size = [], 0, 0
        page.append(run)
        transactions += header.n
        size += header.size_bytes
    if page:
        yield page
