"""The synchronized queue against the end that a view decided."""

from __future__ import annotations

import pytest

from sparktxlog.errors import InvariantViolation
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import MergeBase
from sparktxlog.protocol.messages.recovery import MasterConfig, RecoveredState
from sparktxlog.protocol.messages.view import View
from sparktxlog.protocol.order.synchronized import SynchronizedQueue


@pytest.mark.parametrize(
    ("epoch", "end", "continues"),
    [
        (1, 9, True),
        (1, 12, True),
        # What stands behind the end was stamped before: the decided log goes on from there.
        (1, 8, False),
        # It was fetched from members that are in the view's epoch already.
        (2, 8, True),
    ],
)
def test_runs_of_earlier_epochs_behind_a_final_queue_are_another_history(
    epoch: int, end: int, continues: bool
) -> None:
    base = MergeBase(position=9, chain_hash=b"h" * 32, origin="a", seq=9)
    config = MasterConfig(node_id=NodeId("b"), members=(NodeId("b"),), quorum=1, log_id="l")
    queue = SynchronizedQueue(config, RecoveredState(base=base, base_key=(epoch, 5, "a", 9)))
    view = View(
        log_id="forced", epoch=2, roster=(), members=(NodeId("a"),), end=MergeBase(position=end)
    )
    if continues:
        queue.check_final(view)
        return
    with pytest.raises(InvariantViolation, match="went on from 8 as epoch 2") as caught:
        queue.check_final(view)
    assert "sparktxlog peer quarantine" in str(caught.value)
