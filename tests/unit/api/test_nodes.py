"""Several nodes as one partner: who is asked next, and what may be said of an outcome."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import msgspec
import pytest

from sparktxlog.api import nodes as module
from sparktxlog.api.nodes import Doubt, Nodes, submit_prepared
from sparktxlog.codec.submits.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.errors import (
    BusyError,
    CommitStateUnknownError,
    IdTakenError,
    InvalidRequestError,
    LocalProtocolError,
    NotFoundError,
    NotMemberError,
    OversizeError,
    PositionNotReachedError,
    TransportError,
    TxLogError,
    UnauthorizedError,
    UnknownTableError,
    UnreachableError,
)
from sparktxlog.model.answers import LONGEST_WAIT_S
from sparktxlog.model.transactions.operation import OperationKind, StagedFile
from sparktxlog.model.transactions.receipt import Level, Receipt

ID = uuid.uuid4().bytes
TEXT = str(uuid.UUID(bytes=ID))
ORDERED = Receipt(transaction_id=TEXT, n=1, level=Level.ORDERED, position=7, outcome="committed")
ACCEPTED = Receipt(transaction_id=TEXT, n=1, level=Level.ACCEPTED)
UNKNOWN = CommitStateUnknownError("late", transaction_id=TEXT, reached="accepted")
BROKEN = TransportError("broke")
GONE = UnreachableError("nobody")

Answer = Receipt | TxLogError


class FakeHttp:
    """A node by its script: answers to submits and to questions, the last one for ever."""

    submits: ClassVar[dict[str, list[Answer]]] = {}
    knows: ClassVar[dict[str, list[Answer]]] = {}
    calls: ClassVar[list[str]] = []
    times: ClassVar[list[float]] = []
    waits: ClassVar[list[float]] = []
    asked: ClassVar[list[float | None]] = []
    #: What submits were to come after.
    afters: ClassVar[list[int | None]] = []
    #: Nodes that told a receipt: who submits there again gets it, or the answer in `taken`.
    told: ClassVar[dict[str, Receipt]] = {}
    taken: ClassVar[list[TxLogError]] = []

    def __init__(self, url: str, **_: object) -> None:
        self.url = url

    @staticmethod
    def _next(script: list[Answer]) -> Receipt:
        answer = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(answer, TxLogError):
            raise answer
        return answer

    def submit_once(
        self, *_: Any, level: str, timeout_s: float, wait_s: float, after: int | None, **__: Any
    ) -> Receipt:
        if self.url in self.told:
            self.calls.append(f"repeat {self.url}")
            return self._next([*self.taken, self.told[self.url]])
        self.calls.append(f"submit {self.url}")
        self.times.append(timeout_s)
        self.waits.append(wait_s)
        self.afters.append(after)
        return self._next(self.submits.get(self.url, [GONE]))

    def request(self, method: str, path: str, **_: Any) -> bytes:
        return msgspec.json.encode(self._next(self.submits[self.url]))

    def receipt(self, transaction_id: str, *, timeout_s: float | None = None) -> Receipt:
        self.calls.append(f"ask {self.url}")
        self.asked.append(timeout_s)
        found = self._next(self.knows.get(self.url, [NotFoundError("never seen")]))
        if found.level is not Level.ACCEPTED:
            self.told[self.url] = found
        return found

    def get(self, path: str, *, after: int | None = None, **_: Any) -> Any:
        answer = self.submits.get(self.url, [GONE])[0]
        if isinstance(answer, (TransportError, PositionNotReachedError)):
            raise answer
        if after is not None:
            name = f"{self.url}{path}_after_{after}".replace("/", "_")
            found = {"name": name, "columns": [{"name": "id", "type": "bigint"}]}
            return [found] if path == "/v1/tables" else found
        phase = "JOINING" if isinstance(answer, NotMemberError) else "NORMAL"
        return {"node": self.url, "phase": phase}

    def close(self) -> None:
        self.calls.append(f"close {self.url}")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Nodes]:
    monkeypatch.setattr(module, "Http", FakeHttp)

    def start(knows: dict[str, list[Answer]] | None = None, **submits: list[Answer]) -> Nodes:
        FakeHttp.submits, FakeHttp.knows = submits, knows or {}
        FakeHttp.calls.clear()
        FakeHttp.times.clear()
        FakeHttp.waits.clear()
        FakeHttp.asked.clear()
        FakeHttp.afters.clear()
        FakeHttp.told.clear()
        FakeHttp.taken.clear()
        return Nodes(list(submits), timeout_s=0.6)

    return start


def submit(link: Nodes, **options: Any) -> Receipt:
    return link.submit(b"{}", ID, **options)


@pytest.mark.parametrize(
    "refusal",
    [
        GONE,
        NotMemberError("evicted"),
        BusyError("stopping"),
        LocalProtocolError("halted"),
        NotFoundError("a witness"),
    ],
)
def test_a_node_that_takes_nothing_is_passed_over(
    script: Callable[..., Nodes], refusal: TxLogError
) -> None:
    link = script(a=[refusal], b=[ORDERED])
    assert submit(link) == ORDERED
    assert FakeHttp.calls == ["submit a", "submit b"]
    assert submit(link) == ORDERED
    assert FakeHttp.calls[2:] == ["submit b"]  # who answered is asked first


@pytest.mark.parametrize("loss", [BROKEN, UNKNOWN])
def test_a_lost_submit_is_asked_for_then_submitted_elsewhere(
    script: Callable[..., Nodes], loss: TxLogError
) -> None:
    assert submit(script(a=[loss], b=[ORDERED], c=[ORDERED])) == ORDERED
    assert FakeHttp.calls == ["submit a", "ask b", "submit b"]
    assert submit(script({"b": [ORDERED]}, a=[loss], b=[GONE])) == ORDERED
    assert FakeHttp.calls == ["submit a", "ask b", "repeat b"]


def test_what_another_node_has_under_the_id_is_compared_there(
    script: Callable[..., Nodes],
) -> None:
    """It may be somebody else's, who took the same id; then nothing of this one takes effect."""
    link = script({"b": [ORDERED]}, a=[BROKEN], b=[GONE])
    FakeHttp.taken.append(IdTakenError("other content", position=7))
    with pytest.raises(IdTakenError):
        submit(link)
    assert FakeHttp.calls == ["submit a", "ask b", "repeat b"]
    # What is under way there may be ordered after what the first node has taken.
    under_way = IdTakenError("other content", position=None)
    with pytest.raises(CommitStateUnknownError):
        submit(script(a=[BROKEN], b=[under_way]))
    assert submit(script({"a": [ORDERED]}, a=[BROKEN], b=[under_way])) == ORDERED
    with pytest.raises(IdTakenError):
        submit(script(a=[under_way], b=[ORDERED]))


