"""A Delta table that one site's jobs go on writing directly, brought to the other sites.

Each new version of its log becomes a transaction.  The id follows from the Delta table, the version
and the name, and each transaction expects the version of the log's table that the one before left.
So a version is brought once, whatever is killed and repeated, and a write by anybody else is
noticed.  What was brought is read from the log; a small file remembers it for when the log is cut.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import functions as F

from sparktxlog.api.adopting.row_adoption import adopt_rows, commit_in, transaction_id_of
from sparktxlog.api.adopting.source_table import SourceTable
from sparktxlog.api.adopting.version_changes import (
    VersionActions,
    added_columns,
    put_all,
    put_changes,
)
from sparktxlog.api.connect import TxLog
from sparktxlog.api.writing.transaction import SparkTransaction
from sparktxlog.delta.commit_files import commit_bytes, read_actions
from sparktxlog.delta.log_files import (
    TablePlace,
    has_commit,
    last_number,
    newest_version,
    store_of,
)
from sparktxlog.errors import (
    ConflictError,
    CorruptLogError,
    DivergedError,
    ExpiredError,
    InvalidRequestError,
    ObjectMissingError,
    StorageError,
    TxLogError,
)
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.model.ids import table_name
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.tables.table import VersionedTable
from sparktxlog.model.transactions.receipt import Receipt

#: Seconds between two looks for a new version, and after a failure that may pass.
_LOOK_S, _PAUSE_S = 0.1, 1.0
#: The same in a bucket: a look is two requests, which cost money.
_LOOK_IN_BUCKET_S = 5.0
_WAIT_S = 300.0
#: Adoptions of one version under one name that are looked for.
_ADOPTIONS = 10


class FollowState(msgspec.Struct, frozen=True, kw_only=True):
    """How far a table follows."""

    log_id: str
    #: UUID of the Delta table.
    table_id: str
    #: Its last version that is in the log.
    version: int
    #: Version of the log's table after that.
    log_version: int
    #: SHA-256 of the version's commit file, hexadecimal; empty = it was not there any more.
    commit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedVersion:
    """A version that was brought into the log."""

    version: int
    #: As Delta names it.
    operation: str
    #: How the log has it, for people; empty = it changed no row.
    became: str
    transaction_id: str = ""
    position: int | None = None
    #: From the commit of the version until it is ordered.
    seconds: float = 0.0

    def to_document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


class TableFollower:
    """Brings the versions of one Delta table into one table of the log.

    Args:
        log: At the site whose jobs write the table.
        name: Table of the log; one that is not there is adopted first.
        path: Directory of the Delta table, or its URL in a bucket, which is reached by the
            environment of this process.
        keys: Of a table that is adopted.
        state: File that remembers how far it came; default: `_sparktxlog/<name>.json` in the table,
            also in a bucket, a place that Delta leaves alone.
        overwrite: Begin by replacing the rows of the log's table by those of the newest version.
        tell: Takes a line for people at each step.
    """

    def __init__(
        self,
        log: TxLog,
        name: str,
        path: str,
        *,
        keys: Sequence[str] = (),
        state: Path | None = None,
        overwrite: bool = False,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._site = log.site
        self._name = table_name(name)
        self._tell = tell
        self._keys = tuple(keys)
        self._overwrites = overwrite
        self._log_id = str(log.site.home.get("/v1/info")["log_id"])
        #: As it was when its columns were read last.
        self._source = SourceTable.read(path, files=False)
        self._place, self._url = self._source.place, self._source.url
        store = store_of(self._place)
        #: Of the note on how far it came.
        self._notes = (store, f"_sparktxlog/{self._name}.json")
        if state is not None:
            self._notes = (DiskStore(state.parent), state.name)
        self._state: FollowState | None = None
        #: Version, and mark of the commit file that was compared last.
        self._seen = (-1, "")
        self._look_s = _LOOK_S if isinstance(self._place, Path) else _LOOK_IN_BUCKET_S

    @property
    def version(self) -> int:
        """Version of the Delta table that the log has; -1 = none yet."""
        return -1 if self._state is None else self._state.version

    def step(self) -> list[FollowedVersion]:
        """Bring all versions that there are; return them.

        Raises:
            DivergedError: Somebody else wrote to the log's table; the message says who (definite).
            SchemaMismatchError, InvalidRowsError, InvalidRequestError: A version cannot be brought
                (definite).
            ExpiredError: Versions are gone that were not brought (definite).
            TransportError, CommitStateUnknownError: Call it again.
        """
        brought = []
        if self._state is None:
            brought += self._begin()
        while (found := self._next()) is not None:
            brought.append(found)
        return brought

    def planned(self) -> list[str]:
        """Say what the first `step` would do, a sentence for each version; nothing is done.

        What stops it before it brings a version is raised as by `step`; rows are looked at only if
        the table would be adopted.
        """
        found = self._site.existing(self._name)
        newest = newest_version(self._place, self._source.version)
        if found is None:
            would = self._adopted(dry_run=True)
            return [f"version {would.version} would be adopted: {would.became}"]
        table = self._table()
        self._check_keys(table)
        if self._overwrites:
            return [f"the rows of table {self._name!r} would be replaced by version {newest}"]
        reached = (self._remembered(table) or self._recognised(table)).version
        self._check_not_gone(reached + 1)
        lines = []
        for version in range(reached + 1, newest + 1):
            actions = read_actions(self._place, version)
            if actions is None:
                break  # it is being written
            one = VersionActions.of(version, actions)
            if one.is_new_definition:
                added_columns(self._source_at(version), table)
            files = f"{len(one.adds):,} files added, {len(one.removes):,} removed"
            changes = files if one.adds or one.removes else "no row changes"
            lines.append(f"version {version} ({one.operation}) would be brought: {changes}")
        return lines

    def follow(self, stop: threading.Event) -> None:
        """Bring versions as they come until `stop` is set; errors that may pass are reported."""
        while not stop.is_set():
            pause_s = self._look_s
            try:
                for one in self.step():
                    self._tell(describe(one))
            except TxLogError as error:
                if not error.retryable or isinstance(error, ConflictError):
                    raise
                self._tell(f"{error.message}; trying again")
                pause_s = _PAUSE_S
            stop.wait(pause_s)

    # -- where it stands -------------------------------------------------------------------------

    def _begin(self) -> list[FollowedVersion]:
        if self._site.existing(self._name) is None:
            return [self._adopted()]
        table = self._table()
        self._check_keys(table)
        if self._overwrites:
            return self._replaced(table)
        self._state = self._remembered(table) or self._recognised(table)
        return []

    def _check_keys(self, table: VersionedTable) -> None:
        if self._keys and self._keys != table.keys:
            raise InvalidRequestError(
                f"table {self._name!r} has the keys {list(table.keys)}, not {list(self._keys)}",
                hint="Leave the keys out: it is there already.",
                field="keys",
            )

    def _adopted(self, *, dry_run: bool = False) -> FollowedVersion:
        source = self._source = SourceTable.at(self._place)
        done = adopt_rows(
            self._site,
            self._name,
            source,
            keys=self._keys,
            dry_run=dry_run,
            may_move=True,
            timeout_s=_WAIT_S,
            tell=self._tell,
        )
        if not dry_run:
            self._reach(source.version, done.position)
        return FollowedVersion(
            version=source.version,
            operation="adopted",
            became=f"{done.rows:,} rows",
            transaction_id=done.transaction_id,
            position=done.position,
            seconds=self._since(source.version),
        )

    def _replaced(self, table: VersionedTable) -> list[FollowedVersion]:
        source = self._source = SourceTable.at(self._place)
        source.check_possible()
        brought = self._followed_columns(None)
        part = f"overwrite-{self._table().version}"
        with self._transaction(part, None) as t:
            put_all(t, self._site, self._name, source)
            receipt = commit_in(t, _WAIT_S)
        self._reach(source.version, receipt.position)
        return [*brought, self._brought(source.version, "newest", "overwrite", receipt)]

    def _remembered(self, table: VersionedTable) -> FollowState | None:
        try:
            store, key = self._notes
            found = msgspec.json.decode(store.read(key), type=FollowState)
        except (ObjectMissingError, msgspec.MsgspecError):
            return None
        if (found.log_id, found.log_version) != (self._log_id, table.version):
            return None
        self._check_same(found, self._source.table_id)
        return found

    def _recognised(self, table: VersionedTable) -> FollowState:
        """Return the state that the last transaction of the log's table shows.

        Raises:
            DivergedError: It is none of this follower (definite).
        """
        writer, found = self._last_writer(table)
        newest = newest_version(self._place, self._source.version)
        parts = [f"overwrite-{table.version - 1}"]
        parts += [f"adopt-{number}" for number in range(_ADOPTIONS)]
        for version in range(newest, -1, -1):
            for part in (*parts, self._part("data", version), self._part("schema", version)):
                if found == transaction_id_of(self._source.table_id, version, self._name, part):
                    # For a version that also has rows, only the columns are in the log.
                    reached = version - 1 if part.startswith("schema") else version
                    return self._made(reached, table)
        raise self._foreign(writer)

    def _part(self, what: str, version: int) -> str:
        """Name a transaction of a version and its commit: another commit gets another name."""
        return f"{what}-{_digest(self._place, version)[:16]}"

    def _made(self, version: int, table: VersionedTable) -> FollowState:
        return FollowState(
            log_id=self._log_id,
            table_id=self._source.table_id,
            version=version,
            log_version=table.version,
            commit=_digest(self._place, version),
        )

    def _check_same(self, state: FollowState, table_id: str = "") -> None:
        """Refuse another table in the place of the followed one, also an older state of itself.

        Args:
            state: How far it was followed.
            table_id: Of the table that is there, as far as it is known.

        Raises:
            DivergedError: (definite).
        """
        there = store_of(self._place).find(commit_file_name(state.version))
        # None: Delta cleaned it up, or all of it is gone.
        seen = (state.version, "" if there is None else there.mark)
        if not table_id and seen == self._seen:
            return
        found = _digest(self._place, state.version)
        if not table_id and not found and has_commit(self._place, state.version + 1):
            newest = SourceTable.at(self._place, files=False)
            table_id = newest.table_id
        is_other = table_id not in ("", state.table_id)
        if is_other or (found and state.commit and found != state.commit):
            raise DivergedError(
                f"{self._url} is not the Delta table any more that table {self._name!r} "
                f"follows: version {state.version} of {state.table_id} was brought last, and is "
                f"another one now",
                hint="Somebody replaced the directory.  Bring the table that is there as a whole: "
                "sparktxlog table follow … --overwrite",
                table=self._name,
                path=self._url,
                version=state.version,
            )
        self._seen = seen

    def _reach(self, version: int, position: int | None) -> None:
        """Note that a version is in the log.

        Raises:
            DivergedError: Somebody else wrote to the log's table since (definite).
            StorageError: The note cannot be written; the version is in the log.
        """
        table = self._table()
        if position is not None and table.last_write > position:
            raise self._foreign(self._last_writer(table)[0])
        self._state = self._made(version, table)
        store, key = self._notes
        try:
            store.replace(key, msgspec.json.encode(self._state))
        except StorageError as error:
            if error.retryable or not error.definite:
                raise
            # Of the note only that is certain.
            raise StorageError(
                f"version {version} of the table that {self._name!r} follows is in the log, and "
                f"that cannot be noted: {error.message}",
                hint="Name a file of this machine with --state: the follower goes on after that "
                "version.",
                table=self._name,
                version=version,
            ) from error

    def _table(self) -> VersionedTable:
        found = self._site.definition(self._name, newest=True)
        assert isinstance(found, VersionedTable)
        return found

    def _last_writer(self, table: VersionedTable) -> tuple[str, str]:
        """Return who wrote to the log's table last, for people, and the transaction's id."""
        position = table.last_write
        queue = self._site.queue(at_least=position).where(F.col("position") == position)
        row = queue.select("transaction_id", "origin").first()
        if row is None:
            return f"the transaction at position {position}, which the log has no more", ""
        text = f"transaction {row.transaction_id} of site {row.origin}, at position {position}"
        return text, str(row.transaction_id)

    def _foreign(self, writer: str) -> DivergedError:
        return DivergedError(
            f"table {self._name!r} follows {self._url}, and was last written by {writer}",
            hint="One site writes it, and only where it is followed.  Stop that writer; then "
            "replace what it wrote by the followed table: sparktxlog table follow … --overwrite",
            table=self._name,
            path=self._url,
        )

    # -- the next version ------------------------------------------------------------------------

    def _next(self) -> FollowedVersion | None:
        """Bring the next version; None = there is none yet."""
        assert self._state is not None
        version = self._state.version + 1
        self._check_same(self._state)
        if not has_commit(self._place, version):
            if not self._seen[1]:  # the version before is gone, too
                self._check_not_gone(version)
            return None
        actions = read_actions(self._place, version)
        if actions is None:
            return None  # it is being written
        found = VersionActions.of(version, actions)
        if found.table_id:
            self._check_same(self._state, found.table_id)
        if found.is_new_definition:
            self._source = self._source_at(version)
            self._followed_columns(self._state.log_version)
        else:
            self._source = replace(self._source, log=replace(self._source.log, version=version))
        if not found.adds and not found.removes:
            self._reach(version, None)
            return FollowedVersion(version=version, operation=found.operation, became="")
        became = ""
        with self._transaction(self._part("data", version), self._state.log_version) as t:
            became = put_changes(t, self._site, self._name, self._source, found)
            # It may have been replaced while its files were read.
            self._check_same(self._state)
            receipt = self._commit(t)
        self._reach(version, receipt.position)
        return self._brought(version, found.operation, became, receipt)

    def _source_at(self, version: int) -> SourceTable:
        """Return the Delta table at a version, without its files.

        Raises:
            InvalidRequestError: A row table could not be like it (definite).
        """
        source = SourceTable.at(self._place, version, files=False)
        source.check_possible()
        return source

    def _check_not_gone(self, version: int) -> None:
        """Refuse to wait for a version that Delta has cleaned up, or that went back."""
        if has_commit(self._place, version - 1):
            return
        newest = last_number(self._place)
        if newest in (version - 1, version):
            return
        raise ExpiredError(
            f"{self._url} has versions up to {newest}, and version "
            f"{version} is gone, which table {self._name!r} has not followed yet",
            hint="Bring the newest version as a whole: sparktxlog table follow … --overwrite",
            table=self._name,
            version=version,
        )

    def _followed_columns(self, expected: int | None) -> list[FollowedVersion]:
        """Give the log's table the columns that its source got.

        Args:
            expected: Version of the log's table; None = whatever it has.
        """
        table = self._table()
        added = added_columns(self._source, table)
        if not added:
            return []
        with self._transaction(self._part("schema", self._source.version), expected) as t:
            t.alter_table(self._name, add=added)
            receipt = self._commit(t)
        version = self._source.version
        self._reach(version - 1, receipt.position)
        became = f"new columns {', '.join(added)}"
        return [self._brought(version, "columns", became, receipt)]

    def _transaction(self, part: str, expected: int | None) -> _Bringing:
        source = self._source
        made = transaction_id_of(source.table_id, source.version, self._name, part)
        t = SparkTransaction(self._site, transaction_id=made, first_wins=True, timeout=_WAIT_S)
        if expected is not None:
            t.expect_version(self._name, expected)
        return _Bringing(t)

    def _brought(
        self, version: int, operation: str, became: str, receipt: Receipt
    ) -> FollowedVersion:
        return FollowedVersion(
            version=version,
            operation=operation,
            became=became,
            transaction_id=receipt.transaction_id or "",
            position=receipt.position,
            seconds=self._since(version),
        )

    def _since(self, version: int) -> float:
        """Return for how long a version has been there; its file may be cleaned up."""
        found = store_of(self._place).find(commit_file_name(version))
        return 0.0 if found is None else round(time.time() - found.changed_s, 3)

    def _commit(self, t: SparkTransaction) -> Receipt:
        """Commit; errors as `commit_in`.

        Raises:
            DivergedError: Somebody else wrote to the log's table (definite).
        """
        try:
            return commit_in(t, _WAIT_S)
        except ConflictError as error:
            writer, _ = self._last_writer(self._table())
            raise self._foreign(writer) from error


class _Bringing:
    """Drops a transaction that is not committed in its block."""

    def __init__(self, t: SparkTransaction) -> None:
        self._t = t

    def __enter__(self) -> SparkTransaction:
        return self._t

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: object
    ) -> None:
        if raised is not None:
            self._t.__exit__(kind, raised, trace)


def _digest(table: TablePlace, version: int) -> str:
    """Return the SHA-256 of a version's commit file, empty if it is not there."""
    try:
        return hashlib.sha256(commit_bytes(table, version)).hexdigest()
    except CorruptLogError:
        return ""


def describe(one: FollowedVersion) -> str:
    """Return one sentence on a version that was brought."""
    if not one.became:
        return f"version {one.version} ({one.operation}) changed no row"
    return (
        f"version {one.version} ({one.operation}): {one.became}, position {one.position}, "
        f"{one.seconds:.1f} s after its commit"
    )
