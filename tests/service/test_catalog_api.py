"""The catalog's API for commit tables, by requests and files that a client of it would send."""

from __future__ import annotations

import asyncio
import json
import os
import re
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import aiohttp
import pytest
from tests.service.local_nodes import cluster, until
from tests.support.delta_writer import (
    API,
    API_SCHEMA,
    BEGIN,
    DELTA,
    SCHEMA,
    StagedTable,
    lines_of,
    path_of,
)

from sparktxlog.errors import CommitStateUnknownError, SchemaInUseError, StorageError
from sparktxlog.runtime.node import Node
from sparktxlog.service.handlers import catalog_api
from sparktxlog.storage.interfaces import Write

STAGING = f"{DELTA}/catalogs/tx/schemas/default/staging-tables"


class Caller:
    """Sends requests to a node."""

    def __init__(self, node: Node, session: aiohttp.ClientSession) -> None:
        self.node, self._session = node, session

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
        url = self.node.config.master_url + path
        async with self._session.request(method, url, json=body, **more) as response:
            raw = await response.read()
            return response.status, json.loads(raw) if raw else None

    async def stage(self, name: str = "t", schema: str = "default") -> StagedTable:
        path = STAGING.replace("default", schema)
        status, answer = await self.ask("POST", path, {"name": name})
        assert status == 200, answer
        return StagedTable.of(answer)

    async def create(self, name: str = "t", schema: str = "default") -> StagedTable:
        table = await self.stage(name, schema)
        table.write_first(table.add())
        status, answer = await self.ask("POST", path_of(schema=schema), table.creation(name))
        assert status == 200, answer
        return table

    async def commit(self, body: dict[str, Any], name: str = "t") -> tuple[int, Any]:
        return await self.ask("POST", path_of(name), body)

    async def version(self, name: str = "t") -> int:
        status, answer = await self.ask("GET", path_of(name))
        assert status == 200, answer
        found: int = answer["latest-table-version"]
        return found


@asynccontextmanager
async def catalog(directory: Path, names: str = "A", **settings: Any) -> AsyncIterator[Caller]:
    async with (
        cluster(directory, names, **settings) as nodes,
        aiohttp.ClientSession() as session,
    ):
        yield Caller(nodes["A"], session)


def told(found: tuple[int, Any]) -> tuple[int, str]:
    """Return status and type of a refusal, whose shape is that of the API."""
    status, answer = found
    error = answer["error"]
    assert error.keys() == {"message", "type", "code"}
    assert error["code"] == status
    assert re.fullmatch("[A-Z]+(_[A-Z]+)*", answer["error_code"])
    return status, error["type"]


def test_a_table_is_created_written_and_dropped(tmp_path: Path) -> None:
    async def main() -> None:
        async with catalog(tmp_path) as caller:
            table = await caller.create()
            status, loaded = await caller.ask("GET", path_of("T"))
            assert (status, loaded["commits"], loaded["latest-table-version"]) == (200, [], 0)
            metadata = loaded["metadata"]
            assert metadata["columns"] == API_SCHEMA
            assert metadata["table-uuid"] == table.table_id
            assert metadata["location"] == table.location
            properties = metadata["properties"]
            assert properties["delta.feature.catalogManaged"] == "supported"
            assert properties["delta.minReaderVersion"] == "3"
            assert properties["io.unitycatalog.tableId"] == table.table_id
            for version in (1, 2):
                commit = table.stage(version, table.add(b"x" * version))
                status, loaded = await caller.commit(table.update(commit))
                assert (status, loaded["latest-table-version"]) == (200, version)
                staged = table.staged(commit["file-name"]).read_bytes()
                assert table.published(version).read_bytes() == staged
                assert loaded["metadata"]["etag"] == metadata["etag"]
            told_of = {"action": "set-latest-backfilled-version", "latest-published-version": 2}
            assert (await caller.commit(table.update(None, told_of)))[0] == 200
            assert (await caller.ask("HEAD", path_of("t")))[0] == 204
            status, listed = await caller.ask(
                "GET", f"{API}/tables?catalog_name=tx&schema_name=default"
            )
            assert [(one["name"], one["table_id"]) for one in listed["tables"]] == [
                ("t", table.table_id)
            ]
            assert (await caller.ask("GET", f"{API}/tables/tx.default.t"))[1] == listed["tables"][0]
            assert told(await caller.ask("GET", f"{API}/tables/tx.t"))[0] == 404
            metrics = {"table-id": table.table_id, "report": {"commit-report": {}}}
            assert (await caller.ask("POST", f"{path_of('t')}/metrics", metrics))[0] == 204
            assert (await caller.ask("DELETE", path_of("t")))[0] == 204
            assert told(await caller.ask("GET", path_of("t"))) == (404, "NoSuchTableException")
            assert (await caller.create()).table_id != table.table_id
            assert await caller.ask("DELETE", f"{API}/tables/tx.default.t") == (200, {})
            assert told(await caller.ask("GET", path_of("t"))) == (404, "NoSuchTableException")

    asyncio.run(main())


