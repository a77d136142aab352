"""`--dry-run`: commands that remove or reject say what would go, and send nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import invoke

from sparktxlog.api.nodes import Nodes
from sparktxlog.cli.commands import peer_commands, table_commands
from sparktxlog.cli.dry_runs import removal_plan, void_plan
from sparktxlog.errors import InvalidRequestError, NotFoundError
from sparktxlog.model.tables.table_kind import TableDescription, TableKind

HAS_DATA = {"witness": False, "follower": False}
SEATS = [
    {"id": "A", "url": "http://a", "weight": 2, "member": True, **HAS_DATA},
    {"id": "D", "url": "http://d", "weight": 1, "member": True, **HAS_DATA},
]
LOSS = {"node_id": "D", "last_shown": 40, "held_here": 38, "missing": 2, "unheard_s": 9.0}
RUN = {
    "digest": "3f2a90c1d4e5b6a7" * 4,
    "origin": "B",
    "n": 12,
    "size_bytes": 1_000,
    "staged_bytes": 2_000,
    "waits": [{"peer": "C", "why": "payload", "since_us": 1}],
}
ANSWERS: dict[str, Any] = {
    "/v1/groups": [{"name": "us", "sites": ["A", "D"], "tables": ["t"]}],
    "/v1/epochs": {
        "phase": "NORMAL",
        "roster": SEATS,
        "force": {"may_be_lost": [LOSS], "linked_voters": ["B"]},
    },
    "/v1/incoming": [RUN],
    "/v1/info": {"lake_root": "/data/lake"},
}
TABLES = {
    "orders": TableDescription(name="orders", kind=TableKind.ROW_TABLE, last_write=1_204),
    "a.b": TableDescription(name="a.b", kind=TableKind.COMMIT_TABLE),
}


class ReadOnlyNode:
    """Answers questions, and takes no changes."""

    def __init__(self, url: str, **_: Any) -> None:
        self.url = url

    def get(self, path: str, **_: Any) -> Any:
        return ANSWERS[path]

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch) -> None:
    for commands in (peer_commands, table_commands):
        monkeypatch.setattr(commands, "NodeApi", ReadOnlyNode)
    monkeypatch.setattr(Nodes, "describe", lambda _, name: TABLES[name])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("peer", "remove", "D"),
            (
                "Node D (http://d) would lose its place and 1 votes.\n"
                "Members after it: A; 2 votes are left.\n"
                "A majority of votes decides it.  Linked now, with a vote: B.\n"
                "What it accepted and no member holds would be lost to the log.\n"
                "It reported that it accepted 40 transactions; 38 are here.\n"
            ),
        ),
        (
            ("void", "3F2A90C1"),
            (
                "Run 3f2a90c1d4e5b6a7 of node B would take no effect at any site.\n"
                "Its 12 transactions would be rejected.\n"
                "3,000 bytes of rows would be lost for ever.\n"
                "The run waits for C.\n"
            ),
        ),
        (
            ("table", "release", "orders"),
            (
                "Row table orders would leave the log at all sites: jobs that write it fail.\n"
                "Its last write is at position 1,204; what is ordered until then comes along.\n"
                "Each site's worker would move its files to the attic of the lake.\n"
            ),
        ),
        (
            ("table", "release", "a.b", "/data/b", "--drop"),
            (
                "/data/b would get the files and versions of commit table a.b.\n"
                "Commit table a.b would leave the log at all sites: jobs that write it fail.\n"
            ),
        ),
    ],
)
def test_what_would_go_is_said_and_nothing_is_sent(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    said: str,
) -> None:
    assert invoke(monkeypatch, *arguments, "--dry-run") == 0
    assert capsys.readouterr().out == f"{said}Nothing was changed.\n"
    assert invoke(monkeypatch, *arguments, "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["dry_run"] is True


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(NotFoundError, match="Places: A, D"):
        removal_plan(ANSWERS["/v1/epochs"], [], "X")
    with pytest.raises(NotFoundError, match="2 runs"):
        void_plan([RUN, RUN], "3f2a")
    with pytest.raises(NotFoundError, match="no runs"):
        void_plan([], "3f2a")


def test_the_last_site_of_a_group_with_tables_is_refused() -> None:
    """As without `--dry-run`: a group whose tables were dropped holds nobody."""
    group = {"name": "eu", "sites": ["D", "Z"], "tables": ["a", "b"]}
    with pytest.raises(InvalidRequestError, match="'eu' would be without sites: a, b would be"):
        removal_plan(ANSWERS["/v1/epochs"], [group], "D")
    assert removal_plan(ANSWERS["/v1/epochs"], [group | {"tables": []}], "D")[0]["votes"] == 2
    witness = SEATS[0] | {"id": "Z", "witness": True}
    with pytest.raises(InvalidRequestError, match="'eu' would be"):
        removal_plan(ANSWERS["/v1/epochs"] | {"roster": [*SEATS, witness]}, [group], "D")


def test_a_commit_table_needs_a_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert invoke(monkeypatch, "table", "release", "a.b", "--dry-run") == 2


def test_a_place_among_the_files_of_the_site_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for table in TABLES:
        assert invoke(monkeypatch, "table", "release", table, "/data/lake/x", "--dry-run") == 2
        assert "is in /data/lake, where files of the site lie" in capsys.readouterr().err
