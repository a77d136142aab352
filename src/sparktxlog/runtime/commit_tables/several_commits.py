"""Transactions that commit to several commit tables, and may write to row tables too (P36).

They are submitted as any other transaction.  What they commit is checked like a commit of one
table, and no client gets an answer before all of their versions are placed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from sparktxlog.codec.delta_catalog.catalog_answers import ShownTable
from sparktxlog.codec.submits.commit_requests import as_uuid
from sparktxlog.codec.submits.known_contents import Content
from sparktxlog.codec.submits.transactions import PreparedTransaction, StagedCommitRequest
from sparktxlog.errors import CommitStateUnknownError, InvalidRequestError, UnknownTableError
from sparktxlog.model.tables.commit_table import CommitKind, CommitOperation
from sparktxlog.model.transactions.receipt import LEVEL_RANK, Level, Receipt
from sparktxlog.runtime.commit.acceptance import Submits
from sparktxlog.runtime.commit_tables.commit_catalog import CommitCatalog, check_next
from sparktxlog.runtime.foundation import Foundation


class SeveralCommits:
    """Commits to several tables at once; belongs to the event loop."""

    def __init__(self, base: Foundation, submits: Submits, catalog: CommitCatalog) -> None:
        self._base = base
        self._submits = submits
        self._catalog = catalog

    async def commit(
        self,
        transaction: PreparedTransaction,
        *,
        level: Level,
        sites: int,
        timeout: float,
        first_wins: bool = False,
    ) -> Receipt:
        """Submit a transaction with staged commits; return its receipt once all is placed here.

        A repeated id gets the receipt of the first.  If the transaction lost, what it lost to can
        be read here.

        Args:
            transaction: Checked, but for its staged commits: at most one for each table.
            first_wins: See `Submits.submit`.

        Raises:
            InvalidRequestError: A table twice, or a level below `ordered` (definite).
            UnknownTableError: A table is not there (definite).
            StagedCommitError: A staged commit is not what the request says (definite).
            VersionConflictError: One is not the next version of its table (definite).
            CommitStateUnknownError: It is not known whether it takes effect, or it does and is not
                placed here.
            TxLogError: As `Submits.submit`.
        """
        uuids = [as_uuid(one.table_id) for one in transaction.staged_commits]
        if len(set(uuids)) < len(uuids) or LEVEL_RANK[level] < LEVEL_RANK[Level.ORDERED]:
            raise InvalidRequestError(
                f"a transaction commits to each table once, at level 'ordered' or above; asked for "
                f"are {len(uuids):,} commits to {len(set(uuids)):,} tables at {level.value!r}",
                field="commits",
            )
        loop, content = self._base.loop, Content(transaction, first_wins=first_wins)
        deadline = loop.time() + timeout
        async with AsyncExitStack() as turns:
            for uuid in sorted(uuids):
                await turns.enter_async_context(self._catalog.turn(uuid))
            receipt = await self._submits.repeated(
                content, level=Level.ORDERED, timeout=deadline - loop.time()
            )
            if receipt is None:
                checked = await self._checked(transaction, uuids)
                receipt = await self._submits.submit(
                    checked,
                    level=Level.ORDERED,
                    timeout=max(0.0, deadline - loop.time()),
                    first_wins=first_wins,
                )
        await self.placed(receipt, uuids)
        if level is not Level.ORDERED:
            # Other commits to the tables do not wait for the workers.
            left = max(0.0, deadline - loop.time())
            later = await self._submits.repeated(content, level=level, sites=sites, timeout=left)
            receipt = later or receipt
        return receipt

    async def placed(self, receipt: Receipt, uuids: Sequence[str]) -> None:
        """Wait until what a transaction did to tables, or what it lost to, is placed here.

        Raises:
            CommitStateUnknownError: It is ordered, and cannot be placed here.
        """
        for uuid in uuids if receipt.position is not None else ():
            table = self._base.master.commit_tables.get(uuid)
            if table is not None:  # else somebody dropped it since
                await self._catalog.ordered(uuid, table.version)

    async def _checked(
        self, transaction: PreparedTransaction, uuids: Sequence[str]
    ) -> PreparedTransaction:
        """Return the transaction with its commits and all their files, which are durable here."""
        self._catalog.check_ready()
        found: list[tuple[ShownTable, StagedCommitRequest]] = []
        for uuid, one in zip(uuids, transaction.staged_commits, strict=True):
            table = self._base.master.commit_tables.get(uuid)
            if table is None:
                raise UnknownTableError(f"there is no commit table {uuid[:40]}", value=uuid[:40])
            found.append((await self._catalog.shown(table), one))
        for shown, one in found:
            _ = one.proposed.transaction_id  # the name is that of a staged commit
            if await self._catalog.is_in(shown, one.proposed):
                raise CommitStateUnknownError(
                    f"version {one.proposed_version} of {shown.name!r} is this very commit, and "
                    "the id of its transaction is forgotten",
                    hint="It took effect.",
                    table=shown.name,
                )
            check_next(shown, one.proposed)
        secured = [
            await self._catalog.secure(
                shown, one.proposed, transaction.transaction_id, tables=len(found)
            )
            for shown, one in found
        ]
        return replace(
            transaction,
            commits=tuple(
                CommitOperation(
                    kind=CommitKind.COMMIT,
                    uuid=shown.uuid,
                    version=one.proposed_version,
                    timestamp=one.timestamp,
                ).checked()
                for shown, one in found
            ),
            commit_files=tuple(file for one in secured for file in one.files),
            contents={path: raw for one in secured for path, raw in one.contents.items()},
            is_sync=transaction.is_sync or any(one.is_sync for one in secured),
        )
