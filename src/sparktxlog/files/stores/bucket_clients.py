"""Clients of the library obstore for a bucket, made of a site's settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from sparktxlog.errors import ConfigError
from sparktxlog.files.stores.credentials.azure_sas import AzureSas
from sparktxlog.files.stores.store_settings import StoreSettings
from sparktxlog.model.buckets import BucketUrl, Provider

if TYPE_CHECKING:
    from obstore.store import (
        AzureConfig,
        AzureSASToken,
        GCSConfig,
        ObjectStore,
        RetryConfig,
        S3Config,
        S3Credential,
    )

#: How long a file with credentials is believed: it may be written again before they expire.
_CREDENTIALS_S = 300
#: An answer that stands still, or takes very long in all, is asked for again.
_CLIENT: dict[str, Any] = {"timeout": "1h", "connect_timeout": "5s"}
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_MOST_REPEATS = 20
#: How S3 copies an object only where nothing is, by a header of the copy, which AWS and SeaweedFS
#: look at.
_BY_HEADER = "header: if-none-match: *"
#: Or by an upload in parts that ends with the condition: others look at it there alone, while in
#: SeaweedFS several are the first.
_BY_PARTS = "multipart"


@dataclass(frozen=True, slots=True)
class BucketClient:
    """What reaches a bucket."""

    library: ObjectStore
    #: Makes one that copies in another way; None = all servers of the provider keep the condition.
    copying_otherwise: Callable[[], ObjectStore] | None = None


def client_of(place: BucketUrl, settings: StoreSettings) -> BucketClient:
    """Return the client of a bucket; nothing is asked of it yet.

    Raises:
        ConfigError: The settings, or those of the environment, do not fit (definite).
    """
    retry: RetryConfig = {
        "max_retries": _MOST_REPEATS,
        "retry_timeout": timedelta(seconds=settings.patience_s),
        "backoff": {
            "init_backoff": timedelta(seconds=_FIRST_PAUSE_S),
            "max_backoff": timedelta(seconds=_LONGEST_PAUSE_S),
            "base": 2,
        },
    }
    common: dict[str, Any] = {
        "prefix": place.prefix or None,
        "client_options": _CLIENT
        | {
            "allow_http": settings.allow_http,
            "read_timeout": timedelta(seconds=settings.answer_s),
        },
        "retry_config": retry,
    }
    settings.check_environment(place.provider)
    try:
        if place.provider is Provider.S3:
            s3 = partial(_s3, place, settings, common)
            return BucketClient(s3(_BY_HEADER), partial(s3, _BY_PARTS))
        return BucketClient(_other(place, settings, common))
    except BaseError:
        # The library's text has the value, which may be a secret.
        raise ConfigError(
            f"what reaches {place.url} cannot read a variable of the environment",
            hint="Look at AWS_…, AZURE_… or GOOGLE_…: what is yes or no is true or false there.",
        ) from None


def _s3(
    place: BucketUrl, settings: StoreSettings, common: dict[str, Any], copies: str
) -> ObjectStore:
    s3: S3Config = {"copy_if_not_exists": copies}
    if settings.endpoint:
        s3["endpoint"] = settings.endpoint
    if settings.path_style is not None:
        s3["virtual_hosted_style_request"] = not settings.path_style
    if settings.region:
        s3["region"] = settings.region
    if settings.read_credentials(place.provider):  # they may be written again before they expire
        common = common | {"credential_provider": _file_credentials(settings)}
    return S3Store(place.bucket, config=s3, **common)


def _other(place: BucketUrl, settings: StoreSettings, common: dict[str, Any]) -> ObjectStore:
    found: dict[str, Any] = dict(settings.read_credentials(place.provider))
    if place.provider is Provider.AZURE:
        azure = cast("AzureConfig", found | {"account_name": place.account})
        if settings.endpoint:
            azure["endpoint"] = settings.endpoint
        if isinstance(settings.keys, AzureSas):  # not what the environment has
            common["credential_provider"] = partial(_sas_of, settings.keys)
        return AzureStore(place.bucket, config=azure, **common)
    google = cast("GCSConfig", found)
    if settings.endpoint:
        google["base_url"] = settings.endpoint
    return GCSStore(place.bucket, config=google, **common)


def _sas_of(sas: AzureSas) -> AzureSASToken:
    return {"sas_token": sas.token, "expires_at": None}


def _file_credentials(settings: StoreSettings) -> Callable[[], S3Credential]:
    """Return what reads the file of credentials whenever the library wants to know them."""

    def read() -> S3Credential:
        found = settings.read_credentials(Provider.S3)
        return {
            "access_key_id": found["aws_access_key_id"],
            "secret_access_key": found["aws_secret_access_key"],
            "token": found.get("aws_session_token"),
            "expires_at": datetime.now(UTC) + timedelta(seconds=_CREDENTIALS_S),
        }

    return read
