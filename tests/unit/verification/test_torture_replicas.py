"""The readers of the torture apply published files as a worker does."""

from __future__ import annotations

import pyarrow as pa
from tests.verification.torture.judgement import orders
from tests.verification.torture.list_append import ListTransaction
from tests.verification.torture.replicas import Tables

from sparktxlog.model.transactions.operation import POSITION_COLUMN


def test_lists_grow_and_accounts_are_as_the_last_transaction_left_them() -> None:
    tables = Tables(["x"], ["bank"])
    assert list(tables.apply("x", pa.table({"e": [3, 1]}))) == []
    assert list(tables.apply("x", pa.table({"e": [2]}))) == []
    assert list(tables.apply("other", pa.table({"e": [2]}))) == []
    moves = {POSITION_COLUMN: [4, 4, 7], "a": [1, 2, 1], "balance": [10, 20, 15]}
    states = [(at, dict(tables.balances)) for at in tables.apply("bank", pa.table(moves))]
    assert states == [(4, {1: 10, 2: 20}), (7, {1: 15, 2: 20})]
    assert (tables.lists, tables.versions) == ({"x": [3, 1, 2]}, {"bank": 2})


def test_the_order_of_a_list_is_that_of_its_transactions_in_the_log() -> None:
    transactions = [
        ListTransaction("late", 0.0, appends={"x": (1, 2), "y": (3,)}),
        ListTransaction("early", 0.0, appends={"x": (4,)}),
        ListTransaction("rejected", 0.0, appends={"x": (5,)}),
    ]
    assert orders(transactions, {"late": 9, "early": 2}) == {"x": [4, 1, 2], "y": [3]}
