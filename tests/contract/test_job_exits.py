"""Exit codes of the worker's jobs where no Spark is needed to know them (architecture §7)."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from sparktxlog.api import job
from sparktxlog.errors import (
    ApplyError,
    ConfigError,
    DivergedError,
    LockedError,
    NotAppliedError,
    TransportError,
    TxLogError,
    UnauthorizedError,
)

JOBS = Path(__file__).parents[2] / "jobs"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"job_{name}", JOBS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["apply", "maintain", "verify"])
def test_an_absent_node_is_told_before_spark_starts(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert load(name).main(["--url", "http://127.0.0.1:9", "--json"]) == job.UNREACHABLE == 5
    out, err = capfd.readouterr()
    assert "[transport]" in err
    (line,) = out.splitlines()
    found = json.loads(line)
    assert found["exit_code"] == 5 and found["error"]["title"] == "transport"


def test_wrong_arguments_and_urls(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load("apply").main(["--once", "--follow"])
    assert caught.value.code == job.USAGE == 2
    assert load("apply").main(["--url", "nowhere"]) == job.BAD_CONFIG == 6
    assert "[config]" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 6),
        (DivergedError("x"), 4),
        (NotAppliedError("x"), 3),
        (TransportError("x"), 5),
        (UnauthorizedError("x"), 5),
        (ApplyError("x"), 1),
        (LockedError("x"), 1),
    ],
)
def test_errors_have_exit_codes(error: TxLogError, code: int) -> None:
    assert job.exit_code(error) == code


def test_outcomes_have_exit_codes() -> None:
    module = load("apply")
    outcome = module.ApplyOutcome(position=5, published=9)
    assert module.exit_code(outcome, 5) == 0
    assert module.exit_code(outcome, 6) == 3
    stopped = module.ApplyOutcome(position=5, published=9, stopped="the node says so")
    diverged = module.ApplyOutcome(position=5, published=9, diverged={"t": "why"})
    assert {module.exit_code(found, 6) for found in (stopped, diverged)} == {4}
