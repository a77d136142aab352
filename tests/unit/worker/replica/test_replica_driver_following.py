"""A follower stands still and comes back by itself, and ends only on what no waiting heals."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from sparktxlog.errors import (
    ApplyError,
    DiskFullError,
    DivergedError,
    ExpiredError,
    InternalError,
    InvariantViolation,
    LockedError,
    NotFoundError,
    RemoteProtocolError,
    TransportError,
    TxLogError,
    UnauthorizedError,
)
from sparktxlog.worker.replica import replica_driver
from sparktxlog.worker.replica.replica_driver import ReplicaDriver, ReplicaPhase


class Replica:
    """Does one script entry after the other, then asks for the end."""

    def __init__(self, *script: Exception | str, may_copy: bool = True) -> None:
        self.may_copy = may_copy
        self.position = 0
        self.foreign = False
        self.spark_lives = True
        #: What happens next: an error of the own node, `idle: …` = the machine gave up with it,
        #: `stop: …` = the node's answer to a report, `work`.
        self.script = list(script)
        self.done: list[str] = []
        self.noted: list[str] = []
        self.stop = threading.Event()
        self.changed = threading.Event()
        self.errors: dict[str, TxLogError] = {}

    def report(self) -> None:
        self.done.append("report")
        if self.script and self.script[0] == "unreported":
            self.script.pop(0)
            raise TransportError("node away")

    def spark_runs(self) -> bool:
        return self.spark_lives

    def obstacle(self) -> str:
        if self.script and str(self.script[0]).startswith("stop: "):
            return str(self.script.pop(0)).removeprefix("stop: ")
        return ""

    def is_foreign(self) -> bool:
        return self.foreign

    def note_error(self, text: str) -> None:
        if text or self.noted[-1:] != [""]:
            self.noted.append(text)

    def go_on(self) -> None:
        if not self.script:
            self.stop.set()
            return
        found = self.script.pop(0)
        if isinstance(found, Exception):
            self.done.append(type(found).__name__)
            raise found
        if found.startswith("idle: "):
            self.done.append("idle")
            self.driver.phase = ReplicaPhase.IDLE
            raise self.errors[found.removeprefix("idle: ")]
        self.done.append(found)

    def follow(self) -> list[str]:
        self.driver = NotedDriver(cast(Any, self), self.stop)
        self.driver.follow(self.changed)
        return self.done


class NotedDriver(ReplicaDriver):
    """Says when it begins anew."""

    def reset(self) -> None:
        super().reset()
        cast(Replica, self._replica).done.append("begin")


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IDLE_S", "RETRY_S", "POLL_S"):
        monkeypatch.setattr(replica_driver, name, 0.01)


def test_a_stop_is_waited_out_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    replica = Replica("stop: no healthy donor", "stop: no healthy donor", "work", "stop: again")
    with caplog.at_level(logging.ERROR):
        assert replica.follow() == ["begin", "report", "report", "report", "work", "report"]
    said = [record.getMessage() for record in caplog.records]
    assert [text.rsplit(": ", 1)[1] for text in said] == ["no healthy donor", "again"]


def test_an_idle_machine_begins_anew_with_a_report(caplog: pytest.LogCaptureFixture) -> None:
    replica = Replica("idle: full", "idle: full", "work")
    replica.errors["full"] = DiskFullError("no space left")
    with caplog.at_level(logging.ERROR):
        assert replica.follow() == [
            "begin",
            "report",
            "idle",
            "begin",
            "report",
            "idle",
            "begin",
            "report",
            "work",
        ]
    (said,) = [record.getMessage() for record in caplog.records]
    assert "no space left" in said
    # Reports say so until something was done.
    assert replica.noted == ["[disk-full] no space left"] * 2 + [""]


@pytest.mark.parametrize(
    "error",
    [
        ApplyError("no copy for worker 'w': no healthy donor"),
        ApplyError("a batch failed twice"),
        DiskFullError("no space left"),
        # Of a donor: the own node would say it to the next report.
        UnauthorizedError("the donor does not know the lease"),
        RemoteProtocolError("a donor of another release"),
        TransportError("4 attempts failed"),
    ],
)
def test_what_the_machine_gave_up_is_tried_again(error: TxLogError) -> None:
    replica = Replica("idle: x", "work")
    replica.errors["x"] = error
    assert replica.follow() == ["begin", "report", "idle", "begin", "report", "work"]


@pytest.mark.parametrize("may_copy", [True, False])
def test_what_nobody_foresaw_is_tried_again(
    may_copy: bool, caplog: pytest.LogCaptureFixture
) -> None:
    found = OSError(24, "too many open files")
    replica = Replica(found, "work", may_copy=may_copy)
    assert replica.follow() == ["begin", "report", "OSError", "begin", "report", "work"]
    assert any(record.exc_info for record in caplog.records)


def test_without_spark_nothing_is_tried_again() -> None:
    replica = Replica(ConnectionRefusedError("the JVM is gone"), "work")
    replica.spark_lives = False
    with pytest.raises(InternalError, match="the JVM is gone"):
        replica.follow()


def test_a_log_that_expired_meanwhile_is_a_question_to_the_node() -> None:
    replica = Replica(ExpiredError("410"), "work", may_copy=False)
    assert replica.follow() == ["begin", "report", "ExpiredError", "begin", "report", "work"]


def test_an_absent_node_is_asked_again_with_a_new_machine() -> None:
    replica = Replica("unreported", "work")
    assert replica.follow() == ["begin", "report", "begin", "report", "work"]
    # The report was taken: no other one is needed.
    replica = Replica(TransportError("away"), "work")
    assert replica.follow() == ["begin", "report", "TransportError", "begin", "work"]
    assert replica.noted == [""]


@pytest.mark.parametrize(
    "error",
    [
        DivergedError("another log id"),
        InvariantViolation("broken"),
        LockedError("another worker has the replica"),
        UnauthorizedError("wrong token"),
        RemoteProtocolError("another release"),
        NotFoundError("no such route"),
    ],
)
def test_what_no_waiting_heals_ends_it(error: TxLogError) -> None:
    with pytest.raises(type(error)):
        Replica(error).follow()


@pytest.mark.parametrize("error", [DivergedError("the copy is DIVERGED"), InvariantViolation("x")])
def test_a_machine_that_found_another_history_is_not_asked_again(error: TxLogError) -> None:
    replica = Replica("idle: x")
    replica.errors["x"] = error
    with pytest.raises(type(error)):
        replica.follow()


def test_without_leave_to_copy_a_stop_and_a_failed_batch_are_the_end() -> None:
    assert Replica("stop: diverged", may_copy=False).follow() == ["begin", "report"]
    with pytest.raises(ApplyError):
        Replica(ApplyError("file is missing"), may_copy=False).follow()


def test_a_full_disk_is_waited_out_with_or_without_leave_to_copy() -> None:
    replica = Replica(DiskFullError("no space left"), "work", may_copy=False)
    assert replica.follow() == ["begin", "report", "DiskFullError", "begin", "report", "work"]


def test_a_foreign_replica_is_the_end() -> None:
    replica = Replica("stop: of another log")
    replica.foreign = True
    assert replica.follow() == ["begin", "report"]


@pytest.mark.parametrize("wake", ["changed", "stop"])
def test_news_and_an_end_cut_the_waiting_short(wake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_driver, "IDLE_S", 600.0)
    replica = Replica("stop: no donor", "work")
    asked: Callable[[], str] = replica.obstacle

    def obstacle() -> str:
        found = asked()
        if found:
            threading.Timer(0.05, getattr(replica, wake).set).start()
        return found

    replica.obstacle = obstacle  # type: ignore[method-assign]
    thread = threading.Thread(target=replica.follow, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert replica.done == ["begin", "report"] + ["report", "work"] * (wake == "changed")


def test_an_end_in_the_middle_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    replica = Replica(ApplyError("the worker was stopped meanwhile"), may_copy=False)
    go_on = replica.go_on

    def stopped() -> None:
        replica.stop.set()
        go_on()

    replica.go_on = stopped  # type: ignore[method-assign]
    assert replica.follow() == ["begin", "report", "ApplyError"]
    assert "stopped during an error" in caplog.text
