"""Routes to read a node's state, routes for its workers, and maintenance."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import cast

import msgspec

from sparktxlog.codec.submits.validation import known_table
from sparktxlog.errors import InvalidNameError, NotFoundError, PayloadStoreError, StorageError
from sparktxlog.files.foreign_files import open_regular
from sparktxlog.model.answers import (
    PositionAnswer,
    ProbedFile,
    RepairedFiles,
    SnapshotAnswer,
    StatusAnswer,
    TableAt,
)
from sparktxlog.model.copying import CopyTicket
from sparktxlog.model.ids import (
    full_table_name,
    table_name,
    transaction_id_from_text,
    transaction_id_to_text,
)
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.tables.table_checks import CommitTableCheck, CommitTableCheckRequest
from sparktxlog.model.tables.table_kind import TableDescription
from sparktxlog.model.transactions.receipt import Receipt
from sparktxlog.runtime.audit_trail import tell_about
from sparktxlog.runtime.foundation import in_slices
from sparktxlog.runtime.groups.group_states import elsewhere
from sparktxlog.runtime.node import Node
from sparktxlog.service.routing.endpoints import RouteHandlers
from sparktxlog.service.routing.request_bodies import (
    CopyRequest,
    OrderedRecount,
    RecountOrder,
    RepairRequest,
    SegmentsAnswer,
)

_PROBE = re.compile(r"[A-Za-z0-9-]{1,64}")
_MAX_PROBE_BYTES = 1 << 20
#: Seconds until what was just ordered is on the disk; it takes a few milliseconds.
_DURABLE_S = 10.0
_encode = msgspec.json.Encoder().encode


class StateRoutes(RouteHandlers):
    """One method per route."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.worker_tables = self.tables
        self.info, self.queue, self.transfers = node.info, node.queue, node.transfers
        self.prepared, self.incoming = node.prepared, node.incoming
        self.groups = node.groups
        self.commits = node.commits
        self.state_files = node.state_files.begin
        self.commit_tables = node.catalog.overview.listed
        self.signatures, self.settings = node.signatures, node.settings
        self.maintain, self.change_settings = node.maintain, node.change_settings
        self.plan, self.report = node.plan, node.all_replicas.take_report
        self.take_recount, self.take_transfer = node.take_recount, node.take_transfer

    def status(self, tables: int) -> StatusAnswer:
        return self._node.status(tables=bool(tables))

    async def find_transaction(self, id_: str, after: int, timeout: float) -> Receipt:
        transaction_id = transaction_id_from_text(id_)
        end = time.monotonic() + timeout
        if after:
            await self._node.reach(after, timeout)
        receipt = await self._node.find_decided(transaction_id, end - time.monotonic())
        if receipt is None:
            text = transaction_id_to_text(transaction_id)
            raise NotFoundError(
                f"this node never saw transaction {text}",
                hint="It may be on its way from another site; ask the node that it was sent to.",
                transaction_id=text,
            )
        return replace(receipt, log_id=self._node.log_id)

    async def tables(self, after: int, timeout: float, after_name: str, limit: int | None) -> bytes:
        await self._node.reach(after, timeout)
        end, pieces = self._node.end, list[bytes]()
        async for tables in self._node.descriptions.row_tables(_full_name(after_name), limit):
            end = self._node.end
            if tables:
                pieces.append(_encode([self._at(end, table) for table in tables])[1:-1])
        await self._durable(end)
        return _array(pieces)

    async def table(self, table: str, after: int, timeout: float) -> TableAt:
        await self._node.reach(after, timeout)
        end = self._node.end
        found = self._at(end, known_table(self._node.tables(), table))
        await self._durable(end)
        return found

    async def descriptions(
        self, after: int, timeout: float, after_name: str, limit: int | None
    ) -> bytes:
        await self._node.reach(after, timeout)
        found = await self._node.descriptions.all(_full_name(after_name), limit)
        pieces = [_encode(some)[1:-1] async for some in in_slices(found)]
        await self._durable(max((one.position for one in found), default=0))
        return _array(pieces)

    async def description(self, table: str, after: int, timeout: float) -> TableDescription:
        await self._node.reach(after, timeout)
        found = await self._node.descriptions.of(table)
        await self._durable(found.position)
        return found

    async def _durable(self, position: int) -> None:
        """Wait until this node's disk has what it answers: the core knows it a moment before.

        Raises:
            PositionNotReachedError: The disk is full, or fails (definite).
        """
        await self._node.reach(position, _DURABLE_S)

    def _at(self, position: int, definition: TableDefinition) -> TableAt:
        writes = self._node.writes(definition.name)
        counted = {
            "properties": dict(definition.properties),
            "position": position,
            "version": writes.version,
            "last_write": writes.position,
        }
        return cast(TableAt, msgspec.to_builtins(definition) | counted)

    async def published(self, at_least: int, log_id: str, timeout: float) -> PositionAnswer:
        self._node.epochs.check_position(log_id, at_least)
        return {"position": await self._node.published(at_least, timeout)}

    async def snapshot(
        self,
        position: int,
        at_least: int,
        log_id: str,
        timeout: float,
        replica: str,
        table: str,
    ) -> SnapshotAnswer:
        self._node.epochs.check_position(log_id, at_least)
        at = None if position < 0 else position
        return await self._node.snapshot(at, at_least, timeout, replica, table)

    async def forget_replica(self, name: str) -> None:
        await self._node.all_replicas.forget(name)

    async def check_commit_table(self, body: CommitTableCheckRequest) -> CommitTableCheck:
        tell_about((f"{'repair' if body.repair else 'verify'} {body.table}",))
        return await self._node.catalog.recounts.check(body)

    def order_recount(self, body: RecountOrder) -> OrderedRecount:
        names = [known_table(self._node.tables(), name).name for name in body.tables]
        worker, tables = self._node.all_replicas.ask_recount(body.replica, names)
        heartbeat_s = self._node.config.worker_heartbeat
        return {"worker_id": worker, "tables": tables, "heartbeat_s": heartbeat_s}

    async def probe(self, name: str) -> ProbedFile:
        root = self._node.payloads.root
        found: ProbedFile = await self._node.base.stagers.run(root, self._probe, name)
        return found

    def _probe(self, name: str) -> ProbedFile:
        if not _PROBE.fullmatch(name):
            raise InvalidNameError(f"{name[:80]!r} cannot name a probe file", value=name[:80])
        path = Path(self._node.payloads.path(f"probe/{name}"))
        try:
            descriptor = open_regular(path)
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
        position, segments = await self._node.segments(after, wait, limit)
        info = self._node.info()
        return {
            "position": position,
            "log_id": info["log_id"],
            "epoch": info["epoch"],
            "segments": segments,
            "elsewhere": elsewhere(self._node.base, segments),
        }

    async def order_copy(self, body: CopyRequest) -> CopyTicket:
        return await self._node.order_copy(
            body.worker_id, forced=body.forced, donor=body.donor, failed=body.failed
        )

    async def repair_files(self, body: RepairRequest) -> RepairedFiles:
        return await self._node.files.repair_segments(body.first, body.last)


def _array(pieces: Iterable[bytes]) -> bytes:
    """Return a JSON array of elements that are encoded, several to a piece."""
    return b"[%b]" % b",".join(pieces)


def _full_name(given: str) -> str:
    """Return a name as lists of tables are ordered; empty for none.

    Raises:
        InvalidNameError: No table can have it (definite).
    """
    return full_table_name(table_name(given)).lower() if given else ""
