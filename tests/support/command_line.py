"""Runs commands of `sparktxlog`, and jobs, in the process of a test."""

from __future__ import annotations

import runpy
import sys
from functools import cache
from pathlib import Path

import pytest
import typer.main

from sparktxlog.cli.command_line import run

_JOBS = Path(__file__).parents[2] / "jobs"
#: Typer makes all commands of an application anew for each call: longer than most calls take.
_made_once = cache(typer.main.get_command)


def invoke(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command line as a shell does; return the exit code."""
    monkeypatch.setattr(typer.main, "get_command", _made_once)
    monkeypatch.setattr(sys, "argv", ["sparktxlog", *arguments])
    with pytest.raises(SystemExit) as caught:
        run()
    return int(caught.value.code or 0)


def run_job(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> int:
    """Run `jobs/NAME.py` as `spark-submit.sh` does; return the exit code."""
    path = str(_JOBS / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [path, *arguments])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(path, run_name="__main__")
    return int(caught.value.code or 0)
