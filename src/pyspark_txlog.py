"""Found by Spark itself: makes `format("txlog")` work without registration when pip-installed."""

from __future__ import annotations

from sparktxlog.api.datasource import TxLogDataSource


class DefaultSource(TxLogDataSource):
    """`format("txlog")`; the option `url` is needed: no `connect` names it."""
