"""Who is missing, and whether something may be done about it (protocol P13; V18–V21, D11).

A member is *suspected* as soon as its link broke, or when an answer that it owes is late; it is
*overdue* once it was also tried directly for a while.  Only then, and only with a vote quorum and
a data quorum answering probes, an epoch change is started: starting wedges.
"""

from __future__ import annotations

from collections.abc import Iterable

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.view import View

#: A suspect that others still hear is a broken link, not a dead node: it gets this many timeouts.
_HEARD_ELSEWHERE = 4


class _Watched:
    __slots__ = ("down_at", "expected_at", "heard_at")

    def __init__(self) -> None:
        self.heard_at: int | None = None
        #: Since when an answer is owed; None = none is.
        self.expected_at: int | None = None
        #: Since when its link is down.
        self.down_at: int | None = None


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
        "_answers", "_own", "_patience_us", "_pause_us", "_start_us", "_timeout_us", "_watched",
        "number", "probe_at",
    )  # fmt: skip

    def __init__(
        self, own: str, timeout_us: int, start_us: int, patience_us: int, now: int
    ) -> None:
        self._own = own
        self._timeout_us = timeout_us
        self._start_us = start_us
        self._patience_us = patience_us
        self._watched: dict[str, _Watched] = {}
        #: Node → (when it answered the last probe, whom it hears).
        self._answers: dict[str, tuple[int, frozenset[str]]] = {}
        #: Number of the last probe, and the pause behind it; grows while nothing comes of it.
        self.number = 0
        self._pause_us = patience_us // 4
        self.probe_at = now

    def _of(self, node: str) -> _Watched:
        watched = self._watched.get(node)
        if watched is None:
            watched = self._watched[node] = _Watched()
        return watched

    # -- what is seen ------------------------------------------------------------------------------

    def heard(self, node: str, now: int) -> None:
        """Note any sign of life that came from the node itself."""
        watched = self._of(node)
        watched.heard_at = now
        watched.expected_at = None
        watched.down_at = None

    def expect(self, nodes: Iterable[str], now: int) -> None:
        """Note that the nodes owe an answer from now on."""
        for node in nodes:
            watched = self._of(node)
            if watched.expected_at is None:
                watched.expected_at = now

    def link(self, node: str, *, up: bool, now: int) -> None:
        """Note that the connection to a node came up or broke (D11)."""
        watched = self._of(node)
        if up:
            watched.down_at = None
            watched.heard_at = now
        elif watched.down_at is None:
            watched.down_at = now

    def answered(self, node: str, number: int, hears: Iterable[str], now: int) -> None:
        """Note an answer to the newest probe."""
        if number == self.number:
            self._answers[node] = (now, frozenset(hears))

    def forget(self) -> None:
        """Forget answers: they belong to another epoch."""
        self._answers.clear()

    # -- what follows ------------------------------------------------------------------------------

    def _silent_since(self, node: str) -> int | None:
        """Return since when a node is missed, None if it is not."""
        watched = self._of(node)
        if watched.down_at is not None:
            return watched.down_at
        if watched.expected_at is None:
            return None
        return max(watched.expected_at, watched.heard_at or 0)

    def _limit(self, node: str) -> int:
        """Return how long a node may be missed until it is overdue."""
        watched = self._of(node)
        if watched.heard_at is None:
            return max(self._start_us, self._timeout_us)
        if watched.down_at is not None:
            return self._timeout_us
        return self._timeout_us + self._timeout_us // 2

    def suspects(self, members: Iterable[NodeId], now: int) -> tuple[NodeId, ...]:
        """Return the members that are missed."""
        return tuple(
            node
            for node in members
            if self._timeout_us
            and node != self._own
            and (at := self._suspect_at(node)) is not None
            and now >= at
        )

    def _suspect_at(self, node: str) -> int | None:
        since = self._silent_since(node)
        if since is None:
            return None
        watched = self._of(node)
        if watched.heard_at is None:
            return since + self._limit(node) // 2
        return since if watched.down_at is not None else since + self._timeout_us

    def overdue(self, members: Iterable[NodeId], now: int) -> frozenset[NodeId]:
        """Return the suspects that were tried long enough, others' word considered (V21, V61)."""
        found = set()
        for node in self.suspects(members, now):
            due = self._overdue_at(node)
            if due is not None and now >= due:
                found.add(node)
        return frozenset(found)

    def _overdue_at(self, node: str) -> int | None:
        since = self._silent_since(node)
        if since is None:
            return None
        factor = _HEARD_ELSEWHERE if self.heard_elsewhere(node) else 1
        return since + factor * self._limit(node)

    def heard_elsewhere(self, node: str) -> bool:
        """Return whether another node hears this one: then the network is broken, not the node."""
        return any(node in hears for _, hears in self._answers.values())

    def hears(self, now: int) -> tuple[NodeId, ...]:
        """Return whom this node heard a short while ago, for answers to probes."""
        return tuple(
            NodeId(node)
            for node, watched in sorted(self._watched.items())
            if watched.heard_at is not None
            and watched.down_at is None
            and now - watched.heard_at <= self._patience_us
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

    def allows(self, view: View, absent: Iterable[str], now: int) -> bool:
        """Return whether an epoch change can succeed with those that answer (P13)."""
        present = self.responders(now).difference(absent)
        return view.elects(present) and view.preserves(present)

    # -- time --------------------------------------------------------------------------------------

    def next_probe(self, now: int) -> int:
        """Number a new probe and plan the one behind it, ever later while nothing changes."""
        self.number += 1
        self.probe_at = now + self._pause_us
        self._pause_us = min(2 * self._pause_us, 2 * self._patience_us)
        return self.number

    def calm(self, now: int) -> None:
        """Nothing is to be probed: begin swiftly next time."""
        self._pause_us = self._patience_us // 4
        self.probe_at = min(self.probe_at, now)

    @property
    def _window_us(self) -> int:
        """How long an answer to a probe counts: until the one behind it is due, and answered."""
        return self._patience_us + self._pause_us

    def next_deadline(self, members: Iterable[NodeId], now: int) -> int | None:
        """Return when a suspicion or a verdict may begin, None if nobody is missed."""
        times: list[int] = []
        for node in members:
            at = self._suspect_at(node) if self._timeout_us and node != self._own else None
            if at is not None:
                times.append(at if now < at else self.probe_at)
                due = self._overdue_at(node)
                if due is not None and due > now:
                    times.append(due)
        return min(times, default=None)
