"""Found by Spark itself: makes `format("txlog")` work without registration when pip-installed."""

from __future__ import annotations

from collections.abc import Mapping

import pyspark

from sparktxlog.api.datasource import TxLogDataSource
from sparktxlog.api.tested_releases import warn_of_untested


class DefaultSource(TxLogDataSource):
    """`format("txlog")`; the option `url` is needed: no `connect` names it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        # No `connect` has said it.  Delta is not asked for: it does nothing here.
        warn_of_untested(spark_release=pyspark.__version__)
        super().__init__(options)
