"""Clients that submit whole runs: lists, a bank and a set, through any node.

Every client is a session.  It reads the tables at one node, at or after all positions that it was
told, builds a run from what it read, and commits that at another node.  The history of all of them
is judged by `list_append`, `bank`, `preparing`, `set_full` and `sessions`.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from tests.support.node_processes import NodeProcess, call
from tests.verification.torture.clients import submitted
from tests.verification.torture.history import Act
from tests.verification.torture.list_append import ListTransaction
from tests.verification.torture.preparing import Prepared, prepare
from tests.verification.torture.replicas import Replica, View
from tests.verification.torture.set_full import Adds, SetRead

from sparktxlog.codec.containers.assembly import as_ids, assemble_rows, assemble_run, uuid_texts
from sparktxlog.codec.submits.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.model.transactions.conditions import Condition
from sparktxlog.model.transactions.operation import OperationKind

#: Lists that are written only by transactions that read them or another one, and lists that anybody
#: appends to without a look.
GUARDED = tuple(f"guarded{number}" for number in range(12))
BLIND = tuple(f"blind{number}" for number in range(4))
SET = "elements"
#: The last two are for prepared transfers alone, so some of them find nothing changed.
BANKS = tuple(f"bank{number}" for number in range(8))
_SHARED = range(len(BANKS) - 2)
LISTS = (*GUARDED, *BLIND, SET)
#: Account → what it has at first; a table holds four accounts.
OPENING = {10 * branch + number: 100 for branch in range(len(BANKS)) for number in range(4)}

_ACCOUNT = pa.schema([pa.field("a", pa.int64(), nullable=False), ("balance", pa.int64())])
_BLIND_APPENDS = 600
_ADDS = 4_000
_LEVELS = ("ordered", "ordered", "acquired", "accepted")
_READ_S = 5.0


def founding() -> dict[str, Any]:
    """Return the transaction that creates all tables and opens the accounts."""
    element = [{"name": "e", "type": "bigint"}]
    account = [
        {"name": "a", "type": "bigint", "nullable": False},
        {"name": "balance", "type": "bigint"},
    ]
    operations: list[dict[str, Any]] = [
        {"kind": "create_table", "table": name, "columns": element} for name in LISTS
    ]
    for branch, name in enumerate(BANKS):
        rows = [{"a": a, "balance": b} for a, b in OPENING.items() if a // 10 == branch]
        operations += [
            {"kind": "create_table", "table": name, "columns": account, "keys": ["a"]},
            {"kind": "upsert", "table": name, "rows": rows},
        ]
    return {"operations": operations}


@dataclass(slots=True)
class Run:
    """One run of one client, with all its attempts.

    Attributes:
        ids: Of its transactions, 16 bytes each.
        rejected: Indices of transactions of which the receipt says so.
        unclear: Indices of transactions that it calls repeats.
    """

    ids: bytes
    began: float
    ended: float = 0.0
    told: str = "unknown"
    position: int | None = None
    rejected: frozenset[int] = frozenset()
    unclear: frozenset[int] = frozenset()

    def told_of(self, index: int) -> str:
        """Return what was told of one transaction."""
        if index in self.unclear:
            return "unknown"
        return "rejected" if index in self.rejected else self.told

    def position_of(self, index: int) -> int | None:
        """Return where one transaction stands, if it was told."""
        return None if self.position is None or index in self.unclear else self.position + index

    def acts(self) -> Iterator[Act]:
        """Yield its transactions as a history of single ones."""
        for index, identity in enumerate(uuid_texts(self.ids).to_pylist()):
            word, position = self.told_of(index), self.position_of(index)
            yield Act(identity, self.began, self.ended, word, position)


@dataclass(slots=True)
class BulkHistory:
    """What all these clients did and saw."""

    runs: list[Run] = field(default_factory=list)
    lists: list[ListTransaction] = field(default_factory=list)
    adds: list[Adds] = field(default_factory=list)
    set_reads: list[SetRead] = field(default_factory=list)
    #: Transfers by what was told of them.
    transfers: Counter[str] = field(default_factory=Counter)
    prepared: list[Prepared] = field(default_factory=list)
    #: How often a client read all tables.
    reads: int = 0


class Workloads:
    """Threads that add to one history.

    Args:
        nodes: A client draws one for each attempt to commit.
        replicas: A client draws one for each read.
    """

    def __init__(
        self, nodes: Sequence[NodeProcess], replicas: Sequence[Replica], seed: int
    ) -> None:
        self.history = BulkHistory()
        self._nodes, self._replicas = list(nodes), list(replicas)
        self._over = threading.Event()
        self._last = 0
        self._lock = threading.Lock()
        kinds = (
            self._lists,
            self._lists,
            self._lists,
            self._bank,
            self._bank,
            self._prepared,
            self._set,
            self._set,
        )
        self._threads = [
            threading.Thread(
                target=self._work,
                args=(kind, _Client(f"session {number}", random.Random(f"{seed} bulk {number}"))),
            )
            for number, kind in enumerate(kinds)
        ]

    def start(self) -> None:
        """Let all begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let all finish what they are about, and wait for it."""
        self._over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _work(self, kind: Callable[[_Client, View], None], client: _Client) -> None:
        while not self._over.is_set():
            view = client.chance.choice(self._replicas).view(client.position, _READ_S)
            if view is not None:
                self.history.reads += 1
                client.position = max(client.position, view.position)
                kind(client, view)
            self._over.wait(0.02)

    def _next(self, count: int) -> range:
        with self._lock:
            self._last += count
            return range(self._last - count, self._last)

    def _submit(self, client: _Client, ids: bytes, payload: bytes, level: str) -> Run:
        """Submit a run until its outcome is known or the client gives up."""
        run = Run(ids, time.monotonic())
        self.history.runs.append(run)

        def send(url: str, timeout: float) -> dict[str, Any]:
            receipt: dict[str, Any] = call(
                url.replace("/v1/transactions", "/v1/runs"), raw=payload, timeout=timeout
            )
            return receipt

        run.told, receipt = submitted(self._nodes, client.chance, level, client.position, send)
        run.ended = time.monotonic()
        if receipt is not None:
            run.position = receipt["position"]
            codes = {item["index"]: item["code"] for item in receipt["rejections"]}
            repeats = {i for i, code in codes.items() if code == "duplicate-transaction"}
            run.unclear, run.rejected = frozenset(repeats), frozenset(codes.keys() - repeats)
        if run.position is not None and not run.unclear:
            client.position = max(client.position, run.position + len(ids) // 16 - 1)
        return run

    # -- lists -------------------------------------------------------------------------------------

    def _lists(self, client: _Client, view: View) -> None:
        """Read all lists; append if what was read is still so, and append blindly."""
        chance, began = client.chance, time.monotonic()
        self.history.lists.append(_list_read(client, view, began))
        parts: list[tuple[tuple[str, ...], dict[str, tuple[int, ...]]]] = []
        guarded = chance.sample(GUARDED, 6)
        for pair in zip(guarded[::2], guarded[1::2], strict=True):
            written = chance.choice((pair[:1], pair, (*pair[:1], chance.choice(BLIND))))
            parts.append((pair, self._appends(chance, written)))
        for _ in range(_BLIND_APPENDS):
            parts.append(
                ((), self._appends(chance, chance.sample(BLIND, chance.choice((1, 1, 2)))))
            )
        ids = _new_ids(len(parts))
        prepared = [
            PreparedTransaction(
                transaction_id=ids[16 * index : 16 * index + 16],
                operations=tuple(_append(name, some) for name, some in appends.items()),
                condition=Condition(read_position=view.position, reads=reads) if reads else None,
            )
            for index, (reads, appends) in enumerate(parts)
        ]
        payload = assemble_run(prepared, time.time_ns() // 1000)[1]
        run = self._submit(client, ids, payload, "ordered")
        texts = uuid_texts(ids).to_pylist()
        for index, (reads, appends) in enumerate(parts):
            self.history.lists.append(
                ListTransaction(
                    name=texts[index],
                    began=began,
                    ended=run.ended,
                    told=run.told_of(index),
                    session=client.name,
                    reads={name: view.lists[name] for name in reads},
                    appends=appends,
                    read_position=view.position if reads else None,
                    position=run.position_of(index),
                )
            )

    def _appends(self, chance: random.Random, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        return {name: tuple(self._next(chance.choice((1, 1, 2)))) for name in names}

    # -- bank --------------------------------------------------------------------------------------

    def _bank(self, client: _Client, view: View) -> None:
        """Move money within pairs of tables, if nobody wrote to them since they were read."""
        chance = client.chance
        if view.balances.keys() != OPENING.keys():
            return
        branches = chance.sample(_SHARED, 4)
        prepared = []
        ids = _new_ids(2)
        for index, pair in enumerate((branches[:2], branches[2:])):
            names = tuple(BANKS[branch] for branch in pair)
            condition = Condition(read_position=view.position, reads=names)
            if chance.random() < 0.5:
                condition = Condition(versions=tuple((name, view.versions[name]) for name in names))
            balances = _moved(chance, pair, view.balances)
            prepared.append(
                PreparedTransaction(
                    transaction_id=ids[16 * index : 16 * index + 16],
                    operations=tuple(
                        _upsert(name, {a: b for a, b in balances.items() if a // 10 == branch})
                        for name, branch in zip(names, pair, strict=True)
                    ),
                    condition=condition,
                )
            )
        payload = assemble_run(prepared, time.time_ns() // 1000)[1]
        run = self._submit(client, ids, payload, "ordered")
        self.history.transfers.update(run.told_of(index) for index in range(len(prepared)))

    def _prepared(self, client: _Client, view: View) -> None:
        """Move money within a pair of tables, if both participants agree."""
        chance = client.chance
        if view.balances.keys() != OPENING.keys():
            return
        own = [len(BANKS) - 2, len(BANKS) - 1]
        pair = own if chance.random() < 0.5 else chance.sample(_SHARED, 2)
        moved = _moved(chance, pair, view.balances)
        operations = [
            {"kind": "upsert", "table": BANKS[a // 10], "rows": [{"a": a, "balance": balance}]}
            for a, balance in moved.items()
        ]
        read = {"read_position": view.position, "reads": [BANKS[branch] for branch in pair]}
        body = {"operations": operations, "conditions": read}
        one = prepare(self._nodes, chance, client.position, body)
        self.history.prepared.append(one)
        told = [position for _, position, _ in one.answers]
        client.position = max(client.position, one.act.position or 0, *told)

    # -- set ---------------------------------------------------------------------------------------

    def _set(self, client: _Client, view: View) -> None:
        """Add many elements, each in a transaction of its own; what was read is kept."""
        seen = SetRead(view.node, client.last_told, view.position, view.lists[SET])
        self.history.set_reads.append(seen)
        adds = Adds(self._next(_ADDS))
        self.history.adds.append(adds)
        rows = pa.table({"e": pa.array(adds.elements, pa.int64())})
        ids = _new_ids(_ADDS)
        numbers = np.arange(_ADDS, dtype=np.int32)
        now = time.time_ns() // 1000
        payload = assemble_rows(SET, OperationKind.APPEND, 1, rows, numbers, ids, now)[1]
        run = self._submit(client, ids, payload, client.chance.choice(_LEVELS))
        if run.unclear:
            return
        adds.told, adds.position = run.told, run.position
        adds.rejected = frozenset(adds.elements[index] for index in run.rejected)
        if run.position is not None:
            client.last_told = run.position + _ADDS - 1


@dataclass(slots=True)
class _Client:
    name: str
    chance: random.Random
    #: Greatest position that it was told or has read.
    position: int = 0
    #: Position of its last commit that has one.
    last_told: int = 0


def _list_read(client: _Client, view: View, began: float) -> ListTransaction:
    return ListTransaction(
        name=f"{client.name}/read at {view.position} of {view.node}",
        began=began,
        ended=began,
        told="read",
        session=client.name,
        reads={name: view.lists[name] for name in (*GUARDED, *BLIND)},
        read_position=view.position,
    )


def _new_ids(count: int) -> bytes:
    return as_ids(os.urandom(16 * count))


def _append(table: str, elements: Sequence[int]) -> PreparedOperation:
    rows = pa.table({"e": pa.array(elements, pa.int64())})
    return PreparedOperation(table=table, kind=OperationKind.APPEND, rows=rows)


def _upsert(table: str, balances: Mapping[int, int]) -> PreparedOperation:
    rows = pa.table([list(balances), list(balances.values())], schema=_ACCOUNT)
    return PreparedOperation(table=table, kind=OperationKind.UPSERT, rows=rows)


def _moved(
    chance: random.Random, pair: Sequence[int], balances: Mapping[int, int]
) -> dict[int, int]:
    """Return the new balances of one account of each branch; never below zero."""
    one, other = (10 * branch + chance.randrange(4) for branch in pair)
    amount = chance.randint(0, balances[one])
    return {one: balances[one] - amount, other: balances[other] + amount}
