"""Where tables and staged files of a site are, by the settings of its node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sparktxlog.config import NodeConfig
from sparktxlog.delta.log_files import TablePlace
from sparktxlog.files.stores.store_settings import StoreSettings
from sparktxlog.model.buckets import Provider, bucket_url
from sparktxlog.runtime.metrics import Metrics
from sparktxlog.storage.commit_tables.site_tables import SiteTables
from sparktxlog.storage.commit_tables.table_places import TablePlaces
from sparktxlog.storage.payloads.local_store import LocalPayloadStore
from sparktxlog.storage.payloads.payload_store import PayloadStore
from sparktxlog.storage.site_bucket import SiteBucket

if TYPE_CHECKING:
    from sparktxlog.files.stores.bucket import BucketStore
    from sparktxlog.files.stores.credentials.vending import Vendor
    from sparktxlog.files.stores.donor_buckets import DonorBuckets

#: A start waits for the proof; `doctor` lets more writers race.
_AT_A_START: dict[str, Any] = {"racers": 4, "races": 1, "exchanges": False}
#: The publisher tries again by itself, and does other work in between.
_PATIENCE_S, _ANSWER_S = 10.0, 30.0


def places_of(config: NodeConfig, metrics: Metrics | None = None) -> SiteTables:
    """Return the places of a node's commit tables; no file is looked at.

    Args:
        metrics: Show what a bucket is asked for.

    Raises:
        ConfigError: The bucket cannot be reached by what the settings say (definite).
        MissingDependencyError: The library for its scheme is not installed (definite).
    """
    if config.commit_table_url is None:
        return TablePlaces(config.commit_table_dir)
    from sparktxlog.storage.commit_tables.bucket_places import BucketPlaces

    store, proof = _bucket_of(config, config.commit_table_url, "commit-table-url", metrics)
    donors = _donors_of(config, store, metrics)
    return BucketPlaces(store, config.commit_table_dir, proof, donors)


def payloads_of(config: NodeConfig, metrics: Metrics | None = None) -> PayloadStore:
    """Return where a node's staged files are; its directory is made if it is missing.

    Raises:
        ConfigError, MissingDependencyError: As `places_of`.
        StorageError: The directory cannot be made.
    """
    if config.payload_url is None:
        return LocalPayloadStore(config.payload_dir)
    from sparktxlog.storage.payloads.bucket_payloads import BucketPayloads

    store, proof = _bucket_of(config, config.payload_url, "payload-url", metrics)
    bucket = SiteBucket(store, proof, "payload-url", "the staged files")
    settings = replace(settings_of_stores(config), patience_s=_PATIENCE_S, answer_s=_ANSWER_S)
    impatient = _opened(config.payload_url, settings, "payload-url")
    impatient.counts = store.counts
    donors = _donors_of(config, store, metrics)
    return BucketPayloads(bucket, config.payload_dir, impatient, donors)


def _donors_of(
    config: NodeConfig, store: BucketStore, metrics: Metrics | None
) -> DonorBuckets | None:
    """Return the buckets of other sites that a bucket of this one is filled from; None = none."""
    from sparktxlog.files.stores.donor_buckets import DonorBuckets

    place = bucket_url(store.url, "store")
    assert place is not None, "the setting takes no path"
    if not config.store_copy_from or place.provider is not Provider.S3:
        return None
    found = (bucket_url(url, "store-copy-from") for url in config.store_copy_from)
    settings = settings_of_stores(config)
    settings.s3_keys("store-copy-from")
    noted = (lambda copied: None) if metrics is None else metrics.note_copy
    return DonorBuckets(store, place, [*filter(None, found)], settings, noted)


def vendor_of(config: NodeConfig) -> Vendor | None:
    """Return what gives credentials for commit tables; None = nothing does.

    Raises:
        ConfigError: There are no credentials that could give others (definite).
    """
    if not config.store_vend_role and not config.store_vend_sas:
        return None
    from sparktxlog.files.stores.credentials.aws_requests import aws_url
    from sparktxlog.files.stores.credentials.azure_sas import AccountSigner
    from sparktxlog.files.stores.credentials.vending import VendingRole, Vendor

    settings = settings_of_stores(config)
    place = bucket_url(config.commit_table_url or "", "commit-table-url")
    assert place is not None, "the settings are checked"
    if config.store_vend_sas:
        settings.azure_key()
        protocols = "https,http" if config.store_allow_http else "https"
        lasts_s, key = config.store_vend_time, settings.azure_key
        return Vendor(AccountSigner(place.account, key, lasts_s, protocols), place, settings)
    settings.s3_keys()
    region = settings.s3_region()
    role = VendingRole(
        arn=config.store_vend_role,
        endpoint=config.store_sts_endpoint or aws_url("sts", region),
        region=region,
        lasts_s=config.store_vend_time,
        keys=settings.s3_keys,
    )
    return Vendor(role, place, settings)


def lake_of(config: NodeConfig, metrics: Metrics | None = None) -> TablePlace:
    """Return where the row tables of a node's site are; no file is looked at.

    Raises:
        ConfigError, MissingDependencyError: As `places_of`.
    """
    if config.lake_url is None:
        return config.lake_dir
    return _bucket_of(config, config.lake_url, "lake-url", metrics)[0]


def bucket_of_lake(config: NodeConfig, url: str) -> BucketStore:
    """Return the store of a lake in a bucket that is another replica's; no file is looked at.

    Raises:
        ConfigError, MissingDependencyError: As `places_of`.
    """
    return _opened(url, settings_of_stores(config), "lake")


def _bucket_of(
    config: NodeConfig, url: str, key: str, metrics: Metrics | None
) -> tuple[BucketStore, Callable[[], object]]:
    """Return the store that a setting names, and what proves it."""
    # Only nodes that need it have the library of buckets.
    from sparktxlog.files.stores.proof import prove

    store = _opened(url, settings_of_stores(config), key)
    if metrics is not None:
        metrics.show_requests(store.url, store.counts)
    return store, partial(prove, store, **_AT_A_START)


def _opened(url: str, settings: StoreSettings, key: str) -> BucketStore:
    from sparktxlog.files.stores.bucket import BucketStore
    from sparktxlog.files.stores.opening import store_at

    store = store_at(url, settings, field=key)
    assert isinstance(store, BucketStore), "the setting takes no path"
    return store


def owner_in_buckets(config: NodeConfig) -> str:
    """Return what names a site in its buckets, the same at each start."""
    return f"{config.cluster}/{config.node_id}"


def settings_of_stores(config: NodeConfig) -> StoreSettings:
    """Return how a node reaches its buckets.

    Raises:
        ConfigError: The endpoint is not encrypted, and that is not allowed (definite).
    """
    return StoreSettings(
        endpoint=config.store_endpoint,
        region=config.store_region,
        allow_http=config.store_allow_http,
        credentials_file=config.store_credentials_file,
    )
