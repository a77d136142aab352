"""Writers of a drill: one at each site, which commits without a pause and fails over if it must."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import monotonic

from sparktxlog import Client
from sparktxlog.errors import TxLogError

#: The table that they write.
TABLE, COLUMNS = "drill", {"id": "string", "site": "string"}
#: Seconds for one commit: longer than any pause that a drill causes.
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Ordered:
    """A commit that its writer knows to be ordered."""

    transaction_id: str
    position: int
    #: Steady seconds.
    at: float


class Writer(threading.Thread):
    """Commits small transactions at level `ordered`, one after the other.

    Args:
        site: The writer's site.
        urls: Nodes, the site's own first; the client fails over to the others.
    """

    def __init__(self, site: str, urls: Sequence[str]) -> None:
        super().__init__(name=f"writer at {site}", daemon=True)
        self.site = site
        self._urls = urls
        self._ended = threading.Event()
        self.ordered: list[Ordered] = []
        #: Commits that ended with an error, and whether it said that nothing had happened.
        self.failed: list[tuple[str, bool]] = []

    def run(self) -> None:
        """Commit until `end`."""
        with Client(self._urls, timeout=_PATIENCE_S) as client:
            while not self._ended.is_set():
                id_ = str(uuid.uuid4())
                rows = [{"id": id_, "site": self.site}]
                try:
                    receipt = client.append(TABLE, rows, transaction_id=id_)
                except TxLogError as error:
                    self.failed.append((f"[{error.code}] {error.message}", error.definite))
                    continue
                assert receipt.position is not None, "an ordered commit has one"
                self.ordered.append(Ordered(id_, receipt.position, monotonic()))

    def end(self) -> None:
        """Finish the commit under way, and end."""
        self._ended.set()
        self.join()

    def longest_gap_s(self, since: float, until: float) -> float:
        """Return the longest time without a commit between two steady times, seconds."""
        times = [since, *(one.at for one in self.ordered if since <= one.at <= until), until]
        return max(later - earlier for earlier, later in pairwise(times))
