"""What is explored: small clusters with bounds (the rows of the protocol's figures)."""

from __future__ import annotations

from dataclasses import dataclass

from tests.verification.exploration.transactions import origin_of

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.recovery import MasterConfig
from sparktxlog.protocol.messages.view import Seat, quorum_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A cluster and the bounds of its exploration."""

    name: str
    masters: tuple[str, ...]
    #: Origin of each transaction, and what it does if it is no plain one, see `transactions`; those
    #: of one origin are submitted in order, at any time.
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

    @property
    def bounds(self) -> str:
        """Return the bounds in words."""
        is_plain = all(submit == origin_of(submit) for submit in self.submits)
        counts = (
            (len(self.submits), "tx" if is_plain else f"tx ({'; '.join(self.submits)})"),
            (self.ballots, "ballots"),
            (self.crashes, "crashes"),
            (self.ticks, "ticks each"),
        )
        words = [f"{count} {what}" for count, what in counts if count]
        words += [f"started by {'+'.join(self.starters)}"] * bool(self.starters)
        words += ["pushed"] * self.push + ["newest"] * self.newest
        return ", ".join(words)

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
                log_id="explored",
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


_PAIR = ("a", "b")
_THREE = ("a", "b", "c")
_TIE = ("w",)

CONFIGURATIONS: dict[str, Configuration] = {
    configuration.name: configuration
    for configuration in (
        Configuration(name="rounds-2", masters=_PAIR, submits=("a", "b")),
        Configuration(name="rounds-2-pushed", masters=_PAIR, submits=("a", "b"), push=True),
        Configuration(name="rounds-2-crash", masters=_PAIR, submits=("a", "b"), crashes=1,
                      newest=True),
        Configuration(name="rounds-2-tick-crash", masters=_PAIR, submits=("a",), ticks=1,
                      crashes=1, newest=True),
        Configuration(name="rounds-2-three", masters=_PAIR, submits=("a", "b", "a")),
        Configuration(name="rounds-3-one", masters=_THREE, submits=("a",),
                      quorum_rule="majority"),
        Configuration(name="rounds-3", masters=_THREE, submits=("a", "b"),
                      quorum_rule="majority", newest=True),
        Configuration(name="condition-2", masters=_PAIR, submits=("a update", "b update")),
        Configuration(name="condition-2-crash", masters=_PAIR, crashes=1, newest=True,
                      submits=("a update", "b update by 2")),
        Configuration(name="prepared-2", masters=_PAIR,
                      submits=("a prepare p q", "b yes p", "b yes q")),
        Configuration(name="prepared-2-lost", masters=_PAIR, newest=True,
                      submits=("a prepare p", "b write", "b yes p")),
        Configuration(name="prepared-2-no", masters=_PAIR, newest=True,
                      submits=("a prepare p q by 3", "b yes p", "b no p")),
        Configuration(name="prepared-2-crash", masters=_PAIR, crashes=1, newest=True,
                      submits=("a prepare p by 3", "b yes p")),
        Configuration(name="prepared-3", masters=_THREE, quorum_rule="majority", newest=True,
                      submits=("a prepare p by 3", "b yes p")),
        Configuration(name="commits-2", masters=_PAIR, newest=True,
                      submits=("a create", "a commit 1", "b commit 1")),
        Configuration(name="commits-2-drop", masters=_PAIR, newest=True,
                      submits=("a create", "a commit 1", "b drop")),
        Configuration(name="commits-2-crash", masters=_PAIR, crashes=1, newest=True,
                      submits=("a create", "b commit 1")),
        Configuration(name="commits-2-both", masters=_PAIR, newest=True,
                      submits=("a both", "a both 1", "b commit 1")),
        Configuration(name="commits-2-both-crash", masters=_PAIR, crashes=1, newest=True,
                      submits=("a both", "b both 1")),
        Configuration(name="commits-2-both-rows", masters=_PAIR, newest=True,
                      submits=("a both", "a both 1", "b write")),
        Configuration(name="epoch-2w", masters=_PAIR, witnesses=_TIE, submits=("a",), ballots=1),
        Configuration(name="epoch-2w-crash", masters=_PAIR, witnesses=_TIE, submits=("a",),
                      ballots=1, crashes=1, newest=True, starters=("a",)),
        Configuration(name="epoch-2w-two", masters=_PAIR, witnesses=_TIE, submits=("a", "b"),
                      ballots=1, newest=True, starters=("a",)),
        Configuration(name="epoch-2w-prepared", masters=_PAIR, witnesses=_TIE, ballots=1,
                      newest=True, starters=("a",), submits=("a prepare p by 3", "a yes p")),
        Configuration(name="epoch-2w-commits", masters=_PAIR, witnesses=_TIE, ballots=1,
                      newest=True, starters=("a",), submits=("a create", "a commit 1")),
        Configuration(name="ballots-2w", masters=_PAIR, witnesses=_TIE, submits=(), ballots=2,
                      newest=True),
        Configuration(name="ballots-2w-one", masters=_PAIR, witnesses=_TIE, submits=("a",),
                      ballots=2, newest=True),
        Configuration(name="epoch-3-all", masters=_THREE, submits=("a",), ballots=1,
                      newest=True, starters=("a",)),
        Configuration(name="epoch-3-majority", masters=_THREE, submits=("a",), ballots=1,
                      quorum_rule="majority", newest=True, starters=("a",)),
        Configuration(name="epoch-3-two", masters=_THREE, submits=("a", "b"), ballots=1,
                      quorum_rule="majority", newest=True, starters=("a",)),
        Configuration(name="epoch-3-two-all", masters=_THREE, submits=("a", "b"), ballots=1,
                      newest=True, starters=("a",)),
        Configuration(name="ballots-3-all", masters=_THREE, submits=("a",), ballots=2,
                      newest=True),
        Configuration(name="ballots-3-majority", masters=_THREE, submits=("a",), ballots=2,
                      quorum_rule="majority", newest=True),
    )
}  # fmt: skip
