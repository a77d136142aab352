"""What a node says of its part in the epoch, from its start on (V46, D15)."""

from __future__ import annotations

from typing import Any

import pytest

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.actions import TellPhase
from sparktxlog.protocol.balloting import BallotState
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.phases import Phase
from sparktxlog.protocol.recovery import MasterConfig, RecoveredState
from sparktxlog.protocol.view import Ballot, Seat, View
from sparktxlog.runtime.epoch_history import EpochHistory
from sparktxlog.runtime.epochs import Epochs
from sparktxlog.runtime.receipts import Receipts

SEATS = tuple(Seat(node_id=NodeId(name), witness=name == "W") for name in "ABW")


def view_of(epoch: int, members: str) -> View:
    return View(
        lineage="l", epoch=epoch, roster=SEATS, members=tuple(NodeId(name) for name in members)
    )


def epochs_of(view: View, ballot: int = 0, own: str = "A") -> Epochs:
    """Return what a node shows that starts with a view and a promise of its front."""
    config = MasterConfig(
        node_id=NodeId(own), members=(NodeId("A"), NodeId("B")), quorum=2, lineage="l", roster=SEATS
    )
    promise = BallotState(epoch=view.epoch, promised=Ballot(number=ballot, node=NodeId("B")))
    state = RecoveredState(view=view, ballot=promise if ballot else None)
    nobody: Any = dict
    return Epochs(
        master=Master(config, state, 0), cluster="c", node_id=config.node_id,
        receipts=Receipts(lambda copies: 0), tell=lambda event: None, links_up=tuple,
        addresses=nobody, now=lambda: 0, history=EpochHistory({}, put=lambda writes: None),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("view", "ballot", "phase", "reason"),
    [
        (view_of(1, "AB"), 0, "NORMAL", ""),
        (view_of(2, "B"), 0, "JOINING",
         "no member of epoch 2 at the start: waits for B to admit it"),
        (view_of(3, "AB"), 1, "WEDGED",
         "promised a ballot before the start: what follows epoch 3 is open"),
    ],
)  # fmt: skip
def test_a_node_says_why_it_starts_in_its_phase(
    view: View, ballot: int, phase: str, reason: str
) -> None:
    epochs = epochs_of(view, ballot)
    shown = epochs.view()
    assert (shown["phase"], shown["phase_reason"]) == (phase, reason)
    taken_part, text = epochs.takes_part()
    assert taken_part == (phase != "JOINING") and text.endswith(reason)
    # The core tells of every phase behind it.
    epochs.on_phase(TellPhase(phase=Phase.NORMAL, view=view, reason="epoch 4 is in force"))
    assert epochs.view()["phase_reason"] == "epoch 4 is in force"


def test_a_witness_has_a_part_from_its_start_on() -> None:
    assert epochs_of(view_of(2, "B"), own="W").takes_part() == (True, "WITNESS in epoch 2")
