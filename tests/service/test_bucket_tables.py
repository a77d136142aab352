"""Commit tables in buckets: each site has its own, and files travel between them by the nodes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.service.local_nodes import config_of, serving, until
from tests.service.test_catalog_api import STAGING, Caller
from tests.service.test_several_commits import as_proposed
from tests.service.test_start_after_a_summary import free_ports
from tests.support.command_line import invoke
from tests.support.delta_writer import StagedTable, path_of
from tests.support.store_servers import BUCKET, SECRET, StoreServer, seaweedfs

from sparktxlog.attic.attic import OF_COMMIT_TABLES, Kind
from sparktxlog.attic.bucket_attic import BucketAttic
from sparktxlog.errors import ConfigError
from sparktxlog.files.stores import bucket_clients
from sparktxlog.files.stores.store import Store
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.tables.table_checks import FileFault
from sparktxlog.runtime import store_taking
from sparktxlog.runtime.commit_tables import commit_placer
from sparktxlog.runtime.node import build_node
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.verify.table_verification import CommitTableResult, verify_commit_tables

BIG = b"rows of a file that no run carries" * 4_000


@dataclass
class Site:
    """A node, and the table in its bucket as writers of the site see it."""

    caller: Caller
    store: Store
    #: Where a writer makes its files before it puts them into the bucket.
    table: StagedTable

    async def write(self, version: int, content: bytes = b"rows") -> None:
        """Commit a version that adds a file."""
        body = self.table.update(self.table.stage(version, self.table.add(content)))
        self.upload()
        status, answer = await self.caller.commit(body)
        assert status == 200, answer

    def upload(self) -> None:
        """Put what the writer made into the bucket, as Spark does."""
        for path in self.table.directory.rglob("*"):
            if path.is_file():
                self.store.create(self.key(str(path.relative_to(self.table.directory))), path)

    def key(self, path: str) -> str:
        return f"{self.table.table_id}/{path}"

    async def placed(self, version: int) -> None:
        """Wait until a version is in the bucket."""
        key = self.key(commit_file_name(version))
        async with asyncio.timeout(60):
            while await asyncio.to_thread(self.store.find, key) is None:
                await asyncio.sleep(0.05)

    def files(self) -> dict[str, str]:
        """Return all objects of the table with their digests, without what is only staged."""
        return {
            one.key: hashlib.sha256(self.store.read(one.key)).hexdigest()
            for one in self.store.list(self.table.table_id)
            if "_staged_commits" not in one.key
        }


@dataclass
class Cluster:
    """Nodes of one log; each has a prefix of one bucket."""

    directory: Path
    server: StoreServer
    names: str = "AB"
    table: StagedTable | None = None
    #: Whether each site may read the buckets of the others.
    copies: bool = False

    def __post_init__(self) -> None:
        self.ports = free_ports(self.names)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[list[Site]]:
        """Run them; at first the first one creates a table."""
        async with AsyncExitStack() as stack, aiohttp.ClientSession() as session:
            nodes = []
            for name in self.names:
                config = config_of(
                    self.directory,
                    name,
                    self.ports,
                    commit_table_url=self.url(name),
                    store_endpoint=self.server.endpoint,
                    store_region="us-east-1",
                    store_allow_http="true",
                    store_credentials_file=str(self.server.credentials_file),
                    **self.donors(name),
                )
                listener = socket.create_server(("127.0.0.1", self.ports[name]))
                nodes.append(await stack.enter_async_context(serving(config, listener)))
            await until(lambda: all(node.membership.joining.proven for node in nodes))
            callers = [Caller(node, session) for node in nodes]
            is_new = self.table is None
            if is_new:
                self.table = await callers[0].stage()
                assert self.table.location == f"{self.url('A')}/{self.table.table_id}"
            found = [self.site(caller) for caller in callers]
            if is_new:
                first = found[0]
                first.table.write_first(first.table.add())
                first.upload()
                status, answer = await first.caller.ask("POST", path_of(), first.table.creation())
                assert status == 200, answer
            yield found

    def donors(self, name: str) -> dict[str, str]:
        others = ",".join(self.url(other) for other in self.names if other != name)
        return {"store_copy_from": others} if self.copies else {}

    def url(self, name: str) -> str:
        return f"s3://{BUCKET}/{self.directory.name}/{name}"

    def site(self, caller: Caller) -> Site:
        name = caller.node.config.node_id
        assert self.table is not None
        drafts = replace(self.table, directory=self.directory / "drafts" / name)
        drafts.directory.mkdir(parents=True, exist_ok=True)
        return Site(
            caller=caller, store=self.server.store(f"{self.directory.name}/{name}"), table=drafts
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with seaweedfs(tmp_path_factory.mktemp("server") / "state") as running:
        yield running


@pytest.fixture
def cluster(tmp_path: Path, server: StoreServer) -> Cluster:
    return Cluster(tmp_path, server)


def test_two_sites_write_one_table_in_two_buckets(cluster: Cluster) -> None:
    async def main() -> None:
        async with cluster.running() as (a, b):
            await b.placed(0)
            await b.write(1, BIG)
            await a.placed(1)
            await a.write(2, BIG[::-1])
            await b.placed(2)
            assert await a.caller.version() == await b.caller.version() == 2
            here, there = [await asyncio.to_thread(site.files) for site in (a, b)]
            assert here == there and len(here) == 6
            # Nothing of a table is on a disk of the nodes, but what their runs carried.
            local = a.caller.node.config.commit_table_dir
            assert not [path for path in local.rglob("*") if path.is_file()]

    asyncio.run(main())


def test_a_prefix_of_another_site_is_refused_at_the_start(cluster: Cluster) -> None:
    async def main() -> None:
        async with cluster.running() as (a, b):
            before = await asyncio.to_thread(a.files)
            config = config_of(
                cluster.directory / "second",
                "C",
                free_ports("C"),
                commit_table_url=cluster.url("A"),
                store_endpoint=cluster.server.endpoint,
                store_region="us-east-1",
                store_allow_http="true",
                store_credentials_file=str(cluster.server.credentials_file),
            )
            second = build_node(config)
            with pytest.raises(ConfigError, match="commit tables of site 'sparktxlog/A'") as caught:
                await second.start()
            assert caught.value.fields["key"] == "commit-table-url" and caught.value.hint
            await second.stop()
            assert await asyncio.to_thread(a.files) == before
            await a.write(1)
            await b.placed(1)

    asyncio.run(main())


def test_a_commit_costs_few_requests(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with cluster.running() as (a, b):
            await b.placed(0)
            await settled(a, b, 0)
            before = requests_of(a), requests_of(b)
            for version in range(1, 5):
                await a.write(version)
                await b.placed(version)
            await settled(a, b, 4)
            asked = [
                now - then
                for now, then in zip((requests_of(a), requests_of(b)), before, strict=True)
            ]
            assert asked[0] <= 4 * 6 and asked[1] <= 4 * 3, asked
            await cost_is_shown(a, capsys, monkeypatch)

    asyncio.run(main())


async def cost_is_shown(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Look whether the command says what the metrics say."""
    command = ("status", "--cost", "--url", site.caller.node.config.master_url)
    for more in (("--json",), (), ("--all",)):
        before = requests_of(site)
        capsys.readouterr()
        assert await asyncio.to_thread(invoke, monkeypatch, *command, *more) == 0
        said = capsys.readouterr().out
        assert site.store.url in said, said
        if more == ("--json",):
            (store,) = json.loads(said)["stores"]
            assert store["asked"].keys() == {"get", "put", "list", "head", "delete", "copy"}
            total = sum(one["requests"] for one in store["asked"].values())
            assert before <= total <= requests_of(site) and store["since"] > 0
            assert store["asked"]["put"]["bytes"] > 0
        elif not more:
            assert "kind" in said and "those of Spark, are not among them" in said
        else:
            assert "put, list, copy" in said and "bytes written" in said


