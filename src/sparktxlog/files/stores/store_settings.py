"""Which bucket a URL names, and how a site reaches it; nothing here shows a secret."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from sparktxlog.errors import ConfigError
from sparktxlog.model.ids import check_relative_path
from sparktxlog.storage.durability import read_whole, storing


class Provider(Enum):
    """Who keeps a bucket; the value is the extra of this package."""

    S3 = "s3"
    AZURE = "azure"
    GOOGLE = "gcs"


_SCHEMES = {
    "s3": Provider.S3,
    "s3a": Provider.S3,
    "gs": Provider.GOOGLE,
    "abfs": Provider.AZURE,
    "abfss": Provider.AZURE,
}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
_ACCOUNT = re.compile(r"([a-z0-9]{3,24})\.(?:dfs|blob)\.core\.windows\.net")
#: Variables that a file with credentials may set, for each provider: those of its own tools.
_VARIABLES = {
    Provider.S3: ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    Provider.AZURE: (
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_CLIENT_ID",
        "AZURE_STORAGE_CLIENT_SECRET",
        "AZURE_STORAGE_TENANT_ID",
    ),
    Provider.GOOGLE: ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY"),
}
#: Of those, what S3 does not do without.
_NEEDED = {Provider.S3: ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """How a site reaches its buckets; what is not set comes from the provider's environment."""

    #: URL of a server that speaks the provider's protocol; empty = the provider's own.
    endpoint: str = ""
    region: str = ""
    #: Whether S3's bucket is in the path of a request, not in its host; None = as the environment.
    path_style: bool | None = None
    #: Whether the endpoint may be `http://`, over which bytes travel unencrypted.
    allow_http: bool = False
    #: Lines `NAME=VALUE` with variables of the provider; None = environment, or the machine's role.
    credentials_file: Path | None = None
    #: How long a request that fails, or is throttled, is repeated.
    patience_s: float = 60.0

    def __post_init__(self) -> None:
        if self.endpoint and not re.fullmatch(r"https?://[^/@]+(/.*)?", self.endpoint):
            raise ConfigError(
                "the endpoint of the store is no URL of http or https",
                hint="Write it as https://host:port, without credentials.",
                key="endpoint",
            )
        if self.endpoint.startswith("http://") and not self.allow_http:
            raise ConfigError(
                f"the endpoint {self.endpoint} is not encrypted",
                hint="Write https://, or allow http for a network that nobody else reads.",
                key="endpoint",
                value=self.endpoint,
            )

    def read_credentials(self, provider: Provider) -> dict[str, str]:
        """Return what the file says: variable, in lower case → value; empty = there is none.

        Raises:
            ConfigError: It is not there, has other lines, or lacks some (definite).
            StorageError: It cannot be read.
        """
        if self.credentials_file is None:
            return {}
        if not self.credentials_file.exists():
            raise self._no_credentials("there is no file", "with the store's credentials", provider)
        with storing(self.credentials_file):
            lines = read_whole(self.credentials_file).decode(errors="replace").splitlines()
        found = dict[str, str]()
        for number, line in enumerate(lines, start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            name, _, value = line.partition("=")
            if name.strip() not in _VARIABLES[provider] or not value.strip():
                raise self._no_credentials(f"line {number} of", "is no credential", provider)
            found[name.strip()] = value.strip().strip("\"'")
        for name in _NEEDED.get(provider, ()):
            if name not in found:
                raise self._no_credentials("", f"lacks {name}", provider)
        return {name.lower(): value for name, value in found.items()}

    def _no_credentials(self, where: str, why: str, provider: Provider) -> ConfigError:
        return ConfigError(
            f"{where} {self.credentials_file} {why}".lstrip(),
            hint=f"Write lines NAME=VALUE; names are {', '.join(_VARIABLES[provider])}.",
            file=str(self.credentials_file),
        )


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
    provider = _SCHEMES.get(scheme)
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