def test_time_is_left_for_the_others_and_for_the_answer(script: Callable[..., Nodes]) -> None:
    submit(script(a=[UNKNOWN], b=[ORDERED]), timeout_s=20)
    assert FakeHttp.times[0] == pytest.approx(10, abs=0.5)
    submit(script(a=[ORDERED]), timeout_s=8)
    assert 7 < FakeHttp.times[0] <= 8 and 0 < FakeHttp.waits[0] <= 7.5
    # A node has to be asked also where it need not wait.
    submit(script(a=[ORDERED]), timeout_s=0)
    assert FakeHttp.waits == [0] and 0 < FakeHttp.times[0] <= 1


def test_a_node_waits_for_a_bounded_time_and_is_asked_again(script: Callable[..., Nodes]) -> None:
    assert submit(script(a=[UNKNOWN, LATE, APPLIED]), level="applied", timeout_s=900) == APPLIED
    assert FakeHttp.waits == [LONGEST_WAIT_S] * 3 and FakeHttp.times[0] > 899
    # What the node waited for to the end of the call is not repeated.
    with pytest.raises(CommitStateUnknownError):
        submit(script(a=[UNKNOWN, APPLIED]), level="applied", timeout_s=200)
    assert FakeHttp.waits == [pytest.approx(199.5, abs=0.1)]


def test_questions_for_a_transaction_keep_the_time_of_its_commit(
    script: Callable[..., Nodes],
) -> None:
    link = script({"a": [ORDERED]}, a=[GONE])
    assert link.known(ID, "ordered", 4) == ORDERED
    assert all(asked is not None and 3 < asked <= 4 for asked in FakeHttp.asked)


