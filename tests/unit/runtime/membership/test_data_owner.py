"""A data directory belongs to one node of one cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparktxlog.config import NodeConfig
from sparktxlog.config.checking import resolve
from sparktxlog.errors import ConfigError, JournalLostError
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.recovery import RecoveredState
from sparktxlog.runtime.foundation import lay_foundation
from sparktxlog.runtime.membership.data_owner import check_data_dir, claim
from sparktxlog.storage.interfaces import JournalState
from sparktxlog.storage.journal.journal import JOURNAL_NAME, Journal


def _config(data_dir: Path) -> NodeConfig:
    given = {"node-id": "A", "master-url": "http://127.0.0.1:7070", "data-dir": str(data_dir)}
    return resolve({name: (value, "a.toml") for name, value in given.items()}, "a.toml")


def _begun(config: NodeConfig) -> None:
    config.data_dir.mkdir(exist_ok=True)
    journal = Journal(config.data_dir)
    journal.write(claim(config, journal.load(1), joins=False))
    assert claim(config, journal.load(1), joins=False) == []
    journal.close()


def test_another_nodes_directory_is_refused(tmp_path: Path) -> None:
    own = _config(tmp_path / "a")
    check_data_dir(own)  # there is nothing yet
    _begun(own)
    check_data_dir(own)
    owner = {"owner": b"node A of cluster sparktxlog"}
    state = JournalState(core=RecoveredState(), values=owner)
    for other in (replace(own, node_id=NodeId("B")), replace(own, cluster="test")):
        with pytest.raises(ConfigError, match="belongs to node A of cluster") as caught:
            check_data_dir(other)
        assert caught.value.fields["key"] == "data-dir" and "a.toml" in caught.value.message
        with pytest.raises(ConfigError):
            claim(other, state, joins=False)


def test_a_damaged_journal_names_the_least_loss(tmp_path: Path) -> None:
    own = _config(tmp_path / "a")
    _begun(own)
    journal = own.data_dir / JOURNAL_NAME
    journal.write_bytes(b"?" * 8_192)
    with pytest.raises(ConfigError, match="damaged") as caught:
        check_data_dir(own)
    assert f"Move only {JOURNAL_NAME} and its -wal and -shm files aside" in caught.value.hint


def test_the_rest_of_a_log_without_its_journal_is_told(tmp_path: Path) -> None:
    own = _config(tmp_path / "a")
    (own.payload_dir / "t").mkdir(parents=True)
    (own.payload_dir / "t" / "part.parquet").write_bytes(b"x")
    with pytest.raises(JournalLostError, match="the journal was lost"):
        check_data_dir(own)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("front.sqlite", b""),
        (JOURNAL_NAME, b"x" * 68 + b"TXLG"),
        (JOURNAL_NAME, b"x" * 60 + b"\0\0\0\1" + b"x" * 4 + b"TXLJ"),
    ],
)
def test_a_directory_of_a_commit_before_the_first_release_is_refused(
    tmp_path: Path, name: str, content: bytes
) -> None:
    """Also at the start of a node, which else would take it for one that lost its journal."""
    own = _config(tmp_path / "a")
    own.data_dir.mkdir(parents=True, exist_ok=True)
    (own.data_dir / name).write_bytes(content)
    for start in (check_data_dir, lay_foundation):
        with pytest.raises(ConfigError, match=f"before version 1 wrote it .{name}") as caught:
            start(own)
        assert "empty data-dir" in caught.value.hint
