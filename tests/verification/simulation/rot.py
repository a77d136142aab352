"""A member that lies, or whose memory rots, in one field of one message (P10, P30).

The others must go on with one queue, and none of them may halt.  Not everything can be borne: a
promise or claim that says *more* than is true, to some and not to others, makes two queues of one,
and a timestamp or transaction that only one of them hears of does, too.  What is changed here is
what identifies, what says less, and what contradicts other words of the same node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from sparktxlog.protocol.messages.balloting import Promise, Standing
from sparktxlog.protocol.messages.events import EpochMessageReceived, Event, PostReceived
from sparktxlog.protocol.messages.posts import Post
from sparktxlog.protocol.messages.view import Ballot

_Change = Callable[[Random, Any], Any]


def _less(name: str) -> _Change:
    return lambda random, whole: replace(
        whole, **{name: random.randrange(max(1, getattr(whole, name)))}
    )


def _moved(name: str) -> _Change:
    """Change a number a little, up or down, never below 0."""
    return lambda random, whole: replace(
        whole, **{name: max(0, getattr(whole, name) + random.choice((-3, -1, 1, 3, 1_000)))}
    )


def _other(name: str, value: Any) -> _Change:
    return lambda random, whole: replace(whole, **{name: value})


def _of_base(random: Random, post: Post) -> Post:
    return replace(post, base=replace(post.base, chain_hash=random.randbytes(32)))


def _fewer_acquired(random: Random, post: Post) -> Post:
    return replace(post, acquired={origin: seq // 2 for origin, seq in post.acquired.items()})


def _of_header(name: str) -> _Change:
    def change(random: Random, post: Post) -> Post:
        if not post.headers:
            return post
        at = random.randrange(len(post.headers))
        was = post.headers[at]
        if name == "digest":
            rotten = replace(was, digest=random.randbytes(32))
        else:
            rotten = _moved(name)(random, was)
        return replace(post, headers=(*post.headers[:at], rotten, *post.headers[at + 1 :]))

    return change


#: Field → what becomes of a message with it.
_OF_POSTS: dict[str, _Change] = {
    "log_id": _other("log_id", "rotten"),
    "epoch": _moved("epoch"),
    "counter": _less("counter"),
    "last number": _less("last_seq"),
    "wall clock": _moved("wall"),
    "acquired": _fewer_acquired,
    "header's digest": _of_header("digest"),
    "header's number": _of_header("seq"),
    "header's incarnation": _of_header("incarnation"),
    "header's epoch": _of_header("epoch"),
}
#: With two members one other queue is as many as can agree without the own one.
_OF_MANY: dict[str, _Change] = {"chain hash": _of_base}
_OF_PROMISES: dict[str, _Change] = {
    "log_id": _other("log_id", "rotten"),
    "epoch": _moved("epoch"),
    "incarnation": _moved("incarnation"),
    "ballot": lambda random, promise: replace(
        promise, ballot=Ballot(number=promise.ballot.number + 1, node=promise.ballot.node)
    ),
}
_OF_GREETINGS: dict[str, _Change] = {
    name: _less(name) for name in ("epoch", "counter", "seq", "position", "held", "start")
}


class Rot:
    """Changes one field of the next fitting message of one node.

    Args:
        random: Source of everything by chance.
        hit: Told of each change.
    """

    def __init__(self, random: Random, hit: Callable[[str], None]) -> None:
        self._random = random
        self._hit = hit
        #: Whether the others can do without a node: who is not believed may have to go.
        self.spares: Callable[[str], bool] = lambda node: False
        #: Who lied, and has not come back as another since: it may have to, at any time.
        self.lied: set[str] = set()
        self.ever_lied: set[str] = set()
        #: Whose message is changed, of which kind, in which field.
        self._armed: tuple[str, type, str, _Change] | None = None

    def strike(self, node: str, members: int) -> None:
        """Let the next fitting message of a node be changed."""
        fields = _OF_POSTS if members <= 2 else _OF_POSTS | _OF_MANY
        kinds: tuple[tuple[type, dict[str, _Change]], ...] = (
            (Post, fields), (Post, fields), (Promise, _OF_PROMISES), (Standing, _OF_GREETINGS),
        )  # fmt: skip
        kind, changes = self._random.choice(kinds)
        name = self._random.choice(list(changes))
        self._armed = (node, kind, name, changes[name])

    def __call__(self, sender: str, message: Any) -> Any:
        """Return what becomes of a message, or of the standing that a greeting shows."""
        if self._armed is None or self._armed[:2] != (sender, type(message)):
            return message
        if not self.spares(sender):
            return message
        _, kind, name, change = self._armed
        rotten = change(self._random, message)
        if rotten != message:
            self._armed = None
            self.lied.add(sender)
            self.ever_lied.add(sender)
            self._hit(f"rotten {kind.__name__.lower()}")
            self._hit(f"rotten {kind.__name__.lower()}: {name}")
        return rotten

    def sent(self, sender: str, event: Event) -> Event:
        """Return what becomes of a message that leaves."""
        if self._armed is None:
            return event
        if isinstance(event, PostReceived):
            return replace(event, post=self(sender, event.post))
        if isinstance(event, EpochMessageReceived):
            return replace(event, message=self(sender, event.message))
        return event
