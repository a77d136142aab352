"""A mount that hangs below a node: who needs it gets an error, all others go on."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from tests.service.test_catalog_api import Caller, catalog
from tests.support.delta_writer import StagedTable, path_of
from tests.support.hanging_mount import hanging
from tests.support.replica_lakes import report_of
from tests.verification.fuzz import samples

from sparktxlog.runtime import loop_threads

TABLE = samples.TABLE | {"table": "rows"}
LISTED = "/api/2.1/unity-catalog/tables?catalog_name=tx&schema_name=default"
REPORTS = "/v1/worker/reports"
_MOST_S = 5.0


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_threads, "STUCK_S", 2.0)


async def _rows(caller: Caller, number: int) -> int:
    rows = {"kind": "append", "table": "rows", "rows": [{"id": number, "v": "x"}]}
    path = "/v1/transactions?level=ordered&timeout=20"
    return (await caller.ask("POST", path, {"operations": [rows]}))[0]


async def _goes_on(caller: Caller, table: StagedTable, version: int) -> None:
    """Check that what needs no file of the hanging mount is done soon."""
    began = time.monotonic()
    body = table.update(table.stage(version, table.add()))
    status, answer = await asyncio.wait_for(caller.commit(body, "other"), _MOST_S * 4)
    assert status == 200, answer
    assert await _rows(caller, version) == 200
    for path in ("/livez", "/readyz", "/v1/status", "/metrics", path_of("other"), LISTED):
        url = caller.node.config.master_url + path
        async with caller._session.get(url) as answered:
            assert answered.status == 200, path
            await answered.read()
    assert time.monotonic() - began < _MOST_S


def test_a_table_whose_mount_hangs(tmp_path: Path) -> None:
    async def main() -> None:
        async with catalog(tmp_path) as caller:
            table, other = await caller.create(), await caller.create("other")
            await caller.ask("POST", "/v1/transactions", {"operations": [TABLE]})
            body = table.update(table.stage(1, table.add()))
            with hanging(table.directory):
                asked = [asyncio.create_task(caller.commit(body)) for _ in range(40)]
                await asyncio.sleep(0.2)  # all of them wait
                await _goes_on(caller, other, 1)
                answers = await asyncio.gather(*asked)
                assert {status for status, _ in answers} == {503}
                for _, answer in answers:
                    assert f"{table.directory}" in answer["error"]["message"]
                status = caller.node.status()
                (stuck,) = status["stuck_files"]
                assert str(table.directory) in stuck["path"] and stuck["seconds"] >= 2
                texts = {one["code"]: one["text"] for one in status["warnings"]}
                assert stuck["path"] in texts["files-stuck"]
                await _goes_on(caller, other, 2)
                began = time.monotonic()
                assert (await caller.commit(body))[0] == 503
                assert time.monotonic() - began < loop_threads.STUCK_S, "nobody waits a second time"
            await _until_back(caller)
            status, answer = await caller.commit(body)
            assert (status, answer.get("latest-table-version")) == (200, 1), answer

    asyncio.run(main())


@pytest.mark.parametrize("which", ["commit_table_dir", "payload_dir", "lake_dir"])
def test_all_of_a_directory_hangs(tmp_path: Path, which: str) -> None:
    """Rows are ordered, health is answered; what needs the directory says so."""

    async def main() -> None:
        async with catalog(tmp_path) as caller:
            table = await caller.create()
            await caller.ask("POST", "/v1/transactions", {"operations": [TABLE]})
            assert await _rows(caller, 0) == 200
            body = table.update(table.stage(1, table.add(b"x" * 2_000_000)))
            directory = getattr(caller.node.config, which)
            directory.mkdir(exist_ok=True)
            with hanging(directory):
                asked: list[Any] = [asyncio.create_task(caller.commit(body)) for _ in range(40)]
                asked += [asyncio.create_task(_staged(caller, n)) for n in range(40)]
                asked += [
                    asyncio.create_task(caller.ask("GET", path_of("rows"))) for _ in range(40)
                ]
                await asyncio.sleep(0.2)
                for number in range(3):
                    began = time.monotonic()
                    assert await _rows(caller, number + 1) == 200
                    for path in ("/livez", "/v1/status", "/metrics"):
                        url = caller.node.config.master_url + path
                        async with caller._session.get(url) as answered:
                            assert answered.status == 200, path
                            await answered.read()
                    assert time.monotonic() - began < _MOST_S
                answers = await asyncio.wait_for(asyncio.gather(*asked), 30)
                assert 503 in {status for status, _ in answers}
                others = [one for one in answers if one[0] not in (200, 404, 422, 503)]
                assert not others
                stuck = caller.node.status()["stuck_files"]
                assert stuck and all(str(directory) in one["path"] for one in stuck)
            await _until_back(caller)
            assert (await caller.commit(body))[0] == 200

    asyncio.run(main())


def test_a_lake_of_a_replica_whose_mount_hangs(tmp_path: Path) -> None:
    """Its worker is told so; the node looks at each lake once after its start."""

    async def main() -> None:
        async with catalog(tmp_path) as caller:
            other = await caller.create("other")
            await caller.ask("POST", "/v1/transactions", {"operations": [TABLE]})
            node, lake = caller.node, tmp_path / "mount/lake"
            lake.mkdir(parents=True)
            said = to_builtins(report_of(node.status(), 0)) | {"tables": {}}
            body = said | {"name": "reports", "worker_id": "r", "lake": str(lake)}
            with hanging(lake.parent):
                asked = asyncio.create_task(caller.ask("POST", REPORTS, body))
                await asyncio.sleep(0.2)  # it waits
                await _goes_on(caller, other, 1)
                status, problem = await asked
                assert (status, problem["title"], problem["definite"]) == (503, "files-stuck", True)
                assert str(lake) in problem["detail"]
                own = body | {"name": "main", "worker_id": "w", "lake": str(node.config.lake_dir)}
                assert (await caller.ask("POST", REPORTS, own))[0] == 200
            await _until_back(caller)
            status, answer = await caller.ask("POST", REPORTS, body)
            assert (status, answer["verdict"]) == (200, "IN_SYNC"), answer

    asyncio.run(main())


async def _staged(caller: Caller, number: int) -> tuple[int, Any]:
    identity = f"00000000-0000-4000-8000-{number:012}"
    path = f"{identity}/rows/part.parquet"
    file = {"path": path, "size_bytes": 9, "rows": 1, "digest": "0" * 64}
    append = {"kind": "append", "table": "rows", "files": [file]}
    body = {"transaction_id": identity, "operations": [append]}
    return await caller.ask("POST", "/v1/transactions", body)


async def _until_back(caller: Caller) -> None:
    async with asyncio.timeout(30):
        while caller.node.status()["stuck_files"]:
            await asyncio.sleep(0.05)
