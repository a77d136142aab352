"""Who is missed, and who starts the ballot that leaves it out (P13)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.verification.mutation.lone import SECOND_US, Lone, sent

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import Action, SendEpochMessage, TellChange, TellPhase
from sparktxlog.protocol.messages.balloting import Prepare, Probe
from sparktxlog.protocol.messages.events import ChangeRequested, LinkChanged, PostReceived, Tick
from sparktxlog.protocol.messages.recovery import first_view
from sparktxlog.protocol.messages.view import Phase

TIMEOUT_US = SECOND_US
THREE = {"a": 1, "b": 1, "c": 1}
#: Peers that answer, and whom they hear.
Answers = Mapping[str, tuple[str, ...]]


class Watched:
    """A node, peers that answer whatever it asks at once, and others that are silent from now on.

    Args:
        own: The node.
        answers: Peers that are there, and whom they hear.
        heard: Members that the node has heard so far.
        settings: Of `MasterConfig`.
    """

    def __init__(
        self,
        answers: Answers,
        own: str = "a",
        votes: dict[str, int] | None = None,
        *,
        heard: str = "abcd",
        **settings: object,
    ) -> None:
        self.node = Lone(Master, own, votes or THREE, suspect_us=TIMEOUT_US)
        self.node.config = replace(self.node.config, **settings)  # type: ignore[arg-type]
        self.node.view = first_view(self.node.config)
        self.node.start()
        self.answers = answers
        for peer in self.node.view.members:
            if peer in heard and peer != own:
                self.post(peer)
        self.begun = self.node.now

    def phase(self) -> Phase:
        return self.node.master.phase

    def post(self, peer: str) -> list[Action]:
        return self.node.feed(PostReceived(post=self.node.post_of(peer, self.node.now)))

    def link(self, peer: str, *, up: bool) -> list[Action]:
        return self.node.feed(LinkChanged(peer=NodeId(peer), up=up))

    def complain(self, of: str) -> list[Action]:
        """Let `b` complain of a node, which it misses itself."""
        return self.node.hear(
            Probe(
                log_id=self.node.view.log_id,
                epoch=1,
                sender=NodeId("b"),
                incarnation=1,
                number=1,
                suspects=(NodeId(of),),
            )
        )

    def until(self, after_us: int) -> list[Action]:
        """Wake the core when it wants to be woken, and at `after_us` behind the beginning."""
        at, found = self.begun + after_us, list[Action]()
        for _ in range(1_000):
            deadline = self.node.master.next_deadline()
            assert deadline is not None
            done = deadline > at or self.node.now >= at
            self.node.now = at if done else max(deadline, self.node.now)
            found += self.answered(self.node.feed(Tick()))
            if done:
                return found
        raise AssertionError("the core wants to be woken all the time")

    def answered(self, actions: list[Action]) -> list[Action]:
        """Let those who are there answer probes, and post; a ballot gets no answer."""
        found = list(actions)
        for peer in self.answers:
            if peer in self.node.view.members and self.phase() is not Phase.WEDGED:
                found += self.post(peer)
        for action in actions:
            if isinstance(action, SendEpochMessage) and isinstance(action.message, Probe):
                peer = action.peer
                if peer in self.answers:
                    answer = self.node.answer(peer, action.message.number, self.answers[peer])
                    found += self.node.hear(answer)
        return found

    def starts_at(self, after_us: int) -> bool:
        """Return whether the node starts its ballot then, and not a microsecond earlier."""
        before = self.until(after_us - 1)
        deadline = self.node.master.next_deadline()
        assert sent(before, Prepare) or (deadline is not None and deadline <= self.begun + after_us)
        return not sent(before, Prepare) and bool(sent(self.until(after_us), Prepare))


def missing_link(answers: Answers, peer: str, own: str = "a", **settings: object) -> Watched:
    """Return a node that has just lost its link to a member."""
    votes = settings.pop("votes", None)
    watched = Watched(answers, own, votes, **settings)  # type: ignore[arg-type]
    watched.link(peer, up=False)
    return watched


# -- suspected -------------------------------------------------------------------------------------


def test_a_broken_link_is_suspected_in_the_same_batch() -> None:
    watched = Watched({"b": ()})
    told = [action for action in watched.link("c", up=False) if isinstance(action, TellPhase)]
    assert [(one.phase, one.reason) for one in told] == [(Phase.SUSPECT, "nothing usable from c")]
    assert watched.node.master.status().suspects == ("c",)


def test_who_owes_an_answer_is_suspected_when_it_is_late() -> None:
    watched = Watched({"b": ()})
    watched.node.submit()
    watched.until(TIMEOUT_US - 1)
    assert watched.phase() is Phase.NORMAL
    deadline = watched.node.master.next_deadline()
    assert deadline is not None
    assert deadline <= watched.begun + TIMEOUT_US
    watched.until(TIMEOUT_US)
    assert watched.phase() is Phase.SUSPECT
    assert watched.node.master.status().suspects == ("c",)


@pytest.mark.parametrize("sign", ["post", "link"])
def test_the_time_counts_from_the_last_sign_of_life(sign: str) -> None:
    watched = Watched({"b": ()})
    watched.node.submit()
    watched.until(400_000)
    if sign == "post":
        watched.post("c")
    else:
        watched.link("c", up=False)
        watched.link("c", up=True)
    watched.until(400_000 + TIMEOUT_US - 1)
    assert watched.phase() is Phase.NORMAL
    watched.until(400_000 + TIMEOUT_US)
    assert watched.phase() is Phase.SUSPECT


def test_who_owes_nothing_may_be_silent() -> None:
    watched = Watched({"b": ()})
    actions = watched.until(20 * TIMEOUT_US)
    assert watched.phase() is Phase.NORMAL
    assert not sent(actions, Probe)


def test_without_a_timeout_nobody_is_suspected() -> None:
    watched = Watched({"b": ()}, suspect_timeout_us=0)
    watched.link("c", up=False)
    watched.node.submit()
    watched.until(100 * TIMEOUT_US)
    assert watched.phase() is Phase.NORMAL


@pytest.mark.parametrize("sign", ["post", "link", "probe"])
def test_a_member_that_answers_is_no_suspect_any_more(sign: str) -> None:
    watched = missing_link({"b": ()}, "c")
    probes = sent(watched.until(TIMEOUT_US // 2), Probe)
    assert watched.phase() is Phase.SUSPECT
    if sign == "post":
        watched.post("c")
    elif sign == "link":
        watched.link("c", up=True)
    else:
        watched.node.hear(watched.node.answer("c", probes[-1].number))
    assert watched.phase() is Phase.NORMAL
    assert watched.node.master.status().suspects == ()
    # What it says while its link is down is no link: it owes another word.
    assert bool(sent(watched.until(20 * TIMEOUT_US), Prepare)) == (sign != "link")


def test_last_words_after_its_link_broke_keep_a_member_for_one_timeout_only() -> None:
    """A node that stops may post after its link is refused; nothing else tells that it is gone."""
    watched = Watched({"b": ()})
    watched.link("c", up=False)
    assert watched.phase() is Phase.SUSPECT
    watched.post("c")
    watched.begun = watched.node.now
    assert watched.phase() is Phase.NORMAL
    watched.until(TIMEOUT_US - 1)
    assert watched.phase() is Phase.NORMAL, "it may have lost the way there only"
    watched.until(TIMEOUT_US + 1)
    assert watched.phase() is Phase.SUSPECT
    assert sent(watched.until(2 * TIMEOUT_US), Prepare)


def test_words_of_a_member_whose_link_is_down_keep_it() -> None:
    watched = Watched({"b": ()})
    watched.link("c", up=False)
    for _ in range(20):
        watched.post("c")
        watched.begun = watched.node.now
        assert not sent(watched.until(TIMEOUT_US // 2), Prepare)
    watched.link("c", up=True)
    watched.begun = watched.node.now
    assert not sent(watched.until(20 * TIMEOUT_US), Prepare), "a link that is up owes nothing"


def test_a_complaint_is_looked_into() -> None:
    """Of one whom this node just heard nothing is believed; any other is tried at once."""
    watched = Watched({"b": ()})
    watched.complain("c")
    assert watched.phase() is Phase.NORMAL
    watched.until(TIMEOUT_US + 1)
    assert watched.phase() is Phase.SUSPECT, "it owed an answer from the complaint on"
    watched.post("c")
    watched.begun = watched.node.now
    watched.until(TIMEOUT_US + 1)
    actions = watched.complain("c")
    assert watched.phase() is Phase.SUSPECT
    tried = [a.peer for a in actions if isinstance(a, SendEpochMessage) and sent([a], Probe)]
    assert sorted(tried) == ["b", "c"]
    assert {probe.suspects for probe in sent(actions, Probe)} == {("c",)}


# -- overdue ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link_down", "heard_by", "after_us"),
    [
        (True, (), TIMEOUT_US),
        (False, (), TIMEOUT_US * 3 // 2),
        (True, ("c",), 4 * TIMEOUT_US),
        (False, ("c",), 6 * TIMEOUT_US),
    ],
)
def test_how_long_a_suspect_is_tried(
    link_down: bool, heard_by: tuple[str, ...], after_us: int
) -> None:
    """A link that stands, or another node that hears it, speaks for the suspect."""
    watched = Watched({"b": ("a", *heard_by)})
    if link_down:
        watched.link("c", up=False)
    else:
        watched.node.submit()
    assert watched.starts_at(after_us)
    assert watched.phase() is Phase.WEDGED


def test_the_word_of_a_node_that_heard_the_suspect_holds_no_longer_than_it_says_so() -> None:
    watched = missing_link({"b": ("a", "c")}, "c")
    watched.until(2 * TIMEOUT_US)
    assert watched.phase() is Phase.SUSPECT
    watched.answers = {"b": ("a",)}
    assert sent(watched.until(4 * TIMEOUT_US - 1), Prepare)


@pytest.mark.parametrize("link_down", [True, False])
def test_a_member_that_was_never_heard_has_the_start_timeout(link_down: bool) -> None:
    start_us = 5 * TIMEOUT_US
    watched = Watched({"b": ()}, heard="b", start_timeout_us=start_us)
    if link_down:
        watched.link("c", up=False)
    else:
        watched.node.submit()
    watched.until(start_us // 2 - 1)
    assert watched.phase() is Phase.NORMAL
    watched.until(start_us // 2)
    assert watched.phase() is Phase.SUSPECT
    assert watched.starts_at(start_us)


def test_a_complaint_of_one_that_was_never_heard_leaves_it_the_start_timeout() -> None:
    watched = Watched({"b": ()}, heard="b", start_timeout_us=5 * TIMEOUT_US)
    watched.complain("c")
    watched.until(2 * TIMEOUT_US)
    assert watched.phase() is Phase.NORMAL


# -- who starts ------------------------------------------------------------------------------------

FOUR = {"a": 1, "b": 1, "c": 1, "d": 1}


@pytest.mark.parametrize(
    ("own", "missing", "after_us"),
    [
        ("a", "d", 0),
        ("b", "d", TIMEOUT_US // 4),
        ("c", "d", TIMEOUT_US // 2),
        ("b", "a", 0),
        ("c", "a", TIMEOUT_US // 4),
        ("c", "b", TIMEOUT_US // 4),
    ],
)
def test_the_first_member_that_is_there_starts_and_the_others_a_little_later(
    own: str, missing: str, after_us: int
) -> None:
    answers = {peer: () for peer in "abcd" if peer not in (own, missing)}
    watched = missing_link(answers, missing, own, votes=FOUR)
    assert watched.starts_at(TIMEOUT_US + after_us)


def test_a_running_ballot_is_left_its_time() -> None:
    watched = missing_link({"a": (), "c": ()}, "d", "b", votes=FOUR)
    watched.until(TIMEOUT_US)
    watched.node.hear(watched.node.prepare("a", 1))
    assert watched.phase() is Phase.WEDGED
    # Two timeouts, and half a one for each member in front.
    assert watched.starts_at(TIMEOUT_US + 2 * TIMEOUT_US + TIMEOUT_US // 2)


def test_an_operator_who_decides_is_waited_for() -> None:
    """`eviction = manual`: the members only say for whom they wait."""
    watched = missing_link({"b": ()}, "c", auto_evict=False)
    assert not sent(watched.until(60 * TIMEOUT_US), Prepare)
    assert watched.phase() is Phase.SUSPECT


# -- one that others hear (P39) --------------------------------------------------------------------


def kept(answers: Answers) -> Watched:
    """Return a node that has lost its link to `c`, and keeps whom others hear."""
    return missing_link(answers, "c", keeps_heard=True)


def test_a_member_that_another_one_hears_is_kept_as_long_as_that_says_so() -> None:
    watched = kept({"b": ("a", "c")})
    assert not sent(watched.until(60 * TIMEOUT_US), Prepare)
    assert watched.phase() is Phase.SUSPECT
    watched.answers = {"b": ("a",)}
    assert sent(watched.until(67 * TIMEOUT_US), Prepare)


def test_the_word_of_a_member_that_is_silent_itself_keeps_nobody() -> None:
    watched = Watched(
        {"b": ("c",), "d": (), "e": ()}, votes=dict.fromkeys("abcde", 1), keeps_heard=True
    )
    watched.post("e")
    watched.begun = watched.node.now
    watched.link("c", up=False)
    assert not sent(watched.until(20 * TIMEOUT_US), Prepare)
    watched.answers = {"d": (), "e": ()}
    watched.link("b", up=False)
    for tenths in range(200, 300):
        if sent(watched.until(tenths * TIMEOUT_US // 10), Prepare):
            break
    proposer = watched.node.master._succession.proposer
    assert proposer is not None
    assert proposer.intent.absent == {"b", "c"}


def test_a_witness_carries_nothing() -> None:
    votes = {"a": 1, "b": 1, "c": 1, "w": 1}
    answers: Answers = {"b": ("a",), "w": ("a", "c")}
    watched = missing_link(answers, "c", keeps_heard=True, votes=votes)
    assert sent(watched.until(5 * TIMEOUT_US), Prepare)


def test_a_change_is_left_to_those_that_hear_all() -> None:
    """`c` would not hear the ballot of this node, and be left out."""
    watched = kept({"b": ("a", "c")})
    heavy = tuple(replace(seat, weight=2) for seat in watched.node.view.roster)
    watched.begun = watched.node.now
    actions = watched.answered(watched.node.feed(ChangeRequested(ticket=7, roster=heavy)))
    actions += watched.until(5 * TIMEOUT_US)
    assert not sent(actions, Prepare)
    (told,) = [action for action in actions if isinstance(action, TellChange)]
    assert told.epoch is None
    assert told.text == "c is heard by others and not here: ask one of those"


# -- a guard (P40) ---------------------------------------------------------------------------------

PAIRS = (frozenset({NodeId("a"), NodeId("b")}), frozenset({NodeId("c"), NodeId("d")}))


@pytest.mark.parametrize(
    ("there", "guard", "goes_on"),
    [
        ("bc", (), True),
        ("bc", PAIRS, True),
        ("cd", PAIRS, True),
        ("ce", PAIRS, False),
        ("ce", (), True),
        ("bcd", (frozenset(map(NodeId, "abcde")),), False),
    ],
)
def test_with_a_guard_only_a_side_with_a_whole_set_goes_on(
    there: str, guard: tuple[frozenset[NodeId], ...], goes_on: bool
) -> None:
    watched = Watched(dict.fromkeys(there, ()), votes=dict.fromkeys("abcde", 1), guard=guard)
    watched.post("e")
    watched.begun = watched.node.now
    for peer in "bcde":
        if peer not in there:
            watched.link(peer, up=False)
    assert bool(sent(watched.until(20 * TIMEOUT_US), Prepare)) is goes_on


# -- with whom -------------------------------------------------------------------------------------

WITNESSED = {"a": 1, "b": 1, "c": 1, "w1": 1, "w2": 1}


def test_votes_of_witnesses_are_no_data_quorum() -> None:
    """Three of five votes answer; the other two members may hold what is told as acquired."""
    watched = Watched({"w1": (), "w2": ()}, votes=WITNESSED)
    for peer in "bc":
        watched.link(peer, up=False)
    assert not sent(watched.until(20 * TIMEOUT_US), Prepare)
    assert watched.phase() is Phase.SUSPECT
    assert watched.node.master.status().suspects == ("b", "c")
    # A second member that is there makes it one.
    watched.answers = {"b": (), **watched.answers}
    watched.link("b", up=True)
    assert sent(watched.until(25 * TIMEOUT_US), Prepare)


def test_each_member_is_a_data_quorum_if_all_acquire() -> None:
    watched = Watched({"w1": (), "w2": ()}, votes=WITNESSED, quorum_rule="all")
    for peer in "bc":
        watched.link(peer, up=False)
    assert watched.starts_at(TIMEOUT_US)


def test_members_without_a_majority_of_the_votes_start_nothing() -> None:
    watched = missing_link({"b": ()}, "c", votes={"a": 1, "b": 1, "c": 3})
    assert not sent(watched.until(20 * TIMEOUT_US), Prepare)
    assert watched.phase() is Phase.SUSPECT


def test_old_answers_do_not_count() -> None:
    """Who answered a probe long ago may be dead as well by now."""
    watched = missing_link({"b": ("a", "c")}, "c")
    watched.until(TIMEOUT_US)
    watched.answers = {}
    assert not sent(watched.until(20 * TIMEOUT_US), Prepare)
    assert watched.phase() is Phase.SUSPECT


def test_the_last_answer_of_one_that_is_missing_does_not_count() -> None:
    """`c` answered, hears `b`, and is gone: alone with that answer nothing is decided."""
    watched = missing_link({"c": ("b",)}, "b")
    watched.until(TIMEOUT_US)
    watched.answers = {}
    watched.link("c", up=False)
    assert not sent(watched.until(20 * TIMEOUT_US), Prepare)
    assert watched.phase() is Phase.SUSPECT
