"""A node whose row tables lie in a bucket: what it shows of them, and what it lends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.service.local_nodes import until
from tests.service.test_catalog_api import catalog
from tests.service.test_catalog_of_rows import TABLES, make
from tests.support import store_servers
from tests.support.delta_writer import path_of
from tests.support.replica_lakes import contents, report_of
from tests.support.store_servers import BUCKET, StoreServer

from sparktxlog.errors import FileChangedError, NotFoundError
from sparktxlog.files.stores.object_pins import LEASES, disk_of, pinned_paths
from sparktxlog.files.stores.part import PartOfStore
from sparktxlog.files.tasks import Fetched
from sparktxlog.model.copying import CopyTicket, Decision, Lease
from sparktxlog.model.signature import EMPTY_SIGNATURE
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.runtime.donors.donor_sizes import missing_bytes
from sparktxlog.worker.apply.tables import create_table
from sparktxlog.worker.copy.donor_fetcher import DonorFetcher


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with store_servers.seaweedfs(tmp_path_factory.mktemp("seaweedfs") / "state") as found:
        yield found


def settings(server: StoreServer, prefix: str, endpoint: str = "") -> dict[str, str]:
    return {
        "lake_url": f"s3://{BUCKET}/{prefix}",
        "store_endpoint": endpoint or server.endpoint,
        "store_region": "us-east-1",
        "store_allow_http": "true",
        "store_credentials_file": str(server.credentials_file),
    }


def report(
    node: Any, position: int, lake: str, definition: TableDefinition | None = None
) -> dict[str, Any]:
    status = node.status() | {"position": position}
    made = report_of(status, 0, "worker of A")
    table = made.tables["t"]
    if definition is not None:
        table = replace(table, schema=definition.fingerprint(), signature=EMPTY_SIGNATURE)
    tables = {"orders": table}
    found: dict[str, Any] = msgspec.to_builtins(replace(made, tables=tables))
    return found | {"lake": lake}


def test_row_tables_in_a_bucket_are_shown_where_they_are(
    tmp_path: Path, server: StoreServer
) -> None:
    prefix = f"rows-{os.urandom(4).hex()}"
    url, store = f"s3://{BUCKET}/{prefix}", server.store(prefix)

    async def main() -> None:
        async with catalog(tmp_path, **settings(server, prefix)) as caller:
            node = caller.node
            await make(node)
            assert (await caller.ask("GET", path_of("orders")))[0] == 404
            definition = node.base.master.tables["orders"]
            table = PartOfStore(store, "orders")
            txn = {"appId": "a", "version": 1}
            await asyncio.to_thread(create_table, table, definition, "{}", txn)
            status, shown = await caller.ask("GET", path_of("orders"))
            assert status == 200 and shown["metadata"]["location"] == f"{url}/orders"
            assert shown["latest-table-version"] == 0
            status, listed = await caller.ask("GET", TABLES)
            assert [one["name"] for one in listed["tables"]] == ["orders"]
            _, info = await caller.ask("GET", "/v1/info")
            assert info["lake_url"] == url
            assert info["lake_root"] == str(node.config.lake_dir)
            _, described = await caller.ask("GET", "/v1/descriptions/orders")
            assert described["location"] == f"{url}/orders"
            with pytest.raises(NotFoundError, match="no applied replica"):
                await node.donor.lend("w")
            body = report(node, node.status()["position"], url, definition)
            status, answer = await caller.ask("POST", "/v1/worker/reports", body)
            assert answer["verdict"] == "IN_SYNC", answer
            lease = await node.donor.lend("w")
            (offered,) = lease.tables
            assert [file.path for file in offered.files] == [commit_file_name(0)]
            given = (lease.lease_id, lease.token, "orders", commit_file_name(0))
            chunk = await node.donor.chunk(*given, 0, lease.chunk_bytes, packed=False)
            assert bytes(chunk.data) == store.read(f"orders/{commit_file_name(0)}")
            assert pinned_paths(node.config.lake_dir) == {"orders": {commit_file_name(0)}}
            size = await node.donor.size()
            assert missing_bytes(size, store) == 0
            node.donor.release(lease.lease_id, lease.token)
            store.remove([one.key for one in store.list("orders")])
            assert (await caller.ask("GET", path_of("orders")))[0] == 404

    asyncio.run(main())


def test_another_site_fetches_what_the_bucket_has(tmp_path: Path, server: StoreServer) -> None:
    """By ranges through the node, compared with digests; a changed object is refused."""
    prefix = f"rows-{os.urandom(4).hex()}"
    url, store = f"s3://{BUCKET}/{prefix}", server.store(prefix)
    files = {"p=a b%2F/a.parquet": os.urandom(2_500_000), "b.parquet": b"", "c": b"c" * 70_000}

    def fetch(lease: Lease, here: Path) -> Fetched:
        fetcher = DonorFetcher(here, "copy")
        here.mkdir()
        decision = Decision(worker_id="w of B", plan="copy", reason="")
        fetcher.hold(CopyTicket(copy_id="copy", decision=decision, lease=lease))
        try:
            (offered,) = lease.tables
            return fetcher.fetch(fetcher.select("orders", offered.files))
        finally:
            fetcher.release()

    async def main() -> None:
        async with catalog(tmp_path / "nodes", **settings(server, prefix)) as caller:
            node = caller.node
            await make(node)
            definition = node.base.master.tables["orders"]
            table = PartOfStore(store, "orders")
            txn = {"appId": "a", "version": 1}
            await asyncio.to_thread(create_table, table, definition, "{}", txn)
            for path, content in files.items():
                await asyncio.to_thread(table.replace, path, content)
            body = report(node, node.status()["position"], url, definition)
            await caller.ask("POST", "/v1/worker/reports", body)
            lease = await node.donor.lend("w of B")
            fetched = await asyncio.to_thread(fetch, lease, tmp_path / "b")
            staged = contents(tmp_path / "b" / "_sparktxlog" / "copies" / "copy" / "orders")
            commit = commit_file_name(0)
            assert staged == files | {commit: table.read(commit)}
            assert fetched.fetched_bytes == fetched.size_bytes == sum(map(len, staged.values()))
            lease = await node.donor.lend("w of C")
            await asyncio.to_thread(table.replace, "c", b"d" * 70_000)
            with pytest.raises(FileChangedError, match="no longer"):
                await asyncio.to_thread(fetch, lease, tmp_path / "c")

    asyncio.run(main())


def test_a_replica_with_a_name_lends_from_its_bucket(tmp_path: Path, server: StoreServer) -> None:
    """To the main one on the disk of the same site; what is pinned there, `maintain` leaves."""
    prefix = f"reports-{os.urandom(4).hex()}"
    url, store = f"s3://{BUCKET}/{prefix}", server.store(prefix)
    given = {key: value for key, value in settings(server, prefix).items() if key != "lake_url"}

    async def main() -> None:
        async with catalog(tmp_path / "nodes", **given) as caller:
            node = caller.node
            await make(node)
            definition = node.base.master.tables["orders"]
            table, txn = PartOfStore(store, "orders"), {"appId": "a", "version": 1}
            await asyncio.to_thread(create_table, table, definition, "{}", txn)
            await asyncio.to_thread(table.replace, "b.parquet", b"b" * 70_000)
            lake = node.config.lake_dir
            disk = disk_of(url, lake, None)
            assert disk != lake
            body = report(node, node.status()["position"], url, definition)
            body |= {"name": "reports", "worker_id": "r"}
            status, answer = await caller.ask("POST", "/v1/worker/reports", body)
            assert (status, answer["verdict"]) == (200, "IN_SYNC"), answer
            await until(lambda: (disk / LEASES).is_dir())  # so `maintain` may run from now on
            _, info = await caller.ask("GET", "/v1/info")
            assert info["replica_lakes"] == {"reports": url}
            behind = report(node, 0, str(lake)) | {"chain_hash": "", "tables": {}}
            await caller.ask("POST", "/v1/worker/reports", behind | {"worker_id": "m"})
            ticket = await node.order_copy("m", forced=True)
            lease = ticket.lease
            assert (lease.replica, lease.pins) == ("A/reports", "")
            names = {"b.parquet", commit_file_name(0)}
            assert pinned_paths(disk) == {"orders": names} and not pinned_paths(lake)
            fetcher, (offered,) = DonorFetcher(lake, "copy"), lease.tables
            fetcher.hold(ticket)
            try:
                await asyncio.to_thread(
                    lambda: fetcher.fetch(fetcher.select("orders", offered.files))
                )
            finally:
                await asyncio.to_thread(fetcher.release)
            staged = contents(lake / "_sparktxlog" / "copies" / "copy" / "orders")
            assert staged == {name: table.read(name) for name in names}
            await until(lambda: not pinned_paths(disk))

    asyncio.run(main())


def test_the_worker_of_another_lake_is_refused(tmp_path: Path, server: StoreServer) -> None:
    url = f"s3://{BUCKET}/rows"

    async def main() -> None:
        async with catalog(tmp_path, **settings(server, "rows")) as caller:
            await make(caller.node)
            position = caller.node.status()["position"]
            for lake, right in (
                (url.replace("s3:", "s3a:"), 200),
                (url, 200),
                (f"{url}2", 400),
                (str(caller.node.config.lake_dir), 400),
            ):
                body = report(caller.node, position, lake) | {"worker_id": lake}
                status, answer = await caller.ask("POST", "/v1/worker/reports", body)
                assert status == right, (lake, answer)
                assert right == 200 or url in answer["detail"]

    asyncio.run(main())


def test_a_bucket_that_is_down_hides_no_other_table(tmp_path: Path, server: StoreServer) -> None:
    """What is asked for by name fails with the reason; a list goes on without it."""
    prefix = f"rows-{os.urandom(4).hex()}"
    given = settings(server, prefix) | {"store_region": "us-east-1"}
    wrong = tmp_path / "wrong"
    wrong.write_text("AWS_ACCESS_KEY_ID=nobody\nAWS_SECRET_ACCESS_KEY=nothing\n")
    wrong.chmod(0o600)

    async def main() -> None:
        async with catalog(tmp_path / "nodes", **given) as caller:
            await make(caller.node)
        given["store_credentials_file"] = str(wrong)
        async with catalog(tmp_path / "nodes", **given) as caller:
            status, answer = await caller.ask("GET", path_of("orders"))
            assert status >= 500 and BUCKET in answer["error"]["message"]
            assert "nothing" not in str(answer)
            status, listed = await caller.ask("GET", TABLES)
            assert status == 200 and listed["tables"] == []

    asyncio.run(main())
