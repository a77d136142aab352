"""What jobs do to tables in a bucket while its server loses answers, or somebody removes objects.

Spark is left out: what Delta commits on a twin is written by hand.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.service.test_bucket_tables import BIG, Cluster, Site, verified
from tests.support.command_line import invoke
from tests.support.delta_writer import BEGIN, info_of, lines_of
from tests.support.faulty_way import Fault, by_chance, faulty_way
from tests.support.store_servers import StoreServer, seaweedfs

from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import CorruptLogError, StoreUnavailableError
from sparktxlog.files.stores.opening import store_at
from sparktxlog.files.stores.store import Store
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.storage.commit_tables.bucket_tables import BucketTable, BucketTables, LogCopy
from sparktxlog.storage.commit_tables.shared_tables import UPKEEP_TWINS
from sparktxlog.storage.commit_tables.twin import TwinCommit

MONTH_MS = 30 * 86_400_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with seaweedfs(tmp_path_factory.mktemp("server") / "state") as running:
        yield running


@pytest.fixture
def cluster(tmp_path: Path, server: StoreServer) -> Cluster:
    return Cluster(tmp_path, server)


def table_of(store: Store, site: Site) -> BucketTable:
    return BucketTables(store).table("default.t", store.url_of(site.table.table_id))


def compacted(table: BucketTable, site: Site, version: int) -> TwinCommit:
    """Replace all files of a version by one, on a twin, as OPTIMIZE does; stage it."""
    twin = table.twin(version, UPKEEP_TWINS)
    key = twin.path.removeprefix(f"{site.store.url}/")
    log = LogCopy(site.store, key)
    live = LogState.read(log.upto(version))
    name = f"part-{uuid.uuid4()}.parquet"
    site.store.create(f"{key}/{name}", BIG)
    site.store.create(
        f"{key}/{commit_file_name(version + 1)}",
        lines_of(
            info_of(BEGIN + version + 1),
            *({"remove": {"path": add["path"], "dataChange": False}} for add in live.adds.values()),
            {"add": {"path": name, "size": len(BIG), "partitionValues": {}, "dataChange": False}},
        ),
    )
    assert twin.own_version() == version + 1
    commit = twin.stage(version + 1)
    twin.remove()
    return commit


async def committed(site: Site, commit: TwinCommit) -> tuple[int, Any]:
    """Ask the site's node to make a staged commit a version."""
    said = commit.proposed
    body = {
        "version": said.version,
        "timestamp": said.timestamp,
        "file-name": said.file_name,
        "file-size": said.file_size,
        "file-modification-timestamp": said.file_modification_timestamp,
    }
    return await site.caller.commit(site.table.update(body))


