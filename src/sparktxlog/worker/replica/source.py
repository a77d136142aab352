"""Where a worker gets the log from and tells what it did: its node's worker interface.

`LogSource` is what the worker needs; `HttpLogSource` asks a node over one kept connection.
"""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from sparktxlog.errors import (
    ApplyError,
    ConfigError,
    ExpiredError,
    ForbiddenError,
    ForbiddenPeerError,
    InvalidRequestError,
    LocalProtocolError,
    NotFoundError,
    OversizeError,
    RemoteProtocolError,
    TransportError,
    TxLogError,
    UnauthorizedError,
)
from sparktxlog.http.tokens import local_token
from sparktxlog.model.copying import CopyTicket, Decision, Transfer
from sparktxlog.model.report import Recount, WorkerReport
from sparktxlog.model.table import TableDefinition
from sparktxlog.storage.interfaces import Segment
from sparktxlog.worker.apply.cutting import Cut, cut_segments

T = TypeVar("T")

#: Added to the wait asked for, seconds: the node needs time to answer.
_ANSWER_TIME_S = 15.0
#: Seconds in which donors can pin the files of a large replica.
_PIN_TIME_S = 120.0
#: Seconds in which a node can remove the files of a long log.
_SHORTEN_TIME_S = 600.0
#: Refusals of a node that a worker tells apart, by the code in its answer.
_REFUSALS: dict[str, type[TxLogError]] = {
    kind.code: kind
    for kind in (
        ExpiredError, ForbiddenError, ForbiddenPeerError, InvalidRequestError, LocalProtocolError,
        NotFoundError, OversizeError, RemoteProtocolError, UnauthorizedError,
    )
}  # fmt: skip
#: Refusals of whoever stands between worker and node, which may go by.
_PASSING = (408, 425, 429)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """What a worker must know of its node before it starts."""

    node_id: str
    lineage: str
    #: Absolute paths that node and worker share.
    payload_root: str
    lake_root: str
    signature_interval: int
    #: Last ordered position, and last published one.
    position: int = 0
    published: int = 0
    #: Where old files are kept before a copy replaces them, None = nowhere.
    backup_dir: str | None = None
    #: Seconds between reports.
    worker_heartbeat: float = 5.0
    #: Hours between two scans of a table by a worker that follows, 0 = never.
    verify_interval: float = 0.0
    #: Where the node keeps what its workers show.
    worker_token_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Published segments after a position, ascending and without gap."""

    #: Last published position.
    position: int
    lineage: str
    epoch: int
    segments: tuple[Segment, ...] = ()
    #: Where the worker cut them for itself; no node does.
    cut: Cut | None = None

    def cut_at(self, cut: Cut) -> Tail:
        """Return this as if the node's log ended at a cut."""
        end = min(self.position, cut.position)
        return replace(self, position=end, segments=cut_segments(self.segments, cut), cut=cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the node makes of a report: `plan` is up-to-date, replay, copy or stop."""

    verdict: str
    plan: str
    reason: str = ""
    #: Another site has other content, and nobody can say who is right.
    contested: bool = False
    #: Tables to be recounted, which may tell who is right.
    recount: tuple[str, ...] = ()
    #: Label of the report whose tables the node keeps, empty = of none.
    kept: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteReplica:
    """Another replica as its site reported it."""

    worker_id: str
    node_id: str
    position: int
    #: Table → signature as text.
    signatures: dict[str, str] = field(default_factory=dict)


class LogSource(Protocol):
    """The log as a worker sees it.

    All methods raise TransportError when the node cannot be reached (reports are idempotent,
    so that all calls may be repeated), UnauthorizedError when it refuses the worker's token, and
    RemoteProtocolError where node and worker do not understand each other (both definite).
    """

    def info(self) -> NodeInfo:
        """Return where the node keeps what the worker shares with it."""

    def segments(self, after: int, *, wait_s: float, limit: int = 500) -> Tail:
        """Return segments after a position, waiting for the first if there is none yet.

        Raises:
            ExpiredError: The log no longer holds what follows that position (definite).
        """

    def tables(self) -> dict[str, TableDefinition]:
        """Return the catalog."""

    def report(self, report: WorkerReport) -> Answer:
        """Tell the node where the replica stands."""

    def replicas(self) -> list[SiteReplica]:
        """Return what all known replicas reported last."""

    def plan(self, worker_id: str) -> Decision:
        """Return what the node would do about a replica; it does nothing."""

    def take_recount(self, recount: Recount) -> Answer:
        """Tell the node what a full scan found; it answers as to a report."""

    def copy_ticket(self, worker_id: str, *, forced: bool, donor: str = "") -> CopyTicket:
        """Have donors pin their files for a copy.

        Args:
            worker_id: Whose replica is replaced.
            forced: Whatever the node plans.
            donor: Copy from this site only, also where replicas differ; empty = any.

        Raises:
            ApplyError: No copy is possible, with the node's reason (definite).
        """

    def record_transfer(self, transfer: Transfer) -> None:
        """Tell the node how a copy went, estimate against actual."""

    def close(self) -> None:
        """Release the connection."""


class HttpLogSource:
    """A node's worker interface over HTTP.  Not thread safe: one for each thread.

    Args:
        url: Base URL of the node's client interface.
        token: Client token, where the node asks for one; default: the one that it noted.
        admin_token: Operator's token, for what takes one; default: the client token.
    """

    def __init__(self, url: str, token: str | None = None, admin_token: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"{url!r} is no URL of a node", hint="Example: http://127.0.0.1:7401", value=url
            )
        self.url = url.rstrip("/")
        self.token = token
        self._admin_token = admin_token or token
        #: What a worker of that node shows; None = not looked for yet, empty = not readable here.
        self._worker_token: str | None = None
        self._own_token = token or local_token(url)
        self._secure = parts.scheme == "https"
        self._address = (parts.hostname, parts.port)
        self._prefix = parts.path.rstrip("/")
        self._connection: http.client.HTTPConnection | None = None

    def info(self) -> NodeInfo:
        """Return where the node keeps what the worker shares with it."""
        return _read(self._call("GET", "/v1/info"), NodeInfo)

    def segments(self, after: int, *, wait_s: float, limit: int = 500) -> Tail:
        """Return segments after a position, waiting up to `wait_s` seconds for the first."""
        query = urlencode({"after": after, "wait": wait_s, "limit": limit})
        return _read(self._call("GET", f"/v1/worker/segments?{query}", wait_s=wait_s), Tail)

    def tables(self) -> dict[str, TableDefinition]:
        """Return the catalog."""
        found = _read(self._call("GET", "/v1/worker/tables"), list[TableDefinition])
        return {definition.name: definition for definition in found}

    def report(self, report: WorkerReport) -> Answer:
        """Tell the node where the replica stands."""
        return _read(self._post("/v1/worker/reports", msgspec.json.encode(report)), Answer)

    def replicas(self) -> list[SiteReplica]:
        """Return what all known replicas reported last."""
        status = _read(self._call("GET", "/v1/status?tables=1"), dict[str, Any])
        return [
            SiteReplica(
                worker_id=str(replica.get("worker_id", "")),
                node_id=str(replica["node_id"]),
                position=int(replica["position"]),
                signatures={
                    table: _signature_text(state)
                    for table, state in (replica.get("tables") or {}).items()
                },
            )
            for replica in status.get("replicas", ())
        ]

    def document(self, path: str, **query: Any) -> Any:
        """Return the JSON answer of a `GET`, for what is read by people and compared by sites."""
        return _read(self._call("GET", f"{path}?{urlencode(query)}" if query else path), Any)

    def plan(self, worker_id: str) -> Decision:
        """Return what the node would do about a replica; it does nothing."""
        query = urlencode({"worker": worker_id})
        return _read(self._call("GET", f"/v1/worker/plan?{query}"), Decision)

    def take_recount(self, recount: Recount) -> Answer:
        """Tell the node what a full scan found; it answers as to a report."""
        body = msgspec.json.encode(recount)
        return _read(self._post("/v1/worker/recounts", body), Answer)

    def copy_ticket(self, worker_id: str, *, forced: bool, donor: str = "") -> CopyTicket:
        """Have donors pin their files for a copy."""
        body = msgspec.json.encode({"worker_id": worker_id, "forced": forced, "donor": donor})
        try:
            answer = self._post("/v1/worker/copies", body, wait_s=_PIN_TIME_S)
        except LocalProtocolError as error:
            raise ApplyError(error.message, hint=error.hint, **error.fields) from error
        return _read(answer, CopyTicket)

    def record_transfer(self, transfer: Transfer) -> None:
        """Tell the node how a copy went, estimate against actual."""
        self._post("/v1/worker/transfers", msgspec.json.encode(transfer))

    def maintain_log(self) -> dict[str, Any]:
        """Have the node shorten its log to its limits now; return what it did."""
        answer = self._call(
            "POST", "/v1/maintenance", body=b"{}", wait_s=_SHORTEN_TIME_S, token=self._admin_token
        )
        return _read(answer, dict[str, Any])

    def close(self) -> None:
        """Release the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post(self, path: str, body: bytes, *, wait_s: float = 0.0) -> bytes:
        """Post what only a worker of the node may tell, and show that this is one."""
        if self._worker_token is None:
            self._worker_token = self._read_worker_token()
        return self._call("POST", path, body=body, wait_s=wait_s, token=self._worker_token or None)

    def _read_worker_token(self) -> str:
        if not self._own_token:
            # Where clients need none, workers need none either.
            return ""
        try:
            return Path(self.info().worker_token_file).read_text("ascii").strip()
        except (OSError, ValueError):
            # The node says what is missing, and which file it is.
            return ""

    def _call(
        self, method: str, path: str, *, body: bytes | None = None, wait_s: float = 0.0,
        token: str | None = None,
    ) -> bytes:  # fmt: skip
        """Send one request; a kept connection that the node closed meanwhile is opened anew."""
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if shown := token or self._own_token:
            headers["Authorization"] = f"Bearer {shown}"
        kept = self._connection is not None
        while True:
            try:
                connection = self._connect(wait_s + _ANSWER_TIME_S)
                connection.request(method, self._prefix + path, body=body, headers=headers)
                response = connection.getresponse()
                content = response.read()
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if kept and not isinstance(error, TimeoutError):
                    kept = False
                    continue
                raise TransportError(
                    f"node {self.url} did not answer {method} {path}: "
                    f"{str(error) or type(error).__name__}",
                    hint="Is the node running there?  The call may be repeated.",
                    url=self.url,
                ) from error
            if response.status >= 400:
                raise _refusal(self.url + path, response.status, content)
            return content

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            self._connection = kind(*self._address, timeout=timeout_s)
        self._connection.timeout = timeout_s
        if self._connection.sock is not None:
            self._connection.sock.settimeout(timeout_s)
        return self._connection


def _read(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(
            f"the node's answer cannot be read: {error}",
            hint="Node and worker must be of one release.",
        ) from error


def _refusal(url: str, status: int, content: bytes) -> TxLogError:
    """Return the error that an answer without success stands for.

    The node's code decides, not the status alone: only `expired` says that the log is gone, while
    a proxy or another release may answer 410 as well.
    """
    try:
        problem = json.loads(content)
    except ValueError:
        problem = {}
    problem = problem if isinstance(problem, dict) else {}
    text = problem.get("detail") or content[:200].decode("utf-8", "replace")
    message, hint = f"{url} answered {status}: {text}", str(problem.get("hint") or "")
    kind = _REFUSALS.get(str(problem.get("title")))
    if kind is not None:
        return kind(message, hint=hint, url=url)
    if status in (401, 403):
        return UnauthorizedError(message, hint=hint, url=url)
    if status >= 500 or status in _PASSING:
        return TransportError(message, hint=hint, url=url)
    hint = hint or "Is that the URL of a node?  Node and worker must be of one release."
    return RemoteProtocolError(message, hint=hint, url=url)


def _signature_text(state: Any) -> str:
    """Read a table's signature as the status shows it: text, or the three numbers."""
    found = state.get("signature") if isinstance(state, dict) else state
    if isinstance(found, dict):
        return f"{found['rows']}:{found['lane0']:016x}:{found['lane1']:016x}"
    return str(found or "")
