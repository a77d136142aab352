"""Tails for lagging peers, read from the journal; another history is reported, never cut (P28)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.storage_samples import TemporaryJournal

from sparktxlog.codec.containers.payload import digest_of, encode_payload
from sparktxlog.errors import ExpiredError, InvariantViolation
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.operation import RunManifest
from sparktxlog.protocol.messages.actions import Alarm, SendTail
from sparktxlog.protocol.messages.posts import Ahead, MergeBase, QueueEntry, RunHeader, Tail
from sparktxlog.protocol.messages.recovery import MasterConfig, RecoveredState
from sparktxlog.protocol.messages.view import View
from sparktxlog.protocol.order.synchronized import SynchronizedQueue
from sparktxlog.runtime.commit.queue_tails import QueueTails
from sparktxlog.storage.interfaces import AppendQueue, PutRun


def filled(runs: int) -> tuple[TemporaryJournal, list[QueueEntry]]:
    """Return a journal with runs of two transactions each, all ordered."""
    journal, entries, previous = TemporaryJournal(), [], bytes(32)
    for number in range(runs):
        ids = b"".join((2 * number + i + 1).to_bytes(16, "big") for i in range(2))
        payload = encode_payload(RunManifest(n=2, ids=ids, blocks=(), submitted_at=1), [])
        header = RunHeader(
            epoch=1,
            ts=number + 1,
            origin=NodeId("A"),
            incarnation=1,
            seq=2 * number + 1,
            n=2,
            digest=digest_of(payload),
            size_bytes=len(payload),
        )
        chain = bytes([number + 1]) * 32
        entries.append(
            QueueEntry(
                position=2 * number + 1, header=header, previous_hash=previous, chain_hash=chain
            )
        )
        previous = chain
        journal.write([PutRun(header=header, payload=payload)])
    journal.write([AppendQueue(entries=tuple(entries), ordered_at=1)])
    return journal, entries


VIEW = View(log_id="l", epoch=3, roster=(), members=(NodeId("A"), NodeId("B")))
CONFIG = MasterConfig(node_id=NodeId("B"), members=(NodeId("A"), NodeId("B")), quorum=2, log_id="l")
#: B goes on no more, and asks for the queue to come back.
ALONE = View(log_id="l", epoch=3, roster=(), members=(NodeId("A"),))


class Link:
    def __init__(self) -> None:
        self.tails: list[Tail] = []
        #: Cleared: what is sent does not get there.
        self.quick = asyncio.Event()
        self.quick.set()

    async def tail(self, tail: Tail) -> None:
        self.tails.append(tail)
        await self.quick.wait()


def tails_of(journal: Any, link: Link, view: View, alarms: list[Alarm]) -> QueueTails:
    base: Any = SimpleNamespace(
        config=SimpleNamespace(node_id="A"),
        master=SimpleNamespace(view=view),
        journal=journal,
        links={"B": link},
        ordered=SimpleNamespace(value=0),
        run_blocking=lambda work, *args: asyncio.ensure_future(asyncio.to_thread(work, *args)),
    )
    bell: Any = SimpleNamespace(raise_alarm=alarms.append)
    return QueueTails(base, bell)


def deliver(
    position: int,
    chain_hash: bytes,
    runs: int = 5,
    view: View = VIEW,
    gone: str = "",
    ahead: Ahead | None = None,
) -> tuple[list[Tail], list[Alarm]]:
    """Return what is sent and raised for a peer that stands at a position.

    Args:
        gone: `expired`: the log is, and the rows are there; `pruned`: these are gone, too.
    """
    journal, _ = filled(runs)
    if gone:
        journal.read_queue = _expired  # type: ignore[method-assign]
    if gone == "pruned":
        journal.read_entry_at = lambda position: None  # type: ignore[method-assign]
    link, alarms = Link(), list[Alarm]()

    async def main() -> None:
        queue_tails = tails_of(journal, link, view, alarms)
        asked = SendTail(peer=NodeId("B"), position=position, chain_hash=chain_hash, ahead=ahead)
        queue_tails.send(asked)
        await asyncio.gather(*queue_tails._tails.values())

    asyncio.run(main())
    return link.tails, alarms


def test_a_lagging_peer_gets_what_follows_its_base() -> None:
    _, entries = filled(5)
    for behind in (0, 1, 4):
        base = entries[behind - 1] if behind else None
        position, chain_hash = (base.end, base.chain_hash) if base else (0, bytes(32))
        tails, alarms = deliver(position, chain_hash)
        assert alarms == []
        assert [tail.entries for tail in tails] == [tuple(entries[behind:])]
        assert tails[0].previous_hash == chain_hash
    assert deliver(10, entries[-1].chain_hash) == ([], [])


def test_what_a_peer_has_of_the_tail_is_not_sent_again() -> None:
    _, entries = filled(5)
    has = Ahead(position=entries[2].end, chain_hash=entries[2].chain_hash, room=2_048)
    tails, alarms = deliver(0, bytes(32), ahead=has)
    assert ([tail.entries for tail in tails], alarms) == ([tuple(entries[3:])], [])
    assert tails[0].previous_hash == entries[2].chain_hash
    (little,) = deliver(0, bytes(32), ahead=replace(has, room=1))[0]
    assert little.entries == (entries[3],)
    # A tail that is not of this queue, or ends beyond it, counts for nothing.
    for other in (replace(has, chain_hash=b"x" * 32), replace(has, position=99)):
        tails, alarms = deliver(0, bytes(32), ahead=other)
        assert ([tail.entries for tail in tails], alarms) == ([tuple(entries)], [])


def test_one_tail_is_under_way_to_a_peer_and_none_is_sent_again_meanwhile() -> None:
    journal, entries = filled(5)

    async def main() -> None:
        link, alarms = Link(), list[Alarm]()
        queue_tails = tails_of(journal, link, VIEW, alarms)
        link.quick.clear()
        first = SendTail(peer=NodeId("B"), position=0, chain_hash=bytes(32))
        queue_tails.send(first)
        while not link.tails:
            await asyncio.sleep(0.001)
        for behind in (0, 1, 2):
            base = entries[behind]
            queue_tails.send(replace(first, position=base.end, chain_hash=base.chain_hash))
        link.quick.set()
        await asyncio.gather(*queue_tails._tails.values())
        assert [tail.entries for tail in link.tails] == [tuple(entries), tuple(entries[3:])]
        link.tails.clear()
        link.quick.clear()
        queue_tails.send(first)
        while not link.tails:
            await asyncio.sleep(0.001)
        queue_tails.send(first)
        link.quick.set()
        await asyncio.gather(*queue_tails._tails.values())
        assert len(link.tails) == 1

    asyncio.run(main())


def _expired(after: int, limit_runs: int, *, payloads: bool) -> Any:
    raise ExpiredError("expired", kept_after=10)


def test_of_an_expired_queue_the_run_that_links_or_does_not_is_sent() -> None:
    _, entries = filled(5)
    right, wrong = entries[1].chain_hash, b"x" * 32
    for view in (VIEW, ALONE):
        tails, alarms = deliver(4, right, view=view, gone="expired")
        assert [tail.entries for tail in tails] == [(entries[2],)]
        assert (tails[0].previous_hash, alarms) == (right, [])
        assert deliver(4, right, view=view, gone="pruned") == ([], [])
    assert [alarm.code for alarm in deliver(4, wrong, gone="expired")[1]] == ["diverged"]
    tails, alarms = deliver(4, wrong, view=ALONE, gone="expired")
    assert ([tail.entries for tail in tails], alarms) == ([(entries[2],)], [])


def test_another_history_halts_this_node_and_sends_nothing() -> None:
    _, entries = filled(5)
    for position, chain_hash in (
        (4, b"x" * 32),
        (3, entries[1].chain_hash),
        (10, b"x" * 32),
        (0, b"x" * 32),
    ):
        tails, alarms = deliver(position, chain_hash)
        assert tails == []
        assert [(alarm.code, alarm.fatal) for alarm in alarms] == [("diverged", True)]
        assert "sparktxlog peer quarantine" in alarms[0].text


def test_a_node_that_asks_with_another_history_gets_the_run_that_proves_it() -> None:
    _, entries = filled(5)
    for position, chain_hash, proof in (
        (4, b"x" * 32, entries[2:3]),
        (3, entries[1].chain_hash, entries[1:2]),
        (0, b"x" * 32, entries[:1]),
        (10, b"x" * 32, []),
    ):
        tails, alarms = deliver(position, chain_hash, view=ALONE)
        assert alarms == []
        assert [tail.entries for tail in tails] == [(entry,) for entry in proof]
        for tail in tails:
            recovered = RecoveredState(
                base=MergeBase(position=position, chain_hash=chain_hash, origin="B", seq=1)
            )
            asking = SynchronizedQueue(CONFIG, recovered)
            with pytest.raises(InvariantViolation, match="A has another queue") as caught:
                asking.continue_tail(tail, 1)
            assert "sparktxlog peer quarantine" in str(caught.value)
