"""`apply="inline"`: the session that commits also applies, so that one process shows everything.

For notebooks, tests and single-node use; elsewhere a worker of its own follows the log.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from sparktxlog.errors import ApplyError, NotAppliedError
from sparktxlog.worker.replica.applier import Applier, ApplyOutcome
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory


class InlineWorker:
    """A worker that runs between the commits of a session; owns the site's replica.

    Args:
        spark: Session with Delta.
        url: Base URL of the node's client interface.
        token: Client token, where the node asks for one.

    Raises:
        LockedError: Another worker owns the replica (definite).
        TransportError: The node cannot be reached.
    """

    def __init__(self, spark: SparkSession, url: str, token: str | None) -> None:
        self._source = HttpLogSource(url, token)
        self._directory = ReplicaDirectory(self._source.info().lake_root)
        try:
            self._applier = Applier(spark, self._source, self._directory)
        except BaseException:
            self.close()
            raise

    def apply(self, at_least: int, timeout_s: float) -> ApplyOutcome:
        """Apply what is published, at least up to a position.

        Raises:
            NotAppliedError: Not reached in time; the commit itself stands (definite).
            ApplyError: A batch cannot be applied; its tables keep their last whole state.
        """
        outcome = self._applier.run_once(at_least=at_least, timeout_s=timeout_s)
        if outcome.diverged:
            shown = "; ".join(f"{name}: {why}" for name, why in outcome.diverged.items())
            raise ApplyError(f"tables stand still: {shown}", tables=list(outcome.diverged))
        if outcome.position < at_least:
            raise NotAppliedError(
                f"position {at_least} is ordered and not applied after {timeout_s:.0f} s, "
                f"the replica stands at {outcome.position}",
                hint=outcome.stopped or "Call log.apply() again.",
                applied=outcome.position,
                position=at_least,
            )
        return outcome

    def close(self) -> None:
        """Give the replica free."""
        self._directory.close()
        self._source.close()
