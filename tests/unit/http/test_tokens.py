"""How clients find the token of a node on their machine."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from sparktxlog.cli.common_options import NodeApi
from sparktxlog.errors import ConfigError
from sparktxlog.http.link import Http
from sparktxlog.http.tokens import (
    admin_token,
    client_token,
    local_token,
    note_token,
    notes_directory,
    worker_token,
)
from sparktxlog.worker.replica.source import HttpLogSource

NOTED = "a token that a node noted"


@pytest.fixture
def token_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    for name in ("SPARKTXLOG_CLIENT_TOKEN", "SPARKTXLOG_ADMIN_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "mine.token"
    path.write_text(f"{NOTED}\n")
    return path


def test_a_note_is_found_by_every_name_of_this_machine_and_by_no_other(token_file: Path) -> None:
    note_token(["http://127.0.0.1:7070", "https://node-a"], token_file)
    for url in (
        "http://localhost:7070",
        "http://127.0.0.1:7070/",
        "http://[::1]:7070",
        "https://node-a",
        "https://node-a:443",
    ):
        assert local_token(url) == NOTED
    for url in (
        "http://127.0.0.1:7071",
        "http://10.0.0.1:7070",
        "http://node-a",
        "x",
        "",
        "http://",
        "http://a:b",
        "http://../../x:7070",
    ):
        assert local_token(url) is None
    assert NOTED not in "".join(path.read_text() for path in notes_directory().iterdir())
    token_file.unlink()
    assert local_token("http://127.0.0.1:7070") is None


@pytest.mark.parametrize("listening", ["http://0.0.0.0:7070", "http://[::]:7070"])
def test_a_node_that_listens_at_all_addresses_is_found_on_loopback(
    token_file: Path, listening: str
) -> None:
    note_token(["http://node-a:7070", listening], token_file)
    assert local_token("http://127.0.0.1:7070") == NOTED
    assert local_token("http://127.0.0.1:7071") is None


def test_nodes_after_one_proxy_have_a_token_each(token_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.token"
    other.write_text("of B")
    note_token(["https://gate.example/site-a"], token_file)
    note_token(["https://gate.example/site-b"], other)
    assert local_token("https://gate.example/site-a/") == NOTED
    assert local_token("https://gate.example:443/site-b") == "of B"
    assert local_token("https://gate.example") is None


def test_every_client_shows_it_unless_another_one_is_named(
    token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "http://127.0.0.1:7070"
    note_token([url], token_file)

    def shown(token: str | None = None) -> set[str | None]:
        api = NodeApi(url, token=token)
        links = (Http(url, token=token), api, HttpLogSource(url, token))
        return {api._admin_token, *(link.token for link in links)}

    assert shown() == {NOTED}
    assert shown("another") == {"another"}
    monkeypatch.setenv("SPARKTXLOG_CLIENT_TOKEN", "of the environment")
    assert Http(url).token == "of the environment"
    assert NodeApi(url)._admin_token == "of the environment"


def test_a_token_of_the_environment_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a secret that was made of a file has the end of its line."""
    for name in ("CLIENT", "ADMIN", "WORKER"):
        monkeypatch.setenv(f"SPARKTXLOG_{name}_TOKEN", f"of {name}\n")
    assert (client_token(), admin_token(), worker_token()) == ("of CLIENT", "of ADMIN", "of WORKER")
    assert Http("http://127.0.0.1:7070").token == "of CLIENT"
    monkeypatch.setenv("SPARKTXLOG_WORKER_TOKEN", " \n")
    assert worker_token() is None


@pytest.mark.parametrize("token", ["a-secret\nof-two-lines", "a-secret-\N{EURO SIGN}"])
def test_a_token_that_no_request_may_have_is_not_shown(token: str) -> None:
    with pytest.raises(ConfigError, match="token") as caught:
        Http("http://127.0.0.1:9", token=token).get("/v1/info")
    assert "a-secret" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.definite
