"""What is set aside is found with a reason, whenever a process is killed; age removes it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sparktxlog.attic import attic as module
from sparktxlog.attic.attic import Attic, Entry, Kind
from sparktxlog.errors import InvalidRequestError
from sparktxlog.files import durability
from sparktxlog.files.durability import link_or_copy

DAY_US = 86_400_000_000


class Killed(BaseException):
    """The process ended here."""


@pytest.fixture
def attic(tmp_path: Path) -> Attic:
    return Attic.of_lake(tmp_path / "lake")


def made(path: Path, content: str = "a") -> Path:
    (path / "_delta_log").mkdir(parents=True)
    (path / "_delta_log" / "0.json").write_text(content)
    return path


def put(attic: Attic, path: Path, **more: object) -> Entry:
    said = {"kind": Kind.DROPPED, "table": path.name, "mark": "7", "why": "dropped at 7"} | more
    return attic.put(path, **said)  # type: ignore[arg-type]


def text(path: Path) -> str:
    return (path / "_delta_log" / "0.json").read_text()


def test_a_directory_moves_and_is_found_with_what_was_said(tmp_path: Path, attic: Attic) -> None:
    table = made(tmp_path / "lake" / "bronze.orders_2")
    expected = attic.place(Kind.DROPPED, table.name, "7")
    entry = put(attic, table, facts={"rows": 3})
    assert not table.exists() and text(entry.path) == "a"
    assert entry.path == expected == attic.place(Kind.DROPPED, table.name, "7")
    (found,) = Attic(attic.root).entries(Kind.DROPPED, table.name)
    assert found == entry and entry.id == "dropped-bronze.orders_2-7"
    assert (found.source, found.facts) == (str(table), {"rows": 3})
    assert found.at > 0 and attic.entries(Kind.ROWS) == attic.entries(None, "orders") == []


def test_an_id_never_means_another_entry(tmp_path: Path, attic: Attic) -> None:
    ids = [put(attic, made(tmp_path / "t", content)).id for content in "abc"]
    assert ids == ["dropped-t-7", "dropped-t-7-2", "dropped-t-7-3"]
    assert [(one.id, text(one.path)) for one in attic.entries()] == [*zip(ids, "abc", strict=True)]
    assert text(attic.place(Kind.DROPPED, "t", "7")) == "c", "the newest one"


def test_nothing_is_noted_of_what_is_not_there(tmp_path: Path, attic: Attic) -> None:
    with pytest.raises(FileNotFoundError):
        put(attic, tmp_path / "t")
    assert attic.entries() == [] and not attic.root.exists()


@pytest.mark.parametrize("moved", [False, True])
def test_a_kill_leaves_it_in_its_place_or_in_a_listed_entry(
    tmp_path: Path, attic: Attic, monkeypatch: pytest.MonkeyPatch, *, moved: bool
) -> None:
    table = made(tmp_path / "t")
    rename = Path.rename

    def killed(path: Path, target: Path) -> Path:
        if moved:
            rename(path, target)
        raise Killed

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(Killed):
        put(attic, table)
    monkeypatch.undo()
    assert table.exists() is not moved
    assert [entry.why for entry in attic.entries()] == ["dropped at 7"] * moved
    if not moved:
        assert put(attic, table, why="once more").id == "dropped-t-7"
        assert [entry.why for entry in attic.entries()] == ["once more"]


def test_kept_files_are_whole_or_not_there(
    tmp_path: Path, attic: Attic, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made(tmp_path / "t")
    said: dict[str, Any] = {"kind": Kind.BACKUP, "table": "t", "mark": "c1", "why": "copied"}

    def killed(source: Path, target: Path) -> None:
        link_or_copy(source, target)
        raise Killed

    monkeypatch.setattr(durability, "link_or_copy", killed)
    with pytest.raises(Killed):
        attic.keep(table, **said)
    assert attic.entries() == []
    monkeypatch.undo()
    entry = attic.keep(table, **said)
    commit = "_delta_log/0.json"
    assert (entry.path / commit).samefile(table / commit) and entry.source == str(table)
    assert [one.name for one in attic.root.iterdir()] == ["backup-t-c1"]


def test_a_directory_that_cannot_be_read_is_not_half_kept(
    tmp_path: Path, attic: Attic, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, walk = made(tmp_path / "t"), os.walk

    def refusing(top: Path, **more: object) -> object:
        more["onerror"](PermissionError(13, "no"))  # type: ignore[operator]
        return walk(top)

    monkeypatch.setattr(os, "walk", refusing)
    with pytest.raises(PermissionError):
        attic.keep(table, kind=Kind.BACKUP, mark="c1", why="a copy")
    assert attic.entries() == []


def test_restored_files_are_there_and_the_entry_stays(tmp_path: Path, attic: Attic) -> None:
    entry = put(attic, made(tmp_path / "t"))
    attic.restore(entry, tmp_path / "back")
    assert text(tmp_path / "back") == text(entry.path) == "a"
    with pytest.raises(InvalidRequestError, match="exists already") as caught:
        attic.restore(entry, tmp_path / "back")
    assert caught.value.fields["field"] == "path"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["back", "lake"]


def test_age_empties_it(tmp_path: Path, attic: Attic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time_ns", lambda: 10 * DAY_US * 1000)
    for name in ("old", "spared"):
        put(attic, made(tmp_path / name))
    monkeypatch.setattr(module, "time_ns", lambda: 14 * DAY_US * 1000)
    put(attic, made(tmp_path / "young"))
    told: dict[str, Any] = {"stays": lambda entry: entry.table == "spared"}
    dry = attic.empty(12 * DAY_US, dry_run=True, **told)
    assert len(attic.entries()) == 3
    done = attic.empty(12 * DAY_US, **told)
    assert done == dry and [entry.table for entry in done.removed] == ["old"]
    assert (done.kept, done.files, done.size_bytes) == (2, 1, 1)
    assert {entry.table for entry in attic.entries()} == {"spared", "young"}
    assert Attic(tmp_path / "none").empty(DAY_US).kept == 0


def test_an_entry_that_is_being_filled_stays_until_it_is_finished(
    tmp_path: Path, attic: Attic, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = attic.begin(Kind.FORK, "act", "left a fork")
    journal = begun.path / "journal.sqlite"
    journal.write_bytes(b"old")
    assert attic.begin(Kind.FORK, "act", "left a fork").path == begun.path
    assert attic.empty(2**60).kept == 1
    # What may be written to there is no second name of what is kept.
    attic.restore(begun, tmp_path / "back")
    assert not (tmp_path / "back" / "journal.sqlite").samefile(journal)
    attic.finish(begun)
    (found,) = attic.entries(Kind.FORK)
    assert found.at > 0 and found.path == begun.path
    assert len(attic.empty(2**60).removed) == 1


def test_what_a_kill_left_of_a_removal_goes_and_is_never_shown(
    tmp_path: Path, attic: Attic, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = put(attic, made(tmp_path / "t"))

    def killed(path: Path) -> None:
        raise Killed

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(Killed):
        attic.remove(entry)
    monkeypatch.undo()
    assert attic.entries() == [] and len(list(attic.root.iterdir())) == 1
    attic.empty(DAY_US)
    assert list(attic.root.iterdir()) == []


def test_a_damaged_manifest_hides_nothing_and_keeps_it(tmp_path: Path, attic: Attic) -> None:
    entry = put(attic, made(tmp_path / "t"))
    (entry.path.parent / "manifest.json").write_text("{")
    (found,) = attic.entries()
    assert (found.id, found.kind, found.path) == (entry.id, Kind.UNKNOWN, entry.path)
    assert "cannot be read" in found.why
    assert attic.empty(2**60).kept == 1
    attic.remove(found)
    assert attic.entries() == []
