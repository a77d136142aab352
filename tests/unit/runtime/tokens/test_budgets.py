"""No token takes all of a budget, whatever it does, and all that was taken comes back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparktxlog.config import NodeConfig
from sparktxlog.errors import BusyError, ShareUsedUpError
from sparktxlog.runtime.audit_trail import asks
from sparktxlog.runtime.metrics import Metrics
from sparktxlog.runtime.tokens.budgets import Budget, Budgets, Kept

GREEDY, OTHER = "client greedy", "client other"


@pytest.fixture(autouse=True)
def _anybody() -> Iterator[None]:
    given = asks.set(GREEDY)
    yield
    asks.reset(given)


def taken(budget: Budget, holder: str, amount: int = 1) -> int:
    """Take as often as possible; return how often."""
    count = 0
    with suppress(BusyError):
        while True:
            budget.take(amount, holder)
            count += 1
    return count


@pytest.mark.parametrize("most", [4, 6, 32, 1_500])
def test_each_further_token_gets_something(most: int) -> None:
    budget = Budget("streams", most, "")
    shares = [taken(budget, f"client {number}") for number in range(3)]
    assert shares[0] == most * 2 // 3, "one token has at most two thirds"
    assert min(shares) >= 1
    assert budget.used == sum(shares) <= most


def test_what_is_refused_names_the_share_and_the_way_out() -> None:
    budget, counted = Budget("event streams", 6, "Close some."), Counter[str]()
    budget.refused = lambda: counted.update(["all"])
    taken(budget, GREEDY)
    with pytest.raises(ShareUsedUpError) as refused:
        budget.take()
    problem = refused.value.to_problem()
    assert (problem["status"], problem["title"]) == (429, "share-used-up")
    assert (problem["definite"], problem["retryable"]) == (True, True)
    assert "'client greedy' has 4 of this node's 6 event streams" in problem["detail"]
    assert "Close some." in problem["hint"]
    assert problem["fields"] == {
        "budget": "event streams",
        "client": GREEDY,
        "held": 4,
        "limit": 6,
    }
    assert budget.take(2, OTHER) == OTHER
    with pytest.raises(BusyError, match="none is free") as full:
        budget.take(1, "client third")
    assert (full.value.http_status, full.value.code) == (503, "busy")
    assert counted["all"] == 3
    budget.give(OTHER, 2)
    budget.give(GREEDY, 4)
    assert (budget.used, budget.has(GREEDY)) == (0, 0)


def test_who_waits_for_a_turn_gets_it_when_one_is_given_back() -> None:
    async def main() -> None:
        budget = Budget("turns", 3, "")
        order: list[str] = []

        async def work(name: str, holder: str, until: asyncio.Event) -> None:
            asks.set(holder)
            async with budget.turn(20):
                order.append(name)
                await until.wait()

        first, second = asyncio.Event(), asyncio.Event()
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            for number in range(3):
                tasks.create_task(work(f"greedy {number}", GREEDY, first))
            await asyncio.sleep(0)
            assert order == ["greedy 0", "greedy 1"]
            tasks.create_task(work("other", OTHER, second))
            await asyncio.sleep(0)
            assert order[2:] == ["other"], "it waits for nobody"
            first.set()
            while len(order) < 4:
                await asyncio.sleep(0)
            second.set()
        assert budget.used == 0
        with pytest.raises(ShareUsedUpError):
            async with budget.turn(0), budget.turn(0), budget.turn(0):
                pass
        assert budget.used == 0

    asyncio.run(main())


def test_unfinished_work_expires_and_each_sign_of_life_renews_it() -> None:
    async def main() -> None:
        budget, expired = Budget("bytes", 90, ""), asyncio.Queue[str]()
        kept = Kept(budget, 0.05, expired.put_nowait)
        loop = asyncio.get_running_loop()
        began = loop.time()
        kept.take("work", "a", 20)
        kept.take("work", "a", 20)  # the next part of the same file
        kept.take("work", "b", 10)
        kept.take("ended", "c", 5)
        assert budget.has(GREEDY) == 35
        with pytest.raises(ShareUsedUpError):
            kept.take("more", "d", 60)
        kept.give("ended", "c")
        kept.give("ended", "c")
        kept.give("unknown", "c")
        assert budget.has(GREEDY) == 30
        asyncio.get_running_loop().call_later(0.03, kept.take, "work", "a", 20)
        async with asyncio.timeout(20):
            assert await expired.get() == "work"
        assert loop.time() - began >= 0.08
        assert (budget.used, expired.empty()) == (0, True)

    asyncio.run(main())


def test_an_upload_counts_once_for_its_token_and_half_of_a_disk_is_the_most(
    tmp_path: Path,
) -> None:
    config: Any = SimpleNamespace(
        body_limit=(16 << 20) + 1,
        connections_limit=16,
        upload_limit_bytes=1 << 60,
        upload_expiry=60.0,
        payload_dir=tmp_path / "not" / "there",
    )
    metrics = Metrics()
    budgets = Budgets(cast(NodeConfig, config), metrics)
    assert 0 < budgets.upload_bytes.most < 1 << 60
    budgets.memory.take((16 << 20) + 1)  # a token that is alone may send the largest body
    with pytest.raises(ShareUsedUpError):
        budgets.memory.take(1)
    value = metrics.registry.get_sample_value
    label = {"budget": budgets.memory.what}
    assert value("sparktxlog_budget_used", label) == (16 << 20) + 1
    assert value("sparktxlog_budget_refusals_total", label) == 1
