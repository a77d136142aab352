"""Commits that go wrong on their way: the version stays free, and nothing is done by half."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.service.test_catalog_api import catalog, told
from tests.service.test_travelling_commits import sites
from tests.support.delta_writer import API, BEGIN, StagedTable, path_of

from sparktxlog.runtime.commit_tables import commit_catalog
from sparktxlog.runtime.node import Node


def test_a_token_that_expires_between_staging_and_asking(tmp_path: Path) -> None:
    token = {"authorization": "Bearer a token of the clients"}

    async def main() -> None:
        async with catalog(tmp_path, client_token="a token of the clients") as caller:
            path = f"{path_of().removesuffix('tables')}staging-tables"
            status, answer = await caller.ask("POST", path, {"name": "t"}, headers=token)
            assert status == 200
            table = StagedTable.of(answer)
            table.write_first()
            body = table.creation()
            assert (await caller.ask("POST", path_of(), body, headers=token))[0] == 200
            body = table.update(table.stage(1, table.add()))
            expired = {"authorization": "Bearer an older token"}
            for headers in (expired, {}):
                found = await caller.ask("POST", path_of("t"), body, headers=headers)
                assert told(found) == (401, "NotAuthorizedException")
            position = caller.node.base.ordered.value
            assert not table.published(1).exists()
            # The same commit, with a token of now.
            assert (await caller.ask("POST", path_of("t"), body, headers=token))[0] == 200
            assert table.published(1).exists()
            assert caller.node.base.ordered.value == position + 1

    asyncio.run(main())


def test_the_location_of_another_site(tmp_path: Path) -> None:
    async def main() -> None:
        async with sites(tmp_path) as (a, b):
            staged = await a.caller.stage("other")
            staged.write_first(staged.add())
            found = await b.caller.ask("POST", path_of(), staged.creation("other"))
            assert told(found) == (404, "NoSuchTableException")
            assert str(staged.directory) in found[1]["error"]["message"]
            assert (await b.caller.ask("GET", path_of("other")))[0] == 404
            # A commit that was staged at another site is not there, either.
            body = a.table.update(a.table.stage(1, a.table.add()))
            await b.placed(0)
            assert told(await b.caller.commit(body)) == (400, "InvalidParameterValueException")
            assert (await a.caller.commit(body))[0] == 200
            assert (await a.caller.ask("POST", path_of(), staged.creation("other")))[0] == 200
            await b.placed(1)
            assert a.files() == b.files()

    asyncio.run(main())


def test_a_small_file_that_is_changed_before_it_is_ordered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ordered as the node read it; what stands in its place is set aside."""

    async def main() -> None:
        async with sites(tmp_path) as (a, b):
            await b.placed(0)
            cycle, go_on = a.caller.node.core.cycle, asyncio.Event()
            submit, asked = cycle.submit_single, asyncio.Event()

            async def later(*args: Any) -> Any:
                asked.set()
                await go_on.wait()
                return await submit(*args)

            def held(*args: Any) -> asyncio.Task[Any]:
                return asyncio.create_task(later(*args))

            monkeypatch.setattr(cycle, "submit_single", held)
            add = a.table.add(b"many rows" * 100)
            committing = asyncio.create_task(a.caller.commit(a.table.update(a.table.stage(1, add))))
            await asyncio.wait_for(asked.wait(), 60)
            changed = a.directory / add["add"]["path"]
            changed.write_bytes(b"other row" * 100)
            go_on.set()
            status, answer = await committing
            assert status == 200, answer
            await b.placed(1)
            for site in (a, b):
                assert (site.directory / changed.name).read_bytes() == b"many rows" * 100
            assert a.files() == b.files()

    asyncio.run(main())


def test_a_large_file_that_is_changed_while_it_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit takes no effect; the log goes on."""
    rows = 20_000

    async def main() -> None:
        async with sites(tmp_path) as (a, b):
            await b.placed(0)
            other = await b.caller.create("other")
            asked, go_on = _held(b.caller.node, monkeypatch)
            add = a.table.add(b"many rows" * rows)
            body = a.table.update(a.table.stage(1, add))
            committing = asyncio.create_task(a.caller.commit(body))
            await asyncio.wait_for(asked.wait(), 60)
            changed = a.directory / add["add"]["path"]
            changed.write_bytes(b"other row" * rows)
            go_on.set()
            status, answer = await committing
            assert (status, answer["error"]["type"]) == (422, "BadRequestException")
            assert changed.name in answer["error"]["message"]
            assert [await site.caller.version() for site in (a, b)] == [0, 0]
            await a.write(1)
            await b.placed(1)
            body = other.update(other.stage(1, other.add()))
            assert (await b.caller.commit(body, "other"))[0] == 200

    asyncio.run(main())


def _held(node: Node, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Let a node fetch no file until the second event; the first one says that it would."""
    asked, go_on, get = asyncio.Event(), asyncio.Event(), node.fetcher._get_files

    async def held(link: Any, manifest: Any) -> None:
        asked.set()
        await go_on.wait()
        await get(link, manifest)

    monkeypatch.setattr(node.fetcher, "_get_files", held)
    return asked, go_on


