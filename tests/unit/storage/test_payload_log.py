"""Containers in files next to the journal: torn ends, full disks, failed syncs, spares."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparktxlog.errors import CorruptLogError, DiskFullError, StorageError
from sparktxlog.storage import payload_log
from sparktxlog.storage.payload_log import ContainerPlace, PayloadLog

_HEAD_BYTES = 16


def opened(directory: Path, *places: ContainerPlace) -> PayloadLog:
    """Open a log whose rows name these places."""
    ends: dict[int, int] = {}
    for place in places:
        ends[place.file] = max(ends.get(place.file, 0), place.start + place.size)
    return PayloadLog(directory / "log", ends.items())


def put(log: PayloadLog, *contents: bytes) -> list[ContainerPlace]:
    """Append in one write."""
    log.begin()
    places = [log.append(content) for content in contents]
    log.sync()
    return places


def files(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in (directory / "log").glob("*.payloads"))


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_log, "FILE_BYTES", 100)


def test_what_was_appended_is_read_also_by_the_next_process(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert log.size_bytes() == 0
    contents = [os.urandom(size) for size in (1, 70_000, 3)]
    places = put(log, *contents)
    assert [place.start for place in places] == [16, 17, 70_017]
    assert [log.read(place) for place in places] == contents
    log.close()
    log.close()
    again = opened(tmp_path, *places)
    assert [again.read(place) for place in places] == contents
    assert again.size_bytes() == 16 + 70_004
    (other,) = put(again, b"next")
    assert other.file > places[0].file  # what a former process left is not written into
    again.close()


def test_a_log_without_bytes_makes_no_files(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.begin()
    log.sync()
    log.cut(0)
    log.drop_unnamed(lambda file: False, few=True)
    log.close()
    assert not (tmp_path / "log").exists()


def test_every_cut_loses_only_what_no_row_names(tmp_path: Path) -> None:
    """A power cut leaves any part of what was not synced; less than what is named is damage."""
    log = opened(tmp_path)
    (kept,) = put(log, b"k" * 40)
    log.begin()
    log.append(b"u" * 60)  # no sync, no row
    log.close()
    path = tmp_path / "log" / f"{kept.file:016}.payloads"
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        if size >= kept.start + kept.size:
            again = opened(tmp_path, kept)
            assert again.read(kept) == b"k" * 40
            again.close()
        else:
            with pytest.raises(CorruptLogError, match=path.name):
                opened(tmp_path, kept)


def test_each_changed_byte_is_found(tmp_path: Path) -> None:
    log = opened(tmp_path)
    (place,) = put(log, os.urandom(40))
    log.close()
    path = tmp_path / "log" / f"{place.file:016}.payloads"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CorruptLogError, match=path.name):
            opened(tmp_path, place).read(place)


def test_a_missing_file_and_one_with_anothers_name_are_refused(tmp_path: Path) -> None:
    log = opened(tmp_path)
    (place,) = put(log, b"content")
    log.close()
    path = tmp_path / "log" / f"{place.file:016}.payloads"
    path.rename(tmp_path / "log" / f"{place.file + 1:016}.payloads")
    with pytest.raises(CorruptLogError, match=f"{path.name} is damaged: it is missing") as caught:
        opened(tmp_path, place)
    assert "Put the file back" in caught.value.hint
    with pytest.raises(CorruptLogError, match="is damaged"):
        opened(tmp_path, place._replace(file=place.file + 1))


def test_a_file_goes_as_a_whole_once_no_row_names_it(tmp_path: Path, small_files: None) -> None:
    log = opened(tmp_path)
    places = [place for _ in range(4) for place in put(log, b"x" * 60, b"y" * 60)]
    assert files(tmp_path) == [1, 2, 3, 4]
    named = {2, 4}
    log.drop_unnamed(lambda file: file in named, few=True)
    assert files(tmp_path) == [2, 4]
    assert log.read(places[2]) == b"x" * 60
    for place in (places[0], places[4]):
        with pytest.raises(FileNotFoundError):
            log.read(place)
    log.drop_all()
    assert files(tmp_path) == [] and log.size_bytes() == 0
    log.close()


def test_a_small_file_stays_while_it_is_appended_to(tmp_path: Path) -> None:
    log = opened(tmp_path)
    put(log, b"x")
    log.drop_unnamed(lambda file: False)
    assert files(tmp_path) == [1]
    assert put(log, b"y")[0].file == 1
    log.drop_unnamed(lambda file: False, few=True)
    assert files(tmp_path) == []
    assert put(log, b"z")[0].file == 2
    log.close()


def test_a_spare_is_written_over_under_a_new_number(tmp_path: Path, small_files: None) -> None:
    log = opened(tmp_path)
    (old,) = put(log, b"o" * 200)
    put(log, b"x" * 200)
    log.drop_unnamed(lambda file: file != old.file)
    (new,) = put(log, b"n" * 50)
    assert files(tmp_path) == [2, 3] and new.file == 3
    path = tmp_path / "log" / f"{new.file:016}.payloads"
    assert path.stat().st_size == _HEAD_BYTES + 200  # its blocks stay
    assert log.size_bytes() == 2 * (_HEAD_BYTES + 200)
    with pytest.raises(FileNotFoundError):
        log.read(old)
    log.close()
    # What is behind the last row is of another life of the file.
    again = opened(tmp_path, new)
    assert again.read(new) == b"n" * 50
    with pytest.raises(CorruptLogError):
        again.read(old._replace(file=new.file))
    again.close()


def test_spares_are_few(tmp_path: Path, small_files: None, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(tmp_path)
    for _ in range(9):
        put(log, b"x" * 200)
    log.drop_unnamed(lambda file: False)
    assert len(files(tmp_path)) == 4
    log.close()
    again = opened(tmp_path)
    again.drop_unnamed(lambda file: False)
    assert len(files(tmp_path)) == 4
    assert put(again, b"next")[0].file in files(tmp_path)
    assert len(files(tmp_path)) == 4
    again.drop_unnamed(lambda file: False, few=True)
    assert files(tmp_path) == []
    put(again, b"x" * 200)
    nearly_full = SimpleNamespace(free=1_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: nearly_full)
    again.drop_unnamed(lambda file: False)
    assert files(tmp_path) == []
    again.close()


def test_a_read_that_fails_is_an_error_of_this_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path)
    (place,) = put(log, b"x")
    for name, number in (("open", errno.EMFILE), ("pread", errno.EIO)):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fails(number))
            with pytest.raises(StorageError, match="failed"):
                log.read(place)
    assert log.read(place) == b"x"
    log.close()


def fails(number: int, times: int = 1) -> Callable[..., int]:
    """Return a call of the system that fails so often, and then does nothing."""
    left = [times]

    def call(*arguments: object) -> int:
        if left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number))
        return 0

    return call


@pytest.mark.parametrize("where", ["first", "later"])
@pytest.mark.parametrize("written", [0, 7])
def test_a_full_disk_keeps_nothing_of_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, written: int
) -> None:
    log = opened(tmp_path)
    before = put(log, b"before") if where == "later" else []
    real, room = os.pwrite, [len(b"one") + written]

    def full(descriptor: int, content: bytes, at: int) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = real(descriptor, content[: room[0]], at)
        room[0] -= done
        return done

    sizes = log.size_bytes()
    end = log.begin()
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DiskFullError) as caught:
        for content in (b"one", b"two" * 10):
            log.append(content)
    assert caught.value.definite
    log.cut(end)
    monkeypatch.undo()
    assert log.size_bytes() == sizes
    on_disk = sum(path.stat().st_size for path in (tmp_path / "log").iterdir())
    assert on_disk == sizes
    after = put(log, b"after")
    assert [log.read(place) for place in (*before, *after)] == [b"before"] * len(before) + [
        b"after"
    ]
    log.close()


@pytest.mark.parametrize("name", ["rename", "fsync", "open"])
def test_a_spare_that_cannot_be_taken_is_in_nobodys_way(
    tmp_path: Path, small_files: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Its new name may be there although that is not durable."""
    log = opened(tmp_path)
    (old,) = put(log, b"x" * 200)
    put(log, b"y" * 200)
    log.drop_unnamed(lambda file: file != old.file)
    end = log.begin()
    with monkeypatch.context() as patch:
        patch.setattr(os, name, fails(errno.ENOSPC))
        patch.setattr(Path, "rename", lambda path, target: os.rename(path, target))
        with pytest.raises(DiskFullError):
            log.append(b"new")
    log.cut(end)
    assert files(tmp_path) == [2]
    (new,) = put(log, b"new")
    assert log.read(new) == b"new" and files(tmp_path) == [2, new.file]
    on_disk = sum(path.stat().st_size for path in (tmp_path / "log").iterdir())
    assert log.size_bytes() == on_disk
    log.close()


