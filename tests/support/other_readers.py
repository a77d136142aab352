"""Reads Delta tables by deltalake, pandas, polars and DuckDB, each as its manual says.

DuckDB's extension wants an older DuckDB than the project has, so this runs as a program: `python
other_readers.py PATH…`, what each reader found as JSON on standard output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

_INSTALLED = Path(__file__).parents[2] / ".venv" / "test-readers"


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


def read_all(paths: Sequence[Path]) -> list[dict[str, list[int] | str]]:
    """Return for each table: reader → the sorted ids that it found, or the text of its error."""
    environ = os.environ | {"PYTHONPATH": str(packages())}
    command = [sys.executable, "-P", __file__, *map(str, paths)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environ, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, list[int] | str]] = json.loads(done.stdout)
    return found


def _readers() -> dict[str, Callable[[str], Any]]:
    import duckdb
    import duckdb_extension_delta
    import polars as pl
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    root = Path(duckdb_extension_delta.__file__).parent
    (extension,) = root.rglob("delta.duckdb_extension")
    database = duckdb.connect(config={"autoload_known_extensions": "false"})
    database.execute(f"LOAD '{extension}'")

    def by_queries(path: str) -> Any:
        query = QueryBuilder().register("t", DeltaTable(path)).execute("SELECT id FROM t")
        return pa.table(query.read_all())["id"].to_pylist()

    return {
        "deltalake": lambda path: DeltaTable(path).to_pyarrow_table()["id"].to_pylist(),
        "deltalake `QueryBuilder`": by_queries,
        "pandas": lambda path: DeltaTable(path).to_pandas()["id"].tolist(),
        "polars": lambda path: pl.read_delta(path)["id"].to_list(),
        "DuckDB": lambda path: [
            row[0] for row in database.execute(f"SELECT id FROM delta_scan('{path}')").fetchall()
        ],
    }


def _main(paths: Sequence[str]) -> None:
    readers, found = _readers(), []
    for path in paths:
        results: dict[str, Any] = {}
        for name, read in readers.items():
            try:
                results[name] = sorted(read(path))
            except Exception as error:
                results[name] = f"{type(error).__name__}: {error}"
        found.append(results)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    _main(sys.argv[1:])
