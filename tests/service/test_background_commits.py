"""Commits that the caller does not wait for: order, failures, bounds, and how they end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from tests.support.node_processes import NodeProcess

from sparktxlog import Client
from sparktxlog.api.nodes import Nodes
from sparktxlog.api.writing.pending_commit import PendingCommit
from sparktxlog.codec.containers.payload import read_manifest
from sparktxlog.errors import (
    BusyError,
    CommitStateUnknownError,
    IdTakenError,
    LocalProtocolError,
    SchemaMismatchError,
    SessionRolledBackError,
    TransportError,
    TxLogError,
    UnknownTableError,
)
from sparktxlog.model.transactions.receipt import Level

COLUMNS = {"id": "bigint", "v": "string"}


@pytest.fixture
def table(client: Client) -> str:
    """A new table with keys."""
    name = f"later_{uuid.uuid4().hex}"
    client.create_table(name, COLUMNS, keys=["id"])
    return name


def row(number: int) -> list[dict[str, object]]:
    return [{"id": number, "v": "x"}]


@contextmanager
def standing_still(node: NodeProcess) -> Iterator[None]:
    """Let the node answer nothing meanwhile."""
    node.send(signal.SIGSTOP)
    try:
        yield
    finally:
        node.send(signal.SIGCONT)


def test_t70_a_commit_returns_at_once_and_is_done_in_the_callers_order(
    node: NodeProcess, client: Client, table: str
) -> None:
    """A commit returns at once and has a status; what gathers is sent in runs."""
    with client.background(timeout=60) as later:
        later.append(table, row(0)).result(60)  # knows the table
        called_back: list[str] = []
        with standing_still(node):
            pending = [later.append(table, row(number)) for number in range(1, 5_000)]
            pending[-1].add_done_callback(lambda one: called_back.append(one.id))
            assert not any(one.done() for one in pending)
            with pytest.raises(CommitStateUnknownError) as late:
                pending[-1].result(0.05)
            assert late.value.fields["transaction_id"] == pending[-1].id
            with pytest.raises(CommitStateUnknownError):
                later.flush(0.05)
        client.flush(60)
        assert all(one.done() for one in pending) and called_back == [pending[-1].id]
        pending[0].add_done_callback(lambda one: called_back.append(one.id))
        assert called_back == [pending[-1].id, pending[0].id], "what is done is called at once"
        receipts = [one.result() for one in pending]
    first = receipts[0].position
    assert first is not None
    assert [one.position for one in receipts] == list(range(first, first + len(pending)))
    assert {(one.level, one.outcome, one.rows, one.n) for one in receipts} == {
        (Level.ORDERED, "committed", 1, 1)
    }
    known = client.receipt(pending[77].id)
    assert (known.position, known.outcome) == (receipts[77].position, "committed")
    # Batched: what gathered while the node stood still came in a few runs.
    runs = [run for run in client.queue(first - 1, 1_000) if run["position"] < first + 4_999]
    assert len(runs) < 50


def test_a_level_above_that_of_the_sender_is_waited_for(client: Client, table: str) -> None:
    with client.background(level="accepted") as later:
        pending = [later.append(table, row(number)) for number in range(300)]
        receipts = [one.result(60, level="ordered") for one in pending[::50]]
        assert all(receipt.level is Level.ORDERED and receipt.position for receipt in receipts)
        with pytest.raises(TxLogError):
            pending[0].result(level="none")
        assert pending[0].result(0.2, level="applied").late, "no worker applies here"


def test_a_callback_cannot_wait_for_all_and_what_it_raises_is_logged(
    node: NodeProcess, client: Client, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    with client.background() as later:
        later.append(table, row(0)).result(60)
        with standing_still(node):
            pending = later.append(table, row(1))
            pending.add_done_callback(lambda _: later.flush())
            pending.add_done_callback(lambda _: sys.exit("ended by a callback"))
        assert later.append(table, row(2)).result(60).outcome == "committed"
    assert "ended by a callback" in caplog.text
    assert "they wait for it" in caplog.text and pending.id in caplog.text


def test_what_is_no_row_goes_alone_in_its_turn(client: Client, table: str) -> None:
    other = f"{table}_2"
    client.create_table(other, COLUMNS)
    with client.background() as later:
        sent = [later.append(table, row(1)), later.delete_where(table, "id = 1")]
        sent.append(later.append(table, pa.table({"id": pa.array([2]), "v": ["arrow"]})))
        both = client.transaction()
        both.upsert(table, row(3))
        both.append(other, row(3))
        sent.append(later.commit(both))
        with pytest.raises(LocalProtocolError):
            both.append(other, row(4))
        expecting = client.transaction()
        expecting.expect_version(other, 1)
        expecting.overwrite(other, [])
        sent += [later.commit(expecting), later.overwrite(table, []), later.append(table, row(5))]
        nothing = later.append(table, [])
        assert nothing.done() and nothing.result().n == 0
        receipts = [one.result(60) for one in sent]
    positions = [receipt.position or 0 for receipt in receipts]
    assert positions == sorted(positions) and len(set(positions)) == len(sent)
    assert receipts[3].rows == 2
    assert [receipt.transaction_id for receipt in receipts] == [one.id for one in sent]


def test_what_goes_alone_is_of_the_same_session(
    client: Client, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At level `accepted` a node orders it after what came before only if it is of its session."""
    sessions, submit = list[str | None](), Nodes.submit

    def seen(link: Nodes, body: bytes, *given: Any, is_run: bool = False, **more: Any) -> Any:
        sessions.append(read_manifest(body).session if is_run else json.loads(body).get("session"))
        return submit(link, body, *given, is_run=is_run, **more)

    monkeypatch.setattr(Nodes, "submit", seen)
    own = client.transaction(session="of its own")
    own.append(table, row(3))
    until = datetime.now(UTC) + timedelta(minutes=5)
    prepared = client.transaction(participants=["other"], valid_until=until)
    prepared.append(table, row(4))
    with client.background(level="accepted", session="mine") as later:
        later.append(table, row(1)).result(60)
        later.delete_where(table, "id = 1").result(60)
        later.commit(own).result(60)
        later.commit(prepared).exception(60)
    assert sessions == ["mine", "mine", "of its own", None]


