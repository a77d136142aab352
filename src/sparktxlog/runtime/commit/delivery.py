"""Carries out the core's actions other than writes: messages to peers, receipts, alarms, views."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from sparktxlog.errors import OutdatedError
from sparktxlog.protocol.messages.actions import (
    Action,
    Alarm,
    CheckFiles,
    CheckUnstamped,
    FetchPayload,
    Persist,
    PrefetchFiles,
    SendAnnouncement,
    SendEpochMessage,
    SendPost,
    SendPush,
    SendTail,
    TellAccepted,
    TellAcquired,
    TellChange,
    TellDoubt,
    TellOrdered,
    TellPhase,
    TellRejected,
)
from sparktxlog.protocol.messages.balloting import JoinRequest, TailRequest
from sparktxlog.protocol.messages.view import Phase, View
from sparktxlog.runtime.commit.cycle import CoreLoop, FollowsCore
from sparktxlog.runtime.commit.executor import TakesActions
from sparktxlog.runtime.commit.file_repair import FileRepair
from sparktxlog.runtime.commit.queue_tails import QueueTails
from sparktxlog.runtime.commit.run_fetching import RunFetcher
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.log.published_log import PublishedLog
from sparktxlog.runtime.membership.join_steps import QuietMoment
from sparktxlog.runtime.membership.membership import Membership
from sparktxlog.transport.peer_link import PeerLink


class Delivery(TakesActions, FollowsCore):
    """Carries out all actions of the core but `Persist…`, and follows its views; never blocks.

    A peer that was removed while an action waited has no link, so nothing is sent to it.
    """

    def __init__(
        self,
        base: Foundation,
        core: CoreLoop,
        membership: Membership,
        log: PublishedLog,
        fetcher: RunFetcher,
        files: FileRepair,
    ) -> None:
        self._base = base
        self._core = core
        self._membership = membership
        self._log = log
        self._fetcher = fetcher
        self._files = files
        self._tails = QueueTails(base, core.cycle)
        self._quiet = QuietMoment(self.is_busy, base.loop.time)
        #: End of the queue up to which transactions are counted as ordered.
        self._counted = base.ordered.value

    async def close(self) -> None:
        """Stop sending tails."""
        await self._tails.close()

    # -- what the executor passes on ---------------------------------------------------------------

    def deliver(self, action: Action, at: int) -> None:
        """Carry out one action; `at` is the wall clock of its batch, microseconds."""
        receipts, traces = self._core.receipts, self._base.traces
        if traces is not None:
            traces.follow(action, self._base.links)
        match action:
            case SendPost() | SendPush() | SendAnnouncement() | SendEpochMessage():
                if link := self._base.links.get(action.peer):
                    self._send(link, action)
            case TellAccepted():
                receipts.accepted(action.ticket, action.header)
            case TellAcquired():
                receipts.acquired(action.header)
            case TellOrdered():
                self._tell_ordered(action, at)
            case TellRejected():
                self._core.holdings.own_rejected(action.ticket)
                receipts.rejected(action.ticket, action.code, action.text, action.rests_on)
            case FetchPayload() | PrefetchFiles() | CheckFiles() | CheckUnstamped():
                self._look_for(action)
            case SendTail():
                self._tails.send(action)
            case TellPhase():
                self._tell_phase(action)
            case TellChange():
                self._membership.epochs.on_change(action)
            case TellDoubt():
                self._membership.expire_greeting(action.peer)
            case Alarm():
                pass  # the cycle has reported it
            case _:
                if not isinstance(action, Persist):
                    assert_never(action)
                raise AssertionError("persisting is the executor's")

    def _look_for(self, action: FetchPayload | PrefetchFiles | CheckFiles | CheckUnstamped) -> None:
        match action:
            case FetchPayload():
                self._fetcher.fetch(action.header, action.sources)
            case PrefetchFiles():
                self._fetcher.prefetch(action.announcement)
            case CheckFiles():
                self._files.check_run(action.header)
            case CheckUnstamped():
                self._files.check_unstamped(action.digest)

    def _send(
        self, link: PeerLink, action: SendPost | SendPush | SendAnnouncement | SendEpochMessage
    ) -> None:
        match action:
            case SendPost():
                # The post may have waited for the disk; others compare its clock on arrival (C3).
                link.posts.post(replace(action.post, wall=self._base.clock.wall()))
            case SendPush():
                payload = self._core.holdings.find(action.header.digest)
                if payload is not None:  # otherwise the peer fetches it (P3a)
                    link.push(action.header, payload)
            case SendAnnouncement():
                link.announce(action.announcement)
            case SendEpochMessage():
                if isinstance(action.message, JoinRequest) and not self._quiet.may_ask():
                    return  # the core repeats it
                link.epoch(action.message)
                if isinstance(action.message, TailRequest):
                    membership, position = self._membership, action.message.position
                    membership.joining.note_request(link, position, membership.missed)

    def _tell_ordered(self, action: TellOrdered, at: int) -> None:
        for entry in action.entries:
            self._core.receipts.ordered(entry, at, action.holders)
            self._core.holdings.ordered(entry.end, entry.header.digest)
        position = action.entries[-1].end
        self._base.ordered.advance(position)
        self._base.metrics.ordered.inc(position - self._counted)
        self._counted = position
        self._log.ordered(position)

    def _tell_phase(self, news: TellPhase) -> None:
        self._log.publisher.hold(news.phase is Phase.WEDGED)
        if news.phase is Phase.JOINING:
            self._quiet.begin()
        self._membership.epochs.on_phase(news)

    def wrote(self, seconds: float) -> None:
        """Note that a batch is durable, so the writer is free."""
        self._base.metrics.write_seconds.observe(seconds)
        self._core.cycle.writer_is_free()

    def rested(self) -> None:
        """Note that no action waits."""
        self._core.cycle.look_for_rest()

    # -- what the cycle passes on ------------------------------------------------------------------

    def is_busy(self) -> bool:
        """Return whether the publisher delays this node's answers."""
        return self._log.publisher.working

    def enter(self, view: View) -> None:
        """Follow a decided view, after it is durable and its actions were sent."""
        self._membership.enter(view)
        self._log.enter(view)
        self._core.receipts.forget(self._was_dropped)
        self._files.on_view(view)

    def _was_dropped(self, first_id: bytes) -> bool:
        """Whether a run is no longer kept and has no position either."""
        kept = self._base.journal.find_transaction(first_id)
        return kept is None and self._base.master.locate(first_id) is None

    def halted(self, alarm: Alarm) -> None:
        """Join again if the others hold what this node sent but no longer has."""
        if alarm.code == OutdatedError.code:
            self._membership.joining.outdated(self._base.master.view)
