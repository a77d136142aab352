"""The catalog of commit tables at this site: it stages, creates, loads, commits and drops them.

The log decides which commit becomes a version (P36).  This module checks what a client staged,
submits it with its files, and shows a version once the placer has placed it here.  So readers can
open every version they are shown, and a writer that lost a conflict can read the winning version.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid as uuids
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import structlog

from sparktxlog.codec.delta_catalog.catalog_answers import ShownTable, StorageCredential
from sparktxlog.codec.delta_catalog.catalog_requests import (
    CreateTableRequest,
    ProposedCommit,
    Update,
)
from sparktxlog.codec.delta_catalog.lockstep import check_changes, check_created
from sparktxlog.codec.delta_catalog.new_commits import read_new_commit
from sparktxlog.codec.delta_catalog.table_states import DeltaTableState
from sparktxlog.codec.submits.commit_requests import (
    SecuredFiles,
    committing,
    creating,
    dropping,
    renaming,
)
from sparktxlog.codec.submits.condition_requests import conflict_of, is_conflict
from sparktxlog.codec.submits.known_contents import Content
from sparktxlog.codec.submits.transactions import PreparedTransaction
from sparktxlog.delta.commit_contents import CommitContent, read_commit_file
from sparktxlog.delta.log_files import TablePlace
from sparktxlog.errors import (
    CommitRejectedError,
    CommitStateUnknownError,
    CorruptLogError,
    NameTakenError,
    NotOfferedError,
    RequirementError,
    StagedCommitError,
    StaleTimestampError,
    StorageError,
    TxLogError,
    UnknownTableError,
    VersionConflictError,
)
from sparktxlog.files.durability import storing
from sparktxlog.model.ids import check_new_name, full_table_name, transaction_id_to_text
from sparktxlog.model.tables.commit_table import (
    CommitTable,
    check_commit_table_name,
    commit_file_name,
    commit_file_prefix,
)
from sparktxlog.model.tables.groups import group_of_new_table
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.model.transactions.receipt import Level, Receipt
from sparktxlog.runtime.commit.acceptance import Submits
from sparktxlog.runtime.commit.cycle import CoreLoop
from sparktxlog.runtime.commit.file_repair import FileRepair
from sparktxlog.runtime.commit.run_fetching import RunFetcher
from sparktxlog.runtime.commit_tables.commit_placer import CommitPlacer
from sparktxlog.runtime.commit_tables.reader_tables import ReaderTables
from sparktxlog.runtime.commit_tables.rival_commits import PATIENCE_S
from sparktxlog.runtime.commit_tables.scheduled_checks import ScheduledChecks
from sparktxlog.runtime.commit_tables.schema_names import SchemaNames
from sparktxlog.runtime.commit_tables.site_places import places_of, vendor_of
from sparktxlog.runtime.commit_tables.table_fetcher import TableFetcher
from sparktxlog.runtime.commit_tables.table_giver import TableGiver
from sparktxlog.runtime.commit_tables.table_overview import TableOverview
from sparktxlog.runtime.commit_tables.table_records import TableRecords
from sparktxlog.runtime.commit_tables.table_recounts import TableRecounts
from sparktxlog.runtime.donors.copy_throttle import CopyThrottle
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.store_taking import StoreTaking

_log = structlog.get_logger("sparktxlog.catalog")
_T = TypeVar("_T")

#: Seconds that a commit may take until it is ordered; then its outcome is unknown.
COMMIT_TIMEOUT_S = 30.0
#: Names the store of the tables where it fails.
_STORE = "asking the store of commit tables"
#: Code → error of a client, for rejections of the fold other than conflicts.
_REJECTIONS = {kind.code: kind for kind in (StaleTimestampError, NameTakenError, UnknownTableError)}


class CommitCatalog:
    """The commit tables of this site; belongs to the event loop, its file work runs in threads."""

    def __init__(
        self,
        base: Foundation,
        core: CoreLoop,
        submits: Submits,
        files: FileRepair,
        fetcher: RunFetcher,
        throttle: CopyThrottle,
    ) -> None:
        self._base = base
        self._submits = submits
        self._rivals, self._owners = core.rivals, core.owners
        self._places = places = places_of(base.config, base.metrics)
        self._vendor = vendor_of(base.config)
        self.placer = placer = CommitPlacer(base, core.executor, files, places)
        records = TableRecords(base, core.executor, places)
        #: Gives peers what they lack, and fetches what this site lacks.
        self.giver = TableGiver(base, records, places, placer.versions, throttle)
        self.fetcher = TableFetcher(base, core.executor, fetcher, records, places)
        placer.on_missing, self.fetcher.on_fetched = self.fetcher.start, placer.look_again
        #: Recounts and mends them.
        self.recounts = TableRecounts(base, records, self.fetcher, places, placer.versions)
        self.schedule = ScheduledChecks(base, core.executor, self.recounts)
        self.reader_tables = ReaderTables(base, placer, places)
        #: What is shown of them.
        self.overview = TableOverview(base, placer, self.fetcher, self.recounts, self.reader_tables)
        self.schemas = SchemaNames(
            base.state.values,
            core.executor,
            lambda: chain(
                (table.name for table in base.master.commit_tables.values()),
                map(full_table_name, base.master.tables),
            ),
        )
        #: Tables that were given a place and not created yet.
        self._staged = base.budgets.kept(base.budgets.staged_tables, self._forget)
        #: Takes the store of the tables.
        self.taking = StoreTaking(base, _STORE, places.where(""), places.take)
        #: UUID → the lock of `turn`, while somebody holds it or waits for it.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # -- questions ---------------------------------------------------------------------------------

    async def load(self, schema: str, name: str) -> ShownTable:
        """Return a table at its newest version, once that is placed here.

        Raises:
            UnknownSchemaError, UnknownTableError: There is none (definite).
            CorruptLogError, StorageError: Its directory lacks a version, or cannot be read.
        """
        return await self.shown(self._found(schema, name))

    async def listed(self, schema: str, name: str) -> ShownTable:
        """Return a table for a list; one that is not placed here has no state.

        Raises:
            UnknownSchemaError, UnknownTableError: There is none (definite).
        """
        table = self._found(schema, name)
        try:
            return await self.shown(table)
        except StorageError:  # the status says it, and so does the answer to a request for it
            return self._at(table, None)

    def _found(self, schema: str, name: str) -> CommitTable:
        known = self.schemas.check(schema)
        table = self._base.master.commit_tables.named(f"{known}.{name}")
        if table is None:
            raise UnknownTableError(
                f"there is no commit table '{known}.{name[:80]}'", value=f"{known}.{name[:80]}"
            )
        return table

    async def shown(self, table: CommitTable) -> ShownTable:
        """Return a table at its version or a later one; errors as `load`."""
        return self._at(table, await self.placer.placed(table))

    def _at(self, table: CommitTable, placed: DeltaTableState | None) -> ShownTable:
        location = self._places.location(table.uuid)
        return ShownTable(name=table.name, uuid=table.uuid, location=location, placed=placed)

    def root(self, uuid: str) -> TablePlace:
        """Return where a table is, for those that only read it."""
        return self._places.root(uuid)

    # -- new tables --------------------------------------------------------------------------------

    async def stage(self, schema: str, name: str) -> tuple[str, str]:
        """Give a table that is to be created a UUID and a place; return both.

        Raises:
            InvalidNameError, NameTakenError: Nothing happened (definite).
            BusyError: Too many are staged and not created (definite).
        """
        full = self._free(schema, name)
        uuid = str(uuids.uuid4())
        self._staged.take(uuid, uuid)
        try:
            await self._run(uuid, self._places.make, uuid)
            await self._owners.take(uuid)
        except BaseException:
            self._staged.give(uuid, uuid)
            raise
        _log.info("commit table staged", table=full, uuid=uuid)
        return uuid, self._places.location(uuid)

    def _forget(self, uuid: str) -> asyncio.Future[tuple[Any, None]]:
        """Forget a place that is given and not used; what removes it goes on by itself."""
        return asyncio.gather(
            self._base.run_on_files(self._places.where(uuid), self._places.drop_unused, uuid),
            self._owners.release(uuid),
        )

    async def give_up(self, uuid: str) -> None:
        """Give up a staging table of which nobody heard; upkeep removes what is left of it."""
        self._staged.give(uuid, uuid)
        with suppress(TxLogError):
            await self._forget(uuid)

    async def credentials(self, uuid: str, *, writes: bool) -> tuple[StorageCredential, ...]:
        """Return credentials for a table's place; none if clients have their own.

        Raises:
            ForbiddenError: It is no table, and another token asked for the place (definite).
            StoreNotReadyError, StoreForbiddenError, LyingStoreError: None is given (definite).
            StoreUnavailableError: STS is out of reach.
        """
        if self._vendor is None:
            return ()
        if uuid not in self._base.master.commit_tables:
            # That of a dropped table is still there, and nobody's.
            self._owners.check_own(uuid)
        self.check_ready()
        # It works on no table: a service that does not answer keeps no thread of one.
        give = partial(self._vendor.give, uuid, writes=writes)
        given = await self._base.run_on_files(self._vendor.endpoint, give)
        _log.info("credentials given", uuid=uuid, writes=writes, key=given.keys.shown)
        return (
            StorageCredential(
                prefix=self._places.location(uuid),
                operation="READ_WRITE" if writes else "READ",
                config=dict(given.keys.catalog_config),
                expiration_time_ms=given.ends_ms,
            ),
        )

    def _free(self, schema: str, name: str) -> str:
        """Return the full name of a new table."""
        full = f"{self.schemas.of_new_table(schema)}.{name}"
        check_commit_table_name(full)
        check_new_name(name)
        group = group_of_new_table(full, None, self._base.master.tables)
        if group is not None:
            raise NotOfferedError(
                f"schema {schema!r} is of group {group.name!r}, and a commit table is in no group",
                hint="Make it in another schema, or make a row table.",
                field="schema",
                value=schema,
                group=group.name,
            )
        if self._base.master.commit_tables.named(full) is not None:
            raise NameTakenError(f"commit table {full!r} exists", value=full)
        return full

    async def is_staged(self, uuid: str) -> bool:
        """Return whether this node gave that UUID a place, which the requester may see.

        Raises:
            ForbiddenError: Another token asked for it (definite).
        """
        self._owners.check(uuid, writes=False)
        return await self._run(uuid, self._places.has, uuid)

    def name_at(self, uuid: str) -> str | None:
        """Return the name of the table in a place; None = there is none (yet)."""
        known = self._base.master.commit_tables.get(uuid)
        return None if known is None else known.name

    async def create(self, schema: str, request: CreateTableRequest) -> ShownTable:
        """Make a staged table one of the log; a second request is a repeat.

        Raises:
            StagedCommitError: Version 0 is missing, or not what the request says (definite).
            NameTakenError: The name is that of another table (definite).
            ForbiddenError: Another token asked for its place (definite).
            CommitStateUnknownError: It was not ordered in time.
        """
        uuid = self._places.uuid_at(request.location)
        if uuid not in self._base.master.commit_tables:  # a repeat is answered
            self.check_ready()
        if uuid is None or not await self.is_staged(uuid):
            raise UnknownTableError(
                f"location {request.location[:200]!r} was not given by this node",
                hint="Ask this site's node for a staging table, and write version 0 there.",
                field="location",
                value=request.location[:200],
            )
        if request.table_type != "MANAGED" or request.uniform is not None:
            raise NotOfferedError(
                "a commit table is MANAGED, and cannot be read as Iceberg",
                field="table-type",
                value=request.table_type[:40],
            )
        known = self._base.master.commit_tables.get(uuid)
        full = f"{self.schemas.of_new_table(schema)}.{request.name}"
        if known is None:
            full = self._free(schema, request.name)
            self._owners.check(uuid)
            await self._make_known(uuid, full, request)
        elif known.name != full:
            raise NameTakenError(f"the table at this location is {known.name!r}", value=full)
        self._staged.give(uuid, uuid)
        await self._owners.release(uuid)
        return await self.load(schema, request.name)

    async def _make_known(self, uuid: str, name: str, request: CreateTableRequest) -> None:
        """Order that a staged table is made; files that are on their way already stay there."""
        transaction_id = bytes.fromhex(uuid.replace("-", ""))
        first = await self._submits.repeated(
            Content(transaction_id), level=Level.ORDERED, timeout=COMMIT_TIMEOUT_S
        )
        if first is not None:
            _raise_if_rejected(first)
            return
        timestamp, files = await self._run(uuid, self._check_first, uuid, request, transaction_id)
        await self._order(creating(transaction_id, uuid, name, timestamp, files=files))

    def _check_first(
        self, uuid: str, request: CreateTableRequest, transaction_id: bytes
    ) -> tuple[int, SecuredFiles]:
        """Return the in-commit timestamp of version 0, and its files; runs in a thread."""
        with self._places.first(uuid) as raw:
            content, state = read_new_commit(raw, None, uuid, self._now_ms())
            check_created(request, state)
            most = self._base.config.inline_limit
            files = self._taken_in(uuid, 0, transaction_id, raw, content, most)
            return content.timestamp, replace(files, is_sync=state.is_sync)

    def _taken_in(
        self,
        uuid: str,
        version: int,
        transaction_id: bytes,
        raw: bytes,
        content: CommitContent,
        most_carried: int,
    ) -> SecuredFiles:
        """Take the files of a commit; what is ordered is what was taken.

        Large ones are linked into the payload store: the run is stamped once others have them
        (P1a).  Small ones are read: the run carries them, and becomes durable with them.  So what
        somebody writes into the table's directory does not stop the log.

        Args:
            most_carried: Bytes that the run may carry of it.

        Raises:
            StagedCommitError: One is missing or has another size (definite).
        """
        brought = self._places.check(uuid, content.files)
        prefix = commit_file_prefix(transaction_id, uuid)
        found = {
            prefix + file.path: self._places.file(uuid, file.path)
            for file in content.files
            if file.is_new
        }
        commit_file = prefix + commit_file_name(version)
        if len(raw) + brought > most_carried:
            if version == 0:
                # A power loss must leave no torn file in the place that the log's will have: its
                # writer made that of version 0 there; the node makes the later ones.
                self._places.force_first(uuid)
            return SecuredFiles(files=self._base.payloads.take_in({**found, commit_file: raw}))
        with storing(self._places.where(uuid)):
            contents = {name: file.read(brought) for name, file in found.items()}
        if sum(map(len, contents.values())) != brought:
            raise StagedCommitError(
                "files of the commit changed while they were taken", field="add.path"
            )
        contents[commit_file] = raw
        return SecuredFiles(
            files=tuple(
                StagedFile(
                    path=name,
                    size_bytes=len(found),
                    rows=0,
                    digest=hashlib.sha256(found).hexdigest(),
                )
                for name, found in contents.items()
            ),
            contents=contents,
        )

    # -- commits -----------------------------------------------------------------------------------

    async def update(self, schema: str, name: str, update: Update) -> ShownTable:
        """Commit a version of a table, or take note of what was published.

        Raises:
            UnknownTableError: There is no such table (definite).
            RequirementError: It is another one, or changed (definite).
            StagedCommitError: The staged commit is not what the request says (definite).
            VersionConflictError, StaleTimestampError: It takes no effect (definite).
            SynchroTimeoutError: The table is synchronous, and members are missing (definite).
            CommitStateUnknownError: It is not known whether it takes effect.
        """
        table = self._found(schema, name)
        if table.uuid != update.uuid:
            raise RequirementError(
                f"table {table.name!r} has UUID {table.uuid}, not {update.uuid[:40]}",
                field="assert-table-uuid",
                value=update.uuid[:40],
            )
        if update.commit is not None:
            async with self.turn(table.uuid):
                return await self._commit(table, update, update.commit)
        if update.changes:
            raise StagedCommitError(
                f"{', '.join(sorted(update.changes))[:120]} without add-commit",
                hint="What a table's log says changes with a commit that says it.",
                field="updates",
                value="add-commit is missing",
            )
        shown = await self.shown(table)
        self._check_backfilled(shown.state, update.backfilled)
        return shown

    def check_ready(self) -> None:
        """Check that what is ordered now can be placed here; asks nothing.

        Raises:
            StoreNotReadyError: The bucket has not been proved since the start (definite).
        """
        self._places.check_ready()

    def turn(self, uuid: str) -> asyncio.Lock:
        """Return the lock that is held while a version of a table is committed.

        One at a time: so what is checked against a version is ordered after that version.
        """
        return self._turns.setdefault(uuid, asyncio.Lock())

    async def _commit(
        self, table: CommitTable, update: Update, proposed: ProposedCommit
    ) -> ShownTable:
        """Commit a version; the table's lock is held."""
        uuid, transaction_id = table.uuid, proposed.transaction_id
        first = await self._submits.repeated(
            Content(transaction_id), level=Level.ORDERED, timeout=COMMIT_TIMEOUT_S
        )
        if first is not None:
            if first.outcome is None and first.position is not None:
                return await self._told_by_version(uuid, proposed, first)
            await self._raise_if_lost(uuid, first)
            return await self._committed_before(uuid, proposed)
        self.check_ready()
        await self._await_rivals(uuid)
        shown = await self.shown(self._base.master.commit_tables.get(uuid) or table)
        state = shown.state
        if await self.is_in(shown, proposed):
            return shown  # a repeat that comes so late that its id is forgotten
        self._check_etag(state, update.etag)
        self._check_backfilled(state, update.backfilled)
        check_next(shown, proposed)
        files = await self.secure(shown, proposed, transaction_id, update)
        began = self._base.loop.time()
        try:
            receipt = await self._submits.submit(
                committing(transaction_id, uuid, proposed.version, proposed.timestamp, files=files),
                level=Level.ORDERED,
                timeout=COMMIT_TIMEOUT_S,
            )
        except VersionConflictError:  # its version was taken before it was sent to anybody
            await self._winner_placed(uuid)
            raise
        self._rivals.took(self._base.loop.time() - began)
        await self._raise_if_lost(uuid, receipt)
        return await self.ordered(uuid, proposed.version)

    async def _await_rivals(self, uuid: str) -> None:
        """Wait, for a moment at most, until what other sites commit to a table is decided."""
        await self._rivals.await_turn(uuid)
        ordered, end = self._base.ordered, self._base.loop.time() + PATIENCE_S
        while self._rivals.is_awaited(uuid) and (left := end - self._base.loop.time()) > 0:
            await ordered.reach(ordered.value + 1, left)

    async def _raise_if_lost(self, uuid: str, receipt: Receipt) -> None:
        """Raise the error of a commit that lost, once the winner can be read here."""
        try:
            _raise_if_rejected(receipt)
        except CommitRejectedError:
            await self._winner_placed(uuid)
            raise

    async def _winner_placed(self, uuid: str) -> None:
        """Wait until the newest version of a table can be read here, unless it was dropped."""
        table = self._base.master.commit_tables.get(uuid)
        if table is not None:
            await self.ordered(uuid, table.version)

    async def is_in(self, shown: ShownTable, proposed: ProposedCommit) -> bool:
        """Return whether a version is this very commit; its bytes hold an id of its own.

        Raises:
            StagedCommitError: A version that is there already is not staged any more (definite).
        """

        def compared() -> bool:
            named = (shown.uuid, proposed.file_name, proposed.file_size)
            with self._places.staged(*named) as staged:
                return staged == self._places.published(shown.uuid, proposed.version)

        return proposed.version <= shown.state.version and await self._run(shown.uuid, compared)

    async def secure(
        self,
        shown: ShownTable,
        proposed: ProposedCommit,
        transaction_id: bytes,
        update: Update | None = None,
        *,
        tables: int = 1,
    ) -> SecuredFiles:
        """Check a staged commit and all that it adds; return its files.

        Args:
            update: What a request says that it changes; None = it says nothing of that.
            tables: How many tables share what a run may carry of the transaction.

        Raises:
            StagedCommitError: It is not what the request says, or cannot be a version (definite).
        """
        return await self._run(
            *(shown.uuid, self._secure, shown.uuid, shown.state),
            *(update, proposed, transaction_id, tables),
        )

    def _secure(
        self,
        uuid: str,
        before: DeltaTableState,
        update: Update | None,
        proposed: ProposedCommit,
        transaction_id: bytes,
        tables: int,
    ) -> SecuredFiles:
        with self._places.staged(uuid, proposed.file_name, proposed.file_size) as raw:
            content, after = read_new_commit(raw, before, uuid, self._now_ms())
            if content.timestamp != proposed.timestamp:
                raise StagedCommitError(
                    f"timestamp is {proposed.timestamp}, inCommitTimestamp of "
                    f"{proposed.file_name!r} is {content.timestamp}",
                    field="timestamp",
                    value=proposed.timestamp,
                )
            if update is not None:
                check_changes(update, before, content)
            most = self._base.config.inline_limit // tables
            files = self._taken_in(uuid, proposed.version, transaction_id, raw, content, most)
            return replace(files, is_sync=before.is_sync or after.is_sync)

    async def ordered(self, uuid: str, version: int) -> ShownTable:
        """Return a table whose version was ordered, once it is placed here."""
        table = self._base.master.commit_tables.get(uuid)
        if table is None:
            raise UnknownTableError(f"commit table {uuid} was dropped", value=uuid)
        try:
            return await self.shown(table)
        except (CorruptLogError, StorageError) as error:
            raise CommitStateUnknownError(
                f"version {version} of {table.name!r} is committed, and is not placed here: "
                f"{error.message}",
                hint="Ask again with the same file once the node can write the table.",
            ) from error

    async def _committed_before(self, uuid: str, proposed: ProposedCommit) -> ShownTable:
        """Answer a repeat of a commit that took effect."""
        shown = await self.ordered(uuid, proposed.version)
        if not await self._run(uuid, self._is_same, uuid, proposed):
            raise StagedCommitError(
                f"UUID {transaction_id_to_text(proposed.transaction_id)} was that of another "
                "commit",
                hint="Stage each commit under a UUID of its own.",
                field="file-name",
                value=proposed.file_name[:80],
            )
        return shown

    async def _told_by_version(
        self, uuid: str, proposed: ProposedCommit, first: Receipt
    ) -> ShownTable:
        """Answer a repeat that is ordered, with an outcome that no summary says.

        A version is one commit for ever: the one that is placed says whether it is this one.
        """
        shown = await self.ordered(uuid, proposed.version)
        with suppress(StagedCommitError):  # its file is gone: there is nothing to compare
            if await self.is_in(shown, proposed):
                return shown
            if proposed.version <= shown.state.version:
                raise VersionConflictError(
                    f"version {proposed.version} of {shown.name!r} is another commit",
                    table=shown.name,
                    version=shown.state.version,
                    position=first.position,
                )
        raise _unknown(first)

    def _is_same(self, uuid: str, proposed: ProposedCommit) -> bool:
        """Return whether a published version has the size and the timestamp that a request says."""
        raw = self._places.published(uuid, proposed.version) or b""
        same = len(raw) == proposed.file_size
        return same and read_commit_file(raw).timestamp == proposed.timestamp

    @staticmethod
    def _check_etag(state: DeltaTableState, etag: str | None) -> None:
        if etag is not None and etag != state.etag:
            raise RequirementError(
                f"the table's etag is {state.etag}, not {etag[:40]!r}: it was changed at version "
                f"{state.changed_version}",
                field="assert-etag",
                value=etag[:40],
            )

    @staticmethod
    def _check_backfilled(state: DeltaTableState, published: int | None) -> None:
        if published is not None and published > state.version:
            raise StagedCommitError(
                f"version {published} cannot be published, the newest one is {state.version}",
                field="latest-published-version",
                value=published,
            )

    # -- drops -------------------------------------------------------------------------------------

    async def drop(self, schema: str, name: str) -> None:
        """Drop a table; its files stay, with all versions before the drop.

        Raises:
            UnknownTableError: There is none (definite).
            CommitStateUnknownError: It was not ordered in time.
        """
        table = self._found(schema, name)
        receipt = await self._order(dropping(uuids.uuid4().bytes, table.uuid))
        await self.placer.place_dropped(table.uuid, receipt.position or 0)
        _log.info("commit table dropped", table=table.name, uuid=table.uuid)

    async def rename(self, schema: str, name: str, new_name: str) -> None:
        """Give a table another name in its schema; its UUID, files and versions stay.

        Raises:
            UnknownTableError, NameTakenError, InvalidNameError: Nothing happened (definite).
            CommitStateUnknownError: It was not ordered in time.
        """
        table = self._found(schema, name)
        full = f"{table.name.partition('.')[0]}.{new_name}"
        await self._order(renaming(uuids.uuid4().bytes, table.uuid, full))
        _log.info("commit table renamed", table=table.name, name=full, uuid=table.uuid)

    # -- the log -----------------------------------------------------------------------------------

    async def _order(self, transaction: PreparedTransaction) -> Receipt:
        """Submit a transaction; return once it is ordered and takes effect."""
        receipt = await self._submits.submit(
            transaction, level=Level.ORDERED, timeout=COMMIT_TIMEOUT_S
        )
        _raise_if_rejected(receipt)
        return receipt

    def _now_ms(self) -> int:
        """Return the wall clock, milliseconds since 1970 UTC."""
        return self._base.clock.wall() // 1_000

    async def _run(self, uuid: str, work: Callable[..., _T], *args: Any) -> _T:
        found: _T = await self._base.run_on_files(self._places.where(uuid), work, *args)
        return found


