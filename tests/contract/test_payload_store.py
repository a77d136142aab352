"""What a payload store promises."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support import store_servers
from tests.support.faulty_way import Fault, faulty_way
from tests.support.storage_samples import TemporaryJournal, parquet_bytes, staged_of
from tests.support.store_servers import BUCKET, StoreServer, opened

from sparktxlog.errors import (
    InvalidNameError,
    ManifestMismatchError,
    PayloadStoreError,
    StoreUnavailableError,
    TransportError,
)
from sparktxlog.files.last_use import LastUse
from sparktxlog.files.stores.store import Found
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.payloads.bucket_expiry import upkeep_of
from sparktxlog.storage.payloads.bucket_payloads import BucketPayloads
from sparktxlog.storage.payloads.local_store import LocalPayloadStore
from sparktxlog.storage.payloads.payload_store import PayloadStore
from sparktxlog.storage.site_bucket import SiteBucket

OWNER = "0a0a0a0a-0000-4000-8000-000000000000"
NAME = f"{OWNER}/orders/part-0.parquet"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with store_servers.seaweedfs(tmp_path_factory.mktemp("server") / "state") as running:
        yield running


@pytest.fixture(params=["directory", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> PayloadStore:
    if request.param == "directory":
        return LocalPayloadStore(tmp_path / "payloads")
    server: StoreServer = request.getfixturevalue("server")
    bucket = SiteBucket(server.store(tmp_path.name), lambda: None, "payload-url", "the files")
    return BucketPayloads(bucket, tmp_path / "payloads")


def read(store: PayloadStore, file: StagedFile) -> bytes:
    with store.sendable(file).open() as content:
        found = content.readall()
    assert found is not None
    return found


def test_a_file_that_matches_its_manifest_is_verified(store: PayloadStore) -> None:
    content = parquet_bytes()
    file = staged_of(NAME, content)
    store.write_file(NAME, content)
    store.verify(file)
    store.verify(file)


@pytest.mark.parametrize(
    "lie",
    [
        {"size_bytes": 5},
        {"rows": 4},
        {"digest": "0" * 64},
    ],
)
def test_a_file_that_differs_from_its_manifest_is_refused(
    store: PayloadStore, lie: dict[str, object]
) -> None:
    content = parquet_bytes()
    store.write_file(NAME, content)
    with pytest.raises(ManifestMismatchError) as caught:
        store.verify(staged_of(NAME, content, **lie))
    assert caught.value.definite
    assert NAME in str(caught.value)


def test_a_file_that_is_no_parquet_is_refused(store: PayloadStore) -> None:
    store.write_file(NAME, b"PAR1 but nothing else")
    with pytest.raises(ManifestMismatchError):
        store.verify(staged_of(NAME, b"PAR1 but nothing else"))


def test_a_missing_file_says_that_the_stores_differ(store: PayloadStore) -> None:
    with pytest.raises(PayloadStoreError) as caught:
        store.verify(staged_of(NAME, b""))
    assert NAME in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["../x", "a/../../x", "/etc/passwd", "a//b", "a/./b", "a\\b", "a\0b", "", "a/", "x" * 1025],
)
def test_names_that_leave_the_root_are_refused(store: PayloadStore, name: str) -> None:
    file = staged_of(name, b"")
    with pytest.raises(InvalidNameError):
        store.path(name)
    with pytest.raises(InvalidNameError):
        store.verify(file)
    with pytest.raises(InvalidNameError):
        store.write_file(name, b"")


def test_published_files_are_read_once_they_are_synced(store: PayloadStore) -> None:
    content = parquet_bytes()
    file = staged_of("inline/1-7/orders-0.parquet", content)
    for attempt in (b"of an interrupted call", content):
        store.write_file(file.path, attempt)
    store.sync([file.path])
    assert read(store, file) == content
    store.verify(file)


def test_a_file_comes_from_a_peer_once(store: PayloadStore) -> None:
    content = parquet_bytes()
    file = staged_of(NAME, content)
    asked: list[int] = []

    def sent(offset: int) -> Iterator[bytes]:
        asked.append(offset)
        yield content[offset:]

    store.fetch(file, sent)
    store.fetch(file, sent)
    assert asked == [0]
    assert store.has(file)
    assert read(store, file) == content


def test_a_transfer_goes_on_where_it_broke(store: PayloadStore) -> None:
    content = parquet_bytes()
    file = staged_of(NAME, content)

    def broken(offset: int) -> Iterator[bytes]:
        yield content[:100]
        raise TransportError("the link broke")

    with pytest.raises(TransportError):
        store.fetch(file, broken)
    assert not store.has(file)
    asked: list[int] = []

    def rest(offset: int) -> Iterator[bytes]:
        asked.append(offset)
        yield content[offset:]

    store.fetch(file, rest)
    assert asked == [100]
    assert read(store, file) == content


def test_a_peer_that_sends_another_file_leaves_nothing(store: PayloadStore) -> None:
    content = parquet_bytes()
    file = staged_of(NAME, content)
    with pytest.raises(ManifestMismatchError):
        store.fetch(file, lambda offset: [b"x" * len(content)])
    assert not store.has(file)
    with pytest.raises(PayloadStoreError):
        store.verify(file)


def test_an_upload_in_parts_is_held_once_it_is_verified(store: PayloadStore) -> None:
    content = parquet_bytes()
    file = staged_of(NAME, content)
    assert store.receive_part(file, [], 0) == 0
    assert store.receive_part(file, [content[:50]], 0) == 50
    assert store.receive_part(file, [content[:50]], 0) == 50, "its answer was lost"
    assert store.receive_part(file, [content[50:]], 50) == len(content)
    store.verify(file)
    with store.at_hand(file) as path:
        assert path.read_bytes() == content
    assert read(store, file) == content
    assert store.receive_part(file, [content], 0) == len(content)


def test_the_name_of_a_held_file_is_not_given_again(store: PayloadStore) -> None:
    content, other = parquet_bytes(), parquet_bytes(pa.table({"id": [1, 2, 3, 4, 5]}))
    file, second = staged_of(NAME, content), staged_of(NAME, other, rows=5)
    store.receive_part(file, [content], 0)
    store.verify(file)
    with store.at_hand(file):
        pass
    with pytest.raises(ManifestMismatchError):
        store.receive_part(second, [other], 0)
    store.forget_verified(NAME)
    store.verify(file)


def test_what_is_taken_in_is_described_and_at_hand(store: PayloadStore) -> None:
    taken = store.take_in({"c/a.bin": b"one", "c/_log/0.json": b"two"})
    assert [(file.path, file.size_bytes, file.rows) for file in taken] == [
        ("c/a.bin", 3, 0),
        ("c/_log/0.json", 3, 0),
    ]
    for file, content in zip(taken, (b"one", b"two"), strict=True):
        store.verify(file)
        for _ in range(2):  # again after a kill
            with store.at_hand(file) as path:
                assert path.read_bytes() == content
        assert read(store, file) == content
    kept = store.kept_copy("c/a.bin")
    assert kept is not None
    assert kept.read_bytes() == b"one"
    assert store.kept_copy("c/none.bin") is None


def test_a_removed_file_is_gone_everywhere(store: PayloadStore) -> None:
    upkeep, content = upkeep_of(store), parquet_bytes()
    file = staged_of(NAME, content)
    store.fetch(file, lambda offset: [content[offset:]])
    size = upkeep.size_bytes()
    assert upkeep.remove([NAME]) == 1
    assert not store.has(file)
    with pytest.raises(PayloadStoreError):
        store.verify(file)
    assert size - upkeep.size_bytes() >= len(content)


def test_inline_files_go_with_their_positions(store: PayloadStore) -> None:
    upkeep, content = upkeep_of(store), parquet_bytes()
    names = ["inline/1-7/orders-0.parquet", "inline/8-9/orders-0.parquet"]
    for name in names:
        store.write_file(name, content)
    store.sync(names)
    assert upkeep.remove_inline(7) == 1
    assert not store.has(staged_of(names[0], content))
    assert store.has(staged_of(names[1], content))


def test_files_that_no_transaction_names_go_once_they_are_old(store: PayloadStore) -> None:
    upkeep, journal, content = upkeep_of(store), TemporaryJournal(), parquet_bytes()
    file = staged_of(NAME, content)
    store.fetch(file, lambda offset: [content[offset:]])
    assert upkeep.remove_unnamed(journal, 0, 3_600) == 0
    assert upkeep.remove_unnamed(journal, 0, -60) == 0, "its submit may be under way"
    assert isinstance(store, (BucketPayloads, LocalPayloadStore))
    for one in (store, store.here) if isinstance(store, BucketPayloads) else (store,):
        one.last_use = LastUse()  # it was verified long ago
    assert upkeep.remove_unnamed(journal, 0, 3_600, given_up=[OWNER]) == 1
    assert not store.has(file)


def test_a_submit_under_way_is_remembered_however_many_follow(
    store: PayloadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("files.arrivals", "storage.payloads.bucket_payloads"):
        monkeypatch.setattr(f"sparktxlog.{module}._REMEMBERED", 2)
    upkeep, journal, content = upkeep_of(store), TemporaryJournal(), parquet_bytes()
    for number in range(4):
        store.fetch(
            staged_of(f"{uuid.UUID(int=number)}/t/part-0.parquet", content),
            lambda offset: [content[offset:]],
        )
    assert upkeep.remove_unnamed(journal, 0, -60) == 0


def test_an_expired_file_that_is_submitted_again_meanwhile_stays(store: PayloadStore) -> None:
    upkeep, content = upkeep_of(store), parquet_bytes()
    file = staged_of(NAME, content)
    store.fetch(file, lambda offset: [content[offset:]])
    looked_s = time.monotonic()  # at what transactions name
    store.verify(file)
    assert upkeep.remove([NAME], used_before=looked_s) == 0
    store.verify(file)
    assert upkeep.remove([NAME], used_before=time.monotonic() + 1) == 1
    assert not store.has(file)


def bucket_of(request: pytest.FixtureRequest, directory: Path) -> BucketPayloads:
    server: StoreServer = request.getfixturevalue("server")
    bucket = SiteBucket(server.store(directory.name), lambda: None, "payload-url", "the files")
    return BucketPayloads(bucket, directory / "payloads")


def test_an_object_is_not_taken_for_the_one_of_which_a_part_came_before(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """What is compared is all of one object: the part that is here came from elsewhere."""
    store, content = bucket_of(request, tmp_path), parquet_bytes()
    file = staged_of(NAME, content)

    def broken(offset: int) -> Iterator[bytes]:
        yield content[:100]
        raise TransportError("the link broke")

    with pytest.raises(TransportError):
        store.fetch(file, broken)
    store.proved.create(NAME, b"?" * 50 + content[50:])
    with pytest.raises(ManifestMismatchError):
        store.verify(file)
    store.fetch(file, lambda offset: [content[offset:]])
    assert read(store, file) == content


def test_an_object_is_not_removed_between_a_look_at_it_and_its_submit(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, content = bucket_of(request, tmp_path), parquet_bytes()
    file, removed = staged_of(NAME, content), list[int]()
    store.fetch(file, lambda offset: [content[offset:]])
    store.last_use = LastUse()  # it was compared long ago
    upkeep = threading.Thread(
        target=lambda: removed.append(upkeep_of(store).remove_unnamed(TemporaryJournal(), 0, -60))
    )
    find, waiting, turn = store._store.find, threading.Event(), BucketPayloads._turn

    def noted(self: BucketPayloads, name: str) -> AbstractContextManager[None]:
        waiting.set()
        return turn(self, name)

    def looked(key: str) -> Found | None:
        found = find(key)
        monkeypatch.setattr(store._store, "find", find)  # upkeep looks, too
        monkeypatch.setattr(BucketPayloads, "_turn", noted)
        upkeep.start()
        assert waiting.wait(30)
        return found

    monkeypatch.setattr(store._store, "find", looked)
    store.verify(file)
    upkeep.join(30)
    assert removed == [0]
    assert store.has(file)


def test_a_bucket_that_is_away_holds_the_publisher_up_for_a_moment_only(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: StoreServer = request.getfixturevalue("server")
    with faulty_way(server.endpoint, lambda method: Fault.THROTTLED) as way:
        patient = opened(f"s3://{BUCKET}/{tmp_path.name}", server.settings(way.url))
        soon = opened(f"s3://{BUCKET}/{tmp_path.name}", server.settings(way.url, patience_s=1))
        bucket = SiteBucket(patient, lambda: None, "payload-url", "the files")
        store = BucketPayloads(bucket, tmp_path / "payloads", soon)
        name, began = "inline/1-1/t.parquet", time.monotonic()
        store.write_file(name, parquet_bytes())
        with pytest.raises(StoreUnavailableError):
            store.sync([name])
        with pytest.raises(StoreUnavailableError):
            upkeep_of(store).remove_inline(1)
        assert time.monotonic() - began < 30
        way.choose = lambda method: Fault.NONE
        store.sync([name])
        assert upkeep_of(store).remove_inline(1) == 1


def test_bytes_from_before_the_bucket_are_counted(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store, content = bucket_of(request, tmp_path), parquet_bytes()
    store.fetch(staged_of(NAME, content), lambda offset: [content[offset:]])
    (store.root / "earlier").mkdir()
    before = upkeep_of(store).size_bytes()
    (store.root / "earlier" / "part-0.parquet").write_bytes(content)
    assert upkeep_of(store).size_bytes() - before == len(content) < before


def test_what_others_have_in_the_prefix_is_not_removed(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Such as another site's prefix in this one: no setting of this site shows it."""
    store, journal = bucket_of(request, tmp_path), TemporaryJournal()
    staged = str(uuid.uuid4())
    others = ["site-b/a.parquet", f"site-b/{staged}/b.parquet"]
    for key in (*others, f"{staged}/orders/c.parquet"):
        store.proved.create(key, b"rows")
    assert upkeep_of(store).remove_unnamed(journal, 0, -60) == 1
    assert sorted(one.key for one in store.proved.list()) == sorted(others)
