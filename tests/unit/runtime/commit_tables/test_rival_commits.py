"""Commits of other sites are waited for, and sites take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count

import pytest

from sparktxlog.model.tables.commit_table import (
    CommitKind,
    CommitOperation,
    CommitTable,
    CommitTables,
)
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.runtime.commit_tables.rival_commits import PATIENCE_S, RivalCommits

UUID = "b6c03b3a-bca9-4d87-9d3b-dd9b0d95ee47"


class Log:
    """The order, and what one site knows of the commits of others; time stands still."""

    def __init__(self, node_id: str = "B") -> None:
        self.now = 100.0
        self._tables: dict[str, CommitTable] = {}
        self._ids: Iterator[int] = count(1)
        self.rivals = RivalCommits(node_id, CommitTables(self._tables, {}, {}), lambda: self.now)
        self.order(0, self.new_id())

    def new_id(self) -> bytes:
        """Return an id of a transaction."""
        return next(self._ids).to_bytes(16)

    def order(self, version: int, transaction_id: bytes) -> None:
        """Give a version its commit."""
        self._tables[UUID] = CommitTable(
            uuid=UUID,
            name="default.t",
            version=version,
            timestamp=version,
            transaction_id=transaction_id,
            position=version + 1,
        )

    def comes(self, origin: str, version: int) -> bytes:
        """Let a commit of another site come; return its id."""
        identity = self.new_id()
        facts = RunFacts(n=1, ids=identity, commits=((0, commit(version)),))
        self.rivals.note(origin, facts)
        return identity

    async def waits(self) -> bool:
        """Return whether this site waits for its turn, and for nobody's commit."""
        began = asyncio.get_running_loop().time()
        await self.rivals.await_turn(UUID)
        return asyncio.get_running_loop().time() - began > 0.01


def commit(version: int) -> CommitOperation:
    return CommitOperation(kind=CommitKind.COMMIT, uuid=UUID, version=version, timestamp=version)


def test_a_commit_that_came_is_awaited_until_its_version_is_taken() -> None:
    log = Log()
    assert not log.rivals.is_awaited(UUID)
    identity = log.comes("A", 1)
    assert log.rivals.is_awaited(UUID)
    log.order(1, identity)
    assert not log.rivals.is_awaited(UUID)
    log.comes("A", 1)  # it lost, and comes late
    assert not log.rivals.is_awaited(UUID)


def test_a_site_that_is_gone_is_not_waited_for_longer_than_patience() -> None:
    log = Log()
    log.comes("A", 1)
    log.now += PATIENCE_S / 2
    log.comes("C", 1)  # that does not begin anew
    assert log.rivals.is_awaited(UUID)
    log.now += PATIENCE_S
    assert not log.rivals.is_awaited(UUID)


def test_only_a_version_that_is_taken_is_lost() -> None:
    log = Log()
    log.comes("A", 1)
    assert log.rivals.lost_to([commit(1)]) is None
    log.order(1, log.new_id())
    lost = log.rivals.lost_to([commit(1)])
    assert lost is not None
    assert (lost.fields["version"], lost.fields["winner"], lost.definite) == (1, 2, True)
    assert log.rivals.lost_to([commit(2)]) is None


@pytest.mark.parametrize(
    ("newest", "has_turn"),
    [("A", "B"), ("B", "C"), ("C", "A")],
)
def test_sites_take_turns_in_the_order_of_their_names(newest: str, has_turn: str) -> None:
    async def main() -> None:
        for node_id in "ABC":
            log = Log(node_id)
            ids = {other: log.comes(other, 1) for other in "ABC" if other != node_id}
            log.order(1, ids.get(newest, log.new_id()))
            assert await log.waits() == (node_id != has_turn), node_id

    asyncio.run(main())


def test_the_turn_of_another_site_ends_when_its_commit_comes() -> None:
    async def main() -> None:
        log = Log()
        log.rivals.took(60.0)  # a turn is as long as it can be
        log.comes("A", 1)
        log.order(1, log.new_id())
        waiting = asyncio.create_task(log.rivals.await_turn(UUID))
        await asyncio.sleep(0)
        assert not waiting.done()
        log.comes("A", 2)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert waiting.done()
        assert log.rivals.is_awaited(UUID)

    asyncio.run(main())


def test_who_lets_its_turn_pass_or_was_not_there_lately_is_not_waited_for() -> None:
    async def main() -> None:
        log = Log()
        assert not await log.waits()  # nobody else
        log.comes("A", 1)
        log.order(1, log.new_id())
        assert await log.waits()
        assert not await log.waits()  # A did not come
        log.comes("A", 2)
        log.order(2, log.new_id())
        log.now += 1.0
        assert not await log.waits()  # that was long ago

    asyncio.run(main())


def test_tables_that_nobody_writes_any_more_are_forgotten() -> None:
    log = Log()
    log.comes("A", 1)
    for number in range(1_000):
        log.now += PATIENCE_S / 10
        one = CommitOperation(kind=CommitKind.COMMIT, uuid=f"{number}", version=1, timestamp=1)
        log.rivals.note("A", RunFacts(n=1, ids=log.new_id(), commits=((0, one),)))
    assert len(log.rivals._rivalries) < 150
    log.comes("A", 1)
    assert log.rivals.is_awaited(UUID)
