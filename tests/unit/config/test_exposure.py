"""Warnings of what lets others see a node's secrets."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sparktxlog.cli.command_line import app
from sparktxlog.config import NodeConfig, exposures, load_config
from sparktxlog.config.exposure import HTTP_ALLOWED, ON_COMMAND_LINE, OPEN_FILE
from sparktxlog.errors import ConfigError, InvalidRequestError
from sparktxlog.http.link import node_address

TOKEN, PASSWORD = "a token of the clients", "hunter2"
TLS = {f"tls-{part}-file": f"{part}.pem" for part in ("cert", "key", "ca")}


def written(path: Path, mode: int, *lines: str) -> NodeConfig:
    known = ['node-id = "A"', 'master-url = "http://127.0.0.1:7070"', f'data-dir = "{path.parent}"']
    path.write_text("\n".join((*known, *lines)))
    path.chmod(mode)
    return load_config(path, environ={})


def codes(config: NodeConfig) -> list[str]:
    return [one["code"] for one in exposures(config)]


def test_a_file_with_secrets_that_others_can_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, token = tmp_path / "node.toml", f'client-token = "{TOKEN}"'
    assert codes(written(path, 0o644)) == [], "it holds no secret"
    config = written(path, 0o644, token)
    (found,) = exposures(config)
    assert found["code"] == OPEN_FILE
    assert str(path) in found["text"] and "chmod 600" in found["text"]
    assert TOKEN not in found["text"]
    path.chmod(0o640)
    assert exposures(config) == [], "the group of the node's own user reads it, as units have it"
    monkeypatch.setattr(os, "getegid", lambda: path.stat().st_gid + 1)
    assert codes(config) == [OPEN_FILE], "the group of somebody else"
    path.chmod(0o600)
    assert exposures(config) == [], "no restart is needed"
    of_grant, grants = tmp_path / "etl.token", tmp_path / "grants.toml"
    of_grant.write_text(f"{TOKEN} of etl")
    of_grant.chmod(0o640)
    grants.write_text(f'[etl]\ntoken-file = "{of_grant}"\nwrite = ["t"]\n')
    (found,) = exposures(written(path, 0o600, token, f'grants-file = "{grants}"'))
    assert found["text"].startswith("token-file of client etl: group ")
    for key in ("client-token-file", "tls-key-file"):
        other = tmp_path / key
        other.write_text(TOKEN if key == "client-token-file" else "")
        other.chmod(0o640)
        more = [f'{name} = "{tmp_path / name}"' for name in TLS] if key in TLS else []
        more += ['tls-mode = "allow-http"'] if more else []
        more = more or [f'{key} = "{other}"']
        (found,) = exposures(written(path, 0o600, *more))
        assert found["text"].startswith(f"{key}: group ") and str(other) in found["text"]


def test_a_secret_on_the_command_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"node-id": "A", "master-url": "http://127.0.0.1:7070", "data-dir": "data"}
    config = load_config(None, known | {"client-token": TOKEN}, {})
    assert exposures(config) == [], "a program gave it, and no argument"
    monkeypatch.setattr(sys, "argv", ["sparktxlog", "serve", "--set", f"client-token={TOKEN}"])
    (found,) = exposures(config)
    assert found["code"] == ON_COMMAND_LINE and TOKEN not in found["text"]
    assert "client-token-file" in found["text"] and "SPARKTXLOG_CLIENT_TOKEN" in found["text"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, False),
        ({"tls-mode": "require", "master-url": "https://10.0.0.1:7070"}, False),
        ({"master-url": "https://10.0.0.1:7070"}, True),
        ({"listen": "0.0.0.0:7070"}, True),
        ({"peer.1.id": "B", "peer.1.url": "https://10.0.0.2:7070"}, True),
        ({"peer.1.id": "B", "peer.1.url": "https://127.0.0.1:7071,https://[::1]:7071"}, False),
    ],
)
def test_plain_connections_beyond_this_machine_are_told(changes: Any, told: bool) -> None:
    values = {"node-id": "A", "master-url": "https://127.0.0.1:7070", "data-dir": "data"}
    values |= {"tls-mode": "allow-http", "client-token": TOKEN, "cluster-secret": "x" * 16}
    assert codes(load_config(None, values | TLS | changes, {})) == [HTTP_ALLOWED] * told


def test_the_check_of_a_configuration_says_it(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    written(path, 0o644, f'client-token = "{TOKEN}"')
    found = CliRunner().invoke(app, ["config", "check", str(path)])
    assert found.exit_code == 0 and "[open-secret] configuration: " in found.output


@pytest.mark.parametrize("user", [f"reader:{PASSWORD}", f":{PASSWORD}", "reader"])
def test_an_address_takes_no_user_and_no_password(user: str) -> None:
    url = f"http://{user}@10.0.0.1:7070"
    with pytest.raises(InvalidRequestError) as refused:
        node_address(url)
    assert PASSWORD not in str(refused.value) and "SPARKTXLOG_CLIENT_TOKEN" in refused.value.hint
    with pytest.raises(ConfigError, match="scheme, host and port") as refused_too:
        load_config(None, {"node-id": "A", "master-url": url, "data-dir": "data"}, {})
    assert PASSWORD not in str(refused_too.value)