def test_one_that_is_refused_stops_no_other_and_is_raised_once(
    node: NodeProcess, client: Client, table: str
) -> None:
    taken = str(uuid.uuid4())
    client.append(table, row(1), transaction_id=taken)
    later = client.background()
    with pytest.raises(SchemaMismatchError):
        later.append(table, [{"id": "x", "v": "x"}])  # seen here
    sent: list[PendingCommit] = []
    with standing_still(node):
        for number in range(40):
            if number % 20 == 10:
                other = client.transaction(transaction_id=taken)
                other.append(table, row(2))
                sent.append(later.commit(other))
            sent.append(later.append(table, row(number)))
    with pytest.raises(IdTakenError) as raised:
        later.flush(60)
    assert raised.value.fields["failed"] == 2 and raised.value.definite
    later.flush(60)  # all of them count as taken
    failed = [one for one in sent if one.exception(0) is not None]
    assert [one.id for one in failed] == [taken, taken]
    positions = [one.result(0).position or 0 for one in sent if one not in failed]
    assert len(set(positions)) == 40 and positions == sorted(positions)
    third = client.transaction(transaction_id=taken)
    third.append(table, row(2))
    with pytest.raises(IdTakenError):
        later.commit(third).result(60)
    later.close()  # taken by result()


def test_a_table_that_changes_meanwhile(node: NodeProcess, client: Client, table: str) -> None:
    """Rows are those of the table as it is then; what does not fit fails alone."""
    dropped = f"{table}_2"
    client.create_table(dropped, COLUMNS)
    with client.background() as later, Client(node.url) as other:
        later.append(dropped, row(1)).result(60)
        later.append(table, row(1)).result(60)
        other.drop_table(dropped)
        other.alter_table(table, widen={"id": "decimal(20,0)"}, keys=[])
        with standing_still(node):
            gone = [later.append(dropped, row(number)) for number in range(3)]
            fits = [later.append(table, row(number)) for number in range(3)]
        assert [type(one.exception(60)) for one in gone] == [UnknownTableError] * 3
        assert all(one.result(60).outcome == "committed" for one in fits)
        other.alter_table(table, drop=["v"])
        with pytest.raises(SchemaMismatchError):
            later.append(table, row(4)).result(60)
        assert later.append(table, [{"id": 5}]).result(60).outcome == "committed"


