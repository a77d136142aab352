"""The invariants of the sync protocol, each a named class, checked after every step.

`Invariants(cluster)` watches a cluster; `check()` raises `InvariantViolation` with the invariant's
name and the story.  `check_healed()` is for the end, after `Cluster.heal()`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.verification.cluster import Cluster
from tests.verification.reference import ReferenceMaster

from sparktxlog.errors import InvariantViolation
from sparktxlog.protocol.words.actions import (
    Action,
    SendPost,
    TellAccepted,
    TellAcquired,
    TellOrdered,
)
from sparktxlog.protocol.words.events import Event
from sparktxlog.protocol.words.messages import GENESIS_HASH, QueueEntry, RunHeader, chain_hash


class Invariant:
    """Base: `watch` sees each step of a node, `check` looks at the whole cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def fail(self, story: str) -> None:
        """Raise with the invariant's name."""
        raise InvariantViolation(f"{type(self).__name__}: {story}")

    def watch(self, name: str, events: Sequence[Event], actions: Sequence[Action]) -> None:
        """See what a node handled and did."""

    def check(self) -> None:
        """Look at the cluster after a step."""


class PrefixConsistency(Invariant):
    """I1, I4, I7: of two queues one is a prefix of the other, outcomes and hashes included.

    All queues are compared with the longest one ever seen, each entry once; a queue that shrinks
    or changes shows as well.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.log: list[QueueEntry] = []
        self._checked = dict.fromkeys(cluster.members, 0)

    def check(self) -> None:
        """Compare new entries."""
        for name, node in self.cluster.nodes.items():
            queue, checked = node.disk.queue, self._checked[name]
            if len(queue) < checked:
                self.fail(f"the queue of {name} shrank from {checked} to {len(queue)}")
            for index in range(checked, len(queue)):
                if index == len(self.log):
                    self.log.append(queue[index])
                elif self.log[index] != queue[index]:
                    mine, theirs = queue[index].header, self.log[index].header
                    self.fail(
                        f"{name} has {mine.origin}:{mine.seq}@{mine.ts} at run {index}, others "
                        f"{theirs.origin}:{theirs.seq}@{theirs.ts}"
                    )
            self._checked[name] = len(queue)


class DownClosed(Invariant):
    """I2: the queue is sorted, positions and sequence numbers have no gap, hashes are linked."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._seen = dict.fromkeys(cluster.members, 0)
        self._last: dict[str, tuple[int, bytes, tuple[int, int, str, int]]] = {}
        self._seqs: dict[tuple[str, str], int] = {}

    def check(self) -> None:
        """Look at new entries."""
        for name, node in self.cluster.nodes.items():
            end, chain, key = self._last.get(name, (0, GENESIS_HASH, (0, 0, "", 0)))
            for entry in node.disk.queue[self._seen[name] :]:
                header = entry.header
                seq = self._seqs.get((name, header.origin), 0)
                if entry.position != end + 1 or header.seq != seq + 1 or header.key <= key:
                    self.fail(f"{name}: {header.key} at {entry.position} follows {key} at {end}")
                if entry.previous_hash != chain or entry.chain_hash != chain_hash(chain, header):
                    self.fail(f"{name}: broken hash link at {entry.position}")
                self._seqs[name, header.origin] = header.last
                end, chain, key = entry.end, entry.chain_hash, header.key
            self._last[name] = (end, chain, key)
            self._seen[name] = len(node.disk.queue)


class Executable(Invariant):
    """I3: who orders a run holds its payload, and so do `quorum` members by then (P7)."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._seen = dict.fromkeys(cluster.members, 0)

    def check(self) -> None:
        """Look at new entries."""
        nodes = self.cluster.nodes
        for name, node in nodes.items():
            for entry in node.disk.queue[self._seen[name] :]:
                holders = [m for m, other in nodes.items() if other.disk.holds(entry.header)]
                if name not in holders or len(holders) < self.cluster.quorum:
                    self.fail(f"{name} ordered {entry.header.key}, held by {holders}")
            self._seen[name] = len(node.disk.queue)


class CounterMonotonic(Invariant):
    """I11, P2: posted counters never fall, and what was promised not to exist never appears."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._posted: dict[tuple[str, str], int] = {}
        self._promise: dict[str, tuple[int, int]] = {}

    def watch(self, name: str, events: Sequence[Event], actions: Sequence[Action]) -> None:
        """Compare posts with those before, own runs with the largest promise."""
        for action in actions:
            if isinstance(action, SendPost):
                post, link = action.post, (name, action.peer)
                if post.counter < self._posted.get(link, -1):
                    self.fail(f"{name} posted {self._posted[link]}, then {post.counter}")
                self._posted[link] = post.counter
                if post.counter > self.cluster.nodes[post.sender].disk.reserved:
                    self.fail(f"{name} posted {post.counter} above its reservation")
                best = self._promise.get(name, (-1, 0))
                self._promise[name] = max(best, (post.counter, post.last_seq))
            elif isinstance(action, TellAccepted) and action.header is not None:
                counter, last_seq = self._promise.get(name, (-1, 0))
                if action.header.ts <= counter and action.header.seq > last_seq:
                    self.fail(f"{name} promised {counter} and stamped {action.header.ts}")


