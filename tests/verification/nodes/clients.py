"""Clients that commit at any node, and go on at another one if theirs is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from tests.verification.nodes.conditions import Readers
from tests.verification.nodes.preparing import Participants
from tests.verification.nodes.staging import StagedFiles
from tests.verification.nodes.virtual import Life

from sparktxlog.codec.submits.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.errors import TxLogError
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.model.transactions.receipt import Level, Receipt

if TYPE_CHECKING:
    from tests.verification.nodes.node import SimulatedNode
    from tests.verification.nodes.world import World

    from sparktxlog.runtime.node import Node

_TABLE = TableDefinition(name="t", columns=(Column(name="id", type="bigint"),))
_ROWS = pa.table({"id": pa.array([7], pa.int64())})
_LEVELS = (Level.ACCEPTED, Level.ACQUIRED, Level.ORDERED, Level.ORDERED)
#: A client waits so long for a level, and gives up after so many attempts; seconds.
_PATIENCE_S = 12.0
_ATTEMPTS = 6
#: One of so many bursts creates one more table.
_MORE_TABLES = 8
#: Chance that a transaction has a staged file, and that it is harmed soon at its origin.
_STAGED, _HARMED = 0.15, 0.2
_T = TypeVar("_T")


class LostError(Exception):
    """The node went away under a client: whatever it did is unknown."""


class Clients:
    """Commit in bursts at nodes drawn by lot.

    Args:
        world: Where.
        until_s: No transaction begins after this time, seconds.
        pause_s: Mean time between two bursts.
    """

    def __init__(self, world: World, until_s: float, pause_s: float) -> None:
        self._world = world
        self.until_s = until_s
        self._pause_s = pause_s
        self._bursts = 0
        self._open: dict[asyncio.Future[Any], Life] = {}
        self.staged = StagedFiles(world, _ROWS)
        self._participants = Participants(f"{world.layout.name}:{world.seed}")
        self._readers = Readers(f"{world.layout.name}:{world.seed}", _TABLE.name)
        self._tasks: set[asyncio.Task[None]] = set()
        self._begin(self._create(), 2.0)
        world.after(3.0, self._due)

    @property
    def busy(self) -> bool:
        """Whether a transaction is under way."""
        return bool(self._tasks)

    def lost(self, life: Life) -> None:
        """See a node end: who waits for it learns that."""
        for answer in [answer for answer, owner in self._open.items() if owner is life]:
            self._world.loop.call_later(0.01, self._break, answer, context=self._world.context)

    @staticmethod
    def _break(answer: asyncio.Future[Any]) -> None:
        if not answer.done():
            answer.set_exception(LostError())

    def _due(self) -> None:
        self.burst()
        self._world.after(self._world.random.expovariate(1 / self._pause_s), self._due)

    def burst(self) -> None:
        """Commit some transactions within the next 300 ms."""
        random = self._world.random
        if self._world.loop.time() >= self.until_s:
            return
        session = f"session-{random.randrange(4)}" if random.random() < 0.2 else None
        for _ in range(random.randrange(1, 9)):
            self._begin(self._append(session), random.random() * 0.3)
        self._bursts += 1
        if self._bursts % _MORE_TABLES == 0:
            more = replace(_TABLE, name=f"{_TABLE.name}{self._bursts // _MORE_TABLES}")
            self._begin(self._create(more, attempts=_ATTEMPTS), random.random() * 0.3)

    def _begin(self, work: Coroutine[Any, Any, None], delay: float) -> None:
        async def later() -> None:
            await asyncio.sleep(delay)
            await work

        task = self._world.loop.create_task(later(), context=self._world.context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._world.report(task)

    async def _create(self, table: TableDefinition = _TABLE, *, attempts: int = 1_000) -> None:
        """Make a table, at whatever node takes it."""
        operation = PreparedOperation(
            table=table.name, kind=OperationKind.CREATE_TABLE, definition=table
        )
        identity = self._world.random.randbytes(16)
        transaction = PreparedTransaction(transaction_id=identity, operations=(operation,))
        await self._commit(transaction, Level.ORDERED, attempts=attempts)

    async def _append(self, session: str | None) -> None:
        random = self._world.random
        operation = PreparedOperation(table=_TABLE.name, kind=OperationKind.APPEND, rows=_ROWS)
        level, staged = random.choice(_LEVELS), random.random() < _STAGED
        condition = self._readers.read(
            [n.running.base.master for n in self._takers() if n.running is not None]
        )
        preparing = self._participants.draw(self._world.loop.time())
        identity = self._world.random.randbytes(16)
        if staged:
            files = (self.staged.file_of(identity),)
            operation = replace(operation, rows=None, files=files)
        transaction = PreparedTransaction(
            transaction_id=identity,
            operations=(operation,),
            session=None if preparing.participants else session,
            condition=condition,
            participants=preparing.participants,
            valid_until=preparing.valid_until,
        )
        await self._commit(transaction, level, attempts=_ATTEMPTS)
        for delay, mark in self._participants.marks(identity, preparing):
            self._begin(self._commit(mark, Level.ORDERED, attempts=_ATTEMPTS), delay)

    def _takers(self) -> list[SimulatedNode]:
        return [node for node in self._world.nodes.values() if node.takes and not node.witness]

    async def _commit(
        self, transaction: PreparedTransaction, level: Level, *, attempts: int
    ) -> None:
        world, identity = self._world, transaction.transaction_id
        unknown = lost = False
        for _ in range(attempts):
            if takers := self._takers():
                node = world.random.choice(takers)
                try:
                    receipt = await self._submit(node, transaction, level)
                except LostError:
                    unknown = lost = True
                except TxLogError as error:
                    world.checks.note("refused", node.name, error.code)
                    if not error.definite:
                        unknown = True
                        world.checks.happened("outcome unknown")
                else:
                    if receipt is not None and receipt.level is not None:
                        if lost:
                            world.checks.happened("committed elsewhere after its node was lost")
                        world.checks.acknowledged(node, identity, receipt)
                        return
                    unknown = True
            await asyncio.sleep(world.random.uniform(0.2, 2.0))
        if not unknown:
            world.checks.refused.add(identity)

    async def _submit(
        self, node: SimulatedNode, transaction: PreparedTransaction, level: Level
    ) -> Receipt | None:
        def submit(asked: Node) -> Coroutine[Any, Any, Receipt]:
            for file in [file for item in transaction.operations for file in item.files]:
                self.staged.stage(file, asked.payloads)
                if self._world.random.random() < _HARMED:
                    delay = self._world.random.random() * 0.2
                    self._world.after(delay, self.staged.harm, file, asked.payloads)
            return asked.submit(transaction, level=level, timeout=_PATIENCE_S)

        return await self.ask(node, submit)

    async def ask(
        self, node: SimulatedNode, question: Callable[[Node], Coroutine[Any, Any, _T]]
    ) -> _T:
        """Ask a node, as a task of its own in its life, and wait as long as that lasts.

        Raises:
            LostError: It is not there, or ended meanwhile.
        """
        running, life = node.running, node.life
        if running is None or life is None:
            raise LostError
        loop, work = self._world.loop, question(running)
        answer: asyncio.Future[_T] = loop.create_future()
        task = loop.own_task(life, work)
        task.add_done_callback(lambda done: _pass_on(done, answer), context=self._world.context)
        self._open[answer] = life
        try:
            return await answer
        finally:
            del self._open[answer]


def _pass_on(done: asyncio.Task[_T], answer: asyncio.Future[_T]) -> None:
    if answer.done():
        return
    if done.cancelled():
        answer.set_exception(LostError())
        return
    error = done.exception()
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())
