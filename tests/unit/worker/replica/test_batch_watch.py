"""What a worker says of the batch that it is applying."""

from __future__ import annotations

import logging

import pytest
from tests.support.segments import effect, segment

from sparktxlog.model.report import BatchProgress
from sparktxlog.worker.apply.batches import Batch, plan_batch
from sparktxlog.worker.replica import batch_watch
from sparktxlog.worker.replica.batch_watch import BatchWatch


def batch() -> Batch:
    """A batch of three stages for `t`: CLEAR and PLACE after a MERGE of another schema version."""
    effects = (
        effect("upsert", 1),
        effect("delete_where", 2, schema_version=2, predicate="a"),
        effect("append", 3, schema_version=2),
    )
    return plan_batch([segment(1, 3, *effects)], lambda _: pytest.fail("no inline rows are here"))


def test_a_batch_tells_its_stages_and_estimates_the_rest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr(batch_watch, "monotonic", lambda: now[0])
    watch, found = BatchWatch(), batch()
    merge, clear, place = found.tables["t"].steps()
    watch.begin(found)
    assert watch.now() is None
    with caplog.at_level(logging.INFO):
        watch.step("t", merge)
        now[0] += 20
        watch.step("t", clear)
    assert watch.now() == BatchProgress(
        first=1, last=3, table="t", act="clear", stage=2, stages=3, seconds=20.0, left_s=12.0
    )
    first, second = caplog.records
    assert first.getMessage() == "batch 1 to 3: merge of table t, stage 1 of 3"
    assert second.getMessage().endswith("clear of table t, stage 2 of 3, about 12 s left")
    # The jobs draw a bar of it.
    assert (vars(second)["done"], vars(second)["total"]) == (10, 16)
    # A table that is dropped is no stage of the batch.
    watch.step("gone", place)
    assert watch.now() is not None and len(caplog.records) == 2
    watch.end()
    assert watch.now() is None


def test_what_was_done_before_a_crash_is_not_taken_for_fast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(batch_watch, "monotonic", lambda: now[0])
    watch, found = BatchWatch(), batch()
    _, clear, place = found.tables["t"].steps()
    watch.begin(found)
    watch.step("t", clear)
    now[0] += 10
    progress = watch.now()
    assert progress is not None and (progress.stage, progress.left_s) == (2, None)
    watch.step("t", place)
    progress = watch.now()
    assert progress is not None and (progress.stage, progress.left_s) == (3, 2.0)
