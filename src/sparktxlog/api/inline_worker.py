"""`apply="inline"`: the session itself applies what it commits."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from sparktxlog.api.long_steps import long_step
from sparktxlog.errors import ApplyError, NotAppliedError
from sparktxlog.http.link import Http
from sparktxlog.worker.replica.applier import Applier, ApplyOutcome
from sparktxlog.worker.replica.bucket_replica import open_replica, place_of_locks
from sparktxlog.worker.replica.source import HttpLogSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class InlineWorker:
    """`apply="inline"`: a worker that runs between the commits of a session; owns the replica.

    For notebooks, tests and single nodes; elsewhere a separate worker follows the log.

    Args:
        spark: Session with Delta.
        home: Link to the node.

    Raises:
        LockedError: Another worker owns the replica (definite).
        TransportError: The node cannot be reached.
    """

    def __init__(self, spark: SparkSession, home: Http) -> None:
        self._source = HttpLogSource(home.url, home.token, ca_file=home.ca_file)
        info = self._source.info()
        self._directory = open_replica(info.lake, place_of_locks(info, info.lake))
        try:
            self._applier = Applier(spark, self._source, self._directory)
        except BaseException:
            self.close()
            raise

    def apply(
        self, at_least: int, timeout_s: float, tables: Collection[str] | None = None
    ) -> ApplyOutcome:
        """Apply what is published, at least up to a position.

        Args:
            tables: The ones that must not stand still; None = all.

        Raises:
            NotAppliedError: Not reached in time; the commit stays valid (definite).
            ApplyError: A batch cannot be applied; its tables keep their last complete state.
        """
        applier = self._applier
        with long_step("applying the log to this site's tables", lambda: _reached(applier)):
            outcome = applier.run_once(at_least=at_least, timeout_s=timeout_s)
        still = {
            name: why for name, why in outcome.diverged.items() if tables is None or name in tables
        }
        if still:
            shown = "; ".join(f"{name}: {why}" for name, why in still.items())
            raise ApplyError(f"tables stand still: {shown}", tables=list(still))
        if outcome.position < at_least:
            raise NotAppliedError(
                f"position {at_least} is ordered but not applied after {timeout_s:.0f} s, "
                f"the replica is at {outcome.position}",
                hint=outcome.stopped or "Call log.apply() again.",
                applied=outcome.position,
                position=at_least,
            )
        return outcome

    def close(self) -> None:
        """Release the replica."""
        self._directory.close()
        self._source.close()


def _reached(applier: Applier) -> str:
    return f"position {applier.state.position:,} of {applier.published:,}"
