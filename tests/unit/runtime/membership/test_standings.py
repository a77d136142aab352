"""What a node writes before it begins under a later incarnation (P30)."""

from __future__ import annotations

from dataclasses import replace

from tests.support.storage_samples import TemporaryJournal, run_of
from tests.verification.mutation.lone import Lone

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.master import Master
from sparktxlog.runtime.membership.standings import begin_as_another
from sparktxlog.storage.interfaces import PutReservation, PutView


def test_own_runs_lose_their_stamps_and_the_counter_begins_anew() -> None:
    journal = TemporaryJournal()
    own, foreign = run_of(origin="a"), run_of(origin="b")
    journal.write([own, foreign, PutReservation(counter=1 << 60)])

    def begin(incarnation: int) -> int:
        writes = begin_as_another("a", incarnation, journal.load(16), journal)
        journal.write(writes)
        return len(writes)

    assert begin(1) == 0
    assert begin(2) == 3
    state = journal.load(16)
    assert state.core.reserved == 0
    assert [waiting.digest for waiting in state.core.announcements] == [own.header.digest]
    assert state.core.announcements[0].submitted_at is None, "it had a stamp: no timeout counts"
    # A kill before a view is taken up: what is done is not done twice.
    assert begin(2) == 0
    journal.write([PutReservation(counter=5)])
    view = replace(Lone(Master).view, epoch=2)
    journal.write([PutView(view=view, node_id=NodeId("a"), incarnation=2)])
    assert begin(2) == 0
    assert journal.load(16).core.reserved == 5
