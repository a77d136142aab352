"""Whether a node is ready, by its status."""

from __future__ import annotations

from typing import Any

import pytest

from sparktxlog.health.readiness import readiness

GOOD: dict[str, Any] = {"phase": "NORMAL", "epoch": 2}


def wrong(status: dict[str, Any]) -> dict[str, str]:
    return {one.name: one.text for one in readiness(status) if not one.good}


@pytest.mark.parametrize(
    ("found", "name", "text"),
    [
        ({"phase": "JOINING", "phase_reason": "waits for B"}, "membership", "waits for B"),
        ({"phase": "WITNESS", "takes_part": False}, "membership", "WITNESS in epoch 2"),
        ({"paused": True}, "submits", "paused"),
        ({"halted": "two orders"}, "protocol", "two orders"),
        ({"disk_full": True}, "journal", "disk full"),
        ({"only_joins": True}, "journal", "lost"),
        ({"publish_failure": "no room"}, "publisher", "no room"),
        ({"stopping": True}, "running", "stopping"),
        ({"failing": [{"task": "lag", "text": "torn", "times": 2}]}, "lag", "torn"),
    ],
)
def test_what_is_wrong_with_a_node_makes_it_unready(
    found: dict[str, Any], name: str, text: str
) -> None:
    (told,) = wrong(GOOD | found).items()
    assert told[0] == name and text in told[1]


def test_a_peer_that_is_away_does_not() -> None:
    away = {"id": "B", "linked": False, "reason": "refused"}
    assert wrong(GOOD | {"peers": [away], "suspects": ["B"], "restricted": {}}) == {}
    assert readiness(GOOD | {"peers": [away]})[-1] == ("peer B", True, "refused")
    assert wrong({"phase": "SUSPECT", "epoch": 1}) == {}


def test_publishing_that_fails_is_said_once() -> None:
    failing = [{"task": "publishing", "text": "no room", "times": 3}]
    found = GOOD | {"publish_failure": "no room", "failing": failing}
    assert wrong(found) == {"publisher": "no room"}
