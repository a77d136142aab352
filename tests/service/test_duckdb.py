"""DuckDB with its extension for Unity Catalog attaches to a node: docs/catalog-clients.md."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.service.test_catalog_api import Caller, catalog
from tests.service.test_catalog_of_rows import apply, make
from tests.support.delta_writer import path_of
from tests.support.duckdb_program import run

LOST = "TransactionException: TransactionContext Error: Failed to commit"


def parquet(*ids: int) -> bytes:
    """Return a file with the columns of the tests' commit tables."""
    file = io.BytesIO()
    tags = pa.array([["x"]] * len(ids), pa.list_(pa.string()))
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64()), "tags": tags}), file)
    return file.getvalue()


async def make_tables(caller: Caller, *names: str) -> None:
    """Make commit tables with the rows 1 and 2."""
    for name in names:
        table = await caller.stage(name)
        table.write_first(table.add(parquet(1, 2)))
        status, answer = await caller.ask("POST", path_of(), table.creation(name))
        assert status == 200, answer


async def ask(caller: Caller, text: str, databases: str = "a") -> list[Any]:
    """Run lines `DATABASE: STATEMENT`; each database has the log as `tx`."""
    url = caller.node.config.master_url
    begin = [
        f"CREATE SECRET (TYPE unity_catalog, TOKEN 'any', ENDPOINT '{url}', AWS_REGION 'none')",
        "ATTACH 'tx' AS tx (TYPE unity_catalog, DEFAULT_SCHEMA 'default')",
    ]
    statements = [(one, line) for one in databases for line in begin]
    lines = [line.partition(": ") for line in text.strip().splitlines()]
    statements += [(name.strip(), line) for name, _, line in lines]
    found = await asyncio.to_thread(run, statements)
    assert all(isinstance(one, list) for one in found[: 2 * len(databases)]), found
    return found[2 * len(databases) :]


def test_duckdb_reads_and_inserts(tmp_path: Path) -> None:
    async def main() -> None:
        async with catalog(tmp_path) as caller:
            await make_tables(caller, "t", "u")
            await make(caller.node)
            apply(caller.node)
            found = await ask(
                caller,
                """
                a: SELECT name, column_names, column_types FROM (SHOW ALL TABLES)
                a: SELECT id, tags FROM tx.t ORDER BY id
                a: INSERT INTO tx.t SELECT 3, ['y']
                a: SELECT id, tags FROM tx.t WHERE id > 1 ORDER BY id
                a: BEGIN
                a: INSERT INTO tx.t VALUES (4, NULL)
                a: INSERT INTO tx.u VALUES (4, [])
                a: COMMIT
                a: BEGIN
                a: INSERT INTO tx.t VALUES (9, NULL)
                a: ROLLBACK
                a: SELECT max(id) FROM tx.t JOIN tx.u USING (id)
                a: SELECT * FROM tx.orders
                a: INSERT INTO tx.orders VALUES (3, 'y')
                a: ATTACH 'rows' AS rows (TYPE unity_catalog, DEFAULT_SCHEMA 'default', READ_ONLY)
                a: SELECT * FROM rows.orders
                a: SELECT count(*) FROM rows.u
                a: CREATE TABLE tx.new (id BIGINT)
                a: UPDATE tx.t SET id = 9
                a: DELETE FROM tx.t
                """,
            )
            longs, rows = ["BIGINT", "VARCHAR[]"], ["BIGINT", "VARCHAR"]
            assert found[:4] == [
                [
                    ["orders", ["id", "v"], rows],
                    ["t", ["id", "tags"], longs],
                    ["u", ["id", "tags"], longs],
                ],
                [[1, ["x"]], [2, ["x"]]],
                [[1]],
                [[2, ["x"]], [3, ["y"]]],
            ]
            assert found[11] == [[4]]
            for refused in found[12:14]:
                assert "(HTTP 403)" in refused and "READ_ONLY" in refused
            assert found[15:17] == [[[1, "a"]], [[3]]]
            assert all(isinstance(one, str) for one in found[17:])
            assert [await caller.version(name) for name in "tu"] == [2, 1]
            status, shown = await caller.ask("GET", path_of("orders"))
            assert (status, shown["latest-table-version"]) == (200, 0)

    asyncio.run(main())


def test_duckdb_numbers_the_rows_that_it_inserts(tmp_path: Path) -> None:
    """Tables that Spark makes have row ids: what is inserted goes on after the last one."""
    domain = "delta.rowTracking"

    async def main() -> None:
        async with catalog(tmp_path) as caller:
            table = await caller.stage()
            table.protocol["writerFeatures"] += ["domainMetadata", "rowTracking"]
            table.metadata["configuration"] |= {
                "delta.enableRowTracking": "true",
                f"{domain}.materializedRowIdColumnName": "_row-id-col-1",
                f"{domain}.materializedRowCommitVersionColumnName": "_row-commit-version-col-1",
            }
            added = table.add(parquet(1, 2))
            added["add"] |= {"baseRowId": 0, "defaultRowCommitVersion": 0}
            mark = {"rowIdHighWaterMark": 1}
            said = {"domain": domain, "configuration": json.dumps(mark), "removed": False}
            table.write_first(added, {"domainMetadata": said})
            body = table.creation(**{"domain-metadata": {domain: mark}})
            status, answer = await caller.ask("POST", path_of(), body)
            assert status == 200, answer
            assert await ask(caller, "a: INSERT INTO tx.t VALUES (3, NULL), (4, NULL)") == [[[2]]]
            lines = [json.loads(line) for line in table.published(1).read_text().splitlines()]
            (add,) = [line["add"] for line in lines if "add" in line]
            assert (add["baseRowId"], add["defaultRowCommitVersion"]) == (2, 1)

    asyncio.run(main())


def test_what_duckdb_does_when_others_write(tmp_path: Path) -> None:
    """It keeps the version that it read first, and commits each table of a transaction alone."""
    again = "ATTACH 'tx' AS tx (TYPE unity_catalog, DEFAULT_SCHEMA 'default')"
    race = """
        a: BEGIN
        a: INSERT INTO tx.{0} VALUES (4, NULL)
        a: INSERT INTO tx.{1} VALUES (4, NULL)
        b: INSERT INTO tx.{2} VALUES (5, NULL)
        a: COMMIT
        """

    async def main() -> None:
        async with catalog(tmp_path) as caller:
            await make_tables(caller, "t", "u", "v", "w")
            found = await ask(
                caller,
                f"""
                a: SELECT max(id) FROM tx.v
                b: INSERT INTO tx.v VALUES (3, NULL)
                a: SELECT max(id) FROM tx.v
                a: INSERT INTO tx.v VALUES (4, NULL)
                a: DETACH tx
                a: {again}
                a: INSERT INTO tx.v VALUES (4, NULL)
                b: SELECT max(id) FROM tx.v
                """,
                "ab",
            )
            assert found[:3] == [[[2]], [[1]], [[2]]]
            assert found[3].startswith(LOST) and "CommitVersionConflictException" in found[3]
            assert found[5:] == [[], [[1]], [[4]]]
            # Each table is a commit of its own: one that loses undoes no other.
            lost = await ask(caller, race.format("t", "u", "t"), "ab")
            lost += await ask(caller, race.format("v", "w", "w"), "ab")
            assert [one.startswith(LOST) for one in (lost[4], lost[9])] == [True, True]
            t, u, v, w = [await caller.version(name) for name in "tuvw"]
            assert (t, w) == (1, 1)
            assert u in (0, 1) and v in (2, 3)  # DuckDB takes the tables in any order

    asyncio.run(main())
