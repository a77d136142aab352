"""Writers of one site, and what they were told."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from tests.support.delta_writer import BEGIN, DELTA, StagedTable, path_of
from tests.support.node_processes import NodeProcess, wait_until
from tests.verification.places import Places
from tests.verification.rivals.placed_tables import PlacedTable, newest_version

#: Pause before a request is sent again, seconds, and how long one may take.
_AGAIN_S, _PATIENCE_S = (0.05, 0.5), 60.0
#: A table that is written together with the first one only.
_BESIDE = "beside"


@dataclass(slots=True)
class Told:
    """What all writers were told."""

    #: Row → site and table of the writer whose commit became a version.
    committed: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: (table, version) → digest of the commit file that was told 200.
    versions: dict[tuple[str, int], str] = field(default_factory=dict)
    #: UUIDs of commits that lost.
    lost: set[str] = field(default_factory=set)
    #: Requests for a row's commit until it was told 200 → rows.
    attempts: Counter[int] = field(default_factory=Counter)
    #: Transactions that wrote to two tables.
    pairs: int = 0
    #: How requests ended, beside 200.
    problems: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


class Rivals:
    """The writers of all sites; they write until there are enough commits.

    Args:
        nodes: One of each site.
        tables: How many tables there are, and writers of each at every site.
        commits: How many commits shall become versions.
        places: Where the sites have their tables.
    """

    def __init__(
        self,
        nodes: Sequence[NodeProcess],
        tables: int,
        writers: int,
        commits: int,
        seed: int,
        places: Places,
    ) -> None:
        self.told = Told()
        #: Name → UUID.
        self.tables: dict[str, str] = {}
        self.places = places
        self._nodes = nodes
        self._names = [f"t{number}" for number in range(tables)]
        self._writers = writers
        self._commits = commits
        self._seed = seed
        #: They write on, though there are enough commits.
        self.goes_on = False

    @property
    def left(self) -> int:
        """How many commits are still to be made, at least."""
        return max(self._commits - len(self.told.committed), int(self.goes_on))

    async def create(self) -> None:
        """Create the tables at the first site."""
        async with aiohttp.ClientSession() as session:
            for name in (*self._names, _BESIDE):
                await self._create(session, name)

    async def run(self) -> None:
        """Write to the tables from all sites."""
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:

            def writer(node: NodeProcess, name: str, story: object) -> _Writer:
                return _Writer(
                    self, session, node, name, f"{self._seed} {node.name} {name} {story}"
                )

            writers: list[_Writer | _Pair] = [
                writer(node, name, n)
                for node in self._nodes
                for name in self._names
                for n in range(self._writers)
            ]
            for node in self._nodes:
                both = (self._names[0], _BESIDE)
                writers.append(_Pair(*(writer(node, name, "both") for name in both)))
            async with asyncio.TaskGroup() as group:
                for one in writers:
                    group.create_task(one.run())

    def wait_until_equal(self, timeout: float) -> None:
        """Wait until all sites have placed equally many versions of each table."""

        def is_equal() -> bool:
            return all(
                len({newest_version(self.places.judged(node), uuid) for node in self._nodes}) == 1
                for uuid in self.tables.values()
            )

        wait_until(is_equal, timeout, "all sites have the same newest versions")

    async def _create(self, session: aiohttp.ClientSession, name: str) -> None:
        url = self._nodes[0].url
        staging = f"{url}{DELTA}/catalogs/tx/schemas/default/staging-tables"
        async with session.post(staging, json={"name": name}) as answer:
            told = StagedTable.of(await answer.json())
        table = PlacedTable.at(self.places.of(self._nodes[0]), told)
        assert table.location == told.location
        await asyncio.to_thread(table.write_first)
        async with session.post(url + path_of(), json=table.creation(name)) as answer:
            assert answer.status == 200, await answer.text()
        self.tables[name] = table.table_id


@dataclass(frozen=True, slots=True)
class _Staged:
    """A staged commit."""

    table: PlacedTable
    commit: dict[str, Any]
    content: bytes

    @property
    def version(self) -> int:
        """The version that it wants to be."""
        return int(self.commit["version"])

    @property
    def identity(self) -> str:
        """UUID of the commit."""
        return str(self.commit["file-name"]).split(".")[1]

    @property
    def proposed(self) -> dict[str, Any]:
        """What a request of several commits says."""
        return {
            "table_id": self.table.table_id,
            "proposed_version": self.version,
            "timestamp": self.commit["timestamp"],
            "file_name": self.commit["file-name"],
            "file_size": self.commit["file-size"],
        }

    def is_published(self) -> bool | None:
        """Return whether it is its version, None = nothing is yet."""
        found = self.table.version(self.version)
        return None if found is None else found == self.content


class _Writer:
    """Writes rows to one table at one site, one after the other."""

    def __init__(
        self,
        rivals: Rivals,
        session: aiohttp.ClientSession,
        node: NodeProcess,
        name: str,
        story: str,
    ) -> None:
        self._rivals, self._told = rivals, rivals.told
        self._session = session
        self._node = node
        self._name = name
        self._chance = random.Random(story)
        self._table = PlacedTable.at(
            rivals.places.of(node), StagedTable(rivals.tables[name], Path(), "")
        )
        self._version = 0

    @property
    def is_over(self) -> bool:
        """Whether there are enough commits."""
        return self._rivals.left <= 0

    async def run(self) -> None:
        """Write until there are enough commits."""
        await self.load()
        while not self.is_over:
            await self._append(str(uuid.uuid4()))

    async def add(self, row: str) -> dict[str, Any]:
        """Write a row's file."""
        return await asyncio.to_thread(self._table.add, row.encode())

    async def stage(self, add: dict[str, Any]) -> _Staged:
        """Stage a row's commit as the next version that this writer knows of."""
        return await asyncio.to_thread(self._stage, self._version + 1, add)

    def _stage(self, version: int, add: dict[str, Any]) -> _Staged:
        commit = self._table.stage(version, add, timestamp=BEGIN + version)
        content = self._table.staged_commit(commit["file-name"])
        return _Staged(self._table, commit, content)

    async def _append(self, row: str) -> None:
        add = await self.add(row)
        attempts = 0
        while True:
            attempts += 1
            staged = await self.stage(add)
            status = await self._committed(self._table.update(staged.commit))
            if status == 200:
                break
            self._told.lost.add(staged.identity)
            if await asyncio.to_thread(staged.is_published) is None:
                self._told.violations.append(
                    f"{self._node.name} says that version {staged.version} of {self._name} is "
                    "taken, and has none"
                )
            await self.load()
        await self.won(row, staged, attempts)

    async def won(self, row: str, staged: _Staged, attempts: int) -> None:
        """Note that a row's commit was told 200, and look whether its version is there."""
        version = self._version = staged.version
        self._told.attempts[attempts] += 1
        self._told.committed[row] = (self._node.name, self._name)
        digest = hashlib.sha256(staged.content).hexdigest()
        if self._told.versions.setdefault((self._name, version), digest) != digest:
            self._told.violations.append(f"two writers were told 200 for {self._name} {version}")
        if await asyncio.to_thread(staged.is_published) is None:
            self._told.violations.append(f"{self._name} {version} was told 200, and is not there")

    async def both(self, staged: list[_Staged]) -> bool:
        """Commit to several tables in one transaction; return whether it took effect."""
        body = {
            "transaction_id": str(uuid.uuid4()),
            "operations": [],
            "commits": [one.proposed for one in staged],
        }
        while True:
            status, answer = await self._ask("POST", body, "/v1/transactions")
            outcome = (answer or {}).get("outcome")
            if status == 200 and outcome is not None:
                self._told.pairs += outcome == "committed"
                return bool(outcome == "committed")
            code = (answer or {}).get("title", "no outcome" if status == 200 else "no answer")
            self._told.problems[f"both: {status} {code}"] += 1
            if code == "version-conflict":
                return False
            if status in (400, 404):
                self._told.violations.append(f"{self._node.name} answers {status}: {answer}")
            # A site that began with a summary knows no outcome: the versions tell it.
            found = [await asyncio.to_thread(one.is_published) for one in staged]
            if status == 200 and None not in found:
                return all(found)
            await self._pause()

    async def _committed(self, body: dict[str, Any]) -> int:
        """Ask until the outcome is known: 200 or 409."""
        while True:
            status, answer = await self._ask("POST", body)
            if status == 200:
                return status
            kind = (answer or {}).get("error", {}).get("type", "no answer")
            self._told.problems[f"{status} {kind}"] += 1
            if kind == "CommitVersionConflictException":
                return status
            if status in (400, 404):
                self._told.violations.append(f"{self._node.name} answers {status}: {answer}")
            await self._pause()

    async def load(self) -> None:
        """Learn the newest version."""
        while True:
            status, answer = await self._ask("GET", None)
            if status == 200:
                self._version = int(answer["latest-table-version"])
                return
            await self._pause()

    async def _ask(self, method: str, body: Any, path: str = "") -> tuple[int, Any]:
        """Return status and answer; 0 = none came."""
        url = self._node.url + (path or path_of(self._name))
        patience = aiohttp.ClientTimeout(total=_PATIENCE_S)
        try:
            async with self._session.request(method, url, json=body, timeout=patience) as answer:
                return answer.status, json.loads(await answer.read())
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return 0, None

    async def _pause(self) -> None:
        await asyncio.sleep(self._chance.uniform(*_AGAIN_S))


class _Pair:
    """Writes rows to two tables at one site, to both in one transaction."""

    def __init__(self, *writers: _Writer) -> None:
        self._writers = writers

    async def run(self) -> None:
        """Write until there are enough commits."""
        for writer in self._writers:
            await writer.load()
        while not self._writers[0].is_over:
            await self._append([str(uuid.uuid4()) for _ in self._writers])

    async def _append(self, rows: list[str]) -> None:
        writers, attempts = self._writers, 1
        adds = [await writer.add(row) for writer, row in zip(writers, rows, strict=True)]
        staged = [await writer.stage(add) for writer, add in zip(writers, adds, strict=True)]
        while not await writers[0].both(staged):
            for writer in writers:
                await writer.load()
            staged = [await writer.stage(add) for writer, add in zip(writers, adds, strict=True)]
            attempts += 1
        for writer, row, one in zip(writers, rows, staged, strict=True):
            await writer.won(row, one, attempts)
