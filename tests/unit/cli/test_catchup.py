"""Commands about catching up against canned answers: tables, JSON, exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.command_line import invoke

from sparktxlog.cli.commands import settings_commands, status_commands

DECISION: dict[str, Any] = {
    "worker_id": "w",
    "plan": "copy",
    "reason": "copy is preferred: numbers",
    "message": "Replicating (catch up)",
    "replay": {"kind": "replay", "seconds": 700.0, "basis": "many transactions (first guess)"},
    "copy": {"kind": "copy", "seconds": 12.5, "basis": "9 bytes at 1 Mbit/s (as configured)"},
    "behind": 4000,
    "donor": "B",
}
TRANSFER: dict[str, Any] = {
    "transfer_id": "c",
    "worker_id": "w",
    "node_id": "A",
    "kind": "copy",
    "donors": ["B"],
    "from_position": 0,
    "to_position": 4000,
    "started_at": 1,
    "finished_at": 1_700_000_000_000_000,
    "estimated_s": 12.5,
    "actual_s": 11.0,
    "size_bytes": 9,
    "wire_bytes": 4,
    "reused_bytes": 0,
    "transactions": 0,
    "outcome": "done",
    "reason": "",
}


class CannedNode:
    """Stands in for NodeApi."""

    answers: dict[str, Any] = {}
    sent: list[tuple[str, str, Any]] = []

    def __init__(self, url: str, **_: Any) -> None:
        self.url = url

    def get(self, path: str, **query: Any) -> Any:
        return self.answers[path]

    def send(self, method: str, path: str, body: Any) -> Any:
        self.sent.append((method, path, body))
        return self.answers[path]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> type[CannedNode]:
    for module in (settings_commands, status_commands):
        monkeypatch.setattr(module, "NodeApi", CannedNode)
    status = {
        "node_id": "A",
        "position": 9,
        "published": 9,
        "replicas": [
            {"worker_id": "w", "node_id": "B", "verdict": "DIVERGED"},
            {"worker_id": "w", "node_id": "A", "verdict": "IN_SYNC", "position": 5},
        ],
    }
    CannedNode.sent = []
    CannedNode.answers = {
        "/v1/worker/plan": DECISION,
        "/v1/status": status,
        "/v1/transfers": [TRANSFER],
        "/v1/settings": {
            "NetSpeedBitsPerSec": {
                "value": 5,
                "origin": "default",
                "since": None,
                "configured": 5,
                "configured_by": "default",
            },
            "tx-log-max-size": {
                "value": 7,
                "origin": "set at run time",
                "since": 1_700_000_000_000_000,
                "configured": 9,
                "configured_by": "/etc/a.toml",
            },
        },
    }
    return CannedNode


@pytest.mark.parametrize(
    ("plan", "verdict", "code"),
    [
        ("up-to-date", "IN_SYNC", 3),  # the judge knows more: it is at position 5 of 9
        ("replay", "IN_SYNC", 3),
        ("copy", "EMPTY", 3),
        ("copy", "DIVERGED", 4),
        ("stop", "DIVERGED", 4),
        ("stop", "FOREIGN", 4),
    ],
)
def test_plan_tells_by_its_exit_code(
    node: type[CannedNode],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    plan: str,
    verdict: str,
    code: int,
) -> None:
    node.answers["/v1/worker/plan"] = DECISION | {"plan": plan}
    node.answers["/v1/status"]["replicas"][1]["verdict"] = verdict
    assert invoke(monkeypatch, "plan", "w", "--json") == code
    found = json.loads(capsys.readouterr().out)
    assert (found["plan"], found["verdict"]) == (plan, verdict)


@pytest.mark.parametrize(("state", "code"), [("fetching", 3), ("diverged", 4)])
def test_plan_lists_commit_tables_that_are_not_in_sync(
    node: type[CannedNode],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    state: str,
    code: int,
) -> None:
    lines = [{"name": "shop.orders", "state": state, "plan": "copy", "lag": 7, "peer": "B"}]
    lines[0]["reason"] = "they differ"
    node.answers["/v1/status"]["replicas"][1]["position"] = 9
    node.answers["/v1/worker/plan"] = DECISION | {"plan": "up-to-date"}
    node.answers["/v1/status"]["commit_tables"] = {"tables": lines, "states": {state: 1}}
    assert invoke(monkeypatch, "plan", "w", "--json") == code
    assert json.loads(capsys.readouterr().out)["commit_tables"] == lines
    assert invoke(monkeypatch, "plan", "w") == code
    assert "shop.orders" in capsys.readouterr().out


def test_plan_labels_both_estimates_as_such(
    node: type[CannedNode], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(monkeypatch, "plan") == 3
    out = capsys.readouterr().out
    assert "replay, estimated (s)" in out
    assert "copy, estimated (s)" in out
    assert "700.0" in out
    assert "12.5" in out
    assert "Why: copy is preferred: numbers" in out
    assert "measured" not in out


def test_settings_are_shown_set_and_taken_back(
    node: type[CannedNode], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (("settings",), ("settings", "show")):
        assert invoke(monkeypatch, *arguments) == 0
        out = capsys.readouterr().out
        assert "NetSpeedBitsPerSec" in out
        assert "2023-11-14 22:13:20" in out and "9, /etc/a.toml" in out
        assert invoke(monkeypatch, *arguments, "--json") == 0
        assert json.loads(capsys.readouterr().out)["NetSpeedBitsPerSec"]["origin"] == "default"
    assert node.sent == []
    assert invoke(monkeypatch, "settings", "set", "NetSpeedBitsPerSec", "5") == 0
    assert invoke(monkeypatch, "settings", "unset", "NetSpeedBitsPerSec", "--json") == 0
    assert node.sent == [
        ("PATCH", "/v1/settings", {"NetSpeedBitsPerSec": "5"}),
        ("PATCH", "/v1/settings", {"NetSpeedBitsPerSec": None}),
    ]
    assert invoke(monkeypatch, "settings", "set", "--help") == 0
    assert "Example: sparktxlog settings set" in capsys.readouterr().out


def test_transfers_keep_expected_and_measured_apart(
    node: type[CannedNode], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(monkeypatch, "transfers", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [TRANSFER]
    assert invoke(monkeypatch, "transfers") == 0
    assert "11.0" in capsys.readouterr().out
