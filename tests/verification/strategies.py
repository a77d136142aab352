"""Schedules: what may happen to a simulated cluster, drawn by Hypothesis or by a seed.

A schedule is a list of small integers; `Schedule.act` turns the next few of them into one act.
So Hypothesis shrinks schedules as lists of numbers, and a seed replays the same acts.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.verification.cluster import Cluster, Watcher
from tests.verification.cluster_checks import ClusterChecks

from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import RunFacts, Touch
from sparktxlog.protocol.master import Master

#: Settings that let a schedule of a few hundred µs meet every timer and every bound.
FAST = {
    "id_window": 30,
    "reserve_us": 7,
    "retry_us": 20,
    "idle_round_min_us": 40,
    "idle_round_max_us": 160,
    "stage_timeout_us": 120,
    "inline_limit_bytes": 1_000,
    "push_limit_bytes": 1_000,
    "max_run": 4,
    "max_post_headers": 3,
    "max_fetches": 3,
}

ORDERS = TableDefinition(name="orders", columns=(Column(name="id", type="bigint"),))
OTHER_ORDERS = TableDefinition(name="orders", columns=(Column(name="id", type="string"),))

#: Returns a number in [0, n).
Draw = Callable[[int], int]


class Schedule:
    """Acts on a cluster, drawn one by one; every act is followed by a check.

    Args:
        cluster: Started by the schedule.
        draw: Where the choices come from.
    """

    def __init__(self, cluster: Cluster, draw: Draw) -> None:
        self.cluster = cluster
        self.checks = ClusterChecks(cluster)
        self._draw = draw
        self._ids = 0
        cluster.start_all()
        for member in cluster.members:
            cluster.nodes[member].skew = draw(3) * 15

    def _pick(self, names: list[str]) -> str:
        return names[self._draw(len(names))]

    def _executed(self) -> int | None:
        """Now and then a node crashes in the middle of its actions."""
        return self._draw(6) if self._draw(40) == 0 else None

    def act(self) -> None:
        """Do one thing and check all invariants."""
        cluster, alive = self.cluster, self.cluster.alive()
        choice = self._draw(100)
        if choice < 50 and cluster.letters:
            self._deliver()
        elif choice < 56 and cluster.letters:
            cluster.drop(cluster.letters[self._draw(len(cluster.letters))])
        elif choice < 72 and alive:
            self._submit(self._pick(alive))
        elif choice < 84:
            cluster.now += self._draw(25)
            for name in alive:
                cluster.tick(name)
        elif choice < 90 and alive:
            cluster.tick(self._pick(alive))
        elif choice < 93 and alive:
            cluster.crash(self._pick(alive))
        elif choice < 96:
            down = [m for m in cluster.members if m not in alive]
            if down:
                cluster.start(self._pick(list(down)))
        elif choice < 98:
            pair = (self._pick(list(cluster.members)), self._pick(list(cluster.members)))
            cluster.cut.symmetric_difference_update({pair})
        else:
            a, b = self._pick(list(cluster.members)), self._pick(list(cluster.members))
            cluster.link(a, b, up=self._draw(2) == 0)
        self.checks.check()

    def _deliver(self) -> None:
        letters = self.cluster.letters
        # Mostly one of the oldest few, so that schedules get somewhere.
        reach = len(letters) if self._draw(4) == 0 else min(3, len(letters))
        letter = letters[self._draw(reach)]
        self.cluster.deliver(letter, keep=self._draw(12) == 0, executed=self._executed())

    def _new_ids(self, n: int) -> bytes:
        ids = b""
        for _ in range(n):
            if self._ids and self._draw(8) == 0:
                ids += self._draw(self._ids).to_bytes(16, "big")
            else:
                ids += self._ids.to_bytes(16, "big")
                self._ids += 1
        return ids

    def _submit(self, name: str) -> None:
        n = 1 + self._draw(4)
        create, touch = self._draw(12), self._draw(3)
        definition = OTHER_ORDERS if create == 1 else ORDERS
        facts = RunFacts(
            n=n,
            ids=self._new_ids(n),
            touches=(Touch(table="orders", schema_version=1 + self._draw(8) // 7),)
            if touch == 0
            else (),
            creates=((self._draw(n), definition),) if create < 3 else (),
        )
        big = self._draw(10) == 0
        self.cluster.submit(
            name,
            (),
            facts=facts,
            staged_bytes=5_000 if big else 0,
            size_bytes=5_000 if self._draw(10) == 0 else 100,
            session="s" if self._draw(4) == 0 else None,
            executed=self._executed(),
        )

    def finish(self) -> None:
        """Heal the cluster and check that it becomes equal (I8)."""
        self.cluster.heal()
        self.checks.check_healed()


def run_schedule(
    seed: int, master_class: type[Master] = Master, watcher: Watcher | None = None
) -> Cluster:
    """Run one schedule to its healed end.

    Raises:
        InvariantViolation: An invariant broke.
    """
    chance = Random(seed)
    members = chance.choice([2, 3, 3, 5])
    quorum = chance.choice([members, members // 2 + 1])
    cluster = Cluster("abcde"[:members], quorum, master_class, **FAST)
    if watcher is not None:
        cluster.watchers.append(watcher)
    schedule = Schedule(cluster, chance.randrange)
    for _ in range(chance.choice([50, 150, 400])):
        schedule.act()
    schedule.finish()
    return cluster
