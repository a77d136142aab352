"""A journal is new, and next to it is the rest of a log: that is found, and said."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from sparktxlog.config import NodeConfig, load_config
from sparktxlog.errors import CorruptLogError, StoreUnavailableError
from sparktxlog.files.stores.bucket import BucketStore
from sparktxlog.runtime.leaving_fork import leftover_log
from sparktxlog.runtime.leaving_fork.leftover_log import (
    find_remains,
    find_remains_in_buckets,
    journal_lost,
    read_replica_state,
)
from sparktxlog.storage.payload_log import PAYLOAD_LOG


def config_of(root: Path, more: dict[str, str] | None = None) -> NodeConfig:
    found = {"node-id": "A", "master-url": "http://127.0.0.1:1", "data-dir": str(root)}
    return load_config(None, found | (more or {}), {})


def put(path: Path, text: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_nothing_is_found_where_no_log_was(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    assert find_remains(config) == []
    # What came in and was committed nowhere is no part of a log.
    put(config.payload_dir / ".incoming" / "half")
    put(config.lake_dir / "_sparktxlog" / "state.json", '{"worker_id": "w"}')
    assert find_remains(config) == []


def test_each_part_of_a_log_is_named(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    queue = config.data_dir / "log" / "synchronized_queue"
    put(queue / "part-0.parquet")
    put(config.data_dir / PAYLOAD_LOG / "1.payloads")
    put(config.payload_dir / "0a" / "t" / "part-0.parquet")
    state = {"worker_id": "w", "position": 1_234, "tables": {}}
    put(config.lake_dir / "_sparktxlog" / "state.json", json.dumps(state))
    found = find_remains(config)
    put(config.commit_table_dir / str(uuid.uuid4()) / "_delta_log" / f"{0:020d}.json")
    assert find_remains(config)[4:] == [f"commit tables in {config.commit_table_dir}"]
    assert found == [
        f"rows in {queue}",
        f"runs in {config.data_dir / PAYLOAD_LOG}",
        f"files in {config.payload_dir}",
        f"a replica at position 1,234 in {config.lake_dir}",
    ]
    alone = journal_lost(config, found)
    assert all(part in str(alone) for part in found) and "journal.sqlite is new" in str(alone)
    peer = {"peer.1.id": "B", "peer.1.url": "http://127.0.0.1:2", "cluster-secret": "s" * 16}
    peers = journal_lost(config_of(tmp_path, peer), found)
    assert "peer force" in peers.hint and "peer force" not in alone.hint


BUCKETS = {
    "payload-url": "s3://lake/staged",
    "lake-url": "s3://lake/rows",
    "commit-table-url": "s3://lake/tables",
}


def test_each_part_of_a_log_in_a_bucket_is_named_and_one_that_is_away_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, stores = config_of(tmp_path, BUCKETS), dict[str, BucketStore]()
    away = StoreUnavailableError("the bucket is away")

    def opened(url: str, settings: object, field: str) -> BucketStore:
        if url not in stores:
            raise away
        return stores[url]

    monkeypatch.setattr(leftover_log, "store_at", opened)
    assert find_remains_in_buckets(config) == ([], away)
    for url in BUCKETS.values():
        stores[url] = BucketStore(MemoryStore(), url)
        stores[url].create(".owner", b"sparktxlog/A")
    assert find_remains_in_buckets(config) == ([], None)
    stores["s3://lake/staged"].create("inline/1-1/orders.parquet", b"x")
    stores["s3://lake/rows"].create("_sparktxlog/state.json", b'{"worker_id":"w","position":3}')
    stores["s3://lake/tables"].create(".incoming/x", b"x")
    assert len(find_remains_in_buckets(config)[0]) == 2
    stores["s3://lake/tables"].create(f"{uuid.uuid4()}/_delta_log/{0:020d}.json", b"x")
    del stores["s3://lake/rows"]
    assert find_remains_in_buckets(config) == (
        ["files in s3://lake/staged", "commit tables in s3://lake/tables"],
        away,
    )
    for url in ("s3://lake/staged", "s3://lake/tables"):
        stores[url].replace(".owner", b"sparktxlog/B")
    assert find_remains_in_buckets(config)[0] == [], "the start says whose they are"


@pytest.mark.parametrize("text", ["{", '{"position": 3}'])
def test_a_state_that_cannot_be_read_is_damage(tmp_path: Path, text: str) -> None:
    put(tmp_path / "_sparktxlog" / "state.json", text)
    with pytest.raises(CorruptLogError, match=r"state\.json cannot be read"):
        read_replica_state(tmp_path)
