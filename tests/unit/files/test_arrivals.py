"""A place where files arrive: they go on after a break, and nothing wrong gets a name."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.storage_samples import parquet_bytes, staged_of

from sparktxlog.errors import BusyError, InvalidNameError, ManifestMismatchError, StorageError
from sparktxlog.files import arrivals
from sparktxlog.files.arrivals import Arrivals
from sparktxlog.model.transactions.operation import StagedFile

NAME = "0a0a/orders/part-0.parquet"


@pytest.fixture
def place(tmp_path: Path) -> Arrivals:
    return Arrivals(tmp_path / "payloads")


class Sender:
    """A peer that sends a file, and what it was asked for."""

    def __init__(self, content: bytes, breaks_at: int | None = None) -> None:
        self.content, self.breaks_at = content, breaks_at
        self.offsets: list[int] = []

    def __call__(self, offset: int) -> Iterator[bytes]:
        self.offsets.append(offset)
        yield self.content[offset : self.breaks_at]
        if self.breaks_at is not None:
            raise ConnectionError("the link broke")


def nobody(offset: int) -> Iterator[bytes]:
    raise AssertionError("nobody needs to be asked")


def test_a_fetched_file_is_put_in_place(place: Arrivals) -> None:
    content = parquet_bytes()
    file = staged_of(NAME, content)
    place.fetch(file, lambda offset: [content[:10], content[10:]])
    place.verify(file)
    assert place.has(file)
    place.fetch(file, nobody)
    assert list((place.root / ".incoming").iterdir()) == []


def test_a_name_that_leaves_the_root_is_refused(place: Arrivals) -> None:
    with pytest.raises(InvalidNameError):
        place.fetch(staged_of("../x", b""), nobody)
    with pytest.raises(InvalidNameError):
        place.receive_part(staged_of("../x", b""), [b""], 0)


def test_a_broken_transfer_goes_on_after_a_restart(place: Arrivals) -> None:
    content = parquet_bytes()
    file, sender = staged_of(NAME, content), Sender(content)
    for breaks_at in (25, 40):
        sender.breaks_at = breaks_at
        with pytest.raises(ConnectionError):
            place.fetch(file, sender)
    assert not place.has(file)
    again, sender.breaks_at = Arrivals(place.root), None
    # The same name with another content is another transfer.
    again.fetch(staged_of(NAME, b"other"), Sender(b"other"))
    again.fetch(file, sender)
    assert sender.offsets == [0, 25, 40]
    again.verify(file)


def test_all_bytes_may_be_here_without_a_name(place: Arrivals) -> None:
    content = parquet_bytes()
    file = staged_of(NAME, content)
    with pytest.raises(ConnectionError):
        place.fetch(file, Sender(content, breaks_at=len(content)))
    place.fetch(file, nobody)
    place.verify(file)


@pytest.mark.parametrize("sent", [b"short", parquet_bytes()[:-1] + b"!", parquet_bytes() + b"!"])
def test_a_wrong_transfer_leaves_nothing(place: Arrivals, sent: bytes) -> None:
    content = parquet_bytes()
    file, sender = staged_of(NAME, content), Sender(content)
    with pytest.raises(ManifestMismatchError):
        place.fetch(file, Sender(sent))
    assert not place.has(file)
    place.fetch(file, sender)
    assert sender.offsets == [0]
    place.verify(file)


@pytest.mark.parametrize("rubbish", [b"rubbish", bytes(len(parquet_bytes()))])
def test_a_fetched_file_replaces_a_wrong_one(place: Arrivals, rubbish: bytes) -> None:
    content = parquet_bytes()
    path = Path(place.path(NAME))
    path.parent.mkdir(parents=True)
    path.write_bytes(rubbish)
    place.fetch(staged_of(NAME, content), Sender(content))
    assert path.read_bytes() == content


def test_the_same_file_is_not_received_twice_at_once(place: Arrivals) -> None:
    content = parquet_bytes()
    file = staged_of(NAME, content)

    def chunks() -> Iterator[bytes]:
        yield content[:10]
        with pytest.raises(BusyError) as caught:
            place.fetch(file, Sender(content))
        assert caught.value.definite
        yield content[10:]

    place.fetch(file, lambda offset: chunks())
    place.verify(file)


def test_a_file_that_came_between_look_and_lock_is_not_received_again(
    place: Arrivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transfer whose caller gave it up goes on in its thread, while the next attempt begins."""
    content = parquet_bytes()
    file, sender, has = staged_of(NAME, content), Sender(content), place.has

    def looks(one: StagedFile) -> bool:
        found = has(one)
        with monkeypatch.context() as patched:
            patched.setattr(place, "has", has)
            place.fetch(one, sender)
        return found

    monkeypatch.setattr(place, "has", looks)
    place.fetch(file, nobody)
    monkeypatch.undo()
    assert sender.offsets == [0]
    place.verify(file)
    assert list((place.root / ".incoming").iterdir()) == []


