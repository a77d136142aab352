"""On which way files of a Delta table come into a commit table, and what to do if there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparktxlog.errors import CorruptLogError, InvalidRequestError, PayloadStoreError
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.worker.tables.adopted_files import (
    BucketSource,
    _BucketPlace,
    check_way,
    new_place,
    sizes_of,
)

ROOT, OLD = "s3://lake/site-a", "s3a://lake/raw/orders"


@pytest.mark.parametrize(
    ("source", "root", "way", "message", "hint"),
    [
        (OLD, ROOT, "clone", "is none of link, copy, move", ""),
        (OLD, ROOT, "link", "a bucket has no links", "within the bucket"),
        ("/data/orders", ROOT, "move", "a bucket has no links", "--files copy"),
        ("s3://raw/orders", ROOT, "copy", "in another bucket than", "AS SELECT"),
        ("gs://lake/orders", ROOT, "copy", "in another bucket", "provider's tools"),
        (OLD, None, "copy", "the commit tables of this site in a directory", "at a site whose"),
    ],
)
def test_a_way_that_there_is_not_is_refused_with_what_to_do(
    source: str, root: str | None, way: str, message: str, hint: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message) as refused:
        check_way(source, root, way)
    assert hint in (refused.value.hint or "")


def test_ways_that_there_are_pass() -> None:
    check_way(OLD, ROOT, "copy")
    check_way("/data/orders", ROOT, "copy")
    check_way("/data/orders", None, "move")


def test_a_whole_bucket_is_no_table() -> None:
    with pytest.raises(InvalidRequestError, match="is a whole bucket"):
        BucketSource.at("s3://lake")


def test_files_of_a_directory_are_sent_to_a_bucket(tmp_path: Path) -> None:
    old, store = tmp_path / "old", DiskStore(tmp_path / "bucket")
    (old / "p=1").mkdir(parents=True)
    (old / "p=1/a").write_bytes(b"rows")
    assert sizes_of(str(old), ["p=1/a", "gone"]) == {"p=1/a": 4}
    place = _BucketPlace(store, "site-a/uuid")
    place.take(str(old), ["p=1/a"], "copy")
    place.take(str(old), ["p=1/a"], "copy")
    place.write_first(b"{}")
    assert store.read("site-a/uuid/p=1/a") == b"rows"
    (old / "p=1/a").unlink()
    (old / "p=1/a").write_bytes(b"swor")
    with pytest.raises(CorruptLogError, match="is there already, with other bytes"):
        place.take(str(old), ["p=1/a"], "copy")
    place.remove()
    assert not [*store.list()]


def test_a_directory_that_is_not_here_is_said() -> None:
    with pytest.raises(PayloadStoreError, match="does not see /not/mounted"):
        new_place("file:/not/mounted", "http://127.0.0.1:7070")
