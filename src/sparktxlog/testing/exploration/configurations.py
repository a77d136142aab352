"""What is explored: small clusters with bounds (the rows of the protocol's figures)."""

from __future__ import annotations

from dataclasses import dataclass

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.recovery import MasterConfig
from sparktxlog.protocol.view import Seat, quorum_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A cluster and the bounds of its exploration."""

    name: str
    masters: tuple[str, ...]
    #: Origin of each transaction; those of one origin are submitted in order, at any time.
    submits: tuple[str, ...]
    witnesses: tuple[str, ...] = ()
    quorum_rule: str = "all"
    #: Ballots that are started, by whom and when ever.
    ballots: int = 0
    crashes: int = 0
    #: Heartbeats of each node; every other wait of the core is over with them, too.
    ticks: int = 0
    #: Of the posts from one node to another only the newest is on its way.
    newest: bool = False
    #: Payloads are pushed with the header, instead of fetched behind it.
    push: bool = False
    #: Nodes that start ballots; empty = all masters.
    starters: tuple[str, ...] = ()

    @property
    def proposers(self) -> tuple[str, ...]:
        """Nodes that start ballots."""
        return self.starters or self.masters

    @property
    def first_quorum(self) -> int:
        """Acquisition quorum of the first epoch."""
        return quorum_of(self.quorum_rule, len(self.masters))

    def configs(self) -> dict[str, MasterConfig]:
        """Return the settings of each node: every wait takes one tick, or for ever."""
        roster = tuple(Seat(node_id=NodeId(name)) for name in self.masters) + tuple(
            Seat(node_id=NodeId(name), witness=True) for name in self.witnesses
        )
        return {
            name: MasterConfig(
                node_id=NodeId(name),
                members=tuple(NodeId(name) for name in self.masters),
                quorum=self.first_quorum,
                quorum_rule=self.quorum_rule,
                lineage="explored",
                roster=roster,
                id_window=8,
                max_run=1,
                push_limit_bytes=1_000 if self.push else 0,
                reserve_us=1,
                idle_round_min_us=1,
                idle_round_max_us=1,
                retry_us=1,
                # An eighth of it, the pause between answers to one node, is nothing.
                suspect_timeout_us=4,
                start_timeout_us=4,
            )
            for name in (*self.masters, *self.witnesses)
        }


CONFIGURATIONS: dict[str, Configuration] = {
    configuration.name: configuration
    for configuration in (
        Configuration(name="r2", masters=("a", "b"), submits=("a", "b")),
        Configuration(name="r2p", masters=("a", "b"), submits=("a", "b"),push=True),
        Configuration(name="r2t", masters=("a", "b"), submits=("a", "b"), ticks=1, crashes=1),
        Configuration(name="r2tn", masters=("a", "b"), submits=("a", "b"), ticks=1, crashes=1,newest=True),
        Configuration(name="r3", masters=("a", "b"), submits=("a", "b", "a")),
        Configuration(name="t2", masters=("a", "b", "c"), submits=("a", "b"), quorum_rule="majority"),
        Configuration(name="t2n", masters=("a", "b", "c"), submits=("a", "b"), quorum_rule="majority",newest=True),
        Configuration(name="t2na", masters=("a", "b", "c"), submits=("a", "b"), quorum_rule="all",newest=True),
        Configuration(name="e1", masters=("a", "b"), witnesses=("w",), submits=("a",), ballots=1),
        Configuration(name="e1c", masters=("a", "b"), witnesses=("w",), submits=("a",), ballots=1,newest=True,crashes=1),
        Configuration(name="e1n", masters=("a", "b"), witnesses=("w",), submits=("a",), ballots=1,newest=True),
        Configuration(name="e12n", masters=("a", "b"), witnesses=("w",), submits=("a",), ballots=2,newest=True),
        Configuration(name="e21n", masters=("a", "b"), witnesses=("w",), submits=("a","b"), ballots=1,newest=True),
        Configuration(name="m11n", masters=("a", "b","c"), submits=("a",), ballots=1,newest=True),
        Configuration(name="m21n", masters=("a", "b","c"), submits=("a","b"), ballots=1,newest=True),
    )
}  # fmt: skip
