"""The log of real nodes, kept outside of them: what a feed has, and when it must stop."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.service.local_nodes import cluster, config_of, serving, until
from tests.service.test_catalog_api import Caller, catalog
from tests.service.test_replica_routes import create, give_replica
from tests.service.test_several_replicas import report
from tests.support.command_line import invoke
from tests.support.delta_writer import StagedTable, path_of
from tests.support.image_lake import Lake
from tests.support.store_servers import BUCKET, StoreServer, seaweedfs

from sparktxlog import Client
from sparktxlog.api.writing.group_definitions import create_group
from sparktxlog.delta.live_files import needed_files
from sparktxlog.delta.log_files import newest_commit
from sparktxlog.errors import (
    ApplyError,
    ExpiredError,
    ForeignLogError,
    InvalidRequestError,
    LockedError,
    NotHeldHereError,
    NotPlacedError,
    StorageError,
    TxLogError,
    UnreachableError,
)
from sparktxlog.files.stores.bucket import BucketStore
from sparktxlog.http.link import Http
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.runtime.log import published_log
from sparktxlog.runtime.node import Node
from sparktxlog.worker.backup.commit_table_images import commit_tables_below
from sparktxlog.worker.backup.imaging import back_up_replica
from sparktxlog.worker.feed import shipped_files
from sparktxlog.worker.feed.feed_checks import check_feed, lag_of
from sparktxlog.worker.feed.feed_commits import commit_tables_at, restore_commits
from sparktxlog.worker.feed.feed_points import FeedRoute, route_to, target_of
from sparktxlog.worker.feed.feed_store import FeedStore, FeedWriter
from sparktxlog.worker.feed.shipping import FeedProgress, feed, now_us
from sparktxlog.worker.lakes.payload_files import StagedOnDisk
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory

_HOUR_US = 3_600 * 1_000_000
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def place(tmp_path: Path) -> FeedStore:
    return FeedStore(tmp_path / "feed")


def append(url: str, *numbers: int) -> int:
    """Append a row to table `t` by a transaction for each number; return the last position."""
    with Client(url) as client:
        for number in numbers:
            receipt = client.append("t", [{"id": number, "v": f"row {number}"}])
    position: int = receipt.position
    return position


async def once(place: FeedStore, *urls: str) -> FeedProgress:
    return await asyncio.to_thread(feed, place, urls, threading.Event(), once=True)


async def at(node: Node, work: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.to_thread(work, node.config.master_url, *arguments)


def at_end_of(node: Node, path: Path) -> Lake:
    """Return a lake whose state says that it has applied all that is published."""
    lake, status = Lake(path), node.status()
    lake.append((1, "x"))
    with closing(ReplicaDirectory(path)) as directory:
        state = replace(
            directory.load(),
            log_id=status["log_id"],
            position=status["chain_position"],
            chain_hash=status["chain_hash"],
        )
        directory.save(state)
    return lake


async def expire(node: Node, monkeypatch: pytest.MonkeyPatch) -> int:
    """Shorten the log of a node that is alone; return the position after which it begins."""
    await give_replica(node, 10)
    wall_us = published_log.wall_us
    with monkeypatch.context() as patched:
        patched.setattr(published_log, "wall_us", lambda: wall_us() + 200 * _HOUR_US)
        return (await node.maintain()).pruned_to


def cut_off(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Let a node say that it hears too few others."""

    def asked(source: HttpLogSource, path: str, **query: Any) -> Any:
        answer = ask(source, path, **query)
        return answer | {"restricted": {"waits_for": ["B"]}} if path == "/v1/info" else answer

    return asked


