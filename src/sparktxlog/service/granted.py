"""What a client with a grant may write; all other clients may write every table.

The door sets the requester, for the task of a request and what it starts; code that submits checks
the tables that it is about to write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar

from sparktxlog.config import ClientGrant
from sparktxlog.errors import ForbiddenError
from sparktxlog.runtime.audit_trail import tell_about

#: The client that asks, None = it needs no grant.
_asks: ContextVar[ClientGrant | None] = ContextVar("client", default=None)


def set_client(grant: ClientGrant | None) -> None:
    """Set the client that asks in this request."""
    _asks.set(grant)


def check_writes(tables: Callable[[], Iterable[str | None]], acts: Iterable[str] = ()) -> None:
    """Let the request write tables, or raise; its entry in the audit names them.

    Args:
        tables: Returns their names; `schema.*` = all of a schema, None = it is not known which.
        acts: What it does with them, for the entry, where there is more to say than their names.

    Raises:
        ForbiddenError: It may not write one of them; nothing happened (definite).
    """
    names = list(tables())
    tell_about(acts or (name for name in names if name is not None))
    grant = _asks.get()
    if grant is None:
        return
    for table in names:
        if table is None or not grant.may_write(table):
            what = "what it names" if table is None else table
            raise ForbiddenError(
                f"client {grant.name!r} may not write {what[:200]}",
                hint="Its grants are in the file of the node's grants-file.",
                client=grant.name,
                table=table,
            )
