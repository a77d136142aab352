"""Bytes that a copy from each donor would fetch: the donor's files without those in the own lake.

A donor of this site whose lake is on the target's file system costs nothing: its files are linked.

A request to a slow donor goes on in the background; the next decision uses its answer.  Answers are
used for some seconds, failures for one, and only as long as the link is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from types import MappingProxyType

import structlog

from sparktxlog.delta.log_files import TablePlace, store_of
from sparktxlog.errors import InvalidNameError, TransportError, TxLogError
from sparktxlog.model.copying import ReplicaSize
from sparktxlog.model.ids import check_relative_path, check_table_name
from sparktxlog.model.replicas import MAIN, holds, name_of, site_of
from sparktxlog.model.report import WorkerReport
from sparktxlog.runtime.foundation import Foundation

_log = structlog.get_logger("sparktxlog.planning")

#: Seconds for which a donor's answer is used, and for which a failure is.
SIZES_S = 10.0
FAILURES_S = 1.0
#: Longest wait of a decision for donors' sizes, seconds.
ASK_S = 5.0


class DonorSizes:
    """Sizes by donor; belongs to the event loop.

    Args:
        lake: Where the row tables of the main replica are.
        lakes: Name → lake of each other replica of this site.
        own_size: Returns the size of a replica of this site.
    """

    def __init__(
        self,
        base: Foundation,
        lake: TablePlace,
        clock: Callable[[], float] = monotonic,
        ask_s: float = ASK_S,
        lakes: Mapping[str, str] = MappingProxyType({}),
        own_size: Callable[[str], Awaitable[ReplicaSize]] | None = None,
    ) -> None:
        self._base, self._lake = base, lake
        self._lakes, self._own_size = lakes, own_size
        self._links = base.links
        self._clock = clock
        self._ask_s = ask_s
        #: Target's name and donor → (steady time, bytes the target lacks of it or None, `ups` of
        #: its link).
        self._known: dict[tuple[str, str], tuple[float, int | None, int]] = {}
        self._questions: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def missing(
        self, donors: Sequence[str], target: WorkerReport, *, again: bool = False
    ) -> dict[str, int | None]:
        """Return donor → its uncompressed bytes that the target lacks; None = unknown.

        Args:
            target: The report of the replica that is to be replaced.
            again: An operator waits, so a donor that just failed is asked again.
        """
        name = target.name
        for donor in donors:
            key = name, donor
            if key in self._known and self._is_old(key, again=again):
                del self._known[key]
            if key not in self._known and key not in self._questions:
                task = asyncio.create_task(self._ask(key, target.only), name=f"size of {donor}")
                self._questions[key] = task
        questions = [
            self._questions[name, donor] for donor in donors if (name, donor) not in self._known
        ]
        if questions:
            await asyncio.wait(questions, timeout=self._ask_s)
        return {donor: self._known.get((name, donor), (0.0, None, 0))[1] for donor in donors}

    def _is_old(self, key: tuple[str, str], *, again: bool) -> bool:
        at, missing, ups = self._known[key]
        if missing is None and (again or ups != self._ups(key[1])):
            return True  # the link may work again
        return self._clock() - at >= (FAILURES_S if missing is None else SIZES_S)

    def _ups(self, donor: str) -> int:
        link = self._links.get(site_of(donor))
        return 0 if link is None else link.ups

    async def _ask(self, key: tuple[str, str], only: tuple[str, ...]) -> None:
        missing: int | None = None
        name, donor = key
        ups = self._ups(donor)
        try:
            missing = await self._missing_of(donor, name, only)
        except TxLogError as error:
            _log.info("no size", donor=donor, reason=str(error))
        finally:
            self._questions.pop(key, None)
        self._known[key] = (self._clock(), missing, ups)

    async def _missing_of(self, donor: str, name: str, only: tuple[str, ...]) -> int:
        size, of_site = await self._size_of(donor), self._base.holds
        wanted = {
            table: files
            for table, files in size.files.items()
            if holds(only, table) and of_site(table)
        }
        size = replace(size, files=wanted)
        target = self._place(name)
        if target is None:
            return size.size_bytes
        source = self._place(name_of(donor)) if self._is_own(donor) else None
        url = store_of(target).url
        found: int = await self._base.run_on_files(url, _to_fetch, size, target, source)
        return found

    async def _size_of(self, donor: str) -> ReplicaSize:
        name = name_of(donor)
        if self._is_own(donor):
            assert self._own_size is not None
            return await self._own_size(name)
        link = self._links[site_of(donor)]
        try:
            return await link.replica_size(name)
        except TransportError:
            # The kept connection may be closed although the link works again: try once more.
            return await link.replica_size(name)

    def _is_own(self, donor: str) -> bool:
        return site_of(donor) == self._base.config.node_id

    def _place(self, name: str) -> TablePlace | None:
        """Return the lake of a replica of this site; None = one in a bucket that is not asked."""
        if name == MAIN:
            return self._lake
        lake = self._lakes.get(name, "")
        return Path(lake) if lake.startswith("/") else None

    def forget(self) -> None:
        """Forget all answers: the lake has changed."""
        self._known.clear()

    async def close(self) -> None:
        """Cancel the requests under way."""
        tasks = list(self._questions.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _to_fetch(size: ReplicaSize, target: TablePlace, source: TablePlace | None) -> int:
    """Return the bytes that a lake lacks of a donor's files; 0 if they can be linked; blocks."""
    if isinstance(target, Path) and isinstance(source, Path):
        with suppress(OSError):
            if target.stat().st_dev == source.stat().st_dev:
                return 0
    return missing_bytes(size, target)


def missing_bytes(size: ReplicaSize, lake: TablePlace) -> int:
    """Return the bytes of a donor's files that a lake lacks; blocks.

    A file with the same table, path and size counts as present: Delta never changes a file.

    Raises:
        StorageError: As `Store`, in a bucket.
    """
    missing = 0
    for table, files in size.files.items():
        if isinstance(lake, Path):
            missing += sum(one for path, one in files if not _holds(lake, table, path, one))
        else:  # a list costs less than to look at each
            there = {one.key: one.size_bytes for one in lake.list(check_table_name(table))}
            missing += sum(one for path, one in files if there.get(f"{table}/{path}") != one)
    return missing


def _holds(lake_dir: Path, table: str, path: str, size_bytes: int) -> bool:
    try:
        found = (lake_dir / check_table_name(table) / check_relative_path(path)).stat()
    except (OSError, InvalidNameError):
        return False
    return found.st_size == size_bytes
