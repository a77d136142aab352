"""Digests of whole files: which donors have equal files, and which fetched files are right.

A file of another donor is equal if table, path, size and tree digest are those of the first donor.
The other donors are asked in batches while the first one already serves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from sparktxlog.errors import FileChangedError, LeaseGoneError, TransportError
from sparktxlog.model.copying import Lease
from sparktxlog.storage.durability import storing
from sparktxlog.worker.copy.fetch.chunk_schedule import FileWork, Schedule
from sparktxlog.worker.copy.fetch.donor_link import MAX_DIGESTS, DonorLink, digest_batches
from sparktxlog.worker.copy.fetch.tasks import tree_digest
from sparktxlog.worker.copy.fetch.workspace import CopyWorkspace, FileRecord

#: Files that are synced together, which the file system does in one step.
_SYNCS = 8


def match_donor(
    schedule: Schedule,
    works: Sequence[FileWork],
    donor: int,
    lease: Lease,
    connect: Callable[[int], DonorLink],
) -> None:
    """Find the files that another donor than the first may serve, for the schedule.

    A donor that does not answer with its digests is given up.

    Args:
        donor: Index of the donor.
        lease: Its lease.
        connect: Returns a new link to the donor of an index.
    """
    offer = {
        (table.definition.name, file.path): file.size_bytes
        for table in lease.tables
        for file in table.files
    }
    alike = {w.task.key: w for w in works if offer.get(w.task.key) == w.task.size_bytes}
    asked = 0
    try:
        with closing(connect(0)) as first, closing(connect(donor)) as other:
            for batch in digest_batches([work.task for work in alike.values()]):
                if schedule.over:
                    return
                asked = 0
                unknown = [task for task in batch if alike[task.key].expected is None]
                for key, digest in first.digests(unknown).items():
                    alike[key].expected = digest
                asked = donor
                for key, digest in other.digests(batch).items():
                    if digest == alike[key].expected:
                        schedule.match(donor, alike[key])
    except (TransportError, LeaseGoneError, FileChangedError) as error:
        schedule.drop(asked, error)
    finally:
        schedule.matching_over()


class Prover:
    """Verifies and names whole files; `run` needs its own thread.

    It works in groups, so that digests are asked for together and the disk gets several files at
    once.

    Args:
        link: Link to the first donor, whose digests decide; for this thread only.
    """

    def __init__(self, workspace: CopyWorkspace, schedule: Schedule, link: DonorLink) -> None:
        self._workspace = workspace
        self._schedule = schedule
        self._link = link

    def run(self) -> None:
        """Work until the fetch is over."""
        with closing(self._link), ThreadPoolExecutor(_SYNCS, thread_name_prefix="syncing") as pool:
            while (batch := self._schedule.take_whole(MAX_DIGESTS)) is not None:
                proved = self._prove(batch)
                list(pool.map(self._sync, proved))
                self._workspace.record_files(
                    FileRecord.of(file.task, file.expected or "", file.chunk_bytes)
                    for file in proved
                )
                for file in proved:
                    part = self._workspace.part(*file.task.key)
                    with storing(part):
                        part.replace(self._workspace.staged(*file.task.key))
                    self._schedule.proved(file)

    def _prove(self, batch: list[FileWork]) -> list[FileWork]:
        """Return the files that equal the donor's; the others are fetched again."""
        self._ask([file for file in batch if file.expected is None])
        proved = []
        for file in batch:
            if file.expected is None:
                self._schedule.strand(file)
            elif tree_digest(file.digests[n] for n in range(len(file.digests))) == file.expected:
                proved.append(file)
            else:
                self._schedule.refuted(file)
        return proved

    def _ask(self, files: list[FileWork]) -> None:
        if not self._schedule.in_use(0):
            return
        try:
            theirs = self._link.digests([file.task for file in files])
        except FileChangedError as error:
            self._schedule.fail(error)
        except (TransportError, LeaseGoneError) as error:
            self._schedule.drop(0, error)
        else:
            for file in files:
                file.expected = theirs[file.task.key]

    def _sync(self, file: FileWork) -> None:
        """Set a file's size and time, and sync it."""
        task, part = file.task, self._workspace.part(*file.task.key)
        with storing(part):
            part.parent.mkdir(parents=True, exist_ok=True)
            with part.open("ab") as whole:
                whole.truncate(task.size_bytes)
                os.utime(whole.fileno(), ns=(task.modified_at * 1000, task.modified_at * 1000))
                os.fsync(whole.fileno())
