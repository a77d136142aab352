"""The cycle tells the core of moments of rest (protocol P13), and makes runs of what waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparktxlog.codec.submits.commit_requests import SecuredFiles, committing
from sparktxlog.codec.submits.transactions import PreparedTransaction
from sparktxlog.errors import VersionConflictError
from sparktxlog.model.tables.commit_table import commit_file_name, commit_file_prefix
from sparktxlog.model.transactions.operation import Acceptance, StagedFile
from sparktxlog.protocol.messages.actions import Action
from sparktxlog.protocol.messages.events import Event, Rested
from sparktxlog.runtime.commit.cycle import Cycle


class WaitingCore:
    """A core that waits for a moment of rest, until it is told of one."""

    def __init__(self) -> None:
        self.wants_rest = True
        self.view = None
        self.events: list[Event] = []
        #: Ids of transactions that are ordered.
        self.ordered: set[bytes] = set()

    def acceptance(self, ids: bytes) -> Acceptance:
        return Acceptance(position=1, ts=1, repeats=((0, 1),) if ids in self.ordered else ())

    def next_deadline(self) -> int | None:
        return None

    def handle_all(self, events: Sequence[Event], now: int, wall: int) -> list[Action]:
        self.events += events
        self.wants_rest = not any(isinstance(event, Rested) for event in events)
        return []


def cycle_of(core: WaitingCore, executor: object, most: int = 1, **parts: Any) -> Cycle:
    base: Any = SimpleNamespace(
        traces=None,
        master=core,
        clock=SimpleNamespace(now=lambda: 0, wall=lambda: 0),
        config=SimpleNamespace(run_limit_transactions=most, run_limit_bytes=1_000, id_window=1),
        state=SimpleNamespace(core=SimpleNamespace(announcements=()), values={}),
    )
    rivals: Any = SimpleNamespace(is_awaited=lambda uuid: False, lost_to=lambda commits: None)
    wired = {"executor": executor, "holdings": None, "receipts": None, "rivals": rivals} | parts
    return Cycle(base, **wired)


def assembling(core: WaitingCore, **parts: Any) -> tuple[Cycle, list[list[int]]]:
    """Return a cycle that makes runs, and the runs: the first byte of each transaction's id."""
    made: list[list[int]] = []

    def receipt(ticket: object, ids: bytes, **more: object) -> object:
        made.append(list(ids[::16]))
        return ticket

    receipts = SimpleNamespace(open=receipt)
    holdings = SimpleNamespace(put_own=lambda ticket, run: None)
    executor = SimpleNamespace(writing=False, depth=0, put=lambda items: None)
    return cycle_of(core, executor, holdings=holdings, receipts=receipts, **parts), made


@pytest.mark.parametrize("hindrance", ["writing", "depth", "publisher"])
def test_the_core_is_told_once_nothing_hinders(hindrance: str) -> None:
    async def main() -> None:
        core, busy = WaitingCore(), {hindrance: True}
        executor = SimpleNamespace(
            writing=hindrance == "writing", depth=int(hindrance == "depth"), put=lambda items: None
        )
        cycle = cycle_of(core, executor)
        follower: Any = SimpleNamespace(is_busy=lambda: "publisher" in busy)
        task = asyncio.create_task(cycle.run(follower))
        for _ in range(5):
            cycle.look_for_rest()
            await asyncio.sleep(0)
        assert core.events == []
        busy.clear()
        executor.writing, executor.depth = False, 0
        for _ in range(5):
            cycle.look_for_rest()
            await asyncio.sleep(0)
        assert core.events == [Rested()]
        task.cancel()

    asyncio.run(main())


def _commit(
    number: int, table: int = 0, size: int = 9, *, carried: bool = False
) -> PreparedTransaction:
    """Return a commit with a file of that size, 0 = without files, which its run may carry."""
    transaction_id, uuid = bytes([number]) * 16, f"00000000-0000-4000-8000-{table:012}"
    path = commit_file_prefix(transaction_id, uuid) + commit_file_name(1)
    files = (StagedFile(path=path, size_bytes=size, rows=0, digest="d"),) if size else ()
    contents = {path: bytes(size)} if carried else {}
    secured = SecuredFiles(files=files, contents=contents)
    return committing(transaction_id, uuid, 1, 5, files=secured)


