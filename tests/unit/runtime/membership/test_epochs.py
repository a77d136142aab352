"""What a node says of its part in the epoch, from its start on, and to whom.

Clients that wait at a node which lost its part learn that the outcome is open.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sparktxlog.config import load_config
from sparktxlog.errors import CommitStateUnknownError, ForeignLogError
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.receipt import Appliers, Level, Receipt
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import TellPhase
from sparktxlog.protocol.messages.balloting import BallotState
from sparktxlog.protocol.messages.posts import MergeBase
from sparktxlog.protocol.messages.recovery import MasterConfig, RecoveredState
from sparktxlog.protocol.messages.view import Ballot, Phase, Seat, View
from sparktxlog.runtime.commit.receipts import Receipts
from sparktxlog.runtime.membership.epochs import Epochs, differences, elsewhere, moved_since

SEATS = tuple(Seat(node_id=NodeId(name), witness=name == "W") for name in "ABW")


def view_of(epoch: int, members: str) -> View:
    return View(
        log_id="l", epoch=epoch, roster=SEATS, members=tuple(NodeId(name) for name in members)
    )


def epochs_of(
    view: View, ballot: int = 0, own: str = "A", receipts: Receipts | None = None
) -> Epochs:
    """Return what a node shows that starts with a view and a promise of its journal."""
    config = MasterConfig(
        node_id=NodeId(own), members=(NodeId("A"), NodeId("B")), quorum=2, log_id="l", roster=SEATS
    )
    promise = BallotState(epoch=view.epoch, promised=Ballot(number=ballot, node=NodeId("B")))
    state = RecoveredState(view=view, ballot=promise if ballot else None)
    settings = {"node-id": own, "master-url": "http://127.0.0.1:7001", "data-dir": "unused"}
    base: Any = SimpleNamespace(
        config=load_config(None, settings, {}),
        master=Master(config, state, 0),
        links={},
        state=SimpleNamespace(values={}),
        clock=SimpleNamespace(now=lambda: 0),
    )
    core: Any = SimpleNamespace(
        cycle=SimpleNamespace(halted=None, tell_always=lambda event: None),
        receipts=Receipts(lambda sites: 0) if receipts is None else receipts,
        executor=SimpleNamespace(write_then=lambda writes, then: None),
    )
    greeter: Any = SimpleNamespace(ahead=lambda: None)
    return Epochs(base, core, greeter)


@pytest.mark.parametrize(
    ("view", "ballot", "phase", "reason"),
    [
        (view_of(1, "AB"), 0, "NORMAL", ""),
        (
            view_of(2, "B"),
            0,
            "JOINING",
            "no member of epoch 2 at the start: waits for B to admit it",
        ),
        (
            view_of(3, "AB"),
            1,
            "WEDGED",
            "promised a ballot before the start: what follows epoch 3 is open",
        ),
    ],
)
def test_a_node_says_why_it_starts_in_its_phase(
    view: View, ballot: int, phase: str, reason: str
) -> None:
    epochs = epochs_of(view, ballot)
    shown = epochs.view()
    assert (shown["phase"], shown["phase_reason"]) == (phase, reason)
    assert epochs.takes_part == (phase != "JOINING")
    # The core tells of every phase behind it.
    epochs.on_phase(TellPhase(phase=Phase.NORMAL, view=view, reason="epoch 4 is in force"))
    assert epochs.view()["phase_reason"] == "epoch 4 is in force"


def test_a_witness_has_a_part_from_its_start_on() -> None:
    epochs = epochs_of(view_of(2, "B"), own="W")
    assert epochs.takes_part and epochs.view()["phase"] == "WITNESS"


def test_a_witness_that_came_with_an_empty_disk_says_until_when_it_has_no_vote() -> None:
    view = replace(view_of(2, "AB"), roster=(*SEATS[:2], replace(SEATS[2], incarnation=2)))
    epochs = epochs_of(view, own="W")
    assert not epochs.takes_part
    assert epochs.view()["phase_reason"] == "votes after the members admitted it under 1"


ID = bytes(range(16))
VIEW = view_of(2, "AB")


async def told_while_waiting(phase: Phase, receipts: Receipts) -> asyncio.Task[Receipt]:
    """Let a client wait for the order of a transaction, and tell the phase; return the wait."""
    epochs = epochs_of(VIEW, receipts=receipts)
    submission = receipts.open(1, ID, singles=True)
    receipts.accepted(1, None)
    wait = asyncio.create_task(receipts.wait(submission, 0, Level.ORDERED, Appliers(), 60))
    await asyncio.sleep(0)
    epochs.on_phase(TellPhase(phase=phase, view=VIEW, reason="epoch 2 goes on"))
    for _ in range(3):  # the future, the task that awaits it, and one more
        await asyncio.sleep(0)
    return wait


@pytest.mark.parametrize("phase", [Phase.IDLE, Phase.JOINING, Phase.FAULT])
def test_who_waits_at_a_node_without_a_part_learns_that_the_outcome_is_open(phase: Phase) -> None:
    async def main() -> None:
        wait = await told_while_waiting(phase, Receipts(lambda sites: 0))
        assert wait.done()
        with pytest.raises(CommitStateUnknownError, match=f"{phase}: epoch 2 goes on") as caught:
            await wait
        assert not caught.value.definite
        assert caught.value.fields["transaction_id"] == str(uuid.UUID(bytes=ID))
        assert caught.value.fields["reached"] == "accepted"

    asyncio.run(main())


@pytest.mark.parametrize("phase", [Phase.SUSPECT, Phase.WEDGED, Phase.NORMAL])
def test_who_waits_at_a_node_that_has_a_part_waits_on(phase: Phase) -> None:
    """Also while the next epoch is decided: most often it contains this node, and soon."""

    async def main() -> None:
        receipts = Receipts(lambda sites: 0)
        wait = await told_while_waiting(phase, receipts)
        assert not wait.done()
        receipts.close(CommitStateUnknownError("the node stops"))
        with pytest.raises(CommitStateUnknownError, match="the node stops"):
            await wait

    asyncio.run(main())


def test_a_position_of_another_log_or_beyond_a_fork_is_refused() -> None:
    """`force` took over the log `l` up to position 7; what `l` ordered later is not here."""
    forced = replace(
        view_of(4, "A"), log_id="forced", ancestors=(("l", 2), ("l", 3)), end=MergeBase(position=7)
    )
    epochs = epochs_of(forced)
    epochs.on_phase(TellPhase(phase=Phase.NORMAL, view=forced, reason=""))
    for log_id, position in (("", 99), ("forced", 99), ("l", 7)):
        epochs.check_position(log_id, position)
    with pytest.raises(ForeignLogError, match="took over only up to position 7"):
        epochs.check_position("l", 8)
    with pytest.raises(ForeignLogError, match="of the log 'other', this node's log is 'forced'"):
        epochs.check_position("other", 1)
    # Before `force` reached this node, the forced log is another one.
    with pytest.raises(ForeignLogError, match="'forced'"):
        epochs_of(view_of(3, "AB")).check_position("forced", 1)


@pytest.mark.parametrize(
    ("configured", "decided", "differs"),
    [
        ("", "", False),
        ("N/2+1", "", False),
        ("", "N/2+1", False),
        ("N / 2 + 1", "N/2+1", False),
        ("N", "", True),
        ("", "N-1", True),
        ("2", "N", True),
    ],
)
def test_a_synchro_quorum_that_is_not_in_force_is_shown(
    configured: str, decided: str, *, differs: bool
) -> None:
    settings = {"node-id": "A", "master-url": "http://127.0.0.1:7001", "data-dir": "unused"}
    given = {"synchro-quorum": configured} if configured else {}
    config = load_config(None, settings | given, {})
    view = replace(
        view_of(1, "A"),
        quorum_rule=config.quorum_rule,
        synchro_rule=decided,
    )
    wanted, in_force = configured or "N/2+1", decided or "N/2+1"
    text = (
        f"synchro-quorum is {wanted} in the configuration, {in_force} is in force: run "
        f"`sparktxlog peer set-synchro-quorum '{wanted}'`, or change the configuration."
    )
    assert differences(config, view, {}) == ([text] if differs else [])


def test_an_address_that_answers_is_not_to_be_set_back() -> None:
    """Who moved a node by `peer set` is reminded of the files, and of nothing that undoes it."""
    old, new = "http://10.0.0.2:7070", "http://10.0.0.3:7070"
    settings = {"node-id": "A", "master-url": "http://10.0.0.1:7070", "data-dir": "unused"}
    peers = {"peer.1.id": "B", "peer.1.url": old, "client-token": "16 characters or more"}
    config = load_config(None, settings | peers | {"cluster-secret": "16 characters or more"}, {})
    seats = tuple(
        replace(seat, url=new if seat.node_id == "B" else settings["master-url"])
        for seat in view_of(1, "AB").roster
    )
    view = replace(view_of(1, "AB"), roster=seats, quorum_rule=config.quorum_rule)
    (text,) = differences(config, view, {"B": new})
    assert "peer set" not in text and "change the configuration" in text
    for used in ({}, {"B": old}):  # the node is where the file says
        (text,) = differences(config, view, used)
        assert f"peer set B --address {old}" in text


def test_a_copy_of_a_log_that_decided_nothing_is_told() -> None:
    """Its seats have no addresses: those when the log began are compared."""
    settings = {"node-id": "A", "master-url": "http://10.0.0.1:7070", "data-dir": "unused"}
    peers = {"peer.1.id": "B", "peer.1.url": "http://10.0.0.2:7070"}
    secrets = dict.fromkeys(("cluster-secret", "client-token"), "16 characters or more")
    config = load_config(None, settings | peers | secrets, {})
    view, own = view_of(1, "AB"), "http://10.0.0.1:7070"
    there, moved = "http://10.0.0.2:7070", "http://10.1.0.9:7070"
    assert not moved_since(config, view, {})
    assert not moved_since(config, view, {"A": own, "B": there})
    assert not moved_since(config, view, {"A": own, "B": moved}), "one node moved"
    assert not moved_since(config, view, {"A": moved, "B": f"{moved},{there}"})
    assert moved_since(config, view, {"A": moved, "B": moved})
    decided = replace(view, roster=tuple(replace(seat, url=own) for seat in view.roster))
    assert not moved_since(config, decided, {"A": moved, "B": moved})


def test_an_address_with_another_path_is_another_place() -> None:
    """A copy of a cluster after the same proxy must not speak with the original."""
    decided = ["https://gate.example/site-b", "http://10.0.0.2:7070"]
    assert elsewhere(["http://gate.example/site-b", "https://10.0.0.2:7070"], decided) == ()
    moved = ("https://gate.example/copy-b", "http://10.0.0.2:7070/b", "http://10.0.0.3:7070")
    assert elsewhere(moved, decided) == moved
