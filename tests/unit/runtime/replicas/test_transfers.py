"""Transfers: running and finished, bounded, kept over a restart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.copying import CatchUpKind, Decision, Estimate, Transfer
from sparktxlog.runtime.replicas.transfers import HISTORY, RunningCopy, Transfers, check_transfer
from sparktxlog.storage.interfaces import PutValue

COPY = Transfer(
    transfer_id="c1",
    worker_id="w",
    node_id="A",
    kind=CatchUpKind.COPY,
    donors=("B",),
    from_position=0,
    to_position=10,
    started_at=1,
    finished_at=2_000_001,
    estimated_s=1.5,
    actual_s=2.0,
    size_bytes=100,
    wire_bytes=40,
    reused_bytes=10,
)


def running(copy_id: str = "c1", worker_id: str = "w") -> RunningCopy:
    estimate = Estimate(kind=CatchUpKind.COPY, seconds=1.5, basis="")
    decision = Decision(worker_id=worker_id, plan="copy", reason="", copy=estimate)
    return RunningCopy(
        copy_id=copy_id, worker_id=worker_id, decision=decision, donors=("B",), started_at=0
    )


def test_a_copy_runs_until_its_end_is_told() -> None:
    transfers = Transfers({})
    transfers.started(running())
    (line,) = transfers.of_worker("w", 3_000_000)["running_transfers"]
    assert (line["running_s"], line["estimated_s"], line["donors"]) == (3.0, 1.5, ["B"])
    assert transfers.of_worker("other", 0) == {"last_transfer": None, "running_transfers": []}
    new, writes = transfers.finished(COPY)
    assert new
    assert len(writes) == 1
    found = transfers.of_worker("w", 0)
    assert found["running_transfers"] == []
    assert (found["last_transfer"]["actual_s"], found["last_transfer"]["kind"]) == (2.0, "copy")
    # Told again, after an answer that was lost.
    assert transfers.finished(COPY) == (False, [])


def test_a_new_copy_of_a_worker_replaces_the_one_it_gave_up() -> None:
    transfers = Transfers({})
    for number in range(100):
        transfers.started(running(f"c{number}"))
        transfers.started(running(f"d{number}", f"w{number}"))
    assert len(transfers.of_worker("w", 0)["running_transfers"]) == 1
    assert transfers.of_worker("w0", 0)["running_transfers"] == []


def test_the_latest_are_kept_in_a_ring_over_restarts_whatever_the_clocks_say() -> None:
    transfers, saved = Transfers({}), {}
    for number in range(HISTORY + 10):
        # The worker's clock runs backwards.
        _, writes = transfers.finished(
            replace(COPY, transfer_id=f"c{number}", finished_at=10_000 - number)
        )
        for write in writes:
            assert isinstance(write, PutValue)
            saved[write.name] = write.value
        if number == HISTORY // 2:
            transfers = Transfers(saved)
    assert len(saved) == HISTORY
    for one in (transfers, Transfers(saved)):
        assert [t.transfer_id for t in one.latest(1_000)] == [
            f"c{number}" for number in range(10, HISTORY + 10)
        ]
        assert [t.transfer_id for t in one.latest(1)] == [f"c{HISTORY + 9}"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"node_id": "B"}, "node_id"),
        ({"actual_s": -1.0}, "actual_s"),
        ({"actual_s": float("nan")}, "actual_s"),
        ({"finished_at": 10**18}, "finished_at"),
        ({"to_position": 10**30}, "to_position"),
        ({"estimated_s": float("inf")}, "estimated_s"),
        ({"wire_bytes": -1}, "wire_bytes"),
        ({"reason": "x" * 5_000}, "reason"),
    ],
)
def test_what_would_not_fit_the_table_is_refused(change: dict[str, Any], field: str) -> None:
    check_transfer(replace(COPY, estimated_s=None), "A")
    with pytest.raises(InvalidRequestError) as caught:
        check_transfer(replace(COPY, **change), "A")
    assert caught.value.fields["field"] == field
