"""Schemas that are created and dropped at once, while earlier changes become durable."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from sparktxlog.errors import SchemaTakenError, UnknownSchemaError
from sparktxlog.runtime.commit.executor import Executor
from sparktxlog.runtime.commit_tables.schema_names import SchemaNames


class Disk:
    """Keeps what is written, a while after it was asked to."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    async def write(self, changes: Sequence[Any]) -> None:
        for _ in range(3):  # others have their turn
            await asyncio.sleep(0)
        self.values |= {one.name: one.value for one in changes}


def schemas(disk: Disk) -> SchemaNames:
    return SchemaNames(disk.values, cast(Executor, disk), list[str])


def test_of_several_at_once_none_is_lost() -> None:
    disk = Disk()

    async def change() -> SchemaNames:
        made = schemas(disk)
        await made.create("old", "", {})
        await asyncio.gather(*(made.create(name, name, {}) for name in "abc"), made.drop("old"))
        return made

    assert asyncio.run(change()).all() == schemas(disk).all() == ["a", "b", "c", "default"]


def test_one_of_two_that_create_or_drop_the_same_is_refused() -> None:
    async def change() -> list[BaseException | Any]:
        made = schemas(Disk())
        found = [
            *await asyncio.gather(
                made.create("a", "", {}), made.create("A", "", {}), return_exceptions=True
            ),
            *await asyncio.gather(made.drop("a"), made.drop("a"), return_exceptions=True),
        ]
        assert made.all() == ["default"]
        return found

    _, created, _, dropped = asyncio.run(change())
    assert isinstance(created, SchemaTakenError) and isinstance(dropped, UnknownSchemaError)
