"""Where replicas differ: which table, since which position, and what wrote to it then.

It follows from the reports of all sites for the ends of their batches (`opinions`), so the first
position is that of the first batch after which two sites differed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparktxlog.model.answers import Difference, DifferingTransaction
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.replicas.judged_replicas import Replicas
from sparktxlog.storage.log_tables.kept_rows import read_rows
from sparktxlog.storage.log_tables.log_schemas import LOG_TABLES

#: Most transactions that are named, and most that are looked through.
_NAMED, _LOOKED = 20, 10_000
#: Of a table without a difference this many are looked through.
_RECENT = 1_000
_QUEUE = "synchronized_queue"


class Differences:
    """Finds them; belongs to the event loop."""

    def __init__(self, base: Foundation, replicas: Replicas) -> None:
        self._base = base
        self._replicas = replicas
        #: Table and interval → what wrote to it; of the differences that there are.
        self._named: dict[tuple[str, int, int], list[DifferingTransaction]] = {}

    def found(self) -> list[Difference]:
        """Return the differences, without transactions that were not looked for yet."""
        return [
            {**one, "transactions": self._named.get(_interval(one), [])}
            for one in self._replicas.differences()
        ]

    async def named(self) -> list[Difference]:
        """Return the differences with what wrote to each table in its interval, the first 20.

        Raises:
            StorageError: The queue table cannot be read.
        """
        wanted = [_interval(one) for one in self.found() if one["position"] > one["equal_to"]]
        self._named = {key: self._named[key] for key in wanted if key in self._named}
        for key in wanted:
            if key not in self._named:
                directory = self._base.config.data_dir / "log" / _QUEUE
                found = await self._base.run_blocking(_writers, directory, *key)
                self._named[key] = found[:_NAMED]
        return self.found()

    async def last_writers(self, table: str, until: int) -> list[DifferingTransaction]:
        """Return what wrote to a table up to a position, of the last 1,000, the latest 20 first.

        Raises:
            StorageError: The queue table cannot be read.
        """
        directory, after = self._base.config.data_dir / "log" / _QUEUE, max(0, until - _RECENT)
        found: list[DifferingTransaction] = await self._base.run_blocking(
            _writers, directory, table, after, until
        )
        return found[: -_NAMED - 1 : -1]


def _interval(found: Difference) -> tuple[str, int, int]:
    return found["table"], found["equal_to"], found["position"]


def _writers(directory: Path, table: str, after: int, until: int) -> list[DifferingTransaction]:
    """Return the transactions in (after, until] that wrote to a table, ascending."""
    rows: Sequence[dict[str, Any]] = read_rows(
        directory, LOG_TABLES[_QUEUE], "position", after, min(until - after, _LOOKED)
    ).to_pylist()
    found: list[DifferingTransaction] = [
        {
            "position": row["position"],
            "transaction_id": row["transaction_id"],
            "origin": row["origin"],
            "kind": operation["kind"],
        }
        for row in rows
        if row["outcome"] == "committed" and row["position"] <= until
        for operation in row["operations"] or ()
        if operation["table"] == table
    ]
    return found
