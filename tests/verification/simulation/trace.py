"""The trace of a history: a digest of what every core wanted done, and when.

Of each action the contents that tell one history from another: epochs, ballots, stamps, positions,
chain hashes.  Two runs of one seed have one trace, in whatever process they run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

from sparktxlog.protocol.messages.actions import (
    Action,
    Alarm,
    CheckFiles,
    CheckUnstamped,
    FetchPayload,
    PersistAnnouncement,
    PersistBallot,
    PersistForeignRun,
    PersistOwnRun,
    PersistQueue,
    PersistReservation,
    PersistRestamp,
    PersistStanding,
    PersistView,
    PersistVoid,
    PersistWithdrawal,
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
from sparktxlog.protocol.messages.balloting import (
    Accept,
    BallotState,
    EpochMessage,
    Flush,
    Flushed,
    JoinRequest,
    Probe,
    ProbeAnswer,
    Promise,
    TailRequest,
    epoch_of,
)
from sparktxlog.protocol.messages.posts import MergeBase, Post, QueueEntry, RunHeader
from sparktxlog.protocol.messages.view import View


class Trace:
    """Digest of a history."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, now: int, node: str, actions: Iterable[Action]) -> None:
        """Take in what a core wants done at a time."""
        told = [_CONTENTS[type(action)](action) for action in actions]
        self._digest.update(f"{now} {node} {','.join(told)};".encode())

    def hexdigest(self) -> str:
        """Return the digest of all until now."""
        return self._digest.hexdigest()


def _header(header: RunHeader) -> str:
    return f"{header.origin}{header.incarnation}:{header.seq}+{header.n}@{header.epoch}.{header.ts}"


def _base(base: MergeBase) -> str:
    return f"{base.position} {base.chain_hash.hex()}"


def _entries(entries: tuple[QueueEntry, ...]) -> str:
    first, last = entries[0], entries[-1]
    rejected = sum(len(entry.rejections) for entry in entries)
    return f"{first.position}-{last.end} {last.chain_hash.hex()} {rejected}"


def _view(view: View) -> str:
    seats = [f"{s.node_id}.{s.incarnation}*{s.weight}" for s in view.roster]
    return f"{view.log_id} {view.epoch} {view.members} {seats} {len(view.tail)} {_base(view.end)}"


def _post(post: Post) -> str:
    base = post.base
    return (
        f"{post.epoch} {post.round} {post.counter} {post.last_seq} {len(post.headers)} "
        f"{base.position} {base.chain_hash.hex()}"
    )


def _state(state: BallotState) -> str:
    accepted = state.accepted
    value = "" if accepted is None else f"{accepted.ballot} {_view(accepted.view)}"
    return f"{state.epoch} {state.promised} {value}"


def _message(message: EpochMessage) -> str:
    log_id, epoch = epoch_of(message)
    return f"{type(message).__name__} {log_id} {epoch} {_of_message(message)}"


def _of_message(message: EpochMessage) -> str:
    match message:
        case Probe():
            return f"{message.number} {message.suspects}"
        case ProbeAnswer():
            return f"{message.number} {message.hears}"
        case Promise():
            state, accepted = message.state, message.accepted
            holds = "" if state is None else f"{_base(state.base)} {len(state.acquired)}"
            return f"{message.ballot} {holds} {accepted and accepted.ballot}"
        case Flush() | Accept():
            return f"{message.ballot} {_view(message.candidate)}"
        case Flushed():
            return f"{message.ballot} {message.missing}"
        case JoinRequest():
            return _base(message.base)
        case TailRequest():
            return f"{message.position} {message.chain_hash.hex()}"
        case _:
            return str(getattr(message, "ballot", ""))


#: Type of an action → what the trace takes of it, its name first.
_CONTENTS: dict[type, Callable[[Any], str]] = {
    PersistOwnRun: lambda a: f"own {a.ticket} {_header(a.header)}",
    PersistForeignRun: lambda a: f"foreign {_header(a.header)}",
    PersistReservation: lambda a: f"reservation {a.counter}",
    PersistAnnouncement: lambda a: f"unstamped {a.ticket}",
    PersistWithdrawal: lambda a: f"withdrawn {[run.ticket for run in a.runs]}",
    PersistQueue: lambda a: f"queue {_entries(a.entries)}",
    PersistBallot: lambda a: f"ballot {_state(a.state)}",
    PersistView: lambda a: f"view {_view(a.view)} {a.incarnation}",
    PersistVoid: lambda a: f"void {_header(a.voided.header)}",
    CheckFiles: lambda a: f"check {_header(a.header)}",
    CheckUnstamped: lambda a: f"check unstamped {a.digest.hex()}",
    PersistRestamp: lambda a: f"restamp {_header(a.header)}",
    PersistStanding: lambda a: f"standing {a.node} {a.standing}",
    TellDoubt: lambda a: f"doubt {a.peer} {a.text}",
    SendEpochMessage: lambda a: f"message {a.peer} {_message(a.message)}",
    SendPost: lambda a: f"post {a.peer} {_post(a.post)}",
    SendPush: lambda a: f"push {a.peer} {_header(a.header)}",
    SendAnnouncement: lambda a: f"announce {a.peer} {a.announcement.digest.hex()}",
    SendTail: lambda a: f"tail {a.peer} {a.position} {a.chain_hash.hex()}",
    FetchPayload: lambda a: f"fetch {_header(a.header)} {a.sources}",
    PrefetchFiles: lambda a: f"prefetch {a.announcement.digest.hex()}",
    TellAccepted: lambda a: f"accepted {a.ticket} {a.header and _header(a.header)}",
    TellAcquired: lambda a: f"acquired {_header(a.header)}",
    TellOrdered: lambda a: f"ordered {_entries(a.entries)}",
    TellRejected: lambda a: f"rejected {a.ticket} {a.code}",
    TellPhase: lambda a: f"phase {a.phase} {a.view.epoch} {a.reason}",
    TellChange: lambda a: f"change {a.ticket} {a.epoch} {a.text}",
    Alarm: lambda a: f"alarm {a.code} {a.text}",
}
