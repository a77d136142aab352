"""What is backed up of a table in a bucket."""

from __future__ import annotations

import threading

import pytest
from obstore.store import MemoryStore

from sparktxlog.files.stores.bucket import BucketStore
from sparktxlog.worker.backup import originals
from sparktxlog.worker.backup.originals import StoredTable


def test_a_log_is_read_a_few_files_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """All commits of a table may be more than the memory of the machine."""
    store = BucketStore(MemoryStore(), "s3://lake/tables")
    lock, read = threading.Lock(), list[str]()
    monkeypatch.setattr(originals, "store_of_job", lambda url: store)
    paths = [f"_delta_log/{version:020}.json" for version in range(100)]
    for number, path in enumerate(paths):
        store.create(f"t/{path}", b"%d" % number)
    get = store.read

    def noted(key: str) -> bytes:
        with lock:
            read.append(key)
        return get(key)

    monkeypatch.setattr(store, "read", noted)
    contents = iter(StoredTable(store, "t").read_all(paths))
    assert [next(contents), next(contents)] == [b"0", b"1"]
    assert len(read) <= 2 + originals._AT_ONCE
    assert [*contents] == [b"%d" % number for number in range(2, 100)]
    assert [*StoredTable(store, "t").read_all(paths[:3])] == [b"0", b"1", b"2"]
    assert [*StoredTable(store, "t").read_all([])] == []
