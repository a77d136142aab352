"""What a node tells of a transaction that its core knows and its journal does not (I7)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparktxlog.codec.submits.known_contents import Content
from sparktxlog.codec.submits.transactions import PreparedTransaction
from sparktxlog.errors import BusyError, CommitStateUnknownError, TxLogError
from sparktxlog.model.transactions.operation import RunManifest
from sparktxlog.model.transactions.receipt import Appliers, Level
from sparktxlog.runtime.commit.acceptance import Submits
from sparktxlog.runtime.reached_position import ReachedPosition
from sparktxlog.storage.interfaces import OlderIdsFound

ID = bytes(range(16))


def submits_of(base: Any, receipts: Any) -> Submits:
    core: Any = SimpleNamespace(
        cycle=SimpleNamespace(halted=None),
        receipts=receipts,
    )
    joining = SimpleNamespace(check_knows_log=lambda: None)
    membership: Any = SimpleNamespace(joining=joining)
    replicas: Any = SimpleNamespace(applied=lambda sites: 0, passed_by=lambda position, sites: {})
    lag: Any = SimpleNamespace()
    space: Any = SimpleNamespace(check=lambda: None)
    return Submits(base, core, membership, replicas, lag, space)


def test_a_position_is_told_only_once_it_is_durable() -> None:
    """The core places a run at once; its entry follows with the next write of the journal."""

    async def main() -> None:
        ordered = ReachedPosition(6)
        base: Any = SimpleNamespace(
            traces=None,
            master=SimpleNamespace(locate=lambda wanted: 7 if wanted == ID else None),
            journal=SimpleNamespace(
                find_transaction=lambda wanted: None,
                find_withdrawn=lambda wanted: None,
                read_entry_at=lambda position: None,
                content_digests=lambda position, n: bytes(8 * n),
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
        async def wait_applied(position: int, sites: Appliers, timeout: float) -> bool:
            assert (position, sites) == (5, Appliers())
            return applied

        async def run_blocking(work: Any, *arguments: Any) -> Any:
            return work(*arguments)

        base: Any = SimpleNamespace(
            traces=None,
            master=SimpleNamespace(view=SimpleNamespace(members=("A",)), tables={}),
            config=SimpleNamespace(node_id="A"),
            journal=SimpleNamespace(
                filed_ids=1,
                older_ids=lambda ids: OlderIdsFound(found={0: (5, False)}),
                read_entry_at=lambda position: None,
                content_digests=lambda position, n: bytes(8 * n),
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


@pytest.mark.parametrize("rejected", [True, False, None])
def test_an_old_transaction_has_the_outcome_that_is_kept(rejected: bool | None) -> None:
    """A node that began with a summary does not take what was rejected for committed."""

    async def main() -> None:
        async def run_blocking(work: Any, *arguments: Any) -> Any:
            return work(*arguments)

        several = RunManifest(n=2, ids=ID + bytes(16), blocks=(), submitted_at=1)
        base: Any = SimpleNamespace(
            traces=None,
            master=SimpleNamespace(),
            journal=SimpleNamespace(
                filed_ids=6,
                older_ids=lambda ids: OlderIdsFound(found={0: (5, rejected), 1: (6, False)}),
                read_entry_at=lambda position: None,
                content_digests=lambda position, n: bytes(8 * n),
                find_transaction=lambda wanted: None,
                find_verdict=lambda wanted: None,
            ),
            run_blocking=run_blocking,
        )
        node = submits_of(base, SimpleNamespace(pending=lambda wanted: None))
        told = await node.find(ID)
        outcome = {True: "rejected", False: "committed", None: None}[rejected]
        assert told is not None and (told.position, told.outcome) == (5, outcome)
        if rejected is None:
            with pytest.raises(CommitStateUnknownError, match="position 5; which of its"):
                await node.repeated(Content(several), level=Level.ORDERED, timeout=1)
        else:
            told = await node.repeated(Content(several), level=Level.ORDERED, timeout=1)
            assert told is not None and bool(told.rejections) is rejected

    asyncio.run(main())


def test_disk_and_quorum_are_looked_at_once_for_all_that_comes_in_a_turn_of_the_loop() -> None:
    """What is refused is looked at again by each, and so is everything in the next turn."""
    looks: list[str] = []
    failing: set[str] = set()

    def look(name: str) -> None:
        looks.append(name)
        if name in failing:
            raise BusyError(name)

    async def main() -> None:
        base: Any = SimpleNamespace(
            config=SimpleNamespace(node_id="A", suspect_timeout=1.0),
            journal=None,
            master=SimpleNamespace(view=SimpleNamespace(members=("A",)), tables={}),
            ordered=ReachedPosition(0),
            settings=SimpleNamespace(in_force=SimpleNamespace(paused=False)),
            ending=asyncio.Event(),
        )
        node = submits_of(base, None)
        restriction = SimpleNamespace(check=lambda level, patience: look(level.value))
        node._membership.epochs = cast(Any, SimpleNamespace(restriction=restriction))
        node._space = cast(Any, SimpleNamespace(check=lambda: look("disk")))

        async def turn(*levels: Level) -> list[str]:
            looks.clear()
            asked = (node.reach_for_submit(1, level, 1, 0) for level in levels)
            errors = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(error, TxLogError) for error in errors)
            return list(looks)

        ordered, accepted = Level.ORDERED, Level.ACCEPTED
        assert await turn(ordered, ordered, ordered) == ["disk", "ordered"]
        assert await turn(ordered, accepted) == ["disk", "ordered", "disk", "accepted"]
        failing.add("ordered")
        assert await turn(ordered, ordered) == 2 * ["disk", "ordered"]
        base.settings.in_force.paused = True
        assert await turn(ordered) == []

    asyncio.run(main())
