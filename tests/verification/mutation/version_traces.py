"""Directed traces of how the version in force is raised (protocol P31)."""

from __future__ import annotations

from dataclasses import replace

from tests.verification.mutation.lone import (
    LOG_ID,
    SECOND_US,
    Lone,
    changing,
    proposing,
    sent,
    views,
)

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import Action, SendEpochMessage
from sparktxlog.protocol.messages.balloting import Accept, Decide, JoinRequest, Prepare, Probe
from sparktxlog.protocol.messages.events import LinkChanged
from sparktxlog.protocol.messages.posts import MergeBase
from sparktxlog.protocol.messages.recovery import first_view
from sparktxlog.protocol.messages.versions import NEWEST
from sparktxlog.protocol.messages.view import Ballot

#: A version that is made up: the next release would speak it.
LATER = NEWEST + 1


def _upgraded(
    core: type[Master], version: int = NEWEST, votes: dict[str, int] | None = None
) -> Lone:
    """Return a node of the next release in a log of a version."""
    node = Lone(core, votes=votes)
    node.config = replace(node.config, version=version, newest=LATER)
    node.view = first_view(node.config)
    node.start()
    return node


def _answering(node: Lone, actions: list[Action], *peers: str) -> list[Action]:
    """Let peers answer the latest probe among actions; return what comes of it."""
    number = max((probe.number for probe in sent(actions, Probe)), default=0)
    answered = node.hear(*(node.answer(peer, number, ("a", "b", "c")) for peer in peers))
    return answered + node.wait(SECOND_US // 5)


def _decided(node: Lone, ballot: Ballot, *spoken: tuple[str, int]) -> int:
    """Let peers promise a ballot and vote for what it chose; return the version of the view."""
    found = views(_deciding(node, ballot, *spoken))
    assert found, "nothing was decided"
    return found[-1].version


def _deciding(node: Lone, ballot: Ballot, *spoken: tuple[str, int]) -> list[Action]:
    """Let peers promise a ballot and vote for what it chose; return what comes of the votes."""
    node.hear(*(replace(node.promise(peer, ballot), newest=newest) for peer, newest in spoken))
    node.wait(6 * SECOND_US // 10)  # in vain for others, but not so long that it is given up
    peers = [peer for peer, _ in spoken]
    node.hear(*(node.flushed(peer, ballot, 0) for peer in peers))
    return node.hear(*(node.accepted(peer, ballot) for peer in peers))


def all_must_speak_a_version(core: type[Master]) -> None:
    """P31: a voter that is away may hold a vote, and know nothing of the version in it."""
    node = _upgraded(core)
    assert _decided(node, proposing(node), ("b", LATER)) == NEWEST
    node = _upgraded(core)
    assert _decided(node, proposing(node), ("b", LATER), ("c", NEWEST)) == NEWEST
    node = _upgraded(core)
    assert _decided(node, proposing(node), ("b", LATER), ("c", LATER)) == LATER


def who_proposes_speaks_the_version(core: type[Master]) -> None:
    """P31: a member without a vote proposes a roster without itself, and is of an older release."""
    for newest in (NEWEST, LATER):
        node = _upgraded(core, votes={"a": 0, "b": 1, "c": 1})
        node.config = replace(node.config, newest=newest)
        node.start()
        ballot = changing(node, node.view.roster[1:])
        assert _decided(node, ballot, ("b", LATER), ("c", LATER)) == newest


def a_witness_is_waited_for(core: type[Master]) -> None:
    """P31: votes enough are there before the witness promises; without it nothing would rise."""
    node = _upgraded(core, votes={"a": 1, "b": 1, "w": 1})
    links = [LinkChanged(peer=NodeId(peer), up=True, newest=LATER) for peer in "bw"]
    actions = node.feed(*links)
    started = sent(actions + _answering(node, actions, "b", "w"), Prepare)
    assert started, "all speak the version, and it is not raised"
    ballot = started[0].ballot
    promises = {peer: replace(node.promise(peer, ballot), newest=LATER) for peer in "bw"}
    assert not sent(node.hear(promises["b"]), Accept), "its promise is on its way"
    asked = sent(node.hear(promises["w"]), Accept)
    assert asked and asked[0].candidate.version == LATER


def no_version_goes_back(core: type[Master]) -> None:
    """P31: manifests may be on their way that only the later version reads rightly."""
    node = _upgraded(core, LATER)
    assert _decided(node, proposing(node), ("b", NEWEST), ("c", NEWEST)) == LATER


def it_is_raised_once_all_are_there(core: type[Master]) -> None:
    """P31: the last one that was upgraded lets the version rise; nothing else has to happen."""
    node = _upgraded(core)
    links = [LinkChanged(peer=NodeId(peer), up=True, newest=LATER) for peer in "bc"]
    actions = _answering(node, node.feed(links[0]) + node.wait(SECOND_US), "b", "c")
    assert not sent(actions, Prepare), "c was not greeted yet"
    actions = node.feed(links[1], LinkChanged(peer=NodeId("b"), up=False))
    actions = _answering(node, actions + node.wait(SECOND_US), "b", "c")
    assert not sent(actions, Prepare), "b has gone: what comes back may be an older release"
    actions = node.feed(links[0])
    started = sent(actions + _answering(node, actions, "b", "c"), Prepare)
    assert started, "all speak the version, and it is not raised"
    assert _decided(node, started[0].ballot, ("b", LATER), ("c", LATER)) == LATER
    assert not sent(node.wait(60 * SECOND_US), Prepare)


def an_older_release_is_not_told_of_it(core: type[Master]) -> None:
    """P31: a node without a vote and a place would read a view as one of its own version."""
    node = _upgraded(core, votes={"a": 1, "b": 1, "c": 1, "x": 0})
    members = node.view.members[:3]
    node.config = replace(node.config, members=members)
    node.start()
    newest = {"b": LATER, "c": LATER, "x": NEWEST}
    node.feed(*(LinkChanged(peer=NodeId(peer), up=True, newest=v) for peer, v in newest.items()))
    asks = JoinRequest(
        log_id=LOG_ID, epoch=1, sender=NodeId("x"), incarnation=1, base=MergeBase(), ts=0
    )
    actions = _deciding(node, proposing(node), ("b", LATER), ("c", LATER))
    assert views(actions)[-1].version == LATER
    assert {a.peer for a in _told(actions)} == {"b", "c"}
    assert not _told(node.hear(asks) + node.wait(60 * SECOND_US))
    node.feed(LinkChanged(peer=NodeId("x"), up=True, newest=LATER))
    assert {a.peer for a in _told(node.hear(asks))} == {"x"}


def _told(actions: list[Action]) -> list[SendEpochMessage]:
    """Return the decisions that are sent."""
    letters = [a for a in actions if isinstance(a, SendEpochMessage)]
    return [letter for letter in letters if isinstance(letter.message, Decide)]
