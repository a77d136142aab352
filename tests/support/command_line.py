"""Runs commands of `sparktxlog` in the process of a test."""

from __future__ import annotations

import sys

import pytest

from sparktxlog.cli.command_line import run


def invoke(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command line as a shell does; return the exit code."""
    monkeypatch.setattr(sys, "argv", ["sparktxlog", *arguments])
    with pytest.raises(SystemExit) as caught:
        run()
    return int(caught.value.code or 0)
