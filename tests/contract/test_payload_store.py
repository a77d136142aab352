"""What a payload store promises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.storage_samples import parquet_bytes, staged_of

from sparktxlog.errors import InvalidNameError, ManifestMismatchError, PayloadStoreError
from sparktxlog.storage.payloads.local_store import LocalPayloadStore

NAME = "0a0a/orders/part-0.parquet"


@pytest.fixture
def store(tmp_path: Path) -> LocalPayloadStore:
    return LocalPayloadStore(tmp_path / "payloads")


def test_a_file_that_matches_its_manifest_is_verified(store: LocalPayloadStore) -> None:
    content = parquet_bytes()
    file = staged_of(NAME, content)
    assert not store.has(file)
    store.write_file(NAME, content)
    store.verify(file)
    store.verify(file)
    assert store.has(file)


@pytest.mark.parametrize(
    "lie",
    [
        {"size_bytes": 5},
        {"rows": 4},
        {"digest": "0" * 64},
    ],
)
def test_a_file_that_differs_from_its_manifest_is_refused(
    store: LocalPayloadStore, lie: dict[str, object]
) -> None:
    content = parquet_bytes()
    store.write_file(NAME, content)
    with pytest.raises(ManifestMismatchError) as caught:
        store.verify(staged_of(NAME, content, **lie))
    assert caught.value.definite
    assert NAME in str(caught.value)


def test_a_file_that_is_no_parquet_is_refused(store: LocalPayloadStore) -> None:
    store.write_file(NAME, b"PAR1 but nothing else")
    with pytest.raises(ManifestMismatchError):
        store.verify(staged_of(NAME, b"PAR1 but nothing else"))


def test_a_missing_file_says_that_the_stores_differ(store: LocalPayloadStore) -> None:
    with pytest.raises(PayloadStoreError) as caught:
        store.verify(staged_of(NAME, b""))
    assert NAME in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["../x", "a/../../x", "/etc/passwd", "a//b", "a/./b", "a\\b", "a\0b", "", "a/", "x" * 1025],
)
def test_names_that_leave_the_root_are_refused(store: LocalPayloadStore, name: str) -> None:
    file = staged_of(name, b"")
    with pytest.raises(InvalidNameError):
        store.path(name)
    with pytest.raises(InvalidNameError):
        store.verify(file)
    with pytest.raises(InvalidNameError):
        store.receive(file, [b""])
    with pytest.raises(InvalidNameError):
        store.write_file(name, b"")


def test_a_fetched_file_is_put_in_place(store: LocalPayloadStore) -> None:
    content = parquet_bytes()
    file = staged_of(NAME, content)
    store.receive(file, [content[:10], content[10:]])
    store.verify(file)
    assert store.has(file)
    assert store.received_bytes(file) == 0


def broken(*chunks: bytes) -> Iterator[bytes]:
    yield from chunks
    raise ConnectionError("the link broke")


def test_a_broken_transfer_resumes(store: LocalPayloadStore) -> None:
    content = parquet_bytes()
    file = staged_of(NAME, content)
    with pytest.raises(ConnectionError):
        store.receive(file, broken(content[:10], content[10:25]))
    assert not store.has(file)
    assert store.received_bytes(file) == 25
    store.receive(file, [content[25:]], offset=25)
    store.verify(file)


def test_a_transfer_may_start_over_or_further_back(store: LocalPayloadStore) -> None:
    content = parquet_bytes()
    file = staged_of(NAME, content)
    with pytest.raises(ConnectionError):
        store.receive(file, broken(content[:30]))
    with pytest.raises(ConnectionError):
        store.receive(file, broken(content[20:22]), offset=20)
    assert store.received_bytes(file) == 22
    store.receive(file, [content])
    store.verify(file)


def test_a_transfer_cannot_resume_beyond_what_is_here(store: LocalPayloadStore) -> None:
    content = parquet_bytes()
    with pytest.raises(PayloadStoreError):
        store.receive(staged_of(NAME, content), [content[5:]], offset=5)


@pytest.mark.parametrize("sent", [b"short", parquet_bytes()[:-1] + b"!", parquet_bytes() + b"!"])
def test_a_wrong_transfer_leaves_nothing(store: LocalPayloadStore, sent: bytes) -> None:
    content = parquet_bytes()
    file = staged_of(NAME, content)
    with pytest.raises(ManifestMismatchError):
        store.receive(file, [sent])
    assert not store.has(file)
    assert store.received_bytes(file) == 0
    store.receive(file, [content])
    store.verify(file)
