"""How a site reaches its buckets; nothing here shows a secret."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparktxlog.errors import ConfigError
from sparktxlog.files.durability import read_whole, storing
from sparktxlog.files.stores.credentials.aws_signature import S3Keys
from sparktxlog.files.stores.credentials.vended_keys import Credentials
from sparktxlog.model.buckets import Provider

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
#: Variables with the URL of a server that speaks S3's protocol.
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_CUSTOMER_KEY = "AWS_SSE_CUSTOMER_KEY_BASE64"
#: Variables of the environment → what the library says of them in each write.
_OF_WRITES = {
    "AWS_SERVER_SIDE_ENCRYPTION": "x-amz-server-side-encryption",
    "AWS_SSE_KMS_KEY_ID": "x-amz-server-side-encryption-aws-kms-key-id",
    "AWS_SSE_BUCKET_KEY_ENABLED": "x-amz-server-side-encryption-bucket-key-enabled",
}
_ENDPOINT = re.compile(r"https?://[^/@\s]+(/[^@\s]*)?")


def _variables_of(keys: S3Keys) -> dict[str, str]:
    found = {"aws_access_key_id": keys.key, "aws_secret_access_key": keys.secret}
    return found | ({"aws_session_token": keys.token} if keys.token else {})


def region_of(environ: Mapping[str, str]) -> str:
    """Return the region of S3 that an environment names; empty = none."""
    return next(filter(None, map(environ.get, _REGIONS)), "")


def requester_pays(environ: Mapping[str, str]) -> bool:
    """Return whether an environment says that the requester pays for what S3 gives."""
    return environ.get("AWS_REQUEST_PAYER", "").lower() in ("requester", "true")


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
    #: In place of a file.
    keys: Credentials | None = None
    #: How long a request that fails, or is throttled, is repeated.
    patience_s: float = 60.0
    #: How long an answer may stand still until its request counts as failed.
    answer_s: float = 120.0

    def __post_init__(self) -> None:
        if self.endpoint and not _ENDPOINT.fullmatch(self.endpoint):
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

    @classmethod
    def of_environment(cls, patience_s: float = 60.0, answer_s: float = 120.0) -> StoreSettings:
        """Return the settings of a process without a node's file: all by the environment."""
        # The library itself does not look for this variable.
        allow_http = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")
        return cls(allow_http=allow_http, patience_s=patience_s, answer_s=answer_s)

    def check_environment(self, provider: Provider) -> None:
        """Refuse what the library would take from the environment as it is.

        Raises:
            ConfigError: Keys of customers, or the endpoint is no URL (definite).
        """
        if provider is not Provider.S3:
            return
        # Workers, sessions, jobs and peers would all need the key; no test ever had one.
        algorithm = os.environ.get("AWS_SERVER_SIDE_ENCRYPTION", "")
        if algorithm.lower() == "sse-c" or os.environ.get(_CUSTOMER_KEY):
            raise ConfigError(
                "keys that each request brings (SSE-C) are not supported for a site's buckets",
                hint=f"Unset {_CUSTOMER_KEY}, and encrypt with a key of KMS: docs/store-access.md.",
                key=_CUSTOMER_KEY,
            )
        if self.endpoint:
            return
        for name in _ENDPOINTS:
            value = os.environ.get(name)
            if value is not None and not _ENDPOINT.fullmatch(value):
                raise ConfigError(
                    f"{name} of the environment is no URL of http or https",
                    hint="Write it as https://host:port, without credentials, or unset it.",
                    key=name,
                )

    def read_credentials(self, provider: Provider) -> dict[str, str]:
        """Return what the file says: variable, in lower case → value; empty = there is none.

        Raises:
            ConfigError: It is not there, has other lines, or lacks some (definite).
            StorageError: It cannot be read.
        """
        if isinstance(self.keys, S3Keys):
            return _variables_of(self.keys)
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

    def s3_endpoint(self) -> str:
        """Return the URL of S3's service as the library finds it; empty = that of AWS."""
        return self.endpoint or next(filter(None, map(os.environ.get, _ENDPOINTS)), "")

    def s3_region(self) -> str:
        """Return the region of S3, as the library finds it."""
        return self.region or region_of(os.environ) or "us-east-1"

    def s3_write_headers(self) -> dict[str, str]:
        """Return what the environment says of key and payer, as the library sends it with bytes."""
        headers = dict[str, str]()
        if os.environ.get("AWS_SERVER_SIDE_ENCRYPTION"):
            found = {header: os.environ.get(name) for name, header in _OF_WRITES.items()}
            headers = {header: value for header, value in found.items() if value}
        if requester_pays(os.environ):
            headers["x-amz-request-payer"] = "requester"
        return headers

    def s3_keys(self, field: str = "store-vend-role") -> S3Keys:
        """Return the credentials for S3 of the file, or of the environment.

        Args:
            field: The setting that needs them, for errors.

        Raises:
            ConfigError: There are none, or as `read_credentials` (definite).
            StorageError: The file cannot be read.
        """
        found = self.read_credentials(Provider.S3) or {
            name.lower(): os.environ.get(name, "") for name in _VARIABLES[Provider.S3]
        }
        key, secret = found["aws_access_key_id"], found["aws_secret_access_key"]
        if not key or not secret:
            raise ConfigError(
                f"{field} needs credentials, which the role of a machine does not give here",
                hint="Name a file with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY by "
                "store-credentials-file, or set them in the environment of the node.",
                key=field,
            )
        return S3Keys(key, secret, found.get("aws_session_token", ""))

    def azure_key(self) -> str:
        """Return the key of the account of Azure, of the file or of the environment.

        Raises:
            ConfigError: There is none, or as `read_credentials` (definite).
            StorageError: The file cannot be read.
        """
        name = "azure_storage_account_key"
        found = self.read_credentials(Provider.AZURE).get(name) or os.environ.get(name.upper(), "")
        try:
            if base64.b64decode(found, validate=True):
                return found
        except ValueError:
            pass
        raise ConfigError(
            "store-vend-sas needs the key of the account, in base64",
            hint="Name a file with AZURE_STORAGE_ACCOUNT_KEY by store-credentials-file, or set it "
            "in the environment of the node.",
            key="store-vend-sas",
        )

    def _no_credentials(self, where: str, why: str, provider: Provider) -> ConfigError:
        return ConfigError(
            f"{where} {self.credentials_file} {why}".lstrip(),
            hint=f"Write lines NAME=VALUE; names are {', '.join(_VARIABLES[provider])}.",
            file=str(self.credentials_file),
        )
