"""Shares of a node's resources: each belongs to a token, and no token can take all of one.

A budget knows the requester by the name of its token (`asks`), never by the token itself.  The rule
of every budget: a token may have twice what it leaves free, or one piece if it has nothing.  So one
greedy token gets two thirds, two get two fifths each, and something is left for others, however
many tokens there are.

All methods belong to the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from shutil import disk_usage

from sparktxlog.config import NodeConfig
from sparktxlog.errors import BusyError, ShareUsedUpError
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.runtime.audit_trail import asks
from sparktxlog.runtime.metrics import Metrics

#: Open transactions that one token may have, if it leaves as much free as `Budget` says.
MAX_OPEN = 1_000
#: Of all tokens: event streams, parts of uploads that are in memory, commit tables that were given
#: a place and not created yet.
_STREAMS, _PARTS, _STAGED = 32, 6, 1_500
#: Least memory for the requests of one token: parts of its uploads have 4 MiB each.
_MEMORY = 16 << 20


class Budget:
    """So much of one resource, for all tokens.

    Args:
        what: Its unit and name, such as `event streams`.
        most: How much there is.
        hint: What a client that needs more can do.
    """

    def __init__(self, what: str, most: int, hint: str) -> None:
        self.what, self.most, self._hint = what, most, hint
        #: Called when somebody is refused.
        self.refused: Callable[[], None] = lambda: None
        self._held: Counter[str] = Counter()
        self._waiting: list[asyncio.Future[None]] = []

    def show(self, metrics: Metrics) -> None:
        """Show in metrics what is used of it, and how often somebody was refused."""
        metrics.show_budget(self.what, lambda: self.used)
        self.refused = metrics.budget_refusals.labels(self.what).inc

    @property
    def used(self) -> int:
        """Return how much is taken."""
        return self._held.total()

    def has(self, holder: str) -> int:
        """Return how much a token has."""
        return self._held.get(holder, 0)

    def fits(self, holder: str, amount: int = 1) -> bool:
        """Return whether a token may have so much more."""
        mine, left = self._held.get(holder, 0), self.most - self.used - amount
        return left >= 0 and (not mine or mine + amount <= 2 * left)

    def take(self, amount: int = 1, holder: str | None = None) -> str:
        """Take so much for a token, by default that of the requester; return its name for `give`.

        Raises:
            ShareUsedUpError: It has its share (definite).
            BusyError: Others have all of it (definite).
        """
        holder = asks.get() if holder is None else holder
        if not self.fits(holder, amount):
            self.refused()
            raise self._refusal(holder)
        self._held[holder] += amount
        return holder

    def keep(self, holder: str, amount: int) -> None:
        """Count once more what a token has; the caller gives it back before the next await."""
        self._held[holder] += amount

    def give(self, holder: str, amount: int = 1) -> None:
        """Give back what was taken for a token."""
        self._held[holder] -= amount
        if not self._held[holder]:
            del self._held[holder]
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    @asynccontextmanager
    async def turn(self, patience_s: float) -> AsyncIterator[None]:
        """Have one meanwhile; wait for it for so many seconds.  Errors as `take`."""
        holder = asks.get()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while not self.fits(holder):
                    given = asyncio.get_running_loop().create_future()
                    self._waiting.append(given)
                    await given
        self.take(holder=holder)
        try:
            yield
        finally:
            self.give(holder)

    def _refusal(self, holder: str) -> BusyError:
        mine, free = self._held[holder], self.most - self.used
        kind = ShareUsedUpError if mine else BusyError
        share = f"{holder!r} has {mine:,} of this node's {self.most:,} {self.what}"
        return kind(
            f"{share}, which is its share: {free:,} are free" if mine else f"{share}: none is free",
            hint=f"A token may have twice what it leaves to others.  {self._hint}",
            budget=self.what,
            client=holder,
            held=mine,
            limit=self.most,
        )


class Kept:
    """Parts of a budget for pieces of work, each until it ends or nobody goes on with it.

    Args:
        budget: The budget that the parts are of.
        expiry_s: Seconds after which unfinished work ends.
        expired: Called with the name of work that ended so.
    """

    def __init__(self, budget: Budget, expiry_s: float, expired: Callable[[str], object]) -> None:
        self._budget, self._expiry_s, self._expired = budget, expiry_s, expired
        #: Token and name of the work → its parts and what each has.
        self._parts: dict[tuple[str, str], dict[Hashable, int]] = {}
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}

    def take(self, work: str, part: Hashable, amount: int = 1) -> None:
        """Take so much for a part of a token's work, unless it has that, and go on with the work.

        Errors as `Budget.take`.
        """
        key = (asks.get(), work)
        if part not in self._parts.get(key, ()):
            self._budget.take(amount)
            self._parts.setdefault(key, {})[part] = amount
        if key in self._timers:
            self._timers[key].cancel()
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(self._expiry_s, self._expire, key)

    def give(self, work: str, part: Hashable) -> None:
        """Give back what a part of a token's work has, if any: it ended."""
        key = (asks.get(), work)
        found = self._parts.get(key, {})
        if part in found:
            self._budget.give(key[0], found.pop(part))
            if not found:
                self._timers.pop(key).cancel()
                del self._parts[key]

    def close(self) -> None:
        """Stop all timers."""
        for timer in self._timers.values():
            timer.cancel()

    def _expire(self, key: tuple[str, str]) -> None:
        del self._timers[key]
        self._budget.give(key[0], sum(self._parts.pop(key).values()))
        self._expired(key[1])


