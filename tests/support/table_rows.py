"""The rows of a Delta table, without a Spark job where another reader can read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError
from pyspark.sql import SparkSession


def rows_of(spark: SparkSession, table: Path, version: int | None = None) -> list[tuple[Any, ...]]:
    """Return the rows of a table, or of an older version, sorted by how they look.

    Spark reads what has features that the other reader does not know: deletion vectors and other
    names of columns in files.
    """
    try:
        found = DeltaTable(table, version=version).to_pyarrow_table()
    except DeltaProtocolError:
        reader = spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        rows = [tuple(row) for row in reader.load(str(table)).collect()]
    else:
        columns = [column.to_pylist() for column in found.columns]
        rows = list(zip(*columns, strict=True))
    return sorted(rows, key=repr)