def test_a_full_queue_makes_the_caller_wait_and_then_says_so(
    node: NodeProcess, client: Client, table: str
) -> None:
    with client.background(limit_bytes=10_000, timeout=2) as later:
        later.append(table, row(0)).result(60)
        taken: list[PendingCommit] = []
        with standing_still(node), pytest.raises(BusyError) as busy:
            while len(taken) < 100:
                taken.append(later.append(table, row(len(taken))))
        assert busy.value.definite and 2 <= len(taken) < 10
        for one in taken:
            one.exception(60)  # unknown: the node stood still for longer than 2 s
        whole = client.transaction()
        whole.append(table, row(100))
        with standing_still(node):
            first = later.append(table, [{"id": 0, "v": "x" * 10_000}])
            with pytest.raises(BusyError):
                later.commit(whole)
        first.exception(60)
        whole.append(table, row(101))  # it was not taken on
        assert later.commit(whole).result(60).rows == 2
    with client.background(limit_bytes=10_000, timeout=60) as later:
        later.append(table, row(0)).result(60)
        more: list[PendingCommit] = []
        with standing_still(node):
            caller = threading.Thread(
                target=lambda: more.extend(later.append(table, row(n)) for n in range(50))
            )
            caller.start()
            caller.join(0.3)
            assert caller.is_alive(), "the caller waits for room"
        caller.join(60)
        assert len([one.result(60) for one in more]) == 50


def test_a_session_that_fails_together_sends_nothing_more(
    node: NodeProcess, client: Client, table: str
) -> None:
    dropped = f"{table}_2"
    client.create_table(dropped, COLUMNS)
    later = client.background(rollback="session")
    for name in (table, dropped):
        later.append(name, row(0)).result(60)
    with Client(node.url) as other:
        other.drop_table(dropped)
    with standing_still(node):
        before = later.append(table, row(1))
        sent = [later.append(dropped, row(2)), *(later.append(table, row(n)) for n in range(3))]
    assert isinstance(sent[0].exception(60), UnknownTableError)
    for one in sent[1:]:
        with pytest.raises(SessionRolledBackError) as raised:
            one.result(60)
        assert raised.value.fields["rests_on"] == sent[0].id and raised.value.definite
    assert before.result(60).outcome == "committed"
    with pytest.raises(SessionRolledBackError):
        later.append(table, row(9))
    later.close()


def test_closing_in_time_says_what_is_not_known_and_what_never_happens(
    node: NodeProcess, table: str
) -> None:
    client = Client(node.url)
    later = client.background(timeout=60)
    later.append(table, row(0)).result(60)
    with standing_still(node):
        under_way = later.delete_where(table, "id = 7")  # alone
        waits = later.append(table, row(2))
        with pytest.raises(CommitStateUnknownError) as raised:
            client.close(0.2)
        assert raised.value.fields["waiting"] == 2
    with pytest.raises(LocalProtocolError):
        later.append(table, row(3))
    with pytest.raises(LocalProtocolError) as never:
        waits.result(60)
    assert never.value.definite
    assert under_way.result(60).outcome == "committed"


def test_a_failure_that_nobody_took_is_raised_at_the_end(node: NodeProcess, table: str) -> None:
    def call(later_table: str) -> None:
        with Client(node.url, timeout=3) as client:
            later = client.background()
            later.append(later_table, row(0)).result(60)
            with standing_still(node):
                pending = later.append(later_table, row(1))
                while not pending.done():
                    threading.Event().wait(0.05)

    with pytest.raises((CommitStateUnknownError, TransportError)) as raised:
        call(table)
    assert not raised.value.definite


@pytest.mark.parametrize("end", [Client.flush, Client.close])
def test_a_failure_of_one_sender_does_not_end_the_wait_for_the_others(
    node: NodeProcess, table: str, end: Any
) -> None:
    client, go_on = Client(node.url), threading.Event()
    taken = client.append(table, row(1)).transaction_id
    failing, other = client.background(), client.background()
    wrong = client.transaction(transaction_id=taken)
    wrong.append(table, row(2))
    failing.commit(wrong)
    with standing_still(node):
        pending = other.append(table, row(3))
        pending.add_done_callback(lambda _: go_on.wait(60))
    raised: list[TxLogError] = []

    def call() -> None:
        try:
            end(client)
        except TxLogError as error:
            raised.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    caller.join(0.5)
    assert caller.is_alive() and not raised
    go_on.set()
    caller.join(60)
    assert isinstance(raised[0], IdTakenError) and pending.result(0).outcome == "committed"


