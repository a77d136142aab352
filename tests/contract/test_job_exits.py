"""Exit codes of the worker's jobs where no Spark is needed to know them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import typer
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from tests.support.command_line import invoke, run_job

from sparktxlog.api import session
from sparktxlog.api.jobs import job
from sparktxlog.api.jobs.job_options import JOBS, exit_code_of
from sparktxlog.cli.command_line import app
from sparktxlog.errors import (
    ApplyError,
    CommitStateUnknownError,
    ConfigError,
    DivergedError,
    InvalidRequestError,
    LockedError,
    NotAppliedError,
    TransportError,
    TxLogError,
    UnauthorizedError,
)
from sparktxlog.worker.replica.applier import ApplyOutcome
from sparktxlog.worker.replica.source import NodeInfo

ARGUMENTS = {
    "adopt": ["orders", "/data/orders", "--as", "row-table"],
    "follow": ["orders", "/data/orders"],
    "repair": ["orders"],
} | {name: [] for name in ("apply", "catch_up", "maintain", "replicate", "verify")}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_absent_node_is_told_before_spark_starts(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = [*ARGUMENTS[name], "--url", "http://127.0.0.1:9", "--json"]
    assert run_job(monkeypatch, name, *argv) == job.UNREACHABLE == 5
    out, err = capfd.readouterr()
    assert "[unreachable]" in err
    (line,) = out.splitlines()
    found = json.loads(line)
    assert found["exit_code"] == 5 and found["error"]["title"] == "unreachable"


def test_wrong_arguments_and_urls(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_job(monkeypatch, "apply", "--once", "--follow") == job.USAGE == 2
    assert run_job(monkeypatch, "verify", "--since", "7") == job.USAGE
    assert run_job(monkeypatch, "adopt", *ARGUMENTS["adopt"], "--files", "move") == job.USAGE
    assert "--files is of commit tables" in capfd.readouterr().err
    assert run_job(monkeypatch, "apply", "--url", "nowhere") == job.BAD_CONFIG == 6
    assert "[config]" in capfd.readouterr().err
    assert run_job(monkeypatch, "apply", "--ca-file", "/no/such.pem") == job.BAD_CONFIG


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 6),
        (DivergedError("x"), 4),
        (NotAppliedError("x"), 3),
        (CommitStateUnknownError("x"), 3),
        (InvalidRequestError("x"), 2),
        (TransportError("x"), 5),
        (UnauthorizedError("x"), 5),
        (ApplyError("x"), 1),
        (LockedError("x"), 1),
    ],
)
def test_errors_have_exit_codes(error: TxLogError, code: int) -> None:
    assert exit_code_of(error) == code


def test_outcomes_have_exit_codes() -> None:
    outcome = ApplyOutcome(position=5, published=9)
    assert job.code_of_outcome(outcome, 5) == 0
    assert job.code_of_outcome(outcome, 6) == 3
    stopped = ApplyOutcome(position=5, published=9, stopped="the node says so")
    diverged = ApplyOutcome(position=5, published=9, diverged={"t": "why"})
    assert {job.code_of_outcome(found, 6) for found in (stopped, diverged)} == {4}


@pytest.mark.parametrize("name", JOBS)
def test_a_command_takes_the_options_of_its_job(name: str) -> None:
    command = typer.main.get_command(app)
    for word in (*filter(None, [JOBS[name].group]), name):
        command = command.commands[word]  # type: ignore[attr-defined]
    named = [item for item in command.params if item.param_type_name == "option"]
    taken = {flag: item for item in named for flag in item.opts}
    options = [option for option in JOBS[name].options if option.flag.startswith("--")]
    expected = {option.flag for option in options} | {"--url", "--ca-file", "--json"}
    assert set(taken) - {"--help", "-h"} == expected
    for option in options:
        assert taken[option.flag].help == option.help
        assert (taken[option.flag].default or None) == (option.default or None)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--once", "--follow"),
        ("--follow", "--at-most", "7"),
        ("--at-most", "0"),
        ("--at-most", "7", "--at-least", "8"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_job(monkeypatch, "apply", *arguments) == job.USAGE
    assert "exclude" in (said := capsys.readouterr().err) or "must be 1 or more" in said


class NodeWithoutWindow:
    """Stands in for HttpLogSource: a node whose maintenance window is closed, or open."""

    open = False

    def __init__(self, url: str, token: str | None, **_: Any) -> None:
        self.closed = False

    def info(self) -> SimpleNamespace:
        return SimpleNamespace(maintenance_open=self.open)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("name", ["maintain", "verify", "replicate"])
def test_upkeep_outside_a_window_ends_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def work(context: job.JobContext) -> tuple[int, dict[str, Any]]:
        ran.append(name)
        return job.OK, {}

    monkeypatch.setattr(job, "HttpLogSource", NodeWithoutWindow)
    monkeypatch.setattr(job, "work_of", lambda _: work)
    assert run_job(monkeypatch, name, "--in-window", "--json") == job.LAGGING == 3
    out, err = capfd.readouterr()
    (line,) = out.splitlines()
    found = json.loads(line)
    assert (found["exit_code"], found["error"]["title"], ran) == (3, "outside-window", [])
    assert "no maintenance window of the node is open" in err
    assert "Without --in-window the job runs at any time" in err
    # Without the option, or while a window is open, it runs.
    assert run_job(monkeypatch, name, "--json") == job.OK
    monkeypatch.setattr(NodeWithoutWindow, "open", True)
    assert run_job(monkeypatch, name, "--in-window", "--json") == job.OK
    assert ran == [name, name]


def test_a_command_ends_as_its_job_does(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    given = ("--url", "http://127.0.0.1:9", "--json")
    assert run_job(monkeypatch, "apply", *given) == 5
    by_job = json.loads(capfd.readouterr().out)
    assert invoke(monkeypatch, "apply", *given) == 5
    assert json.loads(capfd.readouterr().out) == by_job


def test_spark_that_does_not_start_ends_in_a_line_of_json(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Node:
        def info(self) -> NodeInfo:
            return NodeInfo(
                node_id="A", log_id="l", payload_root="/p", lake_root="/l", signature_interval=9
            )

        def close(self) -> None: ...

    def get_or_create(_: object) -> None:
        raise Py4JError("Could not parse Master URL: 'moon'")

    monkeypatch.setattr(job, "HttpLogSource", lambda *_, **__: Node())
    monkeypatch.setattr(session, "resolved_jars", lambda *_: "")
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", get_or_create)
    assert run_job(monkeypatch, "apply", "--master", "moon", "--json") == job.ERROR
    out, err = capfd.readouterr()
    found = json.loads(out)
    assert found["exit_code"] == 1 and found["error"]["title"] == "missing-dependency"
    assert "Spark did not start with master moon" in err


def test_a_hook_is_told_of_jobs_and_cannot_fail_them(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    heard: list[object] = []

    def watch(name: str, arguments: argparse.Namespace) -> Callable[[int, dict[str, Any]], None]:
        heard.append((name, arguments.url))
        return lambda code, result: heard.append((code, result["error"]["title"]))

    module = ModuleType("hook_of_a_test")
    module.watch = watch  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    url = "http://127.0.0.1:9"
    monkeypatch.setenv(job.HOOK_VARIABLE, "hook_of_a_test:watch")
    assert run_job(monkeypatch, "apply", "--url", url) == job.UNREACHABLE
    assert heard == [("apply", url), (5, "unreachable")]
    for wrong, said in (("hook_of_a_test:gone", "no attribute"), ("no_such_hook:f", "No module")):
        monkeypatch.setenv(job.HOOK_VARIABLE, wrong)
        assert run_job(monkeypatch, "apply", "--url", url) == job.UNREACHABLE
        assert f"{job.HOOK_VARIABLE}={wrong}: " in (err := capfd.readouterr().err) and said in err


def test_a_jobs_session_has_the_stores_of_its_option_and_of_its_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[list[str]] = []
    made = lambda *_, stores, **__: asked.append(stores) or SimpleNamespace()
    monkeypatch.setattr(session, "build_session", made)
    for arguments in (
        argparse.Namespace(master=None, stores="s3,azure", input="gs://bucket/rows"),
        argparse.Namespace(master=None, stores=None, input="/data/rows"),
        argparse.Namespace(master=None),
    ):
        assert job.JobContext(arguments=arguments).spark
    assert asked == [["s3,azure", "gs://bucket/rows"], ["/data/rows"], []]
    assert [option.flag for option in JOBS["apply"].options if "stores" in option.flag] == [
        "--stores"
    ]
