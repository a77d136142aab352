"""A journal that was lost, or is older than what was published: positions are not given again."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from tests.service.local_nodes import config_of, serving, until
from tests.service.test_staged_files import create
from tests.service.test_start_after_a_summary import free_ports
from tests.support.forked_nodes import run_command

from sparktxlog.config import NodeConfig
from sparktxlog.errors import (
    CorruptLogError,
    JournalLostError,
    NotMemberError,
    StoreNotReadyError,
)
from sparktxlog.model.transactions.receipt import Level
from sparktxlog.protocol.messages.view import Phase
from sparktxlog.runtime.leaving_fork import leftover_log
from sparktxlog.runtime.membership.join_orders import StartAgainError
from sparktxlog.runtime.node import Node, build_node
from sparktxlog.storage.journal.journal import JOURNAL_NAME, Journal


def alone(directory: Path) -> NodeConfig:
    """Return the configuration of a node without peers."""
    return config_of(directory, "A", {"A": 1})


@asynccontextmanager
async def started(config: NodeConfig) -> AsyncIterator[Node]:
    """Run a node without a server."""
    running = build_node(config)
    try:
        await running.start()
        yield running
    finally:
        await running.stop()


async def commit(running: Node, tables: int) -> int:
    """Commit so many transactions and wait until they are published; return the last position."""
    position = 0
    for _ in range(tables):
        receipt = await running.submit(create(), level=Level.ORDERED, timeout=20)
        position = receipt.position or 0
    await until(lambda: running.base.published.value >= position)
    return position


def run_alone(directory: Path, *lives: int) -> Path:
    """Run a node that commits so many in each life; return its data directory."""

    async def main() -> None:
        for tables in lives:
            async with started(alone(directory)) as running:
                await commit(running, tables)

    asyncio.run(main())
    return directory / "A"


def refused(config: NodeConfig, match: str) -> CorruptLogError:
    """Start a node; it must refuse."""

    async def main() -> None:
        async with started(config):
            pytest.fail("the node started")

    with pytest.raises(JournalLostError, match=match) as caught:
        asyncio.run(main())
    assert caught.value.code == "corrupt-log"
    assert "data-dir, lake-dir and payload-dir" in caught.value.hint
    return caught.value


@pytest.mark.parametrize("lost", ["all", "log"])
def test_a_node_alone_without_its_journal_does_not_start(tmp_path: Path, lost: str) -> None:
    data = run_alone(tmp_path, 3)
    kept = (data / JOURNAL_NAME).rename(tmp_path / "kept")
    if lost == "log":
        (data / JOURNAL_NAME).touch()  # as long as nothing was folded back, all is in the -wal file
    for _ in range(2):  # nothing that a first try left makes the second one believe
        refused(alone(tmp_path), "journal.sqlite is new, but there are rows in")
    kept.rename(data / JOURNAL_NAME)

    async def goes_on() -> None:
        async with started(alone(tmp_path)) as running:
            assert await commit(running, 1) == 4

    asyncio.run(goes_on())


def test_it_ends_with_one_line_and_code_1(tmp_path: Path) -> None:
    (run_alone(tmp_path, 1) / JOURNAL_NAME).unlink()
    (port,) = free_ports("A").values()
    (tmp_path / "node.toml").write_text(
        f'node-id = "A"\ndata-dir = "{tmp_path / "A"}"\nlisten = "127.0.0.1:{port}"\n'
        f'master-url = "http://127.0.0.1:{port}"\n'
    )
    ended = run_command("serve", "--config", str(tmp_path / "node.toml"))
    assert ended.returncode == 1
    assert "[corrupt-log]" in ended.stderr and "Traceback" not in ended.stderr


def test_a_journal_without_its_last_transactions_does_not_start(tmp_path: Path) -> None:
    """So it is when the -wal file is lost: the database is as it was when it was last folded."""
    older = shutil.copy(run_alone(tmp_path, 2) / JOURNAL_NAME, tmp_path / "older")
    data = run_alone(tmp_path, 3)
    shutil.copy(older, data / JOURNAL_NAME)
    error = refused(alone(tmp_path), "ends at position 5, which the journal does not hold")
    assert error.fields["position"] == 5


def test_a_journal_of_another_history_does_not_start(tmp_path: Path) -> None:
    for name in ("one", "other"):
        run_alone(tmp_path / name, 2)
    shutil.copy(tmp_path / "other" / "A" / JOURNAL_NAME, tmp_path / "one" / "A" / JOURNAL_NAME)
    refused(alone(tmp_path / "one"), "position 2, which the journal holds with another chain hash")


def test_an_older_table_is_written_again(tmp_path: Path) -> None:
    """The journal is what counts: a table that went back is no reason to stop."""
    older = shutil.copytree(run_alone(tmp_path, 2) / "log", tmp_path / "older")
    data = run_alone(tmp_path, 2)
    shutil.rmtree(data / "log")
    older.rename(data / "log")

    async def main() -> int:
        async with started(alone(tmp_path)) as running:
            return await commit(running, 1)

    assert asyncio.run(main()) == 5


def test_the_publisher_compares_before_it_commits(tmp_path: Path) -> None:
    """Somebody else wrote to the table while the node runs."""

    async def main() -> None:
        async with started(alone(tmp_path)) as running:
            await commit(running, 2)
            table = DeltaTable(tmp_path / "A" / "log" / "synchronized_queue")
            rows = table.to_pyarrow_table().sort_by("position")
            foreign = rows.to_pylist()[-1] | {"position": 3, "chain_hash": "ab" * 32}
            carried = Transaction(f"sparktxlog:{running.config.log_id}:queue", 3)
            write_deltalake(
                table,
                pa.Table.from_pylist([foreign], rows.schema),
                mode="append",
                commit_properties=CommitProperties(app_transactions=[carried]),
            )
            receipt = await running.submit(create(), level=Level.ORDERED, timeout=20)
            assert receipt.position == 3
            publisher = running.log.publisher
            await until(lambda: isinstance(publisher.failure, JournalLostError))
            assert running.base.published.value == 2

    asyncio.run(main())


@pytest.mark.parametrize("left", ["payloads", "lake"])
def test_files_without_a_queue_table_tell_as_well(tmp_path: Path, left: str) -> None:
    config = alone(tmp_path)
    if left == "payloads":
        path = config.payload_dir / "inline" / "1-1" / "orders.parquet"
        content = "x"
    else:
        path = config.lake_dir / "_sparktxlog" / "state.json"
        content = '{"worker_id": "w", "position": 12}'
    path.parent.mkdir(parents=True)
    path.write_text(content)
    refused(config, "files in" if left == "payloads" else "a replica at position 12")


@pytest.mark.parametrize("peers", ["A", "AB"])
def test_a_first_start_whose_bucket_is_away_founds_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peers: str
) -> None:
    """Nobody knows whether the bucket has the rest of a log, whose positions would come again."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setattr(leftover_log, "_PATIENCE_S", 0.2)
    ports = free_ports(peers)
    config = config_of(
        tmp_path,
        "A",
        ports,
        lake_url="s3://lake/a",
        store_endpoint="http://127.0.0.1:9",
        store_region="us-east-1",
        store_allow_http="true",
    )

    async def main() -> None:
        for _ in range(2):  # nothing that a first try left makes the second one believe
            if peers == "A":
                with pytest.raises(StoreNotReadyError, match="is new, and a bucket cannot be"):
                    build_node(config)
                continue
            running = build_node(config)
            assert isinstance(running.base.remains, StoreNotReadyError)
            assert running.membership.joining.only_joins
            running.base.journal.close()
        again = replace(config, lake_url=None)
        running = build_node(again)
        assert running.base.remains is None, "what is asked again says no more of a log"
        running.base.journal.close()

    asyncio.run(main())


