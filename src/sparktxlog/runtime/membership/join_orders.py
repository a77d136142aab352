"""The order to join a log, which a fresh node gets from a peer, and the restart that follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from sparktxlog.errors import TxLogError
from sparktxlog.storage.interfaces import PutValue

_NAME = "joining"


class StartAgainError(TxLogError):
    """The node has to start again in the same process, from a new durable state."""

    code = "start-again"
    retryable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOrder:
    """The log that a fresh node has to join, and its incarnation there."""

    log_id: str
    incarnation: int
    #: True: this node's queue is too old to be continued run by run.
    behind: bool = False
    #: The log's first log id, by which workers and tables know it; empty = `log_id`.
    log: str = ""


def join_order(values: Mapping[str, bytes]) -> JoinOrder | None:
    """Return the order to join in the journal's values, None if there is none."""
    value = values.get(_NAME)
    return None if value is None else msgspec.msgpack.decode(value, type=JoinOrder)


def keep_order(order: JoinOrder) -> PutValue:
    """Return the write that makes an order to join durable."""
    return PutValue(name=_NAME, value=msgspec.msgpack.encode(order))