async def settled(a: Site, b: Site, version: int) -> None:
    """Wait until both have second copies of the commits up to a version."""
    name = commit_file_name(version).rpartition("/")[2]
    for site in (a, b):
        async with asyncio.timeout(60):
            key = f".commits/{site.table.table_id}/{name}"
            while await asyncio.to_thread(site.store.find, key) is None:
                await asyncio.sleep(0.05)


def requests_of(site: Site) -> int:
    """Return how often the node asked its bucket, by its metrics."""
    lines = site.caller.node.base.metrics.text().decode().splitlines()
    found = [line for line in lines if line.startswith("sparktxlog_store_requests_total{")]
    assert len(found) == 6
    return sum(int(float(line.rpartition(" ")[2])) for line in found)


def test_a_lost_object_and_a_damaged_one_come_back_from_the_other_site(cluster: Cluster) -> None:
    async def main() -> None:
        async with cluster.running() as (a, b):
            await a.write(1, BIG)
            await a.write(2)
            await b.placed(2)
            before = await asyncio.to_thread(b.files)
            assert (await verified(b)).sound
            keys = {one.size_bytes: one.key for one in b.store.list(b.table.table_id)}
            b.store.remove([keys[len(BIG)]])
            b.store.replace(keys[len(b"rows")], b"swor")
            found = await verified(b)
            assert {one.fault.value for one in found.findings} == {"missing", "changed"}
            for one in found.findings:
                # Versions 0 and 2 add files of four bytes.
                assert one.version in ({1} if one.fault is FileFault.MISSING else {0, 2})
                assert one.table == "default.t" and b.key(one.file) in keys.values()
                assert f"version {one.version}" in one.text and one.file in one.text
            await verified(b, repair=True)
            assert await asyncio.to_thread(b.files) == before
            assert (await verified(b)).sound

    asyncio.run(main())


