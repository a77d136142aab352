"""Where a node's staged files are: a bucket that is away holds each user up as long as it may."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.node_processes import free_ports

from sparktxlog.config import NodeConfig, load_config
from sparktxlog.errors import StoreUnavailableError
from sparktxlog.files.stores.bucket import BucketStore
from sparktxlog.files.stores.store_settings import StoreSettings
from sparktxlog.runtime.commit_tables import site_places
from sparktxlog.runtime.commit_tables.site_places import payloads_of
from sparktxlog.storage.payloads.bucket_payloads import BucketPayloads


@pytest.fixture
def config(tmp_path: Path) -> NodeConfig:
    """A node whose bucket is at an address where nobody is."""
    credentials, (port,) = tmp_path / "credentials", free_ports(1)
    credentials.write_text("AWS_ACCESS_KEY_ID=key\nAWS_SECRET_ACCESS_KEY=secret\n")
    values = {
        "node-id": "A",
        "master-url": "http://127.0.0.1:1",
        "data-dir": str(tmp_path / "data"),
        "payload-url": "s3://lake/payloads",
        "store-endpoint": f"http://127.0.0.1:{port}",
        "store-region": "x",
        "store-allow-http": "true",
        "store-credentials-file": str(credentials),
    }
    return load_config(None, values, {})


def test_the_publisher_has_less_patience_than_others(
    config: NodeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, given = site_places._opened, list[StoreSettings]()

    def noted(url: str, settings: StoreSettings, key: str) -> BucketStore:
        given.append(settings)
        return opened(url, settings, key)

    monkeypatch.setattr(site_places, "_opened", noted)
    store = payloads_of(config)
    assert isinstance(store, BucketPayloads)
    patient, soon = given
    assert soon == replace(patient, patience_s=10.0, answer_s=30.0)
    assert soon.patience_s < patient.patience_s and soon.answer_s < patient.answer_s
    own, others = store.of_publisher, store.proved
    assert isinstance(own, BucketStore) and isinstance(others, BucketStore)
    assert own is not others and own.url == others.url
    # What both ask is counted together.
    assert own.counts is others.counts


def test_the_publisher_gives_up_and_others_still_wait(
    config: NodeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_places, "_PATIENCE_S", 0.0)
    store = payloads_of(config)
    assert isinstance(store, BucketPayloads)
    with pytest.raises(StoreUnavailableError, match="no connection"):
        store.of_publisher.find("inline/1-1/t.parquet")
