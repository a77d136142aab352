"""Lines of many commit tables are made without holding the event loop, and numbers in no time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from sparktxlog.health.verdicts import SiteState
from sparktxlog.model.tables.commit_table import CommitKind, CommitOperation, CommitTable
from sparktxlog.protocol.effects.commits import CommitFold
from sparktxlog.runtime.commit_tables.commit_placer import CommitPlacer
from sparktxlog.runtime.commit_tables.table_overview import TableOverview
from sparktxlog.runtime.foundation import SLICE

MANY = 1_000


class Counting(dict[str, int]):
    """Versions at this site that count how often one is asked for."""

    asked = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.asked += 1
        return super().get(key, default)


class Site:
    """A site with many commit tables, each at version 2 of the log.

    Args:
        placed: Number of a table → its version that is placed.
    """

    def __init__(self, placed: Callable[[int], int]) -> None:
        self.commits = CommitFold(table_of(number) for number in range(MANY))
        found = (table_of(number).uuid for number in range(MANY))
        self.versions = Counting((uuid, placed(int(uuid))) for uuid in found)
        tables = self.commits.tables
        base: Any = SimpleNamespace(master=SimpleNamespace(commit_tables=tables))
        nobody: Any = SimpleNamespace()
        self.placer = CommitPlacer(base, nobody, nobody, nobody)
        self.placer.versions = self.versions
        recounts: Any = SimpleNamespace(findings={})
        fetcher: Any = SimpleNamespace(transfers={}, failures={})
        self.findings: dict[str, Any] = recounts.findings
        self.overview = TableOverview(base, self.placer, fetcher, recounts, nobody)

    def shows(self) -> dict[str, int]:
        """Return how many tables are in which state, after a look at all of them."""
        lines = self.overview.show(tables=True)["tables"]
        said = self.overview.show(tables=False)
        found = Counter(line["state"] for line in lines)
        assert said["states"] == {state.value: found[state.value] for state in SiteState}
        assert said["total"] == len(lines)
        assert said["behind"] == sum(line["lag"] for line in lines)
        odd = [line for line in lines if line["state"] != "in-sync"]
        assert said["tables"] == odd[:100]
        return dict(found)

    def asked(self) -> int:
        """Return how many tables a status looks at."""
        self.versions.asked = 0
        self.overview.show(tables=False)
        return self.versions.asked


def table_of(number: int, **more: Any) -> CommitTable:
    values: dict[str, Any] = {
        "uuid": f"{number:04d}",
        "name": f"shop.t{number:04d}",
        "version": 2,
        "timestamp": 1,
        "transaction_id": bytes(16),
        "position": number + 1,
    }
    return CommitTable(**values | more)


def test_a_status_looks_only_at_tables_that_are_not_in_sync() -> None:
    site = Site(lambda number: 2)
    assert site.shows() == {"in-sync": MANY}
    assert site.asked() == 0
    commit = CommitOperation(kind=CommitKind.COMMIT, uuid="0007", version=3, timestamp=2)
    assert site.commits.take([commit], MANY + 1, bytes(16), 0) is None
    assert site.shows() == {"in-sync": MANY - 1, "placing": 1}
    assert site.asked() <= 5
    site.versions["0007"] = 3
    site.findings["0009"] = (SimpleNamespace(text="other bytes"),)
    assert site.shows() == {"in-sync": MANY - 1, "diverged": 1}
    assert site.asked() <= 5
    drop = CommitOperation(kind=CommitKind.DROP, uuid="0009")
    assert site.commits.take([drop], MANY + 2, bytes(16), 0) is None
    assert site.shows() == {"in-sync": MANY - 1}


def test_lines_are_those_of_a_whole_list_and_are_made_in_slices() -> None:
    site = Site(lambda number: 1 + number % 2)
    versions, overview = site.versions, site.overview

    async def main() -> list[Any]:
        turns: list[int] = []

        async def count() -> None:
            while True:
                turns.append(versions.asked)
                versions.asked = 0
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        lines = await overview.listed()
        counting.cancel()
        assert sum(turns) > MANY
        assert max(turns) <= 4 * SLICE
        return lines

    lines = asyncio.run(main())
    assert lines == overview.show(tables=True)["tables"]
    assert [line["name"] for line in lines] == [table_of(number).name for number in range(MANY)]
    assert site.shows() == {"in-sync": MANY // 2, "placing": MANY // 2}
    assert {line["state"] for line in lines[::2]} == {"placing"}
    assert {line["state"] for line in lines[1::2]} == {"in-sync"}
