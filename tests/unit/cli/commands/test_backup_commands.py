"""`sparktxlog backup` and `restore` from arguments to exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import invoke
from tests.support.image_lake import Lake, rows

from sparktxlog.api.jobs import job_options
from sparktxlog.cli.commands import backup_commands
from sparktxlog.model.restore_point import RestorePoint, point_key
from sparktxlog.worker.backup.disk_images import DiskImages
from sparktxlog.worker.replica.state import read_state


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "lake")
    made.append((1, "x"), (2, "y"))
    return made


class Shell:
    """Runs commands and reads what they print."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def text(self, *arguments: object, code: int = 0) -> str:
        found = invoke(self._monkeypatch, *map(str, arguments))
        out, err = self._capsys.readouterr()
        assert found == code, out + err
        return out if code == 0 else out + err

    def json(self, *arguments: object, code: int = 0) -> Any:
        found = invoke(self._monkeypatch, *map(str, arguments), "--json")
        out, err = self._capsys.readouterr()
        assert found == code, out + err
        return json.loads(out)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


@pytest.mark.parametrize("table", ["t", "bronze.orders"])
def test_a_drill_from_the_command_line(shell: Shell, tmp_path: Path, table: str) -> None:
    lake = Lake(tmp_path / "lake", table)
    lake.append((1, "x"), (2, "y"))
    store, new = tmp_path / "backups", tmp_path / "new"
    made = shell.json("backup", store, "--lake", lake.path, "--name", "one")
    assert made["position"] == 1 and made["new_files"] == made["files"] == 3
    assert made["tables"][table]["signature"].startswith("1:")
    assert "New: 0 files" in shell.text("backup", "create", store, "--lake", lake.path)
    listed = shell.json("backup", "list", store)
    assert listed[0]["image"] == "one" and len(listed) == 2
    assert "one" in shell.text("backup", "list", store)
    assert shell.json("backup", "verify", store, "one")["damaged"] == []
    planned = shell.json("restore", store, "one", "--lake", new, "--dry-run")
    assert planned["dry_run"] and planned["free_bytes"] > planned["size_bytes"]
    assert "would be written" in shell.text("restore", store, "--lake", new, "--dry-run")
    assert not new.exists()
    restored = shell.json("restore", store, "one", "--lake", new, "--no-verify")
    assert restored["signatures"] == "not counted" and restored["digests"] == "equal"
    state = read_state(new)
    assert state is not None and state.worker_id == restored["worker_id"]
    assert rows(new, table=table) == rows(lake.path, table=table) == [(1, "x"), (2, "y")]
    said = shell.text(
        "restore", store, "--lake", tmp_path / "newer", "--at-most", "1", "--no-verify"
    )
    assert "signatures: not counted.  `sparktxlog verify` counts them" in said


def test_refusals_end_in_exit_codes(shell: Shell, lake: Lake, tmp_path: Path) -> None:
    store = tmp_path / "backups"
    assert "cannot name" in shell.text(
        "backup", store, "--lake", lake.path, "--name", "default", code=2
    )
    shell.text("backup", store, "--lake", lake.path, "--name", "one")
    assert "already" in shell.text("backup", store, "--lake", lake.path, "--name", "one", code=2)
    nothing = tmp_path / "nothing"
    assert "nothing was applied" in shell.text("backup", store, "--lake", nothing, code=3)
    inside = lake.path / "images"
    assert "where files of the site lie" in shell.text(
        "backup", inside, "--lake", lake.path, code=2
    )
    assert "not empty" in shell.text("restore", store, "--lake", lake.path, code=2)
    assert "no image 'two'" in shell.text("restore", store, "two", "--lake", tmp_path / "n", code=1)
    error = shell.json("restore", store, "one", "--lake", lake.path, code=2)
    assert error["title"] == "invalid-request"
    nobody = shell.text("backup", store, "--url", "http://127.0.0.1:9", code=5)
    assert "no node answers" in nobody


