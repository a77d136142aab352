"""`connect` makes a `TxLog`, the object that users work with, of a Spark session and a node."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from sparktxlog.api.adopting.adoption import adopt
from sparktxlog.api.datasource import register_format
from sparktxlog.api.given_data import Columns, Rows
from sparktxlog.api.inline_worker import InlineWorker
from sparktxlog.api.log_client import LogClient
from sparktxlog.api.nodes import Nodes, check_version
from sparktxlog.api.reading.replica_snapshot import Snapshot
from sparktxlog.api.reading.restore_point_reading import snapshot_at, table_at
from sparktxlog.api.reading.state_frames import StateFrames
from sparktxlog.api.session import check_has_jvm
from sparktxlog.api.site_session import SiteSession
from sparktxlog.api.staging.frame_staging import WRITER_SETTINGS
from sparktxlog.api.staging.shared_store import Staging, staging_place
from sparktxlog.api.tested_releases import warn_of_untested
from sparktxlog.api.writing.batches_of_transactions import GroupedBatch
from sparktxlog.api.writing.operations import Commits, Isolation
from sparktxlog.api.writing.rows_to_transactions import GroupedReceipt
from sparktxlog.api.writing.transaction import SparkTransaction
from sparktxlog.codec.submits.arguments import flag_given, kind_given, seconds_given
from sparktxlog.codec.submits.transactions import Rollback, Session
from sparktxlog.errors import ConfigError, ConflictError, InvalidRequestError
from sparktxlog.model.ids import table_name, transaction_id_from_text
from sparktxlog.model.shown import html_table
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.receipt import Level, Receipt
from sparktxlog.worker.apply.worker_session import check_digits, has_jvm
from sparktxlog.worker.tables.adopted_files import FileWay
from sparktxlog.worker.tables.release import Release, release
from sparktxlog.worker.tables.table_adoption import ADOPTION_TIMEOUT_S, Adoption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparktxlog.api.reading.at_least import AtLeast

_log = logging.getLogger(__name__)

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
        ca_file: Authority of certificates (https), at driver and executors; default: `Client`'s.
        staging: How executors hand over files of rows: "shared", they write into the payload store
            of the node, which they share; "http", they upload them to the node; "auto", "shared"
            if a file on that way is seen at all ends, else "http".
        rollback: "session": if a transaction is withdrawn, those that the session committed after
            it are withdrawn, too, `SessionRolledBackError`; "transaction": they go on.

    Raises:
        UnreachableError: No node answers there (definite).
        UnauthorizedError: The token is missing or wrong (definite).
        PayloadStoreError: `staging="shared"` or `apply="inline"`, and the payload store is not
            shared; else, executors do not reach the node; the message names both (definite).
        ConfigError: `apply` or `staging` has a wrong value, or the node has another version.
        InvalidRequestError: `apply="inline"` with several URLs or over Spark Connect; the JVM's
            language has digits of its own; or an argument of another type (definite).
    """
    own = Session(session or str(uuid.uuid4()), rollback)
    timeout = seconds_given(timeout)
    link = Nodes(url, token=token, ca_file=ca_file)
    _check_before(apply, spark, link)
    warn_of_untested(spark)
    home, info = link.choose()
    check_version(str(info["version"]), home.url)
    for name, value in _SESSION.items():
        before = spark.conf.get(name, None)
        if before != value:
            _log.info("set %s to %s for this session (was %s)", name, value, before)
            spark.conf.set(name, value)
    place = staging_place("shared" if apply and staging == "auto" else staging, spark, info, home)
    site = SiteSession(spark, link, home, place, session=own, timeout_s=timeout)
    urls, way = ",".join(link.urls), "http" if place.uploads else "shared"
    register_format(spark, url=urls, token=token, ca_file=home.ca_file, staging=way)
    if apply == "inline":
        site.worker = InlineWorker(spark, home)
    return TxLog(site)


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


