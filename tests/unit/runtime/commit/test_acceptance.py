"""What a node tells of a transaction that its core knows and its journal does not (I7)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sparktxlog.codec.transactions import PreparedTransaction
from sparktxlog.model.receipt import Level
from sparktxlog.runtime.commit.acceptance import Submits
from sparktxlog.runtime.reached_position import ReachedPosition
from sparktxlog.storage.interfaces import OlderIdsFound

ID = bytes(range(16))


def submits_of(base: Any, receipts: Any) -> Submits:
    core: Any = SimpleNamespace(
        cycle=SimpleNamespace(halted=None),
        executor=SimpleNamespace(disk_full=False),
        receipts=receipts,
    )
    joining = SimpleNamespace(settled=asyncio.Event(), proven=True)
    joining.settled.set()
    membership: Any = SimpleNamespace(joining=joining)
    replicas: Any = SimpleNamespace(applied=lambda copies: 0)
    return Submits(base, core, membership, replicas)


def test_a_position_is_told_only_once_it_is_durable() -> None:
    """The core places a run at once; its entry follows with the next write of the journal."""

    async def main() -> None:
        ordered = ReachedPosition(6)
        base: Any = SimpleNamespace(
            master=SimpleNamespace(locate=lambda wanted: 7 if wanted == ID else None),
            journal=SimpleNamespace(
                find_transaction=lambda wanted: None,
                find_withdrawn=lambda wanted: None,
                read_entry_at=lambda position: None,
                filed_ids=0,
            ),
            ordered=ordered,
        )
        node = submits_of(base, SimpleNamespace(pending=lambda wanted: None))
        assert await node.find(ID) is None
        ordered.advance(7)
        receipt = await node.find(ID)
        assert receipt is not None
        assert (receipt.level, receipt.position, receipt.outcome) == (Level.ORDERED, 7, None)

    asyncio.run(main())


@pytest.mark.parametrize("applied", [True, False])
def test_a_repeat_of_an_old_transaction_is_answered_at_its_level_or_late(applied: bool) -> None:
    async def main() -> None:
        async def wait_applied(position: int, copies: int, timeout: float) -> bool:
            assert (position, copies) == (5, 1)
            return applied

        async def run_blocking(work: Any, *arguments: Any) -> Any:
            return work(*arguments)

        base: Any = SimpleNamespace(
            master=SimpleNamespace(view=SimpleNamespace(members=("A",))),
            journal=SimpleNamespace(
                filed_ids=1,
                older_ids=lambda ids: OlderIdsFound(found={0: (5, False)}),
                read_entry_at=lambda position: None,
            ),
            settings=SimpleNamespace(in_force=SimpleNamespace(paused=False)),
            links={},
            run_blocking=run_blocking,
            ending=asyncio.Event(),
        )
        node = submits_of(base, SimpleNamespace(wait_applied=wait_applied))
        nothing = PreparedTransaction(transaction_id=ID, operations=())
        told = await node.submit(nothing, level=Level.ORDERED, timeout=1)
        assert (told.level, told.late, told.position) == (Level.ORDERED, False, 5)
        told = await node.submit(nothing, level=Level.APPLIED, timeout=1)
        wanted = (Level.APPLIED, False) if applied else (Level.ORDERED, True)
        assert (told.level, told.late) == wanted

    asyncio.run(main())
