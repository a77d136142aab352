"""The file of grants: what it means, and how each mistake in it is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sparktxlog.config import NodeConfig, load_config
from sparktxlog.errors import ConfigError

TOKEN, CLIENT = "a token of the reports", "a token of the clients"
Load = Callable[[str], NodeConfig]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Return how to load a configuration with a file of grants; `own` and `same` are tokens."""
    for name, token in (("own", TOKEN), ("same", CLIENT), ("short", "x"), ("open", TOKEN * 2)):
        (tmp_path / name).write_text(f"{token}\n")
        (tmp_path / name).chmod(0o644 if name == "open" else 0o600)

    def work(text: str, client_token: str | None = CLIENT) -> NodeConfig:
        path = tmp_path / "grants.toml"
        path.write_text(text.replace("@", f"{tmp_path}/"))
        values = {
            "node-id": "A",
            "master-url": "http://127.0.0.1:7070",
            "data-dir": "/tmp/x",
            "client-token": client_token,
            "grants-file": str(path),
        }
        return load_config(None, values, {})

    return work


def test_tables_and_schemas(load: Load) -> None:
    (grant,) = load('[reports]\ntoken-file = "@own"\nwrite = ["sales.*", "Orders"]').grants
    assert (grant.name, grant.token) == ("reports", TOKEN) and TOKEN not in repr(grant)
    for table in ("sales.a", "SALES.b", "sales.*", "orders", "default.orders", "Default.ORDERS"):
        assert grant.may_write(table)
    for table in ("salesmen.a", "hr.orders", "order", "default.*", "*"):
        assert not grant.may_write(table)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[reports", "Expected"),
        ("reports = 1", "needs token-file and write"),
        ('[reports]\ntoken-file = "@own"', "needs token-file and write"),
        ('[reports]\ntoken-file = "@own"\nwrite = []\nread = []', "nothing else"),
        ('[reports]\ntoken-file = "@own"\nwrite = "a.b"', "no list"),
        ('[reports]\ntoken-file = "@own"\nwrite = ["*"]', "names no table"),
        ('[reports]\ntoken-file = "@own"\nwrite = ["a.b.c"]', "names no table"),
        ('["a b"]\ntoken-file = "@own"\nwrite = []', "no name of a client"),
        ('[reports]\ntoken-file = "@none"\nwrite = []', "No such file"),
        ('[reports]\ntoken-file = "@short"\nwrite = []', "shorter than 16"),
        ('[reports]\ntoken-file = "@open"\nwrite = []', "every user of this machine"),
        ('[reports]\ntoken-file = "@same"\nwrite = []', "in use already"),
        (
            '[a]\ntoken-file = "@own"\nwrite = []\n[b]\ntoken-file = "@own"\nwrite = []',
            "client 'b': has a token that is in use",
        ),
    ],
)
def test_mistakes(load: Load, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load(text)
    assert caught.value.fields["key"] == "grants-file" and caught.value.hint
    assert TOKEN not in str(caught.value)


def test_grants_need_a_token_of_the_other_clients(load: Load) -> None:
    with pytest.raises(ConfigError, match="client-token is required with grants-file"):
        load("", client_token=None)  # type: ignore[call-arg]
