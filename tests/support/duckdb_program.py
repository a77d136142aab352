"""Runs statements by DuckDB with its extension for Unity Catalog.

The extension wants an older DuckDB than the project has, so this is a program: `python
duckdb_program.py`, pairs of database and statement as JSON on standard input; rows or the error of
each on standard output.  The extensions are loaded from where PyPI's packages have them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.other_readers import packages

#: The extensions, in the order in which they need each other.
_EXTENSIONS = ("httpfs", "delta", "unity_catalog")


def run(statements: Sequence[tuple[str, str]]) -> list[Any]:
    """Return for each statement of a database the rows, or `Class: message` of the error.

    The test is skipped where the extensions are not installed; a skip fails a run with CI=true.
    """
    root = packages()
    if not all((root / f"duckdb_extension_{name}").exists() for name in _EXTENSIONS):
        pytest.skip("DuckDB's extensions are not installed: make test does it")
    environ = os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{Path(__file__).parents[2]}"}
    done = subprocess.run(
        [sys.executable, "-P", __file__],
        input=json.dumps(statements),
        capture_output=True,
        text=True,
        env=environ,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[Any] = json.loads(done.stdout)
    return found


def _database() -> Any:
    import duckdb

    off = {"autoload_known_extensions": "false", "autoinstall_known_extensions": "false"}
    database = duckdb.connect(config=off)
    for name in _EXTENSIONS:
        package = __import__(f"duckdb_extension_{name}")
        (extension,) = Path(package.__path__[0]).rglob("*.duckdb_extension")
        database.execute(f"LOAD '{extension}'")
    return database


def _main() -> None:
    databases: dict[str, Any] = {}
    found: list[Any] = []
    for name, statement in json.load(sys.stdin):
        if name not in databases:
            databases[name] = _database()
        try:
            found.append(databases[name].execute(statement).fetchall())
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    json.dump(found, sys.stdout, default=str)


if __name__ == "__main__":
    _main()
