"""Views of the state as Arrow tables: what `VIEWS` and `KEPT` make of a node's answers and tables.

SQL reads them as files (`state_files`), programs by `GET /v1/views/NAME`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from sparktxlog.codec.state_views import KEPT, VIEWS, StateView, check_view
from sparktxlog.errors import InvalidRequestError
from sparktxlog.runtime.foundation import Foundation, in_slices
from sparktxlog.storage.log_tables.kept_rows import read_rows
from sparktxlog.storage.log_tables.log_schemas import LOG_TABLES

#: Rows of a table of any length, if a request does not say how many.
_ROWS = 1_000


class ViewRows:
    """Makes the views of one node; belongs to the event loop.

    Args:
        answers: What views ask (`StateView.asks`) → what answers it.
    """

    def __init__(self, base: Foundation, answers: Mapping[str, Callable[[], Any]]) -> None:
        self._base = base
        self._answers = answers

    async def table(
        self, name: str, *, after: int | None = None, limit: int | None = None
    ) -> pa.Table:
        """Return rows of one view.

        Args:
            name: One of `VIEWS` or `KEPT`.
            after: Of a kept table: rows after this position, or time in microseconds since 1970
                UTC; None = its last rows.
            limit: Rows at most; None = all, of a kept table 1,000.

        Raises:
            InvalidRequestError: No such view, or it has no order to begin after (definite).
            StorageError: The kept table cannot be read.
        """
        check_view(name)
        if (kept := KEPT.get(name)) is not None:
            directory = self._base.config.data_dir / "log" / kept.directory
            schema, rows = LOG_TABLES[kept.directory], _ROWS if limit is None else limit
            return await self._base.run_blocking(
                read_rows, directory, schema, kept.order, after, rows
            )
        if after is not None:
            raise InvalidRequestError(
                f"view {name!r} is read as a whole, not after {after}",
                hint=f"Leave after out. Views that take it: {', '.join(KEPT)}.",
                field="after",
                value=after,
            )
        found = (await self.tables([name]))[name]
        return found if limit is None else found.slice(0, limit)

    async def tables(self, names: Iterable[str]) -> dict[str, pa.Table]:
        """Return some of `VIEWS`, all of the same answers."""
        views = {name: VIEWS[name] for name in names}
        answers: dict[str, Any] = {}
        for ask in dict.fromkeys(ask for view in views.values() for ask in view.asks):
            found = self._answers[ask]()
            found = await found if inspect.isawaitable(found) else found
            answers[ask] = await _builtins(found)
        made = await self._base.run_blocking(_made, views, answers)
        return dict(made)


async def _builtins(found: Any) -> Any:
    """Return a value as lists and dictionaries; of a long list some elements at a time."""
    if not isinstance(found, list):
        return msgspec.to_builtins(found)
    made: list[Any] = []
    async for some in in_slices(found):
        made += msgspec.to_builtins(some)
    return made


def _made(views: Mapping[str, StateView], answers: Mapping[str, Any]) -> dict[str, pa.Table]:
    return {name: view.table(answers) for name, view in views.items()}


def row_dicts(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows as JSON has them: times as datetimes, maps as dictionaries."""
    rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="strict")
    return rows
