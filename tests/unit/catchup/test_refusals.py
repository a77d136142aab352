"""What neither replay nor copy would change: the machine stands still at once."""

from __future__ import annotations

import pytest
from tests.unit.catchup.test_replica import Driver

from sparktxlog.catchup.phases import Phase
from sparktxlog.catchup.replica_events import (
    Apply,
    ChunkWritten,
    Fault,
    GoIdle,
    LoadOffered,
    RequestLoad,
    RequestRange,
    Resume,
)


@pytest.mark.parametrize(("first", "again"), [(1, Apply), (5, RequestRange)])
def test_a_refusal_is_no_reason_to_copy(first: int, again: type) -> None:
    driver = Driver()
    driver.received(first, 9)
    driver.fail(Fault.REFUSED, "wrong token")
    assert driver.asked(GoIdle).reason == "wrong token"
    assert (driver.machine.phase, driver.machine.next_deadline()) == (Phase.IDLE, None)
    # Whoever mended it lets it try the same again.
    driver.send(Resume())
    driver.asked(again)


def test_a_full_disk_ends_a_copy_at_once_and_room_lets_it_go_on() -> None:
    driver = Driver().to_load()
    driver.send(LoadOffered(ticket=driver.ticket, position=9, chunks=3))
    driver.send(ChunkWritten(ticket=driver.ticket, index=0))
    driver.fail(Fault.REFUSED, "no space left")
    assert driver.asked(GoIdle).reason == "no space left"
    driver.send(Resume())
    driver.asked(RequestLoad)
