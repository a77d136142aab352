"""Credentials that the catalog gives: for one table, to those that may write it or read it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from tests.service.test_catalog_api import STAGING, Caller, catalog
from tests.support.delta_writer import DELTA, StagedTable, path_of
from tests.support.store_servers import BUCKET, ROLE, SECRET, StoreServer, opened, seaweedfs

from sparktxlog.errors import StoreForbiddenError, StoreUnavailableError
from sparktxlog.files.stores.bucket import BucketStore
from sparktxlog.files.stores.credentials.aws_signature import S3Keys
from sparktxlog.files.stores.credentials.vending import VendedKeys
from sparktxlog.files.stores.store_settings import StoreSettings
from sparktxlog.model.tables.commit_table import UUID_NAME


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with seaweedfs(tmp_path_factory.mktemp("server") / "state") as running:
        yield running


@asynccontextmanager
async def vending(directory: Path, server: StoreServer, **more: str) -> AsyncIterator[Caller]:
    """Run a node whose catalog gives credentials."""
    settings = {
        "commit_table_url": f"s3://{BUCKET}/{directory.name}",
        "store_endpoint": server.endpoint,
        "store_sts_endpoint": server.endpoint,
        "store_region": "us-east-1",
        "store_allow_http": "true",
        "store_credentials_file": str(server.credentials_file),
        "store_vend_role": ROLE,
        "store_vend_time": "900",
    }
    async with catalog(directory, **settings | more) as caller:
        yield caller


def part_of(server: StoreServer, answer: dict[str, Any], operation: str) -> BucketStore:
    """Open the bucket by the credentials of an answer, with the prefix that it names."""
    (given,) = answer["storage-credentials"]
    assert given["operation"] == operation
    assert 600 < given["expiration-time-ms"] / 1000 - time.time() <= 900
    config = given["config"]
    names = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
    assert set(config) == set(names)
    keys = S3Keys(*(config[name] for name in names))
    settings = StoreSettings(
        endpoint=server.endpoint, region="us-east-1", allow_http=True, keys=keys
    )
    with pytest.raises(StoreForbiddenError):
        opened(given["prefix"].rpartition("/")[0], settings).read(".owner")
    return opened(given["prefix"], settings)


def test_a_table_is_created_and_read_by_credentials_of_the_catalog(
    tmp_path: Path, server: StoreServer, capfd: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        async with vending(tmp_path, server) as caller:
            status, answer = await caller.ask("POST", STAGING, {"name": "t"})
            assert status == 200, answer
            store = part_of(server, answer, "READ_WRITE")
            assert answer["location"] == store.url
            table = StagedTable.of(answer)
            table.directory = tmp_path / "draft"
            table.directory.mkdir()
            table.write_first(table.add())
            for path in table.directory.rglob("*"):
                if path.is_file():
                    store.create(str(path.relative_to(table.directory)), path)
            again = f"{DELTA}/staging-tables/{table.table_id}/credentials"
            part_of(server, (await caller.ask("GET", again))[1], "READ_WRITE")
            assert (await caller.ask("POST", path_of(), table.creation()))[0] == 200
            path = f"{path_of('t')}/credentials?operation="
            status, answer = await caller.ask("GET", f"{path}READ")
            reader = part_of(server, answer, "READ")
            assert await caller.ask("GET", f"{path}READ") == (status, answer)
            assert {one.key for one in reader.list()} == {one.key for one in store.list()}
            with pytest.raises(StoreForbiddenError):
                reader.create("new", b"x")
            _, writes = await caller.ask("GET", f"{path}READ_WRITE")
            writer = part_of(server, writes, "READ_WRITE")
            writer.create("new", b"x")
            secrets = [answer["storage-credentials"][0]["config"]["s3.secret-access-key"], SECRET]
            log = "".join(capfd.readouterr())
            assert "credentials given" in log and not [one for one in secrets if one in log]

    asyncio.run(main())


def test_a_role_that_may_not_be_assumed_is_named(tmp_path: Path, server: StoreServer) -> None:
    async def main() -> None:
        other = "arn:aws:iam::role/another"
        async with vending(tmp_path, server, store_vend_role=other) as caller:
            status, answer = await caller.ask("POST", STAGING, {"name": "t"})
            message = answer["error"]["message"]
            assert status == 500 and other in message and "trust policy" in message, answer
            assert SECRET not in str(answer)

    asyncio.run(main())


def test_no_commit_waits_for_a_service_that_gives_no_credentials(tmp_path: Path) -> None:
    given = VendedKeys(S3Keys("key", "secret", "token"), 10**13)
    asked, answers = threading.Semaphore(0), threading.Event()

    def give(part: str, *, writes: bool) -> VendedKeys:
        asked.release()
        answers.wait(60)
        return given

    async def main() -> None:
        with patch("sparktxlog.runtime.commit_tables.commit_catalog.vendor_of") as vendor_of:
            vendor_of.return_value = Mock(give=give, endpoint="https://sts.local")
            async with catalog(tmp_path) as caller:
                answers.set()
                table = await caller.create()
                answers.clear()
                path = f"{path_of('t')}/credentials?operation=READ"
                waiting = [asyncio.create_task(caller.ask("GET", path)) for _ in range(4)]
                try:
                    for _ in range(5):  # that of the staging table, too
                        await asyncio.to_thread(asked.acquire)
                    commit = caller.commit(table.update(table.stage(1)))
                    assert (await asyncio.wait_for(commit, 15))[0] == 200
                finally:
                    answers.set()
                    await asyncio.gather(*waiting)

    asyncio.run(main())


def test_a_staging_table_without_credentials_is_given_up(tmp_path: Path) -> None:
    """Nobody can write to it; while STS is down the places of a token must not be used up."""

    async def main() -> None:
        with patch("sparktxlog.runtime.commit_tables.commit_catalog.vendor_of") as vendor_of:
            down = StoreUnavailableError("STS does not answer")
            vendor_of.return_value = Mock(
                **{"give.side_effect": down}, endpoint="https://sts.local"
            )
            async with catalog(tmp_path) as caller:
                for _ in range(3):
                    status, answer = await caller.ask("POST", STAGING, {"name": "t"})
                    assert "STS does not answer" in answer["error"]["message"], (status, answer)
                assert caller.node.base.budgets.staged_tables.used == 0
                root = caller.node.config.commit_table_dir
                assert not [one for one in root.iterdir() if UUID_NAME.fullmatch(one.name)]

    asyncio.run(main())
