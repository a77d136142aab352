"""Whole files: compared with the first donor's digest, brought to the disk, named.

One thread hands files on in groups, so that digests are asked for together and the disk gets
several files at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sparktxlog.errors import FileChangedError, LeaseGoneError, TransportError
from sparktxlog.model.copying import Grant
from sparktxlog.storage.durability import sync_directory
from sparktxlog.worker.copy.fetch.chunk_schedule import FileWork, Schedule
from sparktxlog.worker.copy.fetch.donor_link import MAX_DIGESTS, DonorLink
from sparktxlog.worker.copy.fetch.selection import donor_digests
from sparktxlog.worker.copy.fetch.tasks import FileTask, tree_digest
from sparktxlog.worker.copy.fetch.workspace import CopyWorkspace, FileRecord, disk_error

#: Files brought to the disk at once: the file system does it in one go.
_SYNCS = 8


class Prover:
    """Proves and names whole files; `run` in a thread of its own.

    Args:
        grant: The first donor's: its digests are the measure.
        link: To this donor, for this thread only.
    """

    def __init__(
        self, workspace: CopyWorkspace, grant: Grant, schedule: Schedule, link: DonorLink
    ) -> None:
        self._workspace = workspace
        self._lease_id = grant.lease_id
        self._chunk_bytes = grant.chunk_bytes
        self._schedule = schedule
        self._link = link

    def run(self) -> None:
        """Work until the fetch is over."""
        try:
            with (
                self._workspace.file_journal() as journal,
                ThreadPoolExecutor(_SYNCS, thread_name_prefix="naming") as pool,
            ):
                while (batch := self._schedule.take_whole(MAX_DIGESTS)) is not None:
                    proved = self._prove(batch)
                    for file, record in zip(proved, pool.map(self._name, proved), strict=True):
                        journal.append(record)
                        self._schedule.proved([file])
        finally:
            self._link.close()

    def _prove(self, batch: list[FileWork]) -> list[FileWork]:
        """Return those that are what the donor has; the others are dealt with."""
        unknown = [file for file in batch if file.expected is None]
        if unknown:
            self._ask(unknown)
        stranded = [file for file in batch if file.expected is None]
        if stranded:
            self._schedule.strand(stranded)
        proved = []
        for file in batch:
            if file.expected is None:
                continue
            if tree_digest(digest or b"" for digest in file.digests) == file.expected:
                proved.append(file)
            else:
                self._schedule.refuted(file)
        return proved

    def _ask(self, files: list[FileWork]) -> None:
        if not self._schedule.in_use(0):
            return
        try:
            theirs = donor_digests(self._link, [file.task for file in files])
        except FileChangedError as error:
            self._schedule.fail(error)
        except (TransportError, LeaseGoneError) as error:
            if not self._schedule.over:
                self._schedule.drop(0, error)
        else:
            for file in files:
                file.expected = theirs[file.task.key]

    def _name(self, file: FileWork) -> FileRecord:
        task = file.task
        part, staged = self._workspace.part(*task.key), self._workspace.staged(*task.key)
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if os.fstat(descriptor).st_size != task.size_bytes:
                    os.ftruncate(descriptor, task.size_bytes)
                os.utime(descriptor, ns=(task.modified_at * 1000, task.modified_at * 1000))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            part.replace(staged)
        except OSError as error:
            raise disk_error(error, part) from error
        return FileRecord(
            table=task.table, path=task.path, size_bytes=task.size_bytes,
            digest=file.expected or "", lease_id=self._lease_id,
            chunk_bytes=self._chunk_bytes,
        )  # fmt: skip


class PartProver:
    """What a part does with files whose chunks it has placed: it brings them to the disk."""

    def __init__(self, workspace: CopyWorkspace, schedule: Schedule) -> None:
        self._workspace = workspace
        self._schedule = schedule

    def run(self) -> None:
        """Work until the fetch is over."""
        while (batch := self._schedule.take_whole(MAX_DIGESTS)) is not None:
            for file in batch:
                part = self._workspace.part(*file.task.key)
                try:
                    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                    try:
                        os.fdatasync(descriptor)
                    finally:
                        os.close(descriptor)
                except OSError as error:
                    raise disk_error(error, part) from error
                self._schedule.proved([file])


def sync_directories(workspace: CopyWorkspace, tasks: Iterable[FileTask]) -> None:
    """Bring the names of staged files to the disk, in every directory of the workspace.

    Raises:
        StorageError: A power cut may take names; the files would be fetched again.
    """
    root = workspace.root
    folders: set[Path] = {root}
    for task in tasks:
        folder = workspace.staged(*task.key).parent
        while folder not in folders:
            folders.add(folder)
            folder = folder.parent
    for folder in sorted(folders, reverse=True):
        try:
            sync_directory(folder)
        except OSError as error:
            raise disk_error(error, folder) from error
