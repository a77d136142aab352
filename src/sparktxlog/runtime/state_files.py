"""What only the node's memory knows, as files below `log/state/` for readers by SQL.

Spark's SQL reads files and nothing of this program, so each view of the state is a file of JSON
lines that is replaced every two seconds (decision 57).  The directory says that somebody wants it:
`register` of a session asks for it, and its removal ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import structlog

from sparktxlog.codec.state_views import VIEWS
from sparktxlog.errors import StorageError, TxLogError
from sparktxlog.files.durability import write_at_once
from sparktxlog.model.answers import StateFilesAnswer
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.view_rows import ViewRows, row_dicts

_log = structlog.get_logger("sparktxlog.state")

PERIOD_S = 2.0


class StateFiles:
    """Writes the files; belongs to the event loop."""

    def __init__(self, base: Foundation, views: ViewRows) -> None:
        self._base = base
        self._views = views
        self.directory = base.config.data_dir / "log" / "state"
        self._wanted = asyncio.Event()
        self._writing = asyncio.Lock()

    async def begin(self) -> StateFilesAnswer:
        """Write the files now, and from now on; return where they are.

        Raises:
            StorageError: They cannot be written.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            await self._write()
        except OSError as error:
            raise StorageError(
                f"views of the state cannot be written to {self.directory}: {error.strerror}",
                hint="Free space there, or mend the directory's rights.",
                path=str(self.directory),
            ) from error
        self._wanted.set()
        return {"directory": str(self.directory), "period_s": PERIOD_S}

    async def watch(self) -> None:
        """Write the files as long as there is the directory, until cancelled."""
        while True:
            if not self.directory.is_dir():
                self._wanted.clear()
                await self._wanted.wait()
            try:
                await self._write()
            except (OSError, TxLogError) as error:
                _log.warning("views of the state are not written", reason=str(error))
            await asyncio.sleep(PERIOD_S)

    async def _write(self) -> None:
        found = await self._views.tables(VIEWS)
        async with self._writing:
            await self._base.run_blocking(self._replace, found)

    def _replace(self, found: Mapping[str, pa.Table]) -> None:
        """Replace each file as a whole; what a power loss leaves is replaced in two seconds."""
        as_of = datetime.now(UTC)
        for name, table in found.items():
            rows = (row | {"as_of": as_of} for row in row_dicts(table))
            lines = (msgspec.json.encode(row) + b"\n" for row in rows)
            write_at_once(self.directory / f"{name}.json", lines)
