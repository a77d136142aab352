"""Writers of commit tables, as Spark's: they read a table at one site, stage there, and ask (P36).

A writer goes by Delta's rules: who lost reads the table again and commits the next version with the
files that it wrote; who was told nothing asks again with the same staged commit, at the same site.
They draw from chance of their own.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from tests.support.delta_writer import BEGIN, StagedTable
from tests.verification.nodes.clients import LostError

from sparktxlog.codec.delta_catalog.catalog_answers import ShownTable, staging_answer
from sparktxlog.codec.delta_catalog.catalog_requests import (
    CreateTableRequest,
    UpdateTableRequest,
    read_update,
)
from sparktxlog.codec.submits.transactions import PreparedTransaction, StagedCommitRequest
from sparktxlog.errors import (
    CommitStateUnknownError,
    NameTakenError,
    NotPlacedError,
    RequirementError,
    StagedCommitError,
    TxLogError,
    UnknownTableError,
    VersionConflictError,
)
from sparktxlog.model.transactions.receipt import Level, Receipt
from sparktxlog.runtime.commit_tables import commit_catalog
from sparktxlog.runtime.commit_tables.commit_catalog import CommitCatalog

if TYPE_CHECKING:
    from tests.verification.nodes.node import SimulatedNode
    from tests.verification.nodes.world import World

    from sparktxlog.runtime.node import Node

_T = TypeVar("_T")
_SCHEMA = "default"
#: Few, so that writers meet; each name is that of another table once it is dropped.
_NAMES = ("orders", "stock", "users")
#: Mean time between two writers, seconds, and how often one asks before it gives up.
_PAUSE_S, _ATTEMPTS = 1.2, 10
#: Chance that somebody drops a table, and bytes of a data file: some travel with their run.
_DROPS, _SIZES = 0.03, (40, 900, 5_000)
#: Chance that a writer writes to two tables in one transaction.
_BOTH = 0.2
#: Chance that whoever meets a site that lacks versions copies the directory from another one.
_COPIES = 0.5
#: A node waits so long until a commit is ordered; then its outcome is unknown.
_PATIENCE_S = 6.0


class TableWriters:
    """Write to commit tables at sites drawn by lot.

    Args:
        world: Where.
        until_s: No writer begins after this time, seconds.
    """

    def __init__(self, world: World, until_s: float) -> None:
        self._world = world
        self.until_s = until_s
        self._random = Random(f"{world.layout.name}:{world.seed}:tables")
        self._tasks: set[asyncio.Task[None]] = set()
        module: Any = commit_catalog
        module.COMMIT_TIMEOUT_S = _PATIENCE_S
        world.after(4.0, self._due)

    @property
    def busy(self) -> bool:
        """Whether a writer is under way."""
        return bool(self._tasks)

    def _due(self) -> None:
        if self._world.loop.time() >= self.until_s:
            return
        name = self._random.choice(_NAMES)
        for _ in range(self._random.choice((1, 1, 2, 3))):
            sites = [n for n in self._world.nodes.values() if n.takes and not n.witness]
            if sites:
                site = self._random.choice(sites)
                drawn = self._random.random()
                if drawn < _DROPS:
                    self._begin(self._drop(site, name))
                elif drawn < _DROPS + _BOTH:
                    others = [other for other in _NAMES if other != name]
                    self._begin(self._write_both(site, name, self._random.choice(others)))
                else:
                    self._begin(self._write(site, name))
        self._world.after(self._random.expovariate(1 / _PAUSE_S), self._due)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._world.loop.create_task(work, context=self._world.context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._world.report(task)

    # -- one writer --------------------------------------------------------------------------------

    async def _write(self, site: SimulatedNode, name: str) -> None:
        """Append a file to a table; create the table if there is none."""
        job = _Job(self._random.randbytes(self._random.choice(_SIZES)))
        for _ in range(_ATTEMPTS):
            try:
                shown = await self._ask(site, lambda catalog: catalog.load(_SCHEMA, name))
                self._world.tables.shown(site, shown)
                if await self._commit(site, name, job.staged(shown)):
                    return
            except UnknownTableError:
                await self._create(site, name, job)
                return
            except NotPlacedError:
                self._world.checks.happened("commit table: versions are missing")
                if self._random.random() < _COPIES:
                    self.copy_missing(site)
            except LostError:
                pass
            except TxLogError as error:
                self._world.checks.note("not loaded", site.name, error.code)
            await self._pause()

    async def _commit(self, site: SimulatedNode, name: str, staged: _Staged) -> bool:
        """Ask for a version until the outcome is known, or patience ends; return if that is all."""
        tables, checks = self._world.tables, self._world.checks
        tables.staged(staged.identity, staged.uuid, staged.content)
        update = read_update(msgspec.convert(staged.body, UpdateTableRequest))
        life = site.life
        for _ in range(_ATTEMPTS):
            try:
                shown = await self._ask(site, lambda c: c.update(_SCHEMA, name, update))
            except VersionConflictError:
                tables.lost(site, staged.uuid, staged.version, staged.identity)
                return False
            except LostError:
                checks.happened("commit table: its node was lost")
            except StagedCommitError as error:
                if life is site.life:  # else a power loss took what no fsync had secured
                    checks.fail(f"P36: {site.name} refuses a right commit: {error}")
                return True
            except CommitStateUnknownError:
                checks.happened("commit table: outcome unknown")
            except TxLogError as error:
                checks.note("not committed", site.name, error.code)
                if isinstance(error, (UnknownTableError, RequirementError)):
                    return True  # it was dropped, or dropped and made again
            else:
                tables.committed(site, shown, staged.version, staged.identity)
                return True
            await self._pause()
        return True

    async def _write_both(self, site: SimulatedNode, *names: str) -> None:
        """Append a file to each of several tables, in one transaction, if they are there."""
        jobs = [_Job(self._random.randbytes(self._random.choice(_SIZES))) for _ in names]
        for _ in range(_ATTEMPTS):
            try:
                shown = [await self._load(site, name) for name in names]
                staged = [job.staged(one) for job, one in zip(jobs, shown, strict=True)]
                if await self._commit_both(site, staged):
                    return
            except UnknownTableError:
                return
            except (LostError, TxLogError) as error:
                self._world.checks.note("not loaded", site.name, type(error).__name__)
            await self._pause()

    async def _load(self, site: SimulatedNode, name: str) -> ShownTable:
        shown = await self._ask(site, lambda catalog: catalog.load(_SCHEMA, name))
        self._world.tables.shown(site, shown)
        return shown

    async def _commit_both(self, site: SimulatedNode, staged: list[_Staged]) -> bool:
        """Ask for versions of several tables, as `_commit` does for one."""
        tables, checks = self._world.tables, self._world.checks
        transaction = PreparedTransaction(
            transaction_id=self._random.randbytes(16),
            operations=(),
            staged_commits=tuple(one.request for one in staged),
        )
        identity, life = transaction.transaction_id, site.life
        for one in staged:
            tables.staged(identity, one.uuid, one.content)

        def commit(asked: Node) -> Coroutine[Any, Any, Receipt]:
            return asked.several_commits.commit(
                transaction, level=Level.ORDERED, sites=1, timeout=_PATIENCE_S
            )

        for _ in range(_ATTEMPTS):
            outcome: str | None = None
            try:
                if site.takes:
                    outcome = (await self._world.clients.ask(site, commit)).outcome
            except VersionConflictError:
                outcome = "rejected"
            except LostError:
                checks.happened("commit table: its node was lost")
            except StagedCommitError as error:
                if life is site.life:
                    checks.fail(f"P36: {site.name} refuses right commits: {error}")
                return True
            except TxLogError as error:
                checks.note("not committed", site.name, error.code)
                if isinstance(error, UnknownTableError):
                    return True  # one was dropped
            if outcome == "committed":
                tables.both_committed(site, {one.uuid: one.version for one in staged}, identity)
                return True
            if outcome == "rejected":
                tables.both_lost(identity)
                return False
            await self._pause()
        return True

    async def _create(self, site: SimulatedNode, name: str, job: _Job) -> None:
        checks = self._world.checks
        try:
            uuid, location = await self._ask(site, lambda catalog: catalog.stage(_SCHEMA, name))
        except (LostError, TxLogError) as error:
            checks.note("not staged", site.name, type(error).__name__)
            return
        table = StagedTable.of(msgspec.to_builtins(staging_answer(uuid, location, ())))
        life = site.life
        table.write_first(job.add(table))
        identity = bytes.fromhex(uuid.replace("-", ""))
        self._world.tables.staged(identity, uuid, table.published(0).read_bytes())
        request = msgspec.convert(table.creation(name), CreateTableRequest)
        for _ in range(_ATTEMPTS):
            try:
                shown = await self._ask(site, lambda catalog: catalog.create(_SCHEMA, request))
            except NameTakenError:
                checks.happened("commit table: name-taken")
                return
            except (StagedCommitError, UnknownTableError) as error:
                if life is site.life and isinstance(error, StagedCommitError):
                    checks.fail(f"P36: {site.name} refuses a right table: {error}")
                return
            except (LostError, TxLogError) as error:
                checks.note("not created", site.name, type(error).__name__)
            else:
                if shown.uuid == uuid:
                    self._world.tables.committed(site, shown, 0, identity)
                return
            await self._pause()

    async def _drop(self, site: SimulatedNode, name: str) -> None:
        try:
            await self._ask(site, lambda catalog: catalog.drop(_SCHEMA, name))
        except (LostError, TxLogError) as error:
            self._world.checks.note("not dropped", site.name, type(error).__name__)
        else:
            self._world.checks.happened("commit table: dropped")

    async def _pause(self) -> None:
        await asyncio.sleep(self._random.uniform(0.2, 3.0))

    async def _ask(
        self, site: SimulatedNode, question: Callable[[CommitCatalog], Coroutine[Any, Any, _T]]
    ) -> _T:
        if not site.takes:
            raise LostError
        return await self._world.clients.ask(site, lambda asked: question(asked.catalog))

    # -- the administrator -------------------------------------------------------------------------

    def copy_missing(self, site: SimulatedNode) -> None:
        """Copy tables whose versions a site lacks from others, as rsync does."""
        if site.running is None:
            return
        failed = site.running.catalog.placer._failed
        for uuid in [one for one, why in failed.items() if isinstance(why, NotPlacedError)]:
            source = self._world.tables.whole_elsewhere(site, uuid)
            if source is not None:
                self._world.checks.happened("commit table: copied from another site")
                self._world.tables.copied(site, uuid)
                _copy(source, site.running.config.commit_table_dir / uuid)


class _Job:
    """What one writer wants to add, whatever version that becomes."""

    def __init__(self, rows: bytes) -> None:
        self._rows = rows

    def add(self, table: StagedTable) -> dict[str, Any]:
        """Write its file."""
        return table.add(self._rows)

    def staged(self, shown: ShownTable) -> _Staged:
        """Stage it as the version after what is shown."""
        return _Staged(shown, self)


class _Staged:
    """A staged commit."""

    def __init__(self, shown: ShownTable, job: _Job) -> None:
        directory = Path(shown.location.removeprefix("file:"))
        table = StagedTable(table_id=shown.uuid, directory=directory, location=shown.location)
        self.uuid = shown.uuid
        self.version = shown.state.version + 1
        timestamp = max(BEGIN + self.version, shown.state.timestamp + 1)
        commit = table.stage(self.version, job.add(table), timestamp=timestamp)
        self.body = table.update(commit)
        self.request = StagedCommitRequest(
            table_id=shown.uuid,
            proposed_version=self.version,
            timestamp=timestamp,
            file_name=commit["file-name"],
            file_size=commit["file-size"],
        )
        name: str = commit["file-name"]
        self.content = table.staged(name).read_bytes()
        self.identity = bytes.fromhex(name.split(".")[1].replace("-", ""))


def _copy(source: Path, target: Path) -> None:
    """Give each file that is missing its name once it is whole."""
    for path in sorted(source.rglob("*")):
        there = target / path.relative_to(source)
        if path.is_file() and not there.exists() and "_staged_commits" not in path.parts:
            there.parent.mkdir(parents=True, exist_ok=True)
            beside = there.with_name(f".{there.name}.copied")
            shutil.copyfile(path, beside)
            beside.rename(there)
