"""Nodes that break a rule: the simulation must find each of them within a few seeds."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sparktxlog.errors import TransportError
from sparktxlog.model.answers import EpochView
from sparktxlog.runtime.commit import cycle
from sparktxlog.runtime.commit.executor import AsideWrite, Executor, TakesActions
from sparktxlog.runtime.membership.epochs import Edit, Epochs
from sparktxlog.storage.journal import journal as journal_module
from sparktxlog.storage.journal.sqlite_schema import open_journal
from sparktxlog.storage.payload_log import PayloadLog
from sparktxlog.transport.peer_link import PeerLink

_WHO_ANSWERS = PeerLink._who_answers


class HastyExecutor(Executor):
    """Tells before it writes: what it told a kill can make it forget."""

    async def _work_batch(self, delivery: TakesActions) -> None:
        for item in tuple(self._stream):  # a delivery may add to it
            if not isinstance(item, AsideWrite) and not self._stream.must_be_durable(item):
                delivery.deliver(item, 0)
        await super()._work_batch(delivery)


def _hasty() -> None:
    mutated: Any = cycle
    mutated.Executor = HastyExecutor


def _careless() -> None:
    """Let SQLite not sync its log when it commits."""

    def opened(path: Path) -> sqlite3.Connection:
        connection = open_journal(path)
        connection.execute("PRAGMA synchronous=NORMAL")
        return connection

    mutated: Any = journal_module
    mutated.open_journal = opened


async def _obliged(self: Epochs, edit: Edit, timeout: float) -> EpochView:
    """Answer that places are changed without having them decided."""
    edit(self._master.view.roster)
    return self.view()


def _obliging() -> None:
    mutated: Any = Epochs
    mutated.change = _obliged


async def _heard_nothing(self: PeerLink, url: str) -> str:
    """Take any failure of a question for the sign that nobody is there."""
    try:
        return await _WHO_ANSWERS(self, url)
    except TransportError:
        return ""


def _credulous() -> None:
    mutated: Any = PeerLink
    mutated._who_answers = _heard_nothing


def _forget_writes(db: object, writes: object, published: object) -> None:
    """Keep nothing of what was written to tables."""


def _forgetful() -> None:
    mutated: Any = journal_module
    mutated.put_writes = _forget_writes


def _sync_nothing(log: PayloadLog) -> None:
    """Let rows name bytes that may not be on the disk."""


def _unsynced() -> None:
    mutated: Any = PayloadLog
    mutated.sync = _sync_nothing


#: Name → puts the mutant into its place, for the rest of this process.
MUTANTS: Mapping[str, Callable[[], None]] = {
    "hasty": _hasty,
    "careless": _careless,
    "obliging": _obliging,
    "credulous": _credulous,
    "forgetful": _forgetful,
    "unsynced": _unsynced,
}
