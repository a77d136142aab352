"""A peer says that another process replaced this start: who is believed (P30)."""

from __future__ import annotations

import msgspec
import pytest

from sparktxlog.errors import UnauthorizedError
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.view import Seat, View
from sparktxlog.runtime.membership.membership import elected_without
from sparktxlog.transport.exchange import PeerAnswer
from sparktxlog.transport.signing import ReplacedStartError


@pytest.mark.parametrize(
    ("weights", "told", "most"),
    [
        ({"A": 1, "B": 1}, "B", True),  # nothing goes on without the only peer
        ({"A": 1, "B": 1, "C": 1}, "B", False),
        ({"A": 1, "B": 1, "C": 1}, "BC", True),
        ({"A": 1, "B": 1, "C": 1, "D": 1}, "BC", True),
        ({"A": 1, "B": 1, "C": 1, "D": 1, "E": 1}, "BC", False),
        ({"A": 1, "B": 2, "C": 1}, "B", True),
        ({"A": 1, "B": 1, "C": 1}, "BX", False),  # X has no place any more
        ({"A": 1, "B": 0}, "B", False),  # nobody could admit it again
    ],
)
def test_more_than_half_of_the_votes_of_the_others_must_say_it(
    weights: dict[str, int], told: str, most: bool
) -> None:
    roster = tuple(Seat(node_id=NodeId(node), weight=weight) for node, weight in weights.items())
    view = View(log_id="l", epoch=1, members=(), roster=roster)
    assert elected_without(view, "A", told) is most


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("code", [ReplacedStartError.code, "unauthorized"])
def test_only_a_sealed_refusal_is_believed(code: str, sealed: bool) -> None:
    """Whoever stands between the nodes can send a refusal, and cannot seal it."""
    body = msgspec.json.encode({"title": code, "detail": "this start was replaced"})
    answer = PeerAnswer(url="http://b", status=401, body=body, boot="1", sealed=sealed)
    with pytest.raises(UnauthorizedError, match="this start was replaced") as caught:
        answer.check_status("/peer/v1/posts", "B")
    believed = sealed and code == ReplacedStartError.code
    assert isinstance(caught.value, ReplacedStartError) is believed
