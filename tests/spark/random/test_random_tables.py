"""Random tables through two sites are what plain Spark makes of the same operations."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.random.random_tables import Draw, RandomTable
from tests.spark.random.replays import Replay, TakenLog
from tests.support.node_processes import NodeProcess, free_ports

from sparktxlog import Client
from sparktxlog.api.connect import connect
from sparktxlog.api.schema import struct_of
from sparktxlog.api.writing.operations import TransactionDraft
from sparktxlog.codec.rows import rows_to_arrow
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.worker.verify.verify import recount_tables

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

#: Tables of one transaction, and of one batch.
CHUNK = 24
ROUNDS = 5


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, NodeProcess]]:
    """Two nodes that are each other's peer."""
    directory = tmp_path_factory.mktemp("sites")
    ports = dict(zip("AB", free_ports(2), strict=True))
    with ExitStack() as stack:
        found = {}
        for name, port in ports.items():
            peers = {other: at for other, at in ports.items() if other != name}
            found[name] = node = NodeProcess(directory, name, port, peers)
            node.start()
            stack.callback(node.stop)
        for node in found.values():
            node.wait_ready()
        yield found


class Sites:
    """Both sites, with a client and a worker each; Spark stages at site A."""

    def __init__(
        self, spark: SparkSession, nodes: dict[str, NodeProcess], stack: ExitStack
    ) -> None:
        self.clients = [stack.enter_context(Client(node.url)) for node in nodes.values()]
        self.logs = [
            stack.enter_context(connect(spark.newSession(), node.url, apply="inline", timeout=600))
            for node in nodes.values()
        ]
        self.lakes = [node.lake for node in nodes.values()]
        self.urls = [node.url for node in nodes.values()]
        self.stager = stack.enter_context(connect(spark, nodes["A"].url))
        # Whatever Spark commits is staged.
        self.stager.site.store = replace(self.stager.site.store, inline_limit_bytes=-1)

    def create(self, tables: list[RandomTable]) -> None:
        with self.clients[0].transaction() as t:
            for table in tables:
                t.create_table(
                    table.name,
                    table.columns(),
                    table.keys,
                    table.partition_by,
                    table.deletion_vectors,
                )
        self._known(t.receipt.position)

    def commit(self, draws: list[tuple[RandomTable, Draw]], number: int) -> None:
        """Commit an operation of each table: by JSON, Arrow or staged, at one site or the other."""
        way = ("json", "arrow", "staged")[number % 3]
        if way == "staged":
            self.stager.site.forget_definitions([table.name for table, _ in draws])
            with self.stager.transaction() as staged:
                for table, draw in draws:
                    if draw.rows is not None and draw.schema is not None:
                        rows = rows_to_arrow(table.name, draw.rows, draw.schema)
                        frame = self.stager.site.spark.createDataFrame(
                            rows,
                            struct_of(
                                self.stager.site.definition(table.name), OperationKind(draw.kind)
                            ),
                        )
                        staged.add(OperationKind(draw.kind), table.name, frame)
                    else:
                        _other(staged, table.name, draw)
            self._known(staged.receipt.position)
            return
        with self.clients[number % 2].transaction() as t:
            for table, draw in draws:
                if draw.rows is not None and draw.schema is not None:
                    rows = draw.rows
                    if way == "arrow":
                        rows = rows_to_arrow(table.name, rows, draw.schema)
                    t.add(OperationKind(draw.kind), table.name, rows)
                else:
                    _other(t, table.name, draw)
        self._known(t.receipt.position)

    def drop(self, tables: list[RandomTable]) -> None:
        with self.clients[0].transaction() as t:
            for table in tables:
                t.drop_table(table.name)
        self._known(t.receipt.position)

    def _known(self, position: int | None) -> None:
        assert position is not None
        for client in self.clients:
            client.after(position)
        self.stager.after(position)


def _other(t: TransactionDraft[Any, Any], name: str, draw: Draw) -> None:
    if draw.change is not None:
        t.alter_table(name, **draw.change)
    else:
        t.delete_where(name, draw.predicate)


def _content(frame: DataFrame, schema: pa.Schema) -> list[str]:
    return sorted(map(repr, frame.toArrow().cast(schema).to_pylist()))


