"""Mutations of whom to believe: contradictions, older disks, empty ones (P10, P30, P29)."""

from __future__ import annotations

from typing import Any

from sparktxlog.errors import ContradictionError, OtherQueueError
from sparktxlog.protocol.epoch.joining import Admission
from sparktxlog.protocol.epoch.proposer import Proposer
from sparktxlog.protocol.epoch.standing import Standings, shortfall
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.order.origin_queues import Run
from sparktxlog.protocol.words.balloting import EpochMessage, Flushed, Promise, Standing
from sparktxlog.protocol.words.events import PayloadArrived, PostReceived
from sparktxlog.protocol.words.messages import Post, RunHeader
from sparktxlog.protocol.words.view import View


class HaltsForOthers(Master):
    """Stop when another node contradicts itself."""

    def _doubt(self, error: ContradictionError, now: int) -> bool:
        """Take the other's fault for an own one."""
        self._halt(error.code, str(error))
        return False


class BelievesAgain(Master):
    """Go on believing a node that contradicted itself."""

    def _take_in(self, event: PostReceived | PayloadArrived, now: int) -> None:
        """Forget the contradiction at once."""
        super()._take_in(event, now)
        self._doubted.clear()


class HaltsAtTheFirst(Master):
    """Stop as soon as one member has another queue, however many there are."""

    def _on_other_queue(self, error: OtherQueueError, now: int) -> None:
        raise error


class BoundByWhatItWas(Master):
    """Begin above the timestamps of runs that it stamped under another incarnation."""

    def _is_former(self, header: RunHeader) -> bool:
        return False


class NeverOutvoted(Master):
    """Go on although the others have another queue."""

    def _on_other_queue(self, error: OtherQueueError, now: int) -> None:
        self._doubt(error, now)


def never_only_named(held: Run, header: RunHeader) -> bool:
    """Take what one node was told for as good as a queue."""
    return False


def nothing_is_short(shown: Standing, known: Standing) -> str:
    """Find that nobody shows less than before."""
    return ""


def silence_is_enough(shown: Standing, known: Standing) -> str:
    """Believe a greeting that does not say how often its node was started."""
    return shortfall(shown, known) if shown.start else ""


def nothing_is_kept(self: Standings, *, writes: bool) -> list[tuple[str, Standing]]:
    """Keep what others showed in memory only."""
    return []


def posts_show_nothing(self: Standings, post: Post, incarnation: int) -> None:
    """Take no note of what a post shows."""
    self._of(post.sender, incarnation)


def votes_show_nothing(self: Standings, message: EpochMessage, here: int) -> None:
    """Take no note of what was promised and accepted."""


def holds_nothing(self: Any, origin: str) -> int:
    """Compare nothing with what is held of a node."""
    return 0


def last_epoch_only(self: View, lineage: str, epoch: int) -> bool:
    """Let nobody follow a forced log but from the very epoch that it left."""
    return (lineage, epoch) in self.ancestors


def is_whoever_it_was(self: Proposer, message: Promise | Flushed) -> bool:
    """Count what a node says as what it was for what it asked to become."""
    return self.candidate is not None


def asks_for_ever(self: Admission, node: str, incarnation: int) -> None:
    """Go on with a wish to join of a node that is again what it was."""


def asks_as_it_was(view: View, node: str, incarnation: int) -> None:
    """Find nothing in a later incarnation of this node."""


def everybody_was_heard(self: Any) -> list[str]:
    """Leave out who was never heard, in the first epoch as in any."""
    return []


_judge = Master.judge


def judged_each_time(self: Master, peer: str, shown: Standing) -> str:
    """Compare each greeting of a process with what is held here by now."""
    self._standings._sound.clear()
    return _judge(self, peer, shown)


_said = Standings.said


def any_epoch_shows(self: Standings, message: EpochMessage, here: int) -> None:
    """Take note of ballots of epochs in which this node asked for none."""
    _said(self, message, message.epoch if isinstance(message, Promise) else here)
