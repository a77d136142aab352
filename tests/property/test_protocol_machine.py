"""Hypothesis plays network, disks and clocks against the core, and shrinks what it finds."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.verification.cluster import Cluster
from tests.verification.cluster_checks import ClusterChecks
from tests.verification.strategies import FAST

_CHOICE = st.integers(0, 1_000)


class ProtocolMachine(RuleBasedStateMachine):
    """Loss, duplication, reordering, partitions and crashes at any action (I1–I4, I7, I11)."""

    cluster: Cluster
    rules_kept: ClusterChecks
    ids = 0

    @initialize(members=st.sampled_from([2, 3]), everybody=st.booleans())
    def begin(self, members: int, everybody: bool) -> None:
        quorum = members if everybody else members // 2 + 1
        self.cluster = Cluster("abc"[:members], quorum, **FAST)
        self.rules_kept = ClusterChecks(self.cluster)
        self.cluster.start_all()

    def _node(self, choice: int) -> str:
        return self.cluster.members[choice % len(self.cluster.members)]

    @rule(choice=_CHOICE, n=st.integers(1, 4), bulk=st.booleans(), repeat=st.booleans())
    def submit(self, choice: int, n: int, bulk: bool, repeat: bool) -> None:
        first = max(0, self.ids - 2) if repeat else self.ids
        self.ids = max(self.ids, first + n)
        ids = [i.to_bytes(16, "big") for i in range(first, first + n)]
        name = self._node(choice)
        if self.cluster.nodes[name].master is not None:
            self.cluster.submit(name, ids, staged_bytes=5_000 if bulk else 0)

    @precondition(lambda self: self.cluster.letters)
    @rule(choice=_CHOICE, keep=st.booleans())
    def deliver(self, choice: int, keep: bool) -> None:
        letters = self.cluster.letters
        self.cluster.deliver(letters[choice % len(letters)], keep=keep)

    @precondition(lambda self: self.cluster.letters)
    @rule(count=st.integers(1, 12))
    def deliver_some(self, count: int) -> None:
        for _ in range(min(count, len(self.cluster.letters))):
            self.cluster.deliver(self.cluster.letters[0])

    @precondition(lambda self: self.cluster.letters)
    @rule(choice=_CHOICE, executed=st.integers(0, 5))
    def deliver_and_crash(self, choice: int, executed: int) -> None:
        letters = self.cluster.letters
        self.cluster.deliver(letters[choice % len(letters)], executed=executed)

    @precondition(lambda self: self.cluster.letters)
    @rule(choice=_CHOICE)
    def drop(self, choice: int) -> None:
        letters = self.cluster.letters
        self.cluster.drop(letters[choice % len(letters)])

    @rule(pause=st.integers(0, 60))
    def pass_time(self, pause: int) -> None:
        self.cluster.now += pause
        for name in self.cluster.alive():
            self.cluster.tick(name)

    @rule(choice=_CHOICE)
    def crash(self, choice: int) -> None:
        self.cluster.crash(self._node(choice))

    @rule(choice=_CHOICE)
    def start(self, choice: int) -> None:
        name = self._node(choice)
        if self.cluster.nodes[name].master is None:
            self.cluster.start(name)

    @rule(choice=_CHOICE, other=_CHOICE)
    def cut(self, choice: int, other: int) -> None:
        pair = (self._node(choice), self._node(other))
        self.cluster.cut.symmetric_difference_update({pair})

    @invariant()
    def every_invariant_holds(self) -> None:
        if hasattr(self, "rules_kept"):
            self.rules_kept.check()

    def teardown(self) -> None:
        if hasattr(self, "rules_kept"):
            self.cluster.heal()
            self.rules_kept.check_healed()


ProtocolMachine.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestProtocolMachine = ProtocolMachine.TestCase