def check_next(shown: ShownTable, proposed: ProposedCommit) -> None:
    """Check that a commit wants to be the next version of a table.

    A later one could become the next version though nobody has checked it against that.  An earlier
    one would lose wherever it is ordered: another commit has its version.

    Raises:
        VersionConflictError: It does not (definite).
    """
    newest = shown.state.version
    if proposed.version != newest + 1:
        raise VersionConflictError(
            f"version {proposed.version} was asked for, the newest one of {shown.name!r} is "
            f"{newest}",
            table=shown.name,
            version=newest,
        )


def _raise_if_rejected(receipt: Receipt) -> None:
    """Raise the error of a transaction that is ordered and takes no effect.

    Raises:
        VersionConflictError, StaleTimestampError, NameTakenError, UnknownTableError: (definite).
        CommitStateUnknownError: It is not ordered, or nobody knows the outcome any more.
    """
    for rejection in receipt.rejections:
        if is_conflict(rejection):
            raise conflict_of(receipt, rejection)
        kind = _REJECTIONS.get(rejection.code, VersionConflictError)
        raise kind(rejection.text, position=receipt.position)
    if receipt.outcome != "committed":
        raise _unknown(receipt)


def _unknown(receipt: Receipt) -> CommitStateUnknownError:
    return CommitStateUnknownError(
        f"the outcome of transaction {receipt.transaction_id} is not known here",
        hint="Load the table: its newest version says whether the commit took effect.",
        transaction_id=receipt.transaction_id,
    )