class Spent:
    """Seconds by what was done in them; what runs side by side counts twice."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._began = monotonic()

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        began = monotonic()
        yield
        self._seconds[what] += monotonic() - began

    def __str__(self) -> str:
        parts = ", ".join(f"{what} {seconds:,.0f}" for what, seconds in self._seconds.items())
        return f"{monotonic() - self._began:,.0f} s ({parts})"


@pytest.fixture(scope="module")
def sites(spark: SparkSession, nodes: dict[str, NodeProcess]) -> Iterator[Sites]:
    """Both sites, for all tests of this module."""
    with ExitStack() as stack:
        yield Sites(spark, nodes, stack)


@pytest.mark.thorough
@pytest.mark.timeout(43_200)
@pytest.mark.long
def test_random_tables_are_what_plain_spark_makes(
    sites: Sites, tmp_path: Path, long_form: bool
) -> None:
    few, seed = (1000, 0) if long_form else (5, 100_000)
    first = int(os.environ.get("SPARKTXLOG_RANDOM_SEED") or seed)
    _compare(sites, first, int(os.environ.get("SPARKTXLOG_RANDOM_TABLES") or few), tmp_path)


def _compare(sites: Sites, first: int, count: int, root: Path) -> None:
    """Make tables of the seeds, chunk by chunk, and compare each with what plain Spark makes.

    The log of the first ones is applied in other batches, too.
    """
    spent, end = Spent(), first + count
    for start in range(first, end, CHUNK):
        seeds = range(start, min(start + CHUNK, end))
        tables = [RandomTable(sites.stager.site.spark, f"t{seed}", seed) for seed in seeds]
        _compare_chunk(sites, tables, start, spent)
        if start == first:
            with spent.on("replay"):
                _replayed_alike(sites, tables, root, seed=first)
        with spent.on("drop"):
            sites.drop(tables)
        print(f"{seeds.stop - first} random tables, {spent}", flush=True)


def _compare_chunk(sites: Sites, tables: list[RandomTable], start: int, spent: Spent) -> None:
    with spent.on("create"):
        sites.create(tables)
    with spent.on("draw"):
        lives = [[*table.operations(ROUNDS)] for table in tables]

    def plain(table: RandomTable) -> pa.Table:
        with spent.on("plain Spark"):
            return table.expected.toArrow()

    def apply(number: int) -> None:
        with spent.on(f"apply {'AB'[number]}"):
            sites.logs[number].apply()

    # Both sites and plain Spark go on side by side.
    with ThreadPoolExecutor(3) as pool:
        made = pool.map(plain, tables)
        for number in range(ROUNDS):
            with spent.on("commit"):
                sites.commit(
                    [(table, life[number]) for table, life in zip(tables, lives, strict=True)],
                    start + number,
                )
            if number == start % ROUNDS:
                apply(0)  # its batches are not those of the other site
        list(pool.map(apply, range(2)))

        def check(table: RandomTable, expected: pa.Table) -> None:
            with spent.on("read A"):
                found = _content(sites.logs[0].table(table.name), expected.schema)
            assert found == sorted(map(repr, expected.to_pylist())), f"seed {table.name}"

        list(pool.map(check, tables, made))
    with spent.on("recount B"):
        _signed_alike(sites, tables)


def _signed_alike(sites: Sites, tables: list[RandomTable]) -> None:
    """Both sites have one signature for each table, and a full scan of site B counts the same."""
    one, two = (log.snapshot().signatures for log in sites.logs)
    for table in tables:
        assert one[table.name] == two[table.name], table.name
    assert recount_tables(sites.stager.site.spark, sites.lakes[1]) == {}


def _replayed_alike(sites: Sites, tables: list[RandomTable], root: Path, seed: int) -> None:
    """Other batches, compacted, restored and repaired between, have the signatures of the sites."""
    signed = sites.logs[0].snapshot().signatures
    log = TakenLog.of(sites.urls[0])
    for number in range(2):
        replay = Replay(sites.stager.site.spark, log, root / str(number), seed + number)
        state = replay.run()
        for table in tables:
            found = state.tables[table.name].signature.to_text()
            assert found == signed[table.name], (table.name, seed + number, replay.life)
        assert recount_tables(sites.stager.site.spark, replay.lake) == {}, replay.life
