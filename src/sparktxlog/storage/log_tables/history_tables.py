"""Histories in `log/`: workers, signatures and transfers of replicas, and the epochs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec
import pyarrow as pa

from sparktxlog.model.copying import Transfer
from sparktxlog.model.epoch import EpochRecord
from sparktxlog.model.report import WorkerReport
from sparktxlog.storage.log_tables.log_schemas import EPOCHS, SIGNATURES, TRANSFERS, WORKERS
from sparktxlog.storage.log_tables.log_table import LogTable


class ReportTables:
    """Writer of both tables; loses at most what was not appended yet: the front keeps reports.

    Args:
        log_root: Directory of the log tables.

    Raises:
        CorruptLogError: A table is damaged.
    """

    def __init__(self, log_root: Path) -> None:
        self._workers = LogTable(log_root / "workers", WORKERS)
        self._signatures = LogTable(log_root / "signatures", SIGNATURES)

    def append(self, reports: Sequence[tuple[WorkerReport, str, str, str]]) -> None:
        """Append (report, verdict, plan, reason); at most two commits, whatever their number.

        Raises:
            StorageError: Some of it may be missing.
        """
        workers = [
            {
                "reported_at": report.reported_at,
                "worker_id": report.worker_id,
                "node_id": report.node_id,
                "lineage": report.lineage,
                "epoch": report.epoch,
                "position": report.position,
                "chain_hash": report.chain_hash,
                "verdict": verdict,
                "plan": plan,
                "reason": reason,
                "engine": report.engine,
            }
            for report, verdict, plan, reason in reports
        ]
        signatures = [
            {
                "position": report.position,
                "chain_hash": report.chain_hash,
                "table": table,
                "node_id": report.node_id,
                "worker_id": report.worker_id,
                "version": state.version,
                "rows": state.signature.rows,
                "signature": state.signature.to_text(),
                "schema": state.schema,
                "diverged": state.diverged,
                "reported_at": report.reported_at,
            }
            for report, _, _, _ in reports
            for table, state in sorted(report.tables.items())
        ]
        if workers:
            self._workers.append(pa.Table.from_pylist(workers, WORKERS))
        if signatures:
            self._signatures.append(pa.Table.from_pylist(signatures, SIGNATURES))

    def expire(self, before: datetime) -> None:
        """Remove reports of that time and earlier, by whole files.

        Raises:
            StorageError: Do it again.
        """
        self._workers.expire("reported_at", before)
        self._signatures.expire("reported_at", before)


class TransferTable:
    """Writer of `log/transfers`; loses at most what was not appended yet: the front keeps them.

    Args:
        log_root: Directory of the log tables.

    Raises:
        CorruptLogError: The table is damaged.
    """

    def __init__(self, log_root: Path) -> None:
        self._table = LogTable(log_root / "transfers", TRANSFERS)

    def append(self, transfers: Sequence[Transfer]) -> None:
        """Append transfers with one commit.

        Raises:
            StorageError: They may be missing.
        """
        rows = [
            {name: getattr(transfer, name) for name in TRANSFERS.names}
            | {"kind": transfer.kind.value, "donors": list(transfer.donors)}
            for transfer in transfers
        ]
        self._table.append(pa.Table.from_pylist(rows, TRANSFERS))

    def expire(self, before: datetime) -> None:
        """Remove transfers that ended at that time or earlier, by whole files.

        Raises:
            StorageError: Do it again.
        """
        self._table.expire("finished_at", before)


class EpochTable:
    """Writer of `log/epochs`: each commit records the number of its last row.

    Args:
        log_root: Directory of the log tables.
        instance: Names the front that gives the numbers: another one begins anew.

    Raises:
        CorruptLogError: The table is damaged.
    """

    def __init__(self, log_root: Path, instance: str) -> None:
        self._table = LogTable(log_root / "epochs", EPOCHS, app_id=f"sparktxlog:{instance}:epochs")

    @property
    def number(self) -> int:
        """Number of the last epoch that was appended of this front, 0 = none.

        Raises:
            StorageError: Ask again.
        """
        return self._table.transaction_version

    def append(self, epochs: Sequence[tuple[int, EpochRecord]]) -> None:
        """Append numbered epochs, ascending and above `number`, with one commit.

        Raises:
            StorageError: They may be there: ask for `number` before trying again.
        """
        rows = [msgspec.to_builtins(record) for _, record in epochs]
        self._table.append(pa.Table.from_pylist(rows, EPOCHS), transaction=epochs[-1][0])

    def expire(self, before: datetime) -> None:
        """Remove epochs that were taken up at that time or earlier, by whole files.

        Raises:
            StorageError: Do it again.
        """
        self._table.expire("taken_up_at", before)
