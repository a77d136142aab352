"""Lists of a node that come in pages: a node may have 10,000 tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

#: Tables of a page.
PAGE = 1_000


def read_pages(get: Callable[..., Any], path: str, **query: Any) -> Iterator[dict[str, Any]]:
    """Yield the elements of a list of tables, by name, in as many requests as it has pages.

    A table that comes into being or is dropped meanwhile may be there or not.

    Args:
        get: Answers `GET` of a path with parameters, such as `Http.get`.
        path: Of a route with the parameters `after_name` and `limit`.
        query: Other parameters.

    Raises:
        TxLogError: As `get`.
    """
    after: str | None = None
    while True:
        found = get(path, **query, after_name=after, limit=PAGE)
        yield from found
        if len(found) < PAGE:
            return
        after = found[-1]["name"]
