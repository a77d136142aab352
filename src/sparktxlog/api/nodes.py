"""A client of several nodes of one log: it asks a node that answers, and finds lost submits.

A transaction keeps its id wherever it is submitted, so it is safe to submit it again at another
node: if it is ordered twice, only the first takes effect, and every node answers with the first
one's outcome.  After a definite refusal the submit goes to the next node.  If it may have taken
effect, the other nodes are asked first, then it is submitted there.  The outcome is UNKNOWN only
if no node knows it in time; it is never guessed.

Files that were staged in one site's payload store cannot be submitted at another site.  Such a
transaction is bound to its node; the others are only asked for its outcome.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import msgspec

from sparktxlog import __version__
from sparktxlog.api.long_steps import long_step
from sparktxlog.codec.submits.arguments import seconds_given, text_given, texts_given
from sparktxlog.codec.submits.condition_requests import committed
from sparktxlog.codec.submits.requests import parse_level, request_of
from sparktxlog.codec.submits.transactions import PreparedTransaction
from sparktxlog.errors import (
    CertificateError,
    CommitStateUnknownError,
    ConfigError,
    DiskFullError,
    IdTakenError,
    InvalidRequestError,
    LocalProtocolError,
    NotFoundError,
    NotMemberError,
    PeerTimeoutError,
    PositionNotReachedError,
    TransportError,
    TxLogError,
    UnreachableError,
)
from sparktxlog.http.link import LEAST_S, GrowingPause, Http, node_patience
from sparktxlog.http.list_pages import read_pages
from sparktxlog.lazy_arrow import load_arrow, pa
from sparktxlog.model.answers import LONGEST_WAIT_S
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.tables.table import VersionedTable
from sparktxlog.model.tables.table_kind import TableDescription
from sparktxlog.model.transactions.receipt import LEVEL_RANK, Level, Receipt

_log = logging.getLogger(__name__)

#: Phases in which a node takes transactions.
_TAKES_PART = ("NORMAL", "SUSPECT", "WEDGED")
#: Seconds during which a node that did not answer is asked last.
_MUTE_S = 5.0
_FIRST_PAUSE_S = 0.05
#: Pauses between two questions for a receipt.
_FIRST_QUESTION_PAUSE_S = 0.01
_LONGEST_QUESTION_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 1.0
_LEAST_SHARE_S = 0.5
#: Seconds for a question that other nodes can answer too.
_PATIENCE_S = 5.0
#: In place of a URL: a node that an earlier call asked.
_EARLIER = ""
#: With less time left, no node is asked again.
_SHORTEST_S = 0.05


@dataclass(slots=True, kw_only=True)
class _Errand:
    """One submit, and what the nodes answered so far."""

    body: bytes
    #: Whether it is a run: its receipt is not that of its first id.
    is_run: bool
    #: Id of the transaction, the first one of a run.
    id_text: str
    level: str
    #: Position that the node must have reached.
    after: int | None
    #: Deadlines of the level and of the call, which lasts `LEAST_S` at least.
    deadline: float
    end: float
    #: URL of the only node that can take it, None = all can.
    only: str | None
    #: Whatever the log has under its id counts.
    first_wins: bool
    #: URL → why that node may have taken it.
    perhaps: dict[str, TxLogError] = field(default_factory=dict)
    #: URL → why that node takes nothing at the moment.
    refusals: dict[str, TxLogError] = field(default_factory=dict)
    #: True: a node refused the transaction, but another one may have taken it; only ask.
    barred: bool = False
    #: Receipt of an ordered transaction that is late, or without its outcome.
    ordered: Receipt | None = None
    reached: Level | None = None

    def left(self) -> float:
        """Seconds left until the call ends."""
        return max(0.0, self.end - time.monotonic())

    def has_time(self) -> bool:
        """Whether there is time for another round."""
        return self.left() > _SHORTEST_S and time.monotonic() < self.deadline

    def is_asked_again(self) -> bool:
        """Whether another round may bring more, and there is time for it."""
        refusals = self.refusals.values()
        may_change = self.perhaps or self.ordered or any(error.retryable for error in refusals)
        return bool(may_change) and self.has_time()

    def patience(self, share: float) -> float:
        """Seconds of its share that a node may wait for the level."""
        return max(0.0, min(self.deadline - time.monotonic(), node_patience(share)))

    def post(self, link: Http, share: float) -> Receipt:
        """Submit it to a node, which takes so many seconds at most."""
        return link.submit_once(
            self.body,
            is_run=self.is_run,
            level=self.level,
            after=self.after,
            timeout_s=share,
            wait_s=self.patience(share),
            first_wins=self.first_wins,
        )

    def take(self, receipt: Receipt) -> Receipt | None:
        """Return a receipt at its level; a late one, or one without outcome, is kept: None."""
        bare = receipt.n == 1 and receipt.position is not None and receipt.outcome is None
        # Another node would not know that too few members hold it (P34), and a node that stands
        # still does not go on while it is asked.
        final = receipt.holders is not None or receipt.held_up is not None
        if not bare and (not receipt.late or final):
            return receipt
        if self.ordered is None or not bare:
            self.ordered = receipt
        return None

    def reasons(self) -> str:
        """Why no node has taken it yet, as text."""
        known = {**self.refusals, **self.perhaps}
        return "; ".join(f"{url}: {error}" for url, error in known.items()) or "its level is late"

    def is_over(self) -> bool:
        """Whether a kept receipt is final: a late level may still be reached."""
        return self.ordered is not None and not (self.ordered.late and self.has_time())


class Doubt:
    """Why a node may have what is submitted: no refusal of a repeat is definite then."""

    def __init__(self) -> None:
        self._why: TxLogError | None = None

    @contextmanager
    def posting(self) -> Iterator[TxLogError | None]:
        """Submit in this block, with what it gives as `doubt` (see `Nodes.submit`).

        Only a definite error says that this call sent nothing.  Any other end leaves a doubt: an
        interrupt, too.
        """
        before = self._why
        self._why = CommitStateUnknownError("an earlier call was interrupted")
        try:
            yield before
        except TxLogError as error:
            self._why = before if error.definite else error
            raise
        self._why = CommitStateUnknownError("a node accepted it")


class Nodes:
    """Kept connections to the nodes of one log; safe to share between threads.

    The node that answered last is asked first; the first one given is where it begins.

    Args:
        urls: One URL, several with commas between them, or a list.
        token: Client token of all nodes; default: the variable `SPARKTXLOG_CLIENT_TOKEN`.
        timeout_s: Seconds to wait for an answer, unless a call says otherwise.
        ca_file: Authority of the nodes' certificates, as in `Http`.

    Raises:
        InvalidRequestError: What cannot be a URL, a time or a path (definite).
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        token: str | None = None,
        timeout_s: float = 30.0,
        ca_file: str | os.PathLike[str] | None = None,
    ) -> None:
        given = urls.split(",") if isinstance(urls, str) else texts_given(urls, "url")
        timeout_s = seconds_given(timeout_s)
        found = dict.fromkeys(url.strip().rstrip("/") for url in given)
        if len(found) > 1:
            found.pop("", None)
        self._links = tuple(
            Http(url, token=token, timeout_s=timeout_s, ca_file=ca_file) for url in found or [""]
        )
        self._current = self._links[0]
        self._mute: dict[str, float] = {}
        self._lock = threading.Lock()
        self.timeout_s = timeout_s
        #: Greatest position of a receipt; later requests come after it.
        self.position = 0

    @property
    def urls(self) -> list[str]:
        """URLs of all nodes, in the order in which they are asked."""
        return [
            link.url for link in sorted(self._links, key=lambda link: link is not self._current)
        ]

    def __len__(self) -> int:
        return len(self._links)

    def after(self, position: int) -> None:
        """Make later submits, and reads of tables, come after a position."""
        with self._lock:
            self.position = max(self.position, position)

    def _seen(self, receipt: Receipt) -> Receipt:
        if receipt.position is not None:
            self.after(receipt.position + max(receipt.n, 1) - 1)
        return receipt

    def close(self) -> None:
        """Close the idle connections."""
        for link in self._links:
            link.close()

    def choose(self) -> tuple[Http, dict[str, Any]]:
        """Return the first node that takes transactions, else the first that answers, and its info.

        Raises:
            UnreachableError: No node answers (definite).
        """
        found: tuple[Http, dict[str, Any]] | None = None
        failure: TransportError | None = None
        for link in self._links:
            try:
                info = dict(link.get("/v1/info"))
            except TransportError as error:
                self._pass_over(link, error)
                failure = failure or error
                continue
            if info.get("phase", _TAKES_PART[0]) in _TAKES_PART:
                found = link, info
                break
            found = found or (link, info)
        if found is None:
            assert failure is not None
            raise failure
        self._current = found[0]
        return found

    def _pass_over(self, link: Http, error: TransportError) -> None:
        """Ask a node that did not answer last for a while; raise errors that concern all nodes."""
        if not _is_mute(error):
            raise error
        self._mute[link.url] = time.monotonic() + _MUTE_S

    # -- questions ------------------------------------------------------------------------------

    def get(
        self, path: str, *, timeout_s: float | None = None, waits: bool = False, **query: Any
    ) -> Any:
        """Return the answer of the first node that has one; arguments and errors as `Http.get`.

        Each node gets half of the time left, the last one all.  A witness gives no answer to what
        only masters know, a node that does not know the log yet none about tables and transactions.
        """
        end = time.monotonic() + max(LEAST_S, self.timeout_s if timeout_s is None else timeout_s)
        failure: TxLogError | None = None
        witness: NotFoundError | None = None
        for number, link in enumerate(self._in_turn(), start=1):
            left = end - time.monotonic()
            if left <= 0:
                break
            try:
                share = left if number == len(self) else left / 2
                answer = link.get(path, timeout_s=share, waits=waits, **query)
            except NotFoundError as error:
                if "witness" not in error.fields:
                    raise
                witness = error
                continue
            except (PositionNotReachedError, NotMemberError) as error:
                failure = failure or error
                continue
            except TransportError as error:
                self._pass_over(link, error)
                failure = failure or error
                continue
            self._current = link
            return answer
        last = failure or witness
        assert last is not None
        raise last

    def view(self, name: str, *, after: int | None = None, limit: int | None = None) -> pa.Table:
        """Return rows of a view of the state, as the first node that answers knows them.

        Raises:
            InvalidRequestError: No such view, or it cannot be read after a value (definite).
            MissingDependencyError: pyarrow or NumPy is not installed (definite).
            TransportError: No node answers.
        """
        path = f"/v1/views/{quote(text_given(name, 'name'), safe='')}"
        load_arrow("a view of the state")
        found = self.get(path, raw=True, format="arrow", after=after, limit=limit)
        with pa.ipc.open_stream(found) as reader:
            table = reader.read_all()
        # Spark makes no DataFrame of columns without a chunk.
        return table if table.num_rows else table.schema.empty_table()

    def tables(self) -> list[VersionedTable]:
        """Return all tables at a node that has reached `position`; errors as `table`."""
        found = read_pages(self.get, "/v1/tables", waits=True, after=self.position or None)
        return [_versioned(table) for table in found]

    def table(self, name: str, timeout_s: float | None = None) -> VersionedTable:
        """Return a table at a node that has reached `position`.

        Raises:
            UnknownTableError: The log has no such table (definite).
            PositionNotReachedError: No node reached the position in time (definite).
            TransportError: No node answers.
        """
        path = f"/v1/tables/{quote(name, safe='')}"
        return _versioned(
            self.get(path, timeout_s=timeout_s, waits=True, after=self.position or None)
        )

    def describe(self, name: str) -> TableDescription:
        """Return a table of either kind at a node that reached `position`; errors as `table`."""
        path = f"/v1/descriptions/{quote(text_given(name, 'name'), safe='')}"
        found = self.get(path, waits=True, after=self.position or None)
        return msgspec.convert(found, TableDescription)

    def receipt(self, transaction_id: str, timeout_s: float | None = None) -> Receipt:
        """Return the most that any node knows of a transaction.

        Args:
            transaction_id: A UUID.
            timeout_s: Seconds for all nodes, `LEAST_S` at least; default: the link's.

        Raises:
            NotFoundError: No node that answered has seen it; field `unheard` names the others
                (definite if there are none).
            TransportError: No node answers.
        """
        best: Receipt | None = None
        unseen: NotFoundError | None = None
        unheard: dict[str, TxLogError] = {}
        end = time.monotonic() + max(LEAST_S, self.timeout_s if timeout_s is None else timeout_s)
        for link in self._in_turn():
            left = end - time.monotonic()
            if left <= 0:
                unheard[link.url] = PeerTimeoutError(f"no time was left to ask {link.url}")
                continue
            try:
                share = left if len(self) == 1 else min(max(left / 2, _LEAST_SHARE_S), _PATIENCE_S)
                found = link.receipt(transaction_id, timeout_s=share)
            except NotFoundError as error:
                unseen = error
                continue
            except (NotMemberError, TransportError) as error:
                if isinstance(error, TransportError):
                    self._pass_over(link, error)
                unheard[link.url] = error
                continue
            if best is None or _rank(found) > _rank(best):
                best = found
            if best.outcome is not None:
                break
        if best is not None:
            return self._seen(best)
        if unseen is None:
            raise next(iter(unheard.values()))
        if unheard:
            unseen.fields["unheard"] = sorted(unheard)
        raise unseen

    def _in_turn(self) -> list[Http]:
        now = time.monotonic()
        return sorted(
            self._links,
            key=lambda link: (self._mute.get(link.url, 0.0) > now, link is not self._current),
        )

    # -- submits --------------------------------------------------------------------------------

    def post(self, path: str, body: bytes, timeout_s: float | None = None) -> Receipt:
        """Submit what may be repeated at any node; return the receipt of the first that takes it.

        Each node gets half of the time left, the last one all.

        Raises:
            TransportError, CommitStateUnknownError: A node may have taken it: do it again.
            TxLogError: The node's own error, in its class.
        """
        end = time.monotonic() + max(LEAST_S, self.timeout_s if timeout_s is None else timeout_s)
        failures: list[TxLogError] = []
        for number, link in enumerate(self._in_turn(), start=1):
            left = end - time.monotonic()
            if left <= 0:
                break
            share = left if number == len(self) else left / 2
            query = {"timeout": round(node_patience(share), 3), "after": self.position or None}
            try:
                answer = link.request("POST", path, body=body, query=query, timeout_s=share)
            except TransportError as error:
                self._pass_over(link, error)
                failures.append(error)
                continue
            except TxLogError as error:
                if error.definite and not _takes_nothing(error):
                    raise
                failures.append(error)
                continue
            self._current = link
            return self._seen(msgspec.json.decode(answer, type=Receipt))
        # The first that is not definite, if there is one: that node may have taken it.
        raise min(failures, key=lambda error: error.definite)

    def submit(
        self,
        body: bytes,
        first_id: bytes,
        *,
        is_run: bool = False,
        level: str = "ordered",
        timeout_s: float | None = None,
        only: str | None = None,
        after: int | None = None,
        first_wins: bool = False,
        doubt: TxLogError | None = None,
    ) -> Receipt:
        """Submit at the first node that takes it, and see to it that its outcome is known.

        What is ordered and does not reach a higher level in time is returned as `late`.

        Args:
            body: A transaction as JSON, or a run; it holds the transaction ids.
            first_id: Id of the transaction, the first one of a run.
            is_run: Whether it is a run.
            level: How far it must get, at the node that answers.
            timeout_s: Seconds for everything, all nodes and repeats included.
            only: URL of the only node that can take it: its files are staged there.
            after: Position, in addition to `position`, that a node must have got to.
            first_wins: Whatever the log has under the id counts.
            doubt: Why an earlier call may have submitted it: then a refusal of this one is not
                definite.

        Raises:
            IdTakenError: It is other content (definite).
            CommitStateUnknownError: No node knows it at the level in time, and one may have taken
                it (not definite; fields `transaction_id`, `reached`, `asked`).
            CommitRejectedError: Nothing happened (definite).
            UnreachableError: No node could be reached; nothing was sent (definite).
        """
        wanted, now = self.timeout_s if timeout_s is None else timeout_s, time.monotonic()
        errand = _Errand(
            body=body,
            is_run=is_run,
            level=level,
            after=max(self.position, after or 0) or None,
            only=only,
            first_wins=first_wins,
            id_text=transaction_id_to_text(first_id),
            deadline=now + wanted,
            end=now + max(LEAST_S, wanted),
            perhaps={} if doubt is None else {_EARLIER: doubt},
        )
        pause = GrowingPause(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            for link in self._in_turn():
                receipt = self._visit(link, errand)
                if receipt is not None:
                    self._current = link
                    return self._seen(receipt)
                if (errand.perhaps or errand.ordered) and not errand.left():
                    break
            if errand.is_over() or not errand.is_asked_again():
                return self._seen(self._ending(errand))
            _log.debug(
                "transaction %s is submitted again in %.2f s: %s",
                errand.id_text,
                pause.next_s,
                errand.reasons(),
            )
            pause.wait(errand.left())

    def commit(
        self,
        body: bytes,
        transaction_id: bytes,
        *,
        level: str,
        timeout_s: float | None,
        only: str | None = None,
        after: int | None = None,
        first_wins: bool = False,
        doubt: TxLogError | None = None,
    ) -> Receipt:
        """Submit one transaction's JSON; see `submit`.

        Raises:
            CommitRejectedError: Also if it was rejected at its position; the class says why.
        """
        return committed(
            self.submit(
                body,
                transaction_id,
                level=level,
                timeout_s=timeout_s,
                only=only,
                after=after,
                first_wins=first_wins,
                doubt=doubt,
            )
        )

    def find(self, transaction_id: bytes, timeout_s: float | None = None) -> Receipt | None:
        """Return the receipt of a transaction, None if no node that answers ever saw it."""
        try:
            return self.receipt(transaction_id_to_text(transaction_id), timeout_s)
        except NotFoundError:
            return None

    def known(self, transaction_id: bytes, level: str, timeout_s: float) -> Receipt | None:
        """Return the receipt of a transaction that a node knows, once at the level.

        Raises:
            CommitRejectedError: It was rejected by the order of the log (definite).
            CommitStateUnknownError: It did not reach the level in time (not definite).
        """
        deadline = time.monotonic() + timeout_s
        if self.find(transaction_id, timeout_s) is None:
            return None
        left = max(0.0, deadline - time.monotonic())
        return committed(self.wait(transaction_id_to_text(transaction_id), level, left))

    def wait(self, transaction_id: str, level: str, timeout_s: float) -> Receipt:
        """Ask until a transaction has reached a level; see `Client.wait`."""
        wanted, sites = parse_level(level)
        if sites != 1:
            raise InvalidRequestError(
                f"level {level!r} can only be requested at submit", hint="Wait for applied."
            )
        deadline = time.monotonic() + timeout_s
        pause = GrowingPause(_FIRST_QUESTION_PAUSE_S, _LONGEST_QUESTION_PAUSE_S)
        while True:
            found: Receipt | None = None
            try:
                found = self.receipt(transaction_id, max(0.0, deadline - time.monotonic()))
            except NotFoundError as error:
                if not error.fields.get("unheard"):
                    raise  # otherwise a node that does not answer may have it
            except NotMemberError:
                pass  # the nodes that answered do not know the log yet
            reached = None if found is None else found.level
            if found and reached and LEVEL_RANK[reached] >= LEVEL_RANK[wanted]:
                return found
            left = deadline - time.monotonic()
            if found is not None and found.held_up is not None and wanted is Level.APPLIED:
                return replace(found, late=True)
            if left <= 0 and found is not None and found.position is not None:
                return replace(found, late=True)
            if left <= 0:
                raise CommitStateUnknownError(
                    f"transaction {transaction_id} has not reached {level!r} in time",
                    hint="It may still reach it.",
                    transaction_id=transaction_id,
                    reached=None if reached is None else reached.value,
                )
            pause.wait(left)

    def _visit(self, link: Http, errand: _Errand) -> Receipt | None:
        """Ask a node for an earlier submit at another node, then submit; None = go on."""
        # With only one node, the same id is submitted again.
        doubtful = errand.perhaps or errand.ordered
        if doubtful and (errand.barred or len(self) > 1):
            found = self._known(link, errand)
            if found is not None:
                return found
        left = errand.left()
        if errand.barred or errand.only not in (None, link.url) or not left:
            return None
        # Half of the time, so that some is left for another node.
        share = left if len(self) == 1 else max(left / 2, min(left, _LEAST_SHARE_S))
        wait_s = errand.patience(share)
        try:
            receipt = errand.post(link, share)
        except TxLogError as error:
            waited = wait_s < LONGEST_WAIT_S
            if len(self) == 1 and waited and isinstance(error, CommitStateUnknownError):
                raise
            self._judge(link, errand, error)
            return None
        return errand.take(receipt)

    def _known(self, link: Http, errand: _Errand) -> Receipt | None:
        """Return the node's receipt if it has the level; a run has no receipt by one of its ids.

        Raises:
            IdTakenError: What the log has under the id is other content (definite).
        """
        level, sites = parse_level(errand.level)
        if errand.is_run or sites != 1:
            return None
        left = errand.left()
        if not left:
            return None
        try:
            found = link.receipt(errand.id_text, timeout_s=min(left, _PATIENCE_S))
        except (NotFoundError, NotMemberError, TransportError):
            return None
        if found.level is None:
            return None
        if LEVEL_RANK[found.level] < LEVEL_RANK[level]:
            if errand.reached is None or LEVEL_RANK[found.level] > LEVEL_RANK[errand.reached]:
                errand.reached = found.level
            return None
        try:
            # It may be other content; the node compares it if it knows the id, and takes nothing
            # again.
            return errand.take(errand.post(link, min(left, _PATIENCE_S)))
        except TxLogError as error:
            if isinstance(error, IdTakenError) and error.fields.get("position") is not None:
                raise
            return None

    def _judge(self, link: Http, errand: _Errand, error: TxLogError) -> None:
        """Note why a node gave no receipt; raise an error that concerns all nodes."""
        if isinstance(error, IdTakenError) and error.fields.get("position") is not None:
            raise error  # what is ordered under the id stays, even if this one was taken, too
        if isinstance(error, TransportError) and _is_mute(error):
            self._pass_over(link, error)
        if not error.definite:
            errand.perhaps[link.url] = error
        elif _takes_nothing(error):
            errand.refusals[link.url] = error
        elif errand.ordered is None and (
            not errand.perhaps or (set(errand.perhaps) == {link.url} and _never_saw(link, errand))
        ):
            raise error
        else:
            errand.barred = True

    def _ending(self, errand: _Errand) -> Receipt:
        """Ask once more and return the receipt, or raise what is known of the outcome."""
        if errand.ordered is not None:
            return errand.ordered
        if not errand.perhaps:
            error = min(errand.refusals.values(), key=lambda e: isinstance(e, NotFoundError))
            if errand.only is not None:
                error = errand.refusals.get(errand.only, error)
                error.hint = f"{error.hint} {_staged_text(errand.only)}".strip()
            error.fields["asked"] = sorted(errand.refusals)
            raise error
        for link in self._in_turn():
            found = self._known(link, errand)
            if found is not None:
                return found
        if errand.ordered is not None:
            return errand.ordered
        reason = next(iter(errand.perhaps.values()))
        staged = f" {_staged_text(errand.only)}" if errand.only is not None else ""
        raise CommitStateUnknownError(
            f"transaction {errand.id_text} may have been taken, but no node knows it at level "
            f"{errand.level!r} in time: {reason.message}",
            hint=f"Ask for its id, or submit it again with the same id.{staged}",
            transaction_id=errand.id_text,
            reached=_reached(errand),
            asked=[link.url for link in self._links],
        ) from reason


def submit_prepared(
    link: Nodes,
    home: str,
    transaction: PreparedTransaction,
    level: str,
    timeout_s: float,
    first_wins: bool = False,
    doubt: TxLogError | None = None,
) -> Receipt:
    """Commit a transaction whose files are staged at the node `home`; see `Nodes.commit`."""
    staged = any(operation.files for operation in transaction.operations)
    staged = staged or bool(transaction.staged_commits)
    condition = transaction.condition
    with long_step(f"waiting until the commit is {level}"):
        return link.commit(
            request_of(transaction),
            transaction.transaction_id,
            level=level,
            timeout_s=timeout_s,
            only=home if staged else None,
            after=None if condition is None else condition.read_position,
            first_wins=first_wins,
            doubt=doubt,
        )


def _staged_text(url: str) -> str:
    return (
        f"Its files are staged in the payload store of the node at {url}; no other node can take "
        "them. To submit it elsewhere, connect there and commit it again with the same id."
    )


def _reached(errand: _Errand) -> str | None:
    """Return the highest level that a node named."""
    named = [error.fields.get("reached") for error in errand.perhaps.values()]
    levels = [Level(text) for text in named if text in {level.value for level in Level}]
    if errand.reached is not None:
        levels.append(errand.reached)
    return max(levels, key=LEVEL_RANK.__getitem__).value if levels else None


def _rank(receipt: Receipt) -> tuple[int, bool]:
    level = 0 if receipt.level is None else LEVEL_RANK[receipt.level]
    return level, receipt.outcome is not None


def _is_mute(error: TransportError) -> bool:
    """Whether no node answered at that URL, so that another one may be asked."""
    return isinstance(error, (UnreachableError, CertificateError)) or not error.definite


def _takes_nothing(error: TxLogError) -> bool:
    """Whether a definite refusal is about the node, not about the transaction."""
    # A witness has no transactions.
    of_the_node = (UnreachableError, CertificateError, DiskFullError, LocalProtocolError)
    return error.http_status == 503 or isinstance(error, (*of_the_node, NotFoundError))


def _never_saw(link: Http, errand: _Errand) -> bool:
    try:
        link.receipt(errand.id_text, timeout_s=max(errand.left(), _SHORTEST_S))
    except NotFoundError:
        return True
    except TxLogError:
        return False
    return False


def _versioned(found: dict[str, Any]) -> VersionedTable:
    pairs = tuple((found.get("properties") or {}).items())
    return msgspec.convert(found | {"properties": pairs}, VersionedTable)


def check_version(version: str, url: str) -> None:
    """Check that a node is of this package's release, as Spark's jobs and workers have to be.

    Raises:
        ConfigError: It is of another one (definite).
    """
    if version.split(".")[:2] != __version__.split(".")[:2]:
        raise ConfigError(
            f"the node at {url} has version {version}, this package has {__version__}",
            hint=f"Install the node's version: pip install 'sparktxlog[spark]=={version}'.",
            value=version,
        )
