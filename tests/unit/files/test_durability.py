"""Names of files and directories: whole, in one step, durable in an order that loses nothing."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparktxlog.files import durability
from sparktxlog.files.durability import (
    create_file,
    drop_uncreated,
    link_new,
    move_durably,
    place_durably,
    place_tree,
    remove_at_once,
    sync_tree,
    write_at_once,
    write_durably,
)
from sparktxlog.files.foreign_files import ForeignFile, Linked


class Killed(BaseException):
    """A kill at this place."""


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is done to the disk, in its order: the step, and where, below the test's directory."""
    done = list[tuple[str, str]]()
    link, rename, replace, sync = os.link, Path.rename, Path.replace, os.fsync

    def below(path: object) -> str:
        return str(Path(str(path)).relative_to(tmp_path))

    def linked(source: Path, target: Path) -> None:
        link(source, target)
        done.append(("name", below(target)))

    def renamed(path: Path, target: Path) -> Path:
        done.append(("name", below(target)))
        return rename(path, target)

    def replaced(path: Path, target: Path) -> Path:
        done.append(("name", below(target)))
        return replace(path, target)

    def synced(descriptor: int) -> None:
        done.append(("sync", below(os.readlink(f"/proc/self/fd/{descriptor}"))))
        sync(descriptor)

    monkeypatch.setattr(os, "link", linked)
    monkeypatch.setattr(Path, "rename", renamed)
    monkeypatch.setattr(Path, "replace", replaced)
    monkeypatch.setattr(os, "fsync", synced)
    return done


def _no_links(*_: object) -> None:
    raise OSError(errno.EXDEV, "another file system")


def _tree(root: Path) -> Path:
    (root / "a").mkdir(parents=True)
    (root / "x").write_bytes(b"1")
    (root / "a" / "y").write_bytes(b"2")
    return root


def test_files_are_durable_before_their_names_and_names_up_to_the_root(
    tmp_path: Path, steps: list[tuple[str, str]]
) -> None:
    given, root = _tree(tmp_path / "given"), tmp_path / "root"
    root.mkdir()
    place_durably({root / "p" / "q" / "y": given / "a" / "y", root / "x": given / "x"}, root)
    assert steps == [
        ("sync", "given/a/y"),
        ("name", "root/p/q/.y.new"),
        ("name", "root/p/q/y"),
        ("sync", "given/x"),
        ("name", "root/.x.new"),
        ("name", "root/x"),
        ("sync", "root/p/q"),
        ("sync", "root/p"),
        ("sync", "root"),
    ]
    assert (root / "p" / "q" / "y").samefile(given / "a" / "y")
    assert sorted(os.listdir(root)) == ["p", "x"]
    # An attempt before may have been killed before it synced the names.
    steps.clear()
    place_durably({root / "x": given / "x"}, root, replaces=False)
    assert steps == [("sync", "given/x"), ("sync", "root")]


def test_another_file_is_replaced_or_stays(tmp_path: Path) -> None:
    given, place = _tree(tmp_path / "given"), tmp_path / "place"
    place.write_bytes(b"else")
    with pytest.raises(FileExistsError) as refused:
        place_durably({place: given / "x"}, tmp_path, replaces=False)
    assert refused.value.filename == str(place) and place.read_bytes() == b"else"
    place_durably({place: given / "x"}, tmp_path)
    assert place.read_bytes() == b"1"


@pytest.mark.parametrize("copies", [True, False])
def test_a_file_that_cannot_be_linked_is_copied_if_that_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: bool
) -> None:
    source, target = tmp_path / "source", tmp_path / "below" / "target"
    source.write_bytes(b"bytes")
    os.utime(source, ns=(7, 7))
    monkeypatch.setattr(os, "link", _no_links)
    if not copies:
        with pytest.raises(OSError, match="another file system"):
            link_new(source, target, copies=False)
        assert os.listdir(tmp_path) == ["source"]
        return
    assert link_new(source, target)
    assert target.read_bytes() == b"bytes" and target.stat().st_mtime_ns == 7
    assert os.listdir(target.parent) == ["target"]


def test_a_copy_that_a_full_disk_ends_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source", tmp_path / "below" / "target"
    source.write_bytes(b"bytes")

    def full(content: Any, copy: Any) -> None:
        copy.write(b"by")
        copy.flush()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", _no_links)
    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(OSError, match="No space left"):
        link_new(source, target)
    assert os.listdir(target.parent) == []


@pytest.mark.parametrize("links", [True, False])
def test_a_tree_gets_second_names_or_is_copied_durably(
    tmp_path: Path, steps: list[tuple[str, str]], links: bool
) -> None:
    given, placed = _tree(tmp_path / "given"), tmp_path / "placed"
    place_tree(given, placed, links=links)
    assert {path.relative_to(placed).as_posix() for path in placed.rglob("*")} == {"x", "a", "a/y"}
    assert (placed / "a" / "y").samefile(given / "a" / "y") is links
    synced = {where for step, where in steps if step == "sync"}
    assert synced == {"placed", "placed/a"} | (set() if links else {"placed/x", "placed/a/y"})


