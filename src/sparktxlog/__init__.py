"""sparktxlog: one order over many Delta tables from several writing sites.

    import sparktxlog
    log = sparktxlog.connect(spark, "http://127.0.0.1:7070")    # from Spark: sparktxlog[spark]
    client = sparktxlog.Client("http://127.0.0.1:7070")         # without Spark

Public names are loaded when they are first used, so that a client needs neither PySpark nor what
a node needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparktxlog.api.adopting.table_follower import TableFollower as TableFollower
    from sparktxlog.api.client import Client as Client
    from sparktxlog.api.connect import TxLog as TxLog
    from sparktxlog.api.connect import connect as connect
    from sparktxlog.api.reading.sql_views import register as register
    from sparktxlog.api.session import build_session as build_session
    from sparktxlog.api.spark_errors import errors_from_spark as errors_from_spark
    from sparktxlog.api.streams.foreach_batch import stream_into as stream_into
    from sparktxlog.api.streams.foreach_batch import (
        transaction_id_of_batch as transaction_id_of_batch,
    )
    from sparktxlog.api.streams.foreach_batch import write_stream as write_stream
    from sparktxlog.errors import TxLogError as TxLogError
    from sparktxlog.model.tables.table import Column as Column
    from sparktxlog.model.tables.table import TableDefinition as TableDefinition
    from sparktxlog.model.transactions.receipt import Level as Level
    from sparktxlog.model.transactions.receipt import Receipt as Receipt

__version__ = "0.1.0"

#: Public name → module that has it; the classes of `errors` are public, too (docs/python.md).
_PUBLIC = {
    "Client": "sparktxlog.api.client",
    "Column": "sparktxlog.model.tables.table",
    "Level": "sparktxlog.model.transactions.receipt",
    "Receipt": "sparktxlog.model.transactions.receipt",
    "TableDefinition": "sparktxlog.model.tables.table",
    "TableFollower": "sparktxlog.api.adopting.table_follower",
    "TxLog": "sparktxlog.api.connect",
    "build_session": "sparktxlog.api.session",
    "connect": "sparktxlog.api.connect",
    "errors": "sparktxlog.errors",
    "errors_from_spark": "sparktxlog.api.spark_errors",
    "register": "sparktxlog.api.reading.sql_views",
    "stream_into": "sparktxlog.api.streams.foreach_batch",
    "transaction_id_of_batch": "sparktxlog.api.streams.foreach_batch",
    "write_stream": "sparktxlog.api.streams.foreach_batch",
}

#: They need the extra `spark`, whichever of its libraries is missing.
_OF_SPARK = {
    name
    for name, module in _PUBLIC.items()
    if module.startswith("sparktxlog.api.") and name != "Client"
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        errors = import_module("sparktxlog.errors")
        found = getattr(errors, name, None)
        if isinstance(found, type) and issubclass(found, errors.TxLogError):
            return found
        raise AttributeError(f"module 'sparktxlog' has no attribute {name!r}")
    try:
        loaded = import_module(module)
    except ModuleNotFoundError as error:
        missing_extra = import_module("sparktxlog.errors").missing_extra
        extra = "spark" if name in _OF_SPARK else ""
        missing = missing_extra(f"sparktxlog.{name}", error, extra)
        if missing is None:
            raise
        raise missing from error
    return loaded if name == "errors" else getattr(loaded, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
