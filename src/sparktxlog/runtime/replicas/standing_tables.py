"""Level applied at sites where some tables stand still: is it reached for this transaction?

A table that fails stands still alone, and the replica goes on.  So a transaction of other tables is
applied there once the replica has passed it.  For one of that table no waiting helps: its receipt
says so.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sparktxlog.errors import StorageError
from sparktxlog.model.transactions.receipt import Appliers, Level, Receipt
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.replicas.judged_replicas import Replicas
from sparktxlog.storage.log_tables.kept_rows import read_rows
from sparktxlog.storage.log_tables.log_schemas import LOG_TABLES

_QUEUE = "synchronized_queue"
#: The tables that a larger run writes to are not looked up.
_MOST_LOOKED_UP = 10_000


async def where_tables_stand_still(
    base: Foundation, replicas: Replicas, receipt: Receipt, sites: Appliers
) -> Receipt:
    """Return a receipt below level applied as it is once enough replicas have passed it.

    Args:
        sites: Those that shall have applied it.
    """
    if receipt.position is None or receipt.level is Level.APPLIED:
        return receipt
    passed = replicas.passed_by(receipt.position + receipt.n - 1, sites)
    if not sites.suffice(passed):
        return receipt
    tables = None
    if receipt.prepared_at is None and receipt.n <= _MOST_LOOKED_UP:
        directory = base.config.data_dir / "log" / _QUEUE
        tables = await base.run_blocking(_tables_at, directory, receipt.position, receipt.n)
    still = {
        site: {name: why for name, why in found.items() if tables is None or name in tables}
        for site, found in passed.items()
    }
    if sites.suffice([site for site, found in still.items() if not found]):
        return replace(receipt, level=Level.APPLIED, late=receipt.holders is not None)
    texts = [
        f"table {name} of site {site} stands still: {why}"
        for site, found in sorted(still.items())
        for name, why in found.items()
    ]
    return replace(receipt, held_up="; ".join(texts))


def _tables_at(directory: Path, position: int, number: int) -> set[str] | None:
    """Return the tables that published transactions write to; None = not all are kept there."""
    try:
        found = read_rows(directory, LOG_TABLES[_QUEUE], "position", position - 1, number)
    except StorageError:  # it is committed, whatever can be read here
        return None
    rows: list[dict[str, Any]] = found.to_pylist()
    if len(rows) < number or rows[-1]["position"] != position + number - 1:
        return None
    return {one["table"] for row in rows for one in row["operations"] or ()}
