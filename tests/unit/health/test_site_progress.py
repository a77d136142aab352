"""What schedulers wait for, by statuses of a node."""

from __future__ import annotations

from typing import Any

import pytest

from sparktxlog.errors import InvalidNameError
from sparktxlog.health.site_progress import progress_of, schema_and_table, table_uri


def replica(site: str, position: int, **more: Any) -> dict[str, Any]:
    line = {"node_id": site, "worker_id": f"w{site}", "position": position, "verdict": "IN_SYNC"}
    return line | {"reason": "at its position"} | more


def status(*replicas: dict[str, Any], **more: Any) -> dict[str, Any]:
    roster = [{"id": name, "member": True, "witness": name == "W"} for name in ("A", "B", "W")] + [
        {"id": "old", "member": False, "witness": False}
    ]
    found = {"applied": replicas[0]["position"], "position": 7, "published": 7, "phase": "NORMAL"}
    return found | {"replicas": list(replicas), "roster": roster} | more


def test_a_position_is_what_the_own_replica_has_applied() -> None:
    behind = status(replica("A", 4), replica("B", 7))
    assert progress_of(behind, 4).waits_for == ""
    found = progress_of(behind, 5)
    assert (found.applied, found.position, found.differs) == (4, 7, "")
    assert found.waits_for == "the replica is at position 4, 5 is wanted"


def test_all_are_in_sync_when_every_member_with_data_has_everything() -> None:
    assert progress_of(status(replica("A", 7), replica("B", 7)), None).waits_for == ""
    alone = progress_of(status(replica("A", 7)), None)
    assert alone.waits_for.startswith("No worker has applied anything at site B")
    late = progress_of(status(replica("A", 7), replica("B", 6)), None)
    assert late.waits_for.startswith("Site B is at position 6 of 7")
    waiting = status(replica("A", 7), replica("B", 7), incoming_transactions=1)
    assert progress_of(waiting, None).waits_for == "transactions are not ordered yet"


@pytest.mark.parametrize("wanted", [None, 5])
def test_a_replica_that_differs_is_nothing_to_wait_for(wanted: int | None) -> None:
    wrong = replica("B", 7, verdict="DIVERGED", reason="table t has other rows")
    found = progress_of(status(replica("A", 4), wrong), wanted)
    assert found.differs == "Site B, worker wB: DIVERGED: table t has other rows"
    assert found.waits_for


def test_tables_have_one_name_outside() -> None:
    assert schema_and_table("orders") == schema_and_table("default.orders") == ("default", "orders")
    assert table_uri("bronze.orders", "emea") == "sparktxlog://emea/bronze/orders"
    with pytest.raises(InvalidNameError):
        table_uri("a.b.c")