def test_lists_show_columns_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_api, "_MOST_COLUMNS", 3)
    target = f"{API}/tables?catalog_name=tx&schema_name=default"

    async def main() -> None:
        async with catalog(tmp_path) as caller:
            for name in ("a", "b", "c"):
                await caller.create(name)
            status, first = await caller.ask("GET", target)
            assert (status, first["next_page_token"]) == (200, "b")
            assert [one["name"] for one in first["tables"]] == ["a", "b"]
            columns = first["tables"][0]["columns"]
            assert [json.loads(one["type_json"]) for one in columns] == SCHEMA["fields"]
            assert [one["type_name"] for one in columns] == ["LONG", "ARRAY"]
            status, last = await caller.ask("GET", f"{target}&page_token=b")
            assert [one["name"] for one in last["tables"]] == ["c"]
            assert last["next_page_token"] is None
            status, answer = await caller.ask("GET", f"{API}/nothing")
            assert told((status, answer)) == (404, "NotFoundException")
            assert answer["error_code"] == "ENDPOINT_NOT_FOUND"

    asyncio.run(main())


def test_a_schema_is_dropped_with_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop = f"{API}/schemas/tx.ci"

    async def main() -> None:
        async with catalog(tmp_path) as caller:
            said = {"comment": "of a run", "properties": {"pr": "7"}}
            await caller.ask("POST", f"{API}/schemas", {"name": "ci", "catalog_name": "tx"} | said)
            long = {"name": "long", "catalog_name": "tx", "comment": "x" * 5_000}
            assert told(await caller.ask("POST", f"{API}/schemas", long))[0] == 400
        async with catalog(tmp_path) as caller:  # a restart
            shown = (await caller.ask("GET", drop))[1]
            assert {key: shown[key] for key in said} == said
            tables = [await caller.create(name, "ci") for name in ("a", "b", "c")]
            refused = await caller.ask("DELETE", drop)
            assert told(refused) == (409, "UpdateRequirementConflictException")
            assert "force=true" in refused[1]["message"]
            assert told(await caller.ask("DELETE", f"{drop}?force=false"))[0] == 409
            assert told(await caller.ask("DELETE", f"{drop}?force=1"))[0] == 400

            # One that fails in the middle says so, and a repeat goes on.
            held = caller.node.catalog
            plain, left = held.drop, iter([None, StorageError("a full disk")])

            async def failing(schema: str, name: str) -> None:
                if (error := next(left, None)) is not None:
                    raise error
                await plain(schema, name)

            monkeypatch.setattr(held, "drop", failing)
            unknown = await caller.ask("DELETE", f"{drop}?force=true")
            assert told(unknown) == (500, "CommitStateUnknownException")
            assert (
                "1 of 3 tables of schema 'ci' are dropped, 'ci.b' is not" in unknown[1]["message"]
            )

            # So does one during which somebody makes another table.
            busy = SchemaInUseError("schema 'ci' holds 1 tables")
            with monkeypatch.context() as patch:
                patch.setattr(held.schemas, "drop", AsyncMock(side_effect=busy))
                unknown = await caller.ask("DELETE", f"{drop}?force=true")
            assert told(unknown) == (500, "CommitStateUnknownException")
            assert "2 of 2 tables of schema 'ci' are dropped, the" in unknown[1]["message"]
            assert await caller.ask("DELETE", f"{drop}?force=true") == (200, {})
            assert told(await caller.ask("GET", drop)) == (404, "NoSuchSchemaException")
            # One that was made at another site is known by its tables, and ends with them.
            await caller.create("a", "there")
            assert await caller.ask("DELETE", f"{API}/schemas/tx.there?force=true") == (200, {})
            assert told(await caller.ask("DELETE", f"{API}/schemas/tx.there?force=true"))[0] == 404
            assert all(table.published(0).exists() for table in tables)
            always = await caller.ask("DELETE", f"{API}/schemas/tx.default?force=true")
            assert told(always) == (409, "UpdateRequirementConflictException")

    asyncio.run(main())


