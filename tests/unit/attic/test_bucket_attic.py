"""The attic of tables in a bucket: what an entry costs, and what goes on after a failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparktxlog.attic.attic import Kind
from sparktxlog.attic.bucket_attic import BucketAttic
from sparktxlog.errors import StoreUnavailableError
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.files.stores.store import Created, Found

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
