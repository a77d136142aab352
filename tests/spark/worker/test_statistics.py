"""Statistics of the log never exclude a row that Spark finds, at the edges of each type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sparktxlog.codec.arrow import arrow_type
from sparktxlog.storage.parquet_files import inspect_parquet, write_parquet

pytestmark = pytest.mark.spark

HIGHEST = "\U0010ffff"
DAYS = ("0001-01-01", "1582-10-14", "1582-10-15", "1899-12-31", "9999-12-31", "1970-01-01")
MOMENTS = (
    "0001-01-01 00:00:00.000001",
    "1582-10-14 23:59:59.999999",
    "1582-10-15 00:00:00.000999",
    "1899-12-31 23:59:59.9999",
    "9999-12-31 23:59:59.999999",
    "1969-12-31 23:59:59.999001",
)
TEXTS = (
    "",
    "a" * 33,
    HIGHEST * 40,
    "\uffff" * 32 + "\U00010000",
    "\U0001f600" * 31 + "ab\U0001f600",
    "\x00\"\\' ü\n" + "é" * 100,
    "x" * 32,
    HIGHEST * 33 + "a",
)
#: Type → literals of SQL, or texts.
EDGES: dict[str, tuple[Any, ...]] = {
    "tinyint": (-128, 127, 0),
    "smallint": (-32768, 32767),
    "int": (-(2**31), 2**31 - 1),
    "bigint": (-(2**63), 2**63 - 1, 2**53 + 1),
    "decimal(38,0)": ("9" * 38, f"-{'9' * 38}", "0"),
    "decimal(38,38)": (f"0.{'9' * 38}", f"-0.{'0' * 37}1"),
    "decimal(5,2)": ("-999.99", "999.99"),
    "double": (1.7976931348623157e308, -5e-324, "-0.0", "NaN", "-Infinity"),
    "float": (3.4028234663852886e38, "NaN", "-0.0", -1e-45, "Infinity"),
    "boolean": (True, False),
    "string": TEXTS,
    "binary": TEXTS,
    "date": DAYS,
    "timestamp": MOMENTS,
    "timestamp_ntz": MOMENTS,
}
ROWS = max(map(len, EDGES.values()))
#: Column → its type: each type alone, and as a field of a struct.
COLUMNS = {f"c{number}": kind for number, kind in enumerate(EDGES)}


def literal(kind: str, value: Any) -> str:
    """Return a value in SQL, whatever the session's time zone is."""
    match kind:
        case "string" | "binary":
            return f"CAST(X'{value.encode().hex()}' AS {kind})"
        case "date" | "timestamp_ntz":
            return f"{kind}'{value}'"
        case "timestamp":
            return f"{kind}'{value}Z'"
        case _:
            return f"CAST('{value}' AS {kind})"


def row_of(number: int) -> dict[str, str]:
    """Return the values of a row: column → SQL."""
    row = {}
    for name, kind in COLUMNS.items():
        edges = EDGES[kind]
        row[name] = literal(kind, edges[number % len(edges)])
    return row


def written(spark: SparkSession, folder: Path, numbers: list[int], *, by_spark: bool) -> Path:
    """Write rows into one file, as a node or as Spark does."""
    selects = []
    for number in numbers:
        row = row_of(number)
        fields = ", ".join(f"'{name}', {value}" for name, value in row.items())
        plain = ", ".join(f"{value} AS {name}" for name, value in row.items())
        selects.append(f"SELECT {plain}, named_struct({fields}) AS s")
    frame = spark.sql(" UNION ALL ".join(selects)).coalesce(1)
    if by_spark:
        frame.write.parquet(str(folder / "spark"), mode="append")
        return max((folder / "spark").glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    fields = [pa.field(name, arrow_type(kind)) for name, kind in COLUMNS.items()]
    schema = pa.schema([*fields, pa.field("s", pa.struct(fields))])
    path = folder / f"node-{'-'.join(map(str, numbers))}.parquet"
    path.write_bytes(write_parquet(frame.toArrow().cast(schema)))
    return path


def committed(spark: SparkSession, folder: Path, files: list[Path]) -> None:
    """Make a Delta table of files, with the statistics that a node makes."""
    schema = spark.read.parquet(str(files[0])).schema.jsonValue()
    features = {"readerFeatures": ["timestampNtz"], "writerFeatures": ["timestampNtz"]}
    actions: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features},
        {
            "metaData": {
                "id": "edges",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(schema),
                "partitionColumns": [],
                "configuration": {},
            }
        },
    ]
    for file in files:
        facts = inspect_parquet(file, lambda _: None)
        actions.append(
            {
                "add": {
                    "path": str(file.relative_to(folder)),
                    "size": facts.size_bytes,
                    "partitionValues": {},
                    "modificationTime": 0,
                    "dataChange": True,
                    "stats": facts.stats,
                }
            }
        )
    (folder / "_delta_log").mkdir()
    lines = "".join(f"{json.dumps(action)}\n" for action in actions)
    (folder / "_delta_log" / f"{0:020d}.json").write_text(lines)


@pytest.mark.thorough
def test_statistics_never_exclude_a_row(spark: SparkSession, tmp_path: Path) -> None:
    """For each value, Delta reads at least the files that hold it."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    rows = [[number] for number in range(ROWS)] + [list(range(ROWS))]
    files = {
        written(session, tmp_path, numbers, by_spark=by_spark): numbers
        for by_spark in (False, True)
        for numbers in rows
    }
    committed(session, tmp_path, list(files))
    session.conf.set("spark.sql.session.timeZone", "America/Lima")
    table = session.read.format("delta").load(str(tmp_path))
    skipped = set()
    for name, kind in COLUMNS.items():
        values = [row_of(number)[name] for number in range(ROWS)]
        for value in set(values):
            read = table.where(f"{name} = {value}").inputFiles()
            holding = {
                path.as_uri()
                for path, numbers in files.items()
                if value in {values[number] for number in numbers}
            }
            assert holding <= {path.replace("file:/", "file:///") for path in read}, value
            if len(read) < len(files):
                skipped.add(kind)
    assert skipped == EDGES.keys() - {"boolean", "binary"}  # which have no bounds
    # Fields of structs have none, so nothing excludes them.
    for number in range(ROWS):
        fields = [f"s.{name} = {value}" for name, value in row_of(number).items()]
        assert len(table.where(" AND ".join(fields)).inputFiles()) == len(files)
    nothing = " OR ".join(f"{name} IS NULL" for name in COLUMNS)
    assert table.where(nothing).inputFiles() == []
