"""`sparktxlog peer quarantine`: what is asked, and what is shown of its answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import invoke

from sparktxlog.config import NodeConfig
from sparktxlog.errors import TransportError, UnauthorizedError, UnreachableError
from sparktxlog.runtime.leaving_fork import node_quarantine as acting
from sparktxlog.runtime.leaving_fork.node_quarantine import GaveWay

DONE = GaveWay(
    quarantine_id="0a1b",
    node_id="C",
    followed="A",
    log_id="forced",
    incarnation=2,
    common=1_234,
    exact=True,
    ordered=3,
    accepted=2,
    acquired=1,
    surviving=1,
    incomplete=0,
    pruned=0,
    table=Path("data/log/quarantine"),
    directory=Path("data/quarantine/0a1b"),
    has_place=True,
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A configuration of C."""
    path = tmp_path / "site-c.toml"
    path.write_text(
        f'node-id = "C"\nmaster-url = "http://127.0.0.1:7072"\ndata-dir = "{tmp_path}/data"\n'
        'client-token = "a token of the site"\n'
    )
    return path


def called(
    monkeypatch: pytest.MonkeyPatch, site: Path, done: GaveWay | Exception, *options: str
) -> int:
    """Run the command; return its exit code."""

    def act(config: NodeConfig, api: Any, tell: Any, **_: bool) -> GaveWay:
        assert (config.node_id, api.url) == ("C", "http://a:7070")
        tell("comparing")
        if isinstance(done, Exception):
            raise done
        return done

    monkeypatch.setattr(acting, "quarantine_node", act)
    arguments = ["peer", "quarantine", "--config", str(site), "--from", "http://a:7070", *options]
    return invoke(monkeypatch, *arguments)


def test_it_says_what_was_kept_where_and_what_comes_next(
    monkeypatch: pytest.MonkeyPatch, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(monkeypatch, site, DONE) == 0
    shown = capsys.readouterr()
    assert shown.err == "comparing\n"
    assert "are equal up to position 1,234.\n" in shown.out
    assert "3 ordered, 2 accepted and 1 acquired transactions" in shown.out
    assert str(DONE.table) in shown.out
    assert str(DONE.directory) in shown.out
    assert f"Next: sparktxlog serve --config {site} " in shown.out
    assert "peer add" not in shown.out
    bound = replace(DONE, exact=False, pruned=7, has_place=False)
    assert called(monkeypatch, site, bound) == 0
    shown = capsys.readouterr()
    assert "equal up to position 1,234, at least" in shown.out
    assert "7 positions after it were already pruned here" in shown.out
    assert "Next: sparktxlog peer add C ITS-URL" in shown.out


def test_json_is_one_line(
    monkeypatch: pytest.MonkeyPatch, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(monkeypatch, site, DONE, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["common"], found["ordered"], found["table"]) == (1_234, 3, str(DONE.table))
    assert len(found["next"]) == 2


def test_a_node_that_does_not_answer_is_another_exit_code(
    monkeypatch: pytest.MonkeyPatch, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = TransportError("no node answers at http://a:7070", hint="Start it.", url="http://a")
    assert called(monkeypatch, site, silent, "--json") == 5
    problem = json.loads(capsys.readouterr().out)
    assert problem["hint"].startswith("Name another node of that side with --from")
    nobody = UnreachableError("no node answers at http://a:7070", url="http://a")
    assert called(monkeypatch, site, nobody, "--json") == 5
    problem = json.loads(capsys.readouterr().out)
    assert problem["hint"].startswith("Name another node of that side with --from")
    closed = UnauthorizedError("the client token is wrong", hint="Send it.")
    assert called(monkeypatch, site, closed) == 5
    assert "Send it." in capsys.readouterr().err
