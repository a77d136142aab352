"""Credentials that are given away for a part of a bucket, and what gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from sparktxlog.model.buckets import BucketUrl


class Credentials(Protocol):
    """Credentials of a provider; no text of them shows a secret."""

    @property
    def shown(self) -> str:
        """What a log may say of them."""

    @property
    def catalog_config(self) -> Mapping[str, str]:
        """What the catalog says of them to Delta's clients."""


_C = TypeVar("_C", bound=Credentials, covariant=True)


@dataclass(frozen=True, slots=True)
class VendedKeys(Generic[_C]):
    """Credentials for what is below a prefix."""

    keys: _C
    #: Milliseconds since 1970 UTC.
    ends_ms: int


class Issuer(Protocol):
    """Gives credentials for parts of a bucket."""

    @property
    def endpoint(self) -> str:
        """What is asked for them, for messages."""

    @property
    def name(self) -> str:
        """What its credentials are called, for messages."""

    @property
    def remedy(self) -> tuple[str, str]:
        """The field of a request that a store must keep to, and what to do if it does not."""

    @property
    def lasts_s(self) -> int:
        """Seconds that its credentials last."""

    def give(self, place: BucketUrl, prefix: str, *, writes: bool) -> VendedKeys[Credentials]:
        """Begin a session for what is below a prefix; blocks.

        Args:
            prefix: From the root of the bucket, without `/` at either end.
            writes: Let it write and remove, too.

        Raises:
            StoreForbiddenError: The node may not give any (definite).
            StoreUnavailableError: What gives them is out of reach, or says that it is.
            ConfigError: The node has no credentials of its own, or cannot read them (definite).
        """
