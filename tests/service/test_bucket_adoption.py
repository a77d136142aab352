"""A Delta table in a bucket becomes a commit table at two sites, and is given back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.service.test_bucket_tables import BIG, Cluster, Site, verified
from tests.support.delta_writer import SCHEMA, StagedTable, info_of, lines_of
from tests.support.faulty_way import by_chance, faulty_way
from tests.support.store_servers import BUCKET, StoreServer, seaweedfs

from sparktxlog.delta.commit_contents import read_commit_file
from sparktxlog.errors import CopyConflictError, CorruptLogError, InvalidRequestError
from sparktxlog.files.stores.store import Store
from sparktxlog.http.catalog_link import CatalogLink
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.worker.tables.adopted_files import BucketSource
from sparktxlog.worker.tables.release import release_commits, release_in_bucket
from sparktxlog.worker.tables.table_adoption import Adoption, adopt_commits

NAME = "default.orders"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with seaweedfs(tmp_path_factory.mktemp("server") / "state") as running:
        yield running


@pytest.fixture
def cluster(tmp_path: Path, server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Two sites; this process reaches their bucket by its environment."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return Cluster(tmp_path, server)


def old_table(server: StoreServer, drafts: Path, prefix: str) -> Store:
    """Put a table that jobs wrote below a prefix of the bucket, with two versions."""
    made = StagedTable(
        "x",
        drafts,
        "",
        {
            "id": "x",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(SCHEMA),
            "partitionColumns": [],
            "configuration": {"delta.appendOnly": "false"},
        },
        {"minReaderVersion": 1, "minWriterVersion": 2},
    )
    drafts.mkdir()
    made.write_first(first := made.add(), made.add(BIG))
    removal = {"remove": {"path": first["add"]["path"], "dataChange": True}}
    made.published(1).write_bytes(lines_of(info_of(5), removal, made.add(b"small")))
    store = server.store(prefix)
    for path in drafts.rglob("*"):
        if path.is_file():
            store.create(path.relative_to(drafts).as_posix(), path)
    return store


def contents(store: Store) -> dict[str, bytes]:
    return {one.key: store.read(one.key) for one in store.list()}


def adopt(link: CatalogLink, url: str, name: str = NAME, **how: Any) -> Adoption:
    source = BucketSource.at(url)
    return adopt_commits(source.plain(), source.newest, link, name, **how)


def test_a_table_in_the_bucket_comes_to_both_sites_and_goes(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = f"{tmp_path.name}/raw/orders"
    old = old_table(cluster.server, tmp_path / "old", prefix)
    before, url = contents(old), f"s3://{BUCKET}/{prefix}"

    async def main() -> None:
        async with cluster.running() as (a, b):
            with (
                closing(CatalogLink(a.caller.node.config.master_url)) as link,
                closing(CatalogLink(b.caller.node.config.master_url)) as other,
            ):
                planned = await asyncio.to_thread(adopt, link, url, way="copy", dry_run=True)
                assert (planned.files, planned.size_bytes) == (2, len(BIG) + 5)
                # Requests whose answers are lost, and copies that fail, are repeated.
                with (
                    faulty_way(cluster.server.endpoint, by_chance(0.25, seed=3)) as way,
                    monkeypatch.context() as patched,
                ):
                    patched.setenv("AWS_ENDPOINT_URL", way.url)
                    done = await asyncio.to_thread(adopt, link, url, way="copy")
                assert contents(old) == before
                shown = await asyncio.to_thread(other.load, NAME)
                found = [
                    {
                        one.key.partition("/")[2]: site.store.read(one.key)
                        for one in site.store.list(done.uuid)
                    }
                    for site in (a, b)
                ]
                assert found[0] == found[1] and len(found[0]) == 3
                assert BIG in found[0].values() and shown.metadata.location.endswith(done.uuid)

                await write(a, done.uuid, shown.metadata.updated_time + 1)
                target = f"s3://{BUCKET}/{tmp_path.name}/back/orders"
                kept = await asyncio.to_thread(release_in_bucket, other, NAME, target)
                assert (kept.version, kept.dropped, kept.path) == (1, False, target)
                assert kept.features is not None and "catalogManaged" not in kept.features
                assert "inCommitTimestamp" in kept.features
                back = contents(cluster.server.store(f"{tmp_path.name}/back/orders"))
                assert back.keys() == {*found[1], commit_file_name(1), "more.parquet"}
                assert read_commit_file(back[commit_file_name(1)]).timestamp > 0
                assert b"catalogManaged" not in back[commit_file_name(0)]
                with pytest.raises(InvalidRequestError, match="has objects already"):
                    await asyncio.to_thread(release_in_bucket, other, NAME, target)
                with pytest.raises(InvalidRequestError, match="is no prefix in the bucket"):
                    await asyncio.to_thread(release_commits, other, NAME, tmp_path / "here")
                # A version that is ordered before the drop comes along.
                drop = other.drop

                def written_before(name: str) -> None:
                    asyncio.run_coroutine_threadsafe(
                        write(b, done.uuid, shown.metadata.updated_time + 2, 2), loop
                    ).result()
                    drop(name)

                loop = asyncio.get_running_loop()
                monkeypatch.setattr(other, "drop", written_before)
                gone = await asyncio.to_thread(
                    release_in_bucket, other, NAME, f"{target}-2", drop=True, keep_features=True
                )
                assert (gone.version, gone.dropped, gone.features) == (2, True, None)
                assert commit_file_name(2) in contents(
                    cluster.server.store(f"{tmp_path.name}/back/orders-2")
                )

    asyncio.run(main())


async def write(site: Site, uuid: str, timestamp: int, version: int = 1) -> None:
    """Commit a version of the adopted table that adds a file."""
    directory = site.table.directory.parent / f"{uuid}-{version}"
    made = StagedTable(uuid, directory, "")
    directory.mkdir(parents=True)
    name = "more.parquet" if version == 1 else f"more-{version}.parquet"
    site.store.create(f"{uuid}/{name}", b"rows")
    add = {"add": {"path": name, "size": 4, "partitionValues": {}}}
    commit = made.stage(version, add, timestamp=timestamp)
    staged = f"{uuid}/_delta_log/_staged_commits/{commit['file-name']}"
    site.store.create(staged, made.staged(commit["file-name"]))
    status, answer = await site.caller.commit(made.update(commit), "orders")
    assert status == 200, answer


def test_what_cannot_be_adopted_is_said(cluster: Cluster, tmp_path: Path) -> None:
    prefix = f"{tmp_path.name}/raw/orders"
    old = old_table(cluster.server, tmp_path / "old", prefix)
    before, url = contents(old), f"s3://{BUCKET}/{prefix}"
    other = cluster.server.store("orders", bucket=f"{BUCKET}-2")  # SeaweedFS makes it
    for key, raw in before.items():
        other.create(key, raw)

    async def main() -> None:
        async with cluster.running() as (a, _):
            with closing(CatalogLink(a.caller.node.config.master_url)) as link:

                async def refused(match: str, at: str = url, **how: Any) -> None:
                    with pytest.raises(InvalidRequestError, match=match):
                        await asyncio.to_thread(adopt, link, at, **({"way": "copy"} | how))

                await refused("a bucket has no links", way="link")
                await refused("it has no _delta_log/", f"{url}/nothing")
                await refused("is a whole bucket", f"s3://{BUCKET}")
                await refused("lies in another bucket", f"s3://{BUCKET}-2/orders")

    asyncio.run(main())
    assert contents(old) == before


def test_a_file_that_goes_meanwhile_ends_an_adoption(cluster: Cluster, tmp_path: Path) -> None:
    prefix = f"{tmp_path.name}/raw/orders"
    old = old_table(cluster.server, tmp_path / "old", prefix)
    url = f"s3://{BUCKET}/{prefix}"

    async def main() -> None:
        async with cluster.running() as (a, b):
            with closing(CatalogLink(a.caller.node.config.master_url)) as link:
                source = BucketSource.at(url)
                there = {one.key for one in a.store.list() if one.key[0] != "."}
                with pytest.raises(CopyConflictError, match="has version 2, after 1"):
                    await asyncio.to_thread(
                        adopt_commits, source.plain(), lambda: 2, link, NAME, way="copy"
                    )
                big = next(one.key for one in old.list() if one.size_bytes == len(BIG))
                raw, plain = old.read(big), source.plain()

                def gone(_: str) -> None:
                    old.remove([big])

                with pytest.raises(CopyConflictError, match="was removed meanwhile"):
                    await asyncio.to_thread(
                        adopt_commits, plain, source.newest, link, NAME, way="copy", tell=gone
                    )
                with pytest.raises(InvalidRequestError, match="1 of 2 files are missing"):
                    await asyncio.to_thread(adopt, link, url, way="copy")
                left = {one.key for one in a.store.list() if one.key[0] != "."}
                assert left == there
                old.create(big, raw)
                done = await asyncio.to_thread(adopt, link, url, way="copy")
                # What a release needs and somebody removed is said, before anything is there.
                lost = f"{done.uuid}/{big}"
                a.store.remove([lost])
                target = f"s3://{BUCKET}/{tmp_path.name}/back"
                with pytest.raises(CorruptLogError, match=f"{big} is missing, and version 0"):
                    await asyncio.to_thread(release_in_bucket, link, NAME, target)
                assert not [*cluster.server.store(f"{tmp_path.name}/back").list()]
                assert b.store.find(lost) is not None or (await verified(a, repair=True))

    asyncio.run(main())
