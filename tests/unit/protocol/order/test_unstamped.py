"""Runs that wait for a stamp, and files that are fetched before one."""

from __future__ import annotations

from dataclasses import replace

from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.messages.events import RunSubmitted
from sparktxlog.protocol.messages.posts import Announcement
from sparktxlog.protocol.order.unstamped import Prefetching, Staging

FACTS = RunFacts(n=1, ids=bytes(16))


def submitted(
    ticket: int, staged: int = 0, session: str | None = None, holders: int = 0
) -> RunSubmitted:
    return RunSubmitted(
        ticket=ticket,
        digest=ticket.to_bytes(32, "big"),
        size_bytes=10,
        staged_bytes=staged,
        facts=replace(FACTS, holders=holders),
        session=session,
        submitted_at=0,
    )


class TestStaging:
    def test_first_in_first_out_per_session(self) -> None:
        staging = Staging(100, 50)
        staging.add(submitted(1, 9, "s"), 0, 0, late=True)
        staging.add(submitted(2, 0, "s"), 0, 0, late=False)
        staging.add(submitted(3, 9, "t"), 0, 0, late=True)
        assert staging.must_wait("s") and not staging.must_wait("u") and not staging.must_wait(None)
        assert staging.take_ready(1) == []
        staging.runs[3].ready = True
        assert [s.ticket for s in staging.take_ready(1)] == [3]
        staging.runs[1].ready = True
        assert [s.ticket for s in staging.take_ready(1)] == [1, 2]
        assert staging.payload_bytes == 0 and not staging.must_wait("s")

    def test_after_the_stage_timeout_a_run_is_stamped_once_its_files_were_seen(self) -> None:
        staging = Staging(100, 50)
        staging.add(submitted(1, 9), 7, 0, late=True)
        digest = staging.runs[1].submit.digest
        assert not staging.found_whole(digest), "nobody asked"
        assert (staging.take_overdue(106), staging.take_ready(1)) == ([], [])
        staging.runs[1].next_at = 1_000
        assert staging.next_deadline() == 107
        assert staging.take_overdue(107) == [digest]
        assert (staging.take_overdue(206), staging.take_ready(1)) == ([], []), "asked once"
        assert staging.take_overdue(207) == [digest], "an answer may be lost"
        assert staging.next_deadline() == 307
        assert staging.found_whole(digest)
        assert [s.ticket for s in staging.take_ready(1)] == [1]

    def test_what_waits_for_members_is_counted_with_what_it_holds_up(self) -> None:
        staging = Staging(100, 50)
        staging.add(submitted(1, session="s"), 0, 0, late=False)
        staging.add(submitted(2, session="s", holders=3), 0, 0, late=False)
        staging.add(submitted(3, 9, session="s"), 0, 0, late=True)
        staging.add(submitted(4, holders=3), 0, 0, late=False)
        staging.add(submitted(5, session="t"), 0, 0, late=False)
        assert (staging.held_up_runs, staging.held_up_bytes) == (3, 30)
        assert [s.ticket for s in staging.take_ready(2)] == [1, 5]
        assert staging.held_up_runs == 3
        assert [s.ticket for s in staging.give_up(50)] == [2, 4]
        assert (staging.held_up_runs, staging.held_up_bytes) == (1, 10), "until it is stamped"
        assert not staging.is_held_up(submitted(6, session="s")), "nothing waits for members there"
        staging.runs[3].ready = True
        assert [s.ticket for s in staging.take_ready(2)] == [3]
        assert (staging.held_up_runs, staging.held_up_bytes) == (0, 0)

    def test_announcements_are_repeated_ever_more_seldom(self) -> None:
        staging = Staging(10_000, 50)
        staging.add(submitted(1, 9), 0, 0, late=True)
        times = []
        for now in range(100):
            if staging.take_unannounced(now, 10, 30):
                times.append(now)
        assert times == [0, 10, 30, 60, 90]


class TestPrefetching:
    def _announce(self, number: int) -> Announcement:
        return Announcement(
            log_id="l",
            epoch=1,
            origin=NodeId("b"),
            digest=number.to_bytes(32, "big"),
            size_bytes=1,
            staged_bytes=9,
        )

    def test_prefetch_hold_forget(self) -> None:
        prefetching = Prefetching(limit=1, retry_us=10, keep_us=1_000)
        one, two = self._announce(1), self._announce(2)
        prefetching.announce(one, 0)
        prefetching.announce(two, 0)
        assert prefetching.start(0) == [one] and prefetching.start(0) == []
        prefetching.failed(one.digest, 5)
        assert prefetching.start(5) == [two]
        assert prefetching.holds(two.digest, 6) and not prefetching.holds(two.digest, 6)
        assert prefetching.held == (two.digest,)
        assert prefetching.next_deadline() == 15
        prefetching.forget(two.digest)
        assert not prefetching.held

    def test_held_files_of_nobody_are_forgotten(self) -> None:
        prefetching = Prefetching(limit=1, retry_us=10, keep_us=1_000)
        prefetching.announce(self._announce(1), 0)
        prefetching.holds(self._announce(1).digest, 0)
        prefetching.start(1_000)
        assert prefetching.held == ()
