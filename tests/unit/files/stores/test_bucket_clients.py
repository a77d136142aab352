"""Which client a bucket gets, and that a copy is made by the way that its server keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PermissionDeniedError
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from sparktxlog.errors import ConfigError, LyingStoreError, StorageError
from sparktxlog.files.stores.bucket import BucketStore
from sparktxlog.files.stores.bucket_clients import client_of
from sparktxlog.files.stores.store import Created
from sparktxlog.files.stores.store_settings import StoreSettings
from sparktxlog.model.buckets import BucketUrl, Provider

_SERVER = StoreSettings(endpoint="http://127.0.0.1:9", region="us-east-1", allow_http=True)


def test_servers_of_s3_differ_in_how_they_copy() -> None:
    client = client_of(BucketUrl(Provider.S3, "lake", "x"), _SERVER)
    assert client.copying_otherwise is not None
    ways = [found.config["copy_if_not_exists"] for found in _s3(client.library, client)]
    assert ways == ["header: if-none-match: *", "multipart"]


def _s3(*found: Any) -> Sequence[S3Store]:
    library, client = found
    clients = library, client.copying_otherwise()
    assert all(isinstance(one, S3Store) and one.prefix == "x" for one in clients)
    return clients


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        (BucketUrl(Provider.AZURE, "lake", "x", "account"), AzureStore),
        (BucketUrl(Provider.GOOGLE, "lake", "x"), GCSStore),
    ],
)
def test_other_providers_have_one_way(
    place: BucketUrl, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    client = client_of(place, StoreSettings())
    assert isinstance(client.library, kind) and client.copying_otherwise is None


def test_a_variable_that_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "perhaps")
    with pytest.raises(ConfigError, match="cannot read a variable") as caught:
        client_of(BucketUrl(Provider.S3, "lake", "x"), _SERVER)
    assert "perhaps" not in str(caught.value)


class Server:
    """Two clients of one bucket; copies by each end as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first: Any, second: Any) -> None:
        self.bucket, self.other = MemoryStore(), MemoryStore()
        self.ends = {id(self.bucket): first, id(self.other): second}
        self.asked: list[str] = []
        self.store = BucketStore(
            self.bucket, "memory://bucket", copying_otherwise=lambda: self.other
        )
        self._copy = obstore.copy
        monkeypatch.setattr(obstore, "copy", self.copy)

    def copy(self, client: MemoryStore, source: str, target: str, *, overwrite: bool) -> None:
        self.asked.append("first" if client is self.bucket else "second")
        if isinstance(end := self.ends[id(client)], Exception):
            raise end
        self._copy(self.bucket, source, target, overwrite=end)


_REPLACES, _KEEPS = True, False


@pytest.mark.parametrize(
    ("first", "tried", "way"),
    [
        (_KEEPS, 1, "first"),
        (_REPLACES, 2, "second"),
        (GenericError("Server returned non-2xx status code: 501 Not Implemented"), 2, "second"),
        (
            GenericError("status code: 400 Bad: <Error><Code>InvalidArgument</Code></Error>"),
            2,
            "second",
        ),
    ],
)
def test_the_way_that_keeps_the_condition_copies(
    monkeypatch: pytest.MonkeyPatch, first: Any, tried: int, way: str
) -> None:
    server = Server(monkeypatch, first, _KEEPS)
    store = server.store
    store.create("a", b"1")
    store.create("b", b"2")
    made = [store.copy("a", "c"), store.copy("b", "c"), store.copy("a", "d")]
    assert made == [Created.NEW, Created.OTHER, Created.NEW]
    assert server.asked[tried:] == [way] * 3
    assert {found.key: store.read(found.key) for found in store.list()} == {
        "a": b"1",
        "b": b"2",
        "c": b"1",
        "d": b"1",
    }


def test_a_server_that_overwrites_by_both_copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Server(monkeypatch, _REPLACES, _REPLACES).store
    store.create("a", b"1")
    with pytest.raises(LyingStoreError, match="of a copy, and of the end of an upload"):
        store.copy("a", "b")
    assert [found.key for found in store.list()] == ["a"]


def test_a_server_without_copies_does_not_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = GenericError("Server returned non-2xx status code: 501 Not Implemented")
    store = Server(monkeypatch, absent, absent).store
    store.create("a", b"1")
    with pytest.raises(StorageError, match="501") as caught:
        store.copy("a", "b")
    assert not isinstance(caught.value, LyingStoreError)


@pytest.mark.parametrize(
    "failure",
    [
        PermissionDeniedError("Server returned non-2xx status code: 403 Forbidden"),
        GenericError("Server returned non-2xx status code: 503 Slow Down"),
        GenericError("status code: 400 Bad Request: <Error><Code>RequestTimeout</Code></Error>"),
        GenericError("status code: 400 Bad Request: <Error><Code>ExpiredToken</Code></Error>"),
    ],
)
def test_a_failure_says_nothing_of_the_condition(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    server = Server(monkeypatch, failure, _KEEPS)
    server.store.create("a", b"1")
    with pytest.raises(StorageError) as caught:
        server.store.copy("a", "b")
    assert not isinstance(caught.value, LyingStoreError)
    server.ends[id(server.bucket)] = _KEEPS
    assert server.store.copy("a", "b") is Created.NEW
    assert "second" not in server.asked


def test_answers_that_are_lost_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repetition finds what the first attempt put."""
    server = Server(monkeypatch, _KEEPS, _KEEPS)
    server.store.create("a", b"1")
    real = obstore.put

    def put(*args: Any, **options: Any) -> Any:
        real(*args, **options)
        raise AlreadyExistsError("Server returned non-2xx status code: 412 Precondition Failed")

    monkeypatch.setattr(obstore, "put", put)
    assert server.store.copy("a", "b") is Created.NEW
