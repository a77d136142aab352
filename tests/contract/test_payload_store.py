"""What a payload store promises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
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


@pytest.mark.parametrize("cut", range(0, len(parquet_bytes()), 97))
def test_an_upload_goes_on_wherever_it_was_cut(store: LocalPayloadStore, cut: int) -> None:
    content = parquet_bytes()
    file = staged_of(NAME, content)
    assert store.receive_part(file, [content[:cut]], 0) == cut
    assert not store.has(file)
    # The first part again, as if its answer was lost; then one too far on.
    assert store.receive_part(file, [b""], 0) == store.receive_part(file, [content], cut + 1) == cut
    assert store.receive_part(file, [content[cut:]], cut) == len(content)
    store.verify(file)
    # Also that may be repeated.
    assert store.receive_part(file, [content[cut:]], cut) == len(content)


@pytest.mark.parametrize("wrong", [parquet_bytes()[:-1] + b"!", parquet_bytes() + b"!"])
def test_an_upload_of_other_bytes_leaves_nothing(store: LocalPayloadStore, wrong: bytes) -> None:
    content = parquet_bytes()
    file = staged_of(NAME, content)
    store.receive_part(file, [wrong[:10]], 0)
    with pytest.raises(ManifestMismatchError):
        store.receive_part(file, [wrong[10:]], 10)
    assert not store.has(file)
    assert store.receive_part(file, [content], 0) == len(content)


def test_no_upload_takes_the_place_of_another_file(
    store: LocalPayloadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = parquet_bytes(), parquet_bytes(pa.table({"id": [1, 2, 3, 4, 5]}))
    mine, theirs = staged_of(NAME, first), staged_of(NAME, second, rows=5)
    fill = store._fill

    def overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(store, "_fill", fill)
        fill(*arguments)
        store.receive_part(mine, [first], 0)

    monkeypatch.setattr(store, "_fill", overtaken)
    for _ in ("overtaken", "too late"):
        with pytest.raises(ManifestMismatchError) as caught:
            store.receive_part(theirs, [second], 0)
        assert caught.value.definite and NAME in str(caught.value)
    store.verify(mine)