class TxLog(LogClient, Commits[Rows, Columns], StateFrames):
    """The log, as a Spark session uses it; made by `connect`.

    Every commit returns a receipt once its level is reached.  Levels in rising order: `accepted`
    (durable at this node), `acquired` (durable at the quorum), `ordered` (has its position, the
    default), `applied` (visible in this site's tables), `applied(k)` (at k sites, however many
    replicas each has).  The receipt of a transaction that is ordered but not applied in time says
    `late`.
    """

    def __init__(self, site: SiteSession) -> None:
        super().__init__(site.link, site.timeout_s)
        #: What it rests on; not public.
        self.site = site

    @property
    def url(self) -> str:
        """URL of the home node."""
        return self.site.url

    def close(self) -> None:
        """Close connections and release the replica; the Spark session stays."""
        self.site.close()

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
        return SparkTransaction(
            self.site,
            level=level,
            timeout=timeout,
            transaction_id=transaction_id,
            first_wins=first_wins,
            valid_until=valid_until,
            isolation=isolation,
            is_sync=is_sync,
            participants=participants,
        )

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
    ) -> Adoption:
        """Put an existing Delta table under the log, as a new table of it.

        The old one stays as it is, and is no part of the log.  A row table begins with the rows of
        its newest version.  Files get a second name where they are in the payload store's file
        system; the rows of some are written again (deletion vectors, columns of an older schema).
        Repeated after a failure it is done once, if the old table is at the same version.

        Args:
            name: Of the new table; `schema.table` of a commit table.
            path: Directory of the Delta table; nothing of it changes before the log has the new
                one.  A commit table may be made of one at a URL, in the bucket of this site.
            kind: What it becomes.
            keys: Key columns of a row table.  Spark checks that they are distinct and not NULL.
                Without keys the table takes appends, overwrites and deletes by predicate.
            files: Of a commit table.  "link": the files get a second name, on the same file
                system; "copy", in a bucket within it; "move": they are taken from the old table,
                which then is none.
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
        check_has_jvm(self.site.spark, "adopt_table", "Run it at the site: sparktxlog table adopt.")
        return adopt(
            self.site,
            name,
            path,
            kind,
            keys=keys,
            way=files,
            dry_run=flag_given(dry_run, "dry_run"),
            timeout_s=seconds_given(timeout),
        )

    def release_table(
        self,
        name: str,
        path: str | None = None,
        *,
        drop: bool = False,
        keep_features: bool = False,
    ) -> Release:
        """Give a table back as a plain Delta table.

        A row table leaves the log, at all sites.  Each site's worker moves its directory to the
        attic of the lake; with a path, this site's files get a second name there.  A commit table
        stays in the log, unless `drop` is given.

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
        for given, field in ((drop, "drop"), (keep_features, "keep_features")):
            flag_given(given, field)
        return release(
            self.describe(name),
            self.site.home,
            path,
            drop_rows=self.drop_table,
            applied=lambda seen: self.site.snapshot(at_least=seen),
            drop=drop,
            keep_features=keep_features,
        )

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
        """Replace the partitions that rows are in; see `SparkTransaction.replace_partitions`."""
        with self.transaction(level=level, timeout=timeout, transaction_id=transaction_id) as t:
            t.replace_partitions(table, rows)
        return t.receipt

    def decision(self, transaction_id: str, timeout: float | None = None) -> Receipt:
        """Wait until a prepared transaction is decided; see `Client.decision`.

        Later reads of this log show what it did.  With `apply="inline"` it is applied here.
        """
        deadline = time.monotonic() + self._seconds(timeout)
        receipt = super().decision(transaction_id, timeout)
        return self.site.reach([receipt], Level.ORDERED.value, deadline)[0]

    def batch(self, *, level: str = "ordered", timeout: float | None = None) -> GroupedBatch:
        """Return a batch to fill in a `with` block: many transactions out of DataFrames.

        with log.batch() as b:
            b.append("flights", flights, transaction="tx")
            b.upsert("aircraft", positions, transaction="tx")
        b.receipt
        """
        return GroupedBatch(self.site, level=level, timeout=timeout)

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
                kind_given(kind),
                table,
                frame,
                transaction=transaction,
                transaction_ids=transaction_ids,
            )
        return b.receipt

    def _newest_definition(self, table: str) -> TableDefinition:
        return self.site.definition(table, newest=True)

    def find(self, transaction_id: str | uuid.UUID) -> Receipt | None:
        """Return the receipt of a transaction, None if the node never saw it."""
        return self._link.find(transaction_id_from_text(str(transaction_id)))

    # -- views -----------------------------------------------------------------------------------

    def queue(self, at_least: AtLeast = "own") -> DataFrame:
        """Return the synchronized queue as it is published: one row for each transaction.

        Args:
            at_least: Wait until this is published; see `table`.

        Raises:
            NotAppliedError: Not published in time (definite).
            ForeignLogError: A receipt of another log (definite).
        """
        return self.site.queue(at_least)

    def table(
        self,
        name: str,
        at_least: AtLeast = "own",
        *,
        at: str | None = None,
        replica: str | None = None,
    ) -> DataFrame:
        """Return a table of this site, at the newest position that is applied completely.

        Args:
            name: The table's.
            at_least: Wait until this is applied.  "own": all that this log committed, read, and
                learned of by `after` and `find`.  A receipt, of any site: its transactions.  A
                position.  None: wait for nothing.
            at: Name of a restore point: the table at that point, as `snapshot(at=…)` shows it.
            replica: Name of a replica of this site; default: the most current one that holds the
                table, and whose files this process sees.

        Raises:
            UnknownTableError: The log has no such table (definite).
            NotFoundError: The site has no such replica (definite).
            NotAppliedError: No worker has applied it in time; the message has both positions and
                the command to run (definite).
            ForeignLogError: A receipt of another log (definite).
            LocalProtocolError: A receipt without a position: it was not ordered yet (definite).
        """
        if at is not None:
            return table_at(self.snapshot(at=at, replica=replica), name, at)
        if at_least in ("own", None):
            self.site.definition(name)  # a wrong name is refused before any wait
        return self.site.snapshot(None, at_least, replica, table_name(name)).table(name)

    def snapshot(
        self,
        position: int | None = None,
        at_least: AtLeast = "own",
        *,
        at: str | None = None,
        replica: str | None = None,
    ) -> Snapshot:
        """Return all tables at one position, without parts of transactions.

        Args:
            position: End of a batch that this site's worker applied; default: the newest.
            at_least: Wait until this is applied; see `table`.  With a position, "own" is not
                waited for.
            at: Name of a restore point, instead of a position.
            replica: Name of a replica of this site; default: the most current one with all tables
                whose files this process sees.

        Raises:
            NotAppliedError: Not applied here yet, or not in time (definite).
            NotFoundError: No batch ended at `position`, or no such replica (definite).
            ForeignLogError: A receipt of another log (definite).
            LocalProtocolError: A receipt without a position: it was not ordered yet (definite).
            ExpiredError: This site no longer has versions for `at` (definite).
        """
        if at is not None:

            def of(found: int) -> Snapshot:
                return self.site.snapshot(found, replica=replica)

            return snapshot_at(self._link.get, of, at)
        return self.site.snapshot(position, at_least, replica)

    def _catch_up(self, lost: ConflictError, timeout_s: float) -> None:
        self.site.catch_up(lost, timeout_s)

    def apply(self, timeout: float | None = None) -> int:
        """Apply all transactions ordered so far, with the worker of `apply="inline"`.

        Returns:
            The replica's new position; it may include later commits of others.

        Raises:
            InvalidRequestError: The log was connected without a worker (definite).
            NotAppliedError: Not reached within the timeout; no commit is undone (definite).
        """
        site, worker = self.site, self.site.worker
        if worker is None:
            raise InvalidRequestError(
                "this session has no worker",
                hint="Use connect(…, apply='inline'), or run a worker: "
                f"./spark-submit.sh jobs/apply.py --url {site.url}",
            )
        # Ordered transactions are published a moment later, and others commit too.
        ordered = int(site.home.get("/v1/info")["position"])
        return worker.apply(max(ordered, site.last_position), self._seconds(timeout)).position

    def _repr_html_(self) -> str:
        rows = (
            ("node", self.url),
            ("session", self.site.session),
            ("last commit", self.site.last_position),
        )
        return html_table(("sparktxlog", ""), rows)

    def position(self) -> int:
        """Return the end of the synchronized queue as the node knows it."""
        return self.site.position()
