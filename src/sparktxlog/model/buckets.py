"""Which bucket a URL names, and who keeps it; nothing here shows a secret."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum

from sparktxlog.errors import ConfigError
from sparktxlog.model.ids import check_relative_path


class Provider(Enum):
    """Who keeps a bucket; the value is the extra of this package."""

    S3 = "s3"
    AZURE = "azure"
    GOOGLE = "gcs"


#: Scheme of URLs → who keeps such buckets.
SCHEMES = {
    "s3": Provider.S3,
    "s3a": Provider.S3,
    "gs": Provider.GOOGLE,
    "abfs": Provider.AZURE,
    "abfss": Provider.AZURE,
}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
_ACCOUNT = re.compile(r"([a-z0-9]{3,24})\.(?:dfs|blob)\.core\.windows\.net")


@dataclass(frozen=True, slots=True)
class BucketUrl:
    """A bucket, or a container of Azure, and a prefix in it."""

    provider: Provider
    bucket: str
    #: Without `/` at either end; empty = the whole bucket.
    prefix: str
    #: Of Azure, else empty.
    account: str = ""

    @property
    def url(self) -> str:
        """As Spark names it, without `/` at the end."""
        if self.provider is Provider.AZURE:
            root = f"abfss://{self.bucket}@{self.account}.dfs.core.windows.net"
        else:
            root = f"{'gs' if self.provider is Provider.GOOGLE else 's3'}://{self.bucket}"
        return f"{root}/{self.prefix}" if self.prefix else root


def whole_bucket(place: BucketUrl) -> str:
    """Return the URL of all of a bucket."""
    return replace(place, prefix="").url


def bucket_url(url: str, field: str) -> BucketUrl | None:
    """Return which bucket a URL names; None = it is a path of this machine.

    Args:
        field: Name of the setting or option.

    Raises:
        ConfigError: No store here has such URLs, or a part is missing (definite).
    """
    match = _URL.fullmatch(url)
    if match is None or match[1].lower() == "file":
        return None
    scheme, (host, _, path) = match[1].lower(), match[2].partition("/")
    provider = SCHEMES.get(scheme)
    if provider is None:
        raise _refused(url, field, f"stores of {scheme}:// are not known")
    bucket, account = host, ""
    if provider is Provider.AZURE:
        bucket, _, domain = host.partition("@")
        named = _ACCOUNT.fullmatch(domain)
        if named is None:
            raise _refused(url, field, "it names no account of Azure")
        account = named[1]
    if _BUCKET.fullmatch(bucket) is None:
        # What is before `@` may be a secret.
        raise _refused("" if "@" in host else url, field, "it names no bucket")
    prefix = path.strip("/")
    if prefix:
        check_relative_path(prefix)
    return BucketUrl(provider, bucket, prefix, account)


def _refused(url: str, field: str, why: str) -> ConfigError:
    return ConfigError(
        f"{field} is {url[:200]!r}: {why}" if url else f"{field}: {why}",
        hint="Name a path of this machine, s3://bucket/prefix, gs://bucket/prefix, or "
        "abfss://container@account.dfs.core.windows.net/prefix.  Credentials do not belong there.",
        key=field,
        value=url[:200],
    )