def test_commit_files_that_are_read_at_once_have_one_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a limit of its own, too; eight of them would be as large as the node's machine."""
    read, asked, go_on = commit_catalog.read_new_commit, threading.Event(), threading.Event()

    def held(*args: Any) -> Any:
        asked.set()
        assert go_on.wait(60)
        return read(*args)

    async def main() -> None:
        async with catalog(tmp_path) as caller:
            table, other = await caller.create(), await caller.create("other")
            bodies = [one.update(one.stage(1, one.add())) for one in (table, other)]
            size = bodies[0]["updates"][0]["commit"]["file-size"]
            places = caller.node.catalog._places
            monkeypatch.setattr(places, "_left", size * 3 // 2, raising=False)
            monkeypatch.setattr(commit_catalog, "read_new_commit", held)
            first = asyncio.create_task(caller.commit(bodies[0]))
            assert await asyncio.to_thread(asked.wait, 60)
            refused = asyncio.create_task(caller.commit(bodies[1], "other"))
            await asyncio.wait({refused}, timeout=60)
            go_on.set()
            assert told(await refused) == (429, "TooManyRequestsException")
            assert (await first)[0] == 200
            assert (await caller.commit(bodies[1], "other"))[0] == 200

    asyncio.run(main())


def _deep(levels: int) -> str:
    return '{"clusteringColumns":' + "[" * levels + "]" * levels + "}"


def test_content_of_no_use_is_refused_before_the_order(tmp_path: Path) -> None:
    """Each is a 400 with its field; the table and the lists of its schema stay as they are."""
    far = BEGIN * 100
    missing = {"add": {"path": "missing", "size": -1}}
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": -99}

    async def main() -> None:
        async with catalog(tmp_path) as caller:
            table = await caller.create()
            position = caller.node.base.ordered.value
            commits = [
                table.stage(1, missing),
                table.stage(1, table.add(), {"remove": {"path": "//[x"}}),
                table.stage(1, {"add": table.add()["add"] | {"deletionVector": vector}}),
                table.stage(1, {"domainMetadata": {"domain": "a", "configuration": _deep(5_000)}}),
                table.stage(1, {"protocol": table.protocol | {"minReaderVersion": 2**70}}),
                table.stage(1, table.add(), timestamp=far),
            ]
            for commit in commits:
                found = await caller.commit(table.update(commit))
                assert told(found) == (400, "InvalidParameterValueException")
            other = await caller.stage("other")
            domain = {"domain": "delta.clustering", "configuration": _deep(900)}
            other.write_first({"domainMetadata": domain})
            nested: Any = {}
            for _ in range(450):
                nested = {"a": nested}
            bodies = [
                (other.creation("other"), 400),
                (other.creation("other", location="file://[x"), 404),
                (other.creation("other", **{"domain-metadata": {"a": nested}}), 400),
            ]
            for body, status in bodies:
                assert told(await caller.ask("POST", path_of(), body))[0] == status
            update = table.update(None, {"action": "set-domain-metadata", "updates": nested})
            assert told(await caller.commit(update))[0] == 400
            assert caller.node.base.ordered.value == position
            path = f"{API}/tables?catalog_name=tx&schema_name=default"
            status, listed = await caller.ask("GET", path)
            assert (status, [one["name"] for one in listed["tables"]]) == (200, ["t"])
            body = table.update(table.stage(1, table.add()))
            assert (await caller.commit(body))[0] == 200

    asyncio.run(main())


_SECRET = b"the secret of the node" + b"!" * 5


def plant_link(place: Path, secret: Path) -> None:
    place.symlink_to(secret)


def plant_pipe(place: Path, secret: Path) -> None:
    os.mkfifo(place)


def plant_directory(place: Path, secret: Path) -> None:
    place.mkdir()


@pytest.mark.timeout(120)
def test_a_node_opens_only_plain_files_of_a_writer(tmp_path: Path) -> None:
    """A link to a secret, a pipe, a directory: refused at once, and the secret goes nowhere."""
    secret = tmp_path / "of the node" / "secret"
    secret.parent.mkdir()
    secret.write_bytes(_SECRET)

    async def main() -> None:
        async with catalog(tmp_path) as caller, asyncio.timeout(60):
            table = await caller.create()
            position = caller.node.base.ordered.value

            async def refused(body: Any, place: Path) -> None:
                found = await caller.commit(body)
                assert told(found) == (400, "InvalidParameterValueException")
                assert place.name in found[1]["error"]["message"]
                assert _SECRET.decode() not in str(found)

            for plant in (plant_link, plant_pipe, plant_directory):
                # A staged commit.
                commit = table.stage(1)
                staged = table.staged(commit["file-name"])
                staged.unlink()
                plant(staged, secret)
                await refused(table.update(commit), staged)
                # A data file, with the size that is there.
                place = table.directory / f"{plant.__name__}.parquet"
                plant(place, secret)
                for size in {len(_SECRET), place.stat().st_size}:
                    add = {"path": place.name, "size": size, "partitionValues": {}}
                    await refused(table.update(table.stage(1, {"add": add})), place)
                # Version 0, and the whole directory of a table.
                other = await caller.stage(plant.__name__)
                (other.directory / "_delta_log").mkdir()
                plant(other.published(0), secret)
                found = await caller.ask("POST", path_of(), other.creation(plant.__name__))
                assert told(found)[0] == 400
                shutil.rmtree(other.directory)
                plant(other.directory, secret.parent)
                found = await caller.ask("POST", path_of(), other.creation(plant.__name__))
                assert told(found)[0] in (400, 404)
            # A directory on the way to a data file.
            (table.directory / "p=1").symlink_to(secret.parent)
            add = {"path": "p=1/secret", "size": len(_SECRET), "partitionValues": {}}
            await refused(table.update(table.stage(1, {"add": add})), Path("p=1/secret"))
            assert caller.node.base.ordered.value == position
            # Names that the node would write to.
            log = table.published(1).parent
            (log / f".{table.published(1).name}.new").symlink_to(secret)
            add = table.add(b"whole")
            status, _ = await caller.commit(table.update(table.stage(1, add)))
            assert status == 200
            assert table.published(1).is_file()
            assert secret.read_bytes() == _SECRET
            assert os.listdir(secret.parent) == [secret.name]

    asyncio.run(main())
