"""Signatures of Azure (SAS) for what is below one directory of a container, which end.

The library of buckets signs whole URLs of single objects only.  The fields and their order are
those that Azure documents for a service SAS of version 2020-12-06; a directory needs an account
with a hierarchical namespace.
"""

from __future__ import annotations

import base64
import hmac
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import urlencode

from sparktxlog.files.stores.credentials.vended_keys import VendedKeys
from sparktxlog.model.buckets import BucketUrl

_VERSION = "2020-12-06"
#: To read, list and look at properties; to write also to append, create, remove and move.
_READS, _WRITES = "rle", "racwdlme"
#: Fields of the text to be signed after the kind of resource: snapshot, encryption scope, and five
#: headers of answers.
_UNUSED = ("",) * 7


@dataclass(frozen=True, slots=True)
class AzureSas:
    """A signature for a part of a container; no text of it shows it."""

    #: The query that a request has, without `?`.
    token: str = field(repr=False)

    @property
    def shown(self) -> str:
        """What a log may say of it."""
        return "SAS"

    @property
    def catalog_config(self) -> Mapping[str, str]:
        """What the catalog says of it to Delta's clients."""
        return {"azure.sas-token": self.token}


@dataclass(frozen=True, slots=True)
class AccountSigner:
    """Signs for parts of an account's containers, by its key; no request is needed.

    Args:
        account: Its name.
        key: Returns the key of the account, in base64.
        lasts_s: Of a signature.
        protocols: `https`, or `https,http` of a server without encryption.
    """

    account: str
    key: Callable[[], str] = field(repr=False)
    lasts_s: int
    protocols: str = "https"

    @property
    def endpoint(self) -> str:
        """What signs, for messages: nobody is asked."""
        return f"the key of account {self.account}"

    @property
    def name(self) -> str:
        """What its sessions are called."""
        return f"a SAS by {self.endpoint}"

    @property
    def remedy(self) -> tuple[str, str]:
        """The field of a request that a store must keep to, and what to do if it does not."""
        return "sr=d, sdd", (
            "The account needs a hierarchical namespace (Data Lake Storage Gen2): others know no "
            "signature for a directory, and cannot be used with store-vend-sas."
        )

    def give(self, place: BucketUrl, prefix: str, *, writes: bool) -> VendedKeys[AzureSas]:
        """Sign for what is below a prefix of a container.

        Args:
            prefix: Without `/` at either end.
            writes: Let it write and remove, too.

        Raises:
            ConfigError: There is no key, or it cannot be read (definite).
        """
        ends_s = int(time.time()) + self.lasts_s
        resource = f"{place.bucket}/{prefix}"
        depth = {"sdd": str(prefix.count("/") + 1)}
        token = self.signed(resource, "d", _WRITES if writes else _READS, ends_s, depth)
        return VendedKeys(AzureSas(token), ends_s * 1000)

    def signed(
        self,
        resource: str,
        kind: str,
        permissions: str,
        ends_s: int,
        unsigned: Mapping[str, str] | None = None,
    ) -> str:
        """Return the query of a signature.

        Args:
            resource: The container, and what is in it.
            kind: As Azure names it: `d` for a directory, `c` for a container.
            ends_s: Seconds since 1970 UTC.
            unsigned: What else the query says.
        """
        ends = datetime.fromtimestamp(ends_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        to_sign = (
            permissions,
            "",  # from now on, by the clock of the store
            ends,
            f"/blob/{self.account}/{resource}",
            "",  # no stored policy
            "",  # any address
            self.protocols,
            _VERSION,
            kind,
            *_UNUSED,
        )
        key = base64.b64decode(self.key())
        signature = hmac.digest(key, "\n".join(to_sign).encode(), "sha256")
        return urlencode(
            {
                "sv": _VERSION,
                "sr": kind,
                "sp": permissions,
                "se": ends,
                "spr": self.protocols,
                "sig": base64.b64encode(signature).decode(),
            }
            | dict(unsigned or {})
        )
