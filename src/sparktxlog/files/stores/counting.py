"""How often a store was asked, and for how many bytes: what its provider bills."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class RequestKind(Enum):
    """What a store was asked for."""

    GET = "get"
    PUT = "put"
    LIST = "list"
    HEAD = "head"
    DELETE = "delete"
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class Requested:
    """What was asked for, of one kind, since the store was opened."""

    requests: int = 0
    #: That travelled, in either direction, without headers.
    bytes: int = 0


class RequestCounts:
    """Counts requests; threads may share it.  Repetitions by the library are not seen."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(RequestKind, Requested())
        self._counting = threading.Lock()

    def add(self, kind: RequestKind, requests: int = 1, size: int = 0) -> None:
        """Count requests, and the bytes that travelled."""
        with self._counting:
            old = self._counts[kind]
            self._counts[kind] = Requested(old.requests + requests, old.bytes + size)

    def now(self) -> Mapping[RequestKind, Requested]:
        """Return all counts."""
        with self._counting:
            return dict(self._counts)
