"""A feed in a bucket: rows and commit tables go there while they are written, and come back."""

from __future__ import annotations

import asyncio
import io
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.service.test_catalog_api import Caller, catalog
from tests.service.test_replica_routes import create
from tests.support.delta_writer import StagedTable, path_of
from tests.support.store_servers import BUCKET, StoreServer, seaweedfs

from sparktxlog import Client
from sparktxlog.errors import InvalidRequestError
from sparktxlog.worker.feed.feed_checks import check_feed
from sparktxlog.worker.feed.feed_commits import restore_commits
from sparktxlog.worker.feed.feed_points import FeedRoute, route_to, target_of
from sparktxlog.worker.feed.feed_restoring import restore_rows
from sparktxlog.worker.feed.feed_store import FeedStore
from sparktxlog.worker.feed.shipping import feed
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory, ReplicaState, read_state
from sparktxlog.worker.verify.verify import recount_tables

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

_FEED = f"s3://{BUCKET}/off-site/feed"
_VERSIONS = 3


def _rows(version: int) -> bytes:
    """Return the data file of a version: a row."""
    tags = pa.array([[f"of {version}"]], pa.list_(pa.string()))
    content = io.BytesIO()
    pq.write_table(pa.table({"id": pa.array([version], pa.int64()), "tags": tags}), content)
    return content.getvalue()


async def _table(caller: Caller, name: str) -> StagedTable:
    table = await caller.stage(name)
    table.write_first(table.add(_rows(0)))
    status, answer = await caller.ask("POST", path_of(), table.creation(name))
    assert status == 200, answer
    return table


async def _work(caller: Caller, place: FeedStore) -> list[int]:
    """Write to a row table and a commit table in turn; return the end of each round.

    Each round is in the feed before the next one.
    """
    node = caller.node
    await create(node)
    table, ends = await _table(caller, "c"), list[int]()
    for version in range(1, _VERSIONS + 1):
        body = table.update(table.stage(version, table.add(_rows(version))))
        assert (await caller.commit(body, "c"))[0] == 200
        await asyncio.to_thread(_append, node.config.master_url, version)
        ends.append(node.base.ordered.value)
        await _shipped(place, ends[-1])
    return ends


async def _shipped(place: FeedStore, position: int) -> None:
    """Wait until a feed, which another thread makes, has a position."""
    async with asyncio.timeout(60):
        while (await asyncio.to_thread(_end_of, place)) < position:
            await asyncio.sleep(0.1)


def _end_of(place: FeedStore) -> int:
    firsts = place.firsts()
    return place.page(firsts[-1]).last if firsts else 0


def _append(url: str, number: int) -> None:
    with Client(url) as client:
        client.append("t", [{"id": number, "v": "inline"}, {"id": -number, "v": "x" * 300}])


def _apply(spark: SparkSession, caller: Caller) -> ReplicaState:
    config = caller.node.config
    with (
        closing(HttpLogSource(config.master_url)) as source,
        closing(ReplicaDirectory(Path(config.lake_dir))) as directory,
    ):
        Applier(spark, source, directory).run_once(0, timeout_s=60)
    state = read_state(Path(config.lake_dir))
    assert state is not None
    return state


def _route(place: FeedStore, position: int) -> FeedRoute:
    return route_to(place, target_of(place, str(position)))


def _read(table: str | Path, storage: dict[str, str]) -> list[dict[str, Any]]:
    found = DeltaTable(str(table), storage_options=storage).to_pyarrow_table()
    return found.sort_by("id").to_pylist()


def test_rows_and_commit_tables_come_back_from_a_bucket(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V66: at two positions, into a directory and into the bucket, with the site's signatures."""

    async def main(server: StoreServer) -> None:
        place, stop, tables = FeedStore(_FEED), threading.Event(), tmp_path / "tables"
        async with catalog(tmp_path / "site", inline_limit=200) as caller:
            urls = [caller.node.config.master_url]
            following = asyncio.create_task(asyncio.to_thread(feed, place, urls, stop))
            ends = await _work(caller, place)
            state = await asyncio.to_thread(_apply, spark, caller)
            assert state.position == ends[-1]
            # What a page after the report has, the report is in.
            await asyncio.to_thread(_append, urls[0], 9)
            last = caller.node.base.ordered.value
            await _shipped(place, last)
            stop.set()
            done = await following
            assert (done.position, done.pages > _VERSIONS) == (last, True)
        checked = await asyncio.to_thread(check_feed, place)
        assert checked.damaged == [] and checked.files > 2 * _VERSIONS
        lake = tmp_path / "lake"
        restored = await asyncio.to_thread(
            restore_rows, spark, place, _route(place, ends[-1]), lake
        )
        assert restored.proven_at == ends[-1], "they were compared with what the site reported"
        assert {name: one.signature for name, one in restored.state.tables.items()} == {
            name: one.signature for name, one in state.tables.items()
        }
        assert await asyncio.to_thread(recount_tables, spark, lake) == {}
        storage = server.environment()
        for number, end in enumerate(ends, start=1):
            rows = [{"id": version, "tags": [f"of {version}"]} for version in range(number + 1)]
            for target in (tables / str(end), f"s3://{BUCKET}/back/{end}"):
                route = _route(place, end)
                (one,) = await asyncio.to_thread(restore_commits, place, route, target)
                assert (one.place, one.version) == ("default.c", number)
                table = f"{target}/default.c"
                assert DeltaTable(table, storage_options=storage).version() == number
                assert _read(table, storage) == rows
                with pytest.raises(InvalidRequestError, match="is there already"):
                    restore_commits(place, route, target)

    with seaweedfs(tmp_path / "bucket") as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        asyncio.run(main(server))