def test_one_of_two_commits_becomes_the_version(tmp_path: Path) -> None:
    async def main() -> None:
        async with catalog(tmp_path) as caller:
            table = await caller.create()
            staged = [table.stage(1, table.add(b"a")), table.stage(1, table.add(b"b"))]
            bodies = [table.update(commit) for commit in staged]
            found = await asyncio.gather(*(caller.commit(body) for body in bodies))
            lost = [status for status, _ in found].index(409)
            assert told(found[lost]) == (409, "CommitVersionConflictException")
            assert found[1 - lost][0] == 200
            winner = table.staged(staged[1 - lost]["file-name"]).read_bytes()
            assert table.published(1).read_bytes() == winner
            # To ask again is to repeat: each gets its answer again, also after more versions.
            assert (await caller.commit(table.update(table.stage(2))))[0] == 200
            again = [await caller.commit(body) for body in bodies]
            assert (again[lost][0], again[1 - lost][0]) == (409, 200)
            assert await caller.version() == 2
            # A repeat whose id the log has forgotten is known by its content.
            copy = _changed(staged[1 - lost], file_name=f"{1:020}.{uuid.uuid4()}.json")
            table.staged(copy["file-name"]).write_bytes(winner)
            assert (await caller.commit(table.update(copy)))[0] == 200
            # A file that is changed afterwards changes nothing that was committed.
            table.staged(staged[1 - lost]["file-name"]).write_bytes(b"something else")
            assert table.published(1).read_bytes() == winner
            assert not caller.node.catalog._turns  # a table takes nothing when nobody commits
            assert (await caller.commit(bodies[1 - lost]))[0] == 200

    asyncio.run(main())


def test_a_restarted_node_shows_what_was_committed(tmp_path: Path) -> None:
    async def main() -> None:
        async with catalog(tmp_path) as caller:
            table = await caller.create()
            commit = table.stage(1, table.add())
            body = table.update(commit)
            assert (await caller.commit(body))[0] == 200
            # As if the node had ended between order and placing.
            table.published(1).unlink()
            table.staged(commit["file-name"]).unlink()
        async with catalog(tmp_path) as caller:
            assert await caller.version() == 1
            assert table.published(1).exists()
            assert (await caller.commit(body))[0] == 200
            assert (await caller.commit(table.update(table.stage(2))))[0] == 200

    asyncio.run(main())


