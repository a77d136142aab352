"""What `sparktxlog demo` refuses, how it ends, and what it leaves."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest
from tests.support.command_line import invoke

from sparktxlog.cli.demo import demo_command
from sparktxlog.cli.demo.demo_sites import free_port


def test_a_directory_with_files_is_refused_and_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine").touch()
    assert invoke(monkeypatch, "demo", "--dir", str(tmp_path), "--json") == 6
    problem = json.loads(capsys.readouterr().out)
    assert problem["title"] == "config" and problem["definite"]
    assert problem["fields"] == {"key": "dir", "value": str(tmp_path)}
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert invoke(monkeypatch, "demo", "--dir", str(tmp_path / "mine")) == 6
    assert "is no directory" in capsys.readouterr().err


@pytest.mark.parametrize("number", [0, 1])
def test_a_port_in_use_is_named_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    number: int,
) -> None:
    port = free_port(2)
    with socket.create_server(("127.0.0.1", port + number)):
        made = tmp_path / "demo"
        assert invoke(monkeypatch, "demo", "--dir", str(made), "--port", str(port)) == 6
    said = capsys.readouterr().err
    assert f"port {port + number} of 127.0.0.1: Address already in use" in said
    assert "--port" in said and not made.exists()


def test_a_kill_ends_it_as_ctrl_c_does() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with demo_command._ended_by_signals(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(("keep", "was_there"), [(True, True), (False, True), (False, False)])
def test_what_was_there_before_stays(tmp_path: Path, keep: bool, was_there: bool) -> None:
    root = tmp_path / "demo"
    if was_there:
        root.mkdir()
    with demo_command._place(root, keep=keep) as place:
        (place / "data").mkdir()
        (place / "a.toml").touch()
    assert root.exists() == was_there
    assert keep == (was_there and len(list(root.iterdir())) == 2)
