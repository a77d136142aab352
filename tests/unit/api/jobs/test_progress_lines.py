"""Progress on stderr: lines for a log, a bar for somebody who watches."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from sparktxlog.api.jobs import progress_lines, replica_jobs
from sparktxlog.api.jobs.progress_lines import LINES_S, ProgressHandler
from sparktxlog.api.jobs.replica_jobs import JobSource, refuse_beyond
from sparktxlog.errors import InvalidRequestError
from sparktxlog.worker.apply.cutting import Cut
from sparktxlog.worker.replica.source import HttpLogSource, LogTail
from sparktxlog.worker.replica.state import PendingBatch, ReplicaDirectory, ReplicaState


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(text: str, *arguments: Any, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("w", logging.INFO, "f", 1, text, arguments, None)
    made.__dict__.update(extra)
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress_lines, "monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_from_time_to_time_and_the_last_one(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    handler = ProgressHandler()
    for done in range(5):
        handler.emit(record("%s of %s bytes", done, 9, done=done, total=9))
        clock[0] += LINES_S / 2
    handler.emit(record("another"))
    handler.emit(record("%s of %s rows", 1, 9, done=1, total=9))
    handler.emit(record("%s of %s bytes", 9, 9, done=9, total=9))
    assert out.getvalue().splitlines() == [
        "INFO 0 of 9 bytes",
        "INFO 2 of 9 bytes",
        "INFO 4 of 9 bytes",
        "INFO another",
        "INFO 1 of 9 rows",
        "INFO 9 of 9 bytes",
    ]


def test_a_terminal_shows_a_bar_which_lines_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    handler = ProgressHandler()
    handler.emit(record("%s of %s bytes are here", 3, 6, done=3, total=6))
    shown = out.getvalue()
    assert "█" * 15 + "░" * 15 + "  50%" in shown and "3 of 6 bytes" in shown
    assert not shown.endswith("\n")
    handler.emit(record("something else"))
    assert out.getvalue().endswith("\r\x1b[2KINFO something else\n")
    handler.emit(record("nothing to do", done=0, total=0))
    assert "100%" in out.getvalue()


def test_a_replay_is_told_where_it_begins_and_where_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ends = [100, 100, 120, 120, 120]

    def segments(*_: Any, **__: Any) -> LogTail:
        return LogTail(position=ends.pop(0), log_id="l", epoch=1)

    monkeypatch.setattr(HttpLogSource, "segments", segments)
    source = JobSource("http://a:1", None)
    with caplog.at_level(logging.INFO, replica_jobs.__name__):
        for position in (100, 60, 60, 90, 120):
            source.segments(position, wait_s=0.0)
    assert [(r.getMessage(), r.done, r.total) for r in caplog.records] == [  # type: ignore[attr-defined]
        ("position 60 of 100 is applied", 0, 40),
        ("position 90 of 120 is applied", 30, 60),
        ("position 120 of 120 is applied", 60, 60),
    ]


def test_a_replica_behind_the_wanted_position_is_refused(tmp_path: Path) -> None:
    cut = Cut(position=50, chain_hash="c", epoch=1)
    refuse_beyond(tmp_path / "none", cut)
    directory = ReplicaDirectory(tmp_path)
    directory.save(ReplicaState(worker_id="w", position=50))
    refuse_beyond(tmp_path, cut)
    directory.save(ReplicaState(worker_id="w", position=51))
    with pytest.raises(InvalidRequestError, match="has already applied position 51"):
        refuse_beyond(tmp_path, cut)
    pending = PendingBatch(first=41, last=60, from_hash="a", to_hash="b")
    directory.save(ReplicaState(worker_id="w", position=40, pending=pending))
    with pytest.raises(InvalidRequestError, match="has already begun a batch up to position 60"):
        refuse_beyond(tmp_path, cut)
    directory.close()