def test_a_writer_that_is_not_told_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with catalog(tmp_path) as caller:
            table = await caller.create()
            submits = caller.node.catalog._submits
            submit, untold = submits.submit, CommitStateUnknownError("not in time")

            async def lose_the_answer(transaction: Any, **how: Any) -> Any:
                await submit(transaction, **how)
                raise untold

            monkeypatch.setattr(submits, "submit", lose_the_answer)
            first, second = table.stage(1, table.add()), table.stage(1, table.add())
            unknown = (500, "CommitStateUnknownException")
            assert told(await caller.commit(table.update(first))) == unknown
            # Who asks for the same version is told that it lost, and can read who won; that takes
            # no place in the log.
            position = caller.node.base.ordered.value
            lost = (409, "CommitVersionConflictException")
            assert told(await caller.commit(table.update(second))) == lost
            monkeypatch.setattr(submits, "submit", submit)
            assert told(await caller.commit(table.update(second))) == lost
            assert caller.node.base.ordered.value == position
            winner = table.staged(first["file-name"]).read_bytes()
            assert table.published(1).read_bytes() == winner
            assert (await caller.commit(table.update(first)))[0] == 200
            assert await caller.version() == 1

            async def take_nothing(transaction: Any, **how: Any) -> Any:
                raise untold

            monkeypatch.setattr(submits, "submit", take_nothing)
            third = table.stage(2)
            assert told(await caller.commit(table.update(third))) == unknown
            assert await caller.version() == 1
            monkeypatch.setattr(submits, "submit", submit)
            assert (await caller.commit(table.update(third)))[0] == 200

    asyncio.run(main())


def test_what_is_refused_or_created_after_all_counts_as_staged_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with catalog(tmp_path, commit_table_dir=str(tmp_path / "a b")) as caller:
            staged = caller.node.base.budgets.staged_tables
            assert told(await caller.ask("POST", STAGING, {"name": "t"}))[0] == 501
            assert staged.used == 0
        async with catalog(tmp_path) as caller:
            staged, submits = caller.node.base.budgets.staged_tables, caller.node.catalog._submits
            table, submit = await caller.stage(), submits.submit
            table.write_first(table.add())

            async def lose_the_answer(transaction: Any, **how: Any) -> Any:
                await submit(transaction, **how)
                raise CommitStateUnknownError("not in time")

            monkeypatch.setattr(submits, "submit", lose_the_answer)
            creation = table.creation("t")
            assert (await caller.ask("POST", path_of(), creation))[0] == 500
            monkeypatch.setattr(submits, "submit", submit)
            assert staged.used == 1
            assert (await caller.ask("POST", path_of(), creation))[0] == 200
            assert staged.used == 0

    asyncio.run(main())


