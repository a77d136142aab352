"""The lake that a path or a URL names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sparktxlog.attic.attic import OF_COMMIT_TABLES, OF_LAKE, Attic, attics_of
from sparktxlog.attic.bucket_attic import BucketAttic
from sparktxlog.errors import LockedError
from sparktxlog.files.stores.opening import store_at
from sparktxlog.files.stores.store_settings import StoreSettings
from sparktxlog.model.buckets import bucket_url, whole_bucket
from sparktxlog.worker.lakes.bucket_lake import BucketLake
from sparktxlog.worker.lakes.disk_lake import DiskLake
from sparktxlog.worker.lakes.lake import Lake
from sparktxlog.worker.lakes.payload_files import PayloadFiles, StagedInBucket, StagedOnDisk

if TYPE_CHECKING:
    from sparktxlog.files.stores.bucket import BucketStore

#: How long a request is repeated: what begins while a lock is held ends before it expires, unless
#: an answer stands still.
_PATIENCE_S = 20.0
#: An exchange of the lock is given up so soon that others follow before the lock expires.
_ANSWER_OF_LOCK_S = _PATIENCE_OF_LOCK_S = 5.0


def is_in_bucket(lake: str | Path) -> bool:
    """Return whether a lake is named by the URL of a bucket.

    Raises:
        ConfigError: The URL is of no store that is known (definite).
    """
    return not isinstance(lake, Path) and bucket_url(lake, "lake") is not None


def bucket_at(place: str, field: str = "lake") -> BucketStore:
    """Return the store of a lake in a bucket, as the environment of this process says.

    Args:
        field: What is there, for errors.

    Raises:
        ConfigError, MissingDependencyError: As `store_at`.
    """
    return _store_at(place, field, StoreSettings.of_environment(_PATIENCE_S))


def lock_store_at(place: str, field: str = "lake") -> BucketStore:
    """Return the store for the lock of a lake: a request that hangs fails in time for others.

    Args:
        field: As in `bucket_at`.

    Raises:
        ConfigError, MissingDependencyError: As `store_at`.
    """
    settings = StoreSettings.of_environment(_PATIENCE_OF_LOCK_S, _ANSWER_OF_LOCK_S)
    return _store_at(place, field, settings)


def _store_at(place: str, field: str, settings: StoreSettings) -> BucketStore:
    # A site on disks has no library for buckets, so their class is not imported.
    return cast("BucketStore", store_at(place, settings, field=field))


def payloads_at(payloads: str) -> PayloadFiles:
    """Return the files of a payload store, in a directory or in a bucket; only read.

    Raises:
        ConfigError, MissingDependencyError: As `store_at`.
    """
    place = bucket_url(payloads, "payloads")
    if place is None:
        return StagedOnDisk(Path(payloads))
    settings = StoreSettings.of_environment(_PATIENCE_S)
    bucket = store_at(whole_bucket(place), settings, field="payloads")
    return StagedInBucket(_store_at(payloads, "payloads", settings), bucket)


def attic_of(lake: str) -> BucketAttic:
    """Return the attic of a lake in a bucket, as the environment of this process says."""
    return BucketAttic(bucket_at(lake), OF_LAKE)


def attic_of_commit_tables(url: str) -> BucketAttic:
    """Return the attic of commit tables in a bucket, as the environment of this process says."""
    return BucketAttic(bucket_at(url, "commit-table-url"), OF_COMMIT_TABLES)


def attics_beside(info: Mapping[str, Any]) -> tuple[Attic | BucketAttic, ...]:
    """Return the attics of a site other than those of lakes.

    Args:
        info: Places of the site, as a node's answer of `/v1/info` has them.

    Raises:
        ConfigError, MissingDependencyError: Its commit tables lie in a bucket that this process
            cannot open (definite).
    """
    url = info.get("commit_table_url")
    return (*attics_of(info)[1:], *([attic_of_commit_tables(url)] if url else []))


def lake_at(lake: str | Path) -> Lake:
    """Return a lake that is only read."""
    if not is_in_bucket(lake):
        return DiskLake(Path(lake))
    return BucketLake(bucket_at(str(lake)), _refuse)


def _refuse() -> None:
    raise LockedError("this process only reads the lake", hint="A worker writes it.")
