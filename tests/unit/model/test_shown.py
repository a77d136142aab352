"""What a status shows of itself."""

from __future__ import annotations

from sparktxlog.model.shown import ClusterStatus, html_table, time_text, utc_text

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
    assert str(status).split("\n") == [
        "Node A: diverged, position 1,200, published 1,000, 3 transactions wait",
        "Site <C>, worker w: DIVERGED: at position 900 table 't' differs",
        "The order waits for node B: its timestamp counter (no post since), for 2.5 s",
        "<C>  w  DIVERGED  900  100  copy  ",
    ]
    html = status._repr_html_()
    assert "<b>Node A: diverged" in html and "&lt;C&gt;" in html and "<C>" not in html


def test_times_and_cells() -> None:
    assert time_text(1_700_000_000_999_999) == "2023-11-14 22:13:20"
    assert time_text(None) == time_text(0) == time_text("x") == "-"
    assert utc_text(1_700_000_000_123_456) == "2023-11-14 22:13:20.123 UTC"
    assert html_table(("a",), [(1_234,), (True,), ("<",)]).count("<tr>") == 4
    assert "<td>1,234</td>" in html_table(("a",), [(1_234,)])
