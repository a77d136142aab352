"""Scans on a schedule: each table in its turn, one at a time, over restarts."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.worker_log import table

from sparktxlog.errors import TransportError
from sparktxlog.model.report import Recount, RecountedTable
from sparktxlog.worker.replica.state import ReplicaState, ReplicaTable
from sparktxlog.worker.verify.recount_schedule import ScheduledRecounts

HOUR_US = 3_600_000_000


class Site:
    """A replica of some tables, a clock, and scans that end when they are let."""

    def __init__(self, own: Path, *names: str, interval_h: float = 10) -> None:
        self.state = ReplicaState(
            worker_id="w",
            tables={n: ReplicaTable(definition=table(n, "id bigint"), version=1) for n in names},
        )
        self.now_us = 1_000 * HOUR_US
        self.begun: list[str] = []
        self.is_open = True
        #: Set by a scan that is under way; and what it waits for.
        self.entered, self.let = threading.Event(), threading.Event()
        self.seen: threading.Thread | None = None
        self.fails: set[str] = set()
        self.own, self.interval_h = own, interval_h
        self.scans = self.start()

    def start(self) -> ScheduledRecounts:
        self.scans = ScheduledRecounts(
            self.own, self.interval_h, self.count, lambda: self.now_us, lambda: self.is_open
        )
        return self.scans

    def count(self, state: ReplicaState, name: str) -> Recount:
        self.begun.append(name)
        self.entered.set()
        assert self.let.wait(30)
        if name in self.fails:
            raise RuntimeError("Spark has ended")
        found = RecountedTable(version=state.tables[name].version, recorded="1", counted="1")
        return Recount(worker_id="w", node_id="a", copied_from="", position=1, tables={name: found})

    def step(self) -> list[str]:
        told: list[str] = []
        self.scans.step(self.state, lambda found: told.extend(found.tables))
        if self.scans._thread not in (None, self.seen):
            self.seen = self.scans._thread
            assert self.entered.wait(30)
            self.entered.clear()
        return told

    def after(self, hours: float) -> list[str]:
        self.now_us += int(hours * HOUR_US)
        return self.step()

    def ended(self) -> None:
        self.let.set()
        thread = self.scans._thread
        assert thread is not None
        thread.join(30)
        self.let.clear()


def test_nothing_is_counted_outside_of_a_window(tmp_path: Path) -> None:
    site = Site(tmp_path, "a")
    site.is_open = False
    site.step()
    assert site.after(11) == site.begun == []
    site.is_open = True
    site.step()
    assert site.begun == ["a"]
    site.ended()


def test_each_table_is_counted_in_its_turn(tmp_path: Path) -> None:
    site = Site(tmp_path, "a", "b")
    assert site.step() == site.after(9.9) == site.begun == []
    assert site.after(0.2) == []
    # While one is counted no other one is.
    assert site.after(1) == [] and site.begun == ["a"]
    site.ended()
    assert site.step() == ["a"] and site.begun == ["a", "b"]
    site.ended()

    def away(_: Recount) -> None:
        raise TransportError("the node is away")

    with pytest.raises(TransportError):
        site.scans.step(site.state, away)
    assert site.step() == ["b"] and site.begun == ["a", "b"]
    # A restart forgets nothing, and a table that is new then waits as long as all.
    site.start()
    new = ReplicaTable(definition=table("c", "id bigint"), version=1)
    site.state = replace(site.state, tables={**site.state.tables, "c": new})
    assert site.after(9.9) == [] and site.begun == ["a", "b"]
    assert site.after(0.2) == [] and site.begun == ["a", "b", "a"]
    site.ended()


def test_a_scan_that_fails_is_tried_again_sooner(tmp_path: Path) -> None:
    site = Site(tmp_path, "a")
    site.fails = {"a"}
    site.step()
    site.after(10)
    site.ended()
    assert site.step() == site.after(0.9) == [] and site.begun == ["a"]
    site.fails = set()
    site.after(0.2)
    site.ended()
    assert site.step() == ["a"] and site.begun == ["a", "a"]


def test_what_stands_still_is_not_counted_and_nothing_is_where_nobody_wants_it(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, "a")
    site.state = replace(
        site.state, tables={"a": replace(site.state.tables["a"], diverged="somebody wrote")}
    )
    never = Site(tmp_path, "b", interval_h=0)
    for one in (site, never):
        one.step()
        assert one.after(1_000) == one.begun == []
