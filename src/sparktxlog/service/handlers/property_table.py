"""A small row table whose properties are what all sites agree on: restore points, or groups.

A change of them is a transaction like any other, so all sites know the same ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

from sparktxlog.codec.containers.assembly import NewIds
from sparktxlog.codec.submits.condition_requests import committed
from sparktxlog.codec.submits.requests import (
    ColumnRequest,
    OperationRequest,
    TransactionRequest,
    prepare,
)
from sparktxlog.errors import CommitRejectedError, StaleSchemaError
from sparktxlog.model.tables.table import TableDefinition, Tables
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.model.transactions.receipt import Level, Receipt
from sparktxlog.runtime.node import Node

#: Attempts while others change properties at the same time.
_ATTEMPTS = 20
#: Seconds that each transaction may take.
_TIMEOUT_S = 30.0


class PropertyTable:
    """One such table, as a node knows it.

    Args:
        node: Takes the transactions.
        name: Of the table.
        comment: Of the table, when it is made.
    """

    def __init__(self, node: Node, name: str, comment: str) -> None:
        self._node = node
        self._name, self._comment = name, comment
        self._ids = NewIds()

    async def make(self) -> None:
        """Create the table unless it is there; errors as a commit."""
        if self._table() is not None:
            return
        made = OperationRequest(
            kind=OperationKind.CREATE_TABLE,
            table=self._name,
            columns=[ColumnRequest(name="name", type="string")],
            comment=self._comment,
        )
        try:
            await self._commit(made)
        except CommitRejectedError:
            if self._table() is None:  # else somebody else made it, with properties of its own
                raise

    async def change(
        self, change: Callable[[Mapping[str, str]], dict[str, str | None]]
    ) -> Receipt | None:
        """Change properties, alone in a run, if nobody changed one meanwhile; else try again.

        Args:
            change: Takes all of them, and returns those that change; None = removed.  If there are
                none, nothing is committed.  What it raises is passed on.

        Raises:
            StaleSchemaError: Others changed them again and again (definite).
            TxLogError: As a commit.
        """
        for attempt in range(_ATTEMPTS):
            table = self._table()
            properties = change({} if table is None else dict(table.properties))
            if not properties:
                return None
            altered = OperationRequest(
                kind=OperationKind.ALTER_TABLE,
                table=self._name,
                properties=properties,
                schema_version=None if table is None else table.schema_version,
            )
            try:
                return await self._commit(altered)
            except StaleSchemaError:
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _table(self) -> TableDefinition | None:
        return Tables.of(self._node.tables()).alike(self._name)

    async def _commit(self, operation: OperationRequest) -> Receipt:
        # Of a session of its own it is alone in its run.
        request = TransactionRequest(operations=[operation], session=str(uuid.uuid4()))
        limits = self._node.base.run_limits
        prepared = prepare(request, self._ids.next(), self._node.tables(), limits)
        receipt = await self._node.submit(prepared, level=Level.ORDERED, timeout=_TIMEOUT_S)
        return committed(receipt)
