"""What a status shows of itself."""

from __future__ import annotations

from sparktxlog.health.cluster_status import ClusterStatus

STATUS = {
    "node_id": "A",
    "position": 1_200,
    "published": 1_000,
    "incoming_transactions": 3,
    "waiting_for": [{"peer": "B", "why": "promise", "since_us": 2_500_000}],
    "replicas": [
        {
            "worker_id": "w",
            "node_id": "<C>",
            "position": 900,
            "verdict": "DIVERGED",
            "reason": "at position 900 table 't' differs",
            "plan": "copy",
        }
    ],
}


def test_a_status_says_its_state_alarms_and_waits() -> None:
    status = ClusterStatus(STATUS)
    assert status["node_id"] == "A" and status.state == "diverged"
    alarm = "Site <C>, worker w: DIVERGED: at position 900 table 't' differs"
    assert status.verdict.text == alarm and status.alarms == [alarm]
    assert str(status).split("\n") == [
        "Node A: diverged, position 1,200, published 1,000, 3 transactions wait",
        status.verdict.sentence,
        "The order waits for node B: its timestamp counter (no post since), for 2.5 s",
        "<C>  w  diverged  900  100  copy  ",
    ]
    html = status._repr_html_()
    assert "<b>Node A: diverged" in html and "&lt;C&gt;" in html and "<C>" not in html
