"""A node: what clients, workers and peers can ask of it.

The node holds no decisions of its own: the core orders, the front remembers, the publisher
writes the queue table, workers apply.  Here their answers meet the questions of `service/`.
All methods belong to the event loop; whatever blocks goes to a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import structlog

from sparktxlog import __version__
from sparktxlog.codec.payload import read_manifest
from sparktxlog.codec.transactions import PreparedTransaction
from sparktxlog.config import NodeConfig
from sparktxlog.errors import (
    BusyError,
    CommitStateUnknownError,
    DiskFullError,
    DuplicateTransactionError,
    ExpiredTransactionError,
    InvalidRequestError,
    LocalProtocolError,
    NotAppliedError,
    NotFoundError,
    NotMemberError,
    PausedError,
    PositionNotReachedError,
)
from sparktxlog.model.answers import (
    InfoAnswer,
    ListedRun,
    ReportAnswer,
    SettingValue,
    SiteSignatures,
    SnapshotAnswer,
    StatusAnswer,
)
from sparktxlog.model.copying import CopyTicket, Decision, Transfer
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.operation import Acceptance, RunManifest
from sparktxlog.model.receipt import LEVEL_RANK, Level, Receipt, ReceiptRejection
from sparktxlog.model.report import Recount, WorkerReport
from sparktxlog.model.table import TableDefinition
from sparktxlog.protocol.words.versions import ACCEPTANCE
from sparktxlog.runtime.clock import wall_us
from sparktxlog.runtime.commit.receipts import check_copies, make_receipt
from sparktxlog.runtime.commit.voiding import Voiding
from sparktxlog.runtime.fleet.transfers import RunningCopy, check_transfer
from sparktxlog.runtime.log.pruning import Maintenance
from sparktxlog.runtime.membership.epochs import Epochs, duty_master
from sparktxlog.runtime.parts import Parts
from sparktxlog.runtime.worker_token import worker_token_file
from sparktxlog.storage.interfaces import OlderIdsFound, Segment, StoredEntry
from sparktxlog.storage.payloads.payload_store import PayloadStore

_log = structlog.get_logger("sparktxlog.node")

#: Longest wait of any request, seconds.
MAX_WAIT_S = 300.0
_MAX_PAGE = 1_000


class Node:
    """One member of the cluster, started by `wiring.start_node`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.config: NodeConfig = parts.config
        self.payloads: PayloadStore = parts.payloads

    # -- transactions ------------------------------------------------------------------------------

    def tables(self) -> Mapping[str, TableDefinition]:
        """Return the catalog at this node's position."""
        return self._parts.master.catalog

    async def reach(self, after: int, timeout: float) -> None:
        """Wait until this node's queue and catalog hold a position.

        Raises:
            PositionNotReachedError: Not in time; nothing happened (definite).
        """
        position = await self._parts.ordered.reach(after, min(timeout, MAX_WAIT_S))
        if position < after:
            raise PositionNotReachedError(
                f"node {self.config.node_id!r} is at position {position:,}, this was to come after "
                f"{after:,}",
                after=after,
                position=position,
            )

    async def reach_for_submit(self, after: int, level: Level, copies: int, timeout: float) -> None:
        """Wait as `reach`, unless the node takes no transactions; errors as `reach`, `submit`."""
        if self._parts.ordered.value < after:
            self._check_submit(level, copies)
            await self.reach(after, timeout)

    async def submit(
        self, tx: PreparedTransaction, *, level: Level, copies: int = 1, timeout: float
    ) -> Receipt:
        """Commit one transaction; those that come together become one run (group commit).

        A repeated transaction id gets the receipt of the first (idempotency).  What is ordered
        in time, and not yet at a higher level that was asked for, is answered as `late`.

        Raises:
            CommitStateUnknownError: It was not ordered in time (not definite).
            NoQuorumError: It could not be, for too few nodes answer (definite).
            BusyError, DiskFullError, CommitRejectedError: Nothing happened (definite).
        """
        self._check_submit(level, copies)
        timeout = min(timeout, MAX_WAIT_S)
        deadline = asyncio.get_running_loop().time() + timeout
        older = await self._older_ids(tx.transaction_id)
        if older.found:
            first = self._older_receipt(tx.transaction_id, *older.found[0])
            return await self._at_level(first, level, copies, timeout)
        acceptance, at = self._look_up(tx.transaction_id, older)
        known = await self._known(tx.transaction_id, at, level, copies, timeout)
        if known is not None:
            return self._of_the_first(known, tx.transaction_id)
        self._check_valid(tx.valid_until)
        self._check_quorum(level)
        try:
            async with asyncio.timeout_at(deadline):
                submission, index = await self._parts.cycle.submit_single(tx, acceptance)
        except TimeoutError:
            text = transaction_id_to_text(tx.transaction_id)
            raise CommitStateUnknownError(
                f"transaction {text} has not reached {level.value!r} in time",
                hint="Ask for its id before doing it again.",
                transaction_id=text,
                reached=None,
            ) from None
        left = max(0.0, deadline - asyncio.get_running_loop().time())
        receipt = await self._parts.receipts.wait(submission, index, level, copies, left)
        return self._of_the_first(receipt, tx.transaction_id)

    async def submit_run(
        self,
        payload: bytes,
        manifest: RunManifest,
        *,
        level: Level,
        copies: int = 1,
        timeout: float,
    ) -> Receipt:
        """Commit a run of transactions; errors and idempotency as `submit`, by its first id."""
        self._check_submit(level, copies)
        timeout = min(timeout, MAX_WAIT_S)
        older = await self._older_ids(manifest.ids)
        if (receipt := _older_run(manifest, older)) is not None:
            return await self._at_level(receipt, level, copies, timeout)
        acceptance, at = self._look_up(manifest.ids, older)
        known = await self._known(manifest.transaction_id(0), at, level, copies, timeout, manifest)
        several = manifest if manifest.n > 1 else None
        if known is not None:
            return self._of_the_first(known, manifest.transaction_id(0), several)
        self._check_valid(*(until for _, until in manifest.valid_until))
        self._check_quorum(level)
        submission = self._parts.cycle.accept_run(manifest, payload, acceptance)
        receipt = await self._parts.receipts.wait(submission, None, level, copies, timeout)
        return self._of_the_first(receipt, manifest.transaction_id(0), several)

    def _check_valid(self, *valid_until: int | None) -> None:
        """Refuse a time that has passed, or that ids are not known for.

        Raises:
            ExpiredTransactionError, InvalidRequestError: Nothing happened (definite).
        """
        in_force = self._parts.master.view.version
        if in_force < ACCEPTANCE and any(until is not None for until in valid_until):
            raise InvalidRequestError(
                f"valid_until needs wire version {ACCEPTANCE}, the log works by {in_force}",
                hint="It will once all nodes speak it; see `sparktxlog status`.",
                field="valid_until",
            )
        now, most_s = wall_us(), self.config.id_window_time
        for until in valid_until:
            if until is not None and until < now:
                raise ExpiredTransactionError(
                    "the transaction was valid until a time that has passed",
                    hint="It has not taken effect through this request; ask for its id.",
                    valid_until=until,
                )
            if until is not None and until > now + most_s * 1_000_000:
                raise InvalidRequestError(
                    f"valid_until lies more than {most_s:,.0f} s (id-window-time) ahead",
                    hint="Ids are known for so long: choose an earlier time.",
                    field="valid_until",
                    value=until,
                )

    async def _older_ids(self, ids: bytes) -> OlderIdsFound:
        """Look ids up among those of old positions, in a thread if there are any."""
        parts = self._parts
        if parts.front.filed_ids == 0:
            return OlderIdsFound()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(parts.readers, parts.front.older_ids, ids)

    def _look_up(self, ids: bytes, older: OlderIdsFound) -> tuple[Acceptance | None, int | None]:
        """Return what a manifest can say of the ids, and where memory has the first one."""
        acceptance = self._parts.cycle.acceptance(ids, older)
        if acceptance is None:
            return None, self._parts.master.locate(ids[:16])
        return acceptance, dict(acceptance.repeats).get(0)

    def _older_receipt(self, transaction_id: bytes, position: int, rejected: bool) -> Receipt:
        """Return what is known of a transaction whose row is gone: its outcome, not the reason."""
        stored = self._parts.front.read_entry_at(position)
        if stored is not None:
            return self._stored_receipt(stored, position - stored.entry.position)
        return Receipt(
            transaction_id=transaction_id_to_text(transaction_id),
            n=1,
            level=Level.ORDERED,
            position=position,
            outcome="rejected" if rejected else "committed",
        )

    @staticmethod
    def _stored_receipt(stored: StoredEntry, index: int | None) -> Receipt:
        entry = stored.entry
        return make_receipt(
            stored.ids, index, Level.ORDERED, entry.header, entry, stored.ordered_at
        )

    def _check_submit(self, level: Level, copies: int) -> None:
        parts = self._parts
        check_copies(level, copies, len(parts.master.view.members))
        if parts.cycle.halted is not None:
            raise LocalProtocolError(
                f"this node has halted: {parts.cycle.halted.text}",
                hint="Submit at another site; see `sparktxlog status`.",
                reason=parts.cycle.halted.code,
            )
        if parts.settings.paused:
            raise PausedError(
                f"node {self.config.node_id!r} is paused: it takes no transactions",
                hint="Submit at another site, or end it with `sparktxlog peer continue`.",
            )
        if not parts.joining.settled.is_set():
            raise NotMemberError("this node has no queue yet: it is about to join the log")
        if parts.links and not parts.joining.proven:
            awaited = ", ".join(parts.joining.awaited()) or "a peer"
            raise NotMemberError(
                f"this node keeps nothing, and {awaited} has not taken it as it is yet",
                hint="At the first start of a cluster each of its nodes has to be there once.  A "
                "place whose node does not come: sparktxlog peer remove.",
            )
        if parts.executor.disk_full:
            raise DiskFullError(
                "the node's disk is full", hint="Make room; the node goes on by itself."
            )
        if parts.stopping:
            raise BusyError("the node is stopping", hint="Submit again when it is back.")

    def _check_quorum(self, level: Level) -> None:
        """Refuse what nobody has seen yet and cannot be ordered now."""
        self._parts.epochs.restriction.check(level, self.config.suspect_timeout)

    async def _known(
        self,
        transaction_id: bytes,
        position: int | None,
        level: Level,
        copies: int,
        timeout: float,
        manifest: RunManifest | None = None,
    ) -> Receipt | None:
        """Return the receipt of a transaction that was submitted before, once at its level.

        Args:
            position: Where it stands, None = not known of any.
        """
        parts = self._parts
        pending = parts.receipts.pending(transaction_id)
        run = manifest is not None and manifest.n > 1
        if pending is not None:
            submission, index = pending
            if run and manifest is not None and submission.ids != manifest.ids:
                return None  # the core will find the repeated id, as an ordered outcome
            which = None if run else index
            return await parts.receipts.wait(submission, which, level, copies, timeout)
        found = parts.front.find_transaction(transaction_id)
        if found is not None:
            header, index = found
            payload = parts.front.read_payload(header.origin, header.incarnation, header.seq)
            if payload is not None:
                ids = read_manifest(payload).ids
                if run and manifest is not None and ids != manifest.ids:
                    return None
                submission = parts.receipts.adopt(header, ids)
                which = None if run else index
                return await parts.receipts.wait(submission, which, level, copies, timeout)
        receipt = self._ordered_receipt(transaction_id, position, manifest if run else None)
        return None if receipt is None else await self._at_level(receipt, level, copies, timeout)

    async def _at_level(
        self, receipt: Receipt, level: Level, copies: int, timeout: float
    ) -> Receipt:
        """Return the receipt of what is ordered once it is at the level, or says `late`."""
        if receipt.position is None or LEVEL_RANK[level] <= LEVEL_RANK[Level.ORDERED]:
            return receipt
        return await self._applied(receipt, receipt.position + receipt.n - 1, copies, timeout)

    def _ordered_receipt(
        self, transaction_id: bytes, position: int | None, manifest: RunManifest | None = None
    ) -> Receipt | None:
        if position is None or position > self._parts.ordered.value:
            return None  # the core may know of it already, but nothing is told before it is durable
        stored = self._parts.front.read_entry_at(position)
        if stored is None:
            return self._position_only(transaction_id, position, manifest)
        if manifest is not None and stored.ids != manifest.ids:
            return None
        index = None if manifest is not None else position - stored.entry.position
        return self._stored_receipt(stored, index)

    def _position_only(
        self, transaction_id: bytes, position: int, manifest: RunManifest | None
    ) -> Receipt | None:
        """Return what is known of an ordered transaction whose outcome is not kept here.

        A node that took over a snapshot knows ids and positions of what lies before it.

        Raises:
            CommitStateUnknownError: It is a run: without its outcomes its receipt would say that
                none was rejected (not definite; field `position`).
        """
        text = transaction_id_to_text(transaction_id)
        if manifest is None:
            return Receipt(transaction_id=text, n=1, level=Level.ORDERED, position=position)
        ids = (manifest.transaction_id(index) for index in range(manifest.n))
        located = map(self._parts.master.locate, ids)
        if any(found != position + index for index, found in enumerate(located)):
            return None
        raise CommitStateUnknownError(
            f"the run of transaction {text} was ordered at position {position}; which of its "
            "transactions were rejected is not kept at this node",
            hint="Ask another site's node.",
            transaction_id=text,
            reached=Level.ORDERED.value,
            position=position,
        )

    def _of_the_first(
        self, receipt: Receipt, transaction_id: bytes, manifest: RunManifest | None = None
    ) -> Receipt:
        """Return the receipt of the first of two equal transactions if this one was the second.

        A client that lost its node submits the same id elsewhere: both may be ordered, and only
        the first takes effect (P25c).
        """
        if not any(item.code == DuplicateTransactionError.code for item in receipt.rejections):
            return receipt
        position = self._parts.master.locate(transaction_id)
        first = self._ordered_receipt(transaction_id, position, manifest)
        if first is None or first.position == receipt.position:
            return receipt
        return replace(first, level=receipt.level, late=receipt.late)

    async def _applied(
        self, receipt: Receipt, position: int, copies: int, timeout: float
    ) -> Receipt:
        reached = await self._parts.receipts.wait_applied(position, copies, timeout)
        return replace(receipt, level=Level.APPLIED) if reached else replace(receipt, late=True)

    async def find(self, transaction_id: bytes) -> Receipt | None:
        """Return what is known of a transaction, None if it was never seen here."""
        parts = self._parts
        pending = parts.receipts.pending(transaction_id)
        if pending is not None and pending[0].reached is not None:
            return self._raised(pending[0].receipt(pending[1]))
        found = parts.front.find_transaction(transaction_id)
        if found is not None:
            header, index = found
            payload = parts.front.read_payload(header.origin, header.incarnation, header.seq)
            if payload is not None:
                ids = read_manifest(payload).ids
                return make_receipt(ids, index, Level.ACCEPTED, header, None, None)
        older = (await self._older_ids(transaction_id)).found
        if older:
            return self._raised(self._older_receipt(transaction_id, *older[0]))
        receipt = self._ordered_receipt(transaction_id, parts.master.locate(transaction_id))
        if receipt is not None:
            return self._raised(receipt)
        withdrawn = parts.front.find_withdrawn(transaction_id)
        if withdrawn is None:
            return None
        code, text = withdrawn
        return Receipt(
            transaction_id=transaction_id_to_text(transaction_id), n=1, level=None,
            outcome="rejected", rejections=(ReceiptRejection(index=0, code=code, text=text),),
        )  # fmt: skip

    def _raised(self, receipt: Receipt) -> Receipt:
        """Return the receipt at level applied if the own replica has got there."""
        position = receipt.position
        if position is None or position + receipt.n - 1 > self._parts.replicas.applied(1):
            return receipt
        return replace(receipt, level=Level.APPLIED)

    # -- state -------------------------------------------------------------------------------------

    def info(self) -> InfoAnswer:
        """Return what clients and workers need to know of this node."""
        config, parts = self.config, self._parts
        view = parts.master.view
        return {
            "node_id": config.node_id,
            "master_url": config.master_url,
            "cluster": config.cluster,
            "lineage": config.lineage,
            "epoch": view.epoch,
            "phase": parts.master.phase.value,
            "members": list(view.members),
            "quorum": view.quorum,
            "duty": duty_master(view, parts.master.status().suspects),
            "restricted": parts.epochs.restriction.shown(),
            "position": parts.ordered.value,
            "published": parts.published.value,
            "kept_after": parts.kept_after.value,
            "payload_root": str(config.payload_dir),
            "lake_root": str(config.lake_dir),
            "log_root": str(config.data_dir / "log"),
            "backup_dir": None if config.backup_dir is None else str(config.backup_dir),
            "replication_compression": config.replication_compression,
            "version": __version__,
            "inline_limit": config.inline_limit,
            "run_limit_bytes": config.run_limit_bytes,
            "run_limit_transactions": config.run_limit_transactions,
            "signature_interval": config.signature_interval,
            "worker_heartbeat": config.worker_heartbeat,
            "verify_interval": config.verify_interval,
            "worker_token_file": str(worker_token_file(config.data_dir)),
        }

    def status(self, *, tables: bool = False) -> StatusAnswer:
        """Return the master's view: queues, peers, who is awaited and why, replicas.

        Args:
            tables: Each replica with its tables, which may be 10,000; else with their number.
        """
        return self._parts.status(tables=tables)

    def _front_is_good(self) -> tuple[bool, str]:
        parts = self._parts
        if parts.joining.only_joins:
            return False, "lost: this node waits for a peer whose log it can join"
        full = parts.executor.disk_full
        return not full, "disk full" if full else "writable"

    def ready(self) -> list[tuple[str, bool, str]]:
        """Return checks (name, good, text); ready = all are good."""
        parts = self._parts
        halted = parts.cycle.halted
        failure = parts.publisher.failure
        damaged = [warning["text"] for warning in parts.damage.warnings()]
        checks = [
            ("membership", *parts.epochs.takes_part()),
            ("submits", not parts.settings.paused, "paused" if parts.settings.paused else "taken"),
            ("protocol", halted is None, "takes part" if halted is None else halted.text),
            ("front", *self._front_is_good()),
            ("payloads", not damaged, damaged[0] if damaged else "whole"),
            ("publisher", failure is None, "publishing" if failure is None else str(failure)),
            ("running", not parts.stopping, "stopping" if parts.stopping else "started"),
        ]  # fmt: skip
        checks += [
            (one.name, False, str(one.error))
            for one in parts.supervisor.failing()
            if one.error is not failure
        ]
        for link in parts.links.values():
            checks.append((f"peer {link.node_id}", True, "linked" if link.up else link.reason))
        return checks

    def epochs(self) -> Epochs:
        """Return what operators can see and ask of epochs."""
        return self._parts.epochs

    def voiding(self) -> Voiding:
        """Return what operators can ask about runs that nobody can deliver."""
        return self._parts.voiding

    async def published(self, at_least: int, timeout: float) -> int:
        """Return the published position once it is `at_least`, or as it is after `timeout` s."""
        return await self._parts.published.reach(at_least, min(timeout, MAX_WAIT_S))

    def queue(self, after: int, limit: int) -> list[ListedRun]:
        """Return entries of the synchronized queue behind a position, for people."""
        stored = self._parts.front.read_queue(
            max(after, 0), max(1, min(limit, _MAX_PAGE)), payloads=False
        )
        return [
            {
                "position": item.entry.position,
                "n": item.entry.header.n,
                "origin": item.entry.header.origin,
                "incarnation": item.entry.header.incarnation,
                "seq": item.entry.header.seq,
                "ts": item.entry.header.ts,
                "epoch": item.entry.header.epoch,
                "digest": item.entry.header.digest.hex(),
                "chain_hash": item.entry.chain_hash.hex(),
                "size_bytes": item.entry.header.size_bytes,
                "staged_bytes": item.entry.header.staged_bytes,
                "rejected": [
                    {"index": r.index, "code": r.code, "text": r.text}
                    for r in item.entry.rejections
                ],
                "first_id": transaction_id_to_text(item.ids[:16]),
                "ordered_at": item.ordered_at,
            }
            for item in stored
        ]

    # -- workers -----------------------------------------------------------------------------------

    async def segments(self, after: int, wait: float, limit: int) -> tuple[int, list[Segment]]:
        """Return published position and segments behind `after`, waiting for one if needed.

        Raises:
            ExpiredError: `after` lies before what the node keeps (definite).
        """
        parts = self._parts
        published = await parts.published.reach(after + 1, min(wait, MAX_WAIT_S))
        if published <= after:
            return published, []
        loop = asyncio.get_running_loop()
        segments = await loop.run_in_executor(
            parts.readers, parts.front.read_segments, after, max(1, min(limit, _MAX_PAGE))
        )
        return published, segments

    def accept_report(self, report: WorkerReport) -> ReportAnswer:
        """Judge the report of this site's worker: verdict, plan and reason (P24, S3)."""
        if report.node_id != self.config.node_id:
            return {
                "verdict": "FOREIGN",
                "plan": "stop",
                "reason": f"the report is of site {report.node_id!r}, this is "
                f"{self.config.node_id!r}",
            }
        whole = self._parts.reports.complete(report)
        if whole is None:
            reason = "this node does not keep what the report is based on: send it whole"
            return {"verdict": "", "plan": "", "reason": reason}
        answer = self._parts.take_report(whole)
        return {**answer, "kept": report.label} if report.label else answer

    async def take_recount(self, recount: Recount) -> ReportAnswer:
        """Keep durably what a full scan of this site's replica found; answer as to a report (S2b).

        Raises:
            InvalidRequestError: It is of another site (definite).
        """
        if recount.node_id != self.config.node_id:
            raise InvalidRequestError(
                f"the recount is of site {recount.node_id[:80]!r}, this is {self.config.node_id!r}",
                hint="Tell it to the node whose replica was counted.",
                field="node_id",
                value=recount.node_id[:80],
            )
        answer, writes = self._parts.take_recount(recount)
        await self._parts.executor.write(writes)
        return answer

    async def order_copy(self, worker_id: str, *, forced: bool, donor: str = "") -> CopyTicket:
        """Return the ticket with which a worker of this site copies another site's replica.

        Args:
            worker_id: Worker of this site.
            forced: A copy is wanted though replaying would do.
            donor: Somebody says that this site's replica is right; empty = nobody named one.

        Raises:
            LocalProtocolError: No copy is possible or due, with the reason (definite).
        """
        ticket = await self._parts.copies.order(worker_id, forced=forced, donor=donor)
        self._parts.transfers.started(
            RunningCopy(
                copy_id=ticket.copy_id,
                worker_id=worker_id,
                decision=ticket.decision,
                donors=tuple(grant.node_id for grant in ticket.grants),
                started_at=self._parts.clock.now(),
                position=min((grant.position for grant in ticket.grants), default=0),
            )
        )
        return ticket

    async def plan(self, worker_id: str | None) -> Decision:
        """Return how a worker's replica would catch up; default: the worker heard last.

        Raises:
            NotFoundError: No such worker of this site has reported (definite).
        """
        return await self._parts.planning.look(worker_id)

    async def take_transfer(self, transfer: Transfer) -> None:
        """Keep the end of a catch-up durably; told again it changes nothing.

        Raises:
            InvalidRequestError: It is of another site, or a number is out of bounds (definite).
        """
        check_transfer(transfer, self.config.node_id)
        kept = self._parts.take_transfer(transfer)
        if kept is not None:
            await self._parts.executor.write(kept.writes)

    def transfers(self, limit: int) -> list[Transfer]:
        """Return the latest catch-ups of this site's replica, oldest first."""
        return self._parts.transfers.latest(limit)

    def signatures(self, after: int, limit: int) -> SiteSignatures:
        """Return the own replica's signatures at the ends of its batches, positions ascending."""
        replicas = self._parts.replicas
        return {
            "node_id": self.config.node_id,
            "replicas": [
                {
                    "worker_id": state.report.worker_id,
                    "position": state.report.position,
                    "verdict": state.comparison.verdict.value,
                }
                for state in replicas.states()
                if state.report.node_id == self.config.node_id
            ],
            "signatures": [
                {
                    "position": report.position,
                    "chain_hash": report.chain_hash,
                    "tables": {
                        name: table.signature.to_text()
                        for name, table in sorted(report.tables.items())
                    },
                }
                for report in replicas.history(after, limit)
            ],
        }

    # -- settings ----------------------------------------------------------------------------------

    def settings(self) -> dict[str, SettingValue]:
        """Return the settings that can be changed at run time: value and origin."""
        return self._parts.settings.show()

    async def change_settings(self, changes: Mapping[str, Any]) -> dict[str, SettingValue]:
        """Change settings durably, all or none; return as `settings`.

        Raises:
            InvalidRequestError: Unknown key or wrong value (definite).
        """
        return await self._parts.settings.change(changes, self._parts.executor.write)

    async def maintain(self) -> Maintenance:
        """Shorten the log now, as its limits ask; return what was done.

        Raises:
            BusyError: The node is stopping (definite).
            StorageError: It failed, and is tried again by itself; nothing kept was lost.
        """
        return await asyncio.wrap_future(self._parts.publisher.maintain())

    async def snapshot(self, position: int | None, at_least: int, timeout: float) -> SnapshotAnswer:
        """Return the table versions of the local replica at one position.

        Raises:
            NotAppliedError: The replica is not there yet; fields say both positions (definite).
            NotFoundError: No batch ended at that position (definite).
            DivergedError: The replica is not what the log makes of it, with the reason; what it
                was at an earlier position can still be asked for (definite).
        """
        parts = self._parts
        wanted = max(at_least, position or 0)
        kept = position is not None and parts.replicas.snapshot(position) is not None
        if not kept:
            parts.replicas.refuse_diverged()
            await parts.receipts.wait_applied(wanted, 1, min(timeout, MAX_WAIT_S))
            parts.replicas.refuse_diverged()
        applied = parts.replicas.applied(1)
        if not kept and (applied < wanted or applied == 0):
            raise NotAppliedError(
                f"the local replica has applied position {applied}, asked for {wanted}",
                hint="Run a worker: sparktxlog apply, or spark-submit.sh jobs/apply.py.",
                applied=applied,
                position=wanted,
            )
        report = parts.replicas.snapshot(position)
        if report is None:
            raise NotFoundError(
                f"no batch of the local replica ended at position {position}",
                hint="Ask without a position for the newest snapshot.",
                position=position,
                applied=applied,
            )
        return {
            "position": report.position,
            "chain_hash": report.chain_hash,
            "tables": {
                name: {
                    "version": table.version,
                    "signature": table.signature.to_text(),
                    "schema": table.schema,
                    "uri": str(self.config.lake_dir / name),
                    "diverged": table.diverged,
                }
                for name, table in sorted(report.tables.items())
            },
        }


def _older_run(manifest: RunManifest, older: OlderIdsFound) -> Receipt | None:
    """Return the receipt of a run whose rows are gone, None if these ids are not such a run."""
    position, _ = older.found.get(0, (0, False))
    if manifest.n == 1 or len(older.found) < manifest.n:
        return None
    if any(at != position + index for index, (at, _) in older.found.items()):
        return None
    return Receipt(
        transaction_id=None,
        n=manifest.n,
        level=Level.ORDERED,
        position=position,
        rejections=tuple(
            ReceiptRejection(index=index, code="rejected", text="the reason is not kept any more")
            for index, (_, rejected) in sorted(older.found.items())
            if rejected
        ),
    )
