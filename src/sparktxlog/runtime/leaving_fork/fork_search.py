"""Finds where a node's queue forks from that of a node whose log is kept (protocol S1, P28).

The other node is asked over its client API, with small requests: its log id, single runs for their
chain hashes, single transactions.  A part that either side has pruned cannot be compared.  Then the
last position that is certainly common is found, and everything after it counts as different: more
may be kept than differs, never less.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

from sparktxlog.catchup.forks import QueueRun, last_common
from sparktxlog.errors import (
    CorruptLogError,
    ExpiredError,
    NotFoundError,
    RemoteProtocolError,
)
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.protocol.messages.view import View
from sparktxlog.storage.interfaces import StoredEntry
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.storage.journal.waiting_ids import RunKey, run_key


class ClientApi(Protocol):
    """Asks another node over its client API."""

    url: str

    def get(self, path: str, **query: Any) -> Any:
        """Return the decoded JSON answer of `GET path`.

        Raises:
            TransportError: The node cannot be reached, or refuses the token.
            TxLogError: The node's own error.
        """


class Followed:
    """The node whose log is kept.

    Raises:
        RemoteProtocolError: It does not answer like a node with a queue (definite).
        TransportError: It cannot be reached, or refuses the token.
    """

    def __init__(self, api: ClientApi) -> None:
        self._api = api
        status, info = api.get("/v1/status"), api.get("/v1/info")
        try:
            self.node_id = str(status["node_id"])
            self.phase = str(status["phase"])
            self.halted = str(status["halted"] or "")
            self.log_id = str(status["log_id"])
            self.epoch = int(status["epoch"])
            self.ancestors = {(str(a["log_id"]), int(a["epoch"])) for a in status["ancestors"]}
            self.logs = {str(info["log_id"]), self.log_id, *(name for name, _ in self.ancestors)}
            begins = status["begins_after"]
            self.end = int(status["chain_position"])
            #: Positions whose chain hash it knows without the runs.
            self.known = {
                int(begins["position"]): bytes.fromhex(begins["chain_hash"]),
                self.end: bytes.fromhex(status["chain_hash"]),
            }
            self.seats = {str(s["id"]): int(s["incarnation"]) for s in status["roster"]}
        except (KeyError, TypeError, ValueError) as error:
            raise RemoteProtocolError(
                f"{api.url} does not answer like a node with a queue: {error!r}",
                hint="Name a member of the kept log, not a witness, with the same release.",
                url=api.url,
            ) from error

    def run_behind(self, position: int) -> QueueRun | None:
        """Return its first run that starts after a position.

        Raises:
            ExpiredError: It does not keep its queue back to there (definite).
        """
        found = self._api.get("/v1/queue", after=position, limit=1)
        if not found:
            return None
        first, n = int(found[0]["position"]), int(found[0]["n"])
        chain_hash = bytes.fromhex(found[0]["chain_hash"])
        return QueueRun(first=first, last=first + n - 1, chain_hash=chain_hash)

    def floor(self) -> int:
        """Return the position after which it keeps its queue."""
        try:
            self.run_behind(0)
        except ExpiredError as error:
            return int(error.fields["kept_after"])
        return 0

    def holds(self, stored: StoredEntry) -> bool:
        """Return whether a run is in its queue."""
        header = stored.entry.header
        text = transaction_id_to_text(stored.ids[:16])
        try:
            receipt = self._api.get(f"/v1/transactions/{text}")
        except NotFoundError:
            return False
        run = receipt.get("run") or {}
        same = (run.get("origin"), run.get("incarnation"), run.get("seq"))
        return receipt.get("position") is not None and same == (
            header.origin,
            header.incarnation,
            header.seq,
        )

    def can_be_followed(self, view: View) -> bool:
        """Return whether a node of that view takes over this node's view without quarantine."""
        if view.log_id == self.log_id:
            return view.epoch <= self.epoch
        return any(name == view.log_id and view.epoch <= last for name, last in self.ancestors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Where two queues fork."""

    #: They are equal up to this position.
    common: int
    #: False: they may be equal further, but one side has pruned too much to compare.
    exact: bool
    #: True: both are longer and differ.  False: one may be the beginning of the other.
    proven: bool
    #: Own positions up to here are pruned.
    floor: int


def find_fork(journal: Journal, end: int, followed: Followed) -> Fork:
    """Find the last common position, or the best bound that both sides still know.

    Raises:
        CorruptLogError: The journal lacks a run of its queue.
        TransportError: The other node stopped answering (definite).
    """

    def own(position: int) -> QueueRun:
        stored = journal.read_entry_at(position)
        if stored is None:
            raise CorruptLogError(
                f"the journal lacks position {position} of its queue, which ends at {end}",
                position=position,
            )
        entry = stored.entry
        return QueueRun(first=entry.position, last=entry.end, chain_hash=entry.chain_hash)

    floor = _floor(journal, end)
    known = [
        position
        for position, chain_hash in followed.known.items()
        if position <= end and _has(journal, position, chain_hash)
    ]
    low, least = max(known, default=0), max(floor, followed.floor())
    if low < least:
        # Is the first run that both still have a common one?
        run = followed.run_behind(least)
        if run is None or run.first > end:
            return Fork(common=low, exact=low == followed.end, proven=False, floor=floor)
        if own(run.first) != run:
            return Fork(common=low, exact=low == run.first - 1, proven=True, floor=floor)
        low = run.last
    high = min(end, followed.end)
    common = last_common(own, followed.run_behind, low, high)
    return Fork(common=common, exact=True, proven=common < high, floor=floor)


def _has(journal: Journal, position: int, chain_hash: bytes) -> bool:
    """Return whether the queue is known to have that chain hash there."""
    try:
        return journal.read_hash_at(position) == chain_hash
    except ExpiredError:
        return False


def _floor(journal: Journal, end: int) -> int:
    """Return the position after which a journal keeps its queue: old rows are pruned first."""
    return bisect.bisect_left(
        range(1, end + 1), True, key=lambda at: journal.read_entry_at(at) is not None
    )


def surviving_runs(followed: Followed, runs: Sequence[StoredEntry]) -> set[RunKey]:
    """Return which runs the followed queue also has.

    A queue has no gap in an origin's runs: it has the first ones of each origin, so few are asked.
    """
    stamped = sorted(
        (stored for stored in runs if stored.entry.header.seq),
        key=lambda stored: run_key(stored.entry.header),
    )
    found: set[RunKey] = set()
    for _, group in groupby(stamped, lambda stored: run_key(stored.entry.header)[:2]):
        line = list(group)
        count = bisect.bisect_left(line, True, key=lambda stored: not followed.holds(stored))
        found.update(run_key(stored.entry.header) for stored in line[:count])
    return found
