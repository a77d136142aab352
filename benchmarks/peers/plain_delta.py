"""Plain Delta: one process appends to a table on one disk; no copies, no fsync, nobody else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.ordering import rows_of
from benchmarks.peers.peer import Peer
from benchmarks.peers.processes import Spent


class PlainDelta(Peer):
    """Appends by delta-rs; a batch is one commit.  The writer is both server and client."""

    name = "plain Delta append, one copy"

    def __init__(self, directory: Path) -> None:
        self._path = str(directory / "table")
        self._rows: pa.Table = rows_of(20_000)

    @property
    def pids(self) -> Sequence[int]:
        return [os.getpid()]

    def spent(self) -> Spent:
        found = super().spent()
        return replace(found, servers=found.client, client=0.0)

    def batches(self, total: int, batch: int) -> None:
        for first in range(0, total, batch):
            rows = self._rows.slice(first % (self._rows.num_rows - batch + 1), batch)
            write_deltalake(self._path, rows, mode="append")

    def close(self) -> None:
        """Nothing runs."""