async def verified(site: Site, **how: Any) -> CommitTableResult:
    """Verify the table of a site, as the command does."""

    def run() -> tuple[CommitTableResult, ...]:
        with closing(HttpLogSource(site.caller.node.config.master_url, None)) as source:
            return verify_commit_tables(source, **how)

    (found,) = await asyncio.to_thread(run)
    return found


@pytest.mark.parametrize("copies", [False, True])
def test_a_site_that_lost_its_bucket_gets_all_versions_again(
    cluster: Cluster, copies: bool
) -> None:
    async def main() -> None:
        async with cluster.running() as (a, b):
            await a.write(1, BIG)
            await b.placed(1)
            kept = b.caller.node.base.journal.read_placed_versions
            await until(lambda: kept() == {b.table.table_id: 1})
            before = await asyncio.to_thread(b.files)
        b.store.remove([one.key for one in b.store.list()])
        cluster.copies = copies
        async with cluster.running() as (a, b):
            await b.placed(1)
            assert await asyncio.to_thread(b.files) == before
            metrics = b.caller.node.base.metrics.text().decode()
            # Version 1 is in its payload store; of version 0 the only file is copied.
            assert ('sparktxlog_store_copies_total{way="service"} 1.0' in metrics) is copies

    asyncio.run(main())


def test_an_object_of_somebody_else_goes_to_the_attic(cluster: Cluster) -> None:
    async def main() -> None:
        async with cluster.running() as (a, b):
            await b.placed(0)
            add = a.table.add(BIG)
            commit = a.table.stage(1, add)
            a.upload()
            b.store.create(b.key(add["add"]["path"]), b"of somebody else")
            status, answer = await a.caller.commit(a.table.update(commit))
            assert status == 200, answer
            await b.placed(1)
            assert b.store.read(b.key(add["add"]["path"])) == BIG
            (entry,) = BucketAttic(b.store, OF_COMMIT_TABLES).entries(Kind.FILES, b.table.table_id)
            kept = f"{OF_COMMIT_TABLES}/{entry.id}/content/{add['add']['path']}"
            assert b.store.read(kept) == b"of somebody else"

    asyncio.run(main())


def test_a_commit_whose_files_are_not_in_the_bucket_is_refused(cluster: Cluster) -> None:
    async def main() -> None:
        async with cluster.running() as (a, _):
            commit = a.table.stage(1, a.table.add(BIG))
            status, answer = await a.caller.commit(a.table.update(commit))
            assert status == 400 and "there is no file s3://" in answer["error"]["message"]
            a.store.create(
                a.key(f"_delta_log/_staged_commits/{commit['file-name']}"),
                a.table.staged(commit["file-name"]),
            )
            status, answer = await a.caller.commit(a.table.update(commit))
            assert status == 400 and "is not at this site" in answer["error"]["message"]

    asyncio.run(main())


def test_a_bucket_that_refuses_a_start_is_taken_once_it_does_not(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node goes on with all else, and places what was committed meanwhile."""
    monkeypatch.setattr(bucket_clients, "_CREDENTIALS_S", 0)
    monkeypatch.setattr(store_taking, "RETRY_S", 0.2)
    monkeypatch.setattr(commit_placer, "_RETRY_S", 0.2)
    right = cluster.server.credentials_file.read_text()
    own = cluster.directory / "credentials"
    own.write_text(right)
    cluster.server = replace(cluster.server, credentials_file=own)

    async def main() -> None:
        async with cluster.running() as (a, b):
            await a.write(1)
            await b.placed(1)
        own.write_text(right.replace(SECRET, "another-secret"))
        async with cluster.running() as (a, b):
            node = b.caller.node
            await until(lambda: bool(node.catalog.placer.failures() or node.failed.done()))
            assert not node.failed.done()
            await refused_before_the_order(b)
            own.write_text(right)
            catalogs = [one.caller.node.catalog for one in (a, b)]
            await until(lambda: all(one.taking.is_taken for one in catalogs))
            await a.write(2)
            await b.placed(2)
            await until(lambda: not node.catalog.placer.failures())

    asyncio.run(main())


async def refused_before_the_order(site: Site) -> None:
    """Let a site whose bucket is not proved yet be asked to write; nothing happens."""
    before = site.caller.node.base.ordered.value
    table = site.table
    commit = table.stage(2, table.add())
    new = table.creation("u") | {"location": f"{table.location[:-36]}{uuid.uuid4()}"}
    several = {"operations": [], "commits": [as_proposed(table, commit)]}
    several["transaction_id"] = str(uuid.uuid4())
    for path, body in (
        (path_of("t"), table.update(commit)),
        (path_of(), new),
        (STAGING, {"name": "u"}),
        ("/v1/transactions", several),
    ):
        status, answer = await site.caller.ask("POST", path, body)
        assert status == 503 and "is this site's" in str(answer), (path, status, answer)
        assert "store-not-ready" in str(answer)
    assert site.caller.node.base.ordered.value == before