def test_a_full_disk_takes_the_spares_back(tmp_path: Path, small_files: None) -> None:
    log = opened(tmp_path)
    for _ in range(3):
        put(log, b"x" * 200)
    log.drop_unnamed(lambda file: False)
    assert len(files(tmp_path)) == 3
    end = log.begin()
    log.append(b"y")
    log.cut(end)
    assert files(tmp_path) == []
    log.close()


@pytest.mark.parametrize(
    ("number", "definite"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)]
)
def test_nothing_is_appended_to_a_file_whose_sync_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, definite: bool
) -> None:
    """Its pages may count as clean, and never reach the disk."""
    log = opened(tmp_path)
    (before,) = put(log, b"before")
    end = log.begin()
    log.append(b"lost")
    monkeypatch.setattr(os, "fdatasync", fails(number))
    with pytest.raises(StorageError) as caught:
        log.sync()
    assert caught.value.definite is definite
    log.cut(end)
    (after,) = put(log, b"after")
    assert after.file != before.file
    assert (log.read(before), log.read(after)) == (b"before", b"after")
    log.close()


def test_names_are_synced_before_a_row_may_name_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)

        def call(descriptor: int, name: str = name, real: Callable[[int], None] = real) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            seen.append(f"{name} {path.relative_to(tmp_path)}")
            real(descriptor)

        monkeypatch.setattr(os, name, call)
    log = opened(tmp_path)
    put(log, b"x")
    first = f"fdatasync log/{1:016}.payloads"
    assert seen == [first, "fsync log", "fsync ."]
    put(log, b"y")
    assert seen[3:] == [first]
    log.begin()
    log.sync()
    assert len(seen) == 4
    log.close()


def test_all_files_are_kept_elsewhere(tmp_path: Path) -> None:
    log = opened(tmp_path)
    (place,) = put(log, b"kept")
    log.close()
    (tmp_path / "attic").mkdir()
    log.keep(tmp_path / "attic")
    log.keep(tmp_path / "attic")
    log.drop_all()
    kept = PayloadLog(tmp_path / "attic" / payload_log.PAYLOAD_LOG, [(place.file, place.start)])
    assert kept.read(place) == b"kept"
    kept.close()
