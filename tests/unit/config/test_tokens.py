"""The admin token as a setting: read as the client token is, and never the same as another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparktxlog.config import NodeConfig, load_config
from sparktxlog.errors import ConfigError

BASE: dict[str, Any] = {
    "node-id": "A", "master-url": "http://127.0.0.1:7001", "data-dir": "data/a",
}  # fmt: skip


def load(environ: dict[str, str] | None = None, **values: Any) -> NodeConfig:
    given = {key.replace("_", "-"): value for key, value in values.items()}
    return load_config(None, BASE | given, environ or {})


def test_it_comes_from_where_settings_come_from(tmp_path: Path) -> None:
    assert load().admin_token is None
    assert load(admin_token=" hush ").admin_token == "hush"
    assert load({"SPARKTXLOG_ADMIN_TOKEN": "hush"}).admin_token == "hush"
    file = tmp_path / "token"
    file.write_text("hush\n")
    assert load(admin_token_file=str(file)).admin_token == "hush"
    assert load({"SPARKTXLOG_ADMIN_TOKEN_FILE": str(file)}).admin_token == "hush"


def test_it_does_not_replace_the_client_token() -> None:
    with pytest.raises(ConfigError, match="client-token is required when listening"):
        load(listen="0.0.0.0:7001", admin_token="hush")
    config = load(listen="0.0.0.0:7001", admin_token="hush", client_token="open")
    assert (config.admin_token, config.client_token) == ("hush", "open")


@pytest.mark.parametrize(
    ("values", "key", "part"),
    [
        ({"admin_token": ""}, "admin-token", "not empty"),
        ({"admin_token": "hush-1", "admin_token_file": "x"}, "admin-token-file", "given as well"),
        ({"admin_token_file": "/no/such/file"}, "admin-token-file", "No such file"),
        ({"admin_token": "hush-1", "client_token": "hush-1"}, "admin-token", "same as client"),
        (
            {"admin_token": "hush-1-hush-1-hush-1", "cluster_secret": "hush-1-hush-1-hush-1"},
            "admin-token", "same as cluster-secret",
        ),
    ],
)  # fmt: skip
def test_wrong_values_are_named_and_hidden(values: dict[str, Any], key: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part) as caught:
        load(**values)
    assert caught.value.fields["key"] == key
    assert "hush-1" not in str(caught.value) + str(caught.value.fields)


def test_it_never_shows() -> None:
    assert "hush-hush" not in repr(load(admin_token="hush-hush"))
