"""Several nodes of one log as one partner: whoever answers is asked, a lost submit is followed.

A transaction keeps its id wherever it is submitted, so submitting it again elsewhere is no risk:
of two that are ordered only the first takes effect, and every node answers with the first one's
outcome.  What was refused for certain goes to the next node.  What may have happened is asked for
at the others first, then submitted there.  Only when nobody knows it in time the outcome is
UNKNOWN, never a guess.

Files that were staged in one site's payload store cannot be submitted at another: such a
transaction is bound to its node, the others are only asked for its outcome.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sparktxlog.api.http import Http
from sparktxlog.codec.requests import parse_level
from sparktxlog.errors import (
    CommitStateUnknownError,
    DiskFullError,
    InvalidRequestError,
    LocalProtocolError,
    NotFoundError,
    TransportError,
    TxLogError,
    UnreachableError,
)
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.receipt import LEVEL_RANK, Level, Receipt

_T = TypeVar("_T")

#: Path of single transactions: the only ones whose receipt is that of their id.
_SINGLE = "/v1/transactions"
#: Phases of a node that takes transactions, if only to keep them.
_TAKES_PART = ("NORMAL", "SUSPECT", "WEDGED")
#: Seconds for which a node that did not answer is asked last.
_MUTE_S = 5.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_LEAST_SHARE_S = 0.5


@dataclass(slots=True, kw_only=True)
class _Errand:
    """One submit on its way through the nodes."""

    path: str
    body: bytes
    content_type: str
    #: Id of the transaction, the first one of a run.
    id_text: str
    level: str
    query: dict[str, Any]
    deadline: float
    #: URL of the only node that can take it, None = all can.
    only: str | None
    #: URL → why the node there may have taken it.
    perhaps: dict[str, TxLogError] = field(default_factory=dict)
    #: URL → why the node there takes nothing at the moment.
    refusals: dict[str, TxLogError] = field(default_factory=dict)
    #: A node refused the transaction itself while another one may have taken it: only ask.
    barred: bool = False
    #: Ordered, by a node that does not keep the outcome.
    without_outcome: Receipt | None = None
    reached: Level | None = None

    def left(self) -> float:
        """Seconds left."""
        return max(0.0, self.deadline - time.monotonic())

    def share(self) -> float:
        """Seconds for the next node: half, so that there is time for another one."""
        left = self.left()
        return max(left / 2, min(left, _LEAST_SHARE_S))

    def take(self, receipt: Receipt) -> Receipt | None:
        """Return a receipt at its level; one without the outcome is kept for want of a better."""
        if receipt.n == 1 and receipt.position is not None and receipt.outcome is None:
            self.without_outcome = receipt
            return None
        return receipt


class Nodes:
    """Kept connections to the nodes of one log; safe to share between threads.

    The node that answered last is asked first; the first one given is where it begins.

    Args:
        urls: One URL, several with commas between them, or a list.
        token: Client token of all nodes; default: the variable `SPARKTXLOG_CLIENT_TOKEN`.
        timeout_s: Seconds to wait for an answer where a call says nothing else.
    """

    def __init__(
        self, urls: str | Sequence[str], *, token: str | None = None, timeout_s: float = 30.0
    ) -> None:
        given = urls.split(",") if isinstance(urls, str) else list(urls)
        found = dict.fromkeys(url.strip().rstrip("/") for url in given)
        if len(found) > 1:
            found.pop("", None)
        self._links = tuple(Http(url, token=token, timeout_s=timeout_s) for url in found or [""])
        self._current = self._links[0]
        self._mute: dict[str, float] = {}
        self.timeout_s = timeout_s

    @property
    def url(self) -> str:
        """URL of the node that is asked first."""
        return self._current.url

    @property
    def urls(self) -> list[str]:
        """URLs of all nodes, that of the one that is asked first in front."""
        return [
            link.url for link in sorted(self._links, key=lambda link: link is not self._current)
        ]

    @property
    def current(self) -> Http:
        """The node that is asked first."""
        return self._current

    def __len__(self) -> int:
        return len(self._links)

    def close(self) -> None:
        """Close the idle connections."""
        for link in self._links:
            link.close()

    def choose(self) -> tuple[Http, dict[str, Any]]:
        """Return the first node that takes transactions, else the first that answers, and its info.

        Raises:
            UnreachableError: No node answers (definite).
        """
        answers: list[tuple[Http, dict[str, Any]]] = []
        failure: TransportError | None = None
        for link in self._links:
            try:
                answers.append((link, dict(link.get("/v1/info"))))
            except TransportError as error:
                if not _is_mute(error):
                    raise
                failure = failure or error
                continue
            if answers[-1][1].get("phase", _TAKES_PART[0]) in _TAKES_PART:
                break
        else:
            if not answers:
                assert failure is not None
                raise failure
            answers.append(answers[0])
        self._current = answers[-1][0]
        return answers[-1]

    # -- questions ------------------------------------------------------------------------------

    def get(self, path: str, *, wait_s: float | None = None, **query: Any) -> Any:
        """Return the answer of the first node that gives one; errors as `Http.get`.

        A witness gives none to what only masters know.
        """
        return self._ask(lambda link: link.get(path, wait_s=wait_s, **query))

    def get_below(self, path: str, name: str, **query: Any) -> Any:
        """Return the answer about a name, whatever characters it has; errors as `Http.get`."""
        return self._ask(lambda link: link.get_below(path, name, **query))

    def _ask(self, question: Callable[[Http], _T]) -> _T:
        failure: TransportError | None = None
        witness: NotFoundError | None = None
        for link in self._in_turn():
            try:
                answer = question(link)
            except NotFoundError as error:
                if "witness" not in error.fields:
                    raise
                witness = error
                continue
            except TransportError as error:
                if not _is_mute(error):
                    raise
                self._mute[link.url] = time.monotonic() + _MUTE_S
                failure = failure or error
                continue
            self._current = link
            return answer
        last = failure or witness
        assert last is not None
        raise last

    def receipt(self, transaction_id: str) -> Receipt:
        """Return the most that any node knows of a transaction.

        Raises:
            NotFoundError: No node that answered has seen it; field `unheard` names the others
                (definite if there are none).
            TransportError: No node answers.
        """
        best: Receipt | None = None
        unseen: NotFoundError | None = None
        unheard: dict[str, TransportError] = {}
        for link in self._in_turn():
            try:
                found = link.receipt(transaction_id, wait_s=self._patience())
            except NotFoundError as error:
                unseen = error
                continue
            except TransportError as error:
                if not _is_mute(error):
                    raise
                self._mute[link.url] = time.monotonic() + _MUTE_S
                unheard[link.url] = error
                continue
            if best is None or _rank(found) > _rank(best):
                best = found
            if best.outcome is not None:
                break
        if best is not None:
            return best
        if unseen is None:
            raise next(iter(unheard.values()))
        if unheard:
            unseen.fields["unheard"] = sorted(unheard)
        raise unseen

    def _patience(self) -> float | None:
        """Seconds for a question that others can answer too."""
        return None if len(self._links) == 1 else 0.0

    def _in_turn(self) -> list[Http]:
        now = time.monotonic()
        return sorted(
            self._links,
            key=lambda link: (self._mute.get(link.url, 0.0) > now, link is not self._current),
        )

    # -- submits --------------------------------------------------------------------------------

    def submit(
        self,
        path: str,
        body: bytes,
        content_type: str,
        first_id: bytes,
        *,
        level: str = "ordered",
        timeout_s: float | None = None,
        only: str | None = None,
        **query: Any,
    ) -> Receipt:
        """Submit at the first node that takes it, and see to it that its outcome is known.

        Args:
            path: `/v1/transactions` or `/v1/runs`.
            body: Holds the transaction ids.
            content_type: Of the body.
            first_id: Id of the transaction, the first one of a run.
            level: How far it must get, at the node that answers.
            timeout_s: Seconds for everything, all nodes and repeats included.
            only: URL of the only node that can take it: its files are staged there.
            query: Further parameters.

        Raises:
            CommitStateUnknownError: No node knows it at the level in time, and one may have taken
                it (not definite; fields `transaction_id`, `reached`, `asked`).
            CommitRejectedError: Nothing happened (definite).
            UnreachableError: No node could be reached; nothing was sent (definite).
        """
        if len(self._links) == 1:
            return self._current.submit(
                path, body, content_type, first_id, level=level, timeout_s=timeout_s, **query
            )
        errand = _Errand(
            path=path, body=body, content_type=content_type, level=level, query=query, only=only,
            id_text=transaction_id_to_text(first_id),
            deadline=time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s),
        )  # fmt: skip
        pause, pause_s = threading.Event(), _FIRST_PAUSE_S
        while True:
            for link in self._in_turn():
                receipt = self._visit(link, errand)
                if receipt is not None:
                    self._current = link
                    return receipt
                if errand.perhaps and not errand.left():
                    break
            if errand.without_outcome is not None:
                return errand.without_outcome
            again = errand.perhaps or any(e.retryable for e in errand.refusals.values())
            if not again or not errand.left():
                return self._ending(errand)
            pause.wait(min(pause_s, errand.left()))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _visit(self, link: Http, errand: _Errand) -> Receipt | None:
        """Ask a node for what may have happened elsewhere, then submit; None = go on."""
        found = self._known(link, errand) if errand.perhaps else None
        if found is not None:
            return found
        if errand.barred or errand.only not in (None, link.url):
            return None
        try:
            receipt = link.submit_once(
                errand.path, errand.body, errand.content_type,
                level=errand.level, timeout_s=errand.share(), **errand.query,
            )  # fmt: skip
        except TxLogError as error:
            self._judge(link, errand, error)
            return None
        return errand.take(receipt)

    def _known(self, link: Http, errand: _Errand) -> Receipt | None:
        """Return the node's receipt if it is at the level; a run has none by one of its ids."""
        level, copies = parse_level(errand.level)
        if errand.path != _SINGLE or copies != 1:
            return None
        try:
            found = link.receipt(errand.id_text, wait_s=0.0)
        except (NotFoundError, TransportError):
            return None
        if found.level is None:
            return None
        if LEVEL_RANK[found.level] < LEVEL_RANK[level]:
            if errand.reached is None or LEVEL_RANK[found.level] > LEVEL_RANK[errand.reached]:
                errand.reached = found.level
            return None
        return errand.take(found)

    def _judge(self, link: Http, errand: _Errand, error: TxLogError) -> None:
        """Note why a node did not answer with a receipt; raise what is true of all nodes."""
        if isinstance(error, TransportError) and _is_mute(error):
            self._mute[link.url] = time.monotonic() + _MUTE_S
        if not error.definite:
            errand.perhaps[link.url] = error
        elif _takes_nothing(error):
            errand.refusals[link.url] = error
        elif not errand.perhaps or (
            set(errand.perhaps) == {link.url} and _never_saw(link, errand.id_text)
        ):
            raise error
        else:
            errand.barred = True

    def _ending(self, errand: _Errand) -> Receipt:
        """Return what a last question finds out, or raise what is known of the outcome."""
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
        if errand.without_outcome is not None:
            return errand.without_outcome
        reason = next(iter(errand.perhaps.values()))
        staged = f" {_staged_text(errand.only)}" if errand.only is not None else ""
        raise CommitStateUnknownError(
            f"transaction {errand.id_text} may have been taken, and no node knows it at level "
            f"{errand.level!r} in time: {reason.message}",
            hint=f"Ask for its id, or submit it again with the same id.{staged}",
            transaction_id=errand.id_text,
            reached=_reached(errand),
            asked=[link.url for link in self._links],
        ) from reason


