"""Counts the signature of some rows while a Spark job that reads them does something else."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import Observation

from sparktxlog.worker.apply.signatures import (
    hash_columns,
    observed,
    signature_from,
    signature_of,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sparktxlog.model.signature import TableSignature
    from sparktxlog.model.table import TableDefinition

_logger = logging.getLogger(__name__)

#: How long after the job its result is waited for: it comes by a queue of events, which Spark
#: lets overflow.
_PATIENCE = "10 s"


class CountedBeside:
    """Rows that are counted by the job that reads them.

    Args:
        rows: All that the job reads.
        where: Which of them are counted.
    """

    def __init__(self, rows: DataFrame, definition: TableDefinition, where: Column) -> None:
        self._counted = rows.where(where)
        self._definition = definition
        self._observation = Observation()
        #: To be used by the job, once.
        self.rows = observed(rows, self._observation, hash_columns(definition, where))

    def found(self, rows: int) -> TableSignature:
        """Return the signature, after the job; a job of its own counts where that one did not.

        A stage that Spark runs again is counted twice, and the result may get lost.

        Args:
            rows: How many there are.
        """
        if self._is_there():
            signature = signature_from(self._observation.get)
            if signature.rows == rows:
                return signature
            _logger.warning(
                "%d rows were counted, there are %d: they are counted again", signature.rows, rows
            )
        else:
            _logger.warning("Spark lost the count of %d rows: they are counted again", rows)
        return signature_of(self._counted, self._definition)

    def _is_there(self) -> bool:
        observation: Any = self._observation._jo
        session: Any = self.rows.sparkSession
        await_result = getattr(session.sparkContext._jvm, "scala.concurrent.Await")
        duration = getattr(session.sparkContext._jvm, "scala.concurrent.duration.Duration")
        try:
            await_result.ready(observation.future(), duration.create(_PATIENCE))
        except Py4JJavaError as error:
            if "TimeoutException" not in str(error.java_exception):
                raise
            return False
        return True
