"""Histories in `log/`: workers, signatures and transfers of replicas, and the epochs.

What was not appended yet can be lost: the journal keeps the newest of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from sparktxlog.model.copying import Transfer
from sparktxlog.model.epoch import EpochRecord
from sparktxlog.model.report import WorkerReport
from sparktxlog.storage.log_tables.log_schemas import LOG_TABLES, SIGNATURES, WORKERS
from sparktxlog.storage.log_tables.log_table import LogTable


class _HistoryTable:
    """Writer of one table, whose rows expire by a time that they carry.

    Args:
        log_root: Directory of the log tables.
        name: Of the table.
        time: Column of that time.
        app_id: Names who numbers its rows, "" = nobody does.

    Raises:
        CorruptLogError: The table is damaged.
    """

    def __init__(self, log_root: Path, name: str, time: str, app_id: str = "") -> None:
        self._time = time
        self._schema = LOG_TABLES[name]
        self._table = LogTable(log_root / name, self._schema, app_id=app_id)

    def append_rows(self, rows: list[dict[str, Any]], transaction: int | None = None) -> None:
        """Append rows with one commit, if there are any."""
        if rows:
            self._table.append(pa.Table.from_pylist(rows, self._schema), transaction=transaction)

    def expire(self, before: datetime) -> None:
        """Remove rows of that time and earlier, by whole files.

        Raises:
            StorageError: Do it again.
        """
        self._table.expire(self._time, before)


class ReportTables:
    """Writer of `log/workers` and `log/signatures`; errors as of the other tables."""

    def __init__(self, log_root: Path) -> None:
        self._workers = _HistoryTable(log_root, "workers", "reported_at")
        self._signatures = _HistoryTable(log_root, "signatures", "reported_at")

    def append(self, reports: Sequence[tuple[WorkerReport, str, str, str]]) -> None:
        """Append (report, verdict, plan, reason); at most two commits, whatever their number.

        Raises:
            StorageError: Some of it may be missing.
        """
        workers = [
            _shared(report, WORKERS) | {"verdict": verdict, "plan": plan, "reason": reason}
            for report, verdict, plan, reason in reports
        ]
        signatures = [
            _shared(report, SIGNATURES)
            | {
                "table": table,
                "version": state.version,
                "rows": state.signature.rows,
                "signature": state.signature.to_text(),
                "schema": state.schema,
                "diverged": state.diverged,
            }
            for report, _, _, _ in reports
            for table, state in sorted(report.tables.items())
        ]
        self._workers.append_rows(workers)
        self._signatures.append_rows(signatures)

    def expire(self, before: datetime) -> None:
        """Remove reports of that time and earlier, by whole files.

        Raises:
            StorageError: Do it again.
        """
        self._workers.expire(before)
        self._signatures.expire(before)


class TransferTable(_HistoryTable):
    """Writer of `log/transfers`."""

    def __init__(self, log_root: Path) -> None:
        super().__init__(log_root, "transfers", "finished_at")

    def append(self, transfers: Sequence[Transfer]) -> None:
        """Append transfers with one commit.

        Raises:
            StorageError: They may be missing.
        """
        self.append_rows(
            [
                _shared(transfer, self._schema)
                | {"kind": transfer.kind.value, "donors": list(transfer.donors)}
                for transfer in transfers
            ]
        )


class EpochTable(_HistoryTable):
    """Writer of `log/epochs`: each commit records the number of its last row.

    Args:
        log_root: Directory of the log tables.
        instance: Names the journal that gives the numbers: another one begins anew.
    """

    def __init__(self, log_root: Path, instance: str) -> None:
        super().__init__(log_root, "epochs", "taken_up_at", f"sparktxlog:{instance}:epochs")

    @property
    def number(self) -> int:
        """Number of the last epoch that was appended of this journal, 0 = none.

        Raises:
            StorageError: Ask again.
        """
        return self._table.transaction_version

    def append(self, epochs: Sequence[tuple[int, EpochRecord]]) -> None:
        """Append numbered epochs, ascending and above `number`, with one commit.

        Raises:
            StorageError: They may be there: ask for `number` before trying again.
        """
        self.append_rows([msgspec.to_builtins(record) for _, record in epochs], epochs[-1][0])


def _shared(value: object, schema: pa.Schema) -> dict[str, Any]:
    """Return the columns of a table that are fields of a value under the same name."""
    return {name: getattr(value, name) for name in schema.names if hasattr(value, name)}