def test_a_process_that_ends_sends_what_waits(
    node: NodeProcess, client: Client, table: str
) -> None:
    """Also without `close`; only one that is killed loses it."""
    code = f"""
from sparktxlog import Client
later = Client({node.url!r}).background()
for number in range(500):
    pending = later.append({table!r}, [{{"id": number, "v": "x"}}])
print(pending.id)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert client.wait(done.stdout.strip(), "ordered", 60).outcome == "committed"
    assert client.table(table).version == 500


def test_whoever_asks_early_sees_no_success_of_one_that_is_rejected(
    node: NodeProcess, client: Client, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done is read without a lock, so each is settled once, with its own outcome."""
    taken, seen = str(uuid.uuid4()), list[tuple[str, bool]]()
    client.append(table, row(1), transaction_id=taken)
    settle = PendingCommit.settle

    def asked_at_once(one: PendingCommit, *outcome: Any) -> None:
        settle(one, *outcome)
        seen.append((one.id, one.failure is None))

    monkeypatch.setattr(PendingCommit, "settle", asked_at_once)
    later = client.background()
    later.append(table, row(2)).result(60)
    with standing_still(node):
        other = client.transaction(transaction_id=taken)
        other.append(table, row(3))
        sent = [later.append(table, row(4)), later.commit(other), later.append(table, row(5))]
    assert isinstance(sent[1].exception(60), IdTakenError)
    later.close()
    assert seen[1:] == [(one.id, one is not sent[1]) for one in sent]


def test_a_repeat_of_what_the_log_has_gets_the_receipt_of_the_first(
    node: NodeProcess, client: Client, table: str
) -> None:
    known = [str(uuid.uuid4()) for _ in range(2)]
    first = [client.append(table, row(n), transaction_id=one) for n, one in enumerate(known)]
    with client.background() as later:
        later.append(table, row(7)).result(60)
        with standing_still(node):
            sent = [later.append(table, row(8))]
            for number, one in enumerate(known):
                again = client.transaction(transaction_id=one)
                again.append(table, row(number))
                sent.append(later.commit(again))
        found = [one.result(60) for one in sent]
    assert [one.position for one in found[1:]] == [one.position for one in first]
    assert [one.outcome for one in found] == ["committed"] * 3
    assert client.table(table).version == 4, "each of them takes effect once"


def test_rows_that_are_of_the_newest_table_already_are_sent_with_those_that_are_not(
    node: NodeProcess, client: Client, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table changed while some waited; both kinds of rows travel in one run."""
    go_on = threading.Event()
    with client.background() as later, Client(node.url) as other:
        later.append(table, row(0)).result(60)
        with standing_still(node):
            first = later.append(table, row(1))
            first.add_done_callback(lambda _: go_on.wait(60))  # others gather meanwhile
        first.result(60)
        other.alter_table(table, widen={"id": "decimal(20,0)"}, keys=[])
        sent = [later.append(table, row(number)) for number in (2, 3)]
        newest = other.table(table)
        monkeypatch.setattr(client, "table", lambda name, **_: newest)
        sent.append(later.overwrite(table, row(4)))
        go_on.set()
        assert [one.result(60).outcome for one in sent] == ["committed"] * 3


def test_what_is_called_after_the_interpreters_end_is_refused_and_nobody_waits_for_it(
    node: NodeProcess, client: Client, table: str
) -> None:
    """Python starts no thread any more when it calls what `atexit` has."""
    code = f"""
import atexit
from sparktxlog import Client, TxLogError
client = Client({node.url!r})
later = client.background()
later.append({table!r}, [{{"id": 1, "v": "x"}}]).result(60)
def end():
    try:
        later.append({table!r}, [{{"id": 2, "v": "x"}}])
    except TxLogError as error:
        print(error.code, error.definite)
    client.close()
atexit.register(end)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "protocol-local True\n"
    assert client.table(table).version == 1
