"""Prepared transactions in the fold: what is undecided, and what decides it (P35)."""

from __future__ import annotations

from typing import Any

import pytest

from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.conditions import Condition, TableWrites
from sparktxlog.model.transactions.marks import Undecided
from sparktxlog.model.transactions.operation import Mark, RunFacts, Touch
from sparktxlog.protocol.effects import marking as module
from sparktxlog.protocol.effects.effects import Effects
from sparktxlog.protocol.effects.idwindow import IdWindow
from sparktxlog.protocol.effects.last_writes import LastWrites
from sparktxlog.protocol.effects.marking import Marking
from sparktxlog.protocol.messages.posts import Verdict

T = TableDefinition(name="t", columns=(Column(name="c", type="bigint"),))
WRITE = (Touch(table="t", schema_version=1),)
X = b"x" * 16
UNTIL = 1_000
CHANGE = TableChange(add=(Column(name="d", type="bigint"),))


class Log:
    """A queue of a table `t`, of which each run is one second later than the one before."""

    def __init__(self) -> None:
        self.marking = Marking()
        self.writes = LastWrites({}, 100)
        window = IdWindow(100, max_run=50)
        self.effects = Effects([T], window, writes=self.writes, marking=self.marking)
        self.end = 0

    def run(self, n: int = 1, ids: bytes = b"", ts: int = 0, **facts: Any) -> list[str]:
        """Fold a run; return index and code of what it rejects."""
        ids = ids or b"".join((self.end + at + 1).to_bytes(16, "big") for at in range(n))
        rejections, _ = self.effects.apply(
            self.end + 1, RunFacts(n=n, ids=ids, **facts), ts or self.end, size_bytes=10
        )
        self.end += n
        return [f"{one.index} {one.code}" for one in rejections]

    def prepare(self, *names: str, read: int | None = None, name: bytes = X) -> list[str]:
        """Fold a prepared transaction that writes to the table."""
        condition = Condition(read_position=read, reads=("t",))
        return self.run(
            ids=name,
            participants=names,
            touches=WRITE,
            valid_until=((0, UNTIL),),
            conditions=() if read is None else ((0, condition),),
        )

    def say(self, *said: str, ts: int = 0) -> list[str]:
        """Fold one run of marks, such as `a` for a YES and `-a` for a NO."""
        marks = [
            Mark(transaction_id=X, participant=one.strip("-"), yes="-" not in one) for one in said
        ]
        return self.run(len(said), ts=ts, marks=tuple(enumerate(marks)))

    def verdicts(self) -> list[tuple[int, int, str]]:
        """Return position, index and code of what the last run decided."""
        return [_short(one) for one in self.marking.end_run(self.end)]


def _short(one: Verdict) -> tuple[int, int, str]:
    return one.position, one.index, one.rejection.code if one.rejection else ""


def test_the_last_yes_lets_it_take_effect_in_its_place() -> None:
    log = Log()
    log.run(touches=WRITE)
    assert log.prepare("a", "b") == ["0 prepared"]
    assert log.writes.of("t") == TableWrites(version=1, position=1)
    assert log.say("b", "b") == [] and log.verdicts() == []
    assert [one.missing for one in log.marking.undecided] == [("a",)]
    assert log.say("b", "a", "a") == ["2 not-prepared"]
    assert log.verdicts() == [(2, 1, "")]
    assert log.writes.of("t") == TableWrites(version=2, position=6)
    assert log.marking.undecided == ()


def test_others_go_on_meanwhile_and_what_it_read_is_compared_at_its_place() -> None:
    log = Log()
    log.prepare("a", read=0)
    assert log.run(touches=WRITE) == []
    assert log.say("a") == []
    (verdict,) = log.marking.end_run(log.end)
    assert _short(verdict) == (1, 0, "conflict")
    assert verdict.rejection is not None
    assert (verdict.rejection.table, verdict.rejection.winner) == ("t", 2)
    assert log.writes.of("t") == TableWrites(version=1, position=2), "it wrote nothing"


def test_a_table_that_changed_meanwhile_rejects_it() -> None:
    log = Log()
    log.prepare("a")
    log.run(touches=WRITE, changes=((0, "t", CHANGE),))
    assert log.say("a") == []
    assert log.verdicts() == [(1, 0, "stale-schema")]


def test_its_effect_counts_for_later_transactions_of_the_run() -> None:
    log = Log()
    log.prepare("a")
    marks = ((1, Mark(transaction_id=X, participant="a", yes=True)),)
    conditions = tuple((at, Condition(versions=(("t", 0),))) for at in (0, 2))
    assert log.run(3, marks=marks, conditions=conditions) == ["2 conflict"]


