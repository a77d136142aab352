"""Reads many things in their order, a few ahead: a bucket answers late."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Asked = TypeVar("_Asked")
_Read = TypeVar("_Read")


def read_ahead(
    read: Callable[[_Asked], _Read], wanted: Iterable[_Asked], *, at_once: int, name: str
) -> Iterator[_Read]:
    """Yield what `read` returns of each thing, in their order; raises what it raises.

    Args:
        at_once: Most that are read, or wait to be taken, at the same time.
        name: Of the threads.
    """
    with ThreadPoolExecutor(at_once, name) as threads:
        ahead = deque[Future[_Read]]()
        for one in wanted:
            ahead.append(threads.submit(read, one))
            if len(ahead) == at_once:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
