"""Lines of many commit tables are made without holding the event loop."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from sparktxlog.model.tables.commit_table import CommitTable, CommitTables
from sparktxlog.runtime.commit_tables.table_overview import TableOverview
from sparktxlog.runtime.foundation import SLICE

MANY = 1_000


class Counting(dict[str, int]):
    """Versions at this site that count how often one is asked for."""

    asked = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.asked += 1
        return super().get(key, default)


def test_lines_are_those_of_a_whole_list_and_are_made_in_slices() -> None:
    found = {
        f"{number:04d}": CommitTable(
            uuid=f"{number:04d}",
            name=f"shop.t{number:04d}",
            version=2,
            timestamp=1,
            transaction_id=bytes(16),
            position=number + 1,
        )
        for number in range(MANY)
    }
    tables = CommitTables(found, {table.name: uuid for uuid, table in found.items()})
    versions = Counting((uuid, 1 + int(uuid) % 2) for uuid in found)
    base: Any = SimpleNamespace(master=SimpleNamespace(commit_tables=tables))
    placer: Any = SimpleNamespace(versions=versions, failures=dict)
    fetcher: Any = SimpleNamespace(transfers={}, failures={})
    overview = TableOverview(base, placer, fetcher, SimpleNamespace(findings={}), None)  # type: ignore[arg-type]

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
    assert lines == overview.lines()
    assert [line["name"] for line in lines] == [table.name for table in found.values()]
    assert {line["state"] for line in lines[::2]} == {"placing"}
    assert {line["state"] for line in lines[1::2]} == {"in-sync"}
