"""Files of other hands: a link, a pipe or a directory in the place of one is refused at once."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparktxlog.errors import ManifestMismatchError, StorageError, TxLogError
from sparktxlog.files.durability import (
    link_or_copy,
    read_whole,
    replace_file,
    rewrite_file,
    sync_several,
    write_durably,
)
from sparktxlog.files.foreign_files import INCOMING, ForeignFile, Linked, foreign_file
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.payloads.local_store import LocalPayloadStore

SECRET = b"the secret of the node"


def _link(place: Path, secret: Path) -> None:
    place.symlink_to(secret)


def _link_of_a_directory(place: Path, secret: Path) -> None:
    place.parent.rmdir()
    place.parent.symlink_to(secret.parent)
    (secret.parent / place.name).write_bytes(SECRET)


def _pipe(place: Path, secret: Path) -> None:
    os.mkfifo(place)


def _directory(place: Path, secret: Path) -> None:
    place.mkdir()


def _socket(place: Path, secret: Path) -> None:
    bound, here = socket.socket(socket.AF_UNIX), Path.cwd()
    os.chdir(place.parent)  # a path of a socket is short
    try:
        bound.bind(place.name)
    finally:
        os.chdir(here)
        bound.close()


PLANTED: dict[str, Callable[[Path, Path], None]] = {
    "a link": _link,
    "a link of a directory": _link_of_a_directory,
    "a pipe": _pipe,
    "a directory": _directory,
    "a socket": _socket,
}


@pytest.fixture(params=PLANTED)
def planted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ForeignFile]:
    """Something that is no file, below a root; what it could lead to stays as it is."""
    secret = tmp_path / "node" / "secret"
    secret.parent.mkdir()
    secret.write_bytes(SECRET)
    (tmp_path / "root" / "table").mkdir(parents=True)
    PLANTED[request.param](tmp_path / "root" / "table" / "x", secret)
    names = sorted(os.listdir(secret.parent))
    yield ForeignFile(str(tmp_path / "root"), "table/x")
    assert sorted(os.listdir(secret.parent)) == names
    assert secret.read_bytes() == SECRET


@pytest.mark.timeout(30)
def test_what_is_no_plain_file_is_neither_opened_nor_waited_for(planted: ForeignFile) -> None:
    target = Path(planted.root) / "target"
    second = foreign_file(Path(planted.root), target)
    for act in (planted.open, planted.read, planted.size, lambda: planted.link_as(second)):
        with pytest.raises(OSError, match="no regular file") as refused:
            act()
        assert "table/x" in str(refused.value) or refused.value.filename == "x"
    assert not target.exists()
    # Nor is anything written through it.
    try:
        assert planted.put(b"another one") is Linked.OTHER
    except OSError as error:
        assert "regular file" in str(error)  # noqa: PT017 - a directory on the way, or the name
    # It can be moved out of the way, unless a directory on the way is the link.
    aside = ForeignFile(planted.root, ".set-aside/table/x")
    if not os.path.islink(f"{planted.root}/table"):
        assert planted.move_to(aside)
        assert os.path.lexists(aside.path)
        assert planted.put(b"another one") is Linked.EQUAL
        assert planted.read() == b"another one"


@pytest.mark.timeout(30)
def test_the_payload_store_takes_no_such_file(planted: ForeignFile) -> None:
    store = LocalPayloadStore(Path(planted.root))
    file = StagedFile(path="table/x", size_bytes=len(SECRET), rows=0, digest="0" * 64)
    with pytest.raises(TxLogError) as refused:
        store.verify(file)
    assert not isinstance(refused.value, ManifestMismatchError)
    assert SECRET.decode() not in str(refused.value)


@pytest.mark.timeout(30)
def test_a_pipe_holds_nobody_that_syncs_or_reads(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(StorageError):
        sync_several([str(pipe)])
    for act in (read_whole, rewrite_file):
        with pytest.raises(OSError, match="regular file"):
            act(pipe)


def test_a_name_is_given_once_and_never_through_a_name_that_was_planted(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"of the node")
    root = tmp_path / "root"
    root.mkdir()
    (root / ".x.new").symlink_to(victim)
    file, source = ForeignFile(str(root), "x"), tmp_path / "source"
    source.write_bytes(b"1234")
    assert file.put(b"1234") is Linked.EQUAL
    assert file.put(str(source)) is Linked.EQUAL
    assert file.put(b"9234") is Linked.OTHER
    os.truncate(file.path, 2)
    assert file.put(b"1234") is Linked.EQUAL, "a power loss took some bytes"
    assert file.read() == b"1234"
    other = ForeignFile(str(root), "below/y")
    assert other.put(str(source)) is Linked.SAME
    assert other.put(str(source)) is Linked.SAME
    assert victim.read_bytes() == b"of the node"
    assert os.listdir(root / INCOMING) == []


@pytest.mark.parametrize("write", [write_durably, replace_file, link_or_copy])
def test_nothing_is_written_through_a_link_under_a_temporary_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., None]
) -> None:
    victim, source, target = tmp_path / "victim", tmp_path / "source", tmp_path / "x"
    victim.write_bytes(b"of the node")
    source.write_bytes(b"bytes")

    def refused(*args: object, **more: object) -> None:
        raise OSError(95, "no hard links")

    monkeypatch.setattr(os, "link", refused)
    for name in ("x", "x.new", ".x.new"):
        (tmp_path / name).symlink_to(victim)
    if write is link_or_copy:
        write(source, target)
    else:
        write(target, b"bytes")
    assert target.read_bytes() == b"bytes"
    assert not target.is_symlink()
    assert victim.read_bytes() == b"of the node"


@pytest.mark.parametrize("replaces", [True, False])
def test_without_hard_links_a_file_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaces: bool
) -> None:
    source, link = tmp_path / "source", os.link
    source.write_bytes(b"bytes")

    def linked(name: str, target: str, **places: object) -> None:
        if name == "source" or name == str(source):
            raise OSError(95, "no hard links")
        link(name, target, **places)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", linked)
    copy = ForeignFile(str(tmp_path), "below/copy")
    given = foreign_file(tmp_path, source)
    if replaces:
        given.link_as(copy)
    else:
        assert given.link_new(copy) and not given.link_new(copy)
    assert copy.read() == b"bytes"
    assert not source.samefile(copy.path)
    assert os.listdir(tmp_path / "below") == ["copy"]
    assert ForeignFile(str(tmp_path), "put").put(str(source)) is Linked.SAME
