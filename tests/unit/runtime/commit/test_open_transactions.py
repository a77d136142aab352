"""Open transactions are bounded in number and memory, and how each ended is remembered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import cast

import pytest

from sparktxlog.codec.containers.runs import RunLimits
from sparktxlog.codec.submits.transactions import Session
from sparktxlog.errors import (
    ForbiddenError,
    InvalidRequestError,
    ShareUsedUpError,
    TransactionNotOpenError,
)
from sparktxlog.runtime.audit_trail import OPERATOR, asks
from sparktxlog.runtime.commit.open_transactions import OpenTransaction, OpenTransactions
from sparktxlog.runtime.tokens.budgets import MAX_OPEN, Budget, Budgets

_LIMITS = RunLimits(transactions=10, size_bytes=1000)


def _new(number: int, lease_s: float = 60.0) -> OpenTransaction:
    return OpenTransaction(
        number.to_bytes(16, "big"),
        lease_s,
        _LIMITS,
        session=Session(None),
        valid_until=None,
        condition=None,
    )


def _run(work: Callable[[OpenTransactions], Awaitable[None]]) -> None:
    async def main() -> None:
        budgets = SimpleNamespace(
            open_transactions=Budget("open transactions", MAX_OPEN * 3 // 2, ""),
            memory=Budget("bytes", 150, ""),
        )
        opened = OpenTransactions(cast(Budgets, budgets))
        try:
            await work(opened)
        finally:
            opened.close()

    asyncio.run(main())


def test_number_and_ids_are_bounded() -> None:
    async def work(opened: OpenTransactions) -> None:
        for number in range(MAX_OPEN):
            opened.open(_new(number))
        with pytest.raises(ShareUsedUpError, match="has 1,000 of this node's 1,500 open"):
            opened.open(_new(MAX_OPEN))
        given = asks.set("client other")  # which goes on
        opened.open(_new(MAX_OPEN + 1))
        opened.end(opened.get((MAX_OPEN + 1).to_bytes(16, "big")), "it was rolled back")
        asks.reset(given)
        with pytest.raises(InvalidRequestError, match="is open already"):
            opened.open(_new(7))
        opened.end(opened.get(bytes(16)), "it was rolled back")
        opened.open(_new(MAX_OPEN))

    _run(work)


def test_memory_is_given_back_once() -> None:
    async def work(opened: OpenTransactions) -> None:
        memory = opened._memory
        one, other = _new(1), _new(2)
        opened.open(one)
        opened.open(other)
        for transaction, size in ((one, 60), (other, 40)):
            holder = memory.take(size)
            opened.keep_memory(transaction, size)
            memory.give(holder, size)
        with pytest.raises(ShareUsedUpError, match="has 100 of this node's 150 bytes"):
            memory.take(1)
        opened.end(one, "it was rolled back")
        with pytest.raises(TransactionNotOpenError, match="it was rolled back"):
            opened.keep_memory(one, 60)  # a request that was under way
        assert memory.used == 40
        opened.end(other, "it was rolled back")
        assert memory.used == 0

    _run(work)


def test_a_lease_does_not_end_while_a_request_works() -> None:
    async def work(opened: OpenTransactions) -> None:
        ended = asyncio.Event()
        one = _new(1, lease_s=0.0)
        opened.open(one)
        with opened.working(one.transaction_id):
            asyncio.get_running_loop().call_later(0.0, ended.set)
            await ended.wait()
            assert opened.all() == [one]
        # Its lease runs from the end of the request on.
        asyncio.get_running_loop().call_later(0.0, ended.clear)
        while opened.all():
            await asyncio.sleep(0)
        assert opened.how_it_ended(one.transaction_id) == "its lease of 0 s ended"
        with pytest.raises(TransactionNotOpenError, match="its lease of 0 s ended"):
            opened.get(one.transaction_id)

    _run(work)


def test_operators_see_all_and_may_roll_back_but_not_commit() -> None:
    async def work(opened: OpenTransactions) -> None:
        transaction_id = (1).to_bytes(16, "big")
        given = asks.set("client reports")
        one = _new(1)
        opened.open(one)
        asks.set("client sales")
        assert opened.all() == []
        with pytest.raises(ForbiddenError, match="opened with another token"):
            opened.get(transaction_id)
        asks.set(OPERATOR)
        assert opened.all() == [one]
        assert opened.get(transaction_id) is one
        with opened.working(transaction_id, writes=False) as found:
            opened.end(found, "it was rolled back")
        asks.set("client sales")
        with pytest.raises(TransactionNotOpenError, match="rolled back"):
            opened.get(transaction_id)
        asks.reset(given)

    _run(work)


def test_an_operator_adds_nothing_to_the_transaction_of_another() -> None:
    async def work(opened: OpenTransactions) -> None:
        given = asks.set("client reports")
        opened.open(_new(1))
        asks.set(OPERATOR)
        with (
            pytest.raises(ForbiddenError, match="opened with another token"),
            opened.working((1).to_bytes(16, "big")),
        ):
            pass
        asks.reset(given)

    _run(work)