def test_what_does_not_fit_where_it_is_ordered_is_rejected_there() -> None:
    log = Log()
    log.run(touches=WRITE)
    assert log.prepare("a", read=0) == ["0 conflict"]
    assert log.prepare("a") == ["0 duplicate-transaction"], "its id is used up"
    late = log.run(participants=("a",), ts=UNTIL + 1, valid_until=((0, UNTIL),))
    assert late == ["0 expired-transaction"]
    assert log.run(participants=("a",), voided=True, valid_until=((0, UNTIL),)) == ["0 voided"]
    assert log.marking.undecided == () and log.say("a") == ["0 not-prepared"]


def test_a_no_rejects_it_also_after_a_yes_and_is_final() -> None:
    log = Log()
    log.prepare("a", "b")
    assert log.say("a", "-a", "b", "-b") == ["2 not-prepared", "3 not-prepared"]
    (verdict,) = log.marking.end_run(log.end)
    assert _short(verdict) == (1, 1, "rolled-back")
    assert verdict.rejection is not None and "'a' said NO" in verdict.rejection.text
    assert log.writes.of("t").version == 0


def test_a_stranger_changes_nothing() -> None:
    log = Log()
    log.prepare("a", "b")
    assert log.say("a", "c", "-c") == ["1 not-a-participant", "2 not-a-participant"]
    assert log.verdicts() == [] and len(log.marking.undecided) == 1


def test_a_repeated_mark_is_a_repeat() -> None:
    log = Log()
    log.prepare("a")
    mark = Mark(transaction_id=X, participant="a", yes=True)
    again: dict[str, Any] = {"ids": b"m" * 16, "marks": ((0, mark),)}
    assert log.run(**again) == []
    assert log.run(**again) == ["0 duplicate-transaction"]


def test_a_mark_before_its_transaction_counts_nowhere() -> None:
    log = Log()
    assert log.say("a", "-b") == ["0 not-prepared", "1 not-prepared"]
    assert log.prepare("a", "b") == ["0 prepared"]
    assert log.say("b") == [] and log.verdicts() == []


def test_log_time_rejects_it_before_the_first_run_after_it() -> None:
    log = Log()
    log.prepare("a", "b")
    log.say("a", ts=UNTIL)
    assert log.say("b", ts=UNTIL + 1) == ["0 not-prepared"]
    (verdict,) = log.marking.end_run(log.end)
    assert _short(verdict) == (1, 0, "expired-transaction")
    assert verdict.rejection is not None and "'b' said nothing" in verdict.rejection.text
    assert log.run(ts=UNTIL + 2) == [] and log.verdicts() == []


def test_the_last_yes_may_come_at_its_time() -> None:
    log = Log()
    log.prepare("a")
    log.say("a", ts=UNTIL)
    assert log.verdicts() == [(1, 0, "")]


@pytest.mark.parametrize(("name", "most"), [("MOST_UNDECIDED", 2), ("MOST_UNDECIDED_BYTES", 20)])
def test_there_are_not_too_many(monkeypatch: pytest.MonkeyPatch, name: str, most: int) -> None:
    monkeypatch.setattr(module, name, most)
    log = Log()
    assert log.prepare("a") == log.prepare("a", name=b"y" * 16) == ["0 prepared"]
    assert log.prepare("a", name=b"z" * 16) == ["0 too-many-prepared"]
    log.say("a")
    assert log.prepare("a", name=b"w" * 16) == ["0 prepared"], "there is room again"


def test_changes_are_told_once_for_each_run() -> None:
    log = Log()
    log.prepare("a", "b")
    log.marking.end_run(log.end)
    log.say("a", "b")
    log.marking.end_run(log.end)
    log.run()
    log.marking.end_run(log.end)
    (prepared, decided) = log.marking.take_changes()
    assert prepared == (
        1,
        X,
        Undecided(
            transaction_id=X,
            position=1,
            participants=("a", "b"),
            valid_until=UNTIL,
            touches=WRITE,
            size_bytes=10,
        ),
    )
    assert decided == (3, X, None)
    assert log.marking.take_changes() == ()


def test_a_copy_goes_on_as_the_original_does() -> None:
    log = Log()
    log.prepare("a", "b")
    log.prepare("a", name=b"y" * 16)
    log.say("b")
    again = Marking(reversed(log.marking.undecided))
    assert again.undecided == log.marking.undecided
    again.pass_time(UNTIL)
    assert len(again.undecided) == 2
    again.pass_time(UNTIL + 1)
    assert [_short(one)[0] for one in again.end_run(9)] == [1, 2], "in the order of the queue"
