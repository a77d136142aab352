"""The store that a path or a URL names."""

from __future__ import annotations

from pathlib import Path

from sparktxlog.errors import ConfigError, MissingDependencyError
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.files.stores.store import Store
from sparktxlog.files.stores.store_settings import StoreSettings
from sparktxlog.model.buckets import bucket_url
from sparktxlog.model.ids import local_path


def store_at(url: str, settings: StoreSettings | None = None, *, field: str = "store") -> Store:
    """Return the store at a directory of this machine, or in a bucket; nothing is asked of it yet.

    Args:
        url: An absolute path, `s3://bucket/prefix`, `gs://bucket/prefix` or
            `abfss://container@account.dfs.core.windows.net/prefix`.
        settings: How buckets are reached; None = all by the environment.
        field: Name of the setting or option, for errors.

    Raises:
        ConfigError: It names no such place, or the settings do not fit (definite).
        MissingDependencyError: The extra for its provider is not installed (definite).
        InvalidRequestError: It is a file URL of another machine (definite).
    """
    place = bucket_url(url, field)
    if place is None:
        path = Path(local_path(url, field))
        if not path.is_absolute():
            raise ConfigError(
                f"{field} is {url[:200]!r}, no absolute path and no URL",
                hint="Name a path such as /data/lake, or a bucket such as s3://bucket/prefix.",
                key=field,
                value=url[:200],
            )
        return DiskStore(path)
    try:
        from sparktxlog.files.stores.bucket import bucket_store
    except ImportError as error:
        raise MissingDependencyError(
            f"{field} is {place.url}, and what reaches buckets is not installed",
            hint=f'Run: pip install "sparktxlog[{place.provider.value}]"',
        ) from error
    return bucket_store(place, settings or StoreSettings())