@pytest.mark.parametrize(
    ("waiting", "runs"),
    [
        ([_commit(1, 1), _commit(2, 2), _commit(3, 3)], [[1, 2, 3]]),
        # The journal keeps one version of a table for a run.
        ([_commit(1, 1), _commit(2, 2), _commit(3, 1), _commit(4, 3)], [[1, 2, 4], [3]]),
        # What has no files is not delayed by the files of others.
        ([_commit(1, 1), _commit(2, 2, 0), _commit(3, 3), _commit(4, 4, 0)], [[1, 3], [2, 4]]),
        ([_commit(1, 1, 600), _commit(2, 2, 600), _commit(3, 3)], [[1], [2, 3]]),
        ([_commit(n, n) for n in range(1, 7)], [[1, 2, 3, 4, 5], [6]]),
        # Nor is one whose files its run carries.
        (
            [_commit(1, 1, carried=True), _commit(2, 2), _commit(3, 3, carried=True)],
            [[1, 3], [2]],
        ),
    ],
)
def test_commits_of_different_tables_share_a_run(
    waiting: list[PreparedTransaction], runs: list[list[int]]
) -> None:
    async def main() -> None:
        cycle, made = assembling(WaitingCore(), most=5)
        places = [cycle.submit_single(one, None, 0) for one in waiting]
        await asyncio.sleep(0)
        task = asyncio.create_task(cycle.run(cast(Any, SimpleNamespace(is_busy=lambda: False))))
        found = await asyncio.gather(*places)
        assert made == runs
        for one, (ticket, index) in zip(waiting, found, strict=True):
            assert made[cast(Any, ticket) - 1][index] == one.transaction_id[0]
        task.cancel()

    asyncio.run(main())


def test_what_was_accepted_counts_before_the_core_sees_it() -> None:
    """A node that is to be switched off has it, though nothing of it is durable yet."""

    async def main() -> None:
        cycle, made = assembling(WaitingCore(), most=5)
        assert cycle.gathered_runs == 0
        places = [cycle.submit_single(_commit(number, number), None, 0) for number in (1, 2)]
        assert cycle.gathered_runs == 1
        task = asyncio.create_task(cycle.run(cast(Any, SimpleNamespace(is_busy=lambda: False))))
        await asyncio.gather(*places)
        assert made == [[1, 2]] and cycle.gathered_runs == 0
        task.cancel()

    asyncio.run(main())


def test_a_commit_waits_for_that_of_another_site_and_is_refused_once_its_version_is_taken() -> None:
    async def main() -> None:
        first, second = _commit(1, 1), _commit(2, 2)
        awaited, lost = {first.commits[0].uuid}, dict[str, VersionConflictError]()
        rivals = SimpleNamespace(
            is_awaited=awaited.__contains__, lost_to=lambda commits: lost.get(commits[0].uuid)
        )
        cycle, made = assembling(WaitingCore(), most=5, rivals=rivals)
        places = [cycle.submit_single(one, None, 0) for one in (first, second)]
        task = asyncio.create_task(cycle.run(cast(Any, SimpleNamespace(is_busy=lambda: False))))
        await places[1]
        assert made == [[2]]
        assert not places[0].done()
        awaited.clear()
        lost[first.commits[0].uuid] = VersionConflictError("taken", version=1)
        cycle.writer_is_free()
        with pytest.raises(VersionConflictError):
            await places[0]
        # Nothing of it is left: a repeat is a new transaction.
        lost.clear()
        await cycle.submit_single(first, None, 0)
        assert made == [[2], [1]]
        task.cancel()

    asyncio.run(main())


def test_a_repeat_of_what_another_node_got_ordered_meanwhile_is_not_told_as_lost() -> None:
    """Its version is taken, by itself: its first receipt is what the client is told."""

    async def main() -> None:
        taken = VersionConflictError("taken", version=1)
        rivals = SimpleNamespace(is_awaited=lambda uuid: False, lost_to=lambda commits: taken)
        core = WaitingCore()
        cycle, made = assembling(core, rivals=rivals)
        first, second = _commit(1, 1), _commit(2, 2)
        core.ordered.add(first.transaction_id)
        places = [cycle.submit_single(one, None, 0) for one in (first, second)]
        task = asyncio.create_task(cycle.run(cast(Any, SimpleNamespace(is_busy=lambda: False))))
        await places[0]
        with pytest.raises(VersionConflictError):
            await places[1]
        assert made == [[1]]
        task.cancel()

    asyncio.run(main())
