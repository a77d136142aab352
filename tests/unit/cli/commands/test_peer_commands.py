"""`sparktxlog peer`: what is asked of the node, and what is shown of its answer."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.support.command_line import invoke

from sparktxlog.cli.commands import peer_commands, settings_commands

SEAT = {
    "url": "http://a",
    "weight": 1,
    "witness": False,
    "follower": False,
    "incarnation": 1,
    "member": True,
}
LOSS = {"node_id": "B", "last_shown": 9, "held_here": 7, "missing": 2, "unheard_s": 3.5}
EPOCHS: dict[str, Any] = {
    "phase": "SUSPECT",
    "log_id": "l",
    "epoch": 3,
    "suspects": ["B"],
    "duty": "A",
    "roster": [{"id": "A", **SEAT}, {"id": "B", **SEAT, "url": "http://b,http://b2"}],
    "reachability": {
        "linked": {"A": {"B": False}, "C": {"A": True, "B": True}},
        "differing": ["B"],
        "addresses": {
            "A": {"B": {"http://b": True, "http://b2": False}},
            "C": {"B": {"http://b": True, "http://b2": True}, "A": {"http://a2": True}},
        },
        "differing_addresses": {"B": ["http://b2"]},
    },
    "force": {"confirm": "A 3", "may_be_lost": [LOSS], "linked_voters": ["C"]},
}


class CannedNode:
    """Stands in for NodeApi and notes what it is asked."""

    asked: list[tuple[str, str, Any]] = []

    def __init__(self, url: str, **_: Any) -> None:
        self.url = url

    def get(self, path: str, **query: Any) -> Any:
        if path == "/v1/status":
            paused = bool(self.asked) and self.asked[-1][2] == {"paused": True}
            return {"node_id": "A", "phase": "NORMAL", "paused": paused, "position": 1_234}
        assert path == "/v1/epochs"
        return EPOCHS

    def send(self, method: str, path: str, body: Any) -> Any:
        self.asked.append((method, path, body))
        return EPOCHS | ({"may_be_lost": [LOSS]} if path == "/v1/force" else {})


def requests_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[tuple[str, str, Any]]:
    CannedNode.asked = []
    for module in (peer_commands, settings_commands):
        monkeypatch.setattr(module, "NodeApi", CannedNode)
    assert invoke(monkeypatch, "peer", *arguments) == 0
    return CannedNode.asked


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["list"], []),
        (
            ["add", "D", "http://d,http://d2", "--weight", "2", "--witness"],
            [
                (
                    "POST",
                    "/v1/peers",
                    {"id": "D", "url": "http://d,http://d2", "weight": 2, "witness": True},
                )
            ],
        ),
        (
            ["add", "F", "http://f", "--follower"],
            [
                (
                    "POST",
                    "/v1/peers",
                    {"id": "F", "url": "http://f", "witness": False, "follower": True},
                )
            ],
        ),
        (["set", "F", "--role", "master"], [("PATCH", "/v1/peers/F", {"follower": False})]),
        (
            ["set", "F", "--role", "follower", "--weight", "0"],
            [("PATCH", "/v1/peers/F", {"weight": 0, "follower": True})],
        ),
        (["remove", "D"], [("DELETE", "/v1/peers/D", {})]),
        (
            ["replace", "C", "D", "http://d,http://d2"],
            [("POST", "/v1/peers/C/replace", {"id": "D", "url": "http://d,http://d2"})],
        ),
        (
            ["replace", "C", "W", "http://w", "--weight", "0", "--role", "witness"],
            [
                (
                    "POST",
                    "/v1/peers/C/replace",
                    {
                        "id": "W",
                        "url": "http://w",
                        "weight": 0,
                        "witness": True,
                        "follower": False,
                    },
                )
            ],
        ),
        (
            ["replace", "W", "C", "http://c", "--role", "master"],
            [
                (
                    "POST",
                    "/v1/peers/W/replace",
                    {"id": "C", "url": "http://c", "witness": False, "follower": False},
                )
            ],
        ),
        (["set", "B", "--weight", "0"], [("PATCH", "/v1/peers/B", {"weight": 0})]),
        (["set-quorum", "majority"], [("POST", "/v1/quorum", {"rule": "majority"})]),
        (["promote", "B"], [("POST", "/v1/peers/B/promote", {})]),
        (["demote", "B"], [("POST", "/v1/peers/B/demote", {})]),
        (["force", "--confirm", "A 3"], [("POST", "/v1/force", {"confirm": "A 3"})]),
        (
            ["force", "--confirm", "A 3", "--though-linked"],
            [("POST", "/v1/force", {"confirm": "A 3", "though_linked": True})],
        ),
    ],
)
def test_each_command_asks_for_its_change(
    arguments: list[str],
    asked: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert requests_of(monkeypatch, *arguments) == asked
    text = capsys.readouterr().out
    assert "l, epoch 3: this node is SUSPECT" in text
    assert "Nodes disagree about B" in text
    assert requests_of(monkeypatch, *arguments, "--json") == asked
    assert json.loads(capsys.readouterr().out)["epoch"] == 3


def test_the_matrix_of_addresses_is_shown_where_a_node_has_several(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requests_of(monkeypatch, "list")
    text = capsys.readouterr().out
    table = text.partition("which addresses answer")[2].split("The nodes")[0]
    cells = [re.split(r"[\s│┃]+", line.strip(" │┃")) for line in table.splitlines()]
    assert ["node", "address", "A", "C"] in cells
    rows = [row for row in cells if len(row) == 4 and row[1].startswith("http")]
    assert rows == [
        ["A", "http://a2", "-", "yes"],
        ["B", "http://b", "yes", "yes"],
        ["B", "http://b2", "no", "yes"],
    ]
    assert "Nodes disagree about http://b2" in text
    lacking: tuple[dict[str, Any], ...] = ({}, {"addresses": {}, "differing_addresses": {}})
    for none in lacking:
        reachability = {"linked": EPOCHS["reachability"]["linked"], "differing": [], **none}
        monkeypatch.setitem(EPOCHS, "reachability", reachability)
        requests_of(monkeypatch, "list")
        assert "which addresses" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("act", "paused", "text"),
    [
        ("pause", True, "A (NORMAL) takes no transactions; its queue ends at 1,234."),
        ("continue", False, "A (NORMAL) takes transactions; its queue ends at 1,234."),
    ],
)
def test_a_node_is_paused_and_says_its_position(
    act: str,
    paused: bool,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = [("PATCH", "/v1/settings", {"paused": paused})]
    assert requests_of(monkeypatch, act) == asked
    assert capsys.readouterr().out.strip() == text
    assert requests_of(monkeypatch, act, "--json") == asked
    shown = {"node_id": "A", "phase": "NORMAL", "paused": paused, "position": 1_234}
    assert json.loads(capsys.readouterr().out) == shown


def test_force_shows_what_may_be_lost_before_it_asks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("typer.prompt", lambda text, **_: text.split("'")[1])
    assert requests_of(monkeypatch, "force") == [("POST", "/v1/force", {"confirm": "A 3"})]
    shown = capsys.readouterr().err
    assert "B, last heard 3.5 s ago" in shown
    assert "it reported that it accepted 9 transactions: 7 are here, 2 are missing" in shown
    assert "C is a voter and linked" in shown


def test_what_nobody_showed_is_not_called_zero(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = LOSS | {"last_shown": None, "missing": None, "unheard_s": None}
    monkeypatch.setitem(EPOCHS["force"], "may_be_lost", [unknown])
    monkeypatch.setattr("typer.prompt", lambda text, **_: text.split("'")[1])
    requests_of(monkeypatch, "force")
    assert capsys.readouterr().err.splitlines()[-1] == (
        "B, never heard: 7 transactions that it accepted are here; what else it accepted is "
        "unknown here."
    )


def test_nothing_to_set_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert invoke(monkeypatch, "peer", "set", "B") != 0
    assert invoke(monkeypatch, "peer", "set", "B", "--role", "witness") != 0
