"""Index in memory of the transaction ids of runs in the incoming queue."""

from __future__ import annotations

import threading

from sparktxlog.protocol.messages.posts import RunHeader

#: Ids of runs up to this length are in a dict; longer runs are searched as one byte string,
#: so that a big batch costs no object per transaction.
_DICT_LIMIT = 64

#: Origin, incarnation, first sequence number.
RunKey = tuple[str, int, int]


def run_key(header: RunHeader) -> RunKey:
    """Return the unique name of a run: origin, incarnation, first sequence number."""
    return (header.origin, header.incarnation, header.seq)


def index_of(transaction_id: bytes, ids: bytes) -> int:
    """Return the index of a 16-byte id in `ids`, -1 if it is not there."""
    at = ids.find(transaction_id)
    while at >= 0 and at % 16:
        at = ids.find(transaction_id, at + 1)
    return at // 16 if at >= 0 else -1


class WaitingIds:
    """Index of waiting runs; any thread may read it while one thread changes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._long: dict[RunKey, tuple[RunHeader, bytes]] = {}
        self._short: dict[bytes, tuple[RunHeader, int]] = {}

    def add(self, header: RunHeader, ids: bytes) -> None:
        """Add a run; a run that is already here gets the new stamp."""
        with self._lock:
            if header.n > _DICT_LIMIT:
                self._long[run_key(header)] = (header, ids)
                return
            for index in range(header.n):
                # The first run that carries an id is the one that counts (P25c).
                transaction_id = ids[16 * index : 16 * index + 16]
                held = self._short.setdefault(transaction_id, (header, index))
                if run_key(held[0]) == run_key(header):
                    self._short[transaction_id] = (header, held[1])

    def remove(self, header: RunHeader, ids: bytes) -> None:
        """Remove a run that was added before."""
        with self._lock:
            if header.n > _DICT_LIMIT:
                self._long.pop(run_key(header), None)
                return
            for index in range(header.n):
                transaction_id = ids[16 * index : 16 * index + 16]
                held = self._short.get(transaction_id)
                if held is not None and run_key(held[0]) == run_key(header):
                    del self._short[transaction_id]

    def find(self, transaction_id: bytes) -> tuple[RunHeader, int] | None:
        """Return header and index of the transaction, None if it does not wait."""
        with self._lock:
            held = self._short.get(transaction_id)
            if held is not None:
                return held
            for header, ids in self._long.values():
                index = index_of(transaction_id, ids)
                if index >= 0:
                    return (header, index)
        return None
