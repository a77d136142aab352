"""The attic of tables in a bucket: what an entry costs, and what goes on after a failure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path

import msgspec
import pytest

from sparktxlog.attic.attic import Entry, Kind
from sparktxlog.attic.bucket_attic import BucketAttic
from sparktxlog.errors import InvalidRequestError, StoreUnavailableError
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.files.stores.store import Created, Found, Store

WHY = "a copy replaces its files"


class Listed(DiskStore):
    """Notes which directories are listed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: list[str] = []

    def list(self, prefix: str = "") -> Iterator[Found]:
        self.asked.append(prefix)
        return super().list(prefix)


@pytest.fixture
def store(tmp_path: Path) -> Listed:
    found = Listed(tmp_path / "bucket")
    for key in ("_delta_log/0.json", "a.parquet", "b.parquet"):
        found.create(f"t/{key}", key.encode())
    return found


def test_an_entry_is_made_without_a_list_of_the_others(store: Listed) -> None:
    """They may have millions of objects, and a node that forks makes one for each table."""
    attic = BucketAttic(store, "attic")
    store.create("attic/dropped-other-1/content/c.parquet", b"x")
    kept = attic.keep("t", kind=Kind.BACKUP, table="t", mark="c", why=WHY)
    moved = attic.put("t", kind=Kind.BACKUP, table="t", mark="c", why=WHY)
    assert (kept.id, moved.id) == ("backup-t-c", "backup-t-c-2")
    newest = attic.newest(Kind.BACKUP, "t", "c")
    assert newest is not None and newest.id == moved.id
    assert attic.newest(Kind.BACKUP, "t", "d") is None
    begins = ("t", "attic/backup-t-c", "attic/backup-t-d")
    assert [one for one in store.asked if not one.startswith(begins)] == []
    assert [one.id for one in attic.whole("t")] == [kept.id, moved.id]


def test_a_copy_that_fails_goes_on_and_leaves_nothing_behind(
    store: Listed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker tries again for hours: each attempt would leave most of the table, for ever."""
    attic, copy = BucketAttic(store, "attic"), DiskStore.copy
    failed: list[str] = []

    def away(self: DiskStore, source: str, target: str) -> Created:
        if source == "t/b.parquet":
            failed.append(source)
            raise StoreUnavailableError("away")
        return copy(self, source, target)

    monkeypatch.setattr(DiskStore, "copy", away)
    for _ in range(3):
        with pytest.raises(StoreUnavailableError):
            attic.keep("t", kind=Kind.BACKUP, table="t", mark="c", why=WHY)
    monkeypatch.setattr(DiskStore, "copy", copy)
    # As long as before, so sizes do not show it.
    store.replace("t/a.parquet", b"A.PARQUET")
    kept = attic.keep("t", kind=Kind.BACKUP, table="t", mark="c", why=WHY)
    assert attic.ids() == {kept.id} == {"backup-t-c"} and len(failed) == 3
    assert store.read("attic/backup-t-c/content/a.parquet") == store.read("t/a.parquet")
    (entry,) = attic.entries()
    assert entry.at and attic.measured(entry)[0] == 3


class Interrupted(DiskStore):
    """Lets another process do something before one of its calls."""

    def __init__(self, root: Path, at: int, other: Callable[[], object]) -> None:
        super().__init__(root)
        self.calls, self._at, self._other = 0, at, other

    def _called(self) -> None:
        self.calls += 1
        if self.calls == self._at:
            self._other()

    def find(self, key: str) -> Found | None:
        self._called()
        return super().find(key)

    def read(self, key: str, *, offset: int = 0, size: int | None = None) -> bytes:
        self._called()
        return super().read(key, offset=offset, size=size)

    def replace(self, key: str, content: bytes | Path) -> None:
        self._called()
        super().replace(key, content)

    def copy(self, source: str, target: str) -> Created:
        self._called()
        return super().copy(source, target)

    def list(self, prefix: str = "") -> Iterator[Found]:
        self._called()
        return super().list(prefix)

    def remove(self, keys: Iterable[str]) -> None:
        self._called()
        super().remove(keys)


@pytest.mark.parametrize("first", ["put", "emptied"])
def test_what_is_put_into_an_old_entry_is_not_emptied_with_it(tmp_path: Path, first: str) -> None:
    """A node sets an object aside while `maintain` empties the attic: in each order of steps."""

    def put(store: Store) -> None:
        BucketAttic(store, "attic").take("t/new", "p", kind=Kind.FILES, why=WHY, table="t")

    def emptied(store: Store) -> None:
        BucketAttic(store, "attic").empty(2_000_000)

    for at in count(1):
        root = tmp_path / str(at)
        plain = DiskStore(root)
        plain.create("t/new", b"new bytes")
        old = Entry(id="files-t", kind=Kind.FILES, why=WHY, table="t", at=1_000_000)
        plain.create("attic/files-t/manifest.json", msgspec.json.encode(old))
        plain.create("attic/files-t/content/p", b"old bytes")
        one, other = (put, emptied) if first == "put" else (emptied, put)
        store = Interrupted(root, at, lambda other=other, plain=plain: other(plain))  # type: ignore[misc]
        one(store)
        if store.calls < at:
            break
        kept = {
            plain.read(found.key)
            for entry in BucketAttic(plain, "attic").entries()
            for found in plain.list(f"attic/{entry.id}/content")
        }
        assert b"new bytes" in kept and plain.find("t/new") is None, at
        assert not [one.key for one in plain.list("attic") if one.key.endswith("removing")], at
    assert at > 5


def test_what_took_the_place_of_an_object_is_not_removed_without_a_copy(
    store: Listed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread set the object aside meanwhile, and placed the right one."""
    copy, key = DiskStore.copy, "t/a.parquet"

    def copied(self: DiskStore, source: str, target: str) -> Created:
        self.remove([key])
        try:
            return copy(self, source, target)
        finally:
            self.create(key, b"the right one")

    monkeypatch.setattr(DiskStore, "copy", copied)
    BucketAttic(store, "attic").take(key, "a.parquet", kind=Kind.FILES, why=WHY, table="t")
    assert store.read(key) == b"the right one"


@pytest.mark.parametrize("later", [True, False])
def test_a_table_that_was_made_after_a_broken_move_bars_no_entry(
    store: Listed, tmp_path: Path, later: bool
) -> None:
    """A kill left the mark of a move whose table was gone, and the next table looks like it."""
    attic = BucketAttic(store, "attic")
    entry = attic.put("t", kind=Kind.DROPPED, table="t", mark="7", why=WHY)
    store.create(f"attic/{entry.id}/moving", b"")
    whole = store.find(f"attic/{entry.id}/manifest.json")
    assert whole is not None
    # The first commits of two tables have one path, and often one size.
    store.create("t/_delta_log/0.json", b"_DELTA_LOG/0.JSON")
    made = whole.changed_s + (2.0 if later else -2.0)
    os.utime(store.url_of("t/_delta_log/0.json"), (made, made))
    (found,) = attic.entries()
    assert bool(found.at) is later
    if later:
        attic.restore(found, tmp_path / "back")
        assert attic.empty(entry.at + 1).removed == [found]
        assert [one.key for one in store.list()] == ["t/_delta_log/0.json"]
        return
    with pytest.raises(InvalidRequestError, match="was killed while it did"):
        attic.restore(found, tmp_path / "back")
    assert attic.put("t", kind=Kind.DROPPED, table="t", mark="7", why=WHY).id == entry.id
    assert not [*store.list("t")] and attic.entries()[0].at
