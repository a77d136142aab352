"""Which transactions are synchronous (P34)."""

from __future__ import annotations

from sparktxlog.codec.submits.transactions import (
    PreparedOperation,
    PreparedTransaction,
    is_synchronous,
)
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import OperationKind

_PLAIN = TableDefinition(name="p", columns=(Column(name="id", type="bigint"),))
_SYNC = TableDefinition(name="S", columns=_PLAIN.columns, is_sync=True)
_TABLES = {"p": _PLAIN, "S": _SYNC}
_DELETE = OperationKind.DELETE_WHERE


def _is_synchronous(*operations: PreparedOperation, is_sync: bool = False) -> bool:
    transaction = PreparedTransaction(
        transaction_id=bytes(16), operations=operations, is_sync=is_sync
    )
    return is_synchronous(transaction, _TABLES)


def test_one_synchronous_table_makes_all_of_it_synchronous() -> None:
    plain, other = (PreparedOperation(table=name, kind=_DELETE) for name in ("p", "s"))
    assert not _is_synchronous(plain)
    assert _is_synchronous(plain, other), "names of tables ignore case"
    assert _is_synchronous(plain, is_sync=True) and _is_synchronous(is_sync=True)
    assert not _is_synchronous(PreparedOperation(table="nowhere", kind=_DELETE))


def test_what_makes_a_table_synchronous_is_so_too() -> None:
    create = PreparedOperation(table="u", kind=OperationKind.CREATE_TABLE, definition=_SYNC)
    assert _is_synchronous(create)
    for change, expected in ((True, True), (False, False), (None, False)):
        alter = PreparedOperation(
            table="p", kind=OperationKind.ALTER_TABLE, change=TableChange(is_sync=change)
        )
        assert _is_synchronous(alter) is expected