def test_all_of_a_tree_is_synced_names_after_what_they_name(
    tmp_path: Path, steps: list[tuple[str, str]]
) -> None:
    sync_tree(_tree(tmp_path / "t"))
    assert steps == [("sync", "t/a/y"), ("sync", "t/a"), ("sync", "t/x"), ("sync", "t")]


def test_a_moved_directory_has_two_names_rather_than_none(
    tmp_path: Path, steps: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = _tree(tmp_path / "old" / "t"), tmp_path / "new" / "t"
    target.parent.mkdir()
    move_durably(source, target)
    assert steps == [("name", "new/t"), ("sync", "new"), ("sync", "old")]
    steps.clear()
    move_durably(target, tmp_path / "new" / "u")
    assert steps == [("name", "new/u"), ("sync", "new")]
    # Somebody removes the directory that the move left empty.
    sync = durability.sync_directory

    def removed(path: Path) -> None:
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
        sync(path)

    monkeypatch.setattr(durability, "sync_directory", removed)
    move_durably(tmp_path / "new" / "u", tmp_path / "old" / "u")
    assert (tmp_path / "old" / "u" / "a" / "y").read_bytes() == b"2"


def test_a_directory_is_removed_in_one_step(
    tmp_path: Path, steps: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(path: Path) -> None:
        assert steps == [("name", ".t.gone"), ("sync", ".")]
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(shutil, "rmtree", killed)
        remove_at_once(_tree(tmp_path / "t"), tmp_path / ".t.gone")
    assert os.listdir(tmp_path) == [".t.gone"]
    remove_at_once(tmp_path / ".t.gone", tmp_path / ".again")
    assert os.listdir(tmp_path) == []


def test_a_foreign_file_moves_durably_with_the_directories_that_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "x").write_bytes(b"1")
    done, rename, sync = list[str](), os.rename, os.fsync

    def renamed(*names: Any, **places: Any) -> None:
        rename(*names, **places)
        done.append("moved")

    def synced(descriptor: int) -> None:
        done.append(str(Path(os.readlink(f"/proc/self/fd/{descriptor}")).relative_to(tmp_path)))
        sync(descriptor)

    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(os, "fsync", synced)
    file, other = ForeignFile(str(tmp_path), "t/x"), ForeignFile(str(tmp_path), "a/b/x")
    assert file.move_to(other) and other.read() == b"1"
    assert done == [".", "a", "moved", "a/b", "t"]
    done.clear()
    assert not file.move_to(ForeignFile(str(tmp_path), "c/x"))
    assert done == [] and not (tmp_path / "c").exists()


@pytest.mark.parametrize("write", [write_at_once, write_durably])
def test_a_file_is_the_old_or_the_new_one(tmp_path: Path, write: type) -> None:
    path = tmp_path / "x"
    write(path, b"old")
    written = path.stat().st_ino

    def pieces() -> Iterator[bytes | memoryview]:
        yield b"ne"
        assert path.read_bytes() == b"old"
        yield memoryview(b"w")

    write(path, pieces())
    assert path.read_bytes() == b"new" and path.stat().st_ino != written
    assert os.listdir(tmp_path) == ["x"]


def test_what_cannot_be_written_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_at_once(path, b"old", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def pieces() -> Iterator[bytes]:
        yield b"ne"
        raise OSError(errno.ENOSPC, "no space left")

    with pytest.raises(OSError, match="no space left"):
        write_at_once(path, pieces())
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("is_made", [True, False])
@pytest.mark.parametrize("is_file", [True, False])
def test_an_answer_that_is_lost_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_made: bool, is_file: bool
) -> None:
    """What has the name is compared; if nothing has it, the file is not there."""
    path, source, link = tmp_path / "log" / "0", tmp_path / "x", os.link
    path.parent.mkdir()
    source.write_bytes(b"abc")

    def lose(given: Path, target: Path) -> None:
        if is_made or target != path:
            link(given, target)
        if target == path:
            raise OSError(errno.EIO, "no answer")

    content = source if is_file else b"abc"
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", lose)
        if is_made:
            assert create_file(path, content) is Linked.SAME
        else:
            with pytest.raises(OSError, match="no answer"):
                create_file(path, content)
    assert path.exists() is is_made and len(os.listdir(path.parent)) == is_made
    assert create_file(path, b"abc") is (Linked.EQUAL if is_made else Linked.SAME)
    assert create_file(path, b"abd") is Linked.OTHER and path.read_bytes() == b"abc"


def test_what_a_kill_left_of_a_file_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, pytest.raises(Killed):

        def killed(*_: object) -> None:
            raise Killed

        patched.setattr(os, "link", killed)
        patched.setattr(Path, "unlink", lambda *_, **__: None)
        create_file(tmp_path / "0", b"abc")
    assert len(os.listdir(tmp_path)) == 1
    (tmp_path / ".of-others.tmp").write_bytes(b"")
    drop_uncreated(tmp_path)
    assert os.listdir(tmp_path) == [".of-others.tmp"]