def test_repeats_are_told_to_the_logger_and_to_nobody_else(
    script: Callable[..., Nodes],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with caplog.at_level("DEBUG", "sparktxlog"):
        submit(script(a=[BusyError("full"), ORDERED]))
    (record,) = (item for item in caplog.records if item.name.startswith("sparktxlog"))
    assert record.levelname == "DEBUG" and TEXT in record.message and "full" in record.message
    assert capfd.readouterr() == ("", "")


def test_what_follows_a_receipt_comes_after_it(script: Callable[..., Nodes]) -> None:
    run = Receipt(transaction_id=None, n=5, level=Level.ORDERED, position=10)
    link = script({"b": [ORDERED]}, a=[ORDERED, run, ACCEPTED, ORDERED])
    assert link.position == 0
    for _ in range(4):
        submit(link)
    assert (FakeHttp.afters, link.position) == ([None, 7, 14, 14], 14)
    link.after(3)
    assert link.position == 14
    link.after(20)
    submit(link)
    assert FakeHttp.afters[-1] == 20
    other = script({"a": [ORDERED]}, a=[GONE])
    other.receipt(TEXT)
    assert other.position == 7


def test_a_node_that_is_not_there_yet_is_passed_over(script: Callable[..., Nodes]) -> None:
    behind = PositionNotReachedError("at 5", after=7, position=5)
    assert submit(script(a=[behind], b=[ORDERED])) == ORDERED
    assert FakeHttp.calls == ["submit a", "submit b"]
    assert submit(script(a=[behind, ORDERED])) == ORDERED
    with pytest.raises(PositionNotReachedError) as caught:
        submit(script(a=[behind], b=[behind]))
    assert caught.value.definite and caught.value.retryable
    link = script(a=[behind], b=[ORDERED])
    link.after(7)
    assert link.table("t").name == "b_v1_tables_t_after_7"
    assert [table.name for table in link.tables()] == ["b_v1_tables_after_7"]


def test_a_level_that_is_not_reached_is_waited_for(script: Callable[..., Nodes]) -> None:
    link = script({"b": [ACCEPTED, ORDERED]}, a=[BROKEN], b=[UNKNOWN])
    assert submit(link) == ORDERED


def test_what_is_refused_everywhere_did_not_happen(script: Callable[..., Nodes]) -> None:
    with pytest.raises(NotMemberError) as caught:
        submit(script(a=[NotMemberError("x")], b=[NotMemberError("y")]))
    assert caught.value.definite and caught.value.fields["asked"] == ["a", "b"]
    with pytest.raises(UnreachableError):
        submit(script(a=[GONE], b=[GONE]), timeout_s=0.1)
    with pytest.raises(OversizeError):
        submit(script(a=[OversizeError("large")], b=[ORDERED]))
    assert FakeHttp.calls == ["submit a"]
    with pytest.raises(UnauthorizedError):
        submit(script(a=[UnauthorizedError("token")], b=[ORDERED]))


def test_nodes_that_take_nothing_are_asked_again(script: Callable[..., Nodes]) -> None:
    """An evicted node is back within seconds: no call ends because all are out at one moment."""
    evicted = NotMemberError("evicted")
    assert submit(script(a=[evicted, evicted, ORDERED], b=[evicted])) == ORDERED
    assert FakeHttp.calls == ["submit a", "submit b", "submit a", "submit b", "submit a"]
    with pytest.raises(LocalProtocolError):
        submit(script(a=[LocalProtocolError("halted")], b=[NotFoundError("a witness")]))
    assert FakeHttp.calls == ["submit a", "submit b"]


def test_what_may_have_happened_is_never_called_refused(script: Callable[..., Nodes]) -> None:
    for refusal in (GONE, NotMemberError("evicted"), UnknownTableError("lags")):
        with pytest.raises(CommitStateUnknownError) as caught:
            submit(script({"b": [ACCEPTED]}, a=[BROKEN], b=[refusal]))
        assert caught.value.fields["transaction_id"] == TEXT
        assert caught.value.fields["reached"] == "accepted"
    # Another node's refusal of the transaction says nothing of the first one.
    assert submit(script({"a": [ORDERED]}, a=[BROKEN], b=[UnknownTableError("lags")])) == ORDERED


def test_a_post_that_one_node_may_have_taken_is_not_refused(script: Callable[..., Nodes]) -> None:
    assert script(a=[GONE], b=[BROKEN], c=[ORDERED]).post("/x", b"") == ORDERED
    for order in ({"a": [GONE], "b": [BROKEN]}, {"a": [BROKEN], "b": [GONE]}):
        with pytest.raises(TransportError, match="broke") as caught:
            script(**order).post("/x", b"")
        assert not caught.value.definite
    with pytest.raises(UnreachableError):
        script(a=[GONE], b=[BusyError("stopping")]).post("/x", b"")


def test_a_node_knows_what_it_has_not_seen_itself(script: Callable[..., Nodes]) -> None:
    with pytest.raises(UnknownTableError):
        submit(script(a=[BROKEN, UnknownTableError("no table")], b=[GONE]))
    assert submit(script({"a": [ORDERED]}, a=[BROKEN, OversizeError("x")], b=[GONE])) == ORDERED


def test_a_node_that_keeps_no_outcome_is_the_last_word_only(script: Callable[..., Nodes]) -> None:
    bare = Receipt(transaction_id=TEXT, n=1, level=Level.ORDERED, position=7)
    assert submit(script(a=[bare], b=[ORDERED])) == ORDERED
    assert submit(script(a=[bare], b=[GONE])) == bare


LATE = replace(ORDERED, late=True)
APPLIED = replace(ORDERED, level=Level.APPLIED)


def test_a_late_level_is_waited_for_as_long_as_there_is_time(
    script: Callable[..., Nodes],
) -> None:
    wanted = {"level": "applied", "timeout_s": 0.3}
    assert submit(script(a=[LATE, APPLIED], b=[GONE]), **wanted) == APPLIED
    assert submit(script(a=[LATE], b=[APPLIED]), **wanted) == APPLIED
    assert submit(script({"b": [APPLIED]}, a=[LATE], b=[GONE]), **wanted) == APPLIED
    assert submit(script(a=[LATE], b=[GONE]), **wanted) == LATE
    assert submit(script(a=[BROKEN, LATE], b=[GONE]), **wanted) == LATE


def test_what_is_ordered_is_never_called_refused(script: Callable[..., Nodes]) -> None:
    link = script(a=[LATE], b=[OversizeError("large")])
    assert submit(link, level="applied", timeout_s=0.3) == LATE
    bare = Receipt(transaction_id=TEXT, n=1, level=Level.ORDERED, position=7)
    assert submit(script(a=[bare], b=[OversizeError("large")])) == bare


def test_runs_have_no_receipt_by_one_id(script: Callable[..., Nodes]) -> None:
    run = Receipt(transaction_id=None, n=5, level=Level.ORDERED, position=7)
    link = script({"b": [ORDERED]}, a=[BROKEN], b=[run])
    assert link.submit(b"", ID, is_run=True) == run
    assert FakeHttp.calls == ["submit a", "submit b"]


def submitted(link: Nodes, transaction: PreparedTransaction, timeout_s: float) -> Receipt:
    return submit_prepared(link, "a", transaction, level="ordered", timeout_s=timeout_s)


def test_staged_files_bind_a_transaction_to_their_node(script: Callable[..., Nodes]) -> None:
    staged = PreparedOperation(
        table="t",
        kind=OperationKind.APPEND,
        files=(StagedFile(path="x.parquet", size_bytes=1, rows=1, digest="d" * 64),),
    )
    transaction = PreparedTransaction(transaction_id=ID, operations=(staged,))
    link = script({"b": [ORDERED]}, a=[BROKEN], b=[ORDERED])
    assert submitted(link, transaction, 0.5) == ORDERED
    assert "submit b" not in FakeHttp.calls
    with pytest.raises(CommitStateUnknownError, match="staged in the payload store"):
        submitted(script(a=[BROKEN], b=[ORDERED]), transaction, 0.3)
    with pytest.raises(NotMemberError, match="staged in the payload store"):
        link = script(a=[NotMemberError("x")], b=[ORDERED])
        submitted(link, transaction, 0.3)
    assert len(FakeHttp.calls) >= 2 and set(FakeHttp.calls) == {"submit a"}
    link = script(a=[NotMemberError("evicted"), ORDERED], b=[ORDERED])
    assert submitted(link, transaction, 0.5) == ORDERED
    assert FakeHttp.calls == ["submit a", "submit a"]


def test_questions_go_to_whoever_answers(script: Callable[..., Nodes]) -> None:
    link = script(a=[GONE], b=[NotMemberError("evicted")], c=[ORDERED])
    assert link.get("/v1/info")["node"] == "b"
    home, info = link.choose()
    assert (home.url, info["node"], link.urls[0]) == ("c", "c", "c")
    assert script(a=[NotMemberError("x")], b=[GONE]).choose()[0].url == "a"
    with pytest.raises(UnreachableError):
        script(a=[GONE], b=[GONE]).get("/v1/info")
    link.close()
    assert FakeHttp.calls == ["close a", "close b", "close c"]


def test_the_best_receipt_of_all(script: Callable[..., Nodes]) -> None:
    nodes: dict[str, list[Answer]] = {"a": [GONE], "b": [GONE], "c": [GONE]}
    assert script({"a": [ACCEPTED], "c": [ORDERED]}, **nodes).receipt(TEXT) == ORDERED
    assert script({"a": [ACCEPTED]}, **nodes).receipt(TEXT) == ACCEPTED
    with pytest.raises(NotFoundError) as caught:
        script({"a": [GONE]}, **nodes).receipt(TEXT)
    assert caught.value.fields["unheard"] == ["a"]
    with pytest.raises(NotFoundError) as caught:
        script(**nodes).receipt(TEXT)
    assert "unheard" not in caught.value.fields
    with pytest.raises(UnreachableError):
        script({name: [GONE] for name in nodes}, **nodes).receipt(TEXT)


def test_a_wait_goes_on_while_a_node_is_away(script: Callable[..., Nodes]) -> None:
    link = script({"a": [GONE, GONE, ORDERED]}, a=[GONE], b=[GONE])
    assert link.wait(TEXT, "ordered", 2) == ORDERED
    assert script({"a": [ORDERED]}, a=[GONE]).wait(TEXT, "applied", 0.05) == LATE
    with pytest.raises(CommitStateUnknownError):
        script({"a": [GONE]}, a=[GONE], b=[GONE]).wait(TEXT, "ordered", 0.05)
    with pytest.raises(NotFoundError):
        script(a=[GONE], b=[GONE]).wait(TEXT, "ordered", 2)


def test_urls() -> None:
    link = Nodes(" http://a:1, http://b:2/ ,,http://a:1")
    assert len(link) == 2 and link.urls == ["http://a:1", "http://b:2"]
    nothing: list[str] = []
    for wrong in ("", nothing, "http://a:1,b"):
        with pytest.raises(InvalidRequestError):
            Nodes(wrong)


@pytest.mark.parametrize(
    "refusal", [GONE, BusyError("full"), UnauthorizedError("no"), UnknownTableError("t")]
)
@pytest.mark.parametrize("count", [1, 2])
def test_a_refusal_after_a_call_with_an_unknown_end_is_not_definite(
    script: Callable[..., Nodes], refusal: TxLogError, count: int
) -> None:
    link = script(**{f"http://{name}": [refusal] for name in "ab"[:count]})
    with pytest.raises(CommitStateUnknownError, match="may have been taken") as caught:
        submit(link, doubt=UNKNOWN)
    assert caught.value.fields["transaction_id"] == TEXT and not caught.value.definite
    with pytest.raises(type(refusal)):
        submit(link)


def test_a_call_after_one_with_an_unknown_end_returns_what_the_log_has(
    script: Callable[..., Nodes],
) -> None:
    link = script(a=[GONE, ORDERED])
    assert submit(link, doubt=UNKNOWN) == ORDERED


def test_a_doubt_ends_by_nothing_that_comes_later() -> None:
    doubt = Doubt()
    told: list[TxLogError | None] = []
    for end in (GONE, BROKEN, GONE, KeyboardInterrupt(), None, GONE):
        with contextlib.suppress(TxLogError, KeyboardInterrupt), doubt.posting() as earlier:
            told.append(earlier)
            if end is not None:
                raise end
    with doubt.posting() as earlier:
        told.append(earlier)
    assert told[:4] == [None, None, BROKEN, BROKEN]
    texts = [one.message for one in told[4:] if one is not None and not one.definite]
    assert texts == ["an earlier call was interrupted", *["a node accepted it"] * 2]
