"""Liveness: a state behind which nothing more can happen heals once time passes (I8).

The masters go on from memory, now with the core's own suspicion and patience; every message
arrives.  In the end all masters are members again, with one queue that has everything accepted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from tests.verification.exploration.nodes import Nodes, NodeState, Sent
from tests.verification.exploration.space import Space, State

from sparktxlog.errors import InvariantViolation
from sparktxlog.protocol.epoch.succession import Succession
from sparktxlog.protocol.messages.events import Event, FetchFailed, PayloadArrived, Tick
from sparktxlog.protocol.messages.view import Phase

#: Time steps a cluster has to heal.
_PATIENCE = 400


class Healing:
    """A fair run from one state on.

    Args:
        nodes: Where the states are from.
        own: State of each node.
    """

    def __init__(self, nodes: Nodes, own: Sequence[int]) -> None:
        self._nodes = nodes
        self._states: dict[str, NodeState] = {}
        for number in own:
            state = nodes.thaw(number)
            state.master._succession.__class__ = Succession
            self._states[nodes.facts[number].name] = state
        self._network: deque[Sent] = deque()

    def run(self) -> None:
        """Let time pass and messages arrive until all is well.

        Raises:
            InvariantViolation: It does not get well.
        """
        self._end_fetches()
        for _ in range(_PATIENCE):
            if self._well():
                return
            for name, state in self._states.items():
                state.now += 1
                self._handle(name, Tick())
            while self._network:
                sent = self._network.popleft()
                self._handle(sent.receiver, sent.event or self._fetched(sent))
        raise InvariantViolation(f"I8: not healed: {self._words()}")

    def _end_fetches(self) -> None:
        """Let the fetches fail that are under way: the shell ends each of them."""
        for name, state in self._states.items():
            for digest in list(state.master._ordering._fetching.in_flight):
                self._handle(name, FetchFailed(digest=digest, reason="lost"))

    def _handle(self, name: str, event: Event) -> None:
        self._network.extend(self._nodes.handle(name, self._states[name], [event]))

    def _fetched(self, sent: Sent) -> Event:
        assert sent.wanted is not None
        disks = [self._states[source].disk for source in sent.sources]
        digest = sent.wanted.digest
        if any(disk.holds(sent.wanted) for disk in disks):
            return PayloadArrived(header=sent.wanted, facts=self._nodes.payloads[digest])
        return FetchFailed(digest=digest, reason="nobody has it")

    def _well(self) -> bool:
        masters = {n: s for n, s in self._states.items() if s.master.phase is not Phase.WITNESS}
        statuses = [state.master.status() for state in masters.values()]
        queues = [state.disk.queue for state in masters.values()]
        waiting = [state.disk for state in masters.values()]
        return (
            all(s.phase is Phase.NORMAL and set(s.members) == set(masters) for s in statuses)
            and all(queue == queues[0] for queue in queues)
            and not any(disk.incoming or disk.announcements for disk in waiting)
            and len(queues[0]) == sum(state.submitted for state in masters.values())
        )

    def _words(self) -> str:
        words = []
        for name, state in self._states.items():
            status = state.master.status()
            words.append(
                f"{name}: {status.phase} in epoch {status.epoch} of {'+'.join(status.members)}, "
                f"{status.position} positions, {state.submitted} submitted, waits for "
                f"{status.waiting_for}"
            )
        return "; ".join(words)


def sampled(space: Space) -> Callable[[int, State, bool], bool]:
    """Return a visitor that runs some states on: every 50th end, every 2,000th other state."""
    ends = 0

    def visit(number: int, state: State, is_end: bool) -> bool:
        nonlocal ends
        ends += is_end
        if not (is_end and ends % 50 == 1) and number % 2_000:
            return False
        Healing(space.nodes, state[: len(space.names)]).run()
        return True

    return visit
