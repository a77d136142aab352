"""The core at work: its task, the writer that carries its actions out, and who waits for them."""

from __future__ import annotations

from sparktxlog.runtime.commit.cycle import Cycle
from sparktxlog.runtime.commit.executor import Executor
from sparktxlog.runtime.commit.holdings import Holdings, OwnRun
from sparktxlog.runtime.commit.receipts import Receipts
from sparktxlog.runtime.donors.copy_throttle import CopyThrottle
from sparktxlog.runtime.fleet.replicas import Replicas
from sparktxlog.runtime.foundation import Foundation

#: Peers' payloads that wait for the core, and durable payloads kept in memory, bytes.
_FOREIGN_BYTES = 128 << 20
_CACHE_BYTES = 16 << 20


class CoreLoop:
    """What the core needs to work; runs of former starts that have no stamp are followed again.

    **After calling** the constructor: run `executor.run` and `cycle.run`, and `close` in the end.
    """

    def __init__(self, base: Foundation, replicas: Replicas, throttle: CopyThrottle) -> None:
        self.holdings = Holdings(foreign_limit_bytes=_FOREIGN_BYTES, cache_limit_bytes=_CACHE_BYTES)
        self.receipts = Receipts(replicas.applied, throttle.busy)
        self.executor = Executor(base.front, self.holdings, node_id=base.config.node_id)
        self.cycle = Cycle(base, self.executor, self.holdings, self.receipts)
        for run in base.state.core.announcements:
            own = OwnRun(digest=run.digest, payload=None, session=run.session)
            self.holdings.put_own(run.ticket, own)
            self.receipts.open(run.ticket, run.facts.ids, singles=run.facts.n == 1)
            self.receipts.accepted(run.ticket, None)

    def close(self) -> None:
        """Wait for the write in flight and stop the writer."""
        self.executor.close()
