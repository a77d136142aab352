"""Sites whose staged files lie in buckets: they travel, are published, repaired and removed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest
from tests.service.local_nodes import config_of, serving, until
from tests.service.test_catalog_api import Caller
from tests.service.test_catalog_of_rows import make
from tests.service.test_start_after_a_summary import free_ports
from tests.support.delta_writer import path_of
from tests.support.faulty_way import Fault, by_chance, faulty_way
from tests.support.storage_samples import parquet_bytes, staged_of
from tests.support.store_servers import BUCKET, StoreServer, seaweedfs

from sparktxlog.errors import ConfigError, JournalLostError, StoreNotReadyError
from sparktxlog.files.foreign_files import INCOMING
from sparktxlog.files.stores.bucket import BucketStore
from sparktxlog.http.upload_link import UploadLink
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.runtime import store_taking
from sparktxlog.runtime.log import publisher
from sparktxlog.runtime.node import build_node
from sparktxlog.storage.payloads.bucket_payloads import BucketPayloads

ROWS = pa.table(
    {"id": pa.array(range(40_000), pa.int64()), "v": [f"{n:x}" for n in range(40_000)]},
    schema=pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())]),
)
CONTENT = parquet_bytes(ROWS)
#: A file of a commit table that no run carries.
BIG = b"rows of a file that no run carries" * 4_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with seaweedfs(tmp_path_factory.mktemp("server") / "state") as running:
        yield running


@dataclass
class Site:
    """A node, and what its bucket has."""

    caller: Caller
    store: BucketStore

    async def append(self, file: StagedFile) -> int:
        """Commit a staged file; return its position."""
        name, _, _ = file.path.partition("/")
        described = {name: getattr(file, name) for name in ("path", "size_bytes", "rows", "digest")}
        body = {
            "transaction_id": name,
            "operations": [{"kind": "append", "table": "orders", "files": [described]}],
        }
        status, answer = await self.caller.ask("POST", "/v1/transactions", body)
        assert (status, answer["outcome"]) == (200, "committed"), answer
        return int(answer["position"])

    async def upload(self, directory: Path, content: bytes = CONTENT) -> StagedFile:
        """Send a file to the node, as an executor that shares no disk with it."""
        file = staged_of(f"{uuid.uuid4()}/0-orders-x/part-0.parquet", content, rows=ROWS.num_rows)
        local = directory / f"{uuid.uuid4()}.parquet"
        local.write_bytes(content)
        link = UploadLink(self.caller.node.config.master_url)
        try:
            await asyncio.to_thread(link.upload, local, file, "orders")
        finally:
            link.close()
        return file

    @property
    def payloads(self) -> BucketPayloads:
        found = self.caller.node.payloads
        assert isinstance(found, BucketPayloads)
        return found

    def on_its_disk(self) -> list[str]:
        """Return what the node's own directory has, besides broken transfers."""
        root = self.payloads.root
        files = (path for path in root.rglob("*") if path.is_file())
        return [str(path.relative_to(root)) for path in files if INCOMING not in path.parts]

    def inline(self) -> list[str]:
        return [one.key for one in self.store.list("inline")]


@dataclass
class Cluster:
    """Nodes of one log; each has prefixes of one bucket, perhaps behind a way that fails."""

    directory: Path
    server: StoreServer
    names: str = "AB"
    endpoint: str = ""
    more: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ports = free_ports(self.names)

    def prefix(self, name: str) -> str:
        return f"{self.directory.name}/{name}"

    def settings(self, name: str) -> dict[str, str]:
        return {
            "payload_url": f"s3://{BUCKET}/{self.prefix(name)}",
            "store_endpoint": self.endpoint or self.server.endpoint,
            "store_region": "us-east-1",
            "store_allow_http": "true",
            "store_credentials_file": str(self.server.credentials_file),
        } | {key: value.replace("SITE", name) for key, value in self.more.items()}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[list[Site]]:
        async with AsyncExitStack() as stack, aiohttp.ClientSession() as session:
            nodes = []
            for name in self.names:
                config = config_of(self.directory, name, self.ports, **self.settings(name))
                listener = socket.create_server(("127.0.0.1", self.ports[name]))
                nodes.append(await stack.enter_async_context(serving(config, listener)))
            links = [link for node in nodes for link in node.base.links.values()]
            await until(lambda: all(link.up for link in links))
            yield [
                Site(Caller(node, session), self.server.store(self.prefix(node.config.node_id)))
                for node in nodes
            ]


