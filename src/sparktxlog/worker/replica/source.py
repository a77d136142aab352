"""The worker's client of its node: gets the log, sends reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from sparktxlog.codec.problems import error_of
from sparktxlog.errors import (
    ApplyError,
    ConfigError,
    ExpiredError,
    ForbiddenError,
    ForbiddenPeerError,
    InvalidNameError,
    InvalidRequestError,
    LocalProtocolError,
    ManifestMismatchError,
    NotFoundError,
    OversizeError,
    PayloadStoreError,
    RemoteProtocolError,
    TransportError,
    TxLogError,
    UnauthorizedError,
    UnknownTableError,
    UnreachableError,
)
from sparktxlog.files.stores.object_pins import disk_of
from sparktxlog.http.link import Http
from sparktxlog.http.tokens import worker_token
from sparktxlog.model.answers import RepairedFiles, ReplicaLine, StatusAnswer
from sparktxlog.model.buckets import bucket_url
from sparktxlog.model.copying import CopyTicket, Decision, Transfer
from sparktxlog.model.replicas import MAIN, check_replica_name
from sparktxlog.model.report import Recount, WorkerReport
from sparktxlog.model.tables.groups import not_held
from sparktxlog.model.tables.table_checks import CommitTableCheck, CommitTableCheckRequest
from sparktxlog.model.tables.table_kind import TableDescription, TableKind
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.interfaces import Segment
from sparktxlog.worker.apply.cutting import Cut, cut_segments
from sparktxlog.worker.replica.state import ReplicaState, read_state

T = TypeVar("T")

#: Timeout of a request, seconds; added to the wait that it asks for.
_ANSWER_TIME_S = 15.0
#: Longest time in which donors pin the files of a large replica, seconds.
_PIN_TIME_S = 120.0
#: Longest time in which a node removes the files of a long log, seconds.
_SHORTEN_TIME_S = 600.0
#: Longest time in which a node fetches the files of a batch from other sites, seconds.
_REPAIR_TIME_S = 600.0
#: Longest silence while a file travels, seconds.
_SILENCE_S = 60.0
#: Refusals of a node that keep their class; any other becomes RemoteProtocolError.
_REFUSALS = (
    ExpiredError, ForbiddenError, ForbiddenPeerError, InvalidNameError, InvalidRequestError,
    LocalProtocolError, ManifestMismatchError, NotFoundError, OversizeError, PayloadStoreError,
    RemoteProtocolError, UnauthorizedError, UnknownTableError,
)  # fmt: skip
#: Transient refusals by a proxy between worker and node.
_TRANSIENT = (408, 425, 429)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """What a worker must know about its node before it starts."""

    node_id: str
    log_id: str
    #: Absolute paths that node and worker share, unless there is a bucket instead.
    payload_root: str
    lake_root: str
    signature_interval: int
    #: The prefixes in a bucket that have the row tables, and the payloads, instead; None = none.
    lake_url: str | None = None
    payload_url: str | None = None
    #: Name → lake of each other replica of the site.
    replica_lakes: dict[str, str] = field(default_factory=dict)
    #: Last ordered position, and last published one.
    position: int = 0
    published: int = 0
    #: The log holds what is after this position.
    kept_after: int = 0
    #: Directory of the log's own tables.
    log_root: str = ""
    #: Directory of the commit tables.
    commit_table_root: str = ""
    #: The prefix in a bucket that has them instead; None = none.
    commit_table_url: str | None = None
    #: Directory of reader tables next to them, None = there are none.
    reader_table_root: str | None = None
    #: Where old files are kept before a copy replaces them, None = nowhere.
    backup_dir: str | None = None
    #: Seconds between reports.
    worker_heartbeat: float = 5.0
    #: Hours between two scans of a table by a worker that follows, 0 = never.
    verify_interval: float = 0.0
    #: File with the token that a worker must send.
    worker_token_file: str = ""
    #: Whether scheduled upkeep may run now.
    maintenance_open: bool = True

    @property
    def payloads(self) -> str:
        """Where the files that the log names are: a directory, or the URL of a bucket."""
        return self.payload_url or self.payload_root

    @property
    def lake(self) -> str:
        """Where the row tables are: a directory, or the URL of a bucket."""
        return self.lake_url or self.lake_root

    def lake_of(self, replica: str) -> str:
        """Return the lake of a replica of the site, by its name, or site and name.

        Raises:
            InvalidNameError: That is no name (definite).
            NotFoundError: The site has no such replica (definite).
        """
        lakes = {MAIN: self.lake, **self.replica_lakes}
        name = MAIN if replica == self.node_id else replica.removeprefix(f"{self.node_id}/")
        lake = lakes.get(check_replica_name(name))
        if lake is None:
            raise NotFoundError(
                f"site {self.node_id} has no replica {name!r}",
                hint=f"It has {', '.join(lakes)}.",
                field="replica",
                value=name,
            )
        return lake

    def disk_of(self, lake: str) -> Path:
        """Return the directory that has the locks of a lake: its own, unless it is in a bucket."""
        if bucket_url(lake, "lake") is None:
            return Path(lake)
        return disk_of(lake, Path(self.lake_root), self.lake_url)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTail:
    """Published segments after a position, ascending, without gaps."""

    #: Last published position.
    position: int
    log_id: str
    epoch: int
    segments: tuple[Segment, ...] = ()
    #: Where the worker cut them; None = as the node sent them.
    cut: Cut | None = None
    #: Tables among them whose rows this site does not hold → the sites that do (P41).
    elsewhere: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def of_site(self) -> LogTail:
        """Return the tail without what is done to tables that other sites hold."""
        if not self.elsewhere:
            return self
        kept = (
            replace(one, effects=tuple(e for e in one.effects if e.table not in self.elsewhere))
            for one in self.segments
        )
        return replace(self, segments=tuple(kept))

    def check_held(self, *tables: str) -> None:
        """Refuse tables whose rows this site does not hold; none are named: any of them.

        Raises:
            NotHeldHereError: It names the table, and the sites that hold it (definite).
        """
        for table, sites in sorted(self.elsewhere.items()):
            if not tables or table in tables:
                raise not_held(table, sites)

    def cut_at(self, cut: Cut) -> LogTail:
        """Return the tail as if the node's log ended at a cut."""
        end = min(self.position, cut.position)
        return replace(self, position=end, segments=cut_segments(self.segments, cut), cut=cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The node's answer to a report: `plan` is up-to-date, replay, copy or stop."""

    verdict: str
    plan: str
    reason: str = ""
    #: Another site has other content, and no majority says which is right.
    contested: bool = False
    #: All that is wrong is the tables that stand still: the others may go on.
    of_tables: bool = False
    #: Tables to recount: the result may show which site is right.
    recount: tuple[str, ...] = ()
    #: Label of the report whose tables the node keeps, empty = none.
    kept: str = ""


class HttpLogSource(Http):
    """Calls the routes of a node that workers use.

    All methods raise TransportError if the node cannot be reached, UnauthorizedError if it refuses
    the worker's token, and RemoteProtocolError if node and worker are of releases that do not fit
    (both definite).  Every call may be repeated: reports are idempotent.

    Args:
        url: Base URL of the node's client interface.
        token: Client token, if the node asks for one; default: as in `Http`.
        admin_token: Operator's token for `maintain_log`; default: the client token.
        ca_file: As in `Http`.

    Raises:
        ConfigError: That is no URL (definite).
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        admin_token: str | None = None,
        ca_file: str | None = None,
    ) -> None:
        try:
            super().__init__(url, token=token, ca_file=ca_file)
        except InvalidRequestError as error:
            raise ConfigError(error.message, hint=error.hint, value=url) from error
        self._admin_token = admin_token or token
        #: The worker's token; None = not read yet, empty = none, or not readable here.
        self._worker_token: str | None = None

    def info(self) -> NodeInfo:
        """Return the node's directories and settings that concern a worker."""
        return self._call(NodeInfo, "GET", "/v1/info")

    def segments(
        self, after: int, *, wait_s: float, limit: int = 500, whole: bool = False
    ) -> LogTail:
        """Return segments after a position, waiting up to `wait_s` seconds for the first.

        What is done to tables whose rows other sites hold is left out (P41).

        Args:
            whole: All of it is needed.

        Raises:
            ExpiredError: The log no longer holds what follows that position (definite).
            NotHeldHereError: All is needed, and this site does not hold all (definite).
        """
        query = {"after": after, "wait": wait_s, "limit": limit}
        tail = self._call(LogTail, "GET", "/v1/worker/segments", query=query, wait_s=wait_s)
        if whole:
            tail.check_held()
        return tail.of_site()

    def rows_and_commits(
        self, names: Iterable[str], lake: str | Path
    ) -> tuple[list[str], list[str]]:
        """Separate the names of row tables from those of commit tables, as the log has them.

        Raises:
            UnknownTableError: It is neither, or a row table that the replica in the lake does not
                have (definite).
        """
        state: ReplicaState | None = None
        rows, commits = list[str](), list[str]()
        for name in names:
            path = f"/v1/descriptions/{quote(name, safe='')}"
            found = self._call(TableDescription, "GET", path)
            if found.kind is TableKind.COMMIT_TABLE:
                commits.append(found.name)
                continue
            state = state or read_state(lake)
            if state is not None and found.name not in state.tables:
                raise UnknownTableError(
                    f"this site's replica has no row table {found.name!r} yet",
                    hint="Run a worker: sparktxlog apply, or spark-submit.sh jobs/apply.py.",
                    table=found.name,
                )
            # Without a state, its reader says that nothing was applied.
            rows.append(found.name)
        return rows, commits

    def report(self, report: WorkerReport) -> Answer:
        """Send a report of the replica."""
        return self._post(Answer, "/v1/worker/reports", report)

    def replicas(self) -> list[ReplicaLine]:
        """Return the last report of each known replica, with its tables."""
        shown: StatusAnswer = self.document("/v1/status", tables=1)
        return shown["replicas"]

    def document(self, path: str, **query: Any) -> Any:
        """Return the JSON answer of a `GET`."""
        return self._call(object, "GET", path, query=query)

    def plan(self, worker_id: str) -> Decision:
        """Return the node's plan for a replica; changes nothing."""
        return self._call(Decision, "GET", "/v1/worker/plan", query={"worker": worker_id})

    def take_recount(self, recount: Recount) -> Answer:
        """Send the result of a full scan; the node answers as to a report."""
        return self._post(Answer, "/v1/worker/recounts", recount)

    def copy_ticket(
        self, worker_id: str, *, forced: bool, donor: str = "", failed: Sequence[str] = ()
    ) -> CopyTicket:
        """Have a donor pin its files for a copy.

        Args:
            worker_id: Worker of the replica that is replaced.
            forced: Copy even if the node's plan is not a copy.
            donor: Copy from this site only, even if replicas differ; empty = any.
            failed: Donors that failed in this copy; they are asked last.

        Raises:
            ApplyError: No copy is possible, with the node's reason (definite).
        """
        wanted = {"worker_id": worker_id, "forced": forced, "donor": donor, "failed": failed}
        try:
            return self._post(CopyTicket, "/v1/worker/copies", wanted, wait_s=_PIN_TIME_S)
        except LocalProtocolError as error:
            raise ApplyError(error.message, hint=error.hint, **error.fields) from error

    def repair_files(self, first: int, last: int) -> RepairedFiles:
        """Have the node check all files of a range, and fetch damaged ones from other sites."""
        wanted = {"first": first, "last": last}
        return self._post(RepairedFiles, "/v1/worker/files", wanted, wait_s=_REPAIR_TIME_S)

    def file(self, where: str, file: StagedFile, offset: int) -> Iterator[bytes]:
        """Yield a file of the node's site from an offset on, for who does not see its disk.

        Args:
            where: `payloads`, or `versions`: the path has the commit table's UUID and the version
                before that below the table.

        Raises:
            NotFoundError: The site does not have it (definite).
            ManifestMismatchError, PayloadStoreError: It is damaged there (definite).
        """
        return self.pieces(
            f"/v1/worker/files/{where}/{quote(file.path)}",
            query={"digest": file.digest, "size": file.size_bytes, "rows": file.rows},
            offset=offset,
            silence_s=_SILENCE_S,
            token=self._token_of_worker(),
        )

    def check_commit_table(self, request: CommitTableCheckRequest) -> CommitTableCheck:
        """Have the node recount the next versions of a commit table, and mend them if asked."""
        path = "/v1/worker/commit-tables/check"
        return self._post(CommitTableCheck, path, request, wait_s=_REPAIR_TIME_S)

    def record_transfer(self, transfer: Transfer) -> None:
        """Send the record of a catch-up: estimated and actual time."""
        self._post(object, "/v1/worker/transfers", transfer)

    def maintain_log(self) -> dict[str, Any]:
        """Have the node shorten its log to its limits now; return what it did."""
        return self._call(
            dict[str, Any],
            "POST",
            "/v1/maintenance",
            body=b"{}",
            wait_s=_SHORTEN_TIME_S,
            token=self._admin_token,
        )

    def _post(self, kind: type[T], path: str, value: object, *, wait_s: float = 0.0) -> T:
        """Post to a route that only workers may use, with the worker's token."""
        body, token = msgspec.json.encode(value), self._token_of_worker()
        return self._call(kind, "POST", path, body=body, wait_s=wait_s, token=token)

    def _token_of_worker(self) -> str:
        """Return the token for what only workers may do, empty = none."""
        if self._worker_token is None:
            self._worker_token = self._read_worker_token()
        return self._worker_token

    def _read_worker_token(self) -> str:
        if not self.token:
            # If clients need no token, workers need none.
            return ""
        if (given := worker_token()) is not None:
            return given
        try:
            return Path(self.info().worker_token_file).read_text("ascii").strip()
        except (OSError, ValueError):
            # The node's refusal names the file.
            return ""

    def _call(
        self,
        kind: type[T],
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        query: dict[str, Any] | None = None,
        wait_s: float = 0.0,
        token: str | None = None,
    ) -> T:
        answer = self.request(
            method, path, body=body, query=query, timeout_s=wait_s + _ANSWER_TIME_S, token=token
        )
        # A 204 has no body.
        found: T = self._decoded(answer or b"null", kind)
        return found

    # -- errors ----------------------------------------------------------------------------------

    def _failed(self, method: str, path: str, error: TransportError) -> TransportError:
        # One fact has one code: nothing was sent, or the link broke.
        kind = UnreachableError if isinstance(error, UnreachableError) else TransportError
        why = error.__cause__
        return kind(
            f"node {self.url} did not answer {method} {path}: {str(why) or type(why).__name__}",
            hint="Is the node running there?  The call may be repeated.",
            url=self.url,
        )

    def _unreadable(self, error: Exception) -> TxLogError:
        return RemoteProtocolError(
            f"the node's answer cannot be read: {error}",
            hint="Node and worker must be of one release.",
        )

    def _refused(self, path: str, status: int, answer: bytes) -> TxLogError:
        """Return the error of an answer that is no success.

        The problem's code decides, not the status alone: only `expired` says that the log is gone;
        a proxy or another release may also answer 410.
        """
        found = error_of(answer, status, self.url)
        text = f"{self.url}{path} answered {status}: {found.message}"
        if type(found) in _REFUSALS:
            return type(found)(text, hint=found.hint, url=self.url)
        if status in (401, 403):
            return UnauthorizedError(text, hint=found.hint, url=self.url)
        if status >= 500 or status in _TRANSIENT:
            return TransportError(text, hint=found.hint, url=self.url)
        hint = "Is that the URL of a node?  Node and worker must be of one release."
        return RemoteProtocolError(text, hint=f"{found.hint}  {hint}".strip(), url=self.url)