def test_a_peer_that_sends_without_end_is_stopped(place: Arrivals) -> None:
    file = staged_of(NAME, parquet_bytes())
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield bytes(100)

    with pytest.raises(ManifestMismatchError):
        place.fetch(file, lambda offset: endless())
    assert 100 * sent <= file.size_bytes + 100
    assert list((place.root / ".incoming").iterdir()) == []


@pytest.mark.parametrize("cut", range(0, len(parquet_bytes()), 97))
def test_an_upload_goes_on_wherever_it_was_cut(place: Arrivals, cut: int) -> None:
    content = parquet_bytes()
    file = staged_of(NAME, content)
    assert place.receive_part(file, [content[:cut]], 0) == cut
    assert not place.has(file)
    # The first part again, as if its answer was lost; then one too far on.
    assert place.receive_part(file, [b""], 0) == place.receive_part(file, [content], cut + 1) == cut
    assert place.receive_part(file, [content[cut:]], cut) == len(content)
    place.verify(file)
    # Also that may be repeated.
    assert place.receive_part(file, [content[cut:]], cut) == len(content)


def test_an_upload_that_was_killed_before_it_had_its_place_gets_it(place: Arrivals) -> None:
    content = parquet_bytes()
    file = staged_of(NAME, content)
    with pytest.raises(ConnectionError):
        place.fetch(file, Sender(content, breaks_at=len(content)))
    # The sender knows of no byte, and asks.
    assert place.receive_part(file, [], 0) == len(content)
    assert Path(place.path(NAME)).read_bytes() == content


@pytest.mark.parametrize("wrong", [parquet_bytes()[:-1] + b"!", parquet_bytes() + b"!"])
def test_an_upload_of_other_bytes_leaves_nothing(place: Arrivals, wrong: bytes) -> None:
    content = parquet_bytes()
    file = staged_of(NAME, content)
    place.receive_part(file, [wrong[:10]], 0)
    with pytest.raises(ManifestMismatchError):
        place.receive_part(file, [wrong[10:]], 10)
    assert not place.has(file)
    assert place.receive_part(file, [content], 0) == len(content)


def test_no_upload_takes_the_place_of_another_file(
    place: Arrivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = parquet_bytes(), parquet_bytes(pa.table({"id": [1, 2, 3, 4, 5]}))
    mine, theirs = staged_of(NAME, first), staged_of(NAME, second, rows=5)
    fill = place._fill

    def overtaken(*arguments: Any) -> int:
        monkeypatch.setattr(place, "_fill", fill)
        held = fill(*arguments)
        place.receive_part(mine, [first], 0)
        return held

    monkeypatch.setattr(place, "_fill", overtaken)
    for _ in ("overtaken", "too late"):
        with pytest.raises(ManifestMismatchError) as caught:
            place.receive_part(theirs, [second], 0)
        assert caught.value.definite and NAME in str(caught.value)
    place.verify(mine)


def test_a_disk_that_fails_is_said_in_the_projects_words(
    place: Arrivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = parquet_bytes()
    file, below = staged_of(NAME, content), staged_of(f"{NAME}/x", content)
    unreadable = OSError(errno.EIO, "the disk fails")
    monkeypatch.setattr(arrivals, "digest_of", lambda *_: (_ for _ in ()).throw(unreadable))
    with pytest.raises(StorageError, match="the disk fails"):
        place.fetch(file, Sender(content))
    monkeypatch.undo()
    place.fetch(file, nobody)
    # The directory of another file is this one.
    assert not place.has(below)
    with pytest.raises(StorageError):
        place.fetch(below, Sender(content))
