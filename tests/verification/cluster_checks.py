"""What is checked of a cluster of letters, after every step.

`ClusterChecks(cluster)` watches a cluster; `check()` raises `InvariantViolation` with the story.
`check_healed()` is for the end, after `Cluster.heal()`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.verification.cluster import Cluster
from tests.verification.model.disk import RunKey, key_of
from tests.verification.model.invariants import (
    Answers,
    OneQueue,
    check_holders,
    check_post,
    violated,
)
from tests.verification.reference import ReferenceMaster

from sparktxlog.protocol.messages.actions import (
    Action,
    SendPost,
    TellAccepted,
    TellAcquired,
    TellOrdered,
)
from sparktxlog.protocol.messages.events import Event
from sparktxlog.protocol.messages.posts import RunHeader


class ClusterChecks:
    """All checks of one cluster.

    Args:
        cluster: Not started yet.
        by_hand: True: somebody holds counters, so that nothing is said of posts and deadlines, and
            of what the rule of the seed adds.
    """

    def __init__(self, cluster: Cluster, *, by_hand: bool = False) -> None:
        self._cluster = cluster
        self._by_hand = by_hand
        #: False: messages are forged, so a core may complain, and what it told may be wrong.
        self.is_honest = True
        self._queue = OneQueue()
        self._answers = Answers()
        self._accepted: dict[RunKey, RunHeader] = {}
        self._acquired: list[RunHeader] = []
        self._posted: dict[tuple[str, str], int] = {}
        #: Node → its largest promise.
        self._promise: dict[str, tuple[int, int]] = {}
        self._references: dict[str, ReferenceMaster] = {}
        #: Node → the master that its reference accompanies.
        self._masters: dict[str, object] = {}
        cluster.watchers.append(self._watch)

    def _watch(
        self, name: str, events: Sequence[Event], actions: Sequence[Action], whole: bool
    ) -> None:
        for action in actions:
            match action:
                case SendPost() if not self._by_hand:
                    self._see_post(name, action)
                case TellAccepted(header=RunHeader() as header):
                    self._see_accepted(name, header)
                case TellAcquired():
                    self._acquired.append(action.header)
                case TellOrdered():
                    self._answers.see(name, action)
        if not self._by_hand:
            self._check_patience(name)
            self._compare(name, events, actions)

    def _see_post(self, name: str, action: SendPost) -> None:
        post, link = action.post, (name, action.peer)
        check_post(self._cluster.nodes[name].disk, post, self._posted.get(link, -1))
        self._posted[link] = post.counter
        best = self._promise.get(name, (-1, 0))
        self._promise[name] = max(best, (post.counter, post.last_seq))

    def _see_accepted(self, name: str, header: RunHeader) -> None:
        """P2, I7: what was promised not to exist never appears; a number is given once."""
        counter, last_seq = self._promise.get(name, (-1, 0))
        if header.ts <= counter and header.seq > last_seq:
            violated(f"P2: {name} promised {counter} and stamped {header.ts}")
        if self._accepted.setdefault(key_of(header), header) != header:
            violated(f"I7: {name} accepted two runs as {header.origin}:{header.seq}")

    def _check_patience(self, name: str) -> None:
        """After a step no deadline lies in the past: a shell that obeys them never spins."""
        node = self._cluster.nodes[name]
        deadline = None if node.master is None else node.master.next_deadline()
        if deadline is not None and deadline <= self._cluster.now + node.skew:
            violated(f"{name} wants to be woken at {deadline}, which is past")

    def _compare(self, name: str, events: Sequence[Event], actions: Sequence[Action]) -> None:
        """Each ADD is what the seed's rule says, recomputed from scratch since the start."""
        node = self._cluster.nodes[name]
        if node.master is None:
            self._references.pop(name, None)
        elif self._masters.get(name) is not node.master:
            reference = ReferenceMaster(name, self._cluster.members, node.started_with)
            self._references[name] = reference
        self._masters[name] = node.master
        if name in self._references:
            self._references[name].see(events, actions)
            wrong = self._references[name].compare(actions, self._cluster.quorum)
            if wrong:
                violated(wrong)

    def check(self) -> None:
        """Check everything once."""
        nodes, quorum = list(self._cluster.nodes.values()), self._cluster.quorum
        for node in nodes:
            if node.alarms and self.is_honest:
                violated(f"{node.name}: {node.alarms[0].text}")
            known = self._queue.compared.get(node.name, 0)
            self._queue.see(node.disk)
            for entry in node.disk.queue[known:]:
                check_holders(entry.header, nodes, quorum)
        if not self.is_honest:
            return
        for header in self._acquired:
            check_holders(header, nodes, quorum)
        self._acquired.clear()
        for key, header in self._accepted.items():
            if self._cluster.nodes[header.origin].disk.stored(key) != header:
                violated(f"I6: accepted run {header.key} is lost at its origin")

    def check_healed(self) -> None:
        """I8: all queues equal, every accepted run ordered exactly once, everybody idle."""
        self.check()
        disks = [node.disk for node in self._cluster.nodes.values()]
        lengths = {disk.owner: len(disk.queue) for disk in disks}
        if len(set(lengths.values())) != 1:
            violated(f"I8: queues of {lengths} runs after healing")
        waiting = {disk.owner: [*disk.incoming, *disk.announcements] for disk in disks}
        if any(waiting.values()):
            violated(f"I8: not ordered: {waiting}")
