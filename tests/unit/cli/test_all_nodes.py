"""`--all`: every node is asked, one that fails stops no other, and the exit code says so."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.support.command_line import invoke

from sparktxlog.cli.commands import settings_commands, status_commands
from sparktxlog.errors import InvalidRequestError, TransportError

ROSTER = [
    {"id": "A", "url": "http://a"},
    {"id": "B", "url": "http://gone,http://b"},
    {"id": "C", "url": "http://c"},
]
SETTINGS = {"paused": {"value": False, "origin": "default"}}
ENTRY = {
    "at": 1_700_000_000_000_000,
    "node": "A",
    "who": "operator",
    "action": "change_settings",
    "detail": "paused: false → true",
    "outcome": "done",
    "address": "10.0.0.7",
    "count": 1_200,
    "until": 1_700_000_060_000_000,
}
STATUS = {"phase": "NORMAL", "epoch": 1, "position": 9, "published": 9, "incoming_transactions": 0}


class CannedCluster:
    """Stands in for NodeApi: A and B answer, C does as the test says."""

    sent: list[tuple[str, Any]] = []
    c_fails: Exception | None = None

    def __init__(self, url: str, **_: Any) -> None:
        self.url = "http://a" if url == "http://127.0.0.1:7070" else url

    def _check(self) -> str:
        if self.url == "http://gone":
            raise TransportError("no node answers at http://gone")
        if self.url == "http://c" and self.c_fails is not None:
            raise self.c_fails
        return self.url[-1].upper()

    def get(self, path: str, **query: Any) -> Any:
        name = self._check()
        return {
            "/v1/epochs": {"roster": ROSTER},
            "/v1/settings": SETTINGS,
            "/v1/status": STATUS | {"node_id": name, "paused": False, "maintenance_until": ""},
            "/v1/audit": [ENTRY | {"node": name}],
        }[path]

    def send(self, method: str, path: str, body: Any) -> Any:
        self.sent.append((self._check(), body))
        return SETTINGS


@pytest.fixture(autouse=True)
def nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (settings_commands, status_commands):
        monkeypatch.setattr(module, "NodeApi", CannedCluster)
    monkeypatch.setattr(CannedCluster, "sent", [])
    monkeypatch.setattr(CannedCluster, "c_fails", None)
    monkeypatch.delenv("SPARKTXLOG_URL", raising=False)


def lines(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    return [line.split("\t") for line in capsys.readouterr().out.splitlines()[1:]]


def test_a_setting_is_set_at_all_nodes_and_one_that_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(monkeypatch, "settings", "set", "paused", "true", "--all") == 0
    assert sorted(CannedCluster.sent) == [(name, {"paused": "true"}) for name in "ABC"]
    assert lines(capsys) == [
        ["node", "paused", "origin"],
        *([name, "false", "default"] for name in "ABC"),
    ]
    monkeypatch.setattr(CannedCluster, "c_fails", InvalidRequestError("paused = 'x'"))
    assert invoke(monkeypatch, "settings", "unset", "paused", "--all") == 2
    head, *rows = lines(capsys)
    assert head[-1] == "failed" and [row[0] for row in rows] == ["A", "B", "C"]
    assert "paused = 'x'" in rows[2][-1] and rows[2][1] == "-"
    assert invoke(monkeypatch, "settings", "show", "--all", "--json") == 2
    a, b, c = json.loads(capsys.readouterr().out)
    assert (a["ok"], a["answer"], b["url"]) == (True, SETTINGS, "http://b")
    assert (c["ok"], c["error"]["detail"]) == (False, "paused = 'x'")


def test_states_pauses_and_audits_of_all_nodes_are_one_line_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(monkeypatch, "status", "--all") == 0
    assert [row[:2] for row in lines(capsys)[1:]] == [[name, "in sync"] for name in "ABC"]
    assert invoke(monkeypatch, "peer", "pause", "--all") == 0
    assert [row[0] for row in lines(capsys)[1:]] == ["A", "B", "C"]
    assert invoke(monkeypatch, "audit") == 0
    (row,) = lines(capsys)[1:]
    said = ["change_settings", "paused: false → true", "done"]
    assert row == ["A", "2023-11-14 22:14:20", "operator", "10.0.0.7", "1,200", *said]
    CannedCluster.sent.clear()
    assert invoke(monkeypatch, "maintenance", "begin", "--for", "30m", "--pause") == 0
    ((_, changes),) = CannedCluster.sent
    left = datetime.fromisoformat(changes["maintenance-until"]) - datetime.now(UTC)
    assert changes["paused"] and 29 < left.total_seconds() / 60 <= 30
    for wrong in ("soon", "²h", "99999999999d"):
        assert invoke(monkeypatch, "maintenance", "begin", "--for", wrong) == 2
    assert invoke(monkeypatch, "maintenance", "end", "--all") == 0
    assert CannedCluster.sent[1][1] == {"maintenance-until": None, "paused": None}
    capsys.readouterr()
    monkeypatch.setattr(CannedCluster, "c_fails", TransportError("no node answers"))
    assert invoke(monkeypatch, "audit", "--all") == 5
    assert [row[0] for row in lines(capsys)[1:]] == ["A", "B", "C"]
    assert invoke(monkeypatch, "status", "--all", "--json") == 5
    assert [one["ok"] for one in json.loads(capsys.readouterr().out)] == [True, True, False]
