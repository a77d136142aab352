"""Whether stores of bytes keep what they promise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from sparktxlog.cli.doctor.findings import Finding, good, problem
from sparktxlog.errors import TxLogError
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.files.stores.opening import store_at
from sparktxlog.files.stores.store_settings import StoreSettings

if TYPE_CHECKING:
    from sparktxlog.config import NodeConfig


def check_stores(urls: Iterable[str], settings: StoreSettings) -> Iterator[Finding]:
    """Try each store below a prefix of its own, which is removed.

    Args:
        urls: As `store_at` takes them.
        settings: How all of them are reached.
    """
    for url in urls:
        try:
            yield _check(url, settings)
        except TxLogError as error:
            yield problem("store", error.message, error.hint or "Look at the store.")


def check_vending(config: NodeConfig) -> Iterator[Finding]:
    """Try whether credentials for clients, if a node gives any, reach what they shall, no more."""
    from sparktxlog.runtime.commit_tables.site_places import vendor_of

    try:
        if (vendor := vendor_of(config)) is None:
            return
        vendor.prove()
    except TxLogError as error:
        yield problem(
            "store", error.message, error.hint or "Look at store-vend-role, or store-vend-sas."
        )
        return
    text = f"{vendor.name} reaches the prefix that it is for, and no other"
    yield good("store", text)


def _check(url: str, settings: StoreSettings) -> Finding:
    store = store_at(url, settings, field="--store")
    if isinstance(store, DiskStore):
        text = f"{store.url} is a directory of this machine; --config checks the disks of a node"
        return good("store", text)
    from sparktxlog.files.stores.bucket import BucketStore
    from sparktxlog.files.stores.proof import prove

    assert isinstance(store, BucketStore)
    proof = prove(store)
    return good(
        "store",
        f"{proof.url} keeps what it promises: {', '.join(proof.checks)} ({proof.seconds:,.0f} s; "
        f"its clock is {proof.clock_ahead_s:+,.0f} s from this machine's)",
    )
