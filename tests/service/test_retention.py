"""The limits of the log reach the node's publisher: age, as configured and as set at run time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.service.local_nodes import cluster, until
from tests.service.test_replica_routes import create, give_replica

from sparktxlog.runtime.log import published_log

_HOUR_US = 3_600 * 1_000_000


@pytest.mark.parametrize(("set_h", "hours"), [(None, 168), (24, 24)])
def test_what_is_older_than_its_limit_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_h: int | None, hours: int
) -> None:
    """168 hours by default."""
    wall_us = published_log.wall_us

    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            node = nodes["A"]
            await create(nodes["A"])
            await until(lambda: nodes["A"].base.published.value == 1)
            await give_replica(nodes["A"], 10)
            if set_h is not None:
                await node.change_settings({"tx-log-max-depth": set_h})
            for later, kept_after, limits in (
                (hours - 1, 0, []),
                (hours + 1, 1, ["tx-log-max-depth"]),
            ):
                monkeypatch.setattr(
                    published_log, "wall_us", lambda h=later: wall_us() + h * _HOUR_US
                )
                done = await node.maintain()
                assert (done.pruned_to, list(done.limits)) == (kept_after, limits)
            assert node.status()["kept_after"] == 1

    asyncio.run(main())
