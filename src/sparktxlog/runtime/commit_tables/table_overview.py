"""What this site says of its commit tables: how far each is, and what it lacks and why."""

from __future__ import annotations

from sparktxlog.errors import TxLogError
from sparktxlog.model.answers import OperatorWarning
from sparktxlog.runtime.commit_tables.commit_placer import CommitPlacer
from sparktxlog.runtime.commit_tables.table_fetcher import TableFetcher
from sparktxlog.runtime.foundation import Foundation


class TableOverview:
    """Combines what the owners of commit tables know; used on the event loop."""

    def __init__(self, base: Foundation, placer: CommitPlacer, fetcher: TableFetcher) -> None:
        self._base = base
        self._placer = placer
        self._fetcher = fetcher

    def warnings(self) -> list[OperatorWarning]:
        """Return the tables that are not placed, with what is done about each."""
        return [
            {"code": "commit-table-not-placed", "text": self._explained(uuid, error)}
            for uuid, error in self._placer.failures().items()
        ]

    def _explained(self, uuid: str, error: TxLogError) -> str:
        transfer = self._fetcher.transfers.get(uuid)
        if transfer is not None:
            return f"{error.message}  They are being fetched: {transfer.text}."
        failures = self._fetcher.failures.get(uuid, {})
        asked = "; ".join(f"{peer}: {why}" for peer, why in failures.items())
        said = [
            error.message,
            error.hint,
            f"No peer could give them yet: {asked}." if asked else "",
        ]
        return "  ".join(part for part in said if part)
