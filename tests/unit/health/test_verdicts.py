"""One verdict for what a node says of its cluster."""

from __future__ import annotations

from sparktxlog.health.verdicts import ClusterState, alarms_of, judge_status


def test_a_node_that_halted_is_diverged_and_an_alarm() -> None:
    status = {"phase": "FAULT", "halted": "two orders"}
    assert judge_status(status) is ClusterState.DIVERGED
    assert alarms_of(status) == [
        {"severity": "alarm", "text": "This node halted: two orders"},
    ]
