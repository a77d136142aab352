"""What every part of a `TxLog` rests on: transactions, batches, adoption and views use it.

It knows the node and its payload store, keeps the definitions of tables that were used, takes each
commit to its level, and shows the tables of the site.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sparktxlog.api.inline_worker import InlineWorker
from sparktxlog.api.long_steps import long_step
from sparktxlog.api.nodes import Nodes, submit_prepared
from sparktxlog.api.reading.at_least import LeastPosition, least_position
from sparktxlog.api.reading.replica_snapshot import Snapshot, reached_answer
from sparktxlog.api.spark_paths import spark_url
from sparktxlog.api.staging.frame_staging import SignatureExpressions, StagingPlace
from sparktxlog.api.writing.operations import made_for_newest
from sparktxlog.codec.submits.requests import parse_level
from sparktxlog.codec.submits.transactions import PreparedTransaction, Session
from sparktxlog.errors import (
    CommittedNotAppliedError,
    ConflictError,
    NotAppliedError,
    TxLogError,
    UnknownTableError,
    VersionConflictError,
)
from sparktxlog.http.link import Http
from sparktxlog.model.ids import table_name
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.tables.table_kind import TableKind
from sparktxlog.model.transactions.receipt import LEVEL_RANK, Level, Receipt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparktxlog.api.reading.at_least import AtLeast

_Made = TypeVar("_Made")
#: What `GET /v1/snapshot` would answer where nothing was applied yet.
_NOTHING = {"position": 0, "chain_hash": "", "tables": {}}


class SiteSession:
    """A Spark session at one site of the log; made by `connect`.

    Args:
        spark: The session whose DataFrames are committed.
        link: The nodes that take its commits.
        home: The node whose payload store and tables it uses.
        store: That payload store.
        session: Orders its commits.
        timeout_s: Seconds that a commit or a read waits by default.
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
        self.link = link
        self.home = home
        self.store = store
        self.session = session
        self.timeout_s = timeout_s
        self.expressions = SignatureExpressions()
        #: The worker of `apply="inline"`, else None.
        self.worker: InlineWorker | None = None
        #: End of its last commit in the synchronized queue, 0 = none yet.
        self.last_position = 0
        self._definitions: dict[str, TableDefinition] = {}

    @property
    def url(self) -> str:
        """URL of the home node."""
        return self.home.url

    def position(self) -> int:
        """Return the end of the synchronized queue as the nodes know it."""
        return int(self.link.get("/v1/info")["position"])

    def close(self) -> None:
        """Close connections and release the replica; the Spark session stays."""
        if self.worker is not None:
            self.worker.close()
            self.worker = None
        self.link.close()

    # -- tables ----------------------------------------------------------------------------------

    def definition(self, table: str, *, newest: bool = False) -> TableDefinition:
        """Return a table's definition; it is kept once read, until a commit of it fails.

        Args:
            newest: Ask the node again: the table may have changed.

        Raises:
            UnknownTableError: The log has no such table (definite).
        """
        name = table_name(table)
        found = None if newest else self._definitions.get(name.lower())
        if found is None:
            found = self.link.table(name)
            self._definitions[name.lower()] = found
        return found

    def fitting(self, table: str, use: Callable[[TableDefinition], _Made]) -> _Made:
        """Return what is made for a table's definition: the newest one if the kept one is old.

        Raises:
            UnknownTableError: The log has no such table (definite).
            SchemaMismatchError: From `use`, with the newest definition (definite).
        """
        return made_for_newest(
            self.definition(table), lambda: self.definition(table, newest=True), use
        )

    def existing(self, name: str, *, newest: bool = True) -> TableDefinition | None:
        """Return the table that has a name, None if there is none.

        Args:
            newest: The definition of now; else the one that was kept will do.
        """
        try:
            return self.definition(name, newest=newest)
        except UnknownTableError:
            return None

    def kind_of(self, name: str) -> TableKind:
        """Return the kind of a table; for a row table that was used here no node is asked.

        Raises:
            UnknownTableError: There is none (definite).
        """
        if self.existing(name, newest=False) is not None:
            return TableKind.ROW_TABLE
        return self.link.describe(name).kind

    def present(self, definition: TableDefinition) -> TableDefinition | None:
        """Return the table that a create of an equal one finds, None if there is none."""
        found = self.existing(definition.name)
        return found if found is not None and found.is_like(definition) else None

    def forget_definitions(self, tables: Iterable[str]) -> None:
        """Ask the node again for the definitions of tables: they may have changed."""
        for table in tables:
            self._definitions.pop(table.lower(), None)

    # -- commits ---------------------------------------------------------------------------------

    def submit(
        self,
        transaction: PreparedTransaction,
        level: str,
        timeout_s: float,
        first_wins: bool,
        doubt: TxLogError | None = None,
    ) -> Receipt:
        """Submit a staged transaction; `doubt` and errors as in `Nodes.submit`, and `reach`."""
        stamped = self.session.takes(transaction)
        deadline = time.monotonic() + timeout_s
        at = self.asked_level(level)
        receipt = submit_prepared(self.link, self.url, stamped, at, timeout_s, first_wins, doubt)
        tables = {operation.table for operation in transaction.operations}
        return self.reach([receipt], level, deadline, tables)[0]

    def known(self, transaction_id: bytes, level: str, timeout_s: float) -> Receipt | None:
        """Return the receipt of a transaction that the node knows, once at its level."""
        deadline = time.monotonic() + timeout_s
        receipt = self.link.known(transaction_id, self.asked_level(level), timeout_s)
        return None if receipt is None else self.reach([receipt], level, deadline)[0]

    def asked_level(self, level: str) -> str:
        """Return the level to request from the node: an inline worker applies only afterwards."""
        inline = self.worker is not None and level in ("applied", "applied(1)")
        return Level.ORDERED.value if inline else level

    def reach(
        self,
        receipts: Sequence[Receipt],
        level: str,
        deadline: float,
        tables: Collection[str] | None = None,
    ) -> Sequence[Receipt]:
        """Let the inline worker apply ordered transactions; those not applied in time are `late`.

        Args:
            deadline: Of `time.monotonic()`.
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

    # -- reads -----------------------------------------------------------------------------------

    def queue(self, at_least: AtLeast) -> DataFrame:
        """Return the synchronized queue as it is published; see `TxLog.queue`."""
        wanted = self._least(at_least)
        answer = self.home.get(
            "/v1/published",
            at_least=wanted.position,
            log_id=wanted.log_id,
            timeout_s=self.timeout_s,
            waits=True,
        )
        if answer["position"] < wanted.position:
            raise NotAppliedError(
                f"position {wanted.position} is not published after {self.timeout_s:g} s, the "
                f"queue table ends at {answer['position']}",
                hint="`sparktxlog status` says which node is missing.",
                published=answer["position"],
                position=wanted.position,
            )
        root = Path(self.home.get("/v1/info")["log_root"])
        return self.spark.read.format("delta").load(spark_url(root / "synchronized_queue"))

    def snapshot(
        self,
        position: int | None = None,
        at_least: AtLeast = "own",
        replica: str | None = None,
        table: str = "",
    ) -> Snapshot:
        """Return all tables at one position; see `TxLog.snapshot`.

        Args:
            table: The replica must hold it; empty = all, if one does.
        """
        wanted = self._least(None if position is not None and at_least == "own" else at_least)
        return self._snapshot(position, wanted, self.timeout_s, replica, table)

    def latest_snapshot(self, timeout_s: float) -> Snapshot:
        """Return all tables at a position that has all that the session committed and saw.

        The worker of `apply="inline"` applies what is ordered by then, of other clients too.

        Raises:
            NotAppliedError: Not applied here within the timeout (definite).
            ApplyError: The inline worker cannot apply it.
        """
        wanted, deadline = self._least("own"), time.monotonic() + timeout_s
        if self.worker is not None:
            self.worker.apply(wanted.position, timeout_s, ())
        return self._snapshot(None, wanted, max(0.0, deadline - time.monotonic()))

    def catch_up(self, lost: ConflictError, timeout_s: float) -> None:
        """Wait until what a transaction lost to can be read here; errors as `latest_snapshot`."""
        winner = lost.fields.get("winner")
        # A commit table's version is placed here before anybody hears of a loss to it.
        if winner is not None and not isinstance(lost, VersionConflictError):
            self.link.after(winner)
            self.latest_snapshot(timeout_s)

    def _snapshot(
        self,
        position: int | None,
        wanted: LeastPosition,
        timeout_s: float,
        replica: str | None = None,
        table: str = "",
    ) -> Snapshot:
        def ask(wait_s: float) -> Snapshot:
            def of(name: str | None) -> Any:
                return self.home.get(
                    "/v1/snapshot",
                    position=position,
                    at_least=wanted.position,
                    log_id=wanted.log_id,
                    replica=name,
                    table=table or None,
                    timeout_s=wait_s,
                    waits=wanted.position > 0,
                )

            with long_step("waiting for this site's worker"):
                answer = reached_answer(of, replica, table)
            found = Snapshot.of(answer, self.spark, self._absent)
            # What the session does next comes after what it saw, also at another node.
            self.link.after(found.position)
            return found

        try:
            if self.worker is None or not wanted.position:
                return ask(timeout_s)
            with suppress(NotAppliedError):
                return ask(0.0)
            self.worker.apply(wanted.position, timeout_s, ())  # nobody else does
            return ask(timeout_s)
        except NotAppliedError as error:
            if not wanted.position and position is None and replica is None:
                return Snapshot.of(_NOTHING, self.spark, self._absent)
            asked, applied = max(wanted.position, position or 0), error.fields.get("applied", 0)
            raise self._not_applied(f"position {asked}", applied) from error

    def _absent(self, table: str, position: int) -> NotAppliedError:
        self.definition(table, newest=True)  # it may be dropped
        return self._not_applied(f"table {table!r}", position, table)

    def _not_applied(self, what: str, applied: int, table: str = "") -> NotAppliedError:
        """Return the error with both positions and the command to run."""
        synchronized = self.position()
        return NotAppliedError(
            f"{what} is not applied here yet: the queue is synchronized up to position "
            f"{synchronized}, this site's replica has applied {applied}",
            hint=f"`sparktxlog status --url {self.url}` says whether this site's worker runs, and "
            f"what it does.  If none runs: `sparktxlog apply --follow --url {self.url}`.  "
            "at_least=None reads what is applied.",
            table=table,
            synchronized=synchronized,
            applied=applied,
        )

    def _least(self, at_least: AtLeast) -> LeastPosition:
        if at_least == "own":
            return LeastPosition(position=max(self.last_position, self.link.position))
        return least_position(at_least)
