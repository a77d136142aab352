"""The examples for schedulers in conf/ can be read, and start what exists."""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CONF = ROOT / "conf"
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def jobs_in(text: str) -> set[str]:
    return set(re.findall(r"jobs/(\w+)\.py", text))


def test_cron_lines_have_five_times_a_user_and_a_command() -> None:
    text = (CONF / "cron.example").read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) == 2
    for line in lines:
        *times, user, command = line.split(None, 6)
        for value, (low, high) in zip(times, _BOUNDS, strict=True):
            assert re.fullmatch(r"\*(/\d+)?|\d+", value), line
            assert all(low <= int(number) <= high for number in re.findall(r"\d+", value)), line
        assert re.fullmatch(r"[a-z]+", user)
        assert "maintain" in command
        assert "%" not in command, "cron reads % as the end of a line"
    assert jobs_in(text) == {"maintain"}


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((CONF / name).read_text())
    return parser


def test_the_systemd_units_belong_together() -> None:
    service, timer = unit("sparktxlog-maintain.service"), unit("sparktxlog-maintain.timer")
    assert service["Service"]["Type"] == "oneshot"
    assert jobs_in(service["Service"]["ExecStart"]) == {"maintain"}
    assert timer["Timer"]["Unit"] == "sparktxlog-maintain.service"
    assert re.fullmatch(r"\*-\*-\* \d\d:\d\d:\d\d", timer["Timer"]["OnCalendar"])
    assert timer["Install"]["WantedBy"] == "timers.target"


def test_the_airflow_dag_is_python_and_runs_jobs_that_exist() -> None:
    tree = ast.parse((CONF / "airflow_dag.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = {
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "job"
        and isinstance(call.args[0], ast.Constant)
    }  # fmt: skip
    assert named == {"apply", "maintain"}
    assert all((ROOT / "jobs" / f"{name}.py").is_file() for name in named)


@pytest.mark.parametrize("name", ["cron.example", "airflow_dag.py", "sparktxlog-maintain.service"])
def test_options_of_the_examples_are_the_jobs(name: str) -> None:
    options = set(re.findall(r"(--[a-z-]+)", (CONF / name).read_text()))
    known = set(re.findall(r'"(--[a-z-]+)"', (ROOT / "jobs" / "maintain.py").read_text()))
    known |= {"--json", "--url", "--once", "--now"}
    assert options <= known
