"""A row table in a bucket, here in memory, is given back below another prefix, or on a disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from obstore.store import MemoryStore
from tests.support.replica_lakes import contents

from sparktxlog.errors import ApplyError, InvalidRequestError, StorageError
from sparktxlog.files.stores.bucket import BucketStore
from sparktxlog.files.stores.part import PartOfStore
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.tables.table_kind import TableDescription, TableKind
from sparktxlog.model.transactions.receipt import Level, Receipt
from sparktxlog.worker.tables import bucket_row_release
from sparktxlog.worker.tables.bucket_row_release import BucketRowRelease
from sparktxlog.worker.tables.release import release

LAKE = "s3://bucket/lake"
ROWS = TableDescription(name="orders", kind=TableKind.ROW_TABLE, last_write=7, position=9)
INFO = {"lake_root": "/lake", "lake_url": LAKE, "payload_url": "s3://bucket/staged"}
NODE: Any = Mock(get=lambda _: INFO | {"commit_table_url": "s3://bucket/tables"})
FILES = {commit_file_name(0): b"zero", commit_file_name(1): b"one", "p=1/a.parquet": b"rows"}
ATTIC = "_sparktxlog/attic/dropped-orders-12/content"


class Site:
    """A site whose worker moves a table to the attic as soon as it is dropped."""

    def __init__(self) -> None:
        self.bucket = BucketStore(MemoryStore(), "s3://bucket")
        for path, content in FILES.items():
            self.bucket.replace(f"lake/orders/{path}", content)
        self.done: list[object] = []

    def drop(self, name: str) -> Receipt:
        self.done.append(name)
        return Receipt(transaction_id="t", level=Level.ORDERED, n=1, position=12)

    def applied(self, seen: int | Receipt) -> None:
        self.done.append(seen)
        if isinstance(seen, Receipt):
            keys = [one.key for one in self.bucket.list("lake/orders")]
            for key in keys:
                path = key.removeprefix("lake/orders/")
                self.bucket.replace(f"lake/{ATTIC}/{path}", self.bucket.read(key))
            self.bucket.remove(keys)

    def release(self, path: str | None) -> Any:
        return release(ROWS, NODE, path, drop_rows=self.drop, applied=self.applied)

    def below(self, prefix: str) -> dict[str, bytes]:
        part = PartOfStore(self.bucket, prefix)
        return {one.key: part.read(one.key) for one in part.list()}


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site()
    monkeypatch.setattr(bucket_row_release, "store_of_job", lambda url: made.bucket)
    return made


def test_it_goes_below_another_prefix_of_its_bucket(site: Site) -> None:
    found = site.release("s3://bucket/back/orders")
    assert (found.path, found.dropped, found.position) == ("s3://bucket/back/orders", True, 12)
    assert site.below("back/orders") == FILES
    assert site.done[0] == 7, "the worker has all rows before the table is dropped"
    assert len(site.done) == 3


def test_it_goes_into_a_directory(site: Site, tmp_path: Path) -> None:
    found = site.release(str(tmp_path / "back"))
    assert found.path == str(tmp_path / "back") and contents(tmp_path / "back") == FILES
    assert [one.name for one in tmp_path.iterdir()] == ["back"]


def test_without_a_place_it_stays_in_the_attic(site: Site) -> None:
    assert site.release(None).path == f"{LAKE}/{ATTIC}"
    assert site.done == ["orders"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("s3://other/back", "no prefix in the bucket"),
        ("s3://bucket", "no prefix in the bucket"),
        ("s3://bucket/lake/back", "is in s3://bucket/lake"),
        ("s3a://bucket/lake/", "is in s3://bucket/lake"),
        ("s3://bucket/staged/back", "is in s3://bucket/staged"),
        ("s3://bucket/tables/back", "is in s3://bucket/tables"),
        ("s3://bucket/full", "has objects already"),
    ],
)
def test_a_wrong_place_is_refused_before_anything_happens(site: Site, path: str, why: str) -> None:
    site.bucket.replace("full/a", b"")
    with pytest.raises(InvalidRequestError, match=why) as caught:
        site.release(path)
    assert caught.value.definite and site.done == []


def test_what_is_in_the_way_is_named_and_a_repetition_goes_on(site: Site) -> None:
    goes_to = BucketRowRelease.of(LAKE, "s3://bucket/back")
    with pytest.raises(ApplyError, match="where this site's worker puts"):
        goes_to.bring("orders", 12)
    site.applied(site.drop("orders"))
    site.bucket.replace(f"back/{commit_file_name(1)}", b"of somebody else")
    with pytest.raises(StorageError, match="another object"):
        goes_to.bring("orders", 12)
    assert site.below(f"lake/{ATTIC}") == FILES, "nothing is lost"
    site.bucket.remove([f"back/{commit_file_name(1)}"])
    goes_to.bring("orders", 12)
    assert site.below("back") == FILES
