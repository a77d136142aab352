"""A node that hears no quorum keeps what is `accepted`, and refuses the rest in time."""

from __future__ import annotations

import pytest

from sparktxlog.errors import MembersMissingError, NoQuorumError
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.receipt import Level
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.balloting import BallotState
from sparktxlog.protocol.messages.events import LinkChanged
from sparktxlog.protocol.messages.recovery import MasterConfig, RecoveredState
from sparktxlog.protocol.messages.view import Ballot, Seat, View
from sparktxlog.runtime.membership.restriction import Restriction

SECOND_US = 1_000_000
PATIENCE_S = 10.0


class Site:
    """Node A, its core and its links, at a time that a test sets."""

    def __init__(
        self,
        others: str,
        *,
        weights: dict[str, int] | None = None,
        members: str = "",
        rule: str = "default",
        wedged: bool = False,
    ) -> None:
        names = [NodeId(name) for name in "A" + others]
        roster = tuple(
            Seat(
                node_id=name,
                witness=name == "W",
                follower=name == "F",
                weight=(weights or {}).get(name, int(name != "F")),
            )
            for name in names
        )
        inside = tuple(name for name in names if name in (members or "ABCDE"))
        view = View(log_id="l", epoch=2, roster=roster, members=inside, quorum_rule=rule)
        config = MasterConfig(
            node_id=names[0],
            members=inside,
            quorum=view.quorum,
            log_id="l",
            roster=roster,
            suspect_timeout_us=int(PATIENCE_S * SECOND_US),
            start_timeout_us=SECOND_US,
        )
        promise = BallotState(epoch=2, promised=Ballot(number=1, node=names[1]))
        state = RecoveredState(view=view, ballot=promise if wedged else None)
        self.now = 0
        self.links: set[str] = set()
        self.master = Master(config, state, 0)
        self.restriction = Restriction(self.master, names[0], lambda: self.links, lambda: self.now)

    def hears(self, names: str, after_s: float = 0.0) -> None:
        """Be linked to these nodes, and to no others, from so many seconds on."""
        self.now += int(after_s * SECOND_US)
        changed, self.links = self.links ^ set(names), set(names)
        events = [LinkChanged(peer=NodeId(n), up=n in names) for n in sorted(changed)]
        self.master.handle_all(events, self.now)
        self.restriction.look()

    def waits_for(self, after_s: float = 0.0) -> str | None:
        self.now += int(after_s * SECOND_US)
        shown = self.restriction.shown()
        return None if shown is None else "".join(shown["waits_for"])

    def refuses(self, level: Level = Level.ORDERED, patience_s: float = PATIENCE_S) -> bool:
        try:
            self.restriction.check(level, patience_s)
        except NoQuorumError:
            return True
        return False


def test_a_node_waits_for_itself_before_it_refuses() -> None:
    site = Site("BC")
    site.hears("BC")
    assert site.waits_for(100) is None
    site.hears("B")
    assert site.waits_for() is None  # two of three go on without C
    site.hears("")
    assert site.waits_for() == "BC"
    assert site.waits_for(PATIENCE_S - 0.1) == "BC"
    assert not site.refuses()
    assert site.waits_for(0.2) == "BC"
    assert site.refuses() and site.refuses(Level.APPLIED) and site.refuses(Level.ACQUIRED)
    assert not site.refuses(Level.ACCEPTED)
    assert not site.refuses(patience_s=0)  # suspect-timeout = 0: it waits for ever
    assert site.restriction.shown() == {
        "waits_for": ["B", "C"],
        "since_us": 10_100_000,
        "levels": ["accepted"],
    }
    with pytest.raises(NoQuorumError, match="waits for B, C") as caught:
        site.restriction.check(Level.ORDERED, PATIENCE_S)
    assert caught.value.definite and caught.value.retryable
    assert caught.value.fields == {"waits_for": ["B", "C"], "levels": ["accepted"]}
    site.hears("C")
    assert site.waits_for() is None and not site.refuses()
    # Lost once more, it has the whole patience again.
    site.hears("")
    assert not site.refuses()


def test_a_node_that_starts_alone_says_so_though_nobody_was_ever_heard() -> None:
    site = Site("BW")
    assert site.waits_for() == "BW"
    site.hears("W", after_s=1)
    assert site.waits_for() is None  # the witness has a vote, and A holds all that counts
    assert site.restriction.shown() is None


@pytest.mark.parametrize(
    ("site", "heard", "awaited", "levels"),
    [
        # The larger weight goes on, the smaller one does not.
        (Site("B", weights={"A": 2}), "", None, None),
        (Site("B", weights={"B": 2}), "", "B", ["accepted"]),
        # One of four with a majority of votes that has not got the data of the others.
        (Site("BC", weights={"A": 3}), "", "BC", ["accepted"]),
        # A place without a vote and without the queue is not waited for.
        (Site("BC", weights={"C": 0}, members="AB"), "", "B", ["accepted"]),
        # With q = 1 the node alone has acquired what it accepted.
        (Site("BC", rule="1"), "B", "C", ["accepted", "acquired"]),
        (Site("BCDE"), "B", "CDE", ["accepted"]),
        # The only member needs nobody, as long as nothing is to be decided.
        (Site("BW", members="A"), "", None, None),
        (Site("BW", members="A", wedged=True), "", "BW", ["accepted"]),
        (Site("BCD", members="AB"), "B", None, None),
        (Site("BCD", members="AB"), "C", "BD", ["accepted"]),
    ],
)
def test_who_is_waited_for_and_what_is_possible(
    site: Site, heard: str, awaited: str | None, levels: list[str] | None
) -> None:
    site.hears(heard)
    assert site.waits_for() == awaited
    shown = site.restriction.shown()
    assert (None if shown is None else shown["levels"]) == levels
    site.now += int(2 * PATIENCE_S * SECOND_US)
    assert site.refuses() == (awaited is not None)
    assert site.refuses(Level.ACQUIRED) == (levels == ["accepted"])


def test_a_node_that_promised_a_ballot_acquires_nothing() -> None:
    site = Site("BC", rule="1", wedged=True)
    site.hears("B")
    shown = site.restriction.shown()
    assert shown is not None and shown["levels"] == ["accepted"]


def test_a_node_without_a_part_is_not_restricted() -> None:
    site = Site("BC", members="BC")
    site.hears("")
    assert site.waits_for(100) is None and not site.refuses()


def test_a_bulk_load_waits_for_sites_and_for_no_follower() -> None:
    """A follower is never a member: one place of it would refuse all bulk loads for ever."""
    site = Site("BFW")
    site.hears("B")
    site.restriction.check_whole(2, 1)
    site.hears("FW")
    with pytest.raises(MembersMissingError) as refused:
        site.restriction.check_whole(2, 1)
    assert refused.value.definite and refused.value.fields["waits_for"] == ["B"]
