"""Looks at silent work from beside it."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from sparktxlog.worker.verify.watching import tasks_shown, watched


def test_work_is_looked_at_until_it_ends() -> None:
    looks, twice = [], threading.Event()

    def look() -> None:
        looks.append(threading.current_thread().name)
        if len(looks) == 2:
            twice.set()

    with watched(look, every_s=0.001):
        assert twice.wait(10)
    count = len(looks)
    assert set(looks) == {"progress"}
    assert threading.active_count() == 1 or "progress" not in {
        thread.name for thread in threading.enumerate()
    }
    assert len(looks) == count


def test_quick_work_is_looked_at_once_at_its_end() -> None:
    looks = []
    with watched(lambda: looks.append("done"), every_s=60):
        assert not looks
    assert looks == ["done"]


def test_a_look_that_fails_ends_the_looking_and_not_the_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failed = threading.Event()

    def look() -> None:
        failed.set()
        raise OSError("the disk is away")

    with caplog.at_level(logging.INFO), watched(look, every_s=0.001):
        assert failed.wait(10)
    assert "progress is not known any more: the disk is away" in caplog.text


def test_tasks_of_the_running_stages_are_told_together(caplog: pytest.LogCaptureFixture) -> None:
    stages: dict[int, Any] = {
        1: SimpleNamespace(numTasks=8, numCompletedTasks=8),
        2: SimpleNamespace(numTasks=4, numCompletedTasks=1),
        3: None,
    }
    tracker = SimpleNamespace(
        getActiveStageIds=lambda: list(stages), getStageInfo=lambda stage: stages[stage]
    )
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    look = tasks_shown(spark, logging.getLogger("test"), "recounting table t")
    with caplog.at_level(logging.INFO):
        look()
        stages.clear()
        look()
    (record,) = caplog.records
    assert record.getMessage() == "recounting table t: 9 of 12 tasks"
    assert (record.done, record.total) == (9, 12)  # type: ignore[attr-defined]
