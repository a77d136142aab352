"""The durable state that each node showed; it must never show less later (protocol P30).

A node only reports durable state: ballots that it promised and accepted, its counter, its own runs,
runs that it acquired.  If it starts with less, its disk is an older image.  It does not know what
it said later, so it must not go on with its present incarnation.  A greeting shows the *standing*
that was loaded at the start; a node that knows a greater one tells the sender to rejoin with the
next incarnation.  No other node stops.

The greatest standing of a node is written when it grew enough to matter: at its first message, a
new start, incarnation or epoch, or a counter ten seconds later.  Ballots are written with the next
write.  This node's own queue and streams are compared as well; they are durable anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sparktxlog.errors import OutdatedError
from sparktxlog.protocol.messages.balloting import (
    Accepted,
    Decide,
    EpochMessage,
    Promise,
    Refusal,
    Standing,
    epoch_of,
)
from sparktxlog.protocol.messages.posts import Post
from sparktxlog.protocol.messages.view import Ballot, View

#: A counter that grew by so much is written, microseconds.
_PACE_US = 10_000_000


def shortfall(shown: Standing, known: Standing) -> str:
    """Return what a node shows less of than before this start, empty = nothing."""
    if not (shown.start or known.start) or shown.incarnation > known.incarnation:
        return ""  # a node that once said how often it was started always says it
    if shown.incarnation < known.incarnation:
        return f"incarnation {shown.incarnation}, before {known.incarnation}"
    if known.is_blank and not shown.is_blank:
        return ""  # an empty disk was there for a while
    if known.boot and shown.boot == known.boot:
        return ""  # the same process: what it loaded is behind what it said since
    if known.start and shown.start <= known.start:
        return f"start {shown.start}, before {known.start}"
    if shown.epoch < known.epoch:
        return f"epoch {shown.epoch}, before {known.epoch}"
    if shown.epoch == known.epoch:
        if shown.promised < known.promised:
            return f"promised ballot {shown.promised.number}, before {known.promised.number}"
        if shown.accepted < known.accepted:
            return f"accepted ballot {shown.accepted.number}, before {known.accepted.number}"
        if shown.held < known.held:
            return f"{shown.held} transactions held, before {known.held}"
    for what, now, before in (
        ("counter", shown.counter, known.counter),
        ("own transactions up to", shown.seq, known.seq),
        ("position", shown.position, known.position),
    ):
        if now < before:
            return f"{what} {now}, before {before}"
    return ""


def check_incarnation(view: View, node: str, incarnation: int) -> None:
    """Refuse to go on if the log has a later incarnation of this node.

    Raises:
        OutdatedError: It has.
    """
    seat = view.seat(node)
    if seat is not None and seat.incarnation > incarnation:
        raise OutdatedError(
            f"the log has this node as incarnation {seat.incarnation}: this disk, of incarnation "
            f"{incarnation}, is an older one"
        )


class Standings:
    """The greatest standing of each other node.

    Args:
        known: What is durable here.
    """

    __slots__ = ("_counters", "_due", "_known", "_late", "_sound", "_waiting")

    def __init__(self, known: Mapping[str, Standing]) -> None:
        self._known: dict[str, Standing] = dict(known)
        #: Standings of nodes that want to join: they count after the admission.
        self._waiting: dict[str, Standing] = {}
        #: Node → counter in its latest write.
        self._counters = {node: standing.counter for node, standing in known.items()}
        #: Node → its latest process that showed enough.
        self._sound: dict[str, str] = {}
        #: Nodes whose standing is to be written now, or with the next write.
        self._due: set[str] = set()
        self._late: set[str] = set()

    def heard(self, node: str, epoch: int, position: int) -> bool:
        """Return whether a node was ever heard, also before a restart (P29).

        One that is further than this node by an epoch, or by a queue where this one has none, does
        not count: it has the log that this node may have lost.

        Args:
            epoch: This node's.
            position: End of the queue here.
        """
        known = self._known.get(node)
        if known is None:
            return False
        has_log = known.position > 0 == position
        return not has_log and known.epoch <= epoch

    def of(self, node: str) -> Standing | None:
        """Return the greatest standing of a node."""
        return self._known.get(node)

    def judge(
        self, peer: str, shown: Standing, view: View, key: tuple[int, int, str, int], held: int
    ) -> str:
        """Return why a greeting node must rejoin with another incarnation, empty = it need not.

        Args:
            view: This node's.
            key: Of the end of the queue here.
            held: Number up to which runs of the node are durable here.
        """
        known, seat = self._known.get(peer), view.seat(peer)
        if shown.start and seat is not None and shown.incarnation < seat.incarnation:
            return f"incarnation {shown.incarnation}, the log has it as {seat.incarnation}"
        if known is not None and (short := shortfall(shown, known)):
            return short
        if not shown.start or seat is None or seat.incarnation != shown.incarnation:
            return ""
        if shown.boot and shown.boot in (self._sound.get(peer), known and known.boot):
            return ""  # an earlier word of a process that showed enough: it came late
        if shown.seq_now < held:
            return f"own transactions up to {shown.seq_now}, here are {held}"
        current = shown.epoch == view.epoch == key[0] and peer in view.members
        if current and shown.counter_now < key[1]:
            return f"counter {shown.counter_now}, the queue here ends at {key[1]}"
        self._sound[peer] = shown.boot
        return ""

    def greeted(self, node: str, shown: Standing, *, counts: bool = True) -> None:
        """Note the standing of an accepted greeting.

        Args:
            counts: False: the node is not admitted under that incarnation yet.
        """
        if not counts:
            self._waiting[node] = shown
            return
        known = self._known.get(node)
        if known is None or shown.incarnation > known.incarnation or known.is_blank:
            self._known[node] = shown
            self._due.add(node)
        elif shown.incarnation == known.incarnation and shown.start >= known.start:
            if shown.boot != known.boot or shown.start != known.start:
                self._due.add(node)
            self._known[node] = replace(known, start=shown.start, boot=shown.boot)

    def posted(self, post: Post, incarnation: int) -> None:
        """Note what a member's post shows."""
        known = self._of(post.sender, incarnation)
        if known is None or post.epoch < known.epoch:
            return
        held, position = sum(post.acquired.values()), post.base.position
        if post.epoch > known.epoch:
            known = self._enter(post.sender, known, post.epoch)
        elif post.counter <= known.counter and held <= known.held and position <= known.position:
            return
        self._known[post.sender] = replace(
            known,
            counter=max(known.counter, post.counter),
            seq=max(known.seq, post.last_seq),
            position=max(known.position, position),
            held=max(known.held, held),
        )
        if post.counter >= self._counters.get(post.sender, 0) + _PACE_US:
            self._due.add(post.sender)

    def said(self, message: EpochMessage, here: int) -> None:
        """Take in what a part of an epoch decision shows of its sender.

        What a question says does not count: it leaves before the sender's own answer is durable.
        Nor does an answer of a later epoch than this node's: it asked nothing there.

        Args:
            here: This node's epoch.
        """
        if isinstance(message, Decide):
            return
        known = self._of(message.sender, message.incarnation)
        epoch = epoch_of(message)[1]
        if known is None or epoch < known.epoch:
            return
        if epoch > known.epoch:
            known = self._enter(message.sender, known, epoch)
        promised, accepted = known.promised, known.accepted
        match message:
            case _ if epoch > here:
                pass
            case Promise():
                vote = message.accepted
                promised = max(promised, message.ballot)
                accepted = accepted if vote is None else max(accepted, vote.ballot)
            case Refusal():
                promised = max(promised, message.promised)
            case Accepted():
                promised, accepted = max(promised, message.ballot), max(accepted, message.ballot)
            case _:
                pass
        if (promised, accepted) != (known.promised, known.accepted):
            known = replace(known, promised=promised, accepted=accepted)
            self._late.add(message.sender)
        self._known[message.sender] = known

    def _of(self, node: str, incarnation: int) -> Standing | None:
        """Return the standing of a node with its incarnation, None for an older one."""
        known = self._known.get(node)
        if known is None or incarnation > known.incarnation:
            self._due.add(node)
            waiting = self._waiting.get(node)
            if waiting is None or waiting.incarnation != incarnation:
                waiting = Standing(incarnation=incarnation)
            known = self._known[node] = waiting
        return known if incarnation == known.incarnation else None

    def _enter(self, node: str, known: Standing, epoch: int) -> Standing:
        self._due.add(node)
        known = replace(known, epoch=epoch, promised=Ballot(), accepted=Ballot(), held=0)
        self._known[node] = known
        return known

    def take(self, *, writes: bool) -> list[tuple[str, Standing]]:
        """Return the standings to make durable now.

        Args:
            writes: Something is made durable anyway.
        """
        if not (self._due or (writes and self._late)):
            return []
        nodes = sorted(self._due | self._late)
        self._due, self._late = set(), set()
        for node in nodes:
            self._counters[node] = self._known[node].counter
        return [(node, self._known[node]) for node in nodes]
