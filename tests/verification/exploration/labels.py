"""Steps in words, each with a short name by which a trace is replayed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tests.verification.exploration.canonical import describe
from tests.verification.exploration.nodes import STEP_NAMES

from sparktxlog.protocol.messages.events import (
    EpochMessageReceived,
    PayloadArrived,
    PostReceived,
    TailReceived,
)
from sparktxlog.protocol.messages.posts import RunHeader

if TYPE_CHECKING:
    from tests.verification.exploration.space import Message, Space, Step


def label(space: Space, step: Step) -> str:
    """Return a step in words, with its name for `--replay` in front."""
    name = space.names[step.node]
    if step.code < 0:
        return f"{name}:{-step.code} {name}: {STEP_NAMES[step.code]}"
    message = space.messages[step.code]
    whole = repr(
        (
            message.sender,
            message.receiver,
            type(message.event).__name__,
            type(getattr(message.event, "message", None)).__name__,
            describe(message.event, 0),
            describe(message.wanted, 0),
        )
    )
    short = hashlib.blake2b(whole.encode(), digest_size=4).hexdigest()
    return f"{short} {name} gets {_words(message)}"


def _words(message: Message) -> str:
    event = message.event
    match event:
        case PostReceived():
            post = event.post
            return (
                f"post of {post.sender}: epoch {post.epoch}, base {post.base.position}, "
                f"promise ({post.counter}, {post.last_seq}), headers "
                f"[{', '.join(map(_run, post.headers))}], acquired {dict(post.acquired)}"
            )
        case PayloadArrived():
            how = "the fetched" if not message.sender else f"{message.sender}'s push of the"
            return f"{how} payload {_run(event.header)}"
        case EpochMessageReceived():
            told = event.message
            return f"{type(told).__name__} of {told.sender}: {_facts(told)}"
        case TailReceived():
            entries = ", ".join(_run(entry.header) for entry in event.tail.entries)
            return f"tail of {event.tail.sender}: [{entries}]"
        case _:
            assert message.wanted is not None
            return f"the wanted payload {_run(message.wanted)}"


def _facts(told: object) -> str:
    words = []
    for name in ("epoch", "ballot", "missing", "promised", "position"):
        value = getattr(told, name, None)
        if value is not None:
            words.append(f"{name} {value}")
    for name in ("view", "candidate"):
        view = getattr(told, name, None)
        if view is not None:
            tail = ", ".join(map(_run, view.tail))
            words.append(
                f"{name} of epoch {view.epoch}, {'+'.join(view.members)}, "
                f"{view.base.position} + [{tail}]"
            )
    return "; ".join(words)


def _run(header: RunHeader) -> str:
    return f"{header.origin}:{header.seq}@{header.epoch}.{header.ts}"
