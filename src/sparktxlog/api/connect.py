"""`connect` makes a `TxLog`, the object that users work with, of a Spark session and a node."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeVar, overload

from sparktxlog.api.adopting.row_adoption import RowAdoption, adopt_rows
from sparktxlog.api.adopting.row_release import RowRelease, release_rows
from sparktxlog.api.adopting.source_table import SourceTable
from sparktxlog.api.batches_of_transactions import GroupedBatch, GroupedReceipt, submit_runs
from sparktxlog.api.datasource import register_format
from sparktxlog.api.deciding import decision, send_mark
from sparktxlog.api.frame_staging import WRITER_SETTINGS, SignatureExpressions, StagingPlace
from sparktxlog.api.given_data import Columns, Rows
from sparktxlog.api.inline_worker import InlineWorker
from sparktxlog.api.long_steps import long_step
from sparktxlog.api.nodes import Nodes, check_version, submit_prepared
from sparktxlog.api.operations import Commits, Isolation, made_for_newest
from sparktxlog.api.reading.at_least import LeastPosition, come_after, least_position
from sparktxlog.api.reading.replica_snapshot import Snapshot, not_applied
from sparktxlog.api.reading.restore_point_reading import snapshot_at, table_at
from sparktxlog.api.reading.state_frames import StateFrames
from sparktxlog.api.rows_to_transactions import GroupedTransactions
from sparktxlog.api.session import check_has_jvm
from sparktxlog.api.shared_store import Staging, staging_place
from sparktxlog.api.transaction import SparkTransaction
from sparktxlog.codec.condition_requests import is_conflict
from sparktxlog.codec.requests import microseconds, parse_level
from sparktxlog.codec.transactions import PreparedTransaction, Rollback, Session
from sparktxlog.errors import (
    CommittedNotAppliedError,
    ConfigError,
    ConflictError,
    InvalidRequestError,
    NotAppliedError,
    TxLogError,
    UnknownTableError,
    VersionConflictError,
)
from sparktxlog.health.cluster_status import ClusterStatus
from sparktxlog.http.catalog_link import CatalogLink
from sparktxlog.http.link import Http
from sparktxlog.model.ids import table_name, transaction_id_from_text
from sparktxlog.model.operation import OperationKind
from sparktxlog.model.receipt import LEVEL_RANK, Level, Receipt
from sparktxlog.model.shown import html_table
from sparktxlog.model.table import TableDefinition
from sparktxlog.model.table_kind import TableDescription, TableKind
from sparktxlog.worker.apply.worker_session import check_digits, has_jvm
from sparktxlog.worker.commit_tables.delta_reading import newest_version, read_plain_table
from sparktxlog.worker.commit_tables.table_adoption import (
    ADOPTION_TIMEOUT_S,
    Adoption,
    FileWay,
    adopt,
)
from sparktxlog.worker.commit_tables.table_release import TableRelease, release

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparktxlog.api.reading.at_least import AtLeast, Seen

_log = logging.getLogger(__name__)
_Made = TypeVar("_Made")

#: The meaning of rows must not depend on the session that commits them.
_SESSION = {"spark.sql.session.timeZone": "UTC"} | WRITER_SETTINGS


def connect(
    spark: SparkSession,
    url: str | Sequence[str],
    token: str | None = None,
    *,
    apply: Literal["inline"] | None = None,
    session: str | None = None,
    timeout: float = 60.0,
    ca_file: str | None = None,
    staging: Staging = "auto",
    rollback: Rollback = "session",
) -> TxLog:
    """Connect a Spark session with a node of the log.

    Checks that the node answers and whether node, driver and executors see one payload store, sets
    the session's time zone to UTC and how it writes Parquet files, and registers the
    data source `txlog`.

    With several URLs of one log, the first node that takes transactions is the session's *home*,
    whose payload store and tables it uses.  If a node is lost during a commit, the others are asked
    for the outcome, or the transaction is submitted there under the same id.  Staged files are
    bound to the home: if it is lost, no other node can take them, and a commit that no other node
    knows ends as UNKNOWN.

    Args:
        spark: The session whose DataFrames are committed.
        url: The node's, such as `http://127.0.0.1:7070`; several as a list, or with commas.
        token: Client token, where the node asks for one.
        apply: "inline": this session also applies its commits, instead of a worker.
        session: Commits of one session are ordered as they were submitted (protocol P1a);
            default: one for each call.
        timeout: Seconds that a commit waits for its level by default.
        ca_file: Authority of certificates (https), at driver and executors; else as of `Client`.
        staging: How executors hand over files of rows: "shared", they write into the payload store
            of the node, which they share; "http", they upload them to the node; "auto", "shared"
            if a file on that way is seen at all ends, else "http".
        rollback: "session": with a transaction that is withdrawn go those that the session
            committed after it, `SessionRolledBackError`; "transaction": they go on.

    Raises:
        UnreachableError: No node answers there (definite).
        UnauthorizedError: The token is missing or wrong (definite).
        PayloadStoreError: `staging="shared"` or `apply="inline"`, and the payload store is not
            shared; else, executors do not reach the node; the message names both (definite).
        ConfigError: `apply` or `staging` has a wrong value, or the node has another version.
        InvalidRequestError: `apply="inline"` with several URLs or over Spark Connect; or the JVM's
            language has digits of its own (definite).
    """
    own = Session(session or str(uuid.uuid4()), rollback)
    link = Nodes(url, token=token, ca_file=ca_file)
    _check_before(apply, spark, link)
    home, info = link.choose()
    check_version(str(info["version"]), home.url)
    for name, value in _SESSION.items():
        before = spark.conf.get(name, None)
        if before != value:
            _log.info("set %s to %s for this session (was %s)", name, value, before)
            spark.conf.set(name, value)
    place = staging_place("shared" if apply and staging == "auto" else staging, spark, info, home)
    log = TxLog(spark, link, home, place, session=own, timeout_s=timeout)
    urls, way = ",".join(link.urls), "http" if place.uploads else "shared"
    register_format(spark, url=urls, token=token, ca_file=home.ca_file, staging=way)
    if apply == "inline":
        log.worker = InlineWorker(spark, home)
    return log


def _check_before(apply: str | None, spark: SparkSession, link: Nodes) -> None:
    if has_jvm(spark):
        check_digits(spark)
    if apply not in (None, "inline"):
        raise ConfigError(
            f"apply={apply!r} is unknown", hint="Use apply='inline', or leave it out."
        )
    if apply == "inline":
        worker = "Leave it out, and let a worker apply: ./spark-submit.sh jobs/apply.py --follow."
        check_has_jvm(spark, "apply='inline'", worker)
    if apply == "inline" and len(link) > 1:
        raise InvalidRequestError("apply='inline' works with one node only", hint="Give one URL.")


class TxLog(Commits[Rows, Columns], StateFrames):
    """The log, as a Spark session uses it; made by `connect`.

    Every commit returns a receipt once its level is reached.  Levels in rising order: `accepted`
    (durable at this node), `acquired` (durable at the quorum), `ordered` (has its position, the
    default), `applied` (visible in this site's tables), `applied(k)` (at k sites).  The receipt of
    a transaction that is ordered but not applied in time says `late`.
    """

    def __init__(
        self,
        spark: SparkSession,
        link: Nodes,
        home: Http,
        store: StagingPlace,
        *,
        session: Session,
        timeout_s: float,
    ) -> None:
        self.spark = spark
        self.store = store
        self.expressions = SignatureExpressions()
        #: The worker of `apply="inline"`, else None.
        self.worker: InlineWorker | None = None
        #: End of this log's last commit in the synchronized queue, 0 = none yet.
        self.last_position = 0
        self._link = link
        #: The node whose payload store and tables the session uses.
        self.home = home
        self._session = session
        self._timeout_s = timeout_s
        self._definitions: dict[str, TableDefinition] = {}

    @property
    def url(self) -> str:
        """URL of the home node."""
        return self.home.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close connections and release the replica; the Spark session stays."""
        if self.worker is not None:
            self.worker.close()
            self.worker = None
        self._link.close()

    def after(self, position: Seen) -> None:
        """Make later commits and reads come after a position or receipt; see `Client.after`."""
        come_after(self._link, position)

    # -- commits ---------------------------------------------------------------------------------

    def transaction(
        self,
        *,
        level: str = "ordered",
        timeout: float | None = None,
        transaction_id: str | uuid.UUID | None = None,
        first_wins: bool = False,
        valid_until: datetime | None = None,
        isolation: Isolation = None,
        is_sync: bool = False,
        participants: Sequence[str] = (),
    ) -> SparkTransaction:
        """Return a transaction to fill in a `with` block, all or nothing.

            with log.transaction() as t:
                t.append("orders", orders)
                t.upsert("customers", customers)
            t.receipt

        Without a `with` block, `t.commit()` submits it.

        Args:
            level: Level to wait for.
            timeout: Seconds to wait for it; default: `connect`'s.
            transaction_id: A UUID that makes a repeated commit one, with the receipt of the first.
                Its rows are staged to be compared; others are refused, as is what reads tables.
            first_wins: If the log has the id, that counts, whatever it is: nothing is staged.
            valid_until: Time with a zone after which no copy of it takes effect, at most
                `id-window-time` (24 h) ahead.  Given with every repeat of an id, it makes the
                transaction take effect once, for ever.
            isolation: "serializable": it takes effect only if nobody wrote to the tables that
                `t.read` returned since, else it raises a ConflictError (see `retry`); None: no
                reads are recorded, and the last write in the order wins.
            is_sync: Whether it is synchronous whatever its tables are: ordered only once as many
                members hold it as `synchro-quorum` says.
            participants: With these the transaction is *prepared*: it is ordered, and takes effect
                where the last of them says YES (`mark`), or never.  It needs `valid_until`.

        Raises:
            InvalidRequestError: No such level or isolation, a time without a zone, an isolation
                at a level below `ordered`, or what cannot be participants (definite).
            InvalidNameError: The id is no UUID (definite).
        """
        parse_level(level)
        given = None if transaction_id is None else transaction_id_from_text(str(transaction_id))
        return SparkTransaction(
            self,
            level=level,
            timeout_s=self._timeout_s if timeout is None else timeout,
            transaction_id=given,
            first_wins=first_wins,
            valid_until=microseconds(valid_until),
            isolation=isolation,
            is_sync=is_sync,
            participants=participants,
        )

    @overload
    def adopt_table(
        self,
        name: str,
        path: str,
        *,
        kind: Literal["row-table"] = ...,
        keys: Sequence[str] = ...,
        dry_run: bool = ...,
        timeout: float = ...,
    ) -> RowAdoption: ...

    @overload
    def adopt_table(
        self,
        name: str,
        path: str,
        *,
        kind: Literal["commit-table"],
        files: FileWay = ...,
        dry_run: bool = ...,
        timeout: float = ...,
    ) -> Adoption: ...

    def adopt_table(
        self,
        name: str,
        path: str,
        *,
        kind: Literal["row-table", "commit-table"] = "row-table",
        keys: Sequence[str] = (),
        files: FileWay = "link",
        dry_run: bool = False,
        timeout: float = ADOPTION_TIMEOUT_S,
    ) -> Adoption | RowAdoption:
        """Put an existing Delta table under the log, as a new table of it.

        The old one stays as it is, and is no part of the log.  A row table begins with the rows of
        its newest version.  Files get a second name where they are in the payload store's file
        system; the rows of some are written again (deletion vectors, columns of an older schema).
        Repeated after a failure it is done once, if the old table is at the same version.

        Args:
            name: Of the new table; `schema.table` of a commit table.
            path: Directory of the Delta table; nothing of it changes before the log has the new
                one.
            kind: What it becomes.
            keys: Key columns of a row table.  Spark checks that they are distinct and not NULL.
                Without keys the table takes appends, overwrites and deletes by predicate.
            files: Of a commit table.  "link": the files get a second name, on the same file
                system; "copy"; "move": they are taken from the old table, which then is none.
            dry_run: Only check, and say what would be done; of a row table this counts its rows.
            timeout: Seconds until the sites of the quorum have the files.

        Raises:
            InvalidRequestError: It cannot become one; the message names all that is in the way
                (definite).
            InvalidRowsError: A key is there twice, or is NULL (definite).
            NameTakenError, CopyConflictError: There is one of that name, or somebody writes to
                the old one (definite).
            CommitStateUnknownError, TransportError: Nobody knows.  Repeat it for a row table; see
                whether a commit table is there.
        """
        check_has_jvm(self.spark, "adopt_table", "Run it at the site: sparktxlog table adopt.")
        if kind == "row-table":
            source = SourceTable.read(self.spark, path)
            return adopt_rows(self, name, source, keys=keys, dry_run=dry_run, timeout_s=timeout)
        if kind != "commit-table":
            raise InvalidRequestError(
                f"kind={kind!r} is neither 'row-table' nor 'commit-table'", field="kind"
            )
        if keys:
            raise InvalidRequestError("commit tables have no keys", field="keys")
        plain = read_plain_table(self.spark, path)
        with closing(CatalogLink.beside(self.home)) as link:
            return adopt(
                plain,
                lambda: newest_version(self.spark, plain),
                link,
                name,
                way=files,
                dry_run=dry_run,
                timeout_s=timeout,
            )

    def release_table(
        self,
        name: str,
        path: str | None = None,
        *,
        drop: bool = False,
        keep_features: bool = False,
    ) -> TableRelease | RowRelease:
        """Give a table back as a plain Delta table.

        A row table leaves the log, at all sites.  Each site's worker moves its directory to
        `lake/_sparktxlog/dropped/<name>-<position>`; with a path, this site's files get a second
        name there.  A commit table stays in the log, unless `drop` is given.

        Args:
            name: Of the table.
            path: A new directory, which appears when it is whole; a commit table needs it.
            drop: Drop a commit table from the log then.
            keep_features: Those of a commit table that nothing in it uses stay in its protocol.

        Raises:
            UnknownTableError, InvalidRequestError: (definite).
            NotAppliedError: With a path: this site's worker is behind.
            StorageError: The directory is not there.
        """
        if self.kind_of(name) is TableKind.ROW_TABLE:
            return release_rows(self, name, path, self._timeout_s)
        if path is None:
            raise InvalidRequestError(
                f"no directory is given for commit table {name!r}", field="path"
            )
        with closing(CatalogLink.beside(self.home)) as link:
            return release(link, name, path, drop=drop, keep_features=keep_features)

    def rename_table(
        self, table: str, name: str, *, level: str = "ordered", timeout: float | None = None
    ) -> Receipt:
        """Give a table another name by a copy and a drop; see `SparkTransaction.rename_table`."""
        with self.transaction(level=level, timeout=timeout) as t:
            t.rename_table(table, name)
        return t.receipt

    def replace_partitions(
        self,
        table: str,
        rows: Rows,
        *,
        level: str = "ordered",
        timeout: float | None = None,
        transaction_id: str | uuid.UUID | None = None,
    ) -> Receipt:
        """Replace the partitions that rows are of; see `SparkTransaction.replace_partitions`."""
        with self.transaction(level=level, timeout=timeout, transaction_id=transaction_id) as t:
            t.replace_partitions(table, rows)
        return t.receipt

    def mark(
        self, transaction_id: str, participant: str, *, yes: bool, timeout: float | None = None
    ) -> Receipt:
        """Say YES or NO to a prepared transaction, for a participant; see `Client.mark`."""
        timeout_s = self._timeout_s if timeout is None else timeout
        return send_mark(self._link, transaction_id, participant, yes=yes, timeout_s=timeout_s)

    def decision(self, transaction_id: str, timeout: float | None = None) -> Receipt:
        """Wait until a prepared transaction is decided; see `Client.decision`.

        Later reads of this log show what it did.  With `apply="inline"` it is applied here.
        """
        timeout_s = self._timeout_s if timeout is None else timeout
        deadline = time.monotonic() + timeout_s
        receipt = decision(self._link, transaction_id, timeout_s)
        return self._after([receipt], Level.ORDERED.value, deadline)[0]

    def batch(self, *, level: str = "ordered", timeout: float | None = None) -> GroupedBatch:
        """Return a batch to fill in a `with` block: many transactions out of DataFrames.

        with log.batch() as b:
            b.append("flights", flights, transaction="tx")
            b.upsert("aircraft", positions, transaction="tx")
        b.receipt
        """
        parse_level(level)
        timeout_s = self._timeout_s if timeout is None else timeout
        return GroupedBatch(self, level=level, timeout_s=timeout_s)

    def commit_many(
        self,
        frame: DataFrame,
        *,
        table: str,
        kind: str = "append",
        transaction: str,
        transaction_ids: str | None = None,
        level: str = "ordered",
        timeout: float | None = None,
    ) -> GroupedReceipt:
        """Commit one transaction for each value of a column; see `GroupedBatch`."""
        with self.batch(level=level, timeout=timeout) as b:
            b.add(
                OperationKind(kind),
                table,
                frame,
                transaction=transaction,
                transaction_ids=transaction_ids,
            )
        return b.receipt

    def _newest_definition(self, table: str) -> TableDefinition:
        return self.definition(table, newest=True)

    def find(self, transaction_id: str | uuid.UUID) -> Receipt | None:
        """Return the receipt of a transaction, None if the node never saw it."""
        return self._link.find(transaction_id_from_text(str(transaction_id)))

    # -- what transactions and batches need ------------------------------------------------------

    def definition(self, table: str, *, newest: bool = False) -> TableDefinition:
        """Return a table's definition; it is kept once read, until a commit of it fails.

        Args:
            newest: Ask the node again: the table may have changed.

        Raises:
            UnknownTableError: It is not in the catalog (definite).
        """
        name = table_name(table)
        found = None if newest else self._definitions.get(name.lower())
        if found is None:
            found = self._link.table(name)
            self._definitions[name.lower()] = found
        return found

    def fitting(self, table: str, use: Callable[[TableDefinition], _Made]) -> _Made:
        """Return what is made for a table's definition: the newest one if the kept one is old.

        Raises:
            UnknownTableError: It is not in the catalog (definite).
            SchemaMismatchError: From `use`, with the newest definition (definite).
        """
        return made_for_newest(
            self.definition(table), lambda: self.definition(table, newest=True), use
        )

    def existing(self, name: str, *, newest: bool = True) -> TableDefinition | None:
        """Return the table that has a name, None if there is none.

        Args:
            newest: As of now; else the definition that was kept will do.
        """
        try:
            return self.definition(name, newest=newest)
        except UnknownTableError:
            return None

    def kind_of(self, name: str) -> TableKind:
        """Return of which kind a table is; a row table that was used here is not asked for.

        Raises:
            UnknownTableError: There is none (definite).
        """
        if self.existing(name, newest=False) is not None:
            return TableKind.ROW_TABLE
        return self.describe(name).kind

    def present(self, definition: TableDefinition) -> TableDefinition | None:
        """Return the table that a create of an equal one finds, None if there is none."""
        found = self.existing(definition.name)
        return found if found is not None and found.is_like(definition) else None

    def forget_definitions(self, tables: Iterable[str]) -> None:
        """Ask the node again for the definitions of tables: they may have changed."""
        for table in tables:
            self._definitions.pop(table.lower(), None)

    def submit(
        self, transaction: PreparedTransaction, level: str, timeout_s: float, first_wins: bool
    ) -> Receipt:
        """Submit a staged transaction; called by `Transaction`."""
        stamped = self._session.takes(transaction)
        deadline = time.monotonic() + timeout_s
        at = self._asked(level)
        receipt = submit_prepared(self._link, self.url, stamped, at, timeout_s, first_wins)
        tables = {operation.table for operation in transaction.operations}
        return self._after([receipt], level, deadline, tables)[0]

    def known(self, transaction_id: bytes, level: str, timeout_s: float) -> Receipt | None:
        """Return the receipt of a transaction that the node knows, once at its level."""
        deadline = time.monotonic() + timeout_s
        receipt = self._link.known(transaction_id, self._asked(level), timeout_s)
        if receipt is None:
            return None
        return self._after([receipt], level, deadline)[0]

    def submit_grouped(
        self, grouped: GroupedTransactions, level: str, timeout_s: float
    ) -> GroupedReceipt:
        """Submit the transactions of a batch; called by `GroupedBatch`."""
        deadline = time.monotonic() + timeout_s
        info = self._link.get("/v1/info", timeout_s=timeout_s)
        runs = grouped.runs(
            int(info["run_limit_transactions"]),
            int(info["run_limit_bytes"]),
            time.time_ns() // 1000,
            self._session,
        )
        left = max(0.0, deadline - time.monotonic())
        try:
            done = submit_runs(self._link, runs, self._asked(level), left)
        except TxLogError:
            self.forget_definitions(grouped.tables)
            raise
        if any(is_conflict(item) for _, receipt in done for item in receipt.rejections):
            self.forget_definitions(grouped.tables)

        def whole(receipts: Sequence[Receipt]) -> GroupedReceipt:
            return GroupedReceipt.of(grouped, [run for run, _ in done], receipts)

        try:
            return whole(
                self._after([receipt for _, receipt in done], level, deadline, grouped.tables)
            )
        except CommittedNotAppliedError as error:
            error.receipt = whole([receipt for _, receipt in done])
            raise

    def _asked(self, level: str) -> str:
        """Return the level to request from the node: an inline worker applies only afterwards."""
        inline = self.worker is not None and level in ("applied", "applied(1)")
        return Level.ORDERED.value if inline else level

    def _after(
        self,
        receipts: Sequence[Receipt],
        level: str,
        deadline: float,
        tables: Collection[str] | None = None,
    ) -> Sequence[Receipt]:
        """Let the inline worker apply ordered transactions; those not applied in time are `late`.

        Args:
            tables: What they write to; None = it is not known.

        Raises:
            CommittedNotAppliedError: It is ordered and cannot be applied here (not definite).
        """
        ends = [r.position + r.n - 1 for r in receipts if r.position is not None]
        self.last_position = max(self.last_position, *ends, 0)
        wanted = LEVEL_RANK[parse_level(level)[0]] >= LEVEL_RANK[Level.ORDERED]
        if not ends or self.worker is None or not wanted:
            return receipts
        try:
            left = max(0.0, deadline - time.monotonic())
            self.worker.apply(self.last_position, left, tables)
        except NotAppliedError:
            return [replace(receipt, late=True) for receipt in receipts]
        except Exception as error:
            first = receipts[0].transaction_id
            what = "the batch" if first is None else f"transaction {first}"
            reason = error.message if isinstance(error, TxLogError) else str(error)
            raise CommittedNotAppliedError(
                f"{what} is committed at position {self.last_position}, but not applied here: "
                f"{reason}",
                receipt=receipts[0],
                transaction_id=first,
                position=self.last_position,
            ) from error
        return [replace(receipt, level=Level.APPLIED) for receipt in receipts]

    # -- views -----------------------------------------------------------------------------------

    def queue(self, at_least: AtLeast = "own") -> DataFrame:
        """Return the synchronized queue as it is published: one row for each transaction.

        Args:
            at_least: Wait until this is published; see `table`.

        Raises:
            NotAppliedError: Not published in time (definite).
            ForeignLogError: A receipt of another log (definite).
        """
        wanted = self._least(at_least)
        answer = self.home.get(
            "/v1/published",
            at_least=wanted.position,
            lineage=wanted.lineage,
            timeout_s=self._timeout_s,
            waits=True,
        )
        if answer["position"] < wanted.position:
            raise NotAppliedError(
                f"position {wanted.position} is not published after {self._timeout_s:g} s, the "
                f"queue table ends at {answer['position']}",
                hint="`sparktxlog status` says which node is missing.",
                published=answer["position"],
                position=wanted.position,
            )
        root = Path(self.home.get("/v1/info")["log_root"])
        return self.spark.read.format("delta").load((root / "synchronized_queue").as_uri())

    def describe(self, name: str) -> TableDescription:
        """Return a table of either kind: columns, comments, properties, and where it is.

        Raises:
            UnknownTableError: There is none (definite).
        """
        return self._link.describe(name)

    def table(self, name: str, at_least: AtLeast = "own", *, at: str | None = None) -> DataFrame:
        """Return a table of this site's replica, at the newest position that is applied completely.

        Args:
            name: The table's.
            at_least: Wait until this is applied.  "own": all that this log committed, read, and was
                told of by `after` and `find`.  A receipt, of any site: its transactions.  A
                position.  None: wait for nothing.
            at: Name of a restore point: the table as of it, as `snapshot(at=…)`.

        Raises:
            UnknownTableError: It is not in the catalog (definite).
            NotAppliedError: No worker has applied it in time; the message has both positions and
                the command to run (definite).
            ForeignLogError: A receipt of another log (definite).
            LocalProtocolError: A receipt without a position: it was not ordered yet (definite).
        """
        if at is not None:
            return table_at(self.snapshot(at=at), name, at)
        if at_least in ("own", None):
            self.definition(name)  # a wrong name is told before any wait
        return self.snapshot(at_least=at_least).table(name)

    def snapshot(
        self, position: int | None = None, at_least: AtLeast = "own", *, at: str | None = None
    ) -> Snapshot:
        """Return all tables at one position, without parts of transactions.

        Args:
            position: End of a batch that this site's worker applied; default: the newest.
            at_least: Wait until this is applied; see `table`.  With a position, "own" is not
                waited for.
            at: Name of a restore point, instead of a position.

        Raises:
            NotAppliedError: Not applied here yet, or not in time (definite).
            NotFoundError: No batch ended at `position` (definite).
            ForeignLogError: A receipt of another log (definite).
            LocalProtocolError: A receipt without a position: it was not ordered yet (definite).
            ExpiredError: This site no longer has versions for `at` (definite).
        """
        if at is not None:
            return snapshot_at(self._link.get, self.snapshot, at)
        wanted = self._least(None if position is not None and at_least == "own" else at_least)
        return self._snapshot(position, wanted, self._timeout_s)

    def latest_snapshot(self, timeout_s: float) -> Snapshot:
        """Return all tables at a position that has all that this log committed or was told of.

        The worker of `apply="inline"` applies what is ordered by then, of other clients too.

        Raises:
            NotAppliedError: Not applied here within the timeout (definite).
            ApplyError: The inline worker cannot apply it.
        """
        wanted, deadline = self._least("own"), time.monotonic() + timeout_s
        if self.worker is not None:
            self.worker.apply(wanted.position, timeout_s, ())
        return self._snapshot(None, wanted, max(0.0, deadline - time.monotonic()))

    def _catch_up(self, lost: ConflictError, timeout_s: float) -> None:
        winner = lost.fields.get("winner")
        # A version of a commit table is placed here before anybody is told that it lost to it.
        if winner is not None and not isinstance(lost, VersionConflictError):
            self._link.after(winner)
            self.latest_snapshot(timeout_s)

    def _snapshot(self, position: int | None, wanted: LeastPosition, timeout_s: float) -> Snapshot:
        def ask(wait_s: float) -> Snapshot:
            with long_step("waiting for this site's worker"):
                answer = self.home.get(
                    "/v1/snapshot",
                    position=position,
                    at_least=wanted.position,
                    lineage=wanted.lineage,
                    timeout_s=wait_s,
                    waits=wanted.position > 0,
                )
            found = Snapshot.of(self.spark, self, answer)
            # What the session does next comes after what it saw, also at another node.
            self._link.after(found.position)
            return found

        try:
            if self.worker is None or not wanted.position:
                return ask(timeout_s)
            with suppress(NotAppliedError):
                return ask(0.0)
            self.worker.apply(wanted.position, timeout_s, ())  # nobody else does
            return ask(timeout_s)
        except NotAppliedError as error:
            if not wanted.position and position is None:
                return Snapshot(position=0, chain_hash="", _spark=self.spark, _log=self)
            asked = max(wanted.position, position or 0)
            raise not_applied(self, "", error.fields.get("applied", 0), asked) from error

    def apply(self, timeout: float | None = None) -> int:
        """Apply all transactions ordered so far, with the worker of `apply="inline"`.

        Returns:
            The replica's new position; it may include later commits of others.

        Raises:
            InvalidRequestError: The log was connected without a worker (definite).
            NotAppliedError: Not reached within the timeout; no commit is undone (definite).
        """
        if self.worker is None:
            raise InvalidRequestError(
                "this session has no worker",
                hint="Use connect(…, apply='inline'), or run a worker: "
                f"./spark-submit.sh jobs/apply.py --url {self.url}",
            )
        # Ordered transactions are published a moment later, and others commit too.
        ordered = int(self.home.get("/v1/info")["position"])
        outcome = self.worker.apply(
            max(ordered, self.last_position), self._timeout_s if timeout is None else timeout
        )
        return outcome.position

    def status(self) -> ClusterStatus:
        """Return the node's status: queues, peers, missing nodes, replicas; it prints in words."""
        return ClusterStatus(self._link.get("/v1/status"))

    def _repr_html_(self) -> str:
        rows = (("node", self.url), ("session", self._session), ("last commit", self.last_position))
        return html_table(("sparktxlog", ""), rows)

    def position(self) -> int:
        """Return the end of the synchronized queue as the node knows it."""
        return int(self._link.get("/v1/info")["position"])

    def _least(self, at_least: AtLeast) -> LeastPosition:
        if at_least == "own":
            return LeastPosition(position=max(self.last_position, self._link.position))
        return least_position(at_least)
