"""The examples for schedulers in conf/ can be read, and start what exists."""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path

import pytest

from sparktxlog.api.jobs.job_options import JOBS
from sparktxlog.cli.common_options import ExitCode, exit_code_of
from sparktxlog.errors import CertificateTimeError, ConfigError

ROOT = Path(__file__).parents[3]
CONF = ROOT / "conf"
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def jobs_in(text: str) -> set[str]:
    return set(re.findall(r"jobs/(\w+)\.py", text))


def test_cron_lines_have_five_times_a_user_and_a_command() -> None:
    text = (CONF / "cron.example").read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert lines.pop(0).startswith("SPARKTXLOG_IVY=")
    assert len(lines) == 5
    for line in lines:
        *times, user, command = line.split(None, 6)
        for value, (low, high) in zip(times, _BOUNDS, strict=True):
            assert re.fullmatch(r"\*(/\d+)?|\d+", value), line
            assert all(low <= int(number) <= high for number in re.findall(r"\d+", value)), line
        assert re.fullmatch(r"[a-z]+", user)
        assert re.search(r"/(maintain|catch_up|verify|replicate)\.log 2>&1$", command)
        assert "%" not in command, "cron reads % as the end of a line"
    assert jobs_in(text) == {"catch_up", "maintain", "replicate", "verify"}


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


@pytest.mark.parametrize("name", ["catch-up", "replicate", "verify"])
def test_timers_start_jobs_that_exist(name: str) -> None:
    service, timer = unit("sparktxlog-job@.service"), unit(f"sparktxlog-{name}.timer")
    assert service["Service"]["Type"] == "oneshot"
    assert "jobs/%i.py" in service["Service"]["ExecStart"]
    started = re.fullmatch(r"sparktxlog-job@(\w+)\.service", timer["Timer"]["Unit"])
    assert started is not None and (ROOT / "jobs" / f"{started[1]}.py").is_file()
    assert started[1] == name.replace("-", "_")
    assert re.fullmatch(
        r"(Sun )?\*-\*-(\*|\d\d) (\*:\d\d/\d\d|\d\d:\d\d):\d\d", timer["Timer"]["OnCalendar"]
    )
    assert timer["Install"]["WantedBy"] == "timers.target"


def test_a_following_worker_is_started_again_when_it_fails() -> None:
    service = unit("sparktxlog-apply.service")["Service"]
    assert (service["Type"], service["Restart"]) == ("simple", "on-failure")
    assert service["ExecStart"].split("/")[-1].split() == [
        "sparktxlog",
        "apply",
        "--follow",
        "--json",
    ]
    # Usage, diverged, bad configuration: nobody is helped by a loop.
    codes = {int(ExitCode.USAGE), int(ExitCode.DIVERGED), int(ExitCode.BAD_CONFIG)}
    assert {int(code) for code in service["RestartPreventExitStatus"].split()} == codes
    assert service["KillMode"] == "mixed"


def test_a_node_whose_certificate_ended_is_started_again_until_there_is_a_new_one() -> None:
    service = unit("sparktxlog-node.service")["Service"]
    assert service["Restart"] == "on-failure"
    ends = {int(code) for code in service["RestartPreventExitStatus"].split()}
    assert exit_code_of(ConfigError("wrong")) in ends
    assert exit_code_of(CertificateTimeError("has expired")) not in ends | {0}


def test_the_airflow_operator_knows_every_job() -> None:
    path = ROOT / "integrations" / "airflow" / "sparktxlog_airflow" / "site_operators.py"
    _, _, listed = path.read_text().partition("\nJOBS = (")
    known = set(re.findall(r'"(\w+)"', listed.partition(")")[0]))
    assert known == {path.stem for path in (ROOT / "jobs").glob("*.py")}


def test_the_airflow_dag_is_python_and_runs_jobs_that_exist() -> None:
    tree = ast.parse((CONF / "airflow_dag.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = {
        str(call.args[0].value)
        for call in calls
        if isinstance(call.func, ast.Name)
        and call.func.id == "job"
        and isinstance(call.args[0], ast.Constant)
    }
    assert named == {"apply", "catch_up", "maintain", "replicate", "verify"}
    assert all((ROOT / "jobs" / f"{name}.py").is_file() for name in named)


@pytest.mark.parametrize(
    "name",
    sorted(path.name for path in CONF.iterdir() if path.suffix in (".example", ".py", ".service")),
)
def test_options_of_the_examples_are_the_jobs(name: str) -> None:
    text = (CONF / name).read_text()
    known = {option.flag for found in JOBS.values() for option in found.options}
    for job in ("maintain", "verify"):
        source = (ROOT / "jobs" / f"{job}.py").read_text()
        known |= set(re.findall(r'"(--[a-z-]+)"', source))
    known |= {"--json", "--url", "--now", "--config"}
    assert set(re.findall(r"(?<![\w-])(--[a-z-]+)", text)) <= known


def test_the_page_names_every_example() -> None:
    page = (ROOT / "docs" / "jobs.md").read_text()
    examples = [path.name for path in CONF.iterdir() if path.suffix in (".service", ".timer")]
    assert [
        name for name in (*examples, "cron.example", "airflow_dag.py") if name not in page
    ] == []
