"""A prefix in a bucket that one site has: proved and taken before anything is written there.

<root>/.owner    which site has it
"""

from __future__ import annotations

from collections.abc import Callable

from sparktxlog.errors import ConfigError, ObjectMissingError, StoreNotReadyError
from sparktxlog.files.stores.store import Created, Store

_OWNER = ".owner"


class SiteBucket:
    """A prefix of one site, which may be out of reach when its node starts.

    Args:
        store: Its root is the prefix.
        proof: Proves that the store keeps its promises; raises as `take`.
        key: The setting that names it.
        what: Lies there, for messages.
    """

    def __init__(self, store: Store, proof: Callable[[], object], key: str, what: str) -> None:
        #: For reading; what is written goes to `proved`.
        self.store = store
        self._proof, self._key, self._what = proof, key, what
        #: Whether the proof was begun and has not succeeded yet.
        self._untaken = False

    @property
    def proved(self) -> Store:
        """The bucket; before it is proved and this site's, nothing is changed there.

        Raises:
            StoreNotReadyError: It is not yet (definite).
        """
        self.check_ready()
        return self.store

    def check_ready(self) -> None:
        """Check that something may be changed there; asks nothing.  Errors as `proved`."""
        if self._untaken:
            raise StoreNotReadyError(
                f"{self.store.url} did not answer since the node started, so it is not known "
                "whether it keeps its promises and is this site's",
                url=self.store.url,
            )

    def take(self, owner: str) -> None:
        """Prove the bucket and take it for a site; errors as `SiteTables.take`."""
        self._untaken = True
        self._proof()
        if self.store.create(_OWNER, owner.encode()) is Created.OTHER:
            other = owner_of(self.store)
            raise ConfigError(
                f"{self.store.url} has {self._what} of site {other!r}, and this is {owner!r}",
                hint=f"Name a prefix that no other site has with {self._key}.  If that site is "
                f"gone for good, remove the object {self.store.url_of(_OWNER)}.",
                key=self._key,
                value=self.store.url,
            )
        self._untaken = False


def owner_of(store: Store) -> str:
    """Return the name of the site that took a prefix; empty = none did; errors as `Store`."""
    try:
        return store.read(_OWNER).decode(errors="replace")[:200]
    except ObjectMissingError:
        return ""