def upload_of(file: StagedFile) -> tuple[str, Hashable]:
    """Return the work and the part that an uploaded file is to `Budgets.uploads`."""
    return file.path.partition("/")[0], (file.path, file.digest, file.size_bytes)


class Budgets:
    """All budgets of a node, and their metrics."""

    def __init__(self, config: NodeConfig, metrics: Metrics) -> None:
        alone = max(config.body_limit, _MEMORY)
        self.connections = Budget(
            "connections of clients",
            config.connections_limit,
            "Close unused connections, or raise connections-limit.",
        )
        #: For bodies that are read or decoded, and for operations of open transactions.
        self.memory = Budget(
            "bytes of memory for requests",
            alone + (alone + 1) // 2,
            "Try again in a moment, or stage the rows as Parquet files; body-limit determines the "
            "memory.",
        )
        self.open_transactions = Budget(
            "open transactions",
            MAX_OPEN * 3 // 2,
            "Commit some or roll them back; forgotten ones end with their lease.",
        )
        self.upload_parts = Budget(
            "parts of uploads at once",
            _PARTS,
            "Try again in a moment: the bytes that are here are kept.",
        )
        self.upload_bytes = Budget(
            "bytes of uploads that no transaction names",
            min(config.upload_limit_bytes, _half_of_disk(config.payload_dir)),
            "Commit what is uploaded.  What nobody goes on with is given up after upload-expiry; "
            "upload-limit-bytes is the setting.",
        )
        #: Directories of uploads that were given up.
        self._given_up: set[str] = set()
        self._expiry_s, self._kept = config.upload_expiry, list[Kept]()
        #: Uploaded files, by the transaction that they are for.
        self.uploads = self.kept(self.upload_bytes, self._given_up.add)
        self.event_streams = Budget("event streams", _STREAMS, "Close pages of the dashboard.")
        self.staged_tables = Budget(
            "staged tables that are not created",
            _STAGED,
            "Create them; what is not created is forgotten after upload-expiry.",
        )
        for budget in [one for one in vars(self).values() if isinstance(one, Budget)]:
            budget.show(metrics)

    def kept(self, budget: Budget, expired: Callable[[str], object]) -> Kept:
        """Return a `Kept` of a budget, open until `close`; it calls `expired` as `Kept` says."""
        self._kept.append(Kept(budget, self._expiry_s, expired))
        return self._kept[-1]

    def close(self) -> None:
        """Let nothing expire any more."""
        for one in self._kept:
            one.close()

    def take_given_up(self) -> set[str]:
        """Return the directories of uploads that were given up since the last call; any thread."""
        found = self._given_up.copy()
        self._given_up -= found
        return found


def _half_of_disk(directory: Path) -> int:
    """Return half the bytes of the file system on which a directory is, or will be."""
    there = next(one for one in (directory, *directory.absolute().parents) if one.exists())
    return disk_usage(there).total // 2