def _changed(commit: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return commit | {key.replace("_", "-"): value for key, value in changes.items()}


def test_a_commit_that_is_not_what_it_says_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with catalog(tmp_path) as caller:
            table = await caller.create()
            commit = table.stage(1, table.add())
            wrong = (400, "InvalidParameterValueException")
            form = (400, "BadRequestException")
            unnamed = f"{1:020}.{uuid.uuid4()}.json"
            other = f"{2:020}.{uuid.uuid4()}.json"
            cases = [
                (table.update(_changed(commit, file_name=unnamed)), wrong),
                (table.update(_changed(commit, file_name=other)), form),
                (table.update(_changed(commit, file_name="../x.json")), form),
                (table.update(_changed(commit, file_size=1)), wrong),
                (table.update(_changed(commit, timestamp=1)), wrong),
                (table.update(_changed(commit, version="1")), form),
            ]
            gone = {"add": {"path": "gone.parquet", "size": 1}}
            short = {"add": table.add()["add"] | {"size": 9}}
            for action in (
                gone,
                short,
                {"add": {"path": "file:///etc/passwd", "size": 1}},
                {"add": {"path": "/etc/passwd", "size": 1}},
                {"add": {"path": "..%2F..%2Fx", "size": 1}},
                {"remove": {"path": "s3://bucket/x"}},
                {"add": table.add()["add"] | {"partitionValues": {"id": "1"}}},
                {"metaData": table.metadata | {"partitionColumns": ["id"]}},
                {"protocol": table.protocol | {"writerFeatures": ["catalogManaged"]}},
            ):
                cases.append((table.update(table.stage(1, action)), wrong))
            extra = table.protocol["writerFeatures"] + ["icebergCompatV2"]
            protocol = table.protocol | {"writerFeatures": extra}
            action = {
                "action": "set-protocol",
                "protocol": table.creation()["protocol"] | {"writer-features": extra},
            }
            cases.append((table.update(table.stage(1, {"protocol": protocol}), action), wrong))
            more = {"action": "set-properties", "updates": {"delta.appendOnly": "true"}}
            cases.append((table.update(table.stage(1), more), wrong))
            cases.append((table.update(None, more), wrong))
            cases.append((table.update(table.stage(1), {"action": "no-such"}), form))
            cases.append((table.update(None), form))
            late = table.stage(1, timestamp=BEGIN)
            cases.append((table.update(late), (409, "CommitVersionConflictException")))
            cases.append((table.update(table.stage(3)), (409, "CommitVersionConflictException")))
            foreign = table.update(commit)
            foreign["requirements"][0]["uuid"] = str(uuid.uuid4())
            cases.append((foreign, (409, "UpdateRequirementConflictException")))
            etag = table.update(commit)
            etag["requirements"].append({"type": "assert-etag", "etag": "77"})
            cases.append((etag, (409, "UpdateRequirementConflictException")))
            snapshot = {"action": "update-metadata-snapshot-version"}
            cases.append((table.update(None, snapshot), (501, "NotImplementedException")))
            for body, expected in cases:
                assert told(await caller.commit(body)) == expected, body
            torn = table.stage(1)
            path = table.staged(torn["file-name"])
            path.write_bytes(path.read_bytes()[:-9])
            torn = _changed(torn, file_size=path.stat().st_size)
            assert told(await caller.commit(table.update(torn))) == wrong
            # Nothing of it was half done: the version is free, and nothing is published.
            assert await caller.version() == 0
            assert not table.published(1).exists()
            assert (await caller.commit(table.update(commit)))[0] == 200

    asyncio.run(main())


def test_a_table_changes_with_a_commit_that_says_so(tmp_path: Path) -> None:
    columns = SCHEMA["fields"] + [  # type: ignore[operator]
        {
            "name": "m",
            "type": {
                "type": "map",
                "keyType": "string",
                "valueType": {"type": "struct", "fields": []},
                "valueContainsNull": False,
            },
            "nullable": True,
            "metadata": {},
        }
    ]
    wanted = {"type": "struct", "fields": columns}
    told_of = json.loads(
        json.dumps(wanted)
        .replace("elementType", "element-type")
        .replace("containsNull", "contains-null")
        .replace("keyType", "key-type")
        .replace("valueType", "value-type")
        .replace("valueContainsNull", "value-contains-null")
    )

    async def main() -> None:
        async with catalog(tmp_path) as caller:
            table = await caller.create()
            properties = table.metadata["configuration"] | {"delta.appendOnly": "true"}
            metadata = table.metadata | {
                "schemaString": json.dumps(wanted),
                "configuration": properties,
                "description": "text",
            }
            clustered = json.dumps({"clusteringColumns": [["id"]]})
            domain = {"domain": "delta.clustering", "configuration": clustered, "removed": False}
            body = table.update(
                table.stage(1, {"metaData": metadata}, {"domainMetadata": domain}),
                {"action": "set-columns", "columns": told_of},
                {"action": "set-properties", "updates": {"delta.appendOnly": "true"}},
                {"action": "set-table-comment", "comment": "text"},
                {
                    "action": "set-domain-metadata",
                    "updates": {"delta.clustering": json.loads(clustered)},
                },
            )
            body["requirements"].append({"type": "assert-etag", "etag": "0"})
            status, loaded = await caller.commit(body)
            assert status == 200, loaded
            shown = loaded["metadata"]
            assert (shown["etag"], shown["last-commit-version"]) == ("1", 1)
            assert shown["columns"] == told_of
            assert shown["properties"]["delta.appendOnly"] == "true"
            assert shown["properties"]["delta.clusteringColumns"] == '[["id"]]'
            removed = {"action": "remove-properties", "removals": ["delta.appendOnly"]}
            again = metadata | {"configuration": table.metadata["configuration"]}
            status, loaded = await caller.commit(
                table.update(table.stage(2, {"metaData": again}), removed)
            )
            assert status == 200, loaded
            assert "delta.appendOnly" not in loaded["metadata"]["properties"]
            # A node that starts anew reads the same from the files.
            caller.node.catalog.placer._states.clear()
            assert (await caller.ask("GET", path_of("t")))[1] == loaded

    asyncio.run(main())


def test_a_table_is_created_only_as_its_version_0_says(tmp_path: Path) -> None:
    async def main() -> None:
        async with catalog(tmp_path) as caller:
            table = await caller.stage()
            wrong = (400, "InvalidParameterValueException")
            assert told(await caller.ask("POST", path_of(), table.creation())) == wrong  # no file
            table.write_first()
            first = table.published(0).read_bytes()
            table.write_first({"add": table.add()["add"] | {"partitionValues": {"id": "1"}}})
            assert told(await caller.ask("POST", path_of(), table.creation())) == wrong
            for columns in ({}, {"type": "struct"}, {"type": "struct", "fields": [{"name": "x"}]}):
                known = table.metadata
                table.metadata = known | {"schemaString": json.dumps(columns)}
                table.write_first()
                table.metadata = known
                body = table.creation(columns=columns)
                assert (await caller.ask("POST", path_of(), body))[0] == 400, columns
            assert (await caller.ask("GET", "/v1/descriptions"))[0] == 200
            table.write_first()
            protocol = table.creation()["protocol"] | {"writer-features": []}
            gone = (404, "NoSuchTableException")
            for changes, expected in (
                ({"columns": {"type": "struct", "fields": []}}, wrong),
                ({"columns": {"type": "struct", "fields": [3]}}, (400, "BadRequestException")),
                ({"properties": {}}, wrong),
                ({"protocol": protocol}, wrong),
                ({"partition-columns": ["id"]}, wrong),
                ({"last-commit-timestamp-ms": 5}, wrong),
                ({"domain-metadata": {"delta.clustering": {"clusteringColumns": []}}}, wrong),
                ({"location": "file:/elsewhere/" + table.table_id}, gone),
                ({"location": "s3://bucket/" + table.table_id}, gone),
                ({"location": table.location + "/../" + table.table_id}, gone),
                ({"table-type": "EXTERNAL"}, (501, "NotImplementedException")),
                ({"name": "no name"}, (400, "BadRequestException")),
            ):
                body = table.creation() | changes
                assert told(await caller.ask("POST", path_of(), body)) == expected, changes
            for lines in (b"", b"{}\n", b"{", lines_of({"protocol": table.protocol})):
                table.published(0).write_bytes(lines)
                assert told(await caller.ask("POST", path_of(), table.creation())) == wrong
            assert told(await caller.ask("GET", path_of("t"))) == gone
            table.published(0).write_bytes(first)
            for _ in range(2):  # to create it again is to repeat it
                assert (await caller.ask("POST", path_of(), table.creation()))[0] == 200
            exists = (409, "AlreadyExistsException")
            assert told(await caller.ask("POST", path_of(), table.creation("u"))) == exists
            assert told(await caller.ask("POST", STAGING, {"name": "T"})) == exists

    asyncio.run(main())


def test_schemas_are_created_and_dropped(tmp_path: Path) -> None:
    async def main() -> None:
        async with catalog(tmp_path) as caller:
            unknown = (404, "NoSuchSchemaException")
            assert told(await caller.ask("GET", f"{API}/schemas/tx.s")) == unknown
            assert told(await caller.ask("GET", path_of("t", "s"))) == unknown
            body = {"name": "s", "catalog_name": "tx"}
            status, answer = await caller.ask("POST", f"{API}/schemas", body)
            assert (status, answer["full_name"]) == (200, "tx.s")
            assert told(await caller.ask("POST", f"{API}/schemas", body | {"name": "S"})) == (
                409,
                "AlreadyExistsException",
            )
        async with catalog(tmp_path) as caller:  # it is durable
            status, listed = await caller.ask("GET", f"{API}/schemas?catalog_name=tx")
            assert [one["name"] for one in listed["schemas"]] == ["default", "s"]
            staged = await caller.ask(
                "POST", f"{DELTA}/catalogs/tx/schemas/s/staging-tables", {"name": "t"}
            )
            table = StagedTable.of(staged[1])
            table.write_first()
            assert (await caller.ask("POST", path_of(schema="s"), table.creation()))[0] == 200
            assert (await caller.ask("DELETE", f"{API}/schemas/tx.s"))[0] == 409
            assert (await caller.ask("DELETE", path_of("t", "s")))[0] == 204
            assert await caller.ask("DELETE", f"{API}/schemas/tx.s") == (200, {})
            assert told(await caller.ask("GET", f"{API}/schemas/tx.s")) == unknown
            # Nobody needs to create one: a table makes its schema known.
            staging = f"{DELTA}/catalogs/tx/schemas/%s/staging-tables"
            table = StagedTable.of((await caller.ask("POST", staging % "New", {"name": "t"}))[1])
            assert told(await caller.ask("GET", f"{API}/schemas/tx.New")) == unknown
            table.write_first()
            created = await caller.ask("POST", path_of(schema="New"), table.creation())
            assert created[0] == 200, created
            assert (await caller.ask("GET", f"{API}/schemas/tx.new"))[1]["name"] == "New"
            assert (await caller.ask("POST", staging % "NEW", {"name": "u"}))[0] == 200
            wrong = (400, "BadRequestException")
            assert told(await caller.ask("POST", staging % "no-name", {"name": "t"})) == wrong

    asyncio.run(main())


def test_what_it_offers(tmp_path: Path) -> None:
    async def main() -> None:
        async with catalog(tmp_path) as caller:
            target = f"{DELTA}/config?catalog=tx&protocol-versions="
            status, answer = await caller.ask("GET", target + "0.9,1.0")
            assert (status, answer["protocol-version"]) == (200, "1.0")
            assert (
                "POST /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}" in answer["endpoints"]
            )
            assert told(await caller.ask("GET", target + "2.0"))[0] == 400
            table = await caller.create()
            for path in (
                f"{path_of('t')}/credentials?operation=READ",
                f"{DELTA}/staging-tables/{table.table_id}/credentials",
            ):
                assert await caller.ask("GET", path) == (200, {"storage-credentials": []})
            wrong = {"table-id": str(uuid.uuid4())}
            assert told(await caller.ask("POST", f"{path_of('t')}/metrics", wrong))[0] == 400

    asyncio.run(main())


def test_who_is_not_served(tmp_path: Path) -> None:
    async def main() -> None:
        async with catalog(tmp_path, client_token="a token of the clients") as caller:
            for shown in ({}, {"authorization": "Bearer expired"}):
                found = await caller.ask("POST", STAGING, {"name": "t"}, headers=shown)
                assert told(found) == (401, "NotAuthorizedException")
            shown = {"authorization": "Bearer a token of the clients"}
            assert (await caller.ask("POST", STAGING, {"name": "t"}, headers=shown))[0] == 200
        async with catalog(tmp_path / "a b") as caller:
            found = await caller.ask("POST", STAGING, {"name": "t"})
            assert told(found) == (501, "NotImplementedException")
            assert "commit-table-dir" in found[1]["error"]["message"]

    asyncio.run(main())


def test_a_directory_that_somebody_wrote_into(tmp_path: Path) -> None:
    async def main() -> None:
        async with catalog(tmp_path) as caller:
            table = await caller.create()
            commit = table.stage(1)
            staged = table.staged(commit["file-name"]).read_bytes()
            table.published(1).write_bytes(b"foreign")
            found = await caller.commit(table.update(commit))
            # It is ordered, so nobody may say that it lost.
            assert told(found) == (500, "CommitStateUnknownException")
            assert told(await caller.ask("GET", path_of("t")))[0] == 500
            codes = [one["code"] for one in caller.node.status()["warnings"]]
            assert codes == ["commit-table-not-placed", "site-not-whole"]
            table.published(1).unlink()
            assert (await caller.commit(table.update(commit)))[0] == 200
            assert caller.node.status()["warnings"] == []
            table.published(1).unlink()
        # A node that starts places what is gone again, as long as it has the files.
        async with catalog(tmp_path) as caller:
            assert await caller.version() == 1
            assert table.published(1).read_bytes() == staged

    asyncio.run(main())


def test_the_commit_file_that_a_writer_puts_in_place_is_synced_before_the_log_knows_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss left a torn version 0, which the node took for somebody else's.

    Of a small one the journal has the bytes, and the node fills what is torn.
    """

    async def main() -> None:
        async with catalog(tmp_path, inline_limit=0) as caller:
            base, synced, before = caller.node.base, set[Path](), list[set[Path]]()
            fsync, write = os.fsync, base.journal.write

            def seen(descriptor: int) -> None:
                synced.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
                fsync(descriptor)

            def noted(writes: Sequence[Write]) -> None:
                if any(type(one).__name__ in ("PutRun", "PutAnnouncement") for one in writes):
                    before.append(set(synced))
                write(writes)

            monkeypatch.setattr(os, "fsync", seen)
            monkeypatch.setattr(base.journal, "write", noted)
            table = await caller.create()
            assert before and table.published(0) in before[0]

    asyncio.run(main())


@pytest.mark.parametrize("carried", [False, True], ids=["large", "small"])
def test_each_file_of_a_commit_is_synced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carried: bool
) -> None:
    """A large one before the log knows of it, a small one before the journal forgets it.

    And the names in the table's directory before the journal says that they are there.
    """

    async def main() -> None:
        settings = {} if carried else {"inline_limit": 0}
        async with catalog(tmp_path, **settings) as caller:
            base = caller.node.base
            table = await caller.create()
            await until(lambda: base.journal.read_placed(table.table_id) is not None)
            roots = (base.payloads.root, base.config.commit_table_dir)
            synced: list[Path] = []
            at: dict[str, list[Path]] = {}
            fsync, write = os.fsync, base.journal.write

            def counted(descriptor: int) -> None:
                path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
                if any(path.is_relative_to(root) for root in roots):
                    synced.append(path)
                fsync(descriptor)

            def noted(writes: Sequence[Write]) -> None:
                for one in writes:
                    at.setdefault(type(one).__name__, list(synced))
                write(writes)

            monkeypatch.setattr(os, "fsync", counted)
            monkeypatch.setattr(base.journal, "write", noted)
            add = table.add()
            commit = table.stage(1, add)
            assert (await caller.commit(table.update(commit)))[0] == 200
            answered = list(synced)
            await until(lambda: "PutPlaced" in at)
            (ordered,) = base.journal.read_ordered_commits(table.table_id, 0)
            places = {table.directory, table.directory / "_delta_log", table.directory.parent}
            own = table.directory / add["add"]["path"]
            if carried:
                # The journal has the bytes; nobody waits for a sync but its own.
                assert answered == [] and at["PutRun"] == []
                assert sorted(at["PutPlaced"]) == sorted([own, table.published(1), *places])
                return
            files = {Path(base.payloads.path(file.path)) for file in ordered.files}
            assert len(files) == 2
            names = {parent for file in files for parent in file.parents}
            names = {one for one in names if one.is_relative_to(base.payloads.root)}
            # The journal, and so a peer, knows no run whose files are not on the disk.
            first = min((at[name] for name in ("PutAnnouncement", "PutRun") if name in at), key=len)
            assert sorted(first) == sorted(files | names)
            assert sorted(at["PutPlaced"]) == sorted([*files, *names, *places])
            assert set(answered) <= set(at["PutPlaced"])

    asyncio.run(main())
