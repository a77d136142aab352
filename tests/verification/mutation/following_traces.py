"""Directed traces of followers: they follow, and nobody waits for them (P38)."""

from __future__ import annotations

from dataclasses import replace

from tests.verification.mutation.lone import (
    LOG_ID,
    SECOND_US,
    Lone,
    changing,
    entry_of,
    next_view,
    queued,
    sent,
    tail_of,
    views,
)

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import (
    Action,
    Alarm,
    FetchPayload,
    SendPost,
    SendTail,
    TellChange,
    TellRejected,
)
from sparktxlog.protocol.messages.balloting import (
    Accept,
    Decide,
    EpochHead,
    EpochMessage,
    JoinRequest,
    Prepare,
    Probe,
    Promise,
    TailRequest,
)
from sparktxlog.protocol.messages.events import (
    ChangeRequested,
    LinkChanged,
    PayloadArrived,
    PostReceived,
    RunSubmitted,
)
from sparktxlog.protocol.messages.posts import MergeBase
from sparktxlog.protocol.messages.view import Ballot, Phase

_THREE = {"a": 1, "b": 1, "c": 1, "f": 0}


def _wish(sender: str, incarnation: int = 1) -> JoinRequest:
    return JoinRequest(
        log_id=LOG_ID,
        epoch=1,
        sender=NodeId(sender),
        incarnation=incarnation,
        base=MergeBase(),
        ts=0,
    )


def _asked(actions: list[Action]) -> list[str]:
    """Return the nodes that were asked for the queue, in turn."""
    found = [one for one in actions if sent([one], TailRequest)]
    return [str(getattr(one, "peer", "")) for one in found]


def _phase(node: Lone) -> Phase:
    return node.master.phase


def _linked(node: Lone, *peers: str) -> list[Action]:
    return node.feed(*(LinkChanged(peer=NodeId(peer), up=True, newest=1) for peer in peers))


def _alarms(actions: list[Action]) -> list[str]:
    return [one.text for one in actions if isinstance(one, Alarm)]


