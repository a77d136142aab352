"""A Delta table becomes a commit table at both sites, and is given back; without Spark."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.service.local_nodes import cluster, config_of, serving, until
from tests.service.test_start_after_a_summary import free_ports
from tests.support.delta_writer import SCHEMA, StagedTable

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.codec.delta_catalog.adopted_tables import PlainTable
from sparktxlog.delta.commit_contents import read_commit_file
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import (
    CopyConflictError,
    InvalidRequestError,
    NameTakenError,
    NotOfferedError,
    PayloadStoreError,
    UnknownTableError,
)
from sparktxlog.http import catalog_link
from sparktxlog.http.catalog_link import CatalogLink
from sparktxlog.model.ids import local_path
from sparktxlog.runtime.commit_tables import commit_catalog
from sparktxlog.runtime.commit_tables.commit_catalog import CommitCatalog
from sparktxlog.runtime.node import Node
from sparktxlog.storage.commit_tables.directory_tables import directory_of
from sparktxlog.worker.tables import adopted_files
from sparktxlog.worker.tables.release import release_commits
from sparktxlog.worker.tables.table_adoption import Adoption, adopt_commits

NAME = "default.orders"
FILES = {"a.parquet": b"rows of a", "p=1/b c.parquet": b"rows of b", "old.parquet": b"before"}
#: Of Z85, as Delta writes UUIDs.
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"


def plain_table(directory: Path) -> PlainTable:
    """Write a table with two live files, an older one, and a deletion vector."""
    vector = uuid.uuid4()
    coded = base64.b85encode(vector.bytes).translate(bytes.maketrans(_B85, _Z85)).decode()
    files = FILES | {f"deletion_vector_{vector}.bin": b"four\x00\x00\x00\x04dele" + b"checksum"}
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (directory / "_delta_log").mkdir()
    (directory / "_delta_log" / f"{3:020}.json").write_text("{}\n")
    own = {"storageType": "u", "pathOrInlineDv": coded, "offset": 4, "sizeInBytes": 4}
    adds: list[dict[str, Any]] = [
        {"path": "a.parquet", "size": 9, "partitionValues": {}, "deletionVector": own},
        {"path": "p=1/b%20c.parquet", "size": 9, "partitionValues": {}},
    ]
    log = LogState(
        version=3,
        protocol={"minReaderVersion": 1, "minWriterVersion": 2},
        metadata={
            "id": "x",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(SCHEMA),
            "partitionColumns": [],
            "configuration": {"delta.appendOnly": "false"},
        },
        adds={add["path"]: add for add in adds},
    )
    return PlainTable(path=str(directory), log=log)


def files_of(directory: Path) -> dict[str, bytes]:
    found = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def write_before_the_drop(
    monkeypatch: pytest.MonkeyPatch, link: CatalogLink, node: Node, write: Callable[[int], None]
) -> None:
    """Let a version be ordered before a drop at a node, and be placed there after it."""
    drop, placer, dropped = link.drop, node.catalog.placer, threading.Event()
    place, place_dropped = placer._place, placer.place_dropped

    def written_before(name: str) -> None:
        write(2)
        drop(name)

    def place_late(*given: Any) -> Any:
        dropped.wait(5)
        return place(*given)

    async def told_late(*given: Any) -> None:
        dropped.set()
        await place_dropped(*given)

    monkeypatch.setattr(link, "drop", written_before)
    monkeypatch.setattr(placer, "_place", place_late)
    monkeypatch.setattr(placer, "place_dropped", told_late)


def test_a_table_comes_to_all_sites_and_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = plain_table(tmp_path / "plain")
    before = files_of(tmp_path / "plain")

    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            link = CatalogLink(nodes["A"].config.master_url)
            other = CatalogLink(nodes["B"].config.master_url)

            def run(work: Callable[..., Any], *given: Any, **more: Any) -> Any:
                return asyncio.to_thread(work, *given, **more)

            tried: Adoption = await run(adopt_commits, plain, lambda: 3, link, NAME, dry_run=True)
            assert (tried.files, tried.size_bytes, tried.uuid) == (3, 38, "")
            assert "catalogManaged" in tried.new_features
            assert "delta.checkpointPolicy" in tried.new_properties
            commit_tables = nodes["A"].config.commit_table_dir
            assert not commit_tables.exists()
            done: Adoption = await run(adopt_commits, plain, lambda: 3, link, NAME)
            assert files_of(tmp_path / "plain") == before
            table = commit_tables / done.uuid
            assert (table / "a.parquet").samefile(tmp_path / "plain" / "a.parquet")
            assert files_of(table).keys() == (before.keys() - {"old.parquet"}) ^ {
                f"_delta_log/{3:020}.json",
                f"_delta_log/{0:020}.json",
            }
            await until(lambda: len(nodes["B"].base.master.commit_tables))
            shown = await run(other.load, NAME)
            assert files_of(directory_of(shown.metadata.location)) == files_of(table)
            with pytest.raises(NameTakenError, match="exists"):
                await run(adopt_commits, plain, lambda: 3, link, NAME)
            # Versions by a writer of the table, the last one while it is given back.
            staged = StagedTable(done.uuid, table, shown.metadata.location)
            (table / "_delta_log" / "_staged_commits").mkdir(exist_ok=True)
            path = "/api/2.1/unity-catalog/delta/v1/catalogs/x/schemas/default/tables/orders"

            def write(version: int) -> None:
                later = version + shown.metadata.updated_time
                body = staged.update(staged.stage(version, staged.add(), timestamp=later))
                link.request("POST", path, body=json.dumps(body).encode())

            await run(write, 1)
            write_before_the_drop(monkeypatch, other, nodes["B"], write)
            target = tmp_path / "back" / "orders"
            gone = await run(release_commits, other, NAME, target, drop=True)
            assert (gone.version, gone.dropped) == (2, True)
            content = read_commit_file((target / "_delta_log" / f"{0:020}.json").read_bytes())
            assert content.protocol is not None
            assert "catalogManaged" not in content.protocol.features
            found = files_of(target)
            assert found["a.parquet"] == FILES["a.parquet"]
            assert f"_delta_log/{2:020}.json" in found
            assert [path.name for path in target.parent.iterdir()] == ["orders"]
            with pytest.raises(UnknownTableError):
                await run(link.load, NAME)

    asyncio.run(main())


def test_an_adoption_that_ends_before_the_node_is_asked_leaves_no_file(tmp_path: Path) -> None:
    """Spark fails, or somebody interrupts it."""
    plain = plain_table(tmp_path / "plain")

    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            link = CatalogLink(nodes["A"].config.master_url)
            with pytest.raises(ZeroDivisionError):
                await asyncio.to_thread(adopt_commits, plain, lambda: 1 // 0, link, NAME)
            assert list(nodes["A"].config.commit_table_dir.iterdir()) == []

    asyncio.run(main())


def test_a_table_that_moves_is_whole_until_the_log_has_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = plain_table(tmp_path / "plain")
    before = files_of(tmp_path / "plain")

    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            link = CatalogLink(nodes["A"].config.master_url)
            commit_tables = nodes["A"].config.commit_table_dir
            # Another writer commits while the files get their places.
            with pytest.raises(CopyConflictError, match="has version 4, after 3"):
                await asyncio.to_thread(adopt_commits, plain, lambda: 4, link, NAME, way="move")

            def refused(*_: Any, **__: Any) -> None:
                raise NotOfferedError("the node says no")

            with monkeypatch.context() as patched:
                patched.setattr(CatalogLink, "create", refused)
                with pytest.raises(NotOfferedError):
                    await asyncio.to_thread(adopt_commits, plain, lambda: 3, link, NAME, way="move")
            assert files_of(tmp_path / "plain") == before
            assert list(commit_tables.iterdir()) == []

            link_file = os.link

            def other_disk(source: Any, *names: Any, **places: Any) -> None:
                if str(source).startswith(str(tmp_path / "plain")):
                    raise OSError(18, "Invalid cross-device link")
                link_file(source, *names, **places)

            with monkeypatch.context() as patched:
                patched.setattr(os, "link", other_disk)
                with pytest.raises(InvalidRequestError, match="links are of one file system"):
                    await asyncio.to_thread(adopt_commits, plain, lambda: 3, link, NAME)
                copied = await asyncio.to_thread(
                    adopt_commits,
                    plain,
                    lambda: 3,
                    link,
                    "default.copied",
                    way="move",
                    dry_run=False,
                )
            assert copied.left.startswith("the old log is")
            assert files_of(tmp_path / "plain").keys() == {"old.parquet"}
            (entry,) = Attic.of_commit_tables(commit_tables).entries(Kind.LOG, "default.copied")
            assert (entry.mark, entry.source) == (copied.uuid, plain.path + "/_delta_log")
            assert [one.name for one in entry.path.iterdir()] == [f"{3:020}.json"]
            assert f"{entry.path}, {entry.id} in the attic" in copied.left
            table = commit_tables / copied.uuid
            assert (table / "a.parquet").read_bytes() == FILES["a.parquet"]
            another = plain_table(tmp_path / "another")
            whole = files_of(tmp_path / "another")

            def of_others(*_: Any, **__: Any) -> None:
                raise PermissionError(13, "Permission denied", "the attic")

            with monkeypatch.context() as patched:
                patched.setattr(Attic, "keep", of_others)
                left = await asyncio.to_thread(
                    adopt_commits, another, lambda: 3, link, "default.another", way="move"
                )
            assert left.uuid and "could not be removed" in left.left and "the attic" in left.left
            assert files_of(tmp_path / "another") == whole
            monkeypatch.setattr(adopted_files, "directory_of", lambda _: Path("/not/mounted"))
            with pytest.raises(PayloadStoreError, match="does not see /not/mounted"):
                await asyncio.to_thread(adopt_commits, another, lambda: 3, link, NAME)

    asyncio.run(main())


def test_a_table_waits_for_a_site_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request to create it is repeated until the files are at the other site."""
    monkeypatch.setattr(commit_catalog, "COMMIT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(catalog_link, "_PAUSE_S", 0.05)
    plain, ports = plain_table(tmp_path / "plain"), free_ports("AB")
    asked: list[str] = []
    create = CommitCatalog.create

    async def counted(catalog: CommitCatalog, *given: Any) -> Any:
        asked.append("create")
        return await create(catalog, *given)

    check = CommitCatalog._check_first

    def checked(catalog: CommitCatalog, *given: Any) -> Any:
        asked.append("check")
        return check(catalog, *given)

    monkeypatch.setattr(CommitCatalog, "create", counted)
    monkeypatch.setattr(CommitCatalog, "_check_first", checked)

    async def main() -> None:
        async with some_of(tmp_path, {"A": ports["A"]}, ports) as (a,):
            async with some_of(tmp_path, {"B": ports["B"]}, ports) as (b,):
                await until(lambda: all(n.membership.joining.proven for n in (a, b)))
            link = CatalogLink(a.config.master_url)
            adopting = asyncio.create_task(
                asyncio.to_thread(adopt_commits, plain, lambda: 3, link, NAME)
            )
            await until(lambda: asked.count("create") >= 3)
            assert not adopting.done()
            async with some_of(tmp_path, {"B": ports["B"]}, ports) as (b,):
                done = await adopting
                await until(lambda: done.uuid in b.base.master.commit_tables)
            assert asked.count("check") == 1, "files are read once"
            tables = [path.name for path in a.config.commit_table_dir.glob("[!.]*")]
            assert tables == [done.uuid]

    asyncio.run(main())


@asynccontextmanager
async def some_of(
    directory: Path, started: dict[str, int], ports: dict[str, int]
) -> AsyncIterator[list[Node]]:
    """Run some of the nodes of a log, at ports that a restart finds again."""
    async with AsyncExitStack() as stack:
        listeners = {n: socket.create_server(("127.0.0.1", port)) for n, port in started.items()}
        yield [
            await stack.enter_async_context(serving(config_of(directory, name, ports), listener))
            for name, listener in listeners.items()
        ]


def test_a_file_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, link = plain_table(tmp_path / "plain"), CatalogLink("http://127.0.0.1:9")
    monkeypatch.setattr(link, "get", lambda _: {"commit_table_url": None})
    (tmp_path / "plain" / "a.parquet").write_bytes(b"longer than the log says")
    (tmp_path / "plain" / "p=1/b c.parquet").unlink()
    with pytest.raises(InvalidRequestError, match=r"2 of 3 files are missing .* 'a.parquet' first"):
        adopt_commits(plain, lambda: 3, link, NAME)
    with pytest.raises(InvalidRequestError, match="is none of link, copy, move"):
        adopt_commits(plain, lambda: 3, link, NAME, way="steal")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="object stores and other machines"):
        local_path("s3://bucket/t")
    assert local_path("file:///data/t") == "/data/t"
