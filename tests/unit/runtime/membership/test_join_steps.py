"""The steps of a node without a log, or with one too old, into a cluster (P21)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparktxlog.codec.wire import Hello
from sparktxlog.config import load_config
from sparktxlog.errors import TransportError, TxLogError
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.marks import Undecided
from sparktxlog.protocol.messages.actions import Alarm
from sparktxlog.protocol.messages.posts import QueueEntry, RunHeader
from sparktxlog.runtime.leaving_fork.unverified_history import Uncompared
from sparktxlog.runtime.membership import join_steps
from sparktxlog.runtime.membership.ancestry import Compared
from sparktxlog.runtime.membership.founding import core_config, with_log_id
from sparktxlog.runtime.membership.join_orders import JoinOrder, StartAgainError, join_order
from sparktxlog.runtime.membership.join_steps import Joining, QuietMoment
from sparktxlog.storage.interfaces import (
    KeptPrepared,
    PutValue,
    QueueSummary,
    ResetJournal,
    StoredEntry,
    Write,
)
from sparktxlog.supervision import Supervisor

HELLO = Hello(
    node_id="A", url="http://a", instance="i", boot="b", log_id="l", config_hash="c", join_as=3
)
CONFIG = load_config(
    None,
    {"node-id": "B", "master-url": "http://127.0.0.1:7002", "data-dir": "unused"},
    {},
)


class Bench:
    """A joining node's surroundings; what it writes and when it starts anew."""

    def __init__(
        self,
        order: JoinOrder | None = None,
        position: int = 0,
        values: dict[str, bytes] | None = None,
        *,
        is_witness: bool = False,
    ) -> None:
        self.writes: list[Write] = []
        self.started: list[StartAgainError] = []
        self.fresh = True
        self.summary = QueueSummary()
        self.node_id = "A"
        self.compared: Compared | TxLogError = Compared()
        self.kept: list[tuple[int, str]] = []
        self.alarms: list[Alarm] = []
        self.looked: list[int] = []
        self.failure: TxLogError | None = None
        self.greeted = 0
        surroundings: Any = self
        base: Any = SimpleNamespace(
            config=SimpleNamespace(
                node_id=NodeId("B"), is_witness=is_witness, data_dir=Path("unused")
            ),
            core=SimpleNamespace(incarnation=1, epoch=1),
            fetchers=None,
            ending=None,
            order=order,
            remains=None,
            links={},
            state=SimpleNamespace(
                values=values or {}, core=SimpleNamespace(base=SimpleNamespace(position=position))
            ),
            master=SimpleNamespace(view=SimpleNamespace(epoch=1), pulling=None),
            journal=None,
            payloads=None,
            is_fresh=lambda: self.fresh,
            fail=self.started.append,
            supervisor=Supervisor(),
            bench=self,
        )
        core: Any = SimpleNamespace(
            executor=self, cycle=SimpleNamespace(raise_alarm=self.alarms.append)
        )
        self.joining = Joining(base, core)
        self.joining.taker = surroundings
        self.joining.fetch_files = self.fetch_files
        #: Containers whose files were fetched, and how many writes there were before.
        self.fetched: list[tuple[bytes, int]] = []

    async def fetch_files(self, payloads: Sequence[bytes]) -> None:
        self.fetched += [(payload, len(self.writes)) for payload in payloads]

    def keep(self, summary: QueueSummary, incarnation: int, peer: str, at: int) -> Uncompared:
        self.kept.append((incarnation, peer))
        return Uncompared(
            position=4,
            summary_position=summary.position,
            peer=peer,
            at=at,
            quarantine_id="q",
            kept=3,
        )

    async def get_run_after(self, position: int) -> Any:
        self.looked.append(position)
        if self.failure is not None:
            raise self.failure

    def greet_again(self) -> None:
        self.greeted += 1

    async def write(self, writes: list[Write]) -> None:
        self.writes += writes

    async def take(self, link: Any) -> QueueSummary:
        return self.summary

    def drop(self) -> None:
        """What came is not needed any more."""

    def link_up(self) -> None:
        link: Any = self
        self.joining.note_link(link)

    @property
    def order(self) -> JoinOrder | None:
        return join_order({w.name: w.value for w in self.writes if isinstance(w, PutValue)})


