"""`sparktxlog epochs`: what is asked of the node, and what is shown of its answer."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest
from tests.support.command_line import invoke

from sparktxlog.cli.commands import peer_commands, status_commands

EPOCHS: list[dict[str, Any]] = [
    {
        "log_id": "l",
        "epoch": 2,
        "members": ["A", "B"],
        "quorum": 2,
        "quorum_rule": "default",
        "roster": [],
        "begins_after": {"position": 1234, "chain_hash": "ab"},
        "joined": [],
        "left": ["C", "D"],
        "changed": [],
        "phase": "NORMAL",
        "taken_up_at": 1_700_000_000_000_000,
    },
]


class CannedNode:
    """Stands in for NodeApi and notes what it is asked."""

    asked: list[tuple[str, Any]] = []

    def __init__(self, url: str, **_: Any) -> None:
        self.url = url

    def get(self, path: str, **query: Any) -> Any:
        self.asked.append((path, query))
        return EPOCHS

    def send(self, method: str, path: str, body: Any) -> Any:
        self.asked.append((f"{method} {path}", body))
        run = {"digest": "ab" * 32, "origin": "A", "seq": 7, "transactions": 1_200}
        return {"epoch": 3, "voided": run}


def called(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    CannedNode.asked = []
    for module in (peer_commands, status_commands):
        monkeypatch.setattr(module, "NodeApi", CannedNode)
    given = arguments if arguments[:1] == ("void",) else ("epochs", *arguments)
    return invoke(monkeypatch, *given)


def test_epochs_are_shown_with_what_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(monkeypatch) == 0
    assert CannedNode.asked == [("/v1/epochs/history", {"limit": 20})]
    text = " ".join(capsys.readouterr().out.split())
    for wanted in ("2023-11-14", "A, B", "C, D", "1234", "2 (default)", "NORMAL"):
        assert wanted in text


def test_epochs_as_json_are_the_node_s_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(monkeypatch, "--limit", "3", "--json") == 0
    assert CannedNode.asked == [("/v1/epochs/history", {"limit": 3})]
    assert json.loads(capsys.readouterr().out) == EPOCHS


def test_wrong_limits_are_a_wrong_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(monkeypatch, "--limit", "0") == 2
    assert called(monkeypatch, "--help") == 0
    assert "Example: sparktxlog epochs --limit 5" in capsys.readouterr().out


def test_a_run_is_voided_once_somebody_says_yes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("POST /v1/void", {"run": "abababab"})
    for answer in (False, True):
        monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" if answer else "n\n"))
        assert called(monkeypatch, "void", "abababab") == (0 if answer else 1)
        assert CannedNode.asked == ([asked] if answer else [])
    assert "Run abababababababab of A is void in epoch 3: 1,200 transactions" in (
        capsys.readouterr().out
    )
    more = ("void", "abababab", "--without", "C", "--yes", "--json")
    assert called(monkeypatch, *more) == 0
    assert CannedNode.asked == [("POST /v1/void", {"run": "abababab", "without": ["C"]})]
    assert json.loads(capsys.readouterr().out)["voided"]["seq"] == 7
