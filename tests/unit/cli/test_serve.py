"""What `serve` says at its start: where its pages are, and what opens them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sparktxlog.cli.serve import require_node, ways_in
from sparktxlog.config import NodeConfig, load_config
from sparktxlog.errors import MissingDependencyError

_TOKEN = "a-token-that-nobody-must-see"


def _config(**given: str) -> NodeConfig:
    known = {"node-id": "A", "data-dir": "data", "master-url": "http://127.0.0.1:7070"}
    return load_config(None, known | {k.replace("_", "-"): v for k, v in given.items()}, {})


def test_the_pages_are_at_the_address_of_the_node() -> None:
    said = ways_in(_config())
    assert said == "pages of this node: http://127.0.0.1:7070/ (no token is asked for)"


def test_the_token_is_named_by_its_file_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "a.token"
    file.write_text(_TOKEN)
    file.chmod(0o600)
    said = ways_in(_config(client_token_file=str(file)))
    assert f"the token in {file})" in said and _TOKEN not in said


def test_a_token_without_a_file_is_named_by_where_it_was_set() -> None:
    said = ways_in(_config(client_token=_TOKEN))
    assert said.endswith("as password the client token (command line))")
    assert _TOKEN not in said


def test_a_node_needs_each_library_of_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    require_node()
    monkeypatch.setitem(sys.modules, "httptools", None)
    with pytest.raises(MissingDependencyError, match="a node needs httptools") as caught:
        require_node()
    assert caught.value.hint == "Run: pip install 'sparktxlog[node]'"