def test_the_site_is_found_in_its_configuration(shell: Shell, tmp_path: Path) -> None:
    data = tmp_path / "data"
    Lake(data / "lake").append((1, "x"))
    config = tmp_path / "a.toml"
    config.write_text(f'node-id = "A"\nmaster-url = "http://127.0.0.1:7070"\ndata-dir = "{data}"\n')
    made = shell.json("backup", tmp_path / "backups", "--config", config)
    assert made["site"] == "A" and made["files"] == 2


@pytest.mark.parametrize("by_lake", [False, True])
def test_a_node_names_its_site(
    shell: Shell, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_lake: bool
) -> None:
    info: dict[str, Any] = {"node_id": "A", "lake_root": str(lake.path)}
    info["commit_table_dir"] = str(tmp_path / "commit_tables")

    class Node:
        def __init__(self, url: str) -> None:
            assert url == "http://a:1"

        def get(self, path: str) -> Any:
            return {"/v1/info": info, "/v1/commit-tables": []}[path]

    monkeypatch.setattr(backup_commands, "NodeApi", Node)
    named = ("--url", "http://a:1", *(("--lake", str(lake.path)) if by_lake else ()))
    assert shell.json("backup", tmp_path / "backups", *named)["site"] == "A"


def test_an_image_is_chosen_for_a_restore_point_and_refused_if_the_log_does_not_reach_it(
    shell: Shell, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.append((1, "x"))
    store = tmp_path / "backups"
    shell.text("backup", store, "--lake", lake.path, "--name", "one")
    point = RestorePoint(name="p", made_at=1, position=9)
    info = {"kept_after": 1}

    class Node:
        def __init__(self, url: str) -> None:
            pass

        def get(self, path: str) -> Any:
            properties = {point_key("p"): point.to_value()}
            return {
                "/v1/info": info,
                "/v1/tables/sparktxlog_restore_points": {"properties": properties},
            }[path]

    monkeypatch.setattr(backup_commands, "NodeApi", Node)
    given = ("restore", store, "--lake", tmp_path / "new", "--no-verify")
    assert "sparktxlog apply --at p" in shell.text(*given, "--at", "p")
    info["kept_after"] = 7
    text = shell.text(*given, "--at", "p", code=1)
    assert "the log between them is gone: it begins after 7" in text and "--at-most" in text
    assert "no restore point 'q'" in shell.text(*given, "--at", "q", code=1)
    shell.text(*given, "--at", "p", "--at-most", "3", code=2)


def test_a_lake_that_no_node_serves_is_backed_up_without_commit_tables(
    lake: Lake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = str(tmp_path / "backups")
    nobody = ("--lake", str(lake.path), "--url", "http://127.0.0.1:9", "--json")
    assert invoke(monkeypatch, "backup", store, *nobody) == 0
    out, err = capsys.readouterr()
    made = json.loads(out)
    assert made["site"] == "" and "commit tables are left out" in " ".join(err.split())


def test_a_damaged_image_is_named(shell: Shell, lake: Lake, tmp_path: Path) -> None:
    store = tmp_path / "backups"
    shell.text("backup", store, "--lake", lake.path, "--name", "one")
    file = DiskImages(store).image("one").tables["t"].files[-1]
    path = store / "one" / "t" / file.path
    path.write_bytes(b"another")
    found = shell.json("backup", "verify", store, "one", code=1)
    assert found["damaged"] == [{"table": "t", "path": file.path, "stored": str(path)}]
    assert "is damaged" in shell.text("backup", "verify", store, "one", code=1)
    left = shell.text("restore", store, "one", "--lake", tmp_path / "new", code=1)
    assert "is damaged" in left


def test_counting_rows_is_refused_at_once_without_spark(
    shell: Shell, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, new = tmp_path / "backups", tmp_path / "new"
    shell.text("backup", store, "--lake", lake.path, "--name", "one")
    monkeypatch.setattr(job_options, "find_spec", lambda _: None)
    assert "add --no-verify" in shell.text("restore", store, "--lake", new, code=1)
    assert not new.exists()
    assert "PySpark" in shell.text("backup", "verify", store, "one", "--recount", code=1)
