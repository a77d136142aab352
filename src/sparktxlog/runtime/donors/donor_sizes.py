"""Bytes that a copy from each donor would fetch: the donor's files without those in the own lake.

A request to a slow donor goes on in the background; the next decision uses its answer.  Answers are
used for some seconds, failures for one, and only as long as the link is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

import structlog

from sparktxlog.delta.log_files import TablePlace, store_of
from sparktxlog.errors import InvalidNameError, TransportError, TxLogError
from sparktxlog.model.copying import ReplicaSize
from sparktxlog.model.ids import check_relative_path, check_table_name
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
        lake: Where the own row tables are.
    """

    def __init__(
        self,
        base: Foundation,
        lake: TablePlace,
        clock: Callable[[], float] = monotonic,
        ask_s: float = ASK_S,
    ) -> None:
        self._base, self._lake = base, lake
        self._links = base.links
        self._clock = clock
        self._ask_s = ask_s
        #: Donor → (steady time, bytes the target lacks of it or None, `ups` of its link).
        self._known: dict[str, tuple[float, int | None, int]] = {}
        self._questions: dict[str, asyncio.Task[None]] = {}

    async def missing(self, donors: Sequence[str], *, again: bool = False) -> dict[str, int | None]:
        """Return donor → its uncompressed bytes that the target lacks; None = unknown.

        Args:
            again: An operator waits, so a donor that just failed is asked again.
        """
        for donor in donors:
            if donor in self._known and self._is_old(donor, again=again):
                del self._known[donor]
            if donor not in self._known and donor not in self._questions:
                task = asyncio.create_task(self._ask(donor), name=f"size of {donor}")
                self._questions[donor] = task
        questions = [self._questions[donor] for donor in donors if donor not in self._known]
        if questions:
            await asyncio.wait(questions, timeout=self._ask_s)
        return {donor: self._known.get(donor, (0.0, None, 0))[1] for donor in donors}

    def _is_old(self, donor: str, *, again: bool) -> bool:
        at, missing, ups = self._known[donor]
        if missing is None and (again or ups != self._ups(donor)):
            return True  # the link may work again
        return self._clock() - at >= (FAILURES_S if missing is None else SIZES_S)

    def _ups(self, donor: str) -> int:
        link = self._links.get(donor)
        return 0 if link is None else link.ups

    async def _ask(self, donor: str) -> None:
        missing: int | None = None
        ups = self._ups(donor)
        try:
            missing = await self._missing_of(donor)
        except TxLogError as error:
            _log.info("no size", donor=donor, reason=str(error))
        finally:
            self._questions.pop(donor, None)
        self._known[donor] = (self._clock(), missing, ups)

    async def _missing_of(self, donor: str) -> int:
        try:
            size = await self._links[donor].replica_size()
        except TransportError:
            # The kept connection may be closed although the link works again: try once more.
            size = await self._links[donor].replica_size()
        url = store_of(self._lake).url
        found: int = await self._base.run_on_files(url, missing_bytes, size, self._lake)
        return found

    def forget(self) -> None:
        """Forget all answers: the lake has changed."""
        self._known.clear()

    async def close(self) -> None:
        """Cancel the requests under way."""
        tasks = list(self._questions.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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
