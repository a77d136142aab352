"""Commit tables between real nodes: who wins, what losers are told, what a restart knows (P36)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.service.local_nodes import cluster, config_of, serving, until
from tests.service.test_lost_journal import JOURNAL_NAME
from tests.service.test_start_after_a_summary import free_ports

from sparktxlog.codec.submits.commit_requests import committing, creating, dropping
from sparktxlog.codec.submits.condition_requests import conflict_of
from sparktxlog.codec.submits.transactions import PreparedTransaction
from sparktxlog.errors import IdTakenError, VersionConflictError
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.transactions.receipt import Level, Receipt
from sparktxlog.runtime.membership.join_orders import StartAgainError
from sparktxlog.runtime.node import Node

T, GONE = (f"00000000-0000-4000-8000-00000000000{digit}" for digit in "ab")


def _id(number: int) -> bytes:
    return number.to_bytes(16, "big")


async def _commit(node: Node, transaction: PreparedTransaction) -> Receipt:
    return await node.submit(transaction, level=Level.ORDERED, timeout=60)


def test_one_of_two_sites_gets_the_version_and_both_are_told_who(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a, b = nodes.values()
            made = await _commit(a, creating(_id(1), T, "shop.orders", 5))
            assert (made.position, made.outcome) == (1, "committed")
            await b.reach(1, 60)
            table = b.base.master.commit_tables.named("SHOP.orders")
            assert table is not None
            assert (table.uuid, table.version, table.transaction_id) == (T, 0, _id(1))
            one, two = await asyncio.gather(
                _commit(a, committing(_id(2), T, 1, 6)), _commit(b, committing(_id(3), T, 1, 7))
            )
            won, lost = sorted((one, two), key=lambda receipt: receipt.position or 0)
            assert (won.outcome, lost.outcome) == ("committed", "rejected")
            (reason,) = lost.rejections
            told = (reason.code, reason.table, reason.version, reason.winner, reason.winner_id)
            winner = (won.position, won.transaction_id)
            assert told == ("version-conflict", "shop.orders", 1, *winner)
            assert reason.origin == ("A" if won is one else "B")
            error = conflict_of(lost, reason)
            assert isinstance(error, VersionConflictError)
            assert error.fields["version"] == 1
            # Who asks again, anywhere, is told the same.
            for node in (a, b):
                await node.reach(lost.position or 0, 60)
                for number, first in ((2, one), (3, two)):
                    again = await _commit(node, committing(_id(number), T, 1, number + 4))
                    assert (again.position, again.outcome) == (first.position, first.outcome)
                    assert [item.code for item in again.rejections] == [
                        item.code for item in first.rejections
                    ]
                    with pytest.raises(IdTakenError):
                        await _commit(node, committing(_id(number), T, 1, 99))
                found = node.commit_table(T)
                assert found is not None and found.version == 1
                assert transaction_id_to_text(found.transaction_id) == won.transaction_id

    asyncio.run(main())


def test_a_restart_knows_the_tables(tmp_path: Path) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = config_of(tmp_path, "A", {"A": listener.getsockname()[1]})
            async with serving(config, listener.dup()) as node:
                await _commit(node, creating(_id(1), T, "shop.orders", 5))
                await _commit(node, creating(_id(2), GONE, "shop.users", 5))
                await _commit(node, committing(_id(3), T, 1, 6))
                await _commit(node, dropping(_id(4), GONE))
                await until(lambda: node.base.published.value == 4)
                known = node.commit_tables()
                assert [(table.name, table.version) for table in known] == [("shop.orders", 1)]
                # A worker has nothing to do for them: the segments have no effects.
                _, segments = await node.segments(0, 1.0, 10)
                assert (segments[-1].last, [one.effects for one in segments if one.effects]) == (
                    4,
                    [],
                )
                assert len(node.base.journal.read_summary().commit_tables) == 2
            async with serving(config, listener.dup()) as node:
                assert node.commit_tables() == known
                assert node.commit_table(GONE) is None
                taken = await _commit(node, creating(_id(5), GONE, "shop.new", 5))
                assert [item.code for item in taken.rejections] == ["name-taken"]
                second = await _commit(node, committing(_id(6), T, 2, 7))
                assert second.outcome == "committed"

    asyncio.run(main())


def test_a_node_that_lost_its_disk_takes_them_over(tmp_path: Path) -> None:
    """Its journal begins with a summary: it knows dropped tables too, as its peer does."""
    ports = free_ports("AB")

    @asynccontextmanager
    async def pair() -> AsyncIterator[tuple[Node, Node]]:
        async with AsyncExitStack() as stack:
            nodes = []
            for name, port in ports.items():
                listener = socket.create_server(("127.0.0.1", port))
                config = config_of(tmp_path, name, ports)
                nodes.append(await stack.enter_async_context(serving(config, listener)))
            yield nodes[0], nodes[1]

    async def main() -> None:
        async with pair() as (a, b):
            await until(lambda: a.membership.joining.proven)
            await _commit(a, creating(_id(1), T, "shop.orders", 5))
            await _commit(a, creating(_id(2), GONE, "shop.users", 5))
            await _commit(a, dropping(_id(3), GONE))
            await _commit(a, committing(_id(4), T, 1, 6))
            await until(lambda: min(node.base.published.value for node in (a, b)) == 4)
            known = a.commit_tables()
        (tmp_path / "B" / JOURNAL_NAME).unlink()
        for _ in ("joins", "has the summary"):
            async with pair() as (_, b):
                assert isinstance(await asyncio.wait_for(b.failed, 60), StartAgainError)
        async with pair() as (a, b):
            assert b.base.journal.read_extent().resets == 1
            assert b.commit_tables() == known == a.commit_tables()
            kept = [node.base.journal.load(100).core.commit_tables for node in (a, b)]
            assert [(table.uuid, table.is_dropped) for table in kept[1]] == [
                (T, False),
                (GONE, True),
            ]
            assert kept[0] == kept[1]

    asyncio.run(main())