def test_a_log_without_its_database_is_not_thrown_away(tmp_path: Path) -> None:
    """SQLite would remove it."""
    log = tmp_path / f"{JOURNAL_NAME}-wal"
    log.write_bytes(b"pages")
    with pytest.raises(JournalLostError, match="its write-ahead log"):
        Journal(tmp_path)
    assert log.read_bytes() == b"pages"


def test_a_young_node_with_staged_files_starts_again(tmp_path: Path) -> None:
    """What a job staged and never submitted is no log."""

    async def main() -> None:
        for _ in range(2):
            async with started(alone(tmp_path)) as running:
                staged = running.config.payload_dir / "t" / "part.parquet"
                staged.parent.mkdir(exist_ok=True)
                staged.write_text("x")

    asyncio.run(main())


@asynccontextmanager
async def members(
    directory: Path, ports: dict[str, int], names: str = ""
) -> AsyncIterator[dict[str, Node]]:
    """Start nodes: all, or those with the names."""
    async with AsyncExitStack() as stack:
        nodes = {}
        for name in names or ports:
            listener = socket.create_server(("127.0.0.1", ports[name]))
            config = config_of(directory, name, ports, eviction="auto", suspect_timeout=1)
            nodes[name] = await stack.enter_async_context(serving(config, listener))
        yield nodes


