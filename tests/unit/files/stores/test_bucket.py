"""A bucket in memory: what a store does when an object comes, goes or changes meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import GenericError
from obstore.store import MemoryStore

from sparktxlog.errors import LyingStoreError, StorageError, StoreUnavailableError
from sparktxlog.files import foreign_files
from sparktxlog.files.foreign_files import Progress
from sparktxlog.files.stores import bucket
from sparktxlog.files.stores.bucket import BucketStore, bucket_store
from sparktxlog.files.stores.credentials.aws_signature import S3Keys
from sparktxlog.files.stores.proof import prove
from sparktxlog.files.stores.store import Created, Found
from sparktxlog.files.stores.store_settings import StoreSettings
from sparktxlog.model.buckets import BucketUrl, Provider

CUT = "HTTP error\n\nDebug source: kind: Body, source: IncompleteBody"


@pytest.fixture
def store() -> BucketStore:
    return BucketStore(MemoryStore(), "memory://bucket")


def _then(monkeypatch: pytest.MonkeyPatch, name: str, *ends: Callable[[], Any] | None) -> None:
    """Let calls of the library be carried out and end so; None = as they do."""
    real, left = getattr(obstore, name), list(ends)

    def call(*args: Any, **options: Any) -> Any:
        end = left.pop(0) if left else None
        result = real(*args, **options)
        return result if end is None else end()

    monkeypatch.setattr(obstore, name, call)


def _raising(error: Exception) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


def test_a_put_whose_answer_is_lost_is_ones_own(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _then(monkeypatch, "put", *[_raising(GenericError("kind: Timeout"))] * 2)
    assert store.create("a", b"x") is Created.NEW
    store.replace("a", b"y")
    assert store.read("a") == b"y"


def test_an_upload_that_is_found_no_more_was_finished(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _then(monkeypatch, "put", _raising(FileNotFoundError("no such upload")))
    store.in_parts().replace("a", b"x")
    assert store.read("a") == b"x"


def test_a_put_that_did_nothing_fails(store: BucketStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise GenericError("status code: 500 Internal")

    monkeypatch.setattr(obstore, "put", fail)
    for put in (store.create, store.replace):
        with pytest.raises(StoreUnavailableError, match="memory://bucket/a"):
            put("a", b"x")


def test_a_replacement_by_another_writer_is_not_ones_own(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.replace("a", b"x")

    def fail(*_: Any, **__: Any) -> Any:
        raise GenericError("status code: 500 Internal")

    monkeypatch.setattr(obstore, "put", fail)
    with pytest.raises(StoreUnavailableError):
        store.replace("a", b"x")


def test_what_was_in_the_way_and_is_gone_is_created(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("a", b"old")
    written = BucketStore._written

    def gone(self: BucketStore, key: str, failure: Exception) -> Any:
        monkeypatch.undo()
        self.remove([key])
        return written(self, key, failure)

    monkeypatch.setattr(BucketStore, "_written", gone)
    assert store.create("a", b"new") is Created.NEW
    assert store.read("a") == b"new"


def test_what_comes_and_goes_ends_with_an_error(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("a", b"old")
    monkeypatch.setattr(BucketStore, "_written", lambda *_: None)
    with pytest.raises(StorageError, match="was there and was not there"):
        store.create("a", b"new")


@pytest.mark.parametrize("name", ["copy", "put", "delete"])
def test_an_answer_that_is_cut_changes_nothing(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store.create("a", b"x")
    _then(monkeypatch, name, _raising(GenericError(CUT)))
    assert store.copy("a", "b") is Created.NEW
    assert store.create("c", b"x") is Created.NEW
    store.remove(["a"])
    assert {found.key for found in store.list()} == {"b", "c"}


def test_a_large_file_that_is_there_is_not_sent(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parted, file = store.in_parts(), tmp_path / "file"
    file.write_bytes(b"large")
    assert parted.create("a", file) is Created.NEW
    assert {found.key for found in store.list()} == {"a"}
    monkeypatch.delattr(obstore, "put")
    assert parted.create("a", file) is Created.EQUAL
    file.write_bytes(b"LARGE")
    assert parted.create("a", file) is Created.OTHER


def test_of_equal_large_files_one_is_first(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    parted, find = store.in_parts(), BucketStore.find

    def other_was_faster(self: BucketStore, key: str) -> None:
        monkeypatch.setattr(BucketStore, "find", find)
        store.create(key, b"large")

    monkeypatch.setattr(BucketStore, "find", other_was_faster)
    assert parted.create("a", b"large") is Created.EQUAL
    assert {found.key for found in store.list()} == {"a"}


def test_a_large_file_whose_name_nobody_else_gives_is_not_copied(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    parted = store.in_parts()
    monkeypatch.delattr(obstore, "copy")
    monkeypatch.setattr(bucket, "MOST_COPIED", 4)
    assert parted.create("a", b"large", alone=True) is Created.NEW
    assert parted.create("a", b"large", alone=True) is Created.EQUAL
    assert parted.create("a", b"LARGE", alone=True) is Created.OTHER
    assert {found.key for found in store.list()} == {"a"}


def test_an_upload_in_parts_shows_that_it_goes_on(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file of gigabytes takes minutes, and does not hang."""
    path, shown = tmp_path / "large", list[tuple[str, float]]()
    path.write_bytes(os.urandom(20 << 20))
    monkeypatch.setattr(
        bucket, "goes_on", lambda at, may_take_s=0.0: shown.append((at, may_take_s))
    )
    store.replace("a", path)
    assert shown.count(("memory://bucket/a", bucket._REQUEST_S)) >= 20
    assert shown[-1] == ("memory://bucket/a", 0.0), "what follows has no more time than others"
    assert store.read("a") == path.read_bytes()


