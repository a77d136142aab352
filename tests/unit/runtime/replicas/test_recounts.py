"""Recounts of this site's replica: what they say of its reports, and until when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.known_replicas import report

from sparktxlog.model.report import Recount, RecountedTable
from sparktxlog.runtime.replicas.recounts import Recounts
from sparktxlog.storage.interfaces import PutValue

WRONG = RecountedTable(version=3, recorded="two rows", counted="one row")
SOUND = replace(WRONG, counted=WRONG.recorded)


def recount(position: int = 10, **changes: Any) -> Recount:
    made = Recount(worker_id="wA", node_id="A", copied_from="", position=position)
    return replace(made, **changes)


def test_a_wrong_table_is_marked_in_every_report_until_its_rows_are_right() -> None:
    recounts = Recounts({})
    assert recounts.amend(report(10)) == report(10)
    (write,) = recounts.take(recount(tables={"t": WRONG, "gone": WRONG}))
    assert isinstance(write, PutValue)
    for held in (recounts, Recounts({write.name: write.value})):
        marked = held.amend(report(20))
        why = marked.tables["t"].diverged
        assert "version 3 counts one row, recorded is two rows" in why and set(marked.tables) == {
            "t"
        }
        assert held.wrong(report(20)) == {"t": why}
        assert held.amend(report(20, diverged="foreign commit")).tables["t"].diverged != why
    recounts.take(recount(20, tables={"t": SOUND}))
    assert recounts.amend(report(20)) == report(20)


def test_another_replica_is_not_judged_by_it() -> None:
    recounts = Recounts({})
    recounts.take(recount(tables={"t": WRONG}))
    copied = replace(report(20), copied_from="B at 10")
    for other in (report(20, "B"), copied):
        assert recounts.amend(other) == other
    # The first recount of the copy replaces what was found before it.
    recounts.take(recount(20, copied_from="B at 10", tables={"u": WRONG}))
    assert recounts.wrong(copied) == recounts.wrong(report(20)) == {}


def test_what_cannot_be_read_is_said_and_cut() -> None:
    recounts = Recounts({})
    cause = "x" * 5_000
    recounts.take(recount(tables={"t": replace(WRONG, counted="", cause=cause)}))
    (why,) = recounts.wrong(report(10)).values()
    assert "cannot read all files of version 3" in why and 2_000 < len(why) < 2_200


def test_a_table_is_counted_again_only_later() -> None:
    recounts = Recounts({})
    assert recounts.uncounted(report(10), ["t", "u"], 10) == ["t"], "u is not in the report"
    recounts.take(recount(tables={"t": SOUND}))
    assert recounts.uncounted(report(10), ["t"], 10) == []
    assert recounts.uncounted(report(20), ["t"], 11) == ["t"]
    assert recounts.uncounted(report(10, "B"), ["t"], 10) == ["t"]
