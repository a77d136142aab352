"""A commit that is done later: what its result says of levels."""

from __future__ import annotations

import threading
from uuid import uuid4

import pytest

from sparktxlog.api.nodes import Nodes
from sparktxlog.api.writing.pending_commit import PendingCommit
from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.transactions.receipt import Level, Receipt


class Sender:
    """Has settled its commits, and no node to ask."""

    def __init__(self) -> None:
        self.changed = threading.Condition()

    @property
    def link(self) -> Nodes:
        raise AssertionError("no node needs to be asked")

    def take(self, pending: PendingCommit) -> None:
        raise AssertionError(f"{pending.id} did not fail")


@pytest.fixture
def applied() -> PendingCommit:
    """One that is applied at one site."""
    pending = PendingCommit(uuid4().bytes, Sender())
    pending.settle(Receipt(transaction_id=pending.id, n=1, level=Level.APPLIED, position=7))
    return pending


@pytest.mark.parametrize("level", [None, "accepted", "ordered", "applied"])
def test_a_level_that_it_has_is_not_waited_for(applied: PendingCommit, level: str | None) -> None:
    assert applied.result(0, level=level).position == 7


def test_one_site_is_not_taken_for_several(applied: PendingCommit) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        applied.result(0, level="applied(2)")
    assert raised.value.fields == {"field": "level", "value": "applied(2)"}
    assert "background" in raised.value.hint