def summary_at(position: int) -> QueueSummary:
    header = RunHeader(
        epoch=1,
        ts=1,
        origin=NodeId("A"),
        incarnation=1,
        seq=1,
        n=position,
        digest=bytes(32),
        size_bytes=1,
    )
    entry = QueueEntry(position=1, header=header, previous_hash=bytes(32), chain_hash=b"h" * 32)
    return QueueSummary(last=StoredEntry(entry=entry, ids=bytes(16 * position), ordered_at=1))


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the bench, which is also the link, say how queues compare and what is kept."""

    async def compare(journal: Any, core: Any, link: Any, summary: QueueSummary) -> Compared:
        if isinstance(link.compared, TxLogError):
            raise link.compared
        found: Compared = link.compared
        return found

    monkeypatch.setattr(join_steps, "compare_queues", compare)
    monkeypatch.setattr(join_steps, "keep_dropped_runs", lambda base, *args: base.bench.keep(*args))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_node_that_keeps_something_joins_as_another_or_not_at_all() -> None:
    """P30: it is told so because its disk is an older one; its own runs go with it."""

    async def main() -> None:
        bench = Bench()
        bench.fresh = False
        bench.joining.accept_order(replace(HELLO, join_as=1))
        await settle()
        assert not bench.started
        bench.joining.accept_order(HELLO)
        await settle()
        assert bench.order == JoinOrder(log_id="l", incarnation=3)
        assert [w.name for w in bench.writes if isinstance(w, PutValue)] == ["joining", "instance"]
        assert len(bench.started) == 1

    asyncio.run(main())


def test_an_order_is_kept_once() -> None:
    async def main() -> None:
        bench = Bench()
        bench.joining.accept_order(HELLO)
        bench.joining.accept_order(HELLO)
        await settle()
        assert bench.order == JoinOrder(log_id="l", incarnation=3)
        assert len(bench.started) == 1
        again = Bench(bench.order)
        again.joining.accept_order(HELLO)
        await settle()
        assert not again.started

    asyncio.run(main())


def test_workers_know_a_forced_log_by_its_first_name_from_the_beginning() -> None:
    async def main() -> None:
        bench = Bench()
        bench.joining.accept_order(replace(HELLO, ancestors=("first", "second")))
        await settle()
        order = JoinOrder(log_id="l", incarnation=3, log="first")
        assert bench.order == order
        joins = with_log_id(CONFIG, None, order)
        assert joins.log_id == "first"
        # To its peers it is of the log id that goes on.
        assert core_config(joins, order=order).log_id == "l"

    asyncio.run(main())


def test_the_core_waits_for_a_summary() -> None:
    async def main() -> None:
        bench = Bench(JoinOrder(log_id="l", incarnation=3))
        assert not bench.joining.settled.is_set()
        bench.summary = summary_at(5)
        bench.link_up()
        await settle()
        reset = bench.writes[0]
        assert isinstance(reset, ResetJournal)
        assert (reset.summary.position, reset.incarnation) == (5, 3)
        assert len(bench.started) == 1
        assert not bench.joining.settled.is_set()

    asyncio.run(main())


def test_files_of_what_is_undecided_come_before_the_summary_counts() -> None:
    """P35: whoever orders a decision holds what takes effect."""

    async def main() -> None:
        bench = Bench(JoinOrder(log_id="l", incarnation=3))
        one = Undecided(transaction_id=bytes(16), position=1, participants=("p",), valid_until=9)
        kept = KeptPrepared(undecided=one, payload=b"container")
        bench.summary = replace(summary_at(5), prepared=(kept,))
        bench.link_up()
        await settle()
        assert bench.fetched == [(b"container", 0)]
        assert isinstance(bench.writes[0], ResetJournal)

    asyncio.run(main())


def test_a_witness_that_joins_takes_no_summary() -> None:
    """P21: it has no queue; with the view, which any member tells it, it asks for its votes."""

    async def main() -> None:
        bench = Bench(JoinOrder(log_id="l", incarnation=2), is_witness=True)
        bench.summary = summary_at(3)
        assert bench.joining.settled.is_set()
        bench.link_up()
        await settle()
        assert (bench.writes, bench.started) == ([], [])

    asyncio.run(main())


def test_an_empty_log_needs_no_summary() -> None:
    async def main() -> None:
        bench = Bench(JoinOrder(log_id="l", incarnation=1))
        bench.link_up()
        await settle()
        assert bench.joining.settled.is_set()
        assert not bench.writes

    asyncio.run(main())


def test_a_queue_too_old_is_replaced() -> None:
    async def main() -> None:
        bench = Bench(position=4)
        assert bench.joining.settled.is_set()
        bench.joining.note_missed("l", 2, b"lost")
        bench.joining.note_missed("l", 2, b"late")
        bench.joining.note_arrived(b"late")
        bench.joining.note_missed("l", 2, b"late")
        await settle()
        assert not bench.started
        # What came of other runs says nothing of this one.
        bench.joining.note_arrived(b"other")
        bench.joining.note_missed("l", 2, b"lost")
        bench.joining.note_missed("l", 2, b"lost")
        await settle()
        assert len(bench.started) == 1
        assert bench.order == JoinOrder(log_id="l", incarnation=2, behind=True)
        again = Bench(bench.order, position=4)
        assert not again.joining.settled.is_set()
        again.summary = summary_at(9)
        again.link_up()
        await settle()
        assert again.order == JoinOrder(log_id="l", incarnation=2)
        assert len(again.started) == 1
        assert Bench(again.order, position=9).joining.settled.is_set()

    asyncio.run(main())


BEHIND = JoinOrder(log_id="l", incarnation=2, behind=True)


def test_a_queue_of_another_history_is_not_replaced() -> None:
    async def main() -> None:
        bench = Bench(BEHIND, position=4)
        bench.summary = summary_at(9)
        bench.compared = Compared(differs="its hash at position 4 is another one")
        for _ in range(2):
            bench.link_up()
            await settle()
        assert not bench.writes and not bench.started
        assert not bench.joining.settled.is_set()
        (alarm,) = bench.alarms
        assert (alarm.code, alarm.fatal) == ("diverged", True)
        assert "A has another queue up to position 4: its hash" in alarm.text
        assert "sparktxlog peer quarantine" in alarm.text

    asyncio.run(main())


def test_what_nobody_can_compare_is_kept_before_it_is_replaced_and_told() -> None:
    async def main() -> None:
        bench = Bench(BEHIND, position=4)
        assert bench.joining.uncompared is None
        bench.summary = summary_at(9)
        bench.compared = Compared(certain=False)
        bench.link_up()
        while not bench.started:
            await asyncio.sleep(0.001)
        assert bench.kept == [(2, "A")]
        # One write: whoever has the summary also says that it was not compared.
        assert isinstance(bench.writes[0], ResetJournal)
        values = {w.name: w.value for w in bench.writes if isinstance(w, PutValue)}
        told = Bench(bench.order, position=9, values=values).joining.uncompared
        assert told is not None
        assert (told.position, told.summary_position, told.peer) == (4, 9, "A")
        assert (told.quarantine_id, told.kept) == ("q", 3)

    asyncio.run(main())


def test_a_failed_comparison_is_repeated_and_replaces_nothing() -> None:
    async def main() -> None:
        bench = Bench(BEHIND, position=4)
        bench.summary = summary_at(9)

        bench.compared = TransportError("no answer")
        bench.link_up()
        await settle()
        assert (bench.greeted, bench.writes, bench.started) == (1, [], [])

    asyncio.run(main())


def test_who_asks_in_vain_looks_whether_the_queue_is_kept_at_all() -> None:
    async def main() -> None:
        bench, missed = Bench(position=4), list[int]()
        link: Any = bench

        async def ask(position: int) -> None:
            bench.joining.note_request(link, position, lambda: missed.append(position))
            await settle()

        await ask(4)
        assert bench.looked == []
        await ask(4)
        bench.failure = TransportError("it is restarting", status=503)
        await ask(4)
        assert (bench.looked, missed) == ([4, 4], [])
        bench.failure = TransportError("not kept", status=410)
        await ask(4)
        assert missed == [4]
        # What came in between begins the count anew.
        for _ in range(4):
            bench.joining.note_missed("l", 2)
        await ask(5)
        bench.joining.note_missed("l", 2)
        await settle()
        assert not bench.started
        await bench.joining.close()

    asyncio.run(main())


def test_it_asks_at_a_moment_of_rest() -> None:
    busy = True
    quiet = QuietMoment(lambda: busy, lambda: 0.0)
    assert not quiet.may_ask()
    busy = False
    assert quiet.may_ask()


def test_it_does_not_wait_for_ever() -> None:
    """Each time that it is no member any more it waits anew."""
    now = 10.0
    quiet = QuietMoment(lambda: True, lambda: now)
    assert not quiet.may_ask()
    now += 1.49
    assert not quiet.may_ask()
    now += 0.01
    assert quiet.may_ask()
    quiet.begin()
    assert not quiet.may_ask()
