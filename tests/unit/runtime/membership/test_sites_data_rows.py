"""Whether the log has rows is looked for once at each position, however often a status asks."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

from sparktxlog.model.transactions.conditions import TableWrites
from sparktxlog.runtime.membership.sites_data import SitesData


def test_tables_are_walked_once_at_each_position_of_each_log() -> None:
    versions, walks = {"a": 0, "b": 0}, list[int]()

    class Names:
        def __iter__(self) -> Iterator[str]:
            walks.append(1)
            return iter(versions)

    master = SimpleNamespace(
        view=SimpleNamespace(log_id="one"),
        base=SimpleNamespace(position=0),
        tables=Names(),
        writes=lambda name: TableWrites(version=versions[name], position=0),
    )
    data = SitesData(cast(Any, SimpleNamespace(master=master)), *([MagicMock()] * 3))
    assert [data._any_rows() for _ in range(3)] == [False] * 3
    assert len(walks) == 1
    versions["b"] = 1
    master.base.position = 5
    assert [data._any_rows() for _ in range(3)] == [True] * 3
    assert len(walks) == 2
    versions["b"] = 0
    master.view.log_id = "two"  # this node left its history
    assert not data._any_rows()
