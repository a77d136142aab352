"""`sparktxlog attic …` from arguments to exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.commands.test_backup_commands import Shell, shell

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.cli.commands import attic_commands

__all__ = ["shell"]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake whose attic has two entries."""
    found = tmp_path / "lake"
    for name, kind, facts in (("orders", Kind.DROPPED, {}), ("parts", Kind.ROWS, {"rows": 3})):
        (found / name).mkdir(parents=True)
        (found / name / "0.parquet").write_bytes(b"12345")
        said: dict[str, Any] = {"table": name, "mark": "57", "why": f"of {name}", "facts": facts}
        Attic.of_lake(found).put(found / name, kind=kind, **said)
    return found


def test_entries_are_listed_shown_taken_back_and_removed(
    shell: Shell, lake: Path, tmp_path: Path
) -> None:
    listed = shell.json("attic", "list", "--lake", lake)
    assert [(one["id"], one["why"]) for one in listed] == [
        ("dropped-orders-57", "of orders"),
        ("rows-parts-57", "of parts"),
    ]
    assert [one["id"] for one in shell.json("attic", "list", "--lake", lake, "--kind", "rows")] == [
        "rows-parts-57"
    ]
    assert shell.json("attic", "list", "--lake", lake, "--table", "other") == []
    assert "of orders" in shell.text("attic", "list", "--lake", lake)
    shown = shell.json("attic", "show", "rows-parts-57", "--lake", lake)
    assert (shown["files"], shown["size_bytes"], shown["facts"]) == (1, 5, {"rows": 3})
    assert "rows: 3" in shell.text("attic", "show", "rows-parts-57", "--lake", lake)
    back = tmp_path / "back"
    done = shell.json("attic", "restore", "dropped-orders-57", back, "--lake", lake)
    assert done["restored"] == str(back) and (back / "0.parquet").read_bytes() == b"12345"
    ids = ("dropped-orders-57", "rows-parts-57")
    assert "Nothing was changed" in shell.text("attic", "remove", *ids, "--lake", lake, "--dry-run")
    assert len(shell.json("attic", "list", "--lake", lake)) == 2
    assert len(shell.json("attic", "remove", *ids, "--lake", lake)["removed"]) == 2
    assert shell.json("attic", "list", "--lake", lake) == []
    assert (back / "0.parquet").exists()


def test_what_cannot_be_done_names_field_value_and_way_out(
    shell: Shell, lake: Path, tmp_path: Path
) -> None:
    entry = "dropped-orders-57"
    kind = shell.json("attic", "list", "--lake", lake, "--kind", "x", code=2)
    assert (kind["fields"]["field"], kind["fields"]["value"]) == (
        "kind",
        "x",
    ) and "dropped, rows" in kind["hint"]
    # Nothing is removed if one of several is not there.
    lost = shell.json("attic", "remove", entry, "x", "--lake", lake, code=1)
    assert (lost["fields"]["field"], lost["fields"]["value"]) == (
        "id",
        "x",
    ) and "attic list" in lost["hint"]
    assert len(shell.json("attic", "list", "--lake", lake)) == 2
    taken = shell.json("attic", "restore", entry, tmp_path, "--lake", lake, code=2)
    assert (taken["fields"]["field"], taken["fields"]["value"]) == ("path", str(tmp_path))
    inside = shell.json("attic", "restore", entry, lake / "new", "--lake", lake, code=2)
    assert inside["fields"]["field"] == "path" and "table adopt" in inside["hint"]
    assert not (lake / "new").exists()
    away = shell.json("attic", "list", "--lake", tmp_path / "no", code=2)
    assert (away["fields"]["field"], away["fields"]["value"]) == ("lake", str(tmp_path / "no"))


def test_a_site_is_named_by_its_configuration_or_asked(
    shell: Shell, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    Attic(kept).keep(Attic.of_lake(lake).entries()[0].path, kind=Kind.BACKUP, mark="c", why="copy")
    config = tmp_path / "site.toml"
    config.write_text(
        f'node-id = "C"\nmaster-url = "http://127.0.0.1:7072"\ndata-dir = "{tmp_path}/data"\n'
        f'lake-dir = "{lake}"\nbackup-dir = "{kept}"\n'
    )
    ids = ["dropped-orders-57", "rows-parts-57", "backup-c"]
    staged = tmp_path / "data" / "payloads" / "back"
    refused = shell.json("attic", "restore", "rows-parts-57", staged, "--config", config, code=2)
    assert refused["fields"]["value"] == str(staged) and not staged.parent.exists()
    assert [one["id"] for one in shell.json("attic", "list", "--config", config)] == ids

    class Node:
        def __init__(self, url: str) -> None:
            assert url == "http://a:7070"

        def get(self, path: str) -> dict[str, str]:
            assert path == "/v1/info"
            roots = {"lake_root": str(lake), "log_root": str(tmp_path / "data" / "log")}
            return roots | {"commit_table_root": str(tmp_path), "backup_dir": str(kept)}

    monkeypatch.setattr(attic_commands, "NodeApi", Node)
    assert [one["id"] for one in shell.json("attic", "list", "--url", "http://a:7070")] == ids
    shell.json("attic", "remove", "backup-c", "--url", "http://a:7070")
    assert Attic(kept).entries() == []
