"""How a recount looks for the cause of a difference in the log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.worker_log import LogBuilder, MemoryLog, table

from sparktxlog.errors import ExpiredError
from sparktxlog.worker.verify.verify import _Search


@pytest.fixture
def source(tmp_path: Path) -> MemoryLog:
    """Four segments with a file for the table in each."""
    log = LogBuilder(tmp_path)
    log.transaction().create(table("t", "id bigint"))
    for number in range(4):
        log.transaction().staged("append", "t", [(number,)])
        log.publish()
    return MemoryLog(log, tmp_path / "lake")


def searched(source: MemoryLog) -> list[int]:
    """Return the positions of the effects that are looked at."""
    nothing = cast(Any, None)
    search = _Search(nothing, cast(Any, source), nothing, nothing, source.log.position)
    return [effect.first for effects in search._ranges("t") for effect in effects]


def test_it_looks_at_what_the_log_still_holds(source: MemoryLog) -> None:
    assert searched(source) == [2, 3, 4, 5]
    source.kept_after = 3
    assert searched(source) == [4, 5]


def test_the_log_may_be_shortened_meanwhile(
    source: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, known = source.info(), iter((0, 3, 3))
    monkeypatch.setattr(source, "info", lambda: replace(shown, kept_after=next(known)))
    source.kept_after = 3
    assert searched(source) == [4, 5]
    # A node that holds less than it says is not asked for ever.
    known = iter((0, 0))
    with pytest.raises(ExpiredError):
        searched(source)