def test_a_file_that_changes_while_it_is_sent_is_not_there(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(10 << 20))
    monkeypatch.setattr(bucket, "_size_of", lambda content: (10 << 20) + 1)
    with pytest.raises(StorageError, match="changed while it was sent"):
        store.replace("a", path)
    assert store.find("a") is None


def test_too_large_a_file_is_refused(store: BucketStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "MOST_COPIED", 4)
    with pytest.raises(StorageError, match="5 bytes"):
        store.in_parts().create("a", b"large")
    store.in_parts().replace("a", b"large")
    assert store.read("a") == b"large"


def test_what_no_request_copies_travels_in_pieces(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 refuses to copy an object of more than 5 GiB, by 400 and a text."""
    asked = list[str]()

    def refuse(client: Any, source: str, target: str, **_: Any) -> None:
        asked.append(target)
        raise GenericError("status code: 400 InvalidRequest: copy source is larger")

    monkeypatch.setattr(obstore, "copy", refuse)
    store.create("a", b"large")
    with pytest.raises(StorageError, match="memory://bucket/b"):
        store.copy("a", "b")
    assert store.find("b") is None, "it is not too large, so something else was wrong"
    monkeypatch.setattr(bucket, "MOST_COPIED", 4)
    assert store.copy("a", "b") is Created.NEW
    assert store.read("b") == b"large" == store.read("a")
    assert store.copy("a", "b") is not Created.OTHER, "it may be repeated"
    store.replace("b", b"other")
    assert store.copy("a", "b") is Created.OTHER
    assert store.read("b") == b"other"
    assert asked == ["b"] * 4


def test_a_copy_that_ends_early_puts_no_part_of_an_object(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "MOST_COPIED", 4)
    monkeypatch.setattr(obstore, "copy", lambda *_, **__: _raising(GenericError("400"))())
    content = os.urandom(20 << 20)
    store.replace("a", content)
    pieces = store._pieces

    def cut(*arguments: Any) -> Any:
        yield from islice(pieces(*arguments), 12)
        raise StorageError("the store went away")

    monkeypatch.setattr(store, "_pieces", cut)
    with pytest.raises(StorageError, match="went away"):
        store.copy("a", "b")
    assert store.find("b") is None
    monkeypatch.setattr(store, "_pieces", pieces)
    assert store.copy("a", "b") is Created.NEW
    assert store.read("b") == content


def test_an_upload_whose_end_fails_is_a_failure_of_the_store(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's writer sends the last part when it is closed, and fails as a file does."""
    away = bucket_store(
        BucketUrl(Provider.S3, "lake", ""),
        StoreSettings(
            endpoint="http://127.0.0.1:9",
            region="us-east-1",
            allow_http=True,
            keys=S3Keys("key", "secret"),
            patience_s=0.0,
        ),
    )
    store.create("a", b"large")
    monkeypatch.setattr(away, "open", store.open)
    with pytest.raises(StoreUnavailableError, match="asked to copy to it") as refused:
        away._pass_on("a", "b", "")
    assert not refused.value.definite


def test_an_object_that_is_replaced_while_it_is_read_is_not_mixed(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("a", bytes(3 << 20))
    opened = store.open("a")
    store.replace("a", bytes(4 << 20))

    class Cut:
        def stream(self, **_: Any) -> Any:
            yield bytes(1 << 20)
            raise GenericError(CUT)

    pieces = store._pieces(opened.found, Cut(), 0)  # type: ignore[arg-type]
    assert len(next(pieces)) == 1 << 20
    with pytest.raises(StorageError, match="was replaced"):
        list(pieces)


def test_a_server_that_ignores_conditions_of_a_read_mixes_nothing(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("a", b"12345")
    mark = store.open("a").found.mark
    store.replace("a", b"67890")
    real = obstore.get

    def get(client: Any, key: str, *, options: dict[str, Any]) -> Any:
        options.pop("if_match")
        return real(client, key, options=options)  # type: ignore[arg-type]

    monkeypatch.setattr(obstore, "get", get)
    with pytest.raises(StorageError, match="was replaced"):
        store._get("a", 2, None, mark, lambda got: bytes(got.bytes()))


def test_a_store_whose_marks_stay_is_refused(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read of an object is not read again while it has the same mark."""
    real = store.find

    def find(key: str) -> Found | None:
        found = real(key)
        return None if found is None else replace(found, mark="")

    monkeypatch.setattr(store, "find", find)
    with pytest.raises(LyingStoreError, match="other bytes have no other ETag"):
        prove(store)


def test_writers_that_race_show_that_the_proof_goes_on(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some stores let each wait for the one before: a start of a node waits for all."""
    shown, real = list[Progress | None](), store.copy

    def copy(source: str, target: str) -> Created:
        shown.append(foreign_files._PROGRESS.get())
        return real(source, target)

    def main() -> None:
        progress = Progress.begin("s3://bucket")
        prove(store, racers=2, races=1)
        assert shown and all(one is progress for one in shown)

    monkeypatch.setattr(store, "copy", copy)
    copy_context().run(main)


def test_what_a_killed_proof_leaves_is_where_the_bucket_removes_it(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "remove", lambda keys: killed())
    with pytest.raises(KeyboardInterrupt):
        prove(store)
    left = [found.key for found in store.list()]
    assert left and all(key.startswith(".incoming/") for key in left)


def test_an_answer_that_never_goes_on_ends(store: BucketStore) -> None:
    store.create("a", b"12345")

    class Nothing:
        def stream(self, **_: Any) -> Any:
            raise GenericError(CUT)

    found = store.open("a").found
    store._get = lambda *_: Nothing()  # type: ignore[assignment,method-assign]
    with pytest.raises(StoreUnavailableError, match="broke off"):
        list(store._pieces(found, Nothing(), 0))  # type: ignore[arg-type]


def test_a_list_that_is_cut_says_each_key_once(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(5):
        store.create(str(n), b"")
    real, cuts = obstore.list, [2, 3]

    def cut(*args: Any, **options: Any) -> Any:
        most = cuts.pop(0) if cuts else None
        for number, page in enumerate(real(*args, **options | {"chunk_size": 1})):
            if number == most:
                raise GenericError(CUT)
            yield page

    monkeypatch.setattr(obstore, "list", cut)
    assert [found.key for found in store.list()] == [str(n) for n in range(5)]
