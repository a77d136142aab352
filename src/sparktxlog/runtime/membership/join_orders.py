"""What a fresh node is told: which log to join, and as whom; and that it has to start anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from sparktxlog.errors import TxLogError
from sparktxlog.storage.interfaces import PutValue

_NAME = "joining"


class StartAgainError(TxLogError):
    """The node has to start anew, in the same process: it begins with another durable state."""

    code = "start-again"
    retryable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOrder:
    """What a fresh node was told: the log to join, and as whom."""

    lineage: str
    incarnation: int
    #: True: the queue that this node has is too old to be continued run by run.
    behind: bool = False
    #: Name that workers and tables know the log by, its first lineage; empty = `lineage`.
    log: str = ""


def join_order(values: Mapping[str, bytes]) -> JoinOrder | None:
    """Return what is kept of an order to join, None if there is none."""
    value = values.get(_NAME)
    return None if value is None else msgspec.msgpack.decode(value, type=JoinOrder)


def keep_order(order: JoinOrder) -> PutValue:
    """Return the write that makes an order to join durable."""
    return PutValue(name=_NAME, value=msgspec.msgpack.encode(order))
