"""Lists of a node that come in pages: a node may have 10,000 tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sparktxlog.errors import InvalidRequestError

#: Tables of a page.
PAGE = 1_000
_CURSOR = "after_name"


def read_pages(get: Callable[..., Any], path: str, **query: Any) -> Iterator[dict[str, Any]]:
    """Yield the elements of a list of tables, by name, in as many requests as it has pages.

    A table that comes into being or is dropped meanwhile may be there or not.

    Args:
        get: Answers `GET` of a path with parameters, such as `Http.get`.
        path: Of a route with the parameters `after_name` and `limit`; a node of an older release
            has none of them there, and answers with the whole list.
        query: Other parameters.

    Raises:
        TxLogError: As `get`.
    """
    after: str | None = None
    while True:
        try:
            found = get(path, **query, **{_CURSOR: after}, limit=PAGE)
        except InvalidRequestError as error:
            if error.fields.get("field") not in (_CURSOR, "limit") or after is not None:
                raise
            yield from get(path, **query)
            return
        yield from found
        if len(found) < PAGE:
            return
        after = found[-1]["name"]
