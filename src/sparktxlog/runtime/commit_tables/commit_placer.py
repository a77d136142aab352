"""Places ordered commits in the directories of their tables, at this site, in version order (P36).

What is ordered stands in the journal, with the files that came with it.  For each version the
files are placed, then its commit file; then it is shown.  The journal says so later, for all
versions that were placed meanwhile, once they are on the disk.  After a crash at any step the
next start does that step again: a version that is placed again changes nothing.  A version whose
files this site never had must be in the directory: somebody copied it from another site.  Versions
that one transaction gave to several tables are placed one after the other, and shown once all are.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from sparktxlog.codec.delta_catalog.table_states import DeltaTableState
from sparktxlog.delta.commit_contents import (
    CommitContent,
    LiveFiles,
    NeededFile,
    read_commit_file,
)
from sparktxlog.errors import (
    CorruptLogError,
    NotPlacedError,
    StagedCommitError,
    StorageError,
    StuckFilesError,
    TxLogError,
)
from sparktxlog.model.tables.commit_table import CommitTable, commit_file_name, commit_file_prefix
from sparktxlog.runtime.commit.executor import Executor
from sparktxlog.runtime.commit.file_repair import FileRepair
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.storage.commit_tables.site_tables import SiteTables
from sparktxlog.storage.interfaces import OrderedCommit, PutPlaced
from sparktxlog.supervision import foreseen

_log = structlog.get_logger("sparktxlog.placing")

#: Seconds that one wait for the next ordered transaction takes at most.
_WAIT_S = 3_600.0
#: Seconds after which a table that could not be placed is tried again.
_RETRY_S = 10.0
#: Seconds between two times that placed versions are brought to the disk and noted in the journal;
#: more if that takes long: so many times what it took, and at most that.  What is noted is the
#: newest version of each table.  A start reads again what was placed meanwhile.
_SETTLE_S, _RESTS, _LONGEST_S = 0.5, 8, 5.0
#: Seconds between two looks for what was ordered without a report of it, as by a summary.
_LOOK_S = 1.0
#: Most tables, and versions of each, that are placed in one go; how many tables that wait are a
#: reason to begin while others are being placed; most that may be placed at once.
_MOST_TABLES, _MOST_VERSIONS, _MANY, _MOST_AT_ONCE = 64, 64, 8, 4
_encode = msgspec.msgpack.Encoder().encode
_state_of = msgspec.msgpack.Decoder(DeltaTableState).decode


@dataclass(slots=True, kw_only=True)
class _Placed:
    """What was just placed of a table."""

    state: DeltaTableState
    #: What is to be synced.
    unsynced: set[str]
    #: Whether the versions' transactions gave something to other tables that is not noted as
    #: placed.
    owes_others: bool


@dataclass(slots=True)
class _Unsettled:
    """What is placed of a table, and not noted in the journal."""

    state: DeltaTableState
    paths: set[str]


class CommitPlacer:
    """Places commits; belongs to the event loop, its file work runs in threads."""

    def __init__(
        self, base: Foundation, executor: Executor, files: FileRepair, places: SiteTables
    ) -> None:
        self._base = base
        self._executor = executor
        self._files = files
        self._places = places
        #: UUID → the table at its newest version that is placed.
        self._states: dict[str, DeltaTableState] = {}
        #: By UUID; what a crash takes away of it is placed again.
        self._unsettled: dict[str, _Unsettled] = {}
        self._placed_some = asyncio.Event()
        #: UUID → up to which version all that its transactions gave to other tables is placed, too.
        self._whole_up_to: dict[str, int] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: set[asyncio.Task[None]] = set()
        #: UUID → version that was ordered and is to be placed; how many are placing some.
        self._waiting: dict[str, int] = {}
        self._placing = 0
        #: UUID → up to which version the commit files are kept, since the start.
        self._kept_to: dict[str, int] = {}
        #: UUID → why the last attempt failed.
        self._failed: dict[str, TxLogError] = {}
        self._retries: dict[str, asyncio.TimerHandle] = {}
        #: UUID → version up to which it must be placed to have all that was ordered before this
        #: start, or came with a summary; None = not known yet.
        self._owed: dict[str, int] | None = None
        #: UUID → the newest version that is placed, of all tables.
        self.versions: dict[str, int] = {}
        #: Tables that may have versions which are not placed, and the position of the newest table
        #: that somebody looked at: all others are placed up to their versions.
        self._unplaced: set[str] = set()
        self._looked_at = -1
        #: Called with UUID, first and last version that a directory lacks.
        self.on_missing: Callable[[str, int, int], None] = lambda uuid, first, last: None
        executor.on_commits = self._ordered

    # -- questions ---------------------------------------------------------------------------------

    async def placed(self, table: CommitTable) -> DeltaTableState:
        """Return a table at its version or a later one, once its transactions are placed here.

        Raises:
            NotPlacedError: This site never had the files of a version, or lost them; also of
                another table, if one transaction gave a version to both.
            CorruptLogError: The directory has other bytes than the log.
            StorageError: The disk fails.
        """
        state = self._states.get(table.uuid)
        if state is None or state.version < table.version:
            # What the core ordered a moment ago may not be in the journal yet.
            await self._base.ordered.reach(table.position, _WAIT_S)
            state = await self._place_all(table.uuid, table.version)
        whole = self._whole_up_to.get(table.uuid, -1)
        if whole < state.version:
            await self._place_others(table.uuid, whole, state.version)
        return state

    async def _place_others(self, uuid: str, after: int, version: int) -> None:
        """Place what the transactions of some versions of a table gave to other tables."""
        waiting = self._base.journal.read_unplaced_of_others
        tables = self._base.master.commit_tables
        for other, needed in await self._base.run_blocking(waiting, uuid, after, version):
            if other in tables and not self._shows(other, needed):
                await self._place_all(other, needed)  # nobody reads one that is dropped
        self._whole_up_to[uuid] = max(version, self._whole_up_to.get(uuid, -1))

    async def place_dropped(self, uuid: str, position: int) -> None:
        """Place what a table had before it was dropped at a position, where that is possible."""
        await self._base.ordered.reach(position, _WAIT_S)
        await self._guarded(uuid, 0)

    def failures(self) -> dict[str, TxLogError]:
        """Return the tables that could not be placed, by UUID, and why."""
        tables = self._base.master.commit_tables
        return {uuid: error for uuid, error in self._failed.items() if uuid in tables}

    def lacking(self) -> set[str]:
        """Return the tables of which this site lacks a version, or cannot place one.

        A version that was ordered since the start came with its files: while it is being placed it
        is not lacking.
        """
        tables = self._base.master.commit_tables
        if self._owed is None:
            return set(tables)
        for uuid in [uuid for uuid, version in self._owed.items() if self._shows(uuid, version)]:
            del self._owed[uuid]
        return {*filter(tables.__contains__, self._owed), *self.failures()}

    def behind(self) -> dict[str, int]:
        """Return how many versions of each table are not placed; UUID → number, of those with some.

        Each call looks only at tables that changed since the last one, or were behind then.
        """
        tables = self._base.master.commit_tables
        changed = tables.changed_after(self._looked_at)
        if changed:
            self._looked_at = changed[0].position
        known = (tables.get(uuid) for uuid in self._unplaced.union(one.uuid for one in changed))
        lags = {one.uuid: self.lag_of(one) for one in known if one is not None}
        found = {uuid: lag for uuid, lag in lags.items() if lag}
        self._unplaced = set(found)
        return found

    def lag_of(self, table: CommitTable) -> int:
        """Return how many versions of a table are not placed."""
        return max(0, table.version - self.versions.get(table.uuid, -1))

    def look_again(self, uuid: str) -> None:
        """Place a table that was changed from outside, or fetched."""
        self._start(uuid)

    # -- following the log -------------------------------------------------------------------------

    async def watch(self) -> None:
        """Place what waits since before the start, or came with a summary; until cancelled."""
        after, ordered, master = 0, self._base.ordered, self._base.master
        placed = await self._base.run_blocking(self._base.journal.read_placed_versions)
        gone = set[str]()
        with suppress(StorageError):  # what does not answer is not gone; each is looked at in use
            gone = await self._base.run_on_files("", self._gone, placed)
        self.versions.update({u: v for u, v in placed.items() if u not in gone} | self.versions)
        for uuid in gone & master.commit_tables.keys():
            self._start(uuid)
        tables = master.commit_tables.values()
        self._owed = {
            one.uuid: one.version for one in tables if self.versions.get(one.uuid, -1) < one.version
        }
        while not self._base.ending.is_set():
            seen = ordered.value
            try:
                if master.commit_tables or not after:
                    waiting = self._base.journal.read_unplaced
                    for uuid, version in await self._base.run_blocking(waiting, after):
                        if not self._shows(uuid, version):
                            self._start(uuid, version)
            except StorageError as error:
                _log.error("what waits to be placed cannot be read", reason=str(error))
                await asyncio.sleep(_RETRY_S)
                continue
            after = seen
            await ordered.reach(seen + 1, _WAIT_S)
            await asyncio.sleep(_LOOK_S)  # what is ordered here was reported, and is placed by now
        await (
            self._base.loop.create_future()
        )  # a task that ends before it is cancelled is a failure

    def _gone(self, placed: Mapping[str, int]) -> set[str]:
        """Return placed tables that are not on the disk: it may be another one; blocks."""
        return {
            uuid for uuid, version in placed.items() if not self._places.is_published(uuid, version)
        }

    def _ordered(self, tables: Sequence[CommitTable]) -> None:
        """Place versions that were just ordered."""
        for table in tables:
            if not table.is_dropped and not self._shows(table.uuid, table.version):
                self._waiting[table.uuid] = table.version
        self._place_waiting()

    def _place_waiting(self) -> None:
        """Begin to place what waits, unless others are at it: then it gathers for one thread."""
        while self._waiting and self._placing < _MOST_AT_ONCE and not self._base.ending.is_set():
            if self._placing and len(self._waiting) < _MANY:
                return
            some = list(self._waiting)[:_MOST_TABLES]
            wanted = {uuid: self._waiting.pop(uuid) for uuid in some}
            self._placing += 1
            self._keep_task(self._place_several(wanted))

    async def _place_several(self, wanted: Mapping[str, int]) -> None:
        """Place versions of several tables in one thread, as far as their runs carried all files.

        A table that this cannot do, or that somebody else is placing, goes its own way.
        """
        mine = dict[str, DeltaTableState]()
        for uuid in wanted:
            if uuid in self._states and not self._turns[uuid].locked() and not self._hangs(uuid):
                await self._turns[uuid].acquire()  # it is free: this gives nobody else a turn
                mine[uuid] = self._states[uuid]
        try:
            placed: dict[str, _Placed] = {}
            if mine:
                placed = await self._base.run_on_files("", self._place_carried, mine)
            for uuid, one in placed.items():
                self._took(uuid, one)
                if self._shows(uuid, wanted[uuid]):
                    self._failed.pop(uuid, None)
        except StuckFilesError:
            pass  # each goes its own way, and one of them hangs
        except Exception:  # noqa: BLE001
            _log.exception("placing failed unexpectedly", tables=sorted(mine))
        finally:
            for uuid in mine:
                self._turns[uuid].release()
            for uuid, version in wanted.items():
                if not self._shows(uuid, version):
                    self._start(uuid, version)
            self._placing -= 1
            self._place_waiting()

    async def close(self) -> None:
        """Stop; what is under way is done again after the next start."""
        for retry in self._retries.values():
            retry.cancel()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def settle(self) -> None:
        """Note what is placed in the journal, now and then; until cancelled."""
        while True:
            await self._placed_some.wait()
            self._placed_some.clear()
            began = self._base.loop.time()
            hanging = {u: one for u, one in self._unsettled.items() if self._hangs(u)}
            taken = {u: one for u, one in self._unsettled.items() if u not in hanging}
            self._unsettled = hanging
            if hanging:
                self._base.loop.call_later(_RETRY_S, self._placed_some.set)
            paths = set[str]().union(*(one.paths for one in taken.values()))
            try:
                # The names in the tables' directories, each directory once for all versions.  And
                # the bytes, but for those of the payload store, which are durable.
                await self._base.run_on_files("", self._places.sync, paths)
                newest = {uuid: one.state.version for uuid, one in taken.items()}
                await self._base.run_on_files("", self._keep, newest)
            except TxLogError as error:
                for uuid, one in taken.items():
                    self._fail(uuid, error)
                    self._note(uuid, self._states[uuid], one.paths)
                await asyncio.sleep(_RETRY_S)
                continue
            await self._executor.write(
                [
                    PutPlaced(uuid=uuid, version=one.state.version, state=_encode(one.state))
                    for uuid, one in taken.items()
                ]
            )
            took = self._base.loop.time() - began
            await asyncio.sleep(max(_SETTLE_S, min(_RESTS * took, _LONGEST_S)))

    def _keep(self, newest: dict[str, int]) -> None:
        """Keep the commit files of tables for sites that come later; blocks."""
        for uuid, version in newest.items():
            first = self._kept_to.get(uuid)
            versions = None if first is None else range(first + 1, version + 1)
            self._places.keep_commits(uuid, versions)
            self._kept_to[uuid] = version

    def _note(self, uuid: str, state: DeltaTableState, unsynced: set[str]) -> None:
        """Show a version, whose files are to be settled."""
        self._states[uuid] = state
        self.versions[uuid] = state.version
        before = self._unsettled.get(uuid)
        paths = unsynced if before is None else before.paths | unsynced
        self._unsettled[uuid] = _Unsettled(state, paths)
        self._placed_some.set()

    def _place_of(self, uuid: str) -> str:
        return self._places.where(uuid)

    def _hangs(self, uuid: str) -> bool:
        """Return whether work on a table's files does not come back."""
        kept = self._places.kept_commit(uuid, 0).path.rpartition("/")[0]
        return any(map(self._base.filers.hangs_at, (self._place_of(uuid), kept)))

    def _shows(self, uuid: str, version: int) -> bool:
        state = self._states.get(uuid)
        return state is not None and state.version >= version

    def _start(self, uuid: str, version: int = 0) -> None:
        if not self._base.ending.is_set():
            # It waits for its turn: one that is under way may not have seen the newest version.
            self._keep_task(self._guarded(uuid, version))

    def _keep_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, uuid: str, version: int) -> None:
        try:
            await self._place_all(uuid, version)
        except TxLogError:
            pass  # the status says it, and it is tried again
        except Exception:  # noqa: BLE001
            _log.exception("placing failed unexpectedly", uuid=uuid)

    async def _place_all(self, uuid: str, version: int) -> DeltaTableState:
        """Place a table up to a version, 0 = up to all that the journal knows."""
        async with self._turns[uuid]:
            if version and self._shows(uuid, version):
                return self._states[uuid]  # somebody else placed it meanwhile
            try:
                state = await self._caught_up(uuid, version)
            except Exception as error:
                self._fail(uuid, foreseen(error))
                raise
        self._failed.pop(uuid, None)
        return state

    def _fail(self, uuid: str, error: TxLogError) -> None:
        if uuid not in self._failed:
            _log.error("commit table is not placed", uuid=uuid, reason=str(error))
        self._failed[uuid] = error
        if (retry := self._retries.pop(uuid, None)) is not None:
            retry.cancel()
        if uuid in self._base.master.commit_tables:  # nobody asks for one that is dropped
            self._retries[uuid] = self._base.loop.call_later(_RETRY_S, self._start, uuid)
            if "first" in error.fields:
                self.on_missing(uuid, error.fields["first"], error.fields["last"])

    # -- one table ---------------------------------------------------------------------------------

    async def _caught_up(self, uuid: str, version: int) -> DeltaTableState:
        journal = self._base.journal
        state, place = self._states.get(uuid), self._place_of(uuid)
        if state is None:
            state = await self._base.run_on_files(place, self._kept, uuid)
            if state is None:
                self.versions.pop(uuid, None)
                self._unplaced.add(uuid)
        placed: dict[str, _Placed]
        placed = await self._base.run_on_files(place, self._place_carried, {uuid: state})
        if uuid in placed:
            self._took(uuid, placed[uuid])
            state = placed[uuid].state
            if state.version >= version > 0:
                return state
        after = -1 if state is None else state.version
        commits = await self._base.run_blocking(journal.read_ordered_commits, uuid, after)
        known = {commit.version: commit for commit in commits}
        version = max(version, *known, 0)
        while state is None or state.version < version:
            following = 0 if state is None else state.version + 1
            commit = known.get(following)
            if commit is not None and commit.files:
                if not commit.is_carried:
                    await self._whole(commit)
                step = await self._base.run_on_files(place, self._place, commit, state)
            else:
                later = (v for v, one in known.items() if one.files and v > following)
                until = min(later, default=version + 1)
                step = await self._base.run_on_files(
                    place, self._found, uuid, state, until - 1, known
                )
            state = step[0]
            self._note(uuid, *step)
        self._states[uuid] = state
        self.versions[uuid] = state.version
        return state

    def _took(self, uuid: str, one: _Placed) -> None:
        """Show versions that were placed."""
        self._note(uuid, one.state, one.unsynced)
        if not one.owes_others:
            self._whole_up_to[uuid] = max(one.state.version, self._whole_up_to.get(uuid, -1))

    def _place_carried(self, states: Mapping[str, DeltaTableState | None]) -> dict[str, _Placed]:
        """Place the next versions of tables, as long as their runs carried all files; blocks.

        All that is needed is in the journal, so one thread does it all.  What fails is left to the
        placing of one table: that says why.
        """
        after = dict[str, tuple[int, int]]()
        for uuid, state in states.items():
            version = -1 if state is None else state.version
            after[uuid] = version, min(version, self._whole_up_to.get(uuid, -1))
        placed = dict[str, _Placed]()
        found = self._base.journal.read_to_place(after, _MOST_VERSIONS)
        for uuid, (commits, owes_others) in found.items():
            state, unsynced = states[uuid], set[str]()
            with suppress(TxLogError):
                for commit, contents in commits:
                    state, more = self._place(commit, state, contents)
                    unsynced |= more
            if state is not None and state is not states[uuid]:
                placed[uuid] = _Placed(state=state, unsynced=unsynced, owes_others=owes_others)
        return placed

    def _kept(self, uuid: str) -> DeltaTableState | None:
        """Return what the journal says is placed, None = nothing, or it is gone; blocks."""
        kept = self._base.journal.read_placed(uuid)
        state = None if kept is None else _state_of(kept)
        if state is None or self._places.published(uuid, state.version) is None:
            return None
        return state

    async def _whole(self, commit: OrderedCommit) -> None:
        """Check the files of a commit in the payload store; peers give what is lost or damaged."""
        lost = await self._files.repaired(commit.files)
        if lost:
            path, reason = next(iter(lost.items()))
            raise NotPlacedError(
                f"version {commit.version} of commit table {commit.uuid} cannot be placed: {path}: "
                f"{reason}",
                hint="Start a node that has the file; this one then goes on.",
                uuid=commit.uuid,
                version=commit.version,
            )

    def _place(
        self,
        commit: OrderedCommit,
        before: DeltaTableState | None,
        carried: Iterable[bytes] | None = None,
    ) -> tuple[DeltaTableState, set[str]]:
        """Place the files of a version, then its commit file; return what is to be synced; blocks.

        The files are whole and durable in the journal or the payload store: they were verified and
        synced there when they came, before this was reported to the log.
        """
        uuid, version, places = commit.uuid, commit.version, self._places
        prefix = commit_file_prefix(commit.transaction_id, uuid)
        paths = [file.path.removeprefix(prefix) for file in commit.files]
        files: Iterable[str | bytes]
        with ExitStack() as at_hand:
            if commit.is_carried:
                files = carried or self._base.journal.read_carried(uuid, version)
            else:
                payloads = self._base.payloads
                files = [str(at_hand.enter_context(payloads.at_hand(f))) for f in commit.files]
            sources = dict(zip(paths, files, strict=True))
            commit_file = sources.pop(commit_file_name(version))
            raw = commit_file if isinstance(commit_file, bytes) else places.read(commit_file)
            content = read_commit_file(raw)
            unsynced = places.place(uuid, sources)
            there = [file for file in content.files if file.path not in sources]
            self._check_files(uuid, range(version, version + 1), there)
            return _after(before, content), unsynced | places.publish(uuid, version, commit_file)

    def _found(
        self,
        uuid: str,
        state: DeltaTableState | None,
        last: int,
        known: dict[int, OrderedCommit],
    ) -> tuple[DeltaTableState, set[str]]:
        """Return the state after versions whose files did not come here, from the directory.

        Nobody has synced them: the person or program that copied them need not have done so.
        """
        first, live = 0 if state is None else state.version + 1, LiveFiles()
        for version in range(first, last + 1):
            raw = self._places.published(uuid, version)
            if raw is None:
                problem = f"version {version} is missing"
                raise self._missing(uuid, first, range(version, last + 1), problem)
            try:
                content = read_commit_file(raw)
                found = _after(state, content)
                found.check(uuid)
            except StagedCommitError as error:
                problem = f"version {version} cannot be read: {error.message}"
                raise self._missing(uuid, first, range(version, last + 1), problem) from error
            if version in known and known[version].timestamp != content.timestamp:
                raise CorruptLogError(
                    f"version {version} of commit table {uuid} in {self._places.location(uuid)} is "
                    f"another commit than the log has: its timestamp is {content.timestamp}, not "
                    f"{known[version].timestamp}",
                    hint="The node fetches the right one from a peer.  Or move the directory away, "
                    "and copy it from another site.",
                    uuid=uuid,
                    first=first,
                    last=last,
                )
            live.follow(content)
            state = found
        self._check_files(uuid, range(first, last + 1), live.needed.values())
        assert state is not None, "version 0 was just read"
        unsynced = self._places.place(uuid, {})
        return state, unsynced | self._places.found(
            uuid, range(first, last + 1), live.needed.values()
        )

    def _check_files(self, uuid: str, versions: range, files: Iterable[NeededFile]) -> None:
        try:
            self._places.check(uuid, files)
        except StagedCommitError as error:
            raise self._missing(uuid, versions[0], versions, error.message) from error

    def _missing(self, uuid: str, first: int, asked: range, problem: str) -> NotPlacedError:
        table = self._base.master.commit_tables.get(uuid)
        name = uuid if table is None else table.name
        span = f"{asked[0]}" if len(asked) == 1 else f"{asked[0]} to {asked[-1]}"
        return NotPlacedError(
            f"commit table {name!r} lacks versions at this site: {span}; {problem}",
            hint="A peer that has them gives them, and the node goes on by itself; `sparktxlog "
            f"status` shows how far it is.  Or copy the table's directory {uuid} from "
            f"commit-table-dir of another site to {self._places.location(uuid)}, with a tool that "
            "writes each file under another name first, like rsync.",
            uuid=uuid,
            table=name,
            first=first,
            last=asked[-1],
        )


def _after(state: DeltaTableState | None, content: CommitContent) -> DeltaTableState:
    return DeltaTableState.first(content) if state is None else state.after(content)
