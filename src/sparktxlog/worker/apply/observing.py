"""Counts the signature of some rows while a Spark job that reads them does something else."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import Observation
from pyspark.sql import functions as F

from sparktxlog.model.signature import EMPTY_SIGNATURE
from sparktxlog.worker.apply.signatures import (
    AGGREGATES,
    observed,
    row_hash,
    signature_from,
    signature_of,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sparktxlog.model.signature import TableSignature
    from sparktxlog.model.tables.table import TableDefinition

_logger = logging.getLogger(__name__)

#: How long after the job its result is waited for, seconds: it comes by a queue of events, which
#: Spark lets overflow.
_PATIENCE_S = 30.0


def result_of(observation: Observation) -> Mapping[str, Any] | None:
    """Return what a job that has ended has observed, None if Spark lost it.

    `Observation.get` alone waits without an end, and fails where adaptive execution left the
    observed rows out of the plan, because what they are joined with turned out to be none.
    """
    found: Future[Mapping[str, Any] | None] = Future()

    def wait() -> None:
        try:
            found.set_result(observation.get)
        except Py4JJavaError:
            found.set_result(None)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            found.set_exception(error)

    Thread(target=wait, name="observation", daemon=True).start()
    try:
        return found.result(_PATIENCE_S)
    except TimeoutError:
        return None


def counted(observation: Observation, rows: int) -> Mapping[str, Any] | None:
    """Return the aggregates of `observed` rows after their job, None if another one has to count.

    A stage that Spark runs again is counted twice, and the result may get lost.

    Args:
        rows: How many there are.
    """
    found = result_of(observation)
    if found is None:
        _logger.warning("Spark lost the count of %d rows: they are counted again", rows)
    elif found[AGGREGATES[0]] != rows:
        _logger.warning(
            "%d rows were counted, there are %d: they are counted again", found[AGGREGATES[0]], rows
        )
        return None
    return found


class CountedBeside:
    """Rows that are counted by the job that reads them.

    Args:
        rows: All that the job reads.
        where: Which of them are counted.
        hashed: Column that has the row hashes already; empty = none has.
    """

    def __init__(
        self,
        rows: DataFrame,
        definition: TableDefinition,
        where: Column,
        hashed: str = "",
    ) -> None:
        self._counted = rows.where(where)
        self._definition = definition
        self._observation = Observation()
        #: To be used by the job, once.
        found = F.col(hashed) if hashed else row_hash(definition.columns)
        self.rows = observed(rows, self._observation, found, where=where)

    def found(self, rows: int) -> TableSignature:
        """Return the signature, after the job; see `counted`.

        Args:
            rows: How many there are.
        """
        if not rows:
            return EMPTY_SIGNATURE
        found = counted(self._observation, rows)
        if found is None:
            return signature_of(self._counted, self._definition)
        return signature_from(found)