def one_url(urls: str | Sequence[str], purpose: str) -> None:
    """Refuse several URLs where only one makes sense.

    Raises:
        InvalidRequestError: There are several (definite).
    """
    if len(Nodes(urls)) > 1:
        raise InvalidRequestError(f"{purpose} works with one node", hint="Give one URL.")


def _staged_text(url: str) -> str:
    return (
        f"Its files are staged in the payload store of the node at {url}, no other node can take "
        "them: to submit it elsewhere, connect there and commit it again with the same id."
    )


def _reached(errand: _Errand) -> str | None:
    """Return the highest level that a node told of."""
    told = [error.fields.get("reached") for error in errand.perhaps.values()]
    levels = [Level(text) for text in told if text in {level.value for level in Level}]
    if errand.reached is not None:
        levels.append(errand.reached)
    return max(levels, key=LEVEL_RANK.__getitem__).value if levels else None


def _rank(receipt: Receipt) -> tuple[int, bool]:
    level = 0 if receipt.level is None else LEVEL_RANK[receipt.level]
    return level, receipt.outcome is not None


def _is_mute(error: TransportError) -> bool:
    """Whether a node gave no answer, or none of a node, so that another one may be asked."""
    return isinstance(error, UnreachableError) or not error.definite


def _takes_nothing(error: TxLogError) -> bool:
    """Whether a definite refusal is about the node, not about the transaction."""
    # A witness has no transactions.
    of_the_node = (UnreachableError, DiskFullError, LocalProtocolError, NotFoundError)
    return error.http_status == 503 or isinstance(error, of_the_node)


def _never_saw(link: Http, id_text: str) -> bool:
    try:
        link.receipt(id_text)
    except NotFoundError:
        return True
    except TxLogError:
        return False
    return False
