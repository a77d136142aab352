"""Steps of a session that take long are shown, short ones are not."""

from __future__ import annotations

import sys
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from sparktxlog.api import long_steps
from sparktxlog.api.long_steps import long_step


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_steps, "SHOWN_AFTER_S", 0.0)
    monkeypatch.setattr(long_steps._Lines, "period_s", 0.01)
    monkeypatch.setattr(long_steps._Terminal, "period_s", 0.01)
    monkeypatch.setattr(long_steps._Notebook, "period_s", 0.01)
    monkeypatch.delenv(long_steps.VARIABLE, raising=False)


class Seen:
    """Ends a step once its detail was asked for twice, so that it was shown."""

    def __init__(self) -> None:
        self.times, self.twice = 0, Event()

    def detail(self) -> str:
        self.times += 1
        if self.times > 1:
            self.twice.set()
        return f"part {self.times}"


def run(what: str = "staging rows for orders") -> None:
    seen = Seen()
    with long_step(what, seen.detail):
        with long_step("what is within it"):
            pass
        assert seen.twice.wait(30)


def test_without_a_terminal_there_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    run()
    out, err = capsys.readouterr()
    first, *_, last = err.splitlines()
    assert out == "" and "within" not in err
    assert first == "staging rows for orders, part 1: 0 s"
    assert last.startswith("staging rows for orders: took 0.")


def test_a_terminal_has_one_line_that_goes_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run()
    err = capsys.readouterr().err
    assert "\n" not in err and "part 2" in err and err.endswith("\r\x1b[2K")


def test_a_notebook_has_one_output_that_is_updated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, str]] = []

    class ZMQShell:
        pass

    class Handle:
        def update(self, data: dict[str, str], raw: bool) -> None:
            shown.append(("update", data["text/plain"]))

    def display(data: dict[str, str], **_: Any) -> Handle:
        shown.append(("new", data["text/plain"]))
        return Handle()

    shell = SimpleNamespace(get_ipython=ZMQShell, display=SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    run()
    assert [kind for kind, _ in shown].count("new") == 1 and shown[0][0] == "new"
    assert shown[-1][1].startswith("staging rows for orders: took")
    assert capsys.readouterr().err == ""


def test_short_steps_and_those_turned_off_say_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_steps, "SHOWN_AFTER_S", 60.0)
    with long_step("short"):
        pass
    monkeypatch.setattr(long_steps, "SHOWN_AFTER_S", 0.0)
    monkeypatch.setenv(long_steps.VARIABLE, "off")
    with long_step("off"):
        pass
    assert capsys.readouterr().err == ""
