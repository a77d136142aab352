"""What a payload store promises."""

from __future__ import annotations

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
        store.write_file(name, b"")