@pytest.fixture
def cluster(tmp_path: Path, server: StoreServer) -> Cluster:
    return Cluster(tmp_path, server)


async def published(site: Site, position: int) -> None:
    await until(lambda: site.caller.node.base.published.value >= position)


def test_staged_files_lie_in_the_bucket_of_each_site(cluster: Cluster, tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster.running() as (a, b):
            await make(a.caller.node)
            file = await a.upload(tmp_path)
            position = await a.append(file)
            await published(b, position)
            for site in (a, b):
                assert site.store.read(file.path) == CONTENT
                assert site.on_its_disk() == []
                status, info = await site.caller.ask("GET", "/v1/info")
                assert status == 200 and info["payload_url"] == site.store.url
            assert await a.append(file) == position, "the same transaction once more"
        async with cluster.running() as (a, b):
            for site in (a, b):  # after a start each file is compared once again
                site.payloads.verify(file)
                assert site.on_its_disk() == []

    asyncio.run(main())


def test_staged_files_do_not_pass_the_nodes_where_one_service_has_both_buckets(
    tmp_path: Path, server: StoreServer
) -> None:
    other = {"A": "B", "B": "A"}

    class Readers(Cluster):
        def settings(self, name: str) -> dict[str, str]:
            donor = f"s3://{BUCKET}/{self.prefix(other[name])}"
            return super().settings(name) | {"store_copy_from": donor}

    async def main() -> None:
        async with Readers(tmp_path, server).running() as (a, b):
            await make(a.caller.node)
            file = await a.upload(tmp_path)
            await published(b, await a.append(file))
            assert b.store.read(file.path) == CONTENT
            assert b.on_its_disk() == []
            assert b.caller.node.base.links["A"].traffic.fetched_bytes < len(CONTENT)
            metrics = b.caller.node.base.metrics.text().decode()
            assert 'sparktxlog_store_copies_total{way="service"} 1.0' in metrics

    asyncio.run(main())


def test_published_rows_lie_in_the_bucket(cluster: Cluster) -> None:
    async def main() -> None:
        async with cluster.running() as (a, b):
            await make(a.caller.node)
            rows = [{"id": 1, "v": "one"}]
            body = {"operations": [{"kind": "append", "table": "orders", "rows": rows}]}
            status, answer = await a.caller.ask("POST", "/v1/transactions", body)
            assert status == 200, answer
            for site in (a, b):
                await published(site, answer["position"])
                assert len(site.inline()) == 1
                assert site.on_its_disk() == []

    asyncio.run(main())


def test_a_removed_or_changed_object_comes_back_from_the_other_site(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def main() -> None:
        async with cluster.running() as (a, b):
            await make(a.caller.node)
            file = await a.upload(tmp_path)
            position = await a.append(file)
            await published(b, position)
            for harm in ("removed", "changed"):
                if harm == "removed":
                    b.store.remove([file.path])
                else:
                    b.store.replace(file.path, CONTENT[:-1] + b"?")
                found = await b.caller.node.files.repair_segments(position, position)
                assert found == {"fetched": [file.path], "lost": []}, harm
                assert b.store.read(file.path) == CONTENT

    asyncio.run(main())


def test_a_site_that_gets_a_bucket_puts_there_what_workers_ask_for(
    cluster: Cluster, tmp_path: Path
) -> None:
    """What was staged and published before is on the disk, and no worker has applied it."""
    cluster.names = "A"
    cluster.ports = free_ports("A")
    config = config_of(cluster.directory, "A", cluster.ports)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", cluster.ports["A"])) as listener:
            async with serving(config, listener) as node, aiohttp.ClientSession() as session:
                site = Site(Caller(node, session), cluster.server.store(cluster.prefix("A")))
                await make(node)
                file = await site.upload(tmp_path)
                await site.append(file)
                rows = [{"id": 1, "v": "one"}]
                body = {"operations": [{"kind": "append", "table": "orders", "rows": rows}]}
                status, answer = await site.caller.ask("POST", "/v1/transactions", body)
                assert status == 200, answer
                await published(site, answer["position"])
        async with cluster.running() as (a,):
            assert a.inline() == []
            found = await a.caller.node.files.repair_segments(1, answer["position"])
            assert found["lost"] == []
            assert len(a.inline()) == 1
            assert a.store.read(file.path) == CONTENT

    asyncio.run(main())


def test_files_of_commits_get_into_tables_and_leave_the_disk(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.more["commit_table_url"] = f"s3://{BUCKET}/{tmp_path.name}-tables/SITE"

    async def main() -> None:
        async with cluster.running() as (a, b):
            table = replace(await a.caller.stage(), directory=tmp_path / "drafts")
            tables = [
                cluster.server.store(f"{tmp_path.name}-tables/{name}") for name in cluster.names
            ]
            table.directory.mkdir()
            table.write_first(table.add(BIG))
            for path in table.directory.rglob("*"):
                if path.is_file():
                    key = f"{table.table_id}/{path.relative_to(table.directory)}"
                    tables[0].create(key, path)
            status, answer = await a.caller.ask("POST", path_of(), table.creation())
            assert status == 200, answer
            key = f"{table.table_id}/{commit_file_name(0)}"
            for site, store in zip((a, b), tables, strict=True):
                async with asyncio.timeout(60):
                    while await asyncio.to_thread(store.find, key) is None:
                        await asyncio.sleep(0.05)
                found = [one for one in store.list(table.table_id) if one.size_bytes == len(BIG)]
                assert [store.read(one.key) for one in found] == [BIG]
                await until(lambda site=site: site.on_its_disk() == [])  # type: ignore[misc]

    asyncio.run(main())


def test_lost_answers_and_throttling_lose_and_double_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def main() -> None:
        with faulty_way(cluster.server.endpoint, by_chance(0.0, 1)) as way:
            cluster.endpoint = way.url
            async with cluster.running() as (a, b):
                await make(a.caller.node)
                way.choose = by_chance(0.25, 35)
                files = [await a.upload(tmp_path) for _ in range(6)]
                last = 0
                for file in files:
                    last = max(last, await a.append(file))
                for site in (a, b):
                    await published(site, last)
                way.choose = by_chance(0.0, 1)
                assert way.happened[Fault.LOST] and way.happened[Fault.THROTTLED]
                digests = sorted(file.digest for file in files)
                for site in (a, b):
                    names = {file.path for file in files}
                    kept = [one.key for one in site.store.list() if one.key in names]
                    found = [hashlib.sha256(site.store.read(key)).hexdigest() for key in kept]
                    assert sorted(found) == digests
                    assert site.on_its_disk() == []

    asyncio.run(main())


def test_a_bucket_that_is_down_at_a_start_is_taken_later(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits are ordered meanwhile, and published after that."""
    monkeypatch.setattr(store_taking, "RETRY_S", 0.2)
    monkeypatch.setattr(store_taking, "START_S", 1.0)
    cluster.names = "A"
    cluster.ports = free_ports("A")

    async def main() -> None:
        with faulty_way(cluster.server.endpoint, lambda method: Fault.THROTTLED) as way:
            cluster.endpoint = way.url
            way.choose = by_chance(0.0, 1)
            async with cluster.running():
                pass  # the first start founds a log, so it needs its bucket
            way.choose = lambda method: Fault.THROTTLED
            async with cluster.running() as (a,):
                await make(a.caller.node)
                rows = [{"id": 1, "v": "x"}]
                body: dict[str, Any] = {
                    "operations": [{"kind": "append", "table": "orders", "rows": rows}]
                }
                status, answer = await a.caller.ask("POST", "/v1/transactions", body)
                assert status == 200, answer
                with pytest.raises(StoreNotReadyError):
                    a.payloads.sync(["inline/1-1/none.parquet"])
                there = cluster.server.store(cluster.prefix("A")).list()
                assert [one.key for one in there] == [".owner"]
                way.choose = by_chance(0.0, 1)
                await published(a, answer["position"])
                assert len(a.inline()) == 1

    asyncio.run(main())


def test_a_stop_does_not_wait_for_a_bucket_that_is_away(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits are taken meanwhile, what was ordered is published by the next start, and once."""
    monkeypatch.setattr(publisher, "_LAST_IN_BUCKET_S", 0.5)
    cluster.names = "A"
    cluster.ports = free_ports("A")
    rows = [{"id": 1, "v": "x"}]
    operations = [{"kind": "append", "table": name, "rows": rows} for name in ("one", "two")]

    async def main() -> None:
        with faulty_way(cluster.server.endpoint, by_chance(0.0, 1)) as way:
            cluster.endpoint = way.url
            async with cluster.running() as (a,):
                for name in ("one", "two"):
                    await make(a.caller.node, name)
                await published(a, 2)
                way.cut(silently=True)
                body: dict[str, Any] = {"operations": operations}
                status, answer = await a.caller.ask("POST", "/v1/transactions", body)
                assert status == 200, answer
                await until(lambda: way.happened[Fault.AWAY] >= 2)
                begun = time.monotonic()
            assert time.monotonic() - begun < 10.0
            waiting = [one for one in threading.enumerate() if one.name.startswith("whole-files")]
            assert len(waiting) == 2 and all(one.daemon for one in waiting), "an exit goes on"
            way.heal()
            async with cluster.running() as (a,):
                await published(a, answer["position"])
                assert len(a.inline()) == 2 and a.caller.node.log.publisher.failure is None

    asyncio.run(main())


def test_the_prefix_of_another_site_is_refused(tmp_path: Path, server: StoreServer) -> None:
    cluster = Cluster(tmp_path, server, names="A")
    server.store(cluster.prefix("A")).create(".owner", b"sparktxlog/C")

    async def main() -> None:
        async with cluster.running():
            pass

    with pytest.raises(ConfigError, match="staged files of site 'sparktxlog/C'") as caught:
        asyncio.run(main())
    assert caught.value.fields["key"] == "payload-url"


@pytest.mark.parametrize("left", ["payload_url", "lake_url"])
def test_a_lost_journal_is_noticed_by_what_the_bucket_has(
    tmp_path: Path, server: StoreServer, left: str
) -> None:
    """The disk of the node is gone, with all directories that had parts of the log."""
    cluster = Cluster(tmp_path, server, names="A")
    cluster.more["lake_url"] = f"s3://{BUCKET}/{tmp_path.name}-rows/SITE"
    if left == "payload_url":
        server.store(cluster.prefix("A")).create("inline/1-7/orders-0.parquet", b"rows")
    else:
        state = json.dumps({"worker_id": "w", "position": 7}).encode()
        server.store(f"{tmp_path.name}-rows/A").create("_sparktxlog/state.json", state)

    config = config_of(tmp_path, "A", cluster.ports, **cluster.settings("A"))

    async def main() -> None:
        build_node(config)

    for _ in range(2):
        with pytest.raises(JournalLostError, match="s3://") as caught:
            asyncio.run(main())
        assert cluster.settings("A")[left] in str(caught.value)
        assert "other prefixes" in caught.value.hint
