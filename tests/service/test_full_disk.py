"""A disk on which nothing can be written: nobody waits for it without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import aiohttp
import pytest
from tests.service.local_nodes import cluster, until
from tests.support.delta_writer import path_of
from tests.support.storage_samples import staged_of

from sparktxlog.errors import DiskFullError
from sparktxlog.storage.interfaces import PutValue, Write

TOKEN = "a token of the clients"


def test_what_would_wait_for_space_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with (
            cluster(tmp_path, "A", client_token=TOKEN) as nodes,
            aiohttp.ClientSession(headers={"authorization": f"Bearer {TOKEN}"}) as session,
        ):
            node, executor = nodes["A"], nodes["A"].core.executor
            url, reserve = node.config.master_url, node.base.reserve

            def full(writes: Sequence[Write]) -> None:
                raise DiskFullError("no space left")

            async def ask(method: str, path: str, **body: object) -> tuple[int, str]:
                async with session.request(method, url + path, json=body) as answer:
                    said = await answer.json()
                    assert answer.status == 200 or said["fields"]["held_by"], said
                    return answer.status, said.get("title", "")

            with monkeypatch.context() as others:
                others.setattr(reserve, "free_bytes", lambda: 0)
                others.setattr(node.base.journal, "write", full)
                waiting = executor.write([PutValue(name="x", value=b"x")])
                await until(lambda: executor.disk_full and not reserve.is_whole())
                async with asyncio.timeout(20):
                    for method, path in (("POST", "/v1/maintenance"), ("PATCH", "/v1/settings")):
                        assert await ask(method, path) == (507, "disk-full")
                    # Whose a place is would have to be written.
                    file = staged_of(f"{uuid4()}/0-t/a.parquet", b"PAR1")
                    path = f"/v1/staged/{file.path}?table=t&size=9&rows=1&digest={file.digest}"
                    async with session.put(url + path, data=b"PAR") as answer:
                        assert answer.status == 507
                    place = path_of().replace("/tables", "/staging-tables")
                    async with session.post(url + place, json={"name": "t"}) as answer:
                        assert answer.status >= 500
                assert node.base.budgets.staged_tables.used == 0
            await waiting
            assert (await ask("PATCH", "/v1/settings", **{"tx-log-max-size": 5}))[0] == 200
            assert (await ask("POST", "/v1/maintenance"))[0] == 200

    asyncio.run(main())
