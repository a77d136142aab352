"""Which members are missing, and whether an epoch change may start (protocol P13).

A member is *suspected* as soon as its link broke, as soon as another node complains of it and this
node does not hear it either, or when an answer that it owes is late; a node that is heard while its
link is down owes another word.  It is *overdue* once it was also tried directly for a while.  Only
then, and only with a vote quorum and a data quorum answering probes, an epoch change is started:
starting wedges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.events import earliest
from sparktxlog.protocol.messages.view import View

#: Timeouts of a suspect that others still hear: its link is broken, the node is alive.
_HEARD_ELSEWHERE = 4
#: A promise that grows without ever sufficing gets this many timeouts.
_GROWING = 4
#: So many times the patience a member is kept after another one said that it hears it (P39).  In a
#: quiet log that one may have heard nothing of it lately: it asks it then, and says so to a later
#: probe.
_VOUCHED = 6
#: A complaint counts for so many times the patience: it is repeated sooner.
_REPEATED = 3


class _Watched:
    __slots__ = (
        "accused", "doubted_at", "down_at", "expected_at", "heard_at", "is_down", "lacks_since",
        "missed_since", "promise", "waited_since",
    )  # fmt: skip

    def __init__(self) -> None:
        self.heard_at: int | None = None
        #: Since when an answer is due; None = none is.
        self.expected_at: int | None = None
        #: Since when its link is down, and nothing of it came another way.
        self.down_at: int | None = None
        self.is_down = False
        #: Since when it is missing, None = it is not; computed from the others.
        self.missed_since: int | None = None
        #: True: another node complained of it, and it has not been heard since.
        self.accused = False
        #: Since when nothing of it is believed (P10); no sign of life changes that.
        self.doubted_at: int | None = None
        #: While transactions wait for its promise: what it promises usably, since when it says
        #: nothing more, and since when nothing was ordered; None = nothing waits for it.
        self.promise: int | None = None
        self.lacks_since: int | None = None
        self.waited_since = 0

    def promised(self, promise: int | None, now: int, *, moved: bool) -> None:
        """Note its usable promise where transactions wait for it, None = none do."""
        if promise is None:
            self.promise = self.lacks_since = None
            return
        if self.lacks_since is None or moved:
            self.waited_since = now
        if self.lacks_since is None or promise != self.promise:
            self.lacks_since = now
        self.promise = promise

    def useless_at(self, timeout_us: int) -> int | None:
        """Return when its promise has been of no use for a time, None = it is of use."""
        if self.lacks_since is None:
            return None
        # A promise that grows and never suffices is slow, or knows of nothing that waits.
        return min(self.lacks_since + timeout_us, self.waited_since + _GROWING * timeout_us)

    def heard(self, now: int) -> None:
        """Note that the node was heard."""
        self.heard_at = now
        # Its last words may come after its link broke; no other sign tells that it went then.
        self.expected_at = now if self.is_down else None
        self.down_at = None
        self.accused = False
        self._update()

    def doubt(self, now: int) -> None:
        """Note that nothing of it is believed any more."""
        self.doubted_at = self.doubted_at or now
        self._update()

    def expect(self, now: int) -> None:
        """Note that an answer is due."""
        self.expected_at = now
        self._update()

    def link(self, *, up: bool, now: int) -> None:
        """Note that its link came up or broke."""
        self.is_down = not up
        if up:
            self.down_at = self.expected_at = None
            self.heard_at = now
            self.accused = False
            # What it promises counts from now on; of a wedged node nothing waits for it meanwhile.
            self.promise = self.lacks_since = None
        elif self.down_at is None:
            self.down_at = now
        self._update()

    def _update(self) -> None:
        if self.doubted_at is not None:
            self.missed_since = self.doubted_at
        elif self.down_at is not None:
            self.missed_since = self.down_at
        elif self.expected_at is not None:
            self.missed_since = max(self.expected_at, self.heard_at or 0)
        else:
            self.missed_since = None


class Suspicion:
    """Watches the other nodes of the roster.

    Args:
        own: This node's id.
        timeout_us: `suspect-timeout`; 0 = nobody is ever suspected.
        start_us: The same for nodes that were not heard since this node started.
        patience_us: How long an answer to a probe counts.
        now: Shell's time.
    """

    __slots__ = (
        "_answers", "_deaf", "_heard", "_lacking", "_own", "_patience_us", "_pause_us", "_position",
        "_start_us", "_timeout_us", "_vouched", "_watched", "carriers", "number", "probe_at",
    )  # fmt: skip

    def __init__(
        self, own: str, timeout_us: int, start_us: int, patience_us: int, now: int
    ) -> None:
        self._own = own
        self._timeout_us = timeout_us
        self._start_us = start_us
        self._patience_us = patience_us
        self._watched: defaultdict[str, _Watched] = defaultdict(_Watched)
        #: Node → (when it answered the last probe, nodes that it hears).
        self._answers: dict[str, tuple[int, frozenset[str]]] = {}
        #: All nodes that the answering nodes hear.
        self._heard: frozenset[str] = frozenset()
        #: Members whose word keeps one that is silent here (P39).
        self.carriers: frozenset[str] = frozenset()
        #: Node → when one of them last said that it hears it.
        self._vouched: dict[str, int] = {}
        #: Node → how long its complaint of this node counts.
        self._deaf: dict[str, int] = {}
        #: Nodes that transactions wait for, and the end of the queue then.
        self._lacking: set[NodeId] = set()
        self._position = -1
        #: Number of the last probe, and the pause after it; grows while nothing comes of it.
        self.number = 0
        self._pause_us = patience_us // 4
        self.probe_at = now

    # -- what is seen ------------------------------------------------------------------------------

    def heard(self, node: str, now: int) -> None:
        """Note any message from the node itself."""
        self._watched[node].heard(now)

    def expect(self, nodes: Iterable[str], now: int) -> None:
        """Note that answers of the nodes, except this one, are due from now on."""
        for node in nodes:
            if node != self._own:
                watched = self._watched[node]
                if watched.expected_at is None:
                    watched.expect(now)

    def complaint(self, nodes: Iterable[str], now: int) -> None:
        """Note that another node misses these: they owe an answer, and are suspected at once
        unless this node heard them a short while ago.
        """
        self.expect(nodes, now)
        heard = self.hears(now)
        for node in nodes:
            watched = self._watched[node]
            # One that was never heard has the patience of the start.
            if node not in heard and watched.heard_at is not None:
                watched.accused = True

    def missed_by(self, node: str, suspects: Iterable[str], now: int) -> None:
        """Note whether another node, which is heard, complains of this one."""
        if self._own in suspects:
            self._deaf[node] = now + _REPEATED * self._patience_us
        else:
            self._deaf.pop(node, None)

    def deaf(self, now: int) -> set[str]:
        """Return the nodes that complained of this one, and did not say since that they hear it."""
        return {node for node, until in self._deaf.items() if now < until}

    def doubt(self, node: str, now: int) -> None:
        """Note that a node contradicts itself: it counts as missing, whatever it says (P10)."""
        self._watched[node].doubt(now)

    def trust(self, node: str) -> None:
        """Watch a doubted node as one that was never heard: it came back as another."""
        if self._watched[node].doubted_at is not None:
            del self._watched[node]

    def promised(self, lacking: Mapping[NodeId, int], position: int, now: int) -> None:
        """Note nodes whose usable promise does not reach the first waiting run, and the promise."""
        if not self._timeout_us or not (lacking or self._lacking):
            return
        moved, self._position = position != self._position, position
        # One that was not heard yet has the patience of the start.
        heard = {n: c for n, c in lacking.items() if self._watched[n].heard_at is not None}
        for node in self._lacking.union(heard):
            self._watched[node].promised(heard.get(node), now, moved=moved)
        self._lacking = set(heard)

    def link(self, node: str, *, up: bool, now: int) -> None:
        """Note that the connection to a node came up or broke."""
        self._watched[node].link(up=up, now=now)

    def answered(self, node: str, number: int, hears: Iterable[str], now: int) -> None:
        """Note an answer to the newest probe."""
        if number == self.number:
            self._answers[node] = (now, frozenset(hears))
            if self._own in hears:
                self._deaf.pop(node, None)
            self._heard = frozenset().union(*(heard for _, heard in self._answers.values()))
            if node in self.carriers:
                self._vouched.update(dict.fromkeys(self._answers[node][1], now))

    def forget(self) -> None:
        """Forget answers: they belong to another epoch."""
        self._answers.clear()
        self._heard = frozenset()
        self._vouched.clear()
        for watched in self._watched.values():
            watched.promised(None, 0, moved=False)
        self._lacking = set()

    # -- what follows ------------------------------------------------------------------------------

    def _limit(self, watched: _Watched) -> int:
        """Return how long a node may be missed until it is overdue."""
        if watched.heard_at is None:
            return max(self._start_us, self._timeout_us)
        if watched.down_at is not None:
            return self._timeout_us
        return self._timeout_us + self._timeout_us // 2

    def suspects(self, members: Iterable[NodeId], now: int) -> tuple[NodeId, ...]:
        """Return the members that are suspected."""
        missed = self._missed(members)
        found = {n for n, watched, since in missed if now >= self._suspect_at(watched, since)}
        found.update(self._useless(members, self._timeout_us, now))
        return tuple(node for node in members if node in found)

    def overdue(self, members: Iterable[NodeId], now: int) -> frozenset[NodeId]:
        """Return the suspects that were tried long enough, by what other nodes say as well."""
        found = set()
        for node, watched, since in self._missed(members):
            suspected = now >= self._suspect_at(watched, since)
            if suspected and now >= self._overdue_at(node, watched, since):
                found.add(node)
        found.difference_update([node for node in found if self._is_carried(node, now)])
        return self.useless(members, now).union(found)

    def carried(self, members: Iterable[NodeId], now: int) -> list[NodeId]:
        """Return the suspects that a carrier hears: it brings their words here (P39)."""
        suspects = self.suspects(members, now) if self.carriers else ()
        return [node for node in suspects if self._is_carried(node, now)]

    def _is_carried(self, node: str, now: int) -> bool:
        at = None if self._watched[node].doubted_at is not None else self._vouched.get(node)
        return at is not None and now < at + _VOUCHED * self._patience_us

    def useless(self, members: Iterable[NodeId], now: int) -> frozenset[NodeId]:
        """Return the overdue members that are heard, and promise nothing that can be used (C3)."""
        limit = self._timeout_us + self._timeout_us // 2
        return frozenset(
            node
            for node in self._useless(members, limit, now)
            if not self.heard_elsewhere(node)
            or (
                node in self._useless((node,), _HEARD_ELSEWHERE * limit, now)
                and not self._is_carried(node, now)
            )
        )

    def _useless(self, members: Iterable[NodeId], timeout_us: int, now: int) -> list[NodeId]:
        """Return the members whose promise was of no use for so long."""
        found: list[NodeId] = []
        if self._timeout_us and self._lacking:
            for node in members:
                at = self._watched[node].useless_at(timeout_us) if node in self._lacking else None
                if at is not None and now >= at:
                    found.append(node)
        return found

    def _missed(self, members: Iterable[NodeId]) -> list[tuple[NodeId, _Watched, int]]:
        """Return the missing members, and since when."""
        found: list[tuple[NodeId, _Watched, int]] = []
        if not self._timeout_us:
            return found
        for node in members:
            if node != self._own:
                watched = self._watched[node]
                if watched.missed_since is not None:
                    found.append((node, watched, watched.missed_since))
        return found

    def _suspect_at(self, watched: _Watched, since: int) -> int:
        if watched.doubted_at is not None:
            return since
        if watched.heard_at is None:
            return since + self._limit(watched) // 2
        at_once = watched.accused or watched.down_at is not None
        return since if at_once else since + self._timeout_us

    def _overdue_at(self, node: str, watched: _Watched, since: int) -> int:
        if watched.doubted_at is not None:
            return since + self._timeout_us
        factor = _HEARD_ELSEWHERE if self.heard_elsewhere(node) else 1
        return since + factor * self._limit(watched)

    def heard_elsewhere(self, node: str) -> bool:
        """Return whether another node hears this one: then only the network is broken."""
        return node in self._heard

    def hears(self, now: int) -> tuple[NodeId, ...]:
        """Return the nodes that this node heard a short while ago, for answers to probes.

        Those whose promise is of no use are left out: what is heard of them helps nobody.
        """
        return tuple(
            NodeId(node)
            for node, watched in sorted(self._watched.items())
            if watched.heard_at is not None
            and watched.down_at is None
            and watched.doubted_at is None
            and now - watched.heard_at <= self._patience_us
            and not self._useless((NodeId(node),), self._timeout_us, now)
        )

    def responders(self, now: int) -> set[str]:
        """Return the nodes that answered a probe a short while ago, and this one."""
        limit = now - self._window_us
        return {self._own, *(n for n, (at, _) in self._answers.items() if at >= limit)}

    def heard_by_all(self, members: Iterable[str], now: int) -> set[str]:
        """Return the nodes that this node and all of `members` hear themselves."""
        common: set[str] = set(self.hears(now))
        for member in members:
            if member != self._own:
                at, hears = self._answers.get(member, (0, frozenset[str]()))
                common &= hears if now - at <= self._window_us else frozenset[str]()
        return common

    def allows(
        self, view: View, absent: Iterable[str], now: int, voting: Iterable[str] = ()
    ) -> bool:
        """Return whether an epoch change can succeed with those that answer (P13).

        Args:
            voting: Absent nodes whose votes count all the same.
        """
        answering = self.responders(now)
        present = answering.difference(absent)
        return view.elects(present | answering.intersection(voting)) and view.preserves(present)

    # -- time --------------------------------------------------------------------------------------

    def next_probe(self, now: int) -> int:
        """Number a new probe and plan the next one, ever later while nothing changes."""
        self.number += 1
        self.probe_at = now + self._pause_us
        self._pause_us = min(2 * self._pause_us, 2 * self._patience_us)
        return self.number

    def calm(self, now: int) -> None:
        """Note that nothing needs probing: the next series begins with short pauses."""
        self._pause_us = self._patience_us // 4
        if now < self.probe_at:
            self.probe_at = now

    @property
    def _window_us(self) -> int:
        """How long an answer to a probe counts: until the one after it is due, and answered."""
        return self._patience_us + self._pause_us

    def next_deadline(self, members: Iterable[NodeId], now: int) -> int | None:
        """Return when a suspicion or a verdict may begin, None if no node is missing."""
        times: list[int] = []
        for node, watched, since in self._missed(members):
            at = self._suspect_at(watched, since)
            times.append(at if now < at else self.probe_at)
            due = self._overdue_at(node, watched, since)
            if due > now:
                times.append(due)
            elif self._is_carried(node, now):
                times.append(self._vouched[node] + _VOUCHED * self._patience_us)
        for node in self._lacking.intersection(members):
            times.extend(self._useless_times(node, now))
        return earliest(times)

    def _useless_times(self, node: NodeId, now: int) -> list[int]:
        """Return when a member may become a suspect, or overdue, for a promise of no use."""
        watched, timeout_us, limit = (
            self._watched[node],
            self._timeout_us,
            self._timeout_us * 3 // 2,
        )
        found = [watched.useless_at(time) for time in (timeout_us, limit, _HEARD_ELSEWHERE * limit)]
        times = [at for at in found if at is not None and at > now]
        if found[0] is not None and found[0] <= now:
            times.append(self.probe_at)
        return times
