"""Commits by hand: one writer gets a version, and may try again; torn ones: test_settling."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sparktxlog.delta.commit_files import (
    commit_by_hand,
    lowest_torn,
    read_actions,
)
from sparktxlog.delta.log_files import commit_path, log_of, names_in_log
from sparktxlog.errors import StorageError

ADD = {"add": {"path": "x", "size": 3}}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    log_of(tmp_path).mkdir()
    (tmp_path / "x").write_bytes(b"abc")
    return tmp_path


def test_a_version_is_what_was_written(table: Path) -> None:
    commit_by_hand(table, 0, {"operation": "WRITE"}, "mine", [ADD])
    info = {"operation": "WRITE", "engineInfo": "sparktxlog", "userMetadata": "mine"}
    assert read_actions(table, 0) == [{"commitInfo": info}, ADD]
    assert names_in_log(table) == [commit_path(table, 0).name]


def test_only_one_writer_gets_a_version(table: Path) -> None:
    commit_by_hand(table, 0, {}, "mine", [ADD])
    commit_by_hand(table, 0, {}, "mine", [ADD])  # after an answer that was lost
    before = commit_path(table, 0).read_bytes()
    with pytest.raises(FileExistsError):
        commit_by_hand(table, 0, {}, "theirs", [ADD])
    assert commit_path(table, 0).read_bytes() == before and len(names_in_log(table)) == 1


def test_a_disk_that_fails_is_no_commit(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has the name is durable, and so is the name."""

    def fail(*_: object) -> None:
        raise OSError("no")

    with monkeypatch.context() as patched, pytest.raises(StorageError, match="no"):
        patched.setattr(os, "fsync", fail)
        commit_by_hand(table, 0, {}, "mine", [ADD])
    assert [*log_of(table).iterdir()] == []
    synced = []
    monkeypatch.setattr(os, "fsync", lambda at: synced.append(os.readlink(f"/proc/self/fd/{at}")))
    commit_by_hand(table, 0, {}, "mine", [ADD])
    first, names = synced[0], [str(log_of(table)), str(table)]
    assert first.startswith(f"{log_of(table)}/.") and synced[1:] == names
    synced.clear()
    commit_by_hand(table, 0, {}, "mine", [ADD])  # perhaps of an attempt that could not sync it
    assert synced[1:] == [str(commit_path(table, 0)), *names]


def test_the_lowest_torn_version(table: Path) -> None:
    for version in range(4):
        commit_by_hand(table, version, {}, str(version), [ADD])
    assert lowest_torn(table, range(4)) is None
    (table / "x").write_bytes(b"ab")
    assert lowest_torn(table, range(2, 4)) == 2
    commit_by_hand(table, 4, {}, "", [{"remove": {"path": "x"}}])
    assert lowest_torn(table, range(5)) is None
    commit_path(table, 3).write_text(json.dumps(ADD)[:-1])
    assert lowest_torn(table, range(5)) == 3


@pytest.mark.parametrize("line", ["5", "[]", '{"add":5}', '{"remove":null}'])
def test_a_line_that_is_no_action_is_damage(table: Path, line: str) -> None:
    commit_by_hand(table, 0, {}, "mine", [ADD])
    with commit_path(table, 0).open("a") as file:
        file.write(f"{line}\n")
    assert read_actions(table, 0) is None
