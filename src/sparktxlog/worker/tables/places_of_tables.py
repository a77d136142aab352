"""Where a job of a site finds the commit tables: by what the catalog says, and its environment."""

from __future__ import annotations

from pathlib import Path

from sparktxlog.files.stores.opening import store_at
from sparktxlog.files.stores.store import Store
from sparktxlog.files.stores.store_settings import StoreSettings
from sparktxlog.model.buckets import bucket_url
from sparktxlog.storage.commit_tables.bucket_tables import BucketTables
from sparktxlog.storage.commit_tables.directory_tables import DirectoryTables, directory_of
from sparktxlog.storage.commit_tables.shared_tables import SharedTables


def tables_below(root: str, reader_root: Path | None = None) -> SharedTables:
    """Return all commit tables of a site.

    Args:
        root: Their directory, or the URL of their prefix in a bucket, which is reached by the
            credentials of this process.
        reader_root: That of the reader tables, None = there are none.

    Raises:
        ConfigError: No store here has such URLs, or the environment does not fit (definite).
        MissingDependencyError: The extra for the bucket's provider is not installed (definite).
    """
    if bucket_url(root, "location") is None:
        return DirectoryTables(directory_of(root), reader_root)
    return BucketTables(store_of_job(root))


def store_of_job(url: str) -> Store:
    """Return the store at a URL, reached by the environment of this process; as `tables_below`."""
    return store_at(url, StoreSettings.of_environment(), field="location")


def tables_beside(location: str) -> SharedTables:
    """Return all commit tables of the site of one; errors as `tables_below`.

    Args:
        location: Of the one, as the catalog says it.
    """
    return tables_below(location.rstrip("/").rpartition("/")[0])
