"""What users read of a node: every answer keeps its fields, in their order.

`tests/testdata/answers.json` holds the shape of each answer as a release gave it.  A field that is
gone, renamed or moved fails here; a new one is added to the file with its change.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from tests.service.local_nodes import cluster, until
from tests.service.test_replica_routes import create, give_replica
from tests.support.delta_writer import API, DELTA, StagedTable, path_of
from tests.support.replica_lakes import report_of

from sparktxlog.service.routing.declared_route import Route
from sparktxlog.service.routing.routes import ROUTES

GOLDEN = Path(__file__).parents[1] / "testdata" / "answers.json"
TX = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
PREPARED = "7d444840-9dc0-11d1-b245-5ffdce74fad3"
ROWS = [{"id": 1, "v": "x"}]
QUESTIONS = (
    "/v1/info",
    "/v1/status",
    "/v1/status?tables=1",
    "/v1/tables",
    "/v1/tables/t",
    "/v1/state-files",
    "/v1/descriptions",
    "/v1/descriptions/t",
    "/v1/queue",
    "/v1/published?at_least=1&timeout=60",
    "/v1/snapshot",
    f"/v1/transactions/{TX}",
    "/v1/prepared",
    "/v1/groups",
    "/v1/transfers",
    "/v1/signatures",
    "/v1/settings",
    "/v1/epochs",
    "/v1/epochs/history",
    "/v1/worker/segments?wait=60",
    "/v1/worker/commits?upto=1",
    "/v1/worker/tables",
    "/v1/worker/plan",
)


def shape_of(value: Any) -> Any:
    """Return the fields of a JSON value, in their order; of lists the first element."""
    if isinstance(value, dict):
        return {key: shape_of(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape_of(value[0])] if value else []
    return None


def differences(kept: Any, found: Any, at: str = "") -> list[str]:
    """Return where two shapes differ; what is empty or null on one side says nothing."""
    if isinstance(kept, dict) and isinstance(found, dict) and kept and found:
        if list(kept) != list(found):
            return [f"{at}: {list(kept)} became {list(found)}"]
        return [line for key in kept for line in differences(kept[key], found[key], f"{at}/{key}")]
    if isinstance(kept, list) and isinstance(found, list) and kept and found:
        return differences(kept[0], found[0], f"{at}[]")
    empty = (None, [], {})
    return [] if kept in empty or found in empty else [f"{at}: {kept} became {found}"]


async def answers_of(directory: Path) -> dict[str, Any]:
    """Return what a node of a small cluster answers to every question, by its target."""
    async with cluster(directory, "AB", eviction="manual") as nodes:
        node = nodes["A"]
        await create(node)
        await give_replica(node)
        await until(lambda: "t" in nodes["B"].tables())
        await give_replica(nodes["B"])
        url = node.config.master_url
        found: dict[str, Any] = {}
        async with aiohttp.ClientSession() as session:

            async def ask(method: str, target: str, body: Any = None) -> None:
                async with session.request(method, url + target, json=body) as response:
                    answer = await response.json()
                    assert response.status == 200, (method, target, answer)
                    found[f"{method} {target}"] = answer

            operation = {"kind": "append", "table": "t", "rows": ROWS}
            await ask("POST", "/v1/transactions", {"transaction_id": TX, "operations": [operation]})
            until_us = (int(time.time()) + 600) * 1_000_000
            prepared = {"participants": ["p", "q"], "valid_until": until_us}
            await ask(
                "POST",
                "/v1/transactions",
                {"transaction_id": PREPARED, "operations": [operation], **prepared},
            )
            said = {"participant": "p", "yes": True}
            await ask("POST", f"/v1/transactions/{PREPARED}/marks", said)
            for target in QUESTIONS:
                await ask("GET", target)
            report = report_of(node.status(), 1, "worker of A")
            await ask("POST", "/v1/worker/reports", msgspec.to_builtins(report))
            await ask("PATCH", "/v1/settings", {"NetSpeedBitsPerSec": 1_000_000})
            await ask("POST", "/v1/maintenance", {})
            await ask("GET", "/v1/audit")
            report = replace(report, follows=True)
            await ask("POST", "/v1/worker/reports", msgspec.to_builtins(report))
            await ask("POST", "/v1/recounts", {"tables": ["T"]})
            await ask("POST", "/v1/restore-points", {"name": "before"})
            await ask("PUT", "/v1/groups/us", {"sites": ["A"]})
            await ask("PATCH", "/v1/groups/us", {"schemas": ["s"]})
            await ask("POST", "/v1/quorum?timeout=60", {"rule": "majority"})
        return found


async def answers_of_the_catalog(directory: Path) -> dict[str, Any]:
    """Return what a node that is alone answers about a commit table, by target."""
    async with cluster(directory, "A") as nodes, aiohttp.ClientSession() as session:
        url, found = nodes["A"].config.master_url, {}

        async def ask(method: str, target: str, body: Any = None) -> Any:
            async with session.request(method, url + target, json=body) as response:
                answer = await response.json()
                assert response.status == 200, (method, target, answer)
                found[f"{method} {target}"] = answer
                return answer

        await ask("GET", f"{DELTA}/config?catalog=tx&protocol-versions=1.0")
        await ask("GET", f"{API}/metastore_summary")
        await ask("GET", f"{API}/catalogs")
        await ask("POST", f"{API}/schemas", {"name": "s", "catalog_name": "tx"})
        await ask("GET", f"{API}/schemas?catalog_name=tx")
        staging = path_of(schema="s").replace("/tables", "/staging-tables")
        table = StagedTable.of(await ask("POST", staging, {"name": "t"}))
        table.write_first()
        await ask("POST", path_of(schema="s"), table.creation())
        await ask("POST", path_of("t", "s"), table.update(table.stage(1)))
        await ask("GET", path_of("t", "s"))
        await ask("GET", f"{path_of('t', 's')}/credentials?operation=READ")
        await ask("GET", f"{API}/tables?catalog_name=tx&schema_name=s")
        await ask("GET", f"{API}/tables/tx.s.t")
        wanted = {"table_id": table.table_id, "operation": "READ"}
        await ask("POST", f"{API}/temporary-table-credentials", wanted)
        await ask("GET", "/v1/commit-tables")
        described = await ask("GET", "/v1/descriptions/S.t")
        assert (described["kind"], described["version"]) == ("commit-table", 1)
        await ask("POST", "/v1/worker/commit-tables/check", {"table": "s.t"})
    return found


def declared(target: str) -> Route:
    """Return the route that answers a target such as `GET /v1/queue?after=1`."""
    method, path = target.partition("?")[0].split(" ")
    return next(
        route
        for route in ROUTES
        if route.method == method and re.fullmatch(re.sub(r"{\w+}", "[^/]+", route.path), path)
    )


def test_answers_keep_their_fields(tmp_path: Path) -> None:
    found = asyncio.run(answers_of(tmp_path / "two"))
    found |= asyncio.run(answers_of_the_catalog(tmp_path / "one"))
    kept = json.loads(GOLDEN.read_text())
    assert list(kept) == list(found)
    assert [
        line for target in kept for line in differences(kept[target], found[target], target)
    ] == []
    for target, answer in found.items():
        # What the type does not have is lost on the way through it.
        kind = declared(target).answer
        assert json.loads(msgspec.json.encode(msgspec.convert(answer, kind))) == answer, target
