"""Reads Delta tables by deltalake, pandas, polars and DuckDB, each as its manual says.

DuckDB's extension wants an older DuckDB than the project has, so this runs as a program: `python
other_readers.py PATH…`, what each reader found as JSON on standard output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

_INSTALLED = Path(__file__).parents[2] / ".venv" / "test-readers"

#: Column → a value that is sought in it.
SOUGHT = {
    "id": 5,
    "p": "a b/%",
    "q": "a b/%",
    "flag": False,
    "f": 2.5,
    "d": Decimal("-0.05"),
    "at": datetime(2026, 1, 1, 12, 30, 0, 123456, UTC),
    "s": "same",
    "t": "same",
}

#: What a reader found: rows, each as column → text; and by column the ids of rows that have what is
#: sought in it, or the error.  Or the error of the whole.
Found = dict[str, Any]


def packages() -> Path:
    """Return where polars and DuckDB are; skip the test where they are not installed.

    A skip fails a run with CI=true.
    """
    given = os.environ.get("SPARKTXLOG_TEST_READERS")
    if given:
        return Path(given)
    if not (_INSTALLED / ".installed").exists():
        pytest.skip("polars and DuckDB's extension are not installed: make test does it")
    return _INSTALLED


def read_all(paths: Sequence[Path]) -> list[dict[str, Found]]:
    """Return for each table: reader → what it found."""
    environ = os.environ | {"PYTHONPATH": str(packages())}
    command = [sys.executable, "-P", __file__, *map(str, paths)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environ, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Found]] = json.loads(done.stdout)
    return found


def found_by(
    rows: Callable[[], Iterable[Mapping[str, Any]]],
    ids: Callable[[str, Any], Iterable[int]] | None = None,
) -> Found:
    """Return what a reader finds.

    Args:
        rows: Reads all rows.
        ids: Returns the ids of rows that have a value in a column; None = it has no filters.
    """
    try:
        read = [{name: _text(value) for name, value in row.items()} for row in rows()]
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    found: Found = {"rows": sorted(read, key=lambda row: int(row["id"]))}
    if ids is not None:
        found["filters"] = {}
        for name in SOUGHT.keys() & (read[0].keys() if read else ()):
            try:
                found["filters"][name] = sorted(ids(name, SOUGHT[name]))
            except Exception as error:
                found["filters"][name] = f"{type(error).__name__}: {error}"
    return found


def _text(value: Any) -> str | None:
    if value is None or str(value) == "NaT":
        return None
    if isinstance(value, datetime):
        # Spark gives a time of this machine's zone without saying so.
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
    return repr(float(value)) if isinstance(value, float) else str(value)


def _readers() -> dict[str, Callable[[str], Found]]:
    import duckdb
    import duckdb_extension_delta
    import polars as pl
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    root = Path(duckdb_extension_delta.__file__).parent
    (extension,) = root.rglob("delta.duckdb_extension")
    database = duckdb.connect(config={"autoload_known_extensions": "false"})
    database.execute(f"LOAD '{extension}'")

    def literal(value: Any) -> str:
        if isinstance(value, datetime):
            return f"CAST('{value.isoformat(sep=' ')}' AS TIMESTAMP WITH TIME ZONE)"
        if isinstance(value, Decimal):
            return f"CAST('{value}' AS DECIMAL(10,2))"
        return f"'{value}'" if isinstance(value, str) else str(value)

    def queried(path: str, columns: str, where: str = "") -> list[dict[str, Any]]:
        query = QueryBuilder().register("t", DeltaTable(path))
        return pa.table(query.execute(f"SELECT {columns} FROM t{where}").read_all()).to_pylist()

    def of_duckdb(path: str, columns: str, where: str = "") -> list[dict[str, Any]]:
        found = database.execute(f"SELECT {columns} FROM delta_scan('{path}'){where}")
        return found.to_arrow_table().to_pylist()

    def by_sql(read: Callable[..., list[dict[str, Any]]]) -> Callable[[str], Found]:
        def ids(path: str, name: str, value: Any) -> list[int]:
            return [row["id"] for row in read(path, "id", f' WHERE "{name}" = {literal(value)}')]

        return lambda path: found_by(lambda: read(path, "*"), lambda *given: ids(path, *given))

    def plainly(path: str) -> list[dict[str, Any]]:
        return DeltaTable(path).to_pyarrow_table().to_pylist()

    def filtered(path: str, name: str, value: Any) -> list[int]:
        found = DeltaTable(path).to_pyarrow_table(filters=[(name, "=", value)])
        return found["id"].to_pylist()

    def of_polars(path: str, name: str, value: Any) -> list[int]:
        return pl.scan_delta(path).filter(pl.col(name) == value).collect()["id"].to_list()

    return {
        "deltalake": lambda path: found_by(lambda: plainly(path)),
        "deltalake with `filters=`": lambda path: found_by(
            lambda: plainly(path), lambda *given: filtered(path, *given)
        ),
        "deltalake `QueryBuilder`": by_sql(queried),
        "pandas": lambda path: found_by(lambda: DeltaTable(path).to_pandas().to_dict("records")),
        "polars": lambda path: found_by(
            lambda: pl.read_delta(path).to_dicts(), lambda *given: of_polars(path, *given)
        ),
        "DuckDB": by_sql(of_duckdb),
    }


def _main(paths: Sequence[str]) -> None:
    readers = _readers()
    found = [{name: read(path) for name, read in readers.items()} for path in paths]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    _main(sys.argv[1:])
