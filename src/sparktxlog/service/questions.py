"""Questions to a node, what its workers tell it, and its upkeep."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from sparktxlog.codec.validation import known_table
from sparktxlog.errors import InvalidNameError, NotFoundError, PayloadStoreError, StorageError
from sparktxlog.model.answers import (
    PositionAnswer,
    ProbedFile,
    RepairedFiles,
    ReportAnswer,
    SettingValue,
    SnapshotAnswer,
    StatusAnswer,
    TableAt,
)
from sparktxlog.model.copying import CopyTicket, Decision, Transfer
from sparktxlog.model.ids import transaction_id_from_text, transaction_id_to_text
from sparktxlog.model.receipt import Receipt
from sparktxlog.model.report import Recount, WorkerReport
from sparktxlog.model.table import TableDefinition
from sparktxlog.runtime.node import Node
from sparktxlog.service.endpoints import Handler
from sparktxlog.service.routes import CopyRequest, RepairRequest, SegmentsAnswer

_PROBE = re.compile(r"[A-Za-z0-9-]{1,64}")
_MAX_PROBE_BYTES = 1 << 20


class QuestionRoutes:
    """One method per route, beside those that a method of the node answers as it is."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.worker_tables = self.tables

    def direct(self) -> Mapping[str, Handler]:
        """Return the routes that the node answers by itself."""
        node = self._node
        return {
            "info": node.info,
            "queue": node.queue,
            "transfers": node.transfers,
            "signatures": node.signatures,
            "settings": node.settings,
            "maintain": node.maintain,
        }

    def status(self, tables: int) -> StatusAnswer:
        """Return the master's view, with all tables of replicas if they are asked for."""
        return self._node.status(tables=bool(tables))

    async def find_transaction(self, id_: str) -> Receipt:
        """Return what became of a transaction."""
        transaction_id = transaction_id_from_text(id_)
        receipt = await self._node.find(transaction_id)
        if receipt is None:
            text = transaction_id_to_text(transaction_id)
            raise NotFoundError(
                f"transaction {text} was never seen here",
                hint="It may be on its way from another site; ask the node it was sent to.",
                transaction_id=text,
            )
        return receipt

    async def tables(self, after: int, timeout: float) -> list[TableAt]:
        """Return all tables, by name."""
        await self._node.reach(after, timeout)
        return [self._at_position(found) for _, found in sorted(self._node.tables().items())]

    async def table(self, table: str, after: int, timeout: float) -> TableAt:
        """Return one table."""
        await self._node.reach(after, timeout)
        return self._at_position(known_table(self._node.tables(), table))

    def _at_position(self, definition: TableDefinition) -> TableAt:
        position = self._node.info()["position"]
        return cast(TableAt, {**msgspec.to_builtins(definition), "position": position})

    async def published(self, at_least: int, timeout: float) -> PositionAnswer:
        """Return the published position."""
        return {"position": await self._node.published(at_least, timeout)}

    async def snapshot(self, position: int, at_least: int, timeout: float) -> SnapshotAnswer:
        """Return the table versions of the site's replica at one position."""
        return await self._node.snapshot(None if position < 0 else position, at_least, timeout)

    async def probe(self, name: str) -> ProbedFile:
        """Say what a file of `<payload store>/probe/` holds: does the client see this store?"""
        return await asyncio.to_thread(self._probe, name)

    def _probe(self, name: str) -> ProbedFile:
        if not _PROBE.fullmatch(name):
            raise InvalidNameError(f"{name[:80]!r} cannot name a probe file", value=name[:80])
        path = Path(self._node.payloads.path(f"probe/{name}"))
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError as error:
            raise PayloadStoreError(
                f"the node sees no file {path}",
                hint="Node, driver and executors must see one payload store under one path; set "
                "payload-dir to a shared directory.",
                path=str(path),
            ) from error
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}", path=str(path)) from error
        with os.fdopen(descriptor, "rb") as source:
            data = source.read(_MAX_PROBE_BYTES)
        return {"size_bytes": len(data), "digest": hashlib.sha256(data).hexdigest()}

    # -- workers -----------------------------------------------------------------------------------

    async def segments(self, after: int, wait: float, limit: int) -> SegmentsAnswer:
        """Return published segments after a position."""
        position, segments = await self._node.segments(after, wait, limit)
        info = self._node.info()
        return {
            "position": position,
            "lineage": info["lineage"],
            "epoch": info["epoch"],
            "segments": segments,
        }

    async def plan(self, worker: str | None) -> Decision:
        """Return how a replica of this site would catch up."""
        return await self._node.plan(worker)

    def report(self, body: WorkerReport) -> ReportAnswer:
        """Judge the state of the site's replica."""
        return self._node.accept_report(body)

    async def take_recount(self, body: Recount) -> ReportAnswer:
        """Keep what a full scan found."""
        return await self._node.take_recount(body)

    async def order_copy(self, body: CopyRequest) -> CopyTicket:
        """Find donors and get their leases."""
        return await self._node.order_copy(body.worker_id, forced=body.forced, donor=body.donor)

    async def repair_files(self, body: RepairRequest) -> RepairedFiles:
        """Fetch again from other nodes what a worker could not read."""
        return await self._node.files.repair_segments(body.first, body.last)

    async def take_transfer(self, body: Transfer) -> None:
        """Keep the end of a catch-up."""
        await self._node.take_transfer(body)

    async def change_settings(self, body: dict[str, Any]) -> dict[str, SettingValue]:
        """Change settings at run time."""
        return await self._node.change_settings(body)