def who_follows_is_not_admitted(core: type[Master]) -> None:
    """It may ask as often as it likes: no ballot begins, and none has it as a member."""
    node = Lone(core, votes=_THREE, suspect_us=SECOND_US)
    actions: list[Action] = []
    _linked(node, "b", "c", "f")
    for _ in range(20):
        found = node.hear(_wish("f")) + node.wait(SECOND_US // 4)
        for probe in sent(found, Probe):
            answers = (node.answer(one, probe.number, ("a", "b", "c", "f")) for one in "bcf")
            found += node.hear(*answers)
        actions += found
    assert not sent(actions, Prepare)
    ballot = changing(node, tuple(reversed(node.view.roster)))
    actions = node.hear(node.promise("b", ballot), node.promise("c", ballot), _wish("f"))
    asked = sent(actions + node.wait(SECOND_US), Accept)
    assert asked and asked[-1].candidate.members == ("c", "b", "a"), asked


def nobody_waits_for_a_follower(core: type[Master]) -> None:
    """What a member takes is ordered without a word of a follower, and none is asked for its vote.

    It was never heard, so this is no epoch that waits for its first word either (P29).
    """
    node = Lone(core, votes={"a": 1, "f": 0}, suspect_us=SECOND_US)
    node.disk.standings.clear()
    node.start()
    assert queued(node.submit(3)), "one member alone orders at once"
    assert not sent(node.wait(10 * SECOND_US), Probe), "nobody misses it"
    roster = tuple(replace(one, url="http://new") for one in node.view.roster)
    actions = node.feed(ChangeRequested(ticket=1, roster=roster)) + node.wait(2 * SECOND_US)
    assert views(actions), [one.text for one in actions if isinstance(one, TellChange)]


def a_follower_holds_nothing_that_counts(core: type[Master]) -> None:
    """P34: of two members two hold a synchronous run, however many nodes follow them."""
    node = Lone(core, votes={"a": 1, "b": 1, "f": 0, "g": 0}, suspect_us=SECOND_US)
    view = node.master.view
    assert (view.masters, view.synchro_quorum, view.quorum, view.data_quorum) == (2, 2, 2, 1)
    assert view.elects(("a", "b")) and not view.elects(("a", "f", "g"))
    lone = Lone(core, votes={"a": 1, "f": 0, "g": 0}, suspect_us=SECOND_US)
    assert queued(lone.submit(holders=lone.master.view.synchro_quorum))


def what_a_follower_hears_keeps_no_member(core: type[Master]) -> None:
    """Only `f` hears `c`: it is overdue as soon as one that nobody hears."""
    found = []
    for witness in ("b", "f"):
        node = Lone(core, votes=_THREE, suspect_us=SECOND_US)
        _linked(node, "b", "c", "f")
        node.feed(LinkChanged(peer=NodeId("c"), up=False))
        begun = node.now
        while not sent(actions := node.wait(SECOND_US // 10), Prepare):
            assert node.now < begun + 20 * SECOND_US, "no ballot begins"
            for probe in sent(actions, Probe):
                hears = {"b": ("a", "f"), witness: ("a", "b", "c", "f")}
                node.hear(*(node.answer(one, probe.number, said) for one, said in hears.items()))
        found.append(node.now - begun)
    assert found[0] > 2 * found[1], found


def who_follows_has_no_word_in_a_decision(core: type[Master]) -> None:
    """Its ballots, votes and promises are refused and named; nothing is frozen for them."""
    node = Lone(core, votes=_THREE, suspect_us=SECOND_US)
    words: list[EpochMessage] = [
        node.prepare("f", 1),
        node.accept("f", 1, next_view(node.view, "a", "b")),
        node.promise("f", Ballot(number=1, node="a")),
        node.accepted("f", Ballot(number=1, node="a")),
        node.flushed("f", Ballot(number=1, node="a"), 0),
    ]
    for word in words:
        actions = node.hear(word)
        assert [text for text in _alarms(actions) if text.startswith("f sent")], word
        assert node.master.phase is Phase.NORMAL and not sent(actions, Promise), word
    alarms = _alarms(node.feed(PostReceived(post=node.post_of("f", 99))))
    assert alarms and "f sent a promise" in alarms[0], alarms
    suspects = replace(Probe(**_head("f"), number=1), suspects=(NodeId("b"),))
    _linked(node, "b")
    node.hear(suspects)
    node.wait(2 * SECOND_US)
    assert node.master.phase is Phase.NORMAL, "its complaints are none"


def _head(sender: str) -> EpochHead:
    return EpochHead(log_id=LOG_ID, epoch=1, sender=NodeId(sender), incarnation=1)


def who_follows_promises_nothing(core: type[Master]) -> None:
    """Asked for a vote it says nothing; it posts nothing, takes nothing and wants nothing."""
    node = Lone(core, "f", votes=_THREE, suspect_us=SECOND_US)
    assert node.master.phase is Phase.FOLLOWING
    actions = node.hear(node.prepare("a", 1), node.accept("a", 1, next_view(node.view, "a", "b")))
    actions += node.submit() + node.wait(30 * SECOND_US)
    assert not sent(actions, (Promise, JoinRequest)), actions  # type: ignore[arg-type]
    assert not [one for one in actions if isinstance(one, SendPost)]
    rejected = [one.code for one in actions if isinstance(one, TellRejected)]
    assert rejected == ["not-a-member"] and not isinstance(actions[0], RunSubmitted)


def who_follows_appends_what_its_upstream_has(core: type[Master]) -> None:
    """It asks one node, fetches from that one, and asks again for more after a while."""
    node = Lone(core, "f", votes={**_THREE, "g": 0}, suspect_us=SECOND_US, follow=("g", "b"))
    assert set(_asked(_linked(node, "a", "b", "g"))) == {"g"}
    headers = [node.run_of("a", seq, seq) for seq in (1, 2)]
    first = entry_of(headers[0], 1, bytes(32))
    second = entry_of(headers[1], 2, first.chain_hash)
    actions = node.feed(tail_of(LOG_ID, first, sender="g"))
    (fetched,) = [one for one in actions if isinstance(one, FetchPayload)]
    assert fetched.sources == ("g", "b"), fetched.sources
    arrived = PayloadArrived(header=headers[0], facts=node.facts[headers[0].digest])
    appended = node.feed(arrived)
    assert queued(appended)
    for _ in range(4):  # it does not ask at every run of a busy log
        appended += node.wait(SECOND_US // 20)
    assert not _asked(appended), "it was asked a moment ago"
    assert _asked(node.wait(SECOND_US)), "for what follows"
    node.feed(tail_of(LOG_ID, second, sender="g"))
    node.wait(SECOND_US)
    pulling = node.master.pulling
    assert pulling is not None
    shown = pulling.upstream(node.now)
    assert (shown.node, shown.linked, shown.lacks) == ("g", True, 1) and shown.lags_us > 0, shown


def who_follows_goes_on_at_the_next_node(core: type[Master]) -> None:
    """Its upstream is cut, or says nothing at all; where it is back, that is asked again."""
    node = Lone(core, "f", votes={**_THREE, "g": 0}, suspect_us=SECOND_US, follow=("g", "b"))
    _linked(node, "b", "g")
    actions = node.feed(LinkChanged(peer=NodeId("g"), up=False))
    assert set(_asked(actions + node.wait(SECOND_US))) == {"b"}
    assert set(_asked(_linked(node, "g"))) == {"g"}
    silent = _asked(node.wait(10 * SECOND_US))
    assert {"g", "b"} <= set(silent), "the other one is asked, too"
    found = list[str]()
    for _ in range(40):
        node.hear(node.answer("g", 0), node.answer("b", 0))
        found += _asked(node.wait(SECOND_US // 4))
    assert len(set(found)) == 1, "one that says that it is alive is kept"


def who_has_a_queue_gives_it_to_a_follower(core: type[Master]) -> None:
    """A node that is no member answers, too; one in an older epoch is told of this one."""
    node = Lone(core, "f", votes={**_THREE, "g": 0}, suspect_us=SECOND_US)
    header = node.run_of("a", 1, 1)
    node.feed(tail_of(LOG_ID, entry_of(header, 1, bytes(32))))
    node.feed(PayloadArrived(header=header, facts=node.facts[header.digest]))
    request = TailRequest(
        log_id=LOG_ID,
        epoch=1,
        sender=NodeId("g"),
        incarnation=1,
        position=0,
        chain_hash=bytes(32),
    )
    assert [one.peer for one in node.hear(request) if isinstance(one, SendTail)] == ["g"]
    later = replace(next_view(node.view, "a", "b"), end=node.master.base)
    node.hear(node.letter_of_decision("a", later))
    assert node.master.phase is Phase.FOLLOWING and node.master.view.epoch == 2
    told = sent(node.hear(request), Decide)
    assert [one.view.epoch for one in told] == [2]


def a_follower_with_another_disk_is_known_by_a_decision(core: type[Master]) -> None:
    """P21: the members take note of its incarnation; it is no member, and is not waited for."""
    node = Lone(core, votes={"a": 1, "b": 1, "f": 0}, suspect_us=SECOND_US)
    _linked(node, "b", "f")
    wish, asked = _wish("f", 2), list[Accept]()
    for _ in range(40):
        actions = node.hear(wish) + node.wait(SECOND_US // 10)
        for probe in sent(actions, Probe):
            node.hear(node.answer("b", probe.number, ("a", "f")))
        for prepare in sent(actions, Prepare):
            actions += node.hear(node.promise("b", prepare.ballot))
        asked += sent(actions, Accept)
        if asked:
            break
    assert asked, "it is never decided"
    candidate = asked[0].candidate
    assert candidate.members == ("a", "b") and candidate.is_current("f", 2)


def a_follower_becomes_a_member_and_back(core: type[Master]) -> None:
    """Promoted it asks to be admitted; as a follower again it asks no more, and has no vote."""
    node = Lone(core, "f", votes=_THREE, suspect_us=SECOND_US)
    roster = tuple(replace(one, follower=False, weight=1) for one in node.view.roster)
    promoted = replace(next_view(node.view, "a", "b", "c"), roster=roster)
    actions = node.hear(node.letter_of_decision("a", promoted)) + node.wait(SECOND_US)
    assert _phase(node) is Phase.JOINING and sent(actions, JoinRequest)
    member = next_view(promoted, "a", "b", "c", "f")
    node.hear(node.letter_of_decision("a", member))
    assert _phase(node) is Phase.NORMAL
    again = replace(next_view(member, "a", "b", "c"), roster=node.view.roster)
    actions = node.hear(node.letter_of_decision("a", again)) + node.wait(10 * SECOND_US)
    assert _phase(node) is Phase.FOLLOWING and not sent(actions, JoinRequest)
    assert _asked(actions)


def a_follower_never_votes_by_a_change(core: type[Master]) -> None:
    """The roster of an operator gives a follower no votes, and leaves a member."""
    for votes, roster, wrong in (
        (_THREE, {"f": {"weight": 1}}, "f cannot be a follower and vote"),
        ({"a": 1, "f": 0}, {"a": {"follower": True, "weight": 0}, "f": {"weight": 1}}, "vote"),
        ({"a": 2, "b": 0}, {"a": {"follower": True}, "b": {"follower": True}}, "cannot be"),
    ):
        node = Lone(core, votes=votes, suspect_us=SECOND_US)
        seats = tuple(replace(one, **roster.get(one.node_id, {})) for one in node.view.roster)
        actions = node.feed(ChangeRequested(ticket=1, roster=seats))
        said = [one.text for one in actions if isinstance(one, TellChange)]
        assert len(said) == 1 and wrong in said[0], said
