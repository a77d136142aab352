"""Programs that check packages, where `make test-packages` puts them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

_VENV = Path(__file__).parents[2] / ".venv"
#: hadolint, kubernetes-validate, check-jsonschema.
_CHECKERS = Path(os.environ.get("SPARKTXLOG_TEST_CHECKERS", _VENV / "test-packages"))
#: Built from its source by Go.
_HELM = Path(os.environ.get("SPARKTXLOG_TEST_HELM", _VENV / "test-helm" / "helm"))
#: Airflow, Dagster and the client of OpenLineage, in an environment of their own.
_ORCHESTRATION = Path(
    os.environ.get("SPARKTXLOG_TEST_ORCHESTRATION", _VENV / "test-orchestration" / "bin" / "python")
)

#: dbt-core and dbt-spark, in an environment of their own, with .venv's PySpark.
_DBT = Path(os.environ.get("SPARKTXLOG_TEST_DBT", _VENV / "test-dbt" / "bin" / "python"))


def there(path: Path) -> Path:
    """Return the path; skip the test if nothing is there, which fails a run with CI=true."""
    if not path.exists():
        pytest.skip(f"{path.name} is not installed: make test-packages does it")
    return path


def checker(name: str) -> str:
    """Return a program of the checkers."""
    return str(there(_CHECKERS / "bin" / name))


def check(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a checker that is a Python module."""
    environ = os.environ | {"PYTHONPATH": str(there(_CHECKERS))}
    return _run([sys.executable, "-m", module, *arguments], environ)


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Helm; one that Go built does not know of which Kubernetes it is."""
    return _run([str(there(_HELM)), *arguments, "--kube-version", "1.33.0"], dict(os.environ))


def orchestration_python() -> str:
    """Return the interpreter that has Airflow, Dagster and OpenLineage's client."""
    return str(there(_ORCHESTRATION))


def dbt_python() -> str:
    """Return the interpreter that has dbt and dbt-spark."""
    return str(there(_DBT))


def system_program(name: str) -> str:
    """Return a program of the system; skip the test where there is none."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def _run(command: Sequence[str], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, check=False, timeout=120
    )