class AckKept(Invariant):
    """I6, I7: what was told to clients stays true, whatever crashes."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.accepted: dict[tuple[str, int], RunHeader] = {}
        self._acquired: list[RunHeader] = []
        self._ordered: dict[tuple[str, int], tuple[int, object]] = {}

    def watch(self, name: str, events: Sequence[Event], actions: Sequence[Action]) -> None:
        """Note promises to clients and compare outcomes of the same run."""
        for action in actions:
            match action:
                case TellAccepted(header=RunHeader() as header):
                    before = self.accepted.setdefault((header.origin, header.seq), header)
                    if before != header:
                        self.fail(f"{name} accepted two runs as {header.origin}:{header.seq}")
                case TellAcquired():
                    self._acquired.append(action.header)
                case TellOrdered():
                    for entry in action.entries:
                        key = (entry.header.origin, entry.header.seq)
                        told = (entry.position, entry.rejections)
                        if self._ordered.setdefault(key, told) != told:
                            self.fail(f"{name} told {key} {told}, before {self._ordered[key]}")

    def check(self) -> None:
        """Look for accepted runs at their origin and acquired ones at the quorum."""
        nodes = self.cluster.nodes
        for (origin, _), header in self.accepted.items():
            if not next(n for m, n in nodes.items() if m == origin).disk.holds(header):
                self.fail(f"accepted run {header.key} is lost at its origin")
        for header in self._acquired:
            if sum(node.disk.holds(header) for node in nodes.values()) < self.cluster.quorum:
                self.fail(f"acquired run {header.key} is not held by the quorum")
        self._acquired.clear()


class NoAlarm(Invariant):
    """Without real faults no core stops by itself, and none complains of its peers."""

    def check(self) -> None:
        """Look for alarms."""
        for name, node in self.cluster.nodes.items():
            if node.alarms:
                self.fail(f"{name}: {node.alarms[0].text}")


class Patient(Invariant):
    """After a step nothing is due any more: a shell that obeys the deadlines never spins."""

    def watch(self, name: str, events: Sequence[Event], actions: Sequence[Action]) -> None:
        """Look at the next deadline."""
        node = next(n for m, n in self.cluster.nodes.items() if m == name)
        if node.master is not None:
            deadline = node.master.next_deadline()
            if deadline is not None and deadline <= self.cluster.now + node.skew:
                self.fail(f"{name} wants to be woken at {deadline}, which is past")


class SameAsRule(Invariant):
    """Each ADD is what the seed's rule says, recomputed from scratch."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._references: dict[str, ReferenceMaster] = {}
        self._masters: dict[str, object] = {}

    def watch(self, name: str, events: Sequence[Event], actions: Sequence[Action]) -> None:
        """Feed the reference and compare; a restarted node starts a new one."""
        node = next(n for m, n in self.cluster.nodes.items() if m == name)
        if node.master is None:
            self._references.pop(name, None)
        elif self._masters.get(name) is not node.master:
            state = node.started_with
            self._references[name] = ReferenceMaster(name, self.cluster.members, state)
        self._masters[name] = node.master
        reference = self._references.get(name)
        if reference is not None:
            reference.see(events, actions)
            wrong = reference.compare(actions, self.cluster.quorum)
            if wrong:
                self.fail(wrong)


ALL: tuple[type[Invariant], ...] = (
    NoAlarm,
    PrefixConsistency,
    DownClosed,
    Executable,
    CounterMonotonic,
    AckKept,
    Patient,
    SameAsRule,
)


class Invariants:
    """All invariants of one cluster.

    Args:
        cluster: Not started yet.
        kinds: Which to check.
    """

    def __init__(self, cluster: Cluster, kinds: Sequence[type[Invariant]] = ALL) -> None:
        self.cluster = cluster
        self._all = [kind(cluster) for kind in kinds]
        cluster.watchers.append(self._watch)

    def _watch(
        self, name: str, events: Sequence[Event], actions: Sequence[Action], whole: bool
    ) -> None:
        for invariant in self._all:
            invariant.watch(name, events, actions)

    def check(self) -> None:
        """Check everything once."""
        for invariant in self._all:
            invariant.check()

    def check_healed(self) -> None:
        """I8: all queues equal, every accepted run ordered exactly once, everybody idle."""
        self.check()
        queues = {name: node.disk.queue for name, node in self.cluster.nodes.items()}
        lengths = {name: len(queue) for name, queue in queues.items()}
        if len(set(lengths.values())) != 1:
            raise InvariantViolation(f"Healed: queues of {lengths} runs after healing")
        ordered = [(e.header.origin, e.header.seq) for e in next(iter(queues.values()))]
        disks = [node.disk for node in self.cluster.nodes.values()]
        durable = {key[::2] for disk in disks for key in (*disk.incoming, *disk.ordered)}
        if len(set(ordered)) != len(ordered) or set(ordered) != durable:
            raise InvariantViolation(f"Healed: not ordered: {sorted(durable - set(ordered))}")
        waiting = {n: s.disk.announcements for n, s in self.cluster.nodes.items()}
        if any(waiting.values()):
            raise InvariantViolation(f"Healed: unstamped runs are left: {waiting}")
