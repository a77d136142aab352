"""Histories in `log/`: signatures and lag of replicas, epochs and rounds.

Rows that were not appended yet may be lost; the journal keeps the newest of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import structlog

from sparktxlog.errors import StorageError
from sparktxlog.model.epoch import EpochRecord
from sparktxlog.model.report import WorkerReport
from sparktxlog.storage.log_tables.kept_rows import read_rows
from sparktxlog.storage.log_tables.log_schemas import LOG_TABLES, SIGNATURES
from sparktxlog.storage.log_tables.log_table import CHECKPOINT_EVERY, LogTable

_log = structlog.get_logger("sparktxlog.log")

#: Table → column of the time by which its rows expire.
_TIMES = {
    "signatures": "reported_at",
    "epochs": "taken_up_at",
    "lag": "sampled_at",
    "rounds": "ended_at",
}
#: Those that `lag-retention` limits.
_LAG = ("lag", "rounds")


class HistoryTables:
    """Writer of the histories; opening a table reads it, so its first use opens it.

    Every method raises CorruptLogError if its table is damaged.

    Args:
        log_root: Directory of the log tables.
        instance: Id of the journal that numbers the epochs; another journal starts at 1.
        checkpoint_every: Commits between two checkpoints of a table.
    """

    def __init__(
        self, log_root: Path, instance: str, *, checkpoint_every: int = CHECKPOINT_EVERY
    ) -> None:
        self._log_root = log_root
        self._checkpoint_every = checkpoint_every
        self._app_ids = {"epochs": f"sparktxlog:{instance}:epochs"}
        self._opened: dict[str, LogTable] = {}
        #: Table → number of the rows that are being appended.
        self._tried: dict[str, int] = {}

    def append_reports(self, reports: Sequence[WorkerReport]) -> None:
        """Append the signatures of reports with one commit.

        Raises:
            StorageError: Some of it may be missing.
        """
        signatures = [
            _shared(report)
            | _shared(state)
            | {
                "table": table,
                "rows": state.signature.rows,
                "signature": state.signature.to_text(),
            }
            for report in reports
            for table, state in sorted(report.tables.items())
        ]
        self._append("signatures", signatures)

    def append_epochs(self, epochs: Sequence[tuple[int, EpochRecord]]) -> None:
        """Append numbered epochs, ascending and above `last_epoch`, with one commit.

        Raises:
            StorageError: They may be written: check `last_epoch` before trying again.
        """
        rows = [msgspec.to_builtins(record) for _, record in epochs]
        self._append("epochs", rows, transaction=epochs[-1][0])

    def make(self, name: str) -> None:
        """Make a table if it is missing.

        Raises:
            StorageError: Try again.
        """
        self._table(name)

    def append_rows(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to a table whose rows are kept nowhere else, with one commit.

        Raises:
            StorageError: They may be there: the next call must be for the same rows, and adds them
                only if they are not.
        """
        table = self._table(name)
        number = self._tried.setdefault(name, table.transaction_version + 1)
        if table.transaction_version < number:
            self._append(name, rows, transaction=number)
        del self._tried[name]

    @property
    def last_epoch(self) -> int:
        """Number of the last epoch that was appended of this journal, 0 = none.

        Raises:
            StorageError: Ask again.
        """
        return self._table("epochs").transaction_version

    def expire(self, before: datetime, lag_before: datetime) -> None:
        """Remove rows of that time and earlier, by whole files; `lag_before`: of `_LAG`.

        Raises:
            StorageError: Try again.
        """
        for name, column in _TIMES.items():
            if (self._log_root / name).exists():
                self._table(name).expire(column, lag_before if name in _LAG else before)

    def _append(
        self, name: str, rows: Sequence[Mapping[str, Any]], transaction: int | None = None
    ) -> None:
        if rows:
            table = self._table(name)
            table.append(pa.Table.from_pylist(rows, LOG_TABLES[name]), transaction=transaction)
            table.tidy()

    def _table(self, name: str) -> LogTable:
        if name not in self._opened:
            self._opened[name] = LogTable(
                self._log_root / name,
                LOG_TABLES[name],
                app_id=self._app_ids.get(name, f"sparktxlog:{name}"),
                checkpoint_every=self._checkpoint_every,
            )
        return self._opened[name]


def last_rounds(data_dir: Path, limit: int) -> list[dict[str, Any]]:
    """Return the last rounds of `log/rounds`, ascending; times in microseconds since 1970 UTC.

    What cannot be read is left out: the table is for people, and no start fails for it.
    """
    schema = LOG_TABLES["rounds"]
    try:
        found = read_rows(data_dir / "log" / "rounds", schema, "ended_at", None, limit)
    except StorageError as error:
        _log.warning("former rounds are not shown", reason=str(error))
        return []
    rows: list[dict[str, Any]] = found.to_pylist()
    for row in rows:
        for one in (row, *row["waits"]):
            for name in ("began_at", "ended_at"):
                one[name] = None if one[name] is None else round(one[name].timestamp() * 1e6)
        for wait in row["waits"]:
            wait["position"] = row["position"]
    return rows


def _shared(value: object) -> dict[str, Any]:
    """Return the columns of signatures that are fields of a value under the same name."""
    return {name: getattr(value, name) for name in SIGNATURES.names if hasattr(value, name)}
