"""Removes payload files from a bucket, and what is left of them in the node's directory."""

from __future__ import annotations

import math
import secrets
from collections import defaultdict
from collections.abc import Collection, Iterable

import structlog

from sparktxlog.errors import InvalidNameError
from sparktxlog.files.foreign_files import INCOMING
from sparktxlog.files.stores.store import earlier_clock
from sparktxlog.model.ids import transaction_id_from_text
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.storage.payloads.bucket_payloads import BucketPayloads
from sparktxlog.storage.payloads.local_store import LocalPayloadStore
from sparktxlog.storage.payloads.payload_expiry import (
    SUBMIT_S,
    PayloadExpiry,
    is_expired,
    named_tops,
)
from sparktxlog.storage.payloads.payload_store import PayloadStore, PayloadUpkeep
from sparktxlog.storage.segments.publishing import INLINE_DIRECTORY

_log = structlog.get_logger("sparktxlog.storage")


def upkeep_of(store: PayloadStore) -> PayloadUpkeep:
    """Return what removes files of a payload store."""
    if isinstance(store, BucketPayloads):
        return BucketExpiry(store)
    assert isinstance(store, LocalPayloadStore)
    return PayloadExpiry(store)


class BucketExpiry(PayloadUpkeep):
    """Removes files of a payload store in a bucket.

    Args:
        store: The store.
    """

    def __init__(self, store: BucketPayloads) -> None:
        self._store, self._here = store, PayloadExpiry(store.here)

    def remove(self, relatives: Iterable[str], *, used_before: float = math.inf) -> int:
        names = list(relatives)
        removed = self._store.remove_unused(names, used_before)
        self._here.remove(names, used_before=used_before)
        return removed

    def remove_inline(self, kept_after: int) -> int:
        there = defaultdict[str, list[str]](list)
        for found in self._store.of_publisher.list(INLINE_DIRECTORY):
            directory = found.key.removeprefix(f"{INLINE_DIRECTORY}/").partition("/")[0]
            if is_expired(directory, kept_after):
                there[directory].append(found.key)
        self._store.remove_unused([key for keys in there.values() for key in keys], math.inf)
        self._here.remove_inline(kept_after)
        return len(there)

    def remove_unnamed(
        self,
        journal: Journal,
        kept_after: int,
        older_than_s: float,
        *,
        unfinished_s: float | None = None,
        given_up: Collection[str] = (),
    ) -> int:
        clock = f"{INCOMING}/clock-{secrets.token_hex(8)}"
        now, newest = earlier_clock(self._store.of_publisher, clock), dict[str, float]()
        for found in self._store.of_publisher.list():
            top, _, below = found.key.partition("/")
            if below and _is_of_transaction(top):
                newest[top] = max(newest.get(top, 0.0), found.changed_s)
        before = now - older_than_s
        old = [top for top, at in newest.items() if top in given_up or at < before]
        removed = 0
        if old:
            # Read after the ages: files of later submits were verified a moment ago.
            named = named_tops(journal, kept_after)
            for top in old:
                if top not in named and self._store.remove_unneeded(top, SUBMIT_S):
                    removed += 1
        if removed:
            _log.info("objects that no transaction names were removed", count=removed)
        return removed + self._here.remove_unnamed(
            journal, kept_after, older_than_s, unfinished_s=unfinished_s, given_up=given_up
        )

    def size_bytes(self) -> int:
        # The directory also has what was there before the site got a bucket.
        there = sum(found.size_bytes for found in self._store.of_publisher.list())
        return there + self._here.size_bytes()


def _is_of_transaction(top: str) -> bool:
    """Return whether a directory is one of staged files; others in the prefix are not this site's.

    A bucket is shared more easily than a directory of a node is: by a prefix within this one, say.
    """
    try:
        transaction_id_from_text(top)
    except InvalidNameError:
        return False
    return True
