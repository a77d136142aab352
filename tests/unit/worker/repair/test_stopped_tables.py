"""A worker repairs what others wrote to, if this site's own files suffice for all of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparktxlog.errors import ExpiredError, TransportError, TxLogError
from sparktxlog.worker.repair.repairing import Diagnosis, RepairOutcome, RepairWay
from sparktxlog.worker.repair.stopped_tables import repair_stopped


class Repair:
    """Finds each table in the way that is told, and notes which ones it repaired."""

    def __init__(self, **found: RepairWay | TxLogError) -> None:
        self.state = SimpleNamespace(diverged=dict.fromkeys(found, "written by eve"))
        self.found = found
        self.done: list[str] = []

    def diagnose(self, name: str) -> Diagnosis:
        found = self.found[name]
        if isinstance(found, TxLogError):
            raise found
        return Diagnosis(table=name, way=found, reason="written by eve")

    def run(self, found: Diagnosis) -> RepairOutcome:
        self.done.append(found.table)
        return RepairOutcome(found=found, done=True)


def repaired(repair: Any) -> list[str]:
    return [outcome.found.table for outcome in repair_stopped(repair)]


def test_all_tables_that_stand_still_are_restored() -> None:
    repair = Repair(b=RepairWay.RESTORE, a=RepairWay.RESTORE)
    assert repaired(repair) == repair.done == ["a", "b"]


@pytest.mark.parametrize("other", [RepairWay.REBUILD, ExpiredError("the log is too short")])
def test_nothing_is_touched_where_only_a_copy_helps(other: RepairWay | TxLogError) -> None:
    repair = Repair(a=RepairWay.RESTORE, b=other)
    assert repaired(repair) == repair.done == []


def test_a_node_that_is_away_is_asked_again_later() -> None:
    with pytest.raises(TransportError):
        repaired(Repair(a=TransportError("the node is away")))
