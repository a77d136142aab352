"""Lists of 10,000 tables: in pages and as a whole, without holding the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, MagicMock

import msgspec
import pytest

from sparktxlog.errors import InvalidNameError, UnknownTableError
from sparktxlog.model.tables.commit_table import CommitTable, CommitTables
from sparktxlog.model.tables.table import Column, TableDefinition, Tables
from sparktxlog.model.transactions.conditions import TableWrites
from sparktxlog.runtime.commit_tables.row_tables import RowTables
from sparktxlog.runtime.commit_tables.table_descriptions import TableDescriptions
from sparktxlog.runtime.foundation import SLICE
from sparktxlog.service.handlers.state_routes import StateRoutes

COLUMNS = (Column(name="id", type="bigint"), Column(name="v", type="string"))
MANY = 10_000


class Counting(dict[str, TableDefinition]):
    """Tables that count how often one is looked up."""

    looked = 0

    def get(self, name: str, default: Any = None) -> Any:
        self.looked += 1
        return super().get(name, default)


class Site:
    """Routes of a node with row tables `t00000`, … and commit tables."""

    def __init__(self, number: int, commits: tuple[str, ...] = ()) -> None:
        self.kept = Counting()
        for one in range(number):
            name = f"T{one:05d}"
            self.kept[name.lower()] = TableDefinition(name=name, columns=COLUMNS)
        found = {
            f"uuid-{name}": CommitTable(
                uuid=f"uuid-{name}",
                name=name,
                version=3,
                timestamp=1,
                transaction_id=bytes(16),
                position=5,
            )
            for name in commits
        }
        uuids = {table.name.lower(): uuid for uuid, table in found.items()}
        master = SimpleNamespace(
            tables=Tables(self.kept),
            commit_tables=CommitTables(found, uuids, {}),
            writes=lambda name: TableWrites(version=2, position=7),
            base=SimpleNamespace(position=9),
        )
        base: Any = SimpleNamespace(master=master)
        lake: Any = SimpleNamespace(url="s3://lake", below=lambda name: lake)
        catalog: Any = SimpleNamespace(listed=self._listed)
        rows = RowTables(base, lake, cast(Any, None), lambda url: lake)
        rows.place = lambda definition: SimpleNamespace(url=f"s3://lake/{definition.name}")  # type: ignore[method-assign]
        node = MagicMock(reach=AsyncMock(), end=9, writes=master.writes)
        node.tables = lambda: master.tables
        node.descriptions = TableDescriptions(base, rows, catalog)
        self.routes = StateRoutes(node)
        node.commit_tables = master.commit_tables
        self.node = node

    async def _listed(self, schema: str, name: str) -> Any:
        if name == "gone" or self.node.commit_tables.named(f"{schema}.{name}") is None:
            raise UnknownTableError("it was dropped meanwhile")
        return SimpleNamespace(name=f"{schema}.{name}", uuid="", placed=None)


def names_of(answer: bytes) -> list[str]:
    return [table["name"] for table in msgspec.json.decode(answer)]


Ask = Callable[[StateRoutes, str, int | None], Coroutine[Any, Any, bytes]]


async def _tables(routes: StateRoutes, after: str, limit: int | None) -> bytes:
    return await routes.tables(0, 0.0, after, limit)


async def _descriptions(routes: StateRoutes, after: str, limit: int | None) -> bytes:
    return await routes.descriptions(0, 0.0, after, limit)


@pytest.mark.parametrize("ask", [_tables, _descriptions])
@pytest.mark.parametrize("limit", [None, 1000])
def test_the_loop_turns_while_a_list_of_ten_thousand_tables_is_made(
    ask: Ask, limit: int | None
) -> None:
    site, turns = Site(MANY), list[int]()

    async def main() -> bytes:
        async def count() -> None:
            while True:
                turns.append(site.kept.looked)
                site.kept.looked = 0
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        await asyncio.sleep(0)
        found = await ask(site.routes, "", limit)
        turns.append(site.kept.looked)
        counting.cancel()
        return found

    found = names_of(asyncio.run(main()))
    assert found == [f"T{one:05d}" for one in range(MANY if limit is None else limit)]
    assert sum(turns) >= len(found)
    assert max(turns) <= 2 * SLICE


@pytest.mark.parametrize("ask", [_tables, _descriptions])
def test_pages_have_each_table_once(ask: Ask) -> None:
    site = Site(300)
    for one in (0, 5, *range(100, 200), 299):  # more than a slice of neighbours, and both ends
        name = f"t{one:05d}"
        site.kept[name] = site.kept[name].dropped()

    async def main() -> list[str]:
        found: list[str] = []
        while True:
            page = names_of(await ask(site.routes, found[-1] if found else "", 70))
            found += page
            if len(page) < 70:
                return found

    assert asyncio.run(main()) == [
        f"T{one:05d}" for one in range(299) if one not in (0, 5, *range(100, 200))
    ]


def test_descriptions_have_both_kinds_in_one_order() -> None:
    site = Site(2, ("a.early", "default.t00000x", "gold.gone", "gold.Late"))
    everything = ["a.early", "T00000", "default.t00000x", "T00001", "gold.late"]
    assert names_of(asyncio.run(_descriptions(site.routes, "", None))) == everything
    assert names_of(asyncio.run(_descriptions(site.routes, "default.T00000", 2))) == [
        "default.t00000x",
        "T00001",
    ]
    assert names_of(asyncio.run(_descriptions(site.routes, "gold.late", 2))) == []


@pytest.mark.parametrize("ask", [_tables, _descriptions])
@pytest.mark.parametrize("name", ["a.b.c", "a/b", ".", "x" * 300])
def test_a_page_after_what_names_no_table_is_refused(ask: Ask, name: str) -> None:
    with pytest.raises(InvalidNameError):
        asyncio.run(ask(Site(1).routes, name, 10))


def test_a_list_waits_until_the_disk_has_the_end_of_it() -> None:
    site = Site(3)
    asyncio.run(_tables(site.routes, "", None))
    assert [call.args[0] for call in site.node.reach.await_args_list] == [0, 9]