def test_upkeep_ends_well_though_answers_are_lost(cluster: Cluster) -> None:
    async def main() -> None:
        async with cluster.running() as (a, b):
            for version in (1, 2, 3):
                await a.write(version)
            await b.placed(3)
            prefix = f"{cluster.directory.name}/A"
            with faulty_way(cluster.server.endpoint, by_chance(0.25, seed=11)) as way:
                table = table_of(cluster.server.store(prefix, endpoint=way.url), a)
                commit = await asyncio.to_thread(compacted, table, a, 3)
                status, answer = await committed(a, commit)
                assert status == 200, answer
                await b.placed(4)
                assert await asyncio.to_thread(a.files) == await asyncio.to_thread(b.files)
                # One that loses leaves all files that the table has.
                lost = await asyncio.to_thread(compacted, table, a, 4)
                await b.write(5)
                await a.placed(5)
                status, _ = await committed(a, lost)
                assert status == 409
                before = await asyncio.to_thread(a.files)
                assert {a.key(path) for path in lost.brought} < before.keys()
                await asyncio.to_thread(table.withdraw, lost)
                after = await asyncio.to_thread(a.files)
                assert before.keys() - after.keys() == {a.key(path) for path in lost.brought}
                # A month later what was compacted goes, at this site alone.
                now_ms = time.time_ns() // 1_000_000 + MONTH_MS
                old = await asyncio.to_thread(
                    lambda: table.unneeded(5, now_ms=now_ms, keep_ms=MONTH_MS // 2)
                )
                assert old.count == 4
                await asyncio.to_thread(old.remove)
                staged = await asyncio.to_thread(lambda: table.decided(5, now_ms=now_ms))
                await asyncio.to_thread(staged.remove)
                assert staged.count == 4
                assert Counter(way.happened)[Fault.LOST] > 0
            gone = {one.key for one in old.found}
            assert after.keys() - (await asyncio.to_thread(a.files)).keys() == gone
            assert {a.key(path) for path in commit.brought} <= after.keys() - gone
            assert (await verified(a)).sound and (await verified(b)).sound
            assert not [*a.store.list(UPKEEP_TWINS)]

    asyncio.run(main())


def test_a_bucket_that_is_down_is_said_and_nothing_is_removed(cluster: Cluster) -> None:
    async def main() -> None:
        async with cluster.running() as (a, b):
            await a.write(1)
            await b.placed(1)
            before = await asyncio.to_thread(a.files)
            with faulty_way(cluster.server.endpoint, lambda _: Fault.THROTTLED) as way:
                settings = cluster.server.settings(way.url, patience_s=0.2)
                table = table_of(store_at(cluster.url("A"), settings), a)
                for act in (
                    lambda: table.twin(1, UPKEEP_TWINS),
                    lambda: table.unneeded(1, now_ms=2**50, keep_ms=0),
                    lambda: table.decided(1, now_ms=2**50),
                    BucketTables(store_at(cluster.url("A"), settings)).now_ms,
                ):
                    with pytest.raises(StoreUnavailableError):
                        await asyncio.to_thread(act)
            assert await asyncio.to_thread(a.files) == before

    asyncio.run(main())


def test_a_version_that_somebody_removes_stops_a_vacuum_and_comes_back(cluster: Cluster) -> None:
    async def main() -> None:
        async with cluster.running() as (a, b):
            for version in (1, 2):
                await a.write(version)
            await b.placed(2)
            a.store.remove([a.key(commit_file_name(1))])
            table = table_of(a.store, a)
            for act in (
                lambda: table.unneeded(2, now_ms=2**50, keep_ms=0),
                lambda: table.twin(2, UPKEEP_TWINS),
            ):
                with pytest.raises(CorruptLogError, match=f"{1:020}.json is missing"):
                    await asyncio.to_thread(act)
            await verified(a, repair=True)
            found = await asyncio.to_thread(lambda: table.unneeded(2, now_ms=2**50, keep_ms=0))
            assert found.count == 0

    asyncio.run(main())


def test_the_command_maintains_tables_in_a_bucket(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without OPTIMIZE it needs no Spark; it reaches the bucket by its environment."""
    for name, value in cluster.server.environment().items():
        monkeypatch.setenv(name, value)

    async def main() -> None:
        async with cluster.running() as (a, b):
            await a.write(1)
            await b.placed(1)
            lost = a.key("part-of-nobody.parquet")
            a.store.create(lost, b"of a statement that failed")
            dropped = str(uuid.uuid4())
            a.store.create(f"{dropped}/x", b"of no table")

            async def maintained(*more: str, code: int = 0) -> Any:
                capsys.readouterr()
                url = ("--url", a.caller.node.config.master_url)
                command = ("maintain", "--no-optimize", "--json", *url, *more)
                assert await asyncio.to_thread(invoke, monkeypatch, *command) == code
                return json.loads(capsys.readouterr().out.splitlines()[-1])

            before = there(a)
            assert (await maintained("--dry-run"))["removed"] == []
            assert there(a) == before
            # Two weeks later, by the bucket's clock and this one; each is young at first.
            (now,) = (await maintained())["commit_tables"]
            assert (now["failed"], now["skipped"], now["files"]) == ("", "", 2)
            assert now["vacuumed_files"] == 0
            assert there(a) == before | {f".unused/{dropped}"}
            real = BucketTables.now_ms
            monkeypatch.setattr(BucketTables, "now_ms", lambda one: real(one) + MONTH_MS)
            later = await maintained()
            (table,) = later["commit_tables"]
            assert (table["vacuumed_files"], table["staged_commits"]) == (1, 1)
            (removal,) = later["removed"]
            assert removal["kind"] == "places of no table"
            assert removal["removed"] == [a.store.url_of(dropped)]
            gone = before - there(a)
            assert {lost, f"{dropped}/x"} < gone and len(gone) == 3
            assert (await verified(a)).sound
            # Wrong credentials are said for the table, and nothing is changed.
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
            failed = await maintained(code=1)
            assert "store-forbidden" in json.dumps(failed)
            assert before - there(a) == gone

    asyncio.run(main())


def there(site: Site) -> set[str]:
    """Return all keys, without second copies of commit files, which the node makes when it can."""
    return {one.key for one in site.store.list() if not one.key.startswith(".commits/")}
