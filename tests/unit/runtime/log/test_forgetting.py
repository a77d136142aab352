"""Which payloads may go: members, nodes that are behind, and what no one can ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.storage_samples import TemporaryJournal, entries_of, run_of

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.view import Seat, View
from sparktxlog.runtime.log.forgetting import forgettable
from sparktxlog.storage.interfaces import AppendQueue, ForgetPayloads, MarkPublished, Segment
from sparktxlog.storage.journal.journal import Journal

NODES = tuple(NodeId(name) for name in "abc")


def view(members: str, epoch: int = 2, incarnation: int = 1) -> View:
    """Return a view of a, b, c and a witness, with some of them as members."""
    seats = [Seat(node_id=node, incarnation=incarnation) for node in NODES]
    witness = Seat(node_id=NodeId("w"), witness=True)
    return View(
        log_id="l",
        epoch=epoch,
        roster=(*seats, witness),
        members=tuple(node for node in NODES if node in members),
    )


def ask(
    view: View, posted: dict[str, int], shown: dict[str, int] | None = None, **given: int
) -> ForgetPayloads:
    values = {"published": 100, "kept_after": 0, "keep_bytes": 1 << 20} | given
    incarnation = values.pop("incarnation", 1)
    return forgettable(view, "a", incarnation, posted=posted, shown=shown or posted, **values)


def test_members_decide_while_all_are_there() -> None:
    write = ask(view("abc"), {"b": 70, "c": 90})
    assert write == ForgetPayloads(position=70, spare_after=None, spare_bytes=1 << 20)
    assert ask(view("abc"), {"b": 700, "c": 900}).position == 100
    # Of one that did not post yet nothing is known.
    assert ask(view("abc"), {"b": 70}).position == 0


def test_what_an_evicted_node_lacks_is_spared() -> None:
    write = ask(view("ab"), {"b": 90}, {"b": 90, "c": 40})
    assert (write.position, write.spare_after) == (90, 40)
    # Not heard since this node's start: as if it held nothing.
    assert ask(view("ab"), {"b": 90}).spare_after == 0
    alone = ask(view("a"), {}, {"b": 60, "c": 40})
    assert (alone.position, alone.spare_after) == (100, 40)


def test_what_the_log_has_expired_is_spared_for_nobody() -> None:
    assert ask(view("ab"), {"b": 90}, {"c": 40}, kept_after=55).spare_after == 55


def test_a_node_that_is_no_member_waits_for_nobody() -> None:
    for write in (
        ask(view("bc"), {}, {"b": 90, "c": 95}),
        # Evicted with its disk: its place has another incarnation.
        ask(view("abc", incarnation=2), {}, {"b": 90, "c": 95}),
    ):
        assert (write.position, write.spare_after) == (100, 90)


@pytest.fixture
def journal() -> Iterator[Journal]:
    made = TemporaryJournal()
    made.load(1_000)
    yield made
    made.close()


def test_an_evicted_node_finds_what_it_lacks_up_to_the_bound(journal: Journal) -> None:
    """a and b go on for a while without c, which stood at 3; then c asks a's journal for runs."""
    runs = [run_of(seq=1 + i, padding=2_000) for i in range(100)]
    journal.write([*runs, AppendQueue(entries=entries_of(runs), ordered_at=1)])

    def held() -> list[int]:
        return [i for i in range(1, 101) if journal.read_payload("a", 1, i) is not None]

    shown = {"b": 0, "c": 3}
    for first in range(1, 100, 10):
        last = first + 9
        segment = Segment(
            first=first, last=last, from_hash="", to_hash="", epoch=1, transactions=10, rejected=0
        )
        shown["b"] = last - 1
        journal.write([MarkPublished(position=last, version=1, segment=segment)])
        write = ask(view("ab"), {"b": last - 1}, shown, published=last, keep_bytes=1 << 30)
        journal.write([write])
        assert held()[0] == 4
    # It comes back as far as 50, and the bound is as large as about 20 runs.
    shown["c"] = 50
    journal.write([ask(view("ab"), {"b": 99}, shown)])
    assert held()[0] == 51
    journal.write([ask(view("ab"), {"b": 99}, shown, keep_bytes=55_000)])
    assert 15 <= len(held()) <= 25
    assert held()[-1] == 100
    # A member again.
    journal.write([ask(view("abc", epoch=3), {"b": 99, "c": 98})])
    assert held() == [99, 100]