def cluster_left(tmp_path: Path, ports: dict[str, int]) -> None:
    """Run nodes until all have published two transactions."""

    async def main() -> None:
        async with members(tmp_path, ports) as nodes:
            await until(lambda: nodes["A"].membership.joining.proven)
            await commit(nodes["A"], 2)
            await until(lambda: all(node.base.published.value == 2 for node in nodes.values()))

    asyncio.run(main())


def test_a_member_without_its_journal_joins_again(tmp_path: Path) -> None:
    ports = free_ports("ABC")
    cluster_left(tmp_path, ports)
    (tmp_path / "B" / JOURNAL_NAME).unlink()

    async def main() -> None:
        async with members(tmp_path, ports) as nodes:
            b = nodes["B"]
            assert b.membership.joining.only_joins and not b.membership.joining.proven
            (journal,) = [check for check in b.ready() if check[0] == "journal"]
            assert not journal[1] and "whose log it can join" in journal[2]
            with pytest.raises(NotMemberError):
                await b.submit(create(), level=Level.ACCEPTED, timeout=5)
            # It is told whom to join, and starts again: `serve` does that in one process.
            assert isinstance(await asyncio.wait_for(b.failed, 30), StartAgainError)
        async with members(tmp_path, ports) as nodes:
            b = nodes["B"]
            assert isinstance(await asyncio.wait_for(b.failed, 30), StartAgainError)  # a summary
        async with members(tmp_path, ports) as nodes:
            await until(lambda: nodes["B"].base.master.phase is Phase.NORMAL, 30)
            assert nodes["B"].base.master.incarnation == 2
            assert await commit(nodes["B"], 1) == 3

    asyncio.run(main())
    assert (tmp_path / "B" / "attic").is_dir()


def test_who_lost_its_journal_waits_for_a_member_that_may_have_the_log(tmp_path: Path) -> None:
    ports = free_ports("ABC")
    cluster_left(tmp_path, ports)
    for name in "AB":
        (tmp_path / name / JOURNAL_NAME).unlink()

    async def main() -> None:
        async with members(tmp_path, ports, "AB") as nodes:
            a, b = nodes.values()
            await until(lambda: a.base.links["B"].up and b.base.links["A"].up)
            async with members(tmp_path, ports, "C"):
                for node in (a, b):
                    assert isinstance(await asyncio.wait_for(node.failed, 30), StartAgainError)

    asyncio.run(main())


def test_members_that_all_lost_their_journals_found_no_second_log(tmp_path: Path) -> None:
    ports = free_ports("AB")
    cluster_left(tmp_path, ports)
    for name in ports:
        (tmp_path / name / JOURNAL_NAME).unlink()

    async def main() -> None:
        async with members(tmp_path, ports) as nodes:
            for node in nodes.values():
                error = await asyncio.wait_for(node.failed, 30)
                assert isinstance(error, JournalLostError) and "no node has it" in error.hint
                assert node.base.ordered.value == 0

    asyncio.run(main())