def test_a_feed_has_what_the_node_published(
    tmp_path: Path, place: FeedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V66, V67: headers, segments, and the bytes of all files; and it goes on where it ended."""

    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            node, url = nodes["A"], nodes["A"].config.master_url
            await create(node)
            last = await at(node, append, 1, 2, 3)
            done = await once(place, url)
            assert (done.position, done.transactions, done.node_id) == (last, last, "A")
            pages = list(place.pages(0))
            with closing(HttpLogSource(url)) as source:
                (*_, tail) = [await asyncio.to_thread(source.segments, 0, wait_s=0.0)]
            assert [one for page in pages for one in page.segments] == list(tail.segments)
            status = node.status()
            assert pages[-1].end.chain_hash == status["chain_hash"]
            for page in pages:
                for file, _ in page.files:
                    there = Path(node.config.payload_dir) / file.path
                    assert place.store.read(place.content_key(file)) == there.read_bytes()
            assert check_feed(place).damaged == []

            assert (await once(place, url)).pages == 0
            seen = place.seen()
            assert seen is not None and seen.is_end
            # One that cannot hear the others does not know that the feed has all.
            with monkeypatch.context() as patched:
                patched.setattr(HttpLogSource, "document", cut_off(HttpLogSource.document))
                await once(place, url)
                seen = place.seen()
                assert seen is not None and not seen.is_end and seen.position == last
            last = await at(node, append, 4)
            # A process that begins anew, which finds a node away first.
            done = await once(FeedStore(place.url), NOWHERE, url)
            assert (done.position, done.transactions) == (last, 1)
            lag = lag_of(place, now_us())
            assert lag is not None and lag.lag_s < 5 and lag.published == last
            assert [page.last for page in place.pages(0)][-1] == last
            with pytest.raises(UnreachableError):
                await once(place, NOWHERE)
            # One that follows is started again by its supervisor, if no node ever answered.
            with pytest.raises(UnreachableError):
                await asyncio.to_thread(feed, place, [NOWHERE, NOWHERE], threading.Event())

    asyncio.run(main())


def test_a_feed_from_a_follower_is_whole_until_its_last_run(
    tmp_path: Path, place: FeedStore
) -> None:
    """Nobody waits for a follower, so it never knows that nothing came since (P38)."""

    async def main() -> None:
        async with cluster(tmp_path, "AF", followers="F") as nodes:
            a, f = nodes["A"], nodes["F"]
            await create(a)
            last = await at(a, append, 1)
            await until(lambda: all(one.status()["published"] == last for one in (a, f)))
            assert (await once(place, f.config.master_url)).position == last
            seen, page = place.seen(), place.last_page()
            assert seen is not None and page is not None and seen.position == last
            assert not seen.is_end
            lag = lag_of(place, now_us())
            assert lag is not None and lag.whole_until == page.end.ordered_at
            await once(place, a.config.master_url)
            seen = place.seen()
            assert seen is not None and seen.is_end, "A orders"

    asyncio.run(main())


def test_signatures_of_a_feed_are_of_a_replica_with_all_tables(
    tmp_path: Path, place: FeedStore
) -> None:
    """Those of a replica with a set lack tables that a restore makes, and would contradict it."""

    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            a = nodes["A"]
            await create(a)
            await at(a, append, 1)
            some = await report(a, "main", a.config.lake_dir, ("gold.*",), tables={})
            await a.all_replicas.take_report(some)
            await once(place, a.config.master_url)
            page = place.last_page()
            assert page is not None and not page.signatures
            await at(a, append, 2)
            await a.all_replicas.take_report(await report(a, "all", tmp_path / "all"))
            broken = await report(a, "broken", tmp_path / "broken")
            await a.all_replicas.take_report(replace(broken, chain_hash="ab" * 32))
            await once(place, a.config.master_url)
            page = place.last_page()
            assert page is not None
            assert [list(one.tables) for one in page.signatures] == [["t"]]

    asyncio.run(main())


def test_it_follows_and_ends_at_a_signal(tmp_path: Path, place: FeedStore) -> None:
    """What is ordered is in the feed a moment later."""

    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            node, stop, told = nodes["A"], threading.Event(), list[FeedProgress]()
            await create(node)
            task = asyncio.create_task(
                asyncio.to_thread(feed, place, [node.config.master_url], stop, tell=told.append)
            )
            for number in range(3):
                last = await at(node, append, number)
                await until(lambda last=last: told and told[-1].position >= last)
            with pytest.raises(LockedError):
                await once(place, node.config.master_url)
            stop.set()
            done = await asyncio.wait_for(task, 60)
            assert done.position == last and done.transactions == last

    asyncio.run(main())


def test_another_node_is_followed_when_one_is_away(tmp_path: Path, place: FeedStore) -> None:
    """Its segments end elsewhere, and the chain goes on."""

    async def main() -> None:
        doors = {name: socket.create_server(("127.0.0.1", 0)) for name in "AB"}
        ports = {name: door.getsockname()[1] for name, door in doors.items()}
        at_a = config_of(tmp_path, "A", ports, publish_interval=60)
        at_b = config_of(tmp_path, "B", ports)
        async with serving(at_a, doors["A"]) as a:
            async with serving(at_b, doors["B"]) as b:
                await until(lambda: a.base.links["B"].up and b.base.links["A"].up)
                await create(a)
                last = await at(b, append, 1, 2)
                urls = at_b.master_url, at_a.master_url
                assert (await once(place, *urls)).node_id == "B"
                last = await at(b, append, 3, 4)
                await until(lambda: a.base.ordered.value >= last)
            done = await once(place, *urls)
            assert (done.node_id, done.position) == ("A", last)
            pages = list(place.pages(0))
            assert pages[-1].end.chain_hash == a.status()["chain_hash"]
            assert {page.node_id for page in pages} == {"A", "B"}
            assert check_feed(place).damaged == []

    asyncio.run(main())


@pytest.mark.parametrize("shipped", [True, False], ids=["behind", "empty"])
def test_no_hole_is_made_unless_an_image_leads_over_it(
    tmp_path: Path, place: FeedStore, monkeypatch: pytest.MonkeyPatch, shipped: bool
) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            node, url = nodes["A"], nodes["A"].config.master_url
            await create(node)
            end = (await once(place, url)).position if shipped else 0
            await at(node, append, 1, 2)
            await until(lambda: node.base.published.value == 3)
            kept_after = await expire(node, monkeypatch)
            assert kept_after > end
            with pytest.raises(ExpiredError, match=f"{end + 1} to {kept_after}") as caught:
                await once(place, url)
            assert f"sparktxlog backup {place.url}/images" in caught.value.hint
            lake = at_end_of(node, tmp_path / "images of A")
            image = back_up_replica(lake.path, place.images, name="one", site="A").image
            last = await at(node, append, 3)
            done = await once(place, url)
            assert (done.position, done.transactions) == (last, last - image.position)
            found = check_feed(place)
            assert found.damaged == []
            assert [(part.begins_at, part.first) for part in found.parts] == [
                *([("-", 1)] if shipped else []),
                ("one", image.position + 1),
            ]
            assert route_to(place, target_of(place, None)).image == image

    asyncio.run(main())


def test_a_log_that_is_shortened_while_it_is_followed(
    tmp_path: Path, place: FeedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The feed ends, names what would be missing, and is whole up to its end."""

    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            node, url, loop = nodes["A"], nodes["A"].config.master_url, asyncio.get_running_loop()
            await create(node)
            ask = HttpLogSource.segments
            asked = list[int]()

            async def shorten() -> None:
                await at(node, append, 1, 2)
                await until(lambda: node.base.published.value == 3)
                await expire(node, monkeypatch)

            def late(source: HttpLogSource, after: int, **how: Any) -> Any:
                asked.append(after)
                if after == 1:
                    asyncio.run_coroutine_threadsafe(shorten(), loop).result()
                return ask(source, after, **how)

            monkeypatch.setattr(HttpLogSource, "segments", late)
            with pytest.raises(ExpiredError, match="would be a hole"):
                await asyncio.to_thread(feed, place, [url], threading.Event())
            assert asked == [0, 1] and [page.last for page in place.pages(0)] == [1]

    asyncio.run(main())


def test_it_goes_on_after_a_fault_at_any_write(
    tmp_path: Path, place: FeedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at each write in turn: nothing is there twice, nothing is missing."""
    add, failing = FeedWriter.add, [True]

    def fails(writer: FeedWriter, page: Any) -> None:
        if failing[0]:
            raise StorageError("killed before the page")
        add(writer, page)

    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            node, url = nodes["A"], nodes["A"].config.master_url
            await create(node)
            last = await at(node, append, 1)
            monkeypatch.setattr(FeedWriter, "add", fails)
            with pytest.raises(StorageError, match="killed"):
                await once(place, url)
            assert list(place.pages(0)) == [] and list(place.store.list("contents"))
            failing[0] = False
            assert (await once(place, url)).position == last
            assert check_feed(place).damaged == []

    asyncio.run(main())


def test_places_and_logs_that_are_wrong_are_refused(
    tmp_path: Path, place: FeedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with cluster(tmp_path / "one", "A") as nodes:
            node, url = nodes["A"], nodes["A"].config.master_url
            await create(node)
            await once(place, url)
            config = node.config
            for inside in (config.lake_dir, config.payload_dir, config.commit_table_dir):
                with pytest.raises(InvalidRequestError, match="where files of the site lie"):
                    await once(FeedStore(Path(inside) / "feed"), url)
            full = tmp_path / "full"
            full.mkdir()
            (full / "mine").write_text("x")
            with pytest.raises(InvalidRequestError, match="is not empty: it has mine"):
                await once(FeedStore(full), url)
        async with cluster(tmp_path / "two", "A") as nodes:
            with pytest.raises(ForeignLogError, match="is of the log"):
                await once(place, nodes["A"].config.master_url)

    asyncio.run(main())


def test_a_site_without_the_rows_of_a_group_names_those_that_have_all(
    tmp_path: Path, place: FeedStore
) -> None:
    """P41: a feed has all rows; where groups divide them so that no site has, that is said."""

    def make(url: str, group: str, site: str) -> int:
        create_group(Http(url), group, [site])
        with Client(url) as client:
            client.create_table(group, {"id": "bigint"}, group=group)
            position: int = client.append(group, [{"id": 1}]).position
        return position

    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a, b = nodes["A"], nodes["B"]
            last = await at(a, make, "eu", "B")
            await until(lambda: all(one.base.published.value >= last for one in (a, b)))
            with pytest.raises(NotHeldHereError, match="'eu': its group has sites B") as caught:
                await once(place, a.config.master_url)
            assert caught.value.hint.endswith("Feed it from a site that holds them: B.")
            assert (await once(place, b.config.master_url)).position == last
            last = await at(a, make, "us", "A")
            await until(lambda: all(one.base.published.value >= last for one in (a, b)))
            with pytest.raises(NotHeldHereError, match="'us': its group has sites A") as caught:
                await once(place, b.config.master_url)
            assert "no site holds those of all groups" in caught.value.hint
            assert check_feed(place).damaged == []

    asyncio.run(main())


# -- commit tables ---------------------------------------------------------------------------------


async def _versions(caller: Caller, table: StagedTable, name: str, upto: int) -> list[int]:
    """Commit versions from 1 on; return the positions of all of them."""
    for version in range(1, upto + 1):
        body = table.update(table.stage(version, table.add(b"x" * version)))
        assert (await caller.commit(body, name))[0] == 200
    positions = {one.uuid: one for one in caller.node.commit_tables()}
    last = positions[table.table_id].position
    return list(range(last - upto, last + 1))


def _route(place: FeedStore, at: int | None = None) -> FeedRoute:
    return route_to(place, target_of(place, None if at is None else str(at)))


@pytest.mark.parametrize("settings", [{}, {"inline_limit": 0}], ids=["carried", "staged"])
def test_commit_tables_come_back_at_any_position(
    tmp_path: Path, place: FeedStore, settings: dict[str, Any]
) -> None:
    """V66: whether their files came in the run's container, or as staged files."""

    async def main() -> None:
        async with catalog(tmp_path, **settings) as caller:
            url = caller.node.config.master_url
            table = await caller.create("c")
            positions = await _versions(caller, table, "c", 2)
            other = await caller.create("other")
            assert (await caller.ask("DELETE", path_of("other")))[0] == 204
            await until(lambda: caller.node.base.published.value >= positions[-1] + 2)
            done = await once(place, url)
            assert done.position == positions[-1] + 2
            for version, position in enumerate(positions):
                (one,) = commit_tables_at(place, _route(place, position))
                assert (one.name, one.uuid) == ("default.c", table.table_id)
                assert one.version == version
            found = commit_tables_at(place, _route(place, positions[-1] + 1))
            assert {(one.name, one.uuid) for one in found} == {
                ("default.c", table.table_id),
                ("default.other", other.table_id),
            }
            assert [one.name for one in commit_tables_at(place, _route(place))] == ["default.c"]

            target = tmp_path / "restored"
            await asyncio.to_thread(restore_commits, place, _route(place, positions[1]), target)
            plain = target / "default.c"
            assert newest_commit(plain) == 1
            found_files = {one.path for one in needed_files(plain, 1).values()}
            assert len(found_files) == 2
            for path in found_files:
                assert (plain / path).read_bytes() == (table.directory / path).read_bytes()
            assert b"catalogManaged" not in (plain / commit_file_name(0)).read_bytes()
            with pytest.raises(InvalidRequestError, match="is there already"):
                restore_commits(place, _route(place), target)

    asyncio.run(main())


def test_versions_after_an_image_come_from_the_feed(tmp_path: Path, place: FeedStore) -> None:
    """An image may have later versions than its position; at the position it has fewer."""

    async def main() -> None:
        async with catalog(tmp_path) as caller:
            node, url = caller.node, caller.node.config.master_url
            table = await caller.create("c")
            first = await _versions(caller, table, "c", 1)
            await until(lambda: node.base.published.value >= first[-1])
            lake = at_end_of(node, tmp_path / "lake of A")
            for version in (2, 3):
                body = table.update(table.stage(version, table.add(b"x" * version)))
                assert (await caller.commit(body, "c"))[0] == 200
            # It stands where version 1 was ordered, and has version 3.
            assert await caller.version("c") == 3
            kept = commit_tables_below(
                node.config.commit_table_dir, {table.table_id: ("default.c", 3)}
            )
            back_up_replica(lake.path, place.images, name="one", commit_tables=kept)
            await once(place, url)
            assert (await caller.commit(table.update(table.stage(4, table.add())), "c"))[0] == 200
            await once(place, url)
            at_image = first[-1]
            for later in range(4):
                route = _route(place, at_image + later)
                assert route.image is not None
                (one,) = commit_tables_at(place, route)
                assert one.version == 1 + later
                target = tmp_path / f"restored {later}"
                await asyncio.to_thread(restore_commits, place, route, target)
                assert newest_commit(target / "default.c") == 1 + later

    asyncio.run(main())


def test_versions_that_a_site_never_had_stop_the_feed(
    tmp_path: Path, place: FeedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with catalog(tmp_path) as caller:
            node = caller.node
            await caller.create("c")
            await until(lambda: node.base.published.value >= 1)
            kept = node.base.journal.read_commits

            def without_files(*asked: int) -> Any:
                found = kept(*asked)
                versions = tuple(replace(one, files=()) for one in found.versions)
                return replace(found, versions=versions)

            monkeypatch.setattr(node.base.journal, "read_commits", without_files)
            with pytest.raises(NotPlacedError, match="never had the files of version 0"):
                await once(place, node.config.master_url)
            assert list(place.pages(0)) == []

    asyncio.run(main())


def test_the_route_gives_whole_positions(tmp_path: Path) -> None:
    async def main() -> None:
        async with catalog(tmp_path) as caller:
            table = await caller.create("c")
            positions = await _versions(caller, table, "c", 3)
            await until(lambda: caller.node.base.published.value >= positions[-1])
            last, found, after = positions[-1], list[int](), 0
            while after < last:
                path = f"/v1/worker/commits?after={after}&upto={last}&limit=1"
                status, answer = await caller.ask("GET", path)
                assert status == 200 and after < answer["upto"] <= last
                found += [one["version"] for one in answer["versions"]]
                after = answer["upto"]
            assert found == [0, 1, 2, 3]
            assert answer["tables"][-1]["name"] == "default.c"
            assert (await caller.ask("GET", "/v1/worker/commits"))[0] == 400

    asyncio.run(main())


# -- another machine -------------------------------------------------------------------------------


class _Forbidden(StagedOnDisk):
    """A directory below one that this user may not search."""

    def is_there(self) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")


@pytest.fixture(params=[StagedOnDisk, _Forbidden], ids=["away", "forbidden"])
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Nothing of the site's disk is seen by the feed."""
    seen = request.param(tmp_path / "nowhere")
    monkeypatch.setattr(shipped_files, "payloads_at", lambda place: seen)


@pytest.mark.parametrize("settings", [{}, {"inline_limit": 0}], ids=["carried", "staged"])
def test_a_feed_that_sees_no_disk_of_the_site_gets_its_files_from_the_node(
    tmp_path: Path, place: FeedStore, far: None, settings: dict[str, Any]
) -> None:
    """Inline rows, and commit tables whose files came in the run or were staged."""

    async def main() -> None:
        async with catalog(tmp_path, **settings) as caller:
            node, url = caller.node, caller.node.config.master_url
            table = await caller.create("c")
            await _versions(caller, table, "c", 2)
            await create(node)
            last = await at(node, append, 1, 2)
            await until(lambda: node.base.published.value >= last)
            done = await once(place, url)
            assert done.position == last and done.size_bytes > 0
            found = check_feed(place)
            assert found.damaged == [] and found.files > 0
            target = tmp_path / "restored"
            await asyncio.to_thread(restore_commits, place, _route(place), target)
            plain = target / "default.c"
            assert newest_commit(plain) == 2
            for one in needed_files(plain, 2).values():
                assert (plain / one.path).read_bytes() == (table.directory / one.path).read_bytes()

    asyncio.run(main())


def test_what_no_place_of_the_site_has_is_named(
    tmp_path: Path, place: FeedStore, far: None
) -> None:
    """Lost files, files that nobody names, and ways out of the site's directories."""

    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            node, url = nodes["A"], nodes["A"].config.master_url
            await create(node)
            last = await at(node, append, 1)
            await until(lambda: node.base.published.value == last)
            root = Path(node.config.payload_dir)
            files = [one for one in root.rglob("*.parquet") if "inline" in one.parts]
            kept = {one: one.read_bytes() for one in files}
            assert kept
            for one in files:
                one.unlink()
            with pytest.raises(ApplyError, match=r"no file .*t-append\.parquet"):
                await once(place, url)
            assert list(place.pages(0)) == []
            for one, content in kept.items():
                one.write_bytes(content)
            (Path(node.config.data_dir) / "secret").write_bytes(b"xyz")
            (root / "secret").symlink_to(Path(node.config.data_dir) / "secret")
            digest = hashlib.sha256(b"xyz").hexdigest()
            with closing(HttpLogSource(url)) as source:
                for where, path in (
                    ("payloads", "../secret"),
                    ("payloads", "secret"),
                    ("summaries", "secret"),
                    ("versions", "secret"),
                    ("versions", f"{'0' * 36}/0/secret"),
                ):
                    asked = StagedFile(path=path, size_bytes=3, rows=0, digest=digest)
                    with pytest.raises(TxLogError) as caught:
                        await asyncio.to_thread(list, source.file(where, asked, 0))
                    assert caught.value.definite, (where, path)
            assert (await once(place, url)).pages == 1

    asyncio.run(main())


# -- buckets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("into", ["same bucket", "directory"])
def test_a_site_in_a_bucket_is_fed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, into: str
) -> None:
    """Staged files, inline rows and commit tables; within one bucket no bytes travel."""
    sent = list[str]()
    create_object = BucketStore.create

    def noted(store: BucketStore, key: str, content: bytes | Path, **how: Any) -> Any:
        if isinstance(content, Path):
            sent.append(store.url_of(key))
        return create_object(store, key, content, **how)

    async def main(server: StoreServer) -> None:
        at_bucket = f"s3://{BUCKET}/site"
        settings = {
            "payload_url": f"{at_bucket}/payloads",
            "commit_table_url": f"{at_bucket}/tables",
            "store_endpoint": server.endpoint,
            "store_region": "us-east-1",
            "store_allow_http": "true",
            "store_credentials_file": str(server.credentials_file),
        }
        place = FeedStore(f"s3://{BUCKET}/feed" if into == "same bucket" else tmp_path / "feed")
        async with cluster(tmp_path, "A", **settings) as nodes:
            node, url = nodes["A"], nodes["A"].config.master_url
            await create(node)
            last = await at(node, append, 1, 2, 3)
            monkeypatch.setattr(BucketStore, "create", noted)
            done = await once(place, url)
            assert done.position == last
            found = check_feed(place)
            assert found.damaged == [] and found.files >= 1
            assert [one for one in sent if "/feed/contents/" in one] == []
            for inside in ("payloads", "tables"):
                with pytest.raises(InvalidRequestError, match="where files of the site lie"):
                    await once(FeedStore(f"{at_bucket}/{inside}/feed"), url)

    with seaweedfs(tmp_path / "state") as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        asyncio.run(main(server))


# -- commands --------------------------------------------------------------------------------------


def test_commands_feed_and_rehearse(
    tmp_path: Path,
    place: FeedStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """V70: a drill says how late the feed is, and how long its restore took."""
    signals = list[int]()
    monkeypatch.setattr("signal.signal", lambda number, act: signals.append(number))

    def told(*arguments: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert invoke(monkeypatch, *arguments, "--json") == code, capsys.readouterr()
        (line,) = (one for one in capsys.readouterr().out.splitlines() if one.startswith("{"))
        return json.loads(line)

    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            node, url = nodes["A"], nodes["A"].config.master_url
            await create(node)
            last = await at(node, append, 1)
            fed = ("feed", "--url", f"{NOWHERE},{url}", "--to", place.url, "--once")
            done = await asyncio.to_thread(told, *fed)
            assert (done["position"], done["node_id"]) == (last, "A") and signals
            listed = await asyncio.to_thread(told, "feed", "list", place.url)
            assert (listed["position"], listed["begins_after"]) == (last, 0)
            drill = ("drill", "--url", url, "--no-spark", "--feed", place.url)
            # One site alone: its loss would lose all that the feed does not have.
            found = await asyncio.to_thread(told, *drill, code=3)
            rehearsal = found["rehearsals"][-1]
            assert rehearsal["name"] == "restore of the feed" and rehearsal["problems"] == []
            assert "0 transactions behind" in rehearsal["what"]
            assert rehearsal["pause_s"]["restore"] >= 0.0
            async with cluster(tmp_path / "other", "X") as others:
                foreign = ("drill", "--url", others["X"].config.master_url, *drill[3:])
                found = await asyncio.to_thread(told, *foreign, code=3)
            (problem,) = found["rehearsals"][-1]["problems"]
            assert "the feed is of log" in problem and found["passed"] is False
            (kept,) = (Path(place.url) / "contents").iterdir()
            kept.unlink()
            assert await asyncio.to_thread(invoke, monkeypatch, *drill) == 1
            assert kept.name in capsys.readouterr().err, "what would stop a restore is named"

    asyncio.run(main())
